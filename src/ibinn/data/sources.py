"""load(DATA): whatever a person has -> a Dataset."""

import difflib
import json
import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ibinn.data.archives import load_cifar, load_idx
from ibinn.data.arrays import classes_of, load_npz, numbered
from ibinn.data.dataset import DataError, Dataset, Part, checked
from ibinn.data.images import (
    SUFFIXES,
    Decoded,
    Progress,
    cache_folder,
    cached,
    decode,
    fingerprint,
    user_folder,
)
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
    levels: int = 256,
    pixel_max: float | None = None,
    labelled: bool = True,
) -> Dataset:
    """A known name, a folder of images, a Parquet file or folder, an .npz, or a table with a target column.

    levels and pixel_max say what the pixels of an .npz mean: so many values, the highest being pixel_max.
    Left out, pixel_max is inferred with a notice. labelled=False is for inputs alone: one class will do, and
    an .npz needs no y.
    """
    if str(data) in KNOWN:
        return checked(load_known(str(data), data_dir, progress))
    path = Path(data)
    if not path.exists():
        raise DataError(missing(str(data)))
    try:
        dataset = load_path(path, target, progress, levels, pixel_max, labelled)
        return checked(dataset) if labelled else dataset
    except PermissionError as error:
        raise DataError(f"no permission to read {error.filename}; change its permissions") from error


def load_path(
    path: Path,
    target: str | None,
    progress: Progress | None,
    levels: int,
    pixel_max: float | None,
    labelled: bool,
) -> Dataset:
    suffix = path.suffix.lower()
    if path.is_dir():
        shards = parquet_folder(path)
        return load_parquet_images(path.name, shards, progress) if shards else load_folder(path, progress)
    if suffix == ".npz":
        return load_npz(path, levels, pixel_max, labelled)
    if suffix == ".parquet" and image_column(parquet_schema(path)) is not None:
        return load_parquet_images(path.stem, path, progress)
    if suffix in (".csv", ".parquet"):
        return load_table(path, target)
    raise DataError(f"{path} is of no known kind; give a folder, .npz, .csv or .parquet")


def parquet_folder(folder: Path) -> Path | None:
    """The folder itself or one below it, such as Hugging Face's data/, that holds Parquet files."""
    return next((f for f in [folder, *sorted(folder.glob("*/"))] if any(f.glob("*.parquet"))), None)


def missing(data: str) -> str:
    near = difflib.get_close_matches(data, KNOWN, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known sets are {', '.join(KNOWN)}"
    return f"there is no file, folder or known set called {data}; {hint}"


# Known sets


def search_folders(data_dir: Path | None = None) -> list[Path]:
    """Where known sets are looked for, in order."""
    named = [data_dir] if data_dir else []
    named += [Path(os.environ["IBINN_DATA"])] if os.environ.get("IBINN_DATA") else []
    return [*named, user_folder()]


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
    if not has_classes(folder / "train"):  # which may also be a class, of trains
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


def has_classes(folder: Path) -> bool:
    return folder.is_dir() and any(p.is_dir() and image_files(p) for p in folder.iterdir())


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
    if class_names is None:  # whatever numbers there are, in order
        class_names = classes_of(name, part.y)
        part = Part(part.x, numbered(name, part.y, class_names))
        test_part = test_part and Part(test_part.x, numbered(name, test_part.y, class_names))
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
