"""Frozen dataclasses <-> TOML: the one place where text becomes types. Strict: nothing is ignored or guessed."""

import dataclasses
import difflib
import json
import math
import tomllib
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

T = TypeVar("T")

Method = Literal["ibinn", "class-nll", "class-nll-fixed", "resnet", "irevnet", "vib"]
Size = Literal["tiny", "small", "base", "paper"]
Precision = Literal["float32", "bf16"]
Priors = Literal["data", "uniform", "learned"]
Device = Literal["auto", "cpu", "cuda", "mps"]
Pretrained = Literal["digits", "fashion_mnist", "cifar10"]

ALPHA = 0.05  # p-values up to this are atypical, where nobody says otherwise
GAMMA_METHODS = ("ibinn", "vib")  # those whose loss has the knob


class ConfigError(ValueError):
    """A setting that is unknown, of the wrong type or out of range: one sentence, with the way out."""


def at_least(name: str, value: float, least: float) -> None:
    """ConfigError for a smaller value, or one that is no number."""
    if not value >= least:
        raise ConfigError(f"{name} is {value} but must be {least} or more")


def positive(name: str, value: float) -> None:
    """ConfigError unless the value is positive and finite."""
    if not 0 < value < math.inf:
        raise ConfigError(f"{name} is {value} but must be positive and finite")


def in_unit_interval(name: str, value: float) -> None:
    """ConfigError unless the value is in [0, 1)."""
    if not 0 <= value < 1:
        raise ConfigError(f"{name} is {value} but must be 0 or more, and less than 1")


def as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


@dataclass(frozen=True)
class Network:
    """A network. Images: an entry of blocks, widths, dropouts per resolution. Vectors: dense blocks only.

    The log-scale of a coupling is clamp tanh(slope raw), with down_slope where the resolution is halved and with
    2 for the clamp in dense blocks. Scales behind the mixes start at `scale`; learn_scale lets training change
    them.
    """

    blocks: tuple[int, ...]
    widths: tuple[int, ...]
    dropouts: tuple[float, ...]
    subnet: Literal["paper", "light"]
    clamp: float
    slope: float
    down_slope: float
    dense_blocks: int
    dense_width: int
    dense_dropout: float
    scale: float = 1.0
    learn_scale: bool = True

    def __post_init__(self) -> None:
        if not len(self.blocks) == len(self.widths) == len(self.dropouts):
            raise ConfigError(
                f"blocks, widths and dropouts need one entry per resolution each, not {len(self.blocks)}, "
                f"{len(self.widths)} and {len(self.dropouts)}"
            )
        for least, names in ((0, ("blocks", "dense_blocks")), (1, ("widths", "dense_width"))):
            for name in names:
                for value in as_tuple(getattr(self, name)):
                    at_least(name, value, least)
        for name in ("dropouts", "dense_dropout"):
            for value in as_tuple(getattr(self, name)):
                in_unit_interval(name, value)
        for name in ("clamp", "slope", "down_slope", "scale"):
            positive(name, getattr(self, name))


@dataclass(frozen=True)
class Recipe:
    """How a network is trained. From noise on, it is about images, but for normalise.

    learning_rate is the peak; the means get mu_rate times it. schedule "steps" divides it by 10 three times. clip
    is for the norm of the gradient, smoothing for the labels; ema is the memory of the moving average, 0 for
    none. When the validation loss has not fallen for `patience` epochs training stops, and the best epoch is
    kept; with patience 0 the last one is. gamma_ramp is the share of the training over which the IB-INN's gamma
    rises from 0 to its value. sigma is the deviation of Gaussian noise in pixel units, where a level is 1/256
    wide. normalise: "equalise" evens out the histogram, "whiten" starts the model close to linear discriminant
    analysis (training/start.py). flip mirrors half of the images, crop shifts by up to so many pixels, rotation
    turns by up to so many degrees, jitter changes brightness, contrast and saturation by up to these shares
    (data/augment.py).
    """

    epochs: int
    batch_size: int
    optimizer: Literal["adamw", "sgd"]
    learning_rate: float
    mu_rate: float
    weight_decay: float
    schedule: Literal["one-cycle", "steps"]
    clip: float
    smoothing: float
    ema: float
    patience: int
    gamma_ramp: float = 0.0
    noise: Literal["uniform", "gaussian", "both"] = "uniform"
    sigma: float = 0.0
    normalise: Literal["standard", "equalise", "whiten"] = "standard"
    flip: bool = False
    crop: int = 0
    rotation: float = 0.0
    jitter: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def __post_init__(self) -> None:
        at_least("epochs", self.epochs, 1)
        at_least("batch_size", self.batch_size, 2)
        at_least("patience", self.patience, 0)
        at_least("weight_decay", self.weight_decay, 0)
        at_least("mu_rate", self.mu_rate, 0)
        for name in ("learning_rate", "clip"):
            positive(name, getattr(self, name))
        for name in ("ema", "smoothing", "gamma_ramp"):
            in_unit_interval(name, getattr(self, name))


@dataclass(frozen=True)
class RunConfig:
    """Everything needed to train a model again, up to the machine: config.toml of a run folder."""

    format: int
    data: str
    method: Method
    gamma: float
    size: Size
    seed: int
    priors: Priors | tuple[float, ...]
    precision: Precision
    network: Network
    recipe: Recipe
    target: str | None = None

    def __post_init__(self) -> None:
        if not self.gamma >= 0:
            raise ConfigError(f"gamma is {self.gamma} but must be 0 or more; inf is a plain classifier")
        if not 0 <= self.seed < 2**32:
            raise ConfigError(f"seed is {self.seed} but must be from 0 to 2^32 - 1")
        if self.recipe.gamma_ramp and not has_ramp(self.method, self.gamma):
            raise ConfigError(
                "recipe.gamma_ramp is for the method ibinn with a gamma between 0 and inf; set it to 0"
            )


def has_ramp(method: Method, gamma: float) -> bool:
    """Whether gamma may rise to its value in training."""
    return method == "ibinn" and 0 < gamma < math.inf


def run_name(data: str, method: Method, gamma: float, size: Size, seed: int) -> str:
    """The folder's name of a run: digits-ibinn-gamma1-tiny-seed0."""
    knob = f"-gamma{gamma:g}" if method in GAMMA_METHODS else ""
    return f"{Path(data).resolve().stem}-{method}{knob}-{size}-seed{seed}"


def from_toml(cls: type[T], text: str, where: str = "the configuration") -> T:
    """A dataclass from TOML text. An unknown key, a missing one or a wrong type is an error."""
    return build(cls, parse_toml(text, where), where)


def parse_toml(text: str, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where} is not valid TOML: {error}") from error


def to_toml(config: Any) -> str:
    """TOML text that from_toml reads back to an equal dataclass. None is left out."""
    lines: list[str] = []
    write_table(dataclass_items(config), "", lines)
    return "\n".join(lines) + "\n"


def build(cls: type[T], values: dict[str, Any], where: str) -> T:
    """cls(**values), checked field by field."""
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    kinds = typing.get_type_hints(cls)
    for key in values:
        if key not in fields:
            raise ConfigError(f"{where} has an unknown key {key!r}; {nearest(key, list(fields))}")
    required = [
        name
        for name, field in fields.items()
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    if absent := [name for name in required if name not in values]:
        raise ConfigError(f"{where} lacks {', '.join(absent)}")
    return cls(**{key: convert(kinds[key], value, f"{key} in {where}") for key, value in values.items()})


def parse_value(cls: type, key: str, text: str) -> Any:
    """The value of a field from TOML text; bare words count as text."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    return convert(typing.get_type_hints(cls)[key], value, key)


def nearest(key: str, known: list[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known keys are {', '.join(known)}"


def convert(kind: Any, value: Any, where: str) -> Any:
    """value as kind, or ConfigError. An integer may stand for a float, a list for a tuple, text for a Path."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        return build(typing.cast(type[Any], kind), value, where)
    if origin is typing.Literal and value in arguments:
        return value
    if origin in (types.UnionType, typing.Union):
        return convert_union(arguments, value, where)
    if origin is tuple and isinstance(value, list):
        inner = arguments[:-1] * len(value) if arguments[-1] is Ellipsis else arguments
        if len(inner) == len(value):
            return tuple(convert(k, v, where) for k, v in zip(inner, value, strict=True))
    if origin is dict and isinstance(value, dict):
        return {convert(arguments[0], k, where): convert(arguments[1], v, where) for k, v in value.items()}
    if kind is Path and isinstance(value, str):
        return Path(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(kind, type) and isinstance(value, kind) and isinstance(value, bool) == (kind is bool):
        return value
    raise ConfigError(f"{where} is {value!r} but must be {name_of(kind)}")


def convert_union(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in kinds:  # JSON has it, TOML has not
        return None
    for kind in kinds:
        if kind is not type(None):
            try:
                return convert(kind, value, where)
            except ConfigError:
                continue
    raise ConfigError(f"{where} is {value!r} but must be {' or '.join(name_of(k) for k in kinds)}")


def name_of(kind: Any) -> str:
    if typing.get_origin(kind) is typing.Literal:
        return f"one of {', '.join(map(repr, typing.get_args(kind)))}"
    names = {float: "a number", int: "an integer", str: "text", bool: "true or false", Path: "a path"}
    return names.get(kind, "nothing" if kind is type(None) else str(kind))


def dataclass_items(config: Any) -> dict[str, Any]:
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}


def write_table(items: dict[str, Any], name: str, lines: list[str]) -> None:
    """Plain values first, then a [section] for each nested dataclass."""
    for key, value in items.items():
        if value is not None and not dataclasses.is_dataclass(value):
            lines.append(f"{key} = {toml_value(value)}")
    for key, value in items.items():
        if dataclasses.is_dataclass(value):
            section = f"{name}.{key}" if name else key
            lines += ["", f"[{section}]"]
            write_table(dataclass_items(value), section, lines)


def toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return str(value) if math.isfinite(value) else {"inf": "inf", "-inf": "-inf"}.get(str(value), "nan")
    if isinstance(value, int):
        return str(value)
    if isinstance(value, tuple | list):
        return f"[{', '.join(toml_value(v) for v in value)}]"
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
