"""The form of a model's inputs, and files and arrays without labels -> inputs in that form."""

import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from ibinn._types import Array
from ibinn.data.arrays import channels_last, check_numbers, inferred_pixel_max, load_npz, pixels_to_levels
from ibinn.data.dataset import DataError
from ibinn.data.folders import image_files
from ibinn.data.images import SUFFIXES, open_image, to_size
from ibinn.data.tables import read_table, rows_by_name

Layout = Literal["rows", "HW", "HWC", "CHW"]
Named = tuple[list[str], Array]  # a name for each input, and the inputs (N, ...)


@dataclass(frozen=True)
class InputForm:
    """The form of a user's inputs: rows (N, D), or images in one of three layouts with pixels from 0 to pixel_max.

    shape is that of one input. Images are converted back to dtype; rows are float64.
    """

    layout: Layout
    shape: tuple[int, ...]
    dtype: str
    levels: int | None = None
    pixel_max: float | None = None

    @classmethod
    def of(cls, x: Array, levels: int = 256, pixel_max: float | None = None) -> "InputForm":
        """The form of an array of training inputs; a warning says what was inferred."""
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
    def image_shape(self) -> tuple[int, ...]:
        """(H, W, C) of an image in any layout."""
        if self.layout == "HW":
            return (*self.shape, 1)
        return self.shape if self.layout == "HWC" else (*self.shape[1:], self.shape[0])

    @property
    def n_values(self) -> int:
        return math.prod(self.shape)

    @property
    def log_scale(self) -> float:
        """log|det d(raw)/d(user's values)|, in nats, where raw is levels, or the rows themselves."""
        if self.levels is None or self.pixel_max is None:
            return 0.0
        return self.n_values * math.log((self.levels - 1) / self.pixel_max)

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether one input can have this shape; a grey image may have a channel dimension or not."""
        return shape == self.shape or (
            self.is_images and without_channel(shape) == without_channel(self.shape)
        )

    def raw(self, x: Array) -> Array:
        """Levels (N, H, W, C) uint8, or rows float64; DataError if x has another shape or range."""
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
        return pixels_to_levels("X", channels_last("X", x), self.levels, self.pixel_max)

    def from_image(self, image: Image.Image) -> Array:
        """Levels (H, W, C) of a Pillow image, in the size and colours of the model."""
        height, width, n_channels = self.image_shape
        assert self.levels is not None
        if len(image.getbands()) != n_channels:
            image = image.convert("RGB" if n_channels == 3 else "L")
        pixels = np.asarray(to_size(image, (width, height))).reshape(height, width, n_channels)
        return np.round(pixels * ((self.levels - 1) / 255)).astype(np.uint8)

    def back(self, raw: Array) -> Array:
        """Levels or rows in the user's form."""
        if self.levels is None or self.pixel_max is None:
            return raw
        values = raw * (self.pixel_max / (self.levels - 1))
        kind = np.dtype(self.dtype)
        x = (values if kind.kind == "f" else np.round(values)).astype(kind)
        return {"HW": x[..., 0], "HWC": x, "CHW": np.moveaxis(x, -1, 1)}[self.layout]


def without_channel(shape: tuple[int, ...]) -> tuple[int, ...]:
    """(H, W) of a grey image; any other shape is unchanged."""
    if len(shape) == 3 and 1 in (shape[0], shape[2]):
        return shape[:2] if shape[2] == 1 else shape[1:]
    return shape


def layout_of(x: Array) -> Layout:
    """The layout that `channels_last` assumes: (N, H, W, C) if the last dimension is 1 or 3."""
    channels_last("X", x)  # or DataError
    if x.ndim == 3:
        return "HW"
    return "HWC" if x.shape[-1] in (1, 3) else "CHW"


def read_inputs(path: Path, form: InputForm, columns: tuple[str, ...] | None = None) -> Named:
    """Names and raw inputs from a file or folder: levels (N, H, W, C), or rows with columns matched by name."""
    if not path.exists():
        raise DataError(f"there is no {path}; give images, folders of them, .npz, .csv or .parquet")
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return read_array(path, form)
    if form.is_images and (path.is_dir() or suffix in SUFFIXES):
        return read_pictures(path, form)
    if not form.is_images and suffix in (".csv", ".parquet"):
        return read_rows(path, form, columns)
    kinds = "images, folders of them or .npz" if form.is_images else ".csv, .parquet or .npz"
    raise DataError(f"this model cannot read {path}; give {kinds}")


def read_array(path: Path, form: InputForm) -> Named:
    """The array x of an .npz. If the model takes plain levels, the range of floats is inferred, with a warning."""
    has_levels = form.levels is not None and form.pixel_max == form.levels - 1
    x = load_npz(path, form.levels or 256, None if has_levels else form.pixel_max, labelled=False).train.x
    expected = form.image_shape if form.is_images else form.shape
    if tuple(x.shape[1:]) != expected:
        raise DataError(f"{path} has inputs of shape {x.shape[1:]} but the model was trained on {expected}")
    if len(x) == 0:
        raise DataError(f"{path} has no inputs; give it some")
    return [f"{path}:{row}" for row in range(len(x))], x


def read_pictures(path: Path, form: InputForm) -> Named:
    """One image, or all below a folder, in the model's size, colours and levels; warnings say what was changed."""
    files = image_files(path) if path.is_dir() else [path]
    if not files:
        raise DataError(f"{path} holds no images; known kinds are {', '.join(sorted(SUFFIXES))}")
    height, width, n_channels = form.image_shape
    pictures, n_recoloured, n_resized = [], 0, 0
    for file in files:
        image = open_image(file, str(file))
        n_recoloured += len(image.getbands()) != n_channels
        n_resized += image.size != (width, height)
        pictures.append(form.from_image(image))
    subject = f"{path}: {{}} of {len(files)} images are" if len(files) > 1 else f"{path} is"
    if n_recoloured:
        colour = "colour" if n_channels == 3 else "grey"
        warnings.warn(f"{subject.format(n_recoloured)} converted to {colour} for the model", stacklevel=2)
    if n_resized:
        text = subject.format(n_resized)
        warnings.warn(f"{text} cropped at the centre and resized to {width} x {height}", stacklevel=2)
    return [str(file) for file in files], np.stack(pictures)


def read_rows(path: Path, form: InputForm, columns: tuple[str, ...] | None) -> Named:
    """The rows of a table; other columns, such as the classes, are left out."""
    table = read_table(path)
    numbered = tuple(f"x{i}" for i in range(form.n_values))
    names = columns or numbered
    if names == numbered and not {*numbered} <= {*table.column_names}:
        if table.num_columns != form.n_values:
            raise DataError(
                f"{path} has {table.num_columns} columns but the model was trained on an array of "
                f"{form.n_values} columns without names; give only those, in the same order"
            )
        names = tuple(table.column_names)
    rows = rows_by_name(table, names, path)
    return [f"{path}:{row}" for row in range(len(rows))], rows
