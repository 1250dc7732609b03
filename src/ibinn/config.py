"""Settings as frozen dataclasses, read from and written to TOML.

Text becomes types here and nowhere else. Reading is strict: an unknown key, a missing key or a value of the
wrong type is an error. `from_dict` is the same reader for any dataclass and any source of plain values, such as
JSON.
"""

import dataclasses
import difflib
import math
import tomllib
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import tomli_w

Config = TypeVar("Config")  # any dataclass

Method = Literal["ibinn", "class-nll", "class-nll-fixed", "resnet", "irevnet", "vib", "rival"]
Size = Literal["tiny", "small", "base", "paper"]
Precision = Literal["float32", "bf16"]
Priors = Literal["data", "uniform", "learned"]
Device = Literal["auto", "cpu", "cuda", "mps"]
Pretrained = Literal["digits", "fashion_mnist", "cifar10"]
Latent = Literal["fitted", "mixture"]  # where samples are drawn from

ALPHA = 0.05  # default level: inputs with a p-value up to this are atypical
GAMMA_METHODS = ("ibinn", "vib")  # methods whose loss depends on gamma


class ConfigError(ValueError):
    """A setting is unknown, of the wrong type or out of range. The message is one sentence."""


def at_least(name: str, value: float, least: float) -> None:
    """Raise ConfigError for a smaller value or NaN."""
    if not value >= least:
        raise ConfigError(f"{name} is {value} but must be {least} or more")


def positive(name: str, value: float) -> None:
    """Raise ConfigError unless the value is positive and finite."""
    if not 0 < value < math.inf:
        raise ConfigError(f"{name} is {value} but must be positive and finite")


def in_unit_interval(name: str, value: float) -> None:
    """Raise ConfigError unless the value is in [0, 1)."""
    if not 0 <= value < 1:
        raise ConfigError(f"{name} is {value} but must be 0 or more, and less than 1")


def as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


@dataclass(frozen=True)
class Network:
    """The size and shape of a network.

    Images pass through one stage per resolution, then dense blocks. Vectors pass through dense blocks only, and
    the three tuples are empty.

    Attributes
    ----------
    blocks : tuple of int
        Number of coupling blocks at each resolution.
    widths : tuple of int
        Hidden channels of the subnets at each resolution.
    dropouts : tuple of float
        Dropout rate of the subnets at each resolution, in [0, 1).
    subnet : {"paper", "light"}
        Kind of convolutional subnet: the paper's, with batch-norm, or a lighter one for CPUs.
    clamp : float
        Bound on the log-scale of a coupling, which is ``clamp * tanh(slope * raw)``. Dense blocks use 2.
    slope : float
        Slope of the soft clamp.
    down_slope : float
        Slope of the soft clamp in couplings that halve the resolution.
    dense_blocks : int
        Number of coupling blocks on vectors.
    dense_width : int
        Hidden units of the subnets of dense blocks.
    dense_dropout : float
        Dropout rate of the subnets of dense blocks, in [0, 1).
    scale : float
        Initial scale of the layers that mix channels.
    learn_scale : bool
        Whether training changes these scales.
    summary : tuple of int
        Widths of a residual network that summarises the whole image, one per resolution. Empty for none.
    n_summary : int
        Number of latent variables that the summary shifts.
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
    summary: tuple[int, ...] = ()
    n_summary: int = 10

    def __post_init__(self) -> None:
        if not len(self.blocks) == len(self.widths) == len(self.dropouts):
            raise ConfigError(
                f"blocks, widths and dropouts need one entry per resolution each, not {len(self.blocks)}, "
                f"{len(self.widths)} and {len(self.dropouts)}"
            )
        for least, names in (
            (0, ("blocks", "dense_blocks")),
            (1, ("widths", "dense_width", "summary", "n_summary")),
        ):
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
    """How a network is trained.

    The attributes ``noise``, ``sigma``, ``flip``, ``crop``, ``rotation`` and ``jitter`` apply to images only.

    Attributes
    ----------
    epochs : int
        Number of passes over the training set.
    batch_size : int
        Examples per step, over all processes.
    optimizer : {"adamw", "muon", "sgd"}
        Optimizer. "muon" is AdamW, except that convolutions followed by a batch-norm take orthogonal updates.
    learning_rate : float
        Peak learning rate.
    mu_rate : float
        Factor on the learning rate for the class means.
    weight_decay : float
        Weight decay of the optimizer.
    schedule : {"one-cycle", "steps"}
        Schedule of the learning rate. "steps" divides it by 10 three times.
    clip : float
        Largest norm of the gradient; larger gradients are scaled down to it.
    smoothing : float
        Label smoothing, in [0, 1).
    ema : float
        Decay of the moving average of the weights, in [0, 1); 0 turns it off.
    patience : int
        Stop when the validation loss has not fallen for this many epochs, and keep the best epoch. With 0,
        train for all epochs and keep the last one.
    gamma_ramp : float
        Share of the training over which the IB-INN's gamma rises from 0 to its value, in [0, 1).
    noise : {"uniform", "gaussian", "both"}
        Noise added to the pixels.
    sigma : float
        Standard deviation of the Gaussian noise in pixel units, where one of 256 levels is 1/256 wide.
    normalise : {"standard", "equalise", "whiten"}
        "standard" shifts and scales each channel, "equalise" flattens the histogram of the pixels, "whiten"
        starts the model close to linear discriminant analysis, or, with a summary, to a single Gaussian.
    flip : bool
        Mirror half of the images.
    crop : int
        Shift images by up to this many pixels in each direction.
    rotation : float
        Rotate images by up to this many degrees in each direction.
    jitter : tuple of float
        Change brightness, contrast and saturation by a factor of up to 1 plus or minus these numbers.
    cutout : int
        Cover a square of this many pixels a side, at a random place, with the mean colour of the image.
    """

    epochs: int
    batch_size: int
    optimizer: Literal["adamw", "muon", "sgd"]
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
    cutout: int = 0

    def __post_init__(self) -> None:
        at_least("epochs", self.epochs, 1)
        at_least("batch_size", self.batch_size, 2)
        at_least("patience", self.patience, 0)
        at_least("cutout", self.cutout, 0)
        at_least("weight_decay", self.weight_decay, 0)
        at_least("mu_rate", self.mu_rate, 0)
        for name in ("learning_rate", "clip"):
            positive(name, getattr(self, name))
        for name in ("ema", "smoothing", "gamma_ramp"):
            in_unit_interval(name, getattr(self, name))


@dataclass(frozen=True)
class RunConfig:
    """All settings of a training run, as stored in the config.toml of its folder."""

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
            raise ConfigError(f"gamma is {self.gamma} but must be 0 or more; inf gives a plain classifier")
        if not 0 <= self.seed < 2**32:
            raise ConfigError(f"seed is {self.seed} but must be from 0 to 2^32 - 1")
        if self.recipe.gamma_ramp and not has_ramp(self.method, self.gamma):
            raise ConfigError(
                "recipe.gamma_ramp is for the method ibinn with a gamma between 0 and inf; set it to 0"
            )


def has_ramp(method: Method, gamma: float) -> bool:
    """Whether gamma can rise to its value during training."""
    return method == "ibinn" and 0 < gamma < math.inf


def run_name(data: str, method: Method, gamma: float, size: Size, seed: int) -> str:
    """Name of a run's folder, such as digits-ibinn-gamma1-tiny-seed0."""
    suffix = f"-gamma{gamma:g}" if method in GAMMA_METHODS else ""
    return f"{Path(data).resolve().stem}-{method}{suffix}-{size}-seed{seed}"


def from_toml(cls: type[Config], text: str, where: str = "the configuration") -> Config:
    """A dataclass from TOML text; see `from_dict`."""
    return from_dict(cls, parse_toml(text, where), where)


def parse_toml(text: str, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where} is not valid TOML: {error}") from error


def to_toml(config: Any) -> str:
    """TOML text that from_toml reads back to an equal dataclass. None is left out."""

    def table(items: list[tuple[str, Any]]) -> dict[str, Any]:
        return {
            key: str(value) if isinstance(value, Path) else value
            for key, value in items
            if value is not None
        }

    return tomli_w.dumps(dataclasses.asdict(config, dict_factory=table))


def toml_value(value: Any) -> str:
    """A value as TOML on a single line."""
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(toml_value, value))}]"
    return tomli_w.dumps({"value": value}).removeprefix("value = ").removesuffix("\n")


def parse_value(cls: type, key: str, text: str) -> Any:
    """The value of a field of cls from TOML text; quotes around a string may be left out."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    return convert(typing.get_type_hints(cls)[key], value, key)


def from_dict(cls: type[Config], values: dict[str, Any], where: str) -> Config:
    """cls(**values) with every value checked and converted to the type of its field.

    ConfigError, with `where` in its message, for an unknown key, a missing key or a value of the wrong type.
    """
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    kinds = typing.get_type_hints(cls)
    for key in values:
        if key not in fields:
            raise ConfigError(f"{where} has an unknown key {key!r}; {key_hint(key, list(fields))}")
    required = [
        name
        for name, field in fields.items()
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    if absent := [name for name in required if name not in values]:
        raise ConfigError(f"{where} lacks {', '.join(absent)}")
    return cls(**{key: convert(kinds[key], value, f"{key} in {where}") for key, value in values.items()})


def key_hint(key: str, known: list[str]) -> str:
    """The known key closest to a misspelt one, or all of them."""
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known keys are {', '.join(known)}"


def convert(kind: Any, value: Any, where: str) -> Any:
    """value as a `kind`, or ConfigError.

    An integer is accepted for a float, a list for a tuple, a dict for a dataclass, and a string for a Path.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        return from_dict(typing.cast(type[Any], kind), value, where)
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
    raise ConfigError(f"{where} is {value!r} but must be {kind_name(kind)}")


def convert_union(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in kinds:  # null in JSON; TOML has no such value
        return None
    for kind in kinds:
        if kind is not type(None):
            try:
                return convert(kind, value, where)
            except ConfigError:
                continue
    raise ConfigError(f"{where} is {value!r} but must be {' or '.join(kind_name(k) for k in kinds)}")


def kind_name(kind: Any) -> str:
    """A type in the words of an error message."""
    if typing.get_origin(kind) is typing.Literal:
        return f"one of {', '.join(map(repr, typing.get_args(kind)))}"
    names = {float: "a number", int: "an integer", str: "text", bool: "true or false", Path: "a path"}
    return names.get(kind, "nothing" if kind is type(None) else str(kind))
