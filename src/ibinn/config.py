"""Frozen dataclasses <-> TOML: the one place where text becomes types. Strict: nothing is ignored or guessed."""

import dataclasses
import difflib
import json
import math
import tomllib
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class ConfigError(ValueError):
    """A setting that is unknown or of the wrong type: one sentence, with the nearest right one."""


def from_toml(cls: type[T], text: str, where: str = "the configuration") -> T:
    """A dataclass from TOML text. An unknown key, a missing one or a wrong type is an error."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where} is not valid TOML: {error}") from error
    return build(cls, values, where)


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


def nearest(key: str, known: list[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known keys are {', '.join(known)}"


def convert(kind: Any, value: Any, where: str) -> Any:
    """value as kind, or ConfigError. An integer may stand for a float, a list for a tuple, text for a Path."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        return build(typing.cast(type[Any], kind), value, where)
    if origin is typing.Literal:
        if value in arguments:
            return value
        choices = ", ".join(map(repr, arguments))
        raise ConfigError(f"{where} is {value!r} but must be one of {choices}")
    if origin in (types.UnionType, typing.Union):
        return convert_union(arguments, value, where)
    if origin is tuple and isinstance(value, list):
        inner = arguments[:-1] * len(value) if arguments[-1] is Ellipsis else arguments
        if len(inner) == len(value):
            return tuple(convert(k, v, where) for k, v in zip(inner, value, strict=True))
    if kind is Path and isinstance(value, str):
        return Path(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(kind, type) and isinstance(value, kind) and isinstance(value, bool) == (kind is bool):
        return value
    raise ConfigError(f"{where} is {value!r} but must be {name_of(kind)}")


def convert_union(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    for kind in kinds:
        if kind is not type(None):
            try:
                return convert(kind, value, where)
            except ConfigError:
                continue
    raise ConfigError(f"{where} is {value!r} but must be {' or '.join(name_of(k) for k in kinds)}")


def name_of(kind: Any) -> str:
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
