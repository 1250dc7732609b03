"""A data set as all sources give it: images or rows, labels, class names, number of pixel levels."""

import hashlib
from dataclasses import dataclass

import numpy as np

from ibinn._types import Array, Labels, Rows


class DataError(ValueError):
    """Something is wrong with the user's data. The message is one sentence that says what to do."""


@dataclass(frozen=True)
class Part:
    """Images (N, H, W, C) uint8, or rows (N, D) float64, and their labels (N,) int64."""

    x: Array
    y: Labels

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: Rows) -> "Part":
        """The examples with these row numbers."""
        return Part(self.x[rows], self.y[rows])


@dataclass(frozen=True)
class Dataset:
    """A data set with its class names and the meaning of its values.

    Attributes
    ----------
    name : str
        Name of the set, or of its file or folder.
    train : Part
        Training examples: `x` is images (N, H, W, C) uint8 or rows (N, D) float64, `y` is labels (N,) int64.
    test : Part or None
        Test examples, if the source has a test part.
    class_names : tuple of str
        Names of the classes 0, 1, ...
    levels : int or None
        Number of values that a pixel can take: 256, or 17 for the digits. None for tables.
    feature_names : tuple of str or None
        Names of a table's columns.

    Examples
    --------
    >>> import numpy as np
    >>> part = Part(np.zeros((4, 3)), np.array([0, 1, 0, 1]))
    >>> dataset = Dataset("toy", part, None, ("no", "yes"), None, ("a", "b", "c"))
    >>> dataset.shape, dataset.is_images, len(dataset.train)
    ((3,), False, 4)
    """

    name: str
    train: Part
    test: Part | None
    class_names: tuple[str, ...]
    levels: int | None
    feature_names: tuple[str, ...] | None = None

    @property
    def is_images(self) -> bool:
        """Whether the inputs are images."""
        return self.levels is not None

    @property
    def shape(self) -> tuple[int, ...]:
        """(H, W, C) of an image, or (D,) of a row."""
        return tuple(self.train.x.shape[1:])


def data_digest(dataset: Dataset) -> str:
    """A hash of the training part, its levels and class names: data sets with equal hashes have equal splits."""
    digest = hashlib.blake2b(digest_size=16)
    part = dataset.train
    digest.update(repr((part.x.dtype.str, part.x.shape, dataset.levels, dataset.class_names)).encode())
    digest.update(part.y.astype("<i8").tobytes())
    for start in range(0, len(part), 10_000):
        digest.update(np.ascontiguousarray(part.x[start : start + 10_000]).tobytes())
    return digest.hexdigest()


def checked(dataset: Dataset) -> Dataset:
    """The same data set, or DataError if a classifier cannot be trained on it."""
    parts = {"train": dataset.train} | ({} if dataset.test is None else {"test": dataset.test})
    for name, part in parts.items():
        check_part(f"the {name} part of {dataset.name}", part, dataset.shape, len(dataset.class_names))
    present = np.unique(dataset.train.y)
    if len(present) < 2:
        raise DataError(
            f"{dataset.name} has examples of {len(present)} class only; a classifier needs at least two"
        )
    return dataset


def check_part(where: str, part: Part, shape: tuple[int, ...], n_classes: int) -> None:
    """Raise DataError unless lengths, shapes, labels and values of a part are valid."""
    if len(part.x) != len(part.y):
        raise DataError(f"{where} has {len(part.x)} inputs but {len(part.y)} labels; they must match")
    if len(part.y) == 0:
        raise DataError(f"{where} is empty; add some examples")
    if tuple(part.x.shape[1:]) != shape:
        raise DataError(f"{where} has inputs of shape {part.x.shape[1:]} but {shape} was expected")
    if part.y.min() < 0 or part.y.max() >= n_classes:
        raise DataError(
            f"{where} has labels from {part.y.min()} to {part.y.max()} but there are {n_classes} classes; "
            f"number them from 0 to {n_classes - 1}"
        )
    if part.x.dtype.kind == "f" and not np.isfinite(part.x).all():
        bad = np.logical_not(np.isfinite(part.x).reshape(len(part.x), -1).all(axis=1))
        raise DataError(
            f"{where} has NaN or infinite values in {bad.sum()} of {len(bad)} inputs, the first being "
            f"number {int(bad.argmax())}; remove or replace them"
        )
