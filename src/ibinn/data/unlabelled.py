"""Files without labels -> inputs in the form that a model was trained on, each with a name."""

import warnings
from pathlib import Path

import numpy as np
from PIL import Image

from ibinn._types import Array
from ibinn.data.arrays import load_npz
from ibinn.data.dataset import DataError
from ibinn.data.folders import image_files
from ibinn.data.images import SUFFIXES, open_image, to_size
from ibinn.data.inputs import InputForm
from ibinn.data.tables import read_table, rows_by_name

Named = tuple[list[str], Array]


def read_inputs(path: Path, form: InputForm, columns: tuple[str, ...] | None = None) -> Named:
    """Names and raw inputs (N, ...): levels (N, H, W, C), or rows whose columns are found by name."""
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
    raise DataError(f"{path} is nothing that this model takes; give {kinds}")


def read_array(path: Path, form: InputForm) -> Named:
    """The array x of an .npz; the range of floats is inferred with a notice where the model knows plain levels."""
    plain = form.levels is not None and form.pixel_max == form.levels - 1
    x = load_npz(path, form.levels or 256, None if plain else form.pixel_max, labelled=False).train.x
    wanted = image_shape(form) if form.is_images else form.shape
    if tuple(x.shape[1:]) != wanted:
        raise DataError(f"{path} has inputs of shape {x.shape[1:]} but the model was trained on {wanted}")
    if len(x) == 0:
        raise DataError(f"{path} has no inputs; give it some")
    return [f"{path}:{row}" for row in range(len(x))], x


def read_pictures(path: Path, form: InputForm) -> Named:
    """One image, or all below a folder, in the model's size, colours and levels; what that took is told once."""
    files = image_files(path) if path.is_dir() else [path]
    if not files:
        raise DataError(f"{path} holds no images; known kinds are {', '.join(sorted(SUFFIXES))}")
    height, width, n_channels = image_shape(form)
    pictures, n_turned, n_resized = [], 0, 0
    for file in files:
        image = open_image(file, str(file))
        n_turned += len(image.getbands()) != n_channels
        n_resized += image.size != (width, height)
        pictures.append(fitted(image, form))
    many = f"{path}: {{}} of {len(files)} images are" if len(files) > 1 else f"{path} is"
    if n_turned:
        colour = "colour" if n_channels == 3 else "grey"
        warnings.warn(f"{many.format(n_turned)} turned into {colour}, as the model wants it", stacklevel=2)
    if n_resized:
        told = many.format(n_resized)
        warnings.warn(f"{told} cropped about the centre and resized to {width} x {height}", stacklevel=2)
    return [str(file) for file in files], np.stack(pictures)


def fitted(image: Image.Image, form: InputForm) -> Array:
    """Levels (H, W, C) of a picture, in the size and colours of the model."""
    height, width, n_channels = image_shape(form)
    assert form.levels is not None
    if len(image.getbands()) != n_channels:
        image = image.convert("RGB" if n_channels == 3 else "L")
    pixels = np.asarray(to_size(image, (width, height))).reshape(height, width, n_channels)
    return np.round(pixels * ((form.levels - 1) / 255)).astype(np.uint8)


def image_shape(form: InputForm) -> tuple[int, ...]:
    """(H, W, C), whatever the layout."""
    if form.layout == "HW":
        return (*form.shape, 1)
    return form.shape if form.layout == "HWC" else (*form.shape[1:], form.shape[0])


def read_rows(path: Path, form: InputForm, columns: tuple[str, ...] | None) -> Named:
    """The rows of a table; other columns, such as the classes, are left out."""
    table = read_table(path)
    numbered = tuple(f"x{i}" for i in range(form.n_values))
    names = columns or numbered
    if names == numbered and not {*numbered} <= {*table.column_names}:
        if table.num_columns != form.n_values:
            raise DataError(
                f"{path} has {table.num_columns} columns but the model was trained on an array of "
                f"{form.n_values}, without names; give it just those, in their order"
            )
        names = tuple(table.column_names)
    rows = rows_by_name(table, names, path)
    return [f"{path}:{row}" for row in range(len(rows))], rows
