"""load(DATA): whatever a person has -> a Dataset."""

import difflib
import os
from pathlib import Path

import numpy as np

from ibinn._types import Progress
from ibinn.data.archives import load_cifar, load_idx
from ibinn.data.arrays import load_npz
from ibinn.data.dataset import DataError, Dataset, Part, checked
from ibinn.data.folders import load_folder
from ibinn.data.images import user_folder
from ibinn.data.parquet import image_column, load_parquet_images, parquet_folder, parquet_schema
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
