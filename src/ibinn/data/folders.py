"""A folder with a sub-folder per class -> a Dataset."""

import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ibinn._types import Progress
from ibinn.data.dataset import DataError, Dataset, Part
from ibinn.data.images import SUFFIXES, cached, decode_images, file_stamp, fingerprint

VALIDATION = ("val", "valid", "validation")  # other names for a held-out part


def load_folder(folder: Path, progress: Progress | None) -> Dataset:
    """A sub-folder per class, optionally below train/ and test/ (or val/, where there is no test/)."""
    if not class_names_in(folder / "train"):  # a class may be called train, too
        classes = class_folders(folder)
        return Dataset(folder.name, read_folder(folder, classes, progress), None, classes, levels=256)
    classes = class_folders(folder / "train")
    train = read_folder(folder / "train", classes, progress)
    test = None
    held_out = [folder / name for name in ("test", *VALIDATION) if (folder / name).is_dir()]
    if held_out:
        if unknown := set(class_folders(held_out[0])) - set(classes):
            raise DataError(f"{held_out[0]} has classes that train/ lacks: {', '.join(sorted(unknown))}")
        test = read_folder(held_out[0], classes, progress, like=train.x.shape[1:])
        warn_about_test_part(held_out, held_out[0].name == "test")
    return Dataset(folder.name, train, test, classes, levels=256)


def warn_about_test_part(held_out: list[Path], has_test: bool) -> None:
    """Say which of the held-out parts, the first, is the test part, unless it is called so."""
    if not has_test:
        warnings.warn(f"{held_out[0]} is taken as the test part", stacklevel=3)
    for other in held_out[1:]:
        warnings.warn(
            f"{other} is left out: there is a test part, and validation is split off", stacklevel=3
        )


def class_names_in(folder: Path) -> list[str]:
    """Names of the sub-folders that hold images."""
    if not folder.is_dir():
        return []
    return sorted(p.name for p in folder.iterdir() if p.is_dir() and image_files(p))


def class_folders(folder: Path) -> tuple[str, ...]:
    names = class_names_in(folder)
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
    stamps = [(path.relative_to(folder).as_posix(), label, *file_stamp(path)) for path, label in files]
    y = np.array([label for _, label in files])

    def encoded() -> Iterator[tuple[str, Path | bytes]]:
        return ((str(path), path) for path, _ in files)

    key = fingerprint([("folder", str(folder.resolve()), like), *stamps])
    return cached(key, lambda: decode_images(encoded, y, progress, like))
