"""Files without labels -> inputs in the form that a model was trained on, each with a name."""

import warnings
from pathlib import Path

import numpy as np

from ibinn.data.arrays import load_npz
from ibinn.data.dataset import Array, DataError
from ibinn.data.images import SUFFIXES, open_image, to_size
from ibinn.data.inputs import InputForm
from ibinn.data.sources import image_files
from ibinn.data.tables import check_missing, features, matched, read_table

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
    """The array x of an .npz."""
    x = load_npz(path, form.levels or 256, form.pixel_max, labelled=False).train.x
    wanted = image_shape(form) if form.is_images else form.shape
    if tuple(x.shape[1:]) != wanted:
        raise DataError(f"{path} has inputs of shape {x.shape[1:]} but the model was trained on {wanted}")
    return [f"{path}:{row}" for row in range(len(x))], x


def read_pictures(path: Path, form: InputForm) -> Named:
    """One image, or all below a folder, in the model's size, colours and levels."""
    files = image_files(path) if path.is_dir() else [path]
    if not files:
        raise DataError(f"{path} holds no images; known kinds are {', '.join(sorted(SUFFIXES))}")
    return [str(file) for file in files], np.stack([read_picture(file, form) for file in files])


def read_picture(file: Path, form: InputForm) -> Array:
    height, width, n_channels = image_shape(form)
    assert form.levels is not None
    image = open_image(file, str(file))
    if len(image.getbands()) != n_channels:
        warnings.warn(
            f"{file} is turned into {'colour' if n_channels == 3 else 'grey'}, as the model wants it",
            stacklevel=2,
        )
        image = image.convert("RGB" if n_channels == 3 else "L")
    if image.size != (width, height):
        warnings.warn(
            f"{file} is cropped about its centre and resized from {image.width} x {image.height} to "
            f"{width} x {height}",
            stacklevel=2,
        )
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
    check_missing(table, path)
    numbered = tuple(f"x{i}" for i in range(form.n_values))
    names = columns or numbered
    if names == numbered and table.num_columns == form.n_values:  # trained on an array: the order must do
        names = tuple(table.column_names)
    rows = matched(features(table, path, None), names, table, path)
    return [f"{path}:{row}" for row in range(len(rows))], rows
