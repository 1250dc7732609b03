"""load(DATA): a known set, a folder, or a file of any supported kind -> a Dataset."""

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

KNOWN = ("digits", "mnist", "fashion_mnist", "cifar10", "cifar100")
CIFAR_FILES = {"cifar10": "cifar-10-python.tar.gz", "cifar100": "cifar-100-python.tar.gz"}
DIGIT_NAMES = tuple("0123456789")
FASHION_NAMES = (
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


def load(
    data: str | Path,
    data_dir: Path | None = None,
    target: str | None = None,
    progress: Progress | None = None,
    levels: int = 256,
    pixel_max: float | None = None,
    labelled: bool = True,
) -> Dataset:
    """Load a data set.

    Parameters
    ----------
    data : str or Path
        The name of a known set, a folder with a sub-folder of images per class, a Parquet file or folder with
        encoded images, an .npz file with arrays x and y, or a table (.csv, .parquet) with a target column.
    data_dir : Path, optional
        The folder where known sets are looked for first, before ``$IBINN_DATA`` and the user's cache.
    target : str, optional
        The column of a table that holds the classes.
    progress : callable, optional
        Called with the number of decoded images and their total.
    levels : int
        Number of values that the pixels of an .npz file can take.
    pixel_max : float, optional
        The highest pixel value of an .npz file. By default it is inferred, with a warning.
    labelled : bool
        With False, labels are not needed: an .npz file needs no y, and one class is enough.

    Returns
    -------
    Dataset
        The data set. Images are uint8 levels (N, H, W, C), rows of a table float64 (N, D).

    Raises
    ------
    DataError
        If there is no such data or a classifier cannot be trained on it.

    Examples
    --------
    >>> from ibinn.data.known import load
    >>> digits = load("digits")
    >>> digits.train.x.shape, digits.levels, digits.class_names[:3]
    ((1797, 8, 8, 1), 17, ('0', '1', '2'))
    """
    if str(data) in KNOWN:
        return checked(load_known(str(data), data_dir, progress))
    path = Path(data)
    if not path.exists():
        raise DataError(unknown_data(str(data)))
    try:
        if path.suffix.lower() == ".npz" and not path.is_dir():
            dataset = load_npz(path, levels, pixel_max, labelled)
        else:
            dataset = load_path(path, target, progress)
    except PermissionError as error:
        raise DataError(f"no permission to read {error.filename}; change its permissions") from error
    return checked(dataset) if labelled else dataset


def load_path(path: Path, target: str | None, progress: Progress | None) -> Dataset:
    """A folder, a Parquet file with images, or a table."""
    suffix = path.suffix.lower()
    if path.is_dir():
        folder = parquet_folder(path)
        return load_parquet_images(path.name, folder, progress) if folder else load_folder(path, progress)
    if suffix == ".parquet" and image_column(parquet_schema(path)) is not None:
        return load_parquet_images(path.stem, path, progress)
    if suffix in (".csv", ".parquet"):
        return load_table(path, target)
    raise DataError(f"{path} is of no known kind; give a folder, .npz, .csv or .parquet")


def unknown_data(data: str) -> str:
    """The message for data that is neither a path nor a known set."""
    near = difflib.get_close_matches(data, KNOWN, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known sets are {', '.join(KNOWN)}"
    return f"there is no file, folder or known set called {data}; {hint}"


def search_folders(data_dir: Path | None = None) -> list[Path]:
    """The folders where known sets are looked for, in order."""
    first = [data_dir] if data_dir else []
    first += [Path(os.environ["IBINN_DATA"])] if os.environ.get("IBINN_DATA") else []
    return [*first, user_folder()]


def find_known(name: str, data_dir: Path | None = None) -> Path | None:
    """The first place that holds the set: a folder with Parquet or idx files, or CIFAR's archive."""
    for root in search_folders(data_dir):
        own = root / name
        if any(own.glob("*.parquet")):
            return own
        if name in CIFAR_FILES:
            for folder in (own, root):
                if (folder / CIFAR_FILES[name]).is_file():
                    return folder / CIFAR_FILES[name]
        elif any(file.suffix != ".part" for file in own.glob("train-images*")):
            return own
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
    return load_idx(name, found, FASHION_NAMES if name == "fashion_mnist" else DIGIT_NAMES)


def load_digits() -> Dataset:
    """scikit-learn's 1797 digits, 8 x 8 pixels of 17 levels, without a test part."""
    from sklearn.datasets import load_digits as sklearn_digits  # here, because importing it takes a second

    bunch = sklearn_digits()
    images = bunch.images.astype(np.uint8)[..., None]
    return Dataset("digits", Part(images, bunch.target.astype(np.int64)), None, DIGIT_NAMES, levels=17)
