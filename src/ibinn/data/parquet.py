"""Parquet files with encoded images, as Hugging Face writes them -> a Dataset."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ibinn._types import Progress
from ibinn.data.arrays import class_names_of, class_numbers
from ibinn.data.dataset import DataError, Dataset, Part
from ibinn.data.folders import VALIDATION, warn_about_test_part
from ibinn.data.images import Decoded, cached, decode_images, file_stamp, fingerprint


def parquet_folder(folder: Path) -> Path | None:
    """The folder itself or one below it, such as Hugging Face's data/, that holds Parquet files."""
    return next((f for f in [folder, *sorted(folder.glob("*/"))] if any(f.glob("*.parquet"))), None)


def load_parquet_images(name: str, path: Path, progress: Progress | None) -> Dataset:
    """Encoded images in a column img or image; files called train* and test*, or a single file."""
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    train, test = train_and_test(files)
    class_names = parquet_class_names(parquet_schema(train[0]))
    part = read_parquet(train, progress)
    test_part = read_parquet(test, progress, like=part.x.shape[1:]) if test else None
    if class_names is None:  # number the labels that occur, in order
        class_names = class_names_of(name, part.y)
        part = Part(part.x, class_numbers(name, part.y, class_names))
        test_part = test_part and Part(test_part.x, class_numbers(name, test_part.y, class_names))
    return Dataset(name, part, test_part, class_names, levels=256)


def train_and_test(files: list[Path]) -> tuple[list[Path], list[Path]]:
    """Files called test*, else those called val*, are the test part; without others, all are the training part."""
    test, validation = (
        [file for file in files if re.match(rf"({kind})(?![a-z])", file.stem)]
        for kind in ("test", "|".join(VALIDATION))
    )
    train = [file for file in files if file not in test + validation]
    if not train:
        return files, []
    if validation:
        warn_about_test_part([*test[:1], validation[0]], bool(test))
    return train, test or validation


def parquet_schema(path: Path) -> pa.Schema:
    try:
        return pq.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, PermissionError):
            raise
        raise broken_parquet(path, error) from error


def image_column(schema: pa.Schema) -> str | None:
    """img or image, if it is a struct with the encoded bytes."""
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
    """The class names in Hugging Face's metadata, if there are some."""
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
        return decode_images(encoded, np.array(y), progress, like)

    return cached(key, make)


def parquet_columns(file: Path) -> tuple[str, str]:
    """The names of the image column and of the label column."""
    schema = parquet_schema(file)
    image = image_column(schema)
    if image is None:
        raise DataError(f"{file} has no column img or image with encoded images")
    return image, label_column(schema, file)


def parquet_rows(file: Path, column: str) -> Iterator[Any]:
    """The values of a column, with a few hundred rows in memory at a time."""
    try:
        with pq.ParquetFile(file) as parquet:
            for batch in parquet.iter_batches(batch_size=256, columns=[column]):
                yield from batch.column(0).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise broken_parquet(file, error) from error


def broken_parquet(file: Path, error: Exception) -> DataError:
    return DataError(f"{file} is not a whole Parquet file ({' '.join(str(error).split())}); get it again")
