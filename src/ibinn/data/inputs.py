"""What a person's arrays look like, and the way from them to levels or rows and back."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ibinn._types import Array
from ibinn.data.arrays import channels_last, check_numbers, inferred_pixel_max, to_levels
from ibinn.data.dataset import DataError

Layout = Literal["rows", "HW", "HWC", "CHW"]


@dataclass(frozen=True)
class InputForm:
    """Rows (N, D), or images in one of three layouts whose pixels run from 0 to pixel_max.

    shape is that of one input as the person has it. dtype is what images are given back as; rows are float64.
    """

    layout: Layout
    shape: tuple[int, ...]
    dtype: str
    levels: int | None = None
    pixel_max: float | None = None

    @classmethod
    def of(cls, x: Array, levels: int = 256, pixel_max: float | None = None) -> "InputForm":
        """Seen from an array to learn from; what had to be inferred is said in a notice."""
        if x.ndim == 2:
            return cls("rows", (x.shape[1],), "float64")
        check_numbers("X", x)
        layout = layout_of(x)
        highest = inferred_pixel_max("X", x, levels) if pixel_max is None else float(pixel_max)
        return cls(layout, tuple(x.shape[1:]), x.dtype.name, levels, highest)

    @property
    def is_images(self) -> bool:
        return self.layout != "rows"

    @property
    def n_values(self) -> int:
        return math.prod(self.shape)

    @property
    def log_scale(self) -> float:
        """log|det d(raw)/d(the person's values)|, in nats: raw are levels, or the rows themselves."""
        if self.levels is None or self.pixel_max is None:
            return 0.0
        return self.n_values * math.log((self.levels - 1) / self.pixel_max)

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether one input may have this shape; a grey image may come with its channel or without."""
        return shape == self.shape or (
            self.is_images and without_channel(shape) == without_channel(self.shape)
        )

    def raw(self, x: Array) -> Array:
        """Levels (N, H, W, C) uint8, or rows float64; DataError where x is of another shape or range."""
        if not self.fits(tuple(x.shape[1:])):
            raise DataError(
                f"X has inputs of shape {tuple(x.shape[1:])} but the model was trained on {self.shape}"
            )
        if self.levels is None or self.pixel_max is None:
            return np.asarray(x, dtype=np.float64)
        check_numbers("X", x)
        if len(x) == 0:
            raise DataError("X is empty; give at least one image")
        if x.dtype.kind in "fb" and self.pixel_max > 2 and 0 < float(x.max()) <= 1.1:
            raise DataError(
                f"pixel values up to {float(x.max()):g} look like 0–1 but the model was trained on "
                f"0–{self.pixel_max:g}; multiply them by {self.pixel_max:g}"
            )
        return to_levels("X", channels_last("X", x), self.levels, self.pixel_max)

    def back(self, raw: Array) -> Array:
        """The person's form of levels or rows."""
        if self.levels is None or self.pixel_max is None:
            return raw
        values = raw * (self.pixel_max / (self.levels - 1))
        kind = np.dtype(self.dtype)
        x = (values if kind.kind == "f" else np.round(values)).astype(kind)
        return {"HW": x[..., 0], "HWC": x, "CHW": np.moveaxis(x, -1, 1)}[self.layout]


def without_channel(shape: tuple[int, ...]) -> tuple[int, ...]:
    """(H, W) of a grey image; any other shape as it is."""
    if len(shape) == 3 and 1 in (shape[0], shape[2]):
        return shape[:2] if shape[2] == 1 else shape[1:]
    return shape


def layout_of(x: Array) -> Layout:
    """As channels_last takes it; three pixels wide colour images are taken to be (N, H, W, C)."""
    channels_last("X", x)  # or DataError
    if x.ndim == 3:
        return "HW"
    return "HWC" if x.shape[-1] in (1, 3) else "CHW"
