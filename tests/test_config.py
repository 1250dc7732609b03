"""Configurations: what goes out comes back, and nothing wrong comes in."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibinn.config import ConfigError, from_toml, to_toml


@dataclass(frozen=True)
class Inner:
    widths: tuple[int, ...] = (16, 32)
    rate: float = 0.1


@dataclass(frozen=True)
class Outer:
    name: str
    gamma: float = 1.0
    epochs: int = 3
    verbose: bool = False
    folder: Path | None = None
    noise: Literal["uniform", "gaussian"] = "uniform"
    pair: tuple[str, float] = ("a", 0.0)
    inner: Inner = field(default_factory=Inner)


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
numbers = st.floats(allow_nan=False)
outers = st.builds(
    Outer,
    name=text,
    gamma=numbers,
    epochs=st.integers(-(2**63), 2**63 - 1),
    verbose=st.booleans(),
    folder=st.none() | text.filter(lambda t: t and "\0" not in t).map(Path),
    noise=st.sampled_from(["uniform", "gaussian"]),
    pair=st.tuples(text, numbers),
    inner=st.builds(Inner, widths=st.lists(st.integers(0, 99)).map(tuple), rate=numbers),
)


@given(config=outers)
def test_a_configuration_comes_back_equal(config):
    assert from_toml(Outer, to_toml(config)) == config


def test_defaults_fill_what_is_left_out():
    assert from_toml(Outer, 'name = "x"\n[inner]\nrate = 2') == Outer("x", inner=Inner(rate=2.0))


MISTAKES = {
    "unknown key": ('name = "x"\ngama = 1', "unknown key 'gama'; did you mean 'gamma'"),
    "unknown key inside": ('name = "x"\n[inner]\nwidth = [1]', "did you mean 'widths'"),
    "unlike any key": ('name = "x"\nzzz = 1', "known keys are name"),
    "text for a number": ('name = "x"\ngamma = "high"', "gamma .* is 'high' but must be a number"),
    "fraction for an integer": ('name = "x"\nepochs = 1.5', "must be an integer"),
    "boolean for an integer": ('name = "x"\nepochs = true', "must be an integer"),
    "number for a boolean": ('name = "x"\nverbose = 1', "must be true or false"),
    "number for text": ("name = 3", "must be text"),
    "no such choice": ('name = "x"\nnoise = "loud"', "one of 'uniform', 'gaussian'"),
    "wrong list": ('name = "x"\n[inner]\nwidths = ["a"]', "widths in .* must be an integer"),
    "wrong pair": ('name = "x"\npair = ["a"]', "pair"),
    "value for a section": ('name = "x"\ninner = 3', "inner"),
    "number for a path": ('name = "x"\nfolder = 3', "a path or nothing"),
    "missing key": ("gamma = 1.0", "lacks name"),
    "no TOML": ("name = = 3", "not valid TOML"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_clear_sentence(mistake):
    toml, pattern = MISTAKES[mistake]
    with pytest.raises(ConfigError, match=pattern) as caught:
        from_toml(Outer, toml)
    assert "\n" not in str(caught.value)
