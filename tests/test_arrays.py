"""Arrays and .npz files: shapes, pixel ranges, labels."""

import numpy as np
import pytest
from helpers.files import colours, rng

from ibinn.data.arrays import from_arrays
from ibinn.data.dataset import DataError
from ibinn.data.known import load

pytestmark = pytest.mark.usefixtures("own_places")


def test_npz(tmp_path):
    images, y = colours(6), np.array([3, 7] * 3)
    np.savez(tmp_path / "a.npz", x=images, y=y, x_test=images[:2], y_test=y[:2])
    data = load(tmp_path / "a.npz")
    assert np.array_equal(data.train.x, images)
    assert data.class_names == ("3", "7")
    assert data.train.y.tolist() == [0, 1] * 3
    assert np.array_equal(data.test.x, images[:2])


def test_arrays_of_other_shapes_and_ranges():
    images, y = colours(6), np.array(["b", "a"] * 3)
    assert from_arrays("a", images, y).class_names == ("a", "b")
    assert np.array_equal(from_arrays("a", images.transpose(0, 3, 1, 2), y).train.x, images)
    assert from_arrays("a", images[..., 0], y).train.x.shape == (6, 6, 5, 1)
    with pytest.warns(UserWarning, match="0–1"):
        assert np.array_equal(from_arrays("a", images / 255, y).train.x, images)
    with pytest.warns(UserWarning, match="0–255"):
        assert np.array_equal(from_arrays("a", images.astype(float), y).train.x, images)
    rows = from_arrays("a", rng.normal(size=(6, 3)), y)
    assert (rows.levels, rows.feature_names) == (None, ("x0", "x1", "x2"))


def test_labels_of_other_kinds():
    rows = rng.normal(size=(4, 2))
    assert from_arrays("a", rows, np.array([b"cat", b"dog"] * 2)).class_names == ("cat", "dog")
    assert from_arrays("a", rows, np.array([[2], [10]] * 2)).class_names == ("2", "10")
    assert from_arrays("a", rows, np.array([True, False] * 2)).train.y.tolist() == [1, 0, 1, 0]


def test_the_range_of_floats_is_that_of_the_training_part():
    bright, dark, y = (
        np.linspace(0, 255, 6 * 16).reshape(6, 4, 4),
        np.full((2, 4, 4), 0.9),
        np.array([0, 1] * 3),
    )
    with pytest.warns(UserWarning, match="0–255"):
        data = from_arrays("a", bright, y, dark, y[:2])
    assert data.test.x.max() == 1
    with pytest.warns(UserWarning, match="0–1"):  # resampling overshoots a little
        data = from_arrays("a", bright / 255 * 1.004 - 0.001, y)
    assert (data.train.x.min(), data.train.x.max()) == (0, 255)
    with pytest.warns(UserWarning, match="0–1"):
        assert from_arrays("a", bright > 100, y).train.x.max() == 255


def test_range_and_levels_can_be_stated():
    images, y = rng.integers(17, size=(6, 4, 4)), np.array([0, 1] * 3)
    data = from_arrays("a", images, y, levels=17, pixel_max=16)
    assert data.levels == 17
    assert np.array_equal(data.train.x[..., 0], images)
    assert np.array_equal(
        from_arrays("a", images / 16, y, levels=17, pixel_max=1.0).train.x[..., 0], images
    )
    with pytest.raises(DataError, match="do not fit 0–1"):
        from_arrays("a", images, y, pixel_max=1.0)
