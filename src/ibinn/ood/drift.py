"""Ways out of the data: an image changed more and more."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ibinn._types import Array
from ibinn.ood.sets import Unit, add_noise, random_axis, rotate_colours, to_levels, to_unit


class Drift(NamedTuple):
    """A way out of the data: change(unit, share, seed) of images in [0, 1], the more the share is, from 0 to 1.

    At share 1 it is `most` units; no clipping.
    """

    most: float
    unit: str
    change: Callable[[Unit, float, int], Unit]


def turned_colours(unit: Unit, share: float, seed: int) -> Unit:
    return rotate_colours(unit, random_axis(np.random.default_rng(seed)), np.pi * share)


def swapped(unit: Unit, share: float, seed: int) -> Unit:
    """Bright and dark change places."""
    return (1 - share) * unit + share * (1 - unit)


def noisy(unit: Unit, share: float, seed: int) -> Unit:
    """The same noise for each share, up to half of the range."""
    return add_noise(unit, share / 2, np.random.default_rng(seed))


DRIFTS = {
    "colours": Drift(180.0, "°", turned_colours),
    "inverted": Drift(100.0, "%", swapped),
    "noise": Drift(50.0, "%", noisy),
}


def usual_drifts(n_channels: int) -> tuple[str, ...]:
    """What changes images of so many channels, the report's first."""
    return ("colours", "noise") if n_channels == 3 else ("inverted", "noise")


def drifted(image: Array, levels: int, kind: str, steps: int, seed: int = 0) -> Array:
    """(steps, H, W, C): an image (H, W, C) on its way, the first being the image itself."""
    unit = to_unit(image[None], levels)
    moved = [DRIFTS[kind].change(unit, float(share), seed) for share in np.linspace(0, 1, steps)]
    return to_levels(np.concatenate(moved), levels, image.dtype)
