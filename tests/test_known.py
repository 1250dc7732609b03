"""load: known sets are found in order, and suffixes decide what a file is."""

import pytest
from helpers.files import colours, write_parquet, written

from ibinn.data.known import find_known, load

pytestmark = pytest.mark.usefixtures("own_places")


def test_digits_are_always_there():
    digits = load("digits")
    assert (digits.train.x.shape, digits.levels, digits.test) == ((1797, 8, 8, 1), 17, None)
    assert digits.train.x.max() == 16
    assert digits.class_names == tuple("0123456789")


def test_known_sets_are_searched_in_order(tmp_path, monkeypatch):
    for place in ("first", "second"):
        write_parquet(tmp_path / place / "mnist" / "train.parquet", colours(2), [0, 1], "image")
    monkeypatch.setenv("IBINN_DATA", str(tmp_path / "second"))
    assert find_known("mnist") == tmp_path / "second" / "mnist"
    assert find_known("mnist", tmp_path / "first") == tmp_path / "first" / "mnist"
    assert find_known("cifar10") is None


def test_suffixes_may_be_upper_case_and_large_integers_are_read(tmp_path):
    data = load(written(tmp_path, "T.CSV", "a,y\n9007199254740993,0\n2,1\n"), target="y")
    assert data.train.x[:, 0].tolist() == [9007199254740992.0, 2.0]
