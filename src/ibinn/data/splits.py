"""Seeded, stratified splits into train, validation, calibration and test; exact duplicates stay together."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ibinn._types import Array, Rows
from ibinn.data.dataset import DataError, Dataset, Part


@dataclass(frozen=True)
class Shares:
    """Share of the examples in each split. train gets the rest; test is used if the source has no test part."""

    validation: float = 0.1
    calibration: float = 0.1
    test: float = 0.2


@dataclass(frozen=True)
class Splits:
    """Row numbers of the training part. Those of test are of the test part if has_test_part is set."""

    train: Rows
    validation: Rows
    calibration: Rows
    test: Rows
    has_test_part: bool


def split(dataset: Dataset, seed: int, shares: Shares | None = None) -> Splits:
    """Split a data set into train, validation, calibration and test.

    Parameters
    ----------
    dataset : Dataset
        The data set. If it has a test part, that is the test split.
    seed : int
        Seed of the random split.
    shares : Shares, optional
        Shares of the splits; by default 10 % validation, 10 % calibration and, without a test part, 20 % test.

    Returns
    -------
    Splits
        Row numbers of each split. Classes are split in the same proportions, and equal inputs go to one split.

    Examples
    --------
    >>> from ibinn.data.known import load
    >>> splits = split(load("digits"), seed=0)
    >>> len(splits.train), len(splits.validation), len(splits.calibration), len(splits.test)
    (1078, 180, 179, 360)
    """
    shares = shares or Shares()
    wanted = {"validation": shares.validation, "calibration": shares.calibration}
    if dataset.test is None:
        wanted["test"] = shares.test
    if min(wanted.values()) <= 0 or sum(wanted.values()) >= 1:
        raise DataError(
            f"shares {wanted} leave nothing for a split; make each positive and their sum below 1"
        )
    rows = split_rows(dataset.train, wanted, seed)
    test = rows.get("test", np.arange(0 if dataset.test is None else len(dataset.test)))
    return Splits(rows["train"], rows["validation"], rows["calibration"], test, dataset.test is not None)


def split_rows(part: Part, shares: Mapping[str, float], seed: int) -> dict[str, Rows]:
    """Row numbers of train and of the splits in `shares`, class by class.

    Equal inputs form a group, which goes to one split. In every class each split is within one group of its
    share. The first group of a class goes to train.
    """
    rng = np.random.default_rng(seed)
    names = ["train", *shares]
    weights = np.array([1 - sum(shares.values()), *shares.values()])
    members: dict[str, list[int]] = {name: [] for name in names}
    groups: dict[int, list[list[int]]] = {}
    for group in groups_of_duplicates(part.x):
        groups.setdefault(int(part.y[group[0]]), []).append(group)
    for _, of_class in sorted(groups.items()):
        filled = np.zeros(len(names))
        for index in rng.permutation(len(of_class)):
            group = of_class[index]
            # To the split that lacks most of its share.
            lack = weights * (filled.sum() + len(group)) - filled
            target = 0 if filled.sum() == 0 else int(np.argmax(lack))
            filled[target] += len(group)
            members[names[target]] += group
    rows = {name: np.sort(np.array(numbers, dtype=np.int64)) for name, numbers in members.items()}
    for name, numbers in rows.items():
        if len(numbers) == 0:
            raise DataError(
                f"{len(part)} examples are too few for a {name} split; add more or raise its share"
            )
    return rows


def groups_of_duplicates(x: Array) -> list[list[int]]:
    """Lists of the row numbers of equal inputs, in order of their first appearance."""
    groups: dict[bytes, list[int]] = {}
    for row in range(len(x)):
        groups.setdefault(row_digest(x[row]), []).append(row)
    return list(groups.values())


def n_test_in_train(train: Array, test: Array) -> int:
    """Number of test inputs that equal a training input."""
    known = {row_digest(row) for row in train}
    return sum(row_digest(row) in known for row in test)


def row_digest(row: Array) -> bytes:
    values = row + 0.0 if row.dtype.kind == "f" else row  # 0.0 and -0.0 are equal
    return hashlib.blake2b(values.tobytes(), digest_size=16).digest()
