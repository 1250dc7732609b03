"""Drifts: an image changed step by step until it is out of distribution."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ibinn._types import Array
from ibinn.ood.sets import Unit, add_noise, from_unit, random_axis, rotate_colours, to_unit


class Drift(NamedTuple):
    """change(unit, share, seed) changes images in [0, 1], by a share from 0 to 1 of the full drift; no clipping.

    The full drift is `most` in the given unit.
    """

    most: float
    unit: str
    change: Callable[[Unit, float, int], Unit]


def rotated_colours(unit: Unit, share: float, seed: int) -> Unit:
    return rotate_colours(unit, random_axis(np.random.default_rng(seed)), np.pi * share)


def blended_with_inverse(unit: Unit, share: float, seed: int) -> Unit:
    """From the image to its negative."""
    return (1 - share) * unit + share * (1 - unit)


def with_noise(unit: Unit, share: float, seed: int) -> Unit:
    """The same noise for each share, up to half of the range."""
    return add_noise(unit, share / 2, np.random.default_rng(seed))


DRIFTS = {
    "colours": Drift(180.0, "°", rotated_colours),
    "inverted": Drift(100.0, "%", blended_with_inverse),
    "noise": Drift(50.0, "%", with_noise),
}


def usual_drifts(n_channels: int) -> tuple[str, ...]:
    """The drifts for images with this number of channels; the report uses the first."""
    return ("colours", "noise") if n_channels == 3 else ("inverted", "noise")


def drifted(image: Array, levels: int, kind: str, steps: int, seed: int = 0) -> Array:
    """(steps, H, W, C): an image (H, W, C) drifting; the first step is the image itself."""
    unit = to_unit(image[None], levels)
    images = [DRIFTS[kind].change(unit, float(share), seed) for share in np.linspace(0, 1, steps)]
    return from_unit(np.concatenate(images), levels, image.dtype)
