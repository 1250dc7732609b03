"""Splits are disjoint, stratified and seeded, and the same in every process."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibinn.data.dataset import DataError, Dataset, Part
from ibinn.data.splits import Shares, groups_of_duplicates, n_test_in_train, split


def table(y, x=None, test=None):
    y = np.asarray(y)
    x = np.arange(len(y), dtype=float)[:, None] if x is None else x
    return Dataset("toy", Part(x, y), test, tuple(str(i) for i in range(y.max() + 1)), levels=None)


@given(counts=st.lists(st.integers(10, 60), min_size=2, max_size=5), seed=st.integers(0, 1000))
def test_splits_are_a_stratified_partition(counts, seed):
    y = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    splits = split(table(y), seed)
    parts = [splits.train, splits.validation, splits.calibration, splits.test]
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(y)))
    for rows, share in zip(parts, (0.6, 0.1, 0.1, 0.2), strict=True):
        in_class = np.bincount(y[rows], minlength=len(counts))
        assert np.all(np.abs(in_class - share * np.array(counts)) < 2)


def test_a_test_part_of_its_own_is_left_whole():
    test = Part(np.ones((7, 1)), np.zeros(7, dtype=np.int64))
    splits = split(table(np.arange(100) % 2, test=test), seed=0)
    assert splits.has_test_part
    assert np.array_equal(splits.test, np.arange(7))
    assert len(splits.train) + len(splits.validation) + len(splits.calibration) == 100


@given(seed=st.integers(0, 1000))
def test_equal_inputs_stay_on_one_side(seed):
    rng = np.random.default_rng(seed)
    x = rng.integers(30, size=(200, 1)).astype(float)  # each value about seven times, in both classes
    splits = split(table(rng.integers(2, size=200), x), seed)
    parts = [splits.train, splits.validation, splits.calibration, splits.test]
    values = [set(x[rows, 0]) for rows in parts]
    assert sum(len(v) for v in values) == len(set.union(*values))


def test_tiny_classes_go_to_train_first():
    y = np.array([0] * 100 + [1] + [2, 2])
    splits = split(table(y), seed=0)
    assert set(y[splits.train]) == {0, 1, 2}
    splits = split(table(y), seed=0, shares=Shares(validation=0.5, calibration=0.2, test=0.2))
    assert set(y[splits.train]) == {0, 1, 2}


def test_seeds():
    data = table(np.arange(300) % 3)
    assert np.array_equal(split(data, 1).train, split(data, 1).train)
    assert not np.array_equal(split(data, 1).train, split(data, 2).train)


def test_too_few_examples_and_bad_shares_are_clear():
    with pytest.raises(DataError, match="too few"):
        split(table(np.array([0, 1, 0])), seed=0)
    with pytest.raises(DataError, match="sum below 1"):
        split(table(np.arange(100) % 2), seed=0, shares=Shares(validation=0.9))


def test_groups_are_those_of_equal_rows():
    x = np.array([[1, 2], [3, 4], [1, 2], [5, 6], [3, 4]])
    assert groups_of_duplicates(x) == [[0, 2], [1, 4], [3]]
    assert groups_of_duplicates(np.array([[0.0], [-0.0]])) == [[0, 1]]
    assert n_test_in_train(x[:2], x) == 4


CODE = """
import numpy as np
from ibinn.data.batches import Batches
from ibinn.data.dataset import Dataset, Part
from ibinn.data.splits import split
data = Dataset("toy", Part(np.arange(300.0)[:, None], np.arange(300) % 3), None, ("a", "b", "c"), None)
splits = split(data, seed=7)
print(splits.calibration.tolist(), [b.tolist() for b in Batches(splits.train, 50, seed=7).epoch(2)])
"""


def test_another_process_gets_the_same():
    outputs = {
        subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }
    assert len(outputs) == 1
    assert "[" in outputs.pop()
