"""Parquet files with encoded images, as Hugging Face writes them."""

import numpy as np
import pytest
from helpers.files import colours, write_parquet

from ibinn.data.known import load

pytestmark = pytest.mark.usefixtures("own_places")


@pytest.mark.parametrize(("image", "label"), [("img", "label"), ("image", "fine_label")])
def test_parquet_in_hugging_face_form(tmp_path, image, label):
    images, y = colours(8), [0, 1, 2, 1] * 2
    names = ("x", "y", "z")
    write_parquet(tmp_path / "set" / "train-00000-of-00002.parquet", images[:4], y[:4], image, label, names)
    write_parquet(tmp_path / "set" / "train-00001-of-00002.parquet", images[4:], y[4:], image, label, names)
    write_parquet(tmp_path / "set" / "test.parquet", images[:3], y[:3], image, label, names)
    data = load(tmp_path / "set")
    assert np.array_equal(data.train.x, images)
    assert data.train.y.tolist() == y
    assert np.array_equal(data.test.x, images[:3])
    assert data.class_names == names
    single = load(tmp_path / "set" / "train-00000-of-00002.parquet")
    assert np.array_equal(single.train.x, images[:4])
    assert single.test is None


def test_validation_shards(tmp_path):
    for name, n in (("train-0", 6), ("validation-0", 4)):
        write_parquet(tmp_path / "s" / f"{name}.parquet", colours(n), [0, 1] * (n // 2))
    with pytest.warns(UserWarning, match="taken as the test part"):
        data = load(tmp_path / "s")
    assert (len(data.train), len(data.test)) == (6, 4)
    write_parquet(tmp_path / "s" / "test-0.parquet", colours(2), [0, 1])
    with pytest.warns(UserWarning, match="left out"):
        data = load(tmp_path / "s")
    assert (len(data.train), len(data.test)) == (6, 2)


def test_parquet_labels_without_names_are_numbered_by_what_is_there(tmp_path):
    write_parquet(tmp_path / "p.parquet", colours(4), [5, 50_000_000] * 2)
    data = load(tmp_path / "p.parquet")
    assert data.class_names == ("5", "50000000")
    assert data.train.y.tolist() == [0, 1, 0, 1]


def test_a_clone_with_its_shards_one_folder_down(tmp_path):
    write_parquet(tmp_path / "clone" / "data" / "train-0.parquet", colours(4), [0, 1] * 2)
    assert len(load(tmp_path / "clone").train) == 4
