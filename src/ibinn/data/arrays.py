"""NumPy arrays and .npz files -> a Dataset."""

import warnings
import zipfile
import zlib
from pathlib import Path

import numpy as np

from ibinn._types import Array, Labels
from ibinn.data.dataset import DataError, Dataset, Part


def load_npz(
    path: Path, levels: int = 256, pixel_max: float | None = None, labelled: bool = True
) -> Dataset:
    """Arrays x, y and optionally x_test, y_test: images (N, H, W[, C]) or (N, C, H, W), or rows (N, D).

    With labelled=False, y is not needed.
    """
    try:
        # Opened here, because NumPy leaves a broken file open.
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as content:
            arrays = {
                name: content[name] for name in ("x", "y", "x_test", "y_test") if name in content.files
            }
        if not all(isinstance(array, np.ndarray) for array in arrays.values()):
            raise ValueError("no arrays inside")
    except (ValueError, TypeError, OSError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, PermissionError):
            raise
        raise DataError(
            f"{path} cannot be read as plain arrays ({' '.join(str(error).split())}); save it with "
            f"numpy.savez(path, x=..., y=...)"
        ) from error
    if not labelled:
        arrays = {name: array for name, array in arrays.items() if name in ("x", "x_test")}
        arrays |= {f"y{name[1:]}": np.zeros(len(array), np.int64) for name, array in arrays.items()}
    if "x" not in arrays or "y" not in arrays:
        raise DataError(f"{path} needs arrays x and y (and x_test, y_test if there is a test part)")
    return from_arrays(
        path.stem,
        arrays["x"],
        arrays["y"],
        x_test=arrays.get("x_test"),
        y_test=arrays.get("y_test"),
        levels=levels,
        pixel_max=pixel_max,
    )


def from_arrays(
    name: str,
    x: Array,
    y: Array,
    x_test: Array | None = None,
    y_test: Array | None = None,
    levels: int = 256,
    pixel_max: float | None = None,
) -> Dataset:
    """A Dataset from arrays; a warning says what was inferred."""
    if (x_test is None) != (y_test is None):
        raise DataError(f"{name} has only one of x_test and y_test; give both or neither")
    class_names = class_names_of(name, y)
    images = x.ndim != 2
    if images and pixel_max is None:
        pixel_max = inferred_pixel_max(name, x, levels)
    parts = [
        Part(plain_inputs(name, inputs, levels, pixel_max), class_numbers(name, labels, class_names))
        for inputs, labels in ((x, y), (x_test, y_test))
        if inputs is not None and labels is not None
    ]
    features = None if images else tuple(f"x{i}" for i in range(x.shape[1]))
    test = parts[1] if len(parts) > 1 else None
    return Dataset(name, parts[0], test, class_names, levels if images else None, features)


def label_list(name: str, y: Array) -> list[str]:
    """Labels as text, one per input; y is (N,) or (N, 1)."""
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if y.ndim != 1 or y.dtype.kind not in "iubUS":
        raise DataError(
            f"{name}: y must be one integer or name per input, not {y.dtype} of shape {y.shape}; "
            f"y.astype(int) or y.argmax(1) may help"
        )
    return [label.decode() if isinstance(label, bytes) else str(label) for label in y.tolist()]


def class_names_of(name: str, y: Array) -> tuple[str, ...]:
    """The classes in y, in numerical or alphabetical order."""
    labels = set(label_list(name, y))
    return tuple(sorted(labels, key=int) if y.dtype.kind in "iu" else sorted(labels))


def class_numbers(name: str, y: Array, class_names: tuple[str, ...]) -> Labels:
    """The position of each label among the class names, (N,)."""
    order = {label: i for i, label in enumerate(class_names)}
    labels = label_list(name, y)
    if unknown := set(labels) - set(order):
        raise DataError(f"{name}: the test part has classes that y lacks: {', '.join(sorted(unknown))}")
    return np.array([order[label] for label in labels], dtype=np.int64)


def plain_inputs(name: str, x: Array, levels: int, pixel_max: float | None) -> Array:
    """Rows as float64 (N, D), images as uint8 levels (N, H, W, C)."""
    check_numbers(name, x)
    if x.ndim == 2:
        return x.astype(np.float64)
    return pixels_to_levels(name, channels_last(name, x), levels, pixel_max or levels - 1)


def check_numbers(name: str, x: Array) -> None:
    if x.dtype.kind not in "iufb":
        raise DataError(f"{name}: x holds {x.dtype}, which is not a number")


def channels_last(name: str, x: Array) -> Array:
    """Images as (N, H, W, C)."""
    if x.ndim == 3:
        return x[..., None]
    if x.ndim == 4 and x.shape[-1] in (1, 3):
        return x
    if x.ndim == 4 and x.shape[1] in (1, 3):
        return np.moveaxis(x, 1, -1)
    raise DataError(
        f"{name}: x has shape {x.shape}; give rows (N, D), or images (N, H, W[, C]) with 1 or 3 channels"
    )


def inferred_pixel_max(name: str, x: Array, levels: int) -> float:
    """The highest pixel value: 1 for booleans and for floats up to 1.1, else levels - 1.

    A warning says which, unless x already holds levels as bytes.
    """
    if x.dtype == np.uint8 and x.max(initial=0) < levels:
        return levels - 1.0
    is_unit = x.dtype.kind == "b" or (x.dtype.kind == "f" and float(x.max(initial=0)) <= 1.1)
    highest = 1.0 if is_unit else levels - 1.0
    check_range(name, x, highest)
    warnings.warn(f"{name}: pixel values are taken to be 0–{highest:g}", stacklevel=2)
    return highest


def pixels_to_levels(name: str, x: Array, levels: int, pixel_max: float) -> Array:
    """Pixels from 0 to pixel_max -> the nearest of 0 ... levels - 1; up to 10 % outside the range is clipped."""
    if x.dtype == np.uint8 and pixel_max == levels - 1 and x.max(initial=0) < levels:
        return x
    check_range(name, x, pixel_max)
    return np.round(x * ((levels - 1) / pixel_max)).clip(0, levels - 1).astype(np.uint8)


def check_range(name: str, x: Array, pixel_max: float) -> None:
    """Raise DataError unless the pixels are finite and within 10 % of the range from 0 to pixel_max."""
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        raise DataError(f"{name}: the images hold NaN or infinite values; remove or replace them")
    low, high = float(x.min(initial=0)), float(x.max(initial=0))
    if low < -0.1 * pixel_max or high > 1.1 * pixel_max:
        raise DataError(
            f"{name}: pixel values from {low:g} to {high:g} do not fit 0–{pixel_max:g}; scale them to 0–1 or 0–255"
        )
