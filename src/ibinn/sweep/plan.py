"""An experiment file -> its runs, each as a command."""

import dataclasses
import itertools
import sys
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ibinn.config import (
    GAMMA_METHODS,
    ConfigError,
    Method,
    Network,
    Precision,
    Priors,
    Recipe,
    Size,
    at_least,
    convert,
    from_dict,
    key_hint,
    parse_toml,
    parse_value,
    positive,
    run_name,
    toml_value,
)

Settings = tuple[tuple[str, str], ...]  # (key, value as --set takes it)
AXES = ("data", "size", "seed", "method", "sigma", "gamma")  # the last one changes first
SECTIONS: dict[str, type] = {"recipe": Recipe, "network": Network}


@dataclass(frozen=True)
class Block:
    """Settings of some runs: the product of the values of the axes. Empty or None where nothing is given."""

    data: tuple[str, ...] = ()
    size: tuple[Size, ...] = ()
    seed: tuple[int, ...] = ()
    method: tuple[Method, ...] = ()
    sigma: tuple[float, ...] = ()
    gamma: tuple[float, ...] = ()
    priors: Priors | None = None
    precision: Precision | None = None
    target: str | None = None
    recipe: Settings = ()
    network: Settings = ()


KEYS = [*(field.name for field in dataclasses.fields(Block)), "epochs"]


@dataclass(frozen=True)
class Experiment(Block):
    """An experiment file: settings of all runs, and blocks with their own. Without blocks, one run or product."""

    runs: tuple[Block, ...] = (Block(),)


@dataclass(frozen=True)
class PlannedRun:
    """A run to make: its folder, the command that makes or continues it, and the settings in its config.toml."""

    name: str
    folder: Path
    command: tuple[str, ...]
    method: Method
    settings: tuple[tuple[str, Any], ...]


def read_experiment(path: Path) -> Experiment:
    """An experiment from a TOML file; ConfigError for unknown keys and wrong values."""
    try:
        values = parse_toml(path.read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not text in UTF-8; an experiment is a TOML file") from error
    runs = values.pop("runs", [{}])
    if not isinstance(runs, list) or not runs or not all(isinstance(block, dict) for block in runs):
        raise ConfigError(f"runs in {path} must be blocks, each below a line [[runs]]")
    base = read_block(values, str(path), [*KEYS, "runs"])
    blocks = [read_block(block, f"[[runs]] number {n} in {path}", KEYS) for n, block in enumerate(runs, 1)]
    return Experiment(**vars(base), runs=tuple(blocks))


def read_block(values: dict[str, Any], where: str, known: list[str]) -> Block:
    """A block from TOML values: one value or a list for an axis, tables of settings, epochs as recipe.epochs."""
    fields: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            raise ConfigError(f"{where} has an unknown key {key!r}; {key_hint(key, known)}")
        if value == []:
            raise ConfigError(f"{key} in {where} is an empty list; give a value, or leave it out")
        if key in SECTIONS:
            value = read_settings(SECTIONS[key], value, f"{key} in {where}")
        fields[key] = [value] if key in AXES and not isinstance(value, list) else value
    if "epochs" in fields:
        if "epochs" in dict(fields.get("recipe", ())):
            raise ConfigError(f"{where} gives epochs twice; leave it out in [recipe]")
        epochs = read_settings(Recipe, {"epochs": fields.pop("epochs")}, where)
        fields["recipe"] = [*fields.get("recipe", ()), *epochs]
    return from_dict(Block, fields, where)


def read_settings(cls: type, table: Any, where: str) -> list[list[str]]:
    """A table of settings of a dataclass as [key, text] pairs."""
    if not isinstance(table, dict):
        raise ConfigError(f"{where} is {table!r} but must be a table of settings")
    kinds, pairs = typing.get_type_hints(cls), []
    for key, value in table.items():
        if key not in kinds:
            raise ConfigError(f"{where} has an unknown key {key!r}; {key_hint(key, list(kinds))}")
        value = convert(kinds[key], value, f"{key} in {where}")
        pairs.append([key, value if isinstance(value, str) else toml_value(value)])
    return pairs


def plan(experiment: Experiment, folder: Path, options: Sequence[str] = ()) -> list[PlannedRun]:
    """All runs, in order; `options` are added to each command."""
    blocks = [merge(experiment, block) for block in experiment.runs]
    methods = {method for block in blocks for method in block.method}
    if experiment.gamma and methods.isdisjoint(GAMMA_METHODS):
        raise ConfigError(f"gamma is given but no run has one; it is for {' and '.join(GAMMA_METHODS)}")
    runs: dict[str, PlannedRun] = {}
    for block in blocks:
        for run in runs_of(block, folder, options):
            if run.name in runs:
                raise ConfigError(f"two runs are called {run.name}; leave one out, or use two experiments")
            runs[run.name] = run
    return [*runs.values()]


def merge(base: Block, block: Block) -> Block:
    """The block, with the values of the base and then the defaults where it gives none."""
    values: dict[str, Any] = {"method": ("ibinn",), "seed": (0,)}
    for field in dataclasses.fields(Block):
        own, general = getattr(block, field.name), getattr(base, field.name)
        if field.name in SECTIONS:
            own = tuple((dict(general) | dict(own)).items())
        value = general if own in ((), None) else own
        if value not in ((), None):
            values[field.name] = value
    whole = Block(**values)
    if block.gamma and (others := [method for method in whole.method if method not in GAMMA_METHODS]):
        raise ConfigError(
            f"{others[0]} has no gamma; give it a [[runs]] of its own, or gamma at the top of the experiment"
        )
    check_block(whole)
    return whole


def check_block(block: Block) -> None:
    """ConfigError for settings that are missing, out of range or in conflict."""
    for name in ("data", "size"):
        if not getattr(block, name):
            raise ConfigError(
                f"{name} is missing; give it at the top of the experiment, or in each [[runs]]"
            )
    recipe = dict(block.recipe)
    for name in ("sigma", "noise"):
        if block.sigma and name in recipe:
            raise ConfigError(f"sigma sets recipe.sigma and recipe.noise; leave out {name} in [recipe]")
    for name in ("gamma", "seed"):
        for value in getattr(block, name):
            at_least(name, value, 0)
    for sigma in block.sigma:
        positive("sigma", sigma)
    at_least("epochs", int(recipe.get("epochs", 1)), 1)


def runs_of(block: Block, folder: Path, more: Sequence[str]) -> Iterator[PlannedRun]:
    """The product of a block's axes."""
    axes = (block.data, block.size, block.seed, block.method, block.sigma or (None,))
    for data, size, seed, method, sigma in itertools.product(*axes):
        for gamma in (block.gamma or (1.0,)) if method in GAMMA_METHODS else (None,):
            name = run_name(data, method, gamma or 0.0, size, seed)
            name += "" if block.priors in (None, "data") else f"-{block.priors}"
            name += "" if sigma is None else f"-sigma{sigma:g}"
            options: dict[str, Any] = {"method": method, "gamma": gamma, "size": size, "seed": seed}
            options |= {"priors": block.priors, "precision": block.precision, "target": block.target}
            options = {key: value for key, value in options.items() if value is not None}
            noise = () if sigma is None else (("noise", "gaussian"), ("sigma", str(sigma)))
            details = {f"recipe.{key}": text for key, text in (*block.recipe, *noise)}
            details |= {f"network.{key}": text for key, text in block.network}
            command = [sys.executable, "-m", "ibinn.cli", "train", data]
            command += [word for key, value in options.items() for word in (f"--{key}", str(value))]
            command += ["--out", str(folder / name), "--resume", "--evaluate", *more]
            command += ["--set", *map("=".join, details.items())] if details else []
            values = ((path, parse_setting(path, text)) for path, text in details.items())
            settings = (("data", data), *options.items(), *values)
            yield PlannedRun(name, folder / name, tuple(command), method, settings)


def parse_setting(path: str, text: str) -> Any:
    section, _, key = path.partition(".")
    return parse_value(SECTIONS[section], key, text)
