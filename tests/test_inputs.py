"""Files without labels become inputs in the form of a model."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from PIL import Image

from ibinn.data.dataset import DataError
from ibinn.data.inputs import InputForm, read_inputs


def test_pictures_come_in_the_levels_of_the_model(tmp_path):
    Image.fromarray(np.array([[0, 128], [64, 255]], np.uint8)).save(tmp_path / "a.png")
    form = InputForm("HW", (2, 2), "float64", 17, 16.0)
    assert_array_equal(read_inputs(tmp_path / "a.png", form)[1][0, ..., 0], [[0, 8], [4, 16]])


def test_columns_are_found_by_name(tmp_path):
    form = InputForm("rows", (3,), "float64")
    (tmp_path / "t.csv").write_text("kind,b,target,a\nred,2.5,x,1\nblue,3,y,2\n")
    names, rows = read_inputs(tmp_path / "t.csv", form, ("a", "b", "kind=red"))
    assert_array_equal(rows, [[1, 2.5, 1], [2, 3, 0]])
    assert names == [f"{tmp_path / 't.csv'}:0", f"{tmp_path / 't.csv'}:1"]
    with pytest.raises(DataError, match="no column 'c'"):
        read_inputs(tmp_path / "t.csv", form, ("a", "b", "c"))


def test_only_the_columns_of_the_model_are_looked_at(tmp_path):
    form = InputForm("rows", (2,), "float64")
    (tmp_path / "t.csv").write_text("a,note,code,when\n1,,1,2020-01-01\n2,x,2,2021-01-01\n")
    assert_array_equal(read_inputs(tmp_path / "t.csv", form, ("a", "code=2"))[1], [[1, 0], [2, 1]])
    (tmp_path / "t.csv").write_text("a,code\n1,1\nodd,2\n")
    with pytest.raises(DataError, match="holds text"):
        read_inputs(tmp_path / "t.csv", form, ("a", "code=2"))
    with pytest.raises(DataError, match="trained on an array of 3"):
        read_inputs(tmp_path / "t.csv", InputForm("rows", (3,), "float64"), ("x0", "x1", "x2"))


def test_the_range_of_floats_is_inferred_or_as_the_model_knows_it(tmp_path):
    levels = np.arange(4, dtype=np.uint8).reshape(1, 2, 2) * 85
    file = tmp_path / "x.npz"
    np.savez(file, x=levels / 255)
    with pytest.warns(UserWarning, match="0–1"):
        assert_array_equal(
            read_inputs(file, InputForm("HWC", (2, 2, 1), "uint8", 256, 255.0))[1][..., 0], levels
        )
    assert_array_equal(read_inputs(file, InputForm("HW", (2, 2), "float64", 256, 1.0))[1][..., 0], levels)
    np.savez(file, x=levels[:0], y=np.array([0.5]))
    with pytest.raises(DataError, match="no inputs"):
        read_inputs(file, InputForm("HWC", (2, 2, 1), "uint8", 256, 255.0))


def test_a_table_without_names_is_taken_in_its_order(tmp_path):
    (tmp_path / "t.csv").write_text("b,a\n2,1\n")
    form = InputForm("rows", (2,), "float64")
    assert_array_equal(read_inputs(tmp_path / "t.csv", form, ("x0", "x1"))[1], [[2, 1]])
