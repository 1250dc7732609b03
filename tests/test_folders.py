"""Folders of images: classes, train and test parts, sizes, hidden files."""

import numpy as np
import pytest
from helpers.files import colours, png, same, write_folder
from PIL import Image

from ibinn.data.known import load

pytestmark = pytest.mark.usefixtures("own_places")


@pytest.mark.parametrize("layout", ["plain", "train and test"])
def test_folder(tmp_path, layout):
    images, y = colours(8), [0, 1] * 4
    root = tmp_path / "pets"
    write_folder(root / "train" if layout != "plain" else root, images, y)
    if layout != "plain":
        write_folder(root / "test", images[:4] + 1, y[:4])
    data = load(root)
    assert data.class_names == ("cat", "dog")
    assert same(data.train, images, y)
    assert data.test is None if layout == "plain" else same(data.test, images[:4] + 1, y[:4])


def test_sizes_that_differ_are_cropped_and_resized_with_a_notice(tmp_path):
    write_folder(tmp_path / "f", colours(6, 8, 8), [0, 1] * 3)
    wide = np.zeros((16, 40, 3), np.uint8)
    wide[:, 12:28] = 255  # the square in its middle
    Image.fromarray(wide).save(tmp_path / "f" / "cat" / "wide.png")
    with pytest.warns(UserWarning, match="1 of 7 images are not 8 x 8"):
        data = load(tmp_path / "f")
    white = [image for image in data.train.x if image.min() > 250]
    assert data.train.x.shape == (7, 8, 8, 3)
    assert len(white) == 1


def test_hidden_files_and_folders_are_left_out(tmp_path):
    write_folder(tmp_path / "f", colours(4), [0, 1] * 2)
    (tmp_path / "f" / "cat" / "._0000.png").write_bytes(b"resource fork")
    (tmp_path / "f" / "cat" / "notes.txt").write_text("not an image")
    (tmp_path / "f" / ".cache").mkdir()
    (tmp_path / "f" / ".cache" / "a.png").write_bytes(png(colours(1)[0]))
    (tmp_path / "f" / "cat" / "deep").mkdir()
    (tmp_path / "f" / "cat" / "deep" / "B.PNG").write_bytes(png(colours(1)[0]))
    data = load(tmp_path / "f")
    assert (len(data.train), data.class_names) == (5, ("cat", "dog"))


def test_test_images_are_fitted_to_the_training_images(tmp_path):
    write_folder(tmp_path / "f" / "train", colours(4, 8, 8), [0, 1] * 2)
    write_folder(tmp_path / "f" / "test", colours(4, 16, 12), [0, 1] * 2)
    assert load(tmp_path / "f").test.x.shape == (4, 8, 8, 3)


def test_a_folder_val_is_the_test_part_where_there_is_no_other(tmp_path):
    write_folder(tmp_path / "f" / "train", colours(4), [0, 1] * 2)
    write_folder(tmp_path / "f" / "val", colours(2), [0, 1])
    with pytest.warns(UserWarning, match="val is taken as the test part"):
        assert len(load(tmp_path / "f").test) == 2
    write_folder(tmp_path / "f" / "test", colours(3), [0, 1, 1])
    with pytest.warns(UserWarning, match="val is left out"):
        assert len(load(tmp_path / "f").test) == 3


def test_a_class_may_be_called_train(tmp_path):
    write_folder(tmp_path / "f", colours(4), [0, 1] * 2, names=("bus", "train"))
    assert load(tmp_path / "f").class_names == ("bus", "train")
