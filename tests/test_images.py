"""Decoded images, pixel by pixel: colour modes, file formats, orientation, transparency."""

import numpy as np
import pytest
from helpers.files import colours, rng
from PIL import Image

from ibinn.data.dataset import DataError
from ibinn.data.known import load

pytestmark = pytest.mark.usefixtures("own_places")


def test_folder_modes_become_grey_or_rgb(tmp_path):
    """Grey, 1-bit, 16-bit and grey with alpha are grey; colour, palette and alpha are RGB on white."""
    grey = rng.integers(256, size=(4, 4), dtype=np.uint8)
    for i, image in enumerate(
        [
            Image.fromarray(grey),
            Image.fromarray(grey.astype(np.uint16) * 256 + 7),
            Image.fromarray(np.stack([grey, np.full_like(grey, 255)], -1)),
            Image.fromarray(grey > 99).convert("1"),
        ]
    ):
        (tmp_path / "g" / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        image.save(tmp_path / "g" / "ab"[i % 2] / f"{i}.png")
    x = load(tmp_path / "g").train.x
    assert x.shape == (4, 4, 4, 1)
    assert sum(np.array_equal(image[..., 0], grey) for image in x) == 3

    colour = colours(1, 4, 4)[0]
    alpha = np.concatenate([colour, np.full((4, 4, 1), 255, np.uint8)], -1)
    alpha[0, 0] = [9, 9, 9, 0]
    palette = Image.fromarray(colour).quantize(16)
    for i, image in enumerate([Image.fromarray(colour), Image.fromarray(alpha), palette]):
        (tmp_path / "c" / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        image.save(tmp_path / "c" / "ab"[i % 2] / f"{i}.png")
    x = np.asarray(
        load(tmp_path / "c").train.x
    )  # a: the colour and the palette image, b: the one with alpha
    assert np.array_equal(x[0], colour)
    assert np.array_equal(x[1], np.asarray(palette.convert("RGB")))
    assert x[2, 0, 0].tolist() == [255, 255, 255]
    assert np.array_equal(x[2, 1:], colour[1:])


@pytest.mark.parametrize("suffix", ["jpg", "webp", "bmp", "gif", "tif", "ppm"])
def test_folder_formats(tmp_path, suffix):
    for label in "ab":
        (tmp_path / "f" / label).mkdir(parents=True)
        Image.new("RGB", (5, 4), (200, 30, 90)).save(tmp_path / "f" / label / f"1.{suffix}")
    x = np.asarray(load(tmp_path / "f").train.x).astype(int)
    assert x.shape == (2, 4, 5, 3)
    assert np.abs(x - [200, 30, 90]).max() < 12


def test_images_of_floats_have_no_known_range(tmp_path):
    for label in "ab":
        (tmp_path / "f" / label).mkdir(parents=True)
        Image.fromarray(np.full((4, 5), 0.5, np.float32)).save(tmp_path / "f" / label / "1.tiff")
    with pytest.raises(DataError, match="floating-point"):
        load(tmp_path / "f")


def test_photos_are_turned_upright(tmp_path):
    """Orientation 6: the camera was held sideways, and the image must be turned by 90° clockwise."""
    upright = colours(1, 8, 6)[0]
    exif = Image.Exif()
    exif[0x0112] = 6
    for label in "ab":
        (tmp_path / "f" / label).mkdir(parents=True)
        Image.fromarray(np.rot90(upright)).save(tmp_path / "f" / label / "1.png", exif=exif)
    x = load(tmp_path / "f").train.x
    assert x.shape == (2, 8, 6, 3)
    assert np.array_equal(x[0], upright)


def test_grey_with_a_transparent_colour_stays_grey(tmp_path):
    (tmp_path / "f" / "a").mkdir(parents=True)
    (tmp_path / "f" / "b").mkdir()
    grey = Image.fromarray(np.array([[0, 50], [100, 200]], np.uint8))
    grey.save(tmp_path / "f" / "a" / "1.png", transparency=50)
    grey.save(tmp_path / "f" / "b" / "1.png")
    x = load(tmp_path / "f").train.x
    assert x.shape == (2, 2, 2, 1)
    assert x[0, ..., 0].tolist() == [[0, 255], [100, 200]]
