"""load(DATA): whatever a person has -> a Dataset."""

import difflib
import json
import os
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ibinn.data.archives import load_cifar, load_idx
from ibinn.data.dataset import Array, DataError, Dataset, Part, checked
from ibinn.data.images import SUFFIXES, Decoded, Progress, cache_folder, cached, decode, fingerprint
from ibinn.data.tables import load_table

DIGITS = tuple("0123456789")
FASHION = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
KNOWN = ("digits", "mnist", "fashion_mnist", "cifar10", "cifar100")
VALIDATION = ("val", "valid", "validation")  # other names for a held-out part
CIFAR_FILES = {"cifar10": "cifar-10-python.tar.gz", "cifar100": "cifar-100-python.tar.gz"}


def load(
    data: str | Path,
    data_dir: Path | None = None,
    target: str | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """A known name, a folder of images, a Parquet file or folder, an .npz, or a table with a target column."""
    if str(data) in KNOWN:
        return checked(load_known(str(data), data_dir, progress))
    path = Path(data)
    if not path.exists():
        raise DataError(missing(str(data)))
    try:
        return checked(reader(path)(path, target, progress))
    except PermissionError as error:
        raise DataError(f"no permission to read {error.filename}; change its permissions") from error


def missing(data: str) -> str:
    near = difflib.get_close_matches(data, KNOWN, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known sets are {', '.join(KNOWN)}"
    return f"there is no file, folder or known set called {data}; {hint}"


Reader = Callable[[Path, str | None, Progress | None], Dataset]


def reader(path: Path) -> Reader:
    """What reads this path."""
    if path.is_dir():
        if any(path.glob("*.parquet")):
            return lambda p, target, progress: load_parquet_images(p.name, p, progress)
        return lambda p, target, progress: load_folder(p, progress)
    if path.suffix == ".npz":
        return lambda p, target, progress: load_npz(p)
    if path.suffix == ".csv":
        return lambda p, target, progress: load_table(p, target)
    if path.suffix == ".parquet":
        if image_column(parquet_schema(path)) is not None:
            return lambda p, target, progress: load_parquet_images(p.stem, p, progress)
        return lambda p, target, progress: load_table(p, target)
    raise DataError(f"{path} is of no known kind; give a folder, .npz, .csv or .parquet")


# Known sets


def search_folders(data_dir: Path | None = None) -> list[Path]:
    """Where known sets are looked for, in order."""
    named = [data_dir] if data_dir else []
    named += [Path(os.environ["IBINN_DATA"])] if os.environ.get("IBINN_DATA") else []
    return [*named, Path.home() / ".cache" / "ibinn"]


def find_known(name: str, data_dir: Path | None = None) -> Path | None:
    """The first place that holds the set: a folder with Parquet or idx files, or CIFAR's archive."""
    for root in search_folders(data_dir):
        for folder in (root / name, root):
            if folder == root / name and any(folder.glob("*.parquet")):
                return folder
            if name in CIFAR_FILES and (folder / CIFAR_FILES[name]).is_file():
                return folder / CIFAR_FILES[name]
            if (
                name not in CIFAR_FILES
                and folder == root / name
                and any(f.suffix != ".part" for f in folder.glob("train-images*"))
            ):
                return folder
    return None


def load_known(name: str, data_dir: Path | None, progress: Progress | None) -> Dataset:
    if name == "digits":
        return load_digits()
    found = find_known(name, data_dir)
    if found is None:
        places = ", ".join(str(folder) for folder in search_folders(data_dir))
        raise DataError(f"{name} was not found in {places}; get it with: ibinn data fetch {name}")
    if found.is_file():
        return load_cifar(name, found)
    if any(found.glob("*.parquet")):
        return load_parquet_images(name, found, progress)
    return load_idx(name, found, FASHION if name == "fashion_mnist" else DIGITS)


def load_digits() -> Dataset:
    """scikit-learn's 1797 digits, 8 x 8, 17 levels; no test part of its own."""
    from sklearn.datasets import load_digits as sklearn_digits  # only here: importing it takes a second

    bunch = sklearn_digits()
    images = bunch.images.astype(np.uint8)[..., None]
    return Dataset("digits", Part(images, bunch.target.astype(np.int64)), None, DIGITS, levels=17)


# Folders of images


def load_folder(folder: Path, progress: Progress | None) -> Dataset:
    """A sub-folder per class, optionally below train/ and test/ (or val/, where there is no test/)."""
    if not (folder / "train").is_dir():
        classes = class_folders(folder)
        return Dataset(folder.name, read_folder(folder, classes, progress), None, classes, levels=256)
    classes = class_folders(folder / "train")
    train = read_folder(folder / "train", classes, progress)
    test = None
    held_out = [folder / name for name in ("test", *VALIDATION) if (folder / name).is_dir()]
    if held_out:
        if strangers := set(class_folders(held_out[0])) - set(classes):
            raise DataError(f"{held_out[0]} has classes that train/ lacks: {', '.join(sorted(strangers))}")
        test = read_folder(held_out[0], classes, progress, like=train.x.shape[1:])
        if held_out[0].name != "test":
            warnings.warn(f"{held_out[0]} is taken as the test part", stacklevel=2)
        for other in held_out[1:]:
            warnings.warn(
                f"{other} is left out: there is a test part, and validation is split off", stacklevel=2
            )
    return Dataset(folder.name, train, test, classes, levels=256)


def class_folders(folder: Path) -> tuple[str, ...]:
    names = sorted(p.name for p in folder.iterdir() if p.is_dir() and image_files(p))
    if not names:
        raise DataError(f"{folder} holds no images in sub-folders; put each class into a folder of its own")
    return tuple(names)


def image_files(folder: Path) -> list[Path]:
    """Images below a folder, in order; hidden files and folders are left out."""
    found = (p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES)
    parts = ((p, p.relative_to(folder.parent).parts) for p in found)
    return sorted(p for p, names in parts if not any(n.startswith(".") for n in names) and p.is_file())


def read_folder(
    folder: Path, classes: tuple[str, ...], progress: Progress | None, like: tuple[int, ...] | None = None
) -> Part:
    files = [(path, label) for label, name in enumerate(classes) for path in image_files(folder / name)]
    stats = [(path.relative_to(folder).as_posix(), label, *file_stamp(path)) for path, label in files]
    y = np.array([label for _, label in files])

    def encoded() -> Iterator[tuple[str, Path | bytes]]:
        return ((str(path), path) for path, _ in files)

    key = fingerprint([("folder", str(folder.resolve()), like), *stats])
    return Part(*cached(cache_folder(), key, lambda: decode(encoded, y, progress, like)))


def file_stamp(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns


# Hugging Face Parquet


def load_parquet_images(name: str, path: Path, progress: Progress | None) -> Dataset:
    """Encoded images in a column img or image; shards called train* and test*, or a single file."""
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    train, test = train_and_test(files)
    schema = parquet_schema(train[0])
    class_names = parquet_class_names(schema)
    part = read_parquet(train, progress)
    test_part = read_parquet(test, progress, like=part.x.shape[1:]) if test else None
    if class_names is None:
        class_names = tuple(str(i) for i in range(int(part.y.max(initial=0)) + 1))
    return Dataset(name, part, test_part, class_names, levels=256)


def train_and_test(files: list[Path]) -> tuple[list[Path], list[Path]]:
    """Shards called test*, else those called val*, are the test part; a single kind is all training part."""
    named = {
        kind: [file for file in files if re.match(rf"({kind})(?![a-z])", file.stem)]
        for kind in ("test", "|".join(VALIDATION))
    }
    test, validation = named.values()
    train = [file for file in files if file not in test + validation]
    if not train:
        return files, []
    if test and validation:
        warnings.warn(
            f"{validation[0]} is left out: there is a test part, and validation is split off", stacklevel=2
        )
    elif validation:
        warnings.warn(f"{validation[0]} is taken as the test part", stacklevel=2)
    return train, test or validation


def parquet_schema(path: Path) -> pa.Schema:
    try:
        return pq.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, PermissionError):
            raise
        raise broken_parquet(path, error) from error


def image_column(schema: pa.Schema) -> str | None:
    """img or image, where it is a struct with the encoded bytes."""
    for name in ("img", "image"):
        if name in schema.names and pa.types.is_struct(schema.field(name).type):
            return name
    return None


def label_column(schema: pa.Schema, path: Path) -> str:
    for name in ("label", "fine_label"):
        if name in schema.names:
            if not pa.types.is_integer(schema.field(name).type):
                raise DataError(
                    f"{path}: column {name} holds {schema.field(name).type}; labels must be integers"
                )
            return name
    raise DataError(f"{path} has no column label or fine_label; its columns are {', '.join(schema.names)}")


def parquet_class_names(schema: pa.Schema) -> tuple[str, ...] | None:
    """From Hugging Face's metadata, if it is there."""
    try:
        features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
        feature = features["label"] if "label" in features else features["fine_label"]
        return tuple(str(name) for name in feature["names"])
    except (TypeError, KeyError, ValueError):
        return None


def read_parquet(files: list[Path], progress: Progress | None, like: tuple[int, ...] | None = None) -> Part:
    columns = [parquet_columns(file) for file in files]
    key = fingerprint([("parquet", like), *((str(file.resolve()), *file_stamp(file)) for file in files)])

    def encoded() -> Iterator[tuple[str, Path | bytes]]:
        for file, (image, _) in zip(files, columns, strict=True):
            for number, row in enumerate(parquet_rows(file, image)):
                yield f"image {number} of {file}", (row or {}).get("bytes") or b""

    def make() -> Decoded:
        y = [
            label
            for file, (_, name) in zip(files, columns, strict=True)
            for label in parquet_rows(file, name)
        ]
        if not y or None in y:
            raise DataError(f"{files[0]} holds no images, or lacks labels for some; every image needs one")
        return decode(encoded, np.array(y), progress, like)

    return Part(*cached(cache_folder(), key, make))


def parquet_columns(file: Path) -> tuple[str, str]:
    """The names of the image column and of the label column."""
    schema = parquet_schema(file)
    image = image_column(schema)
    if image is None:
        raise DataError(f"{file} has no column img or image with encoded images")
    return image, label_column(schema, file)


def parquet_rows(file: Path, column: str) -> Iterator[Any]:
    """The values of a column, a few hundred rows in memory at a time."""
    try:
        with pq.ParquetFile(file) as parquet:
            for batch in parquet.iter_batches(batch_size=256, columns=[column]):
                yield from batch.column(0).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise broken_parquet(file, error) from error


def broken_parquet(file: Path, error: Exception) -> DataError:
    return DataError(f"{file} is not a whole Parquet file ({' '.join(str(error).split())}); get it again")


# Arrays


def load_npz(path: Path) -> Dataset:
    """x, y and optionally x_test, y_test; images (N, H, W[, C]) or (N, C, H, W), or rows (N, D)."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in ("x", "y", "x_test", "y_test") if name in file.files}
    except (ValueError, OSError, EOFError, KeyError) as error:
        if isinstance(error, PermissionError):
            raise
        raise DataError(
            f"{path} cannot be read as plain arrays ({str(error).splitlines()[0]}); save it with "
            f"numpy.savez(path, x=..., y=...)"
        ) from error
    if not all(isinstance(array, np.ndarray) for array in arrays.values()):
        raise DataError(f"{path} does not hold plain arrays; save it with numpy.savez(path, x=..., y=...)")
    if "x" not in arrays or "y" not in arrays:
        raise DataError(f"{path} needs arrays x and y (and x_test, y_test if there is a test part)")
    return from_arrays(path.stem, arrays["x"], arrays["y"], arrays.get("x_test"), arrays.get("y_test"))


def from_arrays(
    name: str, x: Array, y: Array, x_test: Array | None = None, y_test: Array | None = None
) -> Dataset:
    """Arrays as a person has them -> a Dataset; what had to be inferred is said in a notice."""
    if (x_test is None) != (y_test is None):
        raise DataError(f"{name} has only one of x_test and y_test; give both or neither")
    class_names = classes_of(name, y)
    parts = [Part(plain_inputs(name, x), numbered(name, y, class_names))]
    if x_test is not None and y_test is not None:
        parts.append(Part(plain_inputs(name, x_test), numbered(name, y_test, class_names)))
    levels = 256 if parts[0].x.ndim == 4 else None
    features = None if levels else tuple(f"x{i}" for i in range(parts[0].x.shape[1]))
    return Dataset(name, parts[0], parts[1] if len(parts) > 1 else None, class_names, levels, features)


def classes_of(name: str, y: Array) -> tuple[str, ...]:
    if y.ndim != 1 or y.dtype.kind not in "iubUS":
        raise DataError(
            f"{name}: y must be one integer or name per input, not {y.dtype} of shape {y.shape}; "
            f"y.astype(int) may help"
        )
    return tuple(str(c) for c in np.unique(y).tolist())


def numbered(name: str, y: Array, class_names: tuple[str, ...]) -> Array:
    order = {label: i for i, label in enumerate(class_names)}
    unknown = {str(c) for c in np.unique(y).tolist()} - set(order)
    if unknown:
        raise DataError(f"{name}: y_test holds classes that y lacks: {', '.join(sorted(unknown))}")
    return np.array([order[str(c)] for c in y.tolist()], dtype=np.int64)


def plain_inputs(name: str, x: Array) -> Array:
    """Rows as float64 (N, D), images as uint8 (N, H, W, C)."""
    if x.dtype.kind not in "iufb":
        raise DataError(f"{name}: x holds {x.dtype}, which is not a number")
    if x.ndim == 2:
        return x.astype(np.float64)
    if x.ndim not in (3, 4):
        raise DataError(
            f"{name}: x has shape {x.shape}; give rows (N, D) or images (N, H, W) or (N, H, W, C)"
        )
    return to_uint8(name, channels_last(name, x))


def channels_last(name: str, x: Array) -> Array:
    if x.ndim == 3:
        return x[..., None]
    if x.shape[-1] in (1, 3):
        return x
    if x.shape[1] in (1, 3):
        return np.moveaxis(x, 1, -1)
    raise DataError(f"{name}: images of shape {x.shape[1:]} have neither 1 nor 3 channels, first or last")


def to_uint8(name: str, x: Array) -> Array:
    """Images as bytes: as they are, or from floats whose range is inferred and said in a notice."""
    if x.dtype == np.uint8:
        return x
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        raise DataError(f"{name}: the images hold NaN or infinite values; remove or replace them")
    low, high = float(x.min(initial=0)), float(x.max(initial=0))
    if low < 0 or high > 255:
        raise DataError(f"{name}: pixel values from {low:g} to {high:g}; scale them to 0–1 or 0–255")
    scale = 255 if x.dtype.kind == "f" and high <= 1 else 1
    warnings.warn(f"{name}: pixel values are taken to be 0–{'1' if scale == 255 else '255'}", stacklevel=2)
    return np.round(x * scale).astype(np.uint8)
