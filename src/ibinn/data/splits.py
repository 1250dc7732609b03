"""Four seeded, stratified splits; exact duplicates stay on one side."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ibinn._types import Array, Rows
from ibinn.data.dataset import DataError, Dataset, Part


@dataclass(frozen=True)
class Shares:
    """Of the examples that go to each split; train gets the rest. test only where the source has no test part."""

    validation: float = 0.1
    calibration: float = 0.1
    test: float = 0.2


@dataclass(frozen=True)
class Splits:
    """Row numbers: of the training part, except test where has_test_part."""

    train: Rows
    validation: Rows
    calibration: Rows
    test: Rows
    has_test_part: bool


def split(dataset: Dataset, seed: int, shares: Shares | None = None) -> Splits:
    """train / validation / calibration / test of a data set, the same for the same seed."""
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
    """Each class dealt out by the shares, group by group, a group being equal inputs.

    Every split of a class comes within one group of its share. A class so small that it cannot reach all of
    them goes to train first.
    """
    rng = np.random.default_rng(seed)
    names = ["train", *shares]
    weights = np.array([1 - sum(shares.values()), *shares.values()])
    dealt: dict[str, list[int]] = {name: [] for name in names}
    of_class: dict[int, list[list[int]]] = {}
    for group in groups_of_duplicates(part.x):
        of_class.setdefault(int(part.y[group[0]]), []).append(group)
    for _, mine in sorted(of_class.items()):
        filled = np.zeros(len(names))
        for index in rng.permutation(len(mine)):
            group = mine[index]
            # To the split that lacks most of its share; the first group of a class goes to train.
            lack = weights * (filled.sum() + len(group)) - filled
            target = 0 if filled.sum() == 0 else int(np.argmax(lack))
            filled[target] += len(group)
            dealt[names[target]] += group
    rows = {name: np.sort(np.array(members, dtype=np.int64)) for name, members in dealt.items()}
    for name, members in rows.items():
        if len(members) == 0:
            raise DataError(
                f"{len(part)} examples are too few for a {name} split; add more or raise its share"
            )
    return rows


def groups_of_duplicates(x: Array) -> list[list[int]]:
    """Row numbers of equal inputs together, in order of their first appearance."""
    groups: dict[bytes, list[int]] = {}
    for row in range(len(x)):
        groups.setdefault(digest(x[row]), []).append(row)
    return list(groups.values())


def n_twins(train: Array, test: Array) -> int:
    """How many test inputs equal a training input."""
    known = {digest(row) for row in train}
    return sum(digest(row) in known for row in test)


def digest(row: Array) -> bytes:
    values = row + 0.0 if row.dtype.kind == "f" else row  # 0.0 and -0.0 are equal
    return hashlib.blake2b(values.tobytes(), digest_size=16).digest()
