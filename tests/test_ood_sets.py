"""OoD sets: exact rotations of colour, noise of the asked size, drawings and photos from files made here."""

import io
import struct
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps
from scipy.spatial.transform import Rotation

from ibinn.ood.sets import (
    OOD_FILES,
    OOD_SETS,
    add_noise,
    as_inlier_like,
    flipped,
    from_unit,
    imagenet,
    inverted,
    jpeg,
    noise,
    place_drawing,
    quickdraw,
    random_axis,
    resize,
    rgb_rotation,
    rotate_colours,
    rotation,
    rotation_matrix,
    to_unit,
)
from ibinn.report.pictures import draw_contact_sheet, tile
from ibinn.report.style import save_figure

PIVOT = np.full(3, 0.5)


def random_images(n=6, shape=(8, 8, 3), levels=256, seed=0, dtype=np.uint8):
    return np.random.default_rng(seed).integers(0, levels, (n, *shape), dtype=dtype)


def encode(pixels, form="PNG"):
    file = io.BytesIO()
    Image.fromarray(pixels.squeeze(2) if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels).save(
        file, form
    )
    return file.getvalue()


def write_parquet(path, encoded, column="img"):
    """A file as Hugging Face writes it."""
    struct_type = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    records = [{"bytes": data, "path": f"{i}.png"} for i, data in enumerate(encoded)]
    columns = {column: pa.array(records, struct_type), "label": pa.array([0] * len(records), pa.int64())}
    pq.write_table(pa.table(columns), path)
    return path


# --- made from the inliers ---------------------------------------------------------------------------

KINDS = {
    "colour": random_images(),
    "grey": random_images(shape=(8, 8, 1)),
    "digits": random_images(shape=(8, 8, 1), levels=17),
    "16 bit": random_images(levels=4096, dtype=np.uint16),
    "roomy type": random_images(levels=17, dtype=np.uint16),
    "no image": random_images(n=0),
}
LEVELS = {"digits": 17, "16 bit": 4096, "roomy type": 17}


FITTING = [
    (name, kind)
    for name in OOD_SETS
    for kind in KINDS
    if name != "rgb_rotation" or KINDS[kind].shape[3] == 3
]


@pytest.mark.parametrize(("name", "kind"), FITTING)
def test_shape_type_and_range_are_the_inliers(name, kind):
    images, levels = KINDS[kind], LEVELS.get(kind, 256)
    before = images.copy()
    strange = OOD_SETS[name](images, levels, 0)
    assert strange.shape == images.shape
    assert strange.dtype == images.dtype
    assert strange.max(initial=0) < levels
    assert np.array_equal(images, before)
    assert not np.shares_memory(strange, images)
    assert len(images) == 0 or not np.array_equal(strange, images)


@pytest.mark.parametrize("name", OOD_SETS)
def test_the_seed_fixes_the_set(name):
    images = random_images()
    first, again, other = (OOD_SETS[name](images, 256, seed) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert np.array_equal(first, other) == (name not in ("rgb_rotation", "noise"))


@given(seed=st.integers(0, 2**31), angle=st.floats(-3.1, 3.1))
def test_colours_turn_exactly_as_scipy_turns_them(seed, angle):
    rng = np.random.default_rng(seed)
    axis, colours = random_axis(rng), rng.random((5, 4, 4, 3))
    oracle = Rotation.from_rotvec(angle * axis)
    expected = (oracle.apply((colours - PIVOT).reshape(-1, 3)) + PIVOT).reshape(colours.shape)
    np.testing.assert_allclose(rotate_colours(colours, axis, angle), expected, atol=1e-13)


@given(seed=st.integers(0, 2**31), angle=st.floats(0.01, 3.1))
def test_a_turn_of_colours_is_rigid_by_the_asked_angle_about_mid_grey(seed, angle):
    rng = np.random.default_rng(seed)
    axis, colours = random_axis(rng), rng.random((50, 3))
    turned = rotate_colours(colours, axis, angle)
    assert np.linalg.norm(axis) == pytest.approx(1)
    assert np.linalg.det(rotation_matrix(axis, angle)) == pytest.approx(1)
    np.testing.assert_allclose(rotate_colours(PIVOT[None], axis, angle)[0], PIVOT)
    np.testing.assert_allclose(
        np.linalg.norm(turned[:-1] - turned[1:], axis=1), np.linalg.norm(colours[:-1] - colours[1:], axis=1)
    )
    before, after = (v - PIVOT - np.outer((v - PIVOT) @ axis, axis) for v in (colours, turned))
    cosines = (before * after).sum(1) / np.linalg.norm(before, axis=1) / np.linalg.norm(after, axis=1)
    np.testing.assert_allclose(np.arccos(cosines), angle, atol=1e-6)


def test_rgb_rotation_is_by_three_tenths_of_pi_and_one_turn_for_all():
    """The matrix, found by least squares from colours that stay inside the cube, is one rotation by 0.3 pi."""
    levels = 4096
    images = random_images(20, levels=600, dtype=np.uint16) + np.uint16(1748)
    strange = rgb_rotation(images, levels, seed=5)
    before, after = (to_unit(v, levels).reshape(-1, 3).astype(np.float64) - 0.5 for v in (images, strange))
    matrix = np.linalg.lstsq(before, after, rcond=None)[0].T
    np.testing.assert_allclose(before @ matrix.T, after, atol=1 / levels)
    assert np.linalg.det(matrix) == pytest.approx(1, abs=1e-3)
    assert np.arccos((np.trace(matrix) - 1) / 2) == pytest.approx(0.3 * np.pi, abs=1e-3)


def test_axes_are_uniform():
    """Uniform on the sphere: mean 0, covariance I/3, and each coordinate uniform in [-1, 1] (Archimedes)."""
    axes = np.stack([random_axis(np.random.default_rng(seed)) for seed in range(4000)])
    np.testing.assert_allclose(axes.mean(0), 0, atol=0.04)
    np.testing.assert_allclose(axes.T @ axes / 4000, np.eye(3) / 3, atol=0.03)
    np.testing.assert_allclose(np.quantile(axes[:, 0], [0.1, 0.25, 0.75]), [-0.8, -0.5, 0.5], atol=0.05)


def test_colours_that_leave_the_cube_are_clipped_and_not_wrapped():
    corners = (
        np.array(np.meshgrid([0, 255], [0, 255], [0, 255]), np.uint8).reshape(3, 8).T.reshape(1, 4, 2, 3)
    )
    axis = random_axis(np.random.default_rng(3))
    expected = rotate_colours(corners / 255, axis, 0.3 * np.pi)
    assert expected.min() < 0
    assert expected.max() > 1
    error = rgb_rotation(corners, 256, 3) / 255 - expected.clip(0, 1)
    assert np.abs(error).max() < 0.51 / 255


def test_noise_has_the_asked_amplitude():
    unit = np.full((10, 32, 32, 3), 0.5, np.float32)
    added = add_noise(unit, 0.026, np.random.default_rng(0)) - 0.5
    assert 0.0259 < added.max() <= 0.026 + 1e-6
    assert -0.026 - 1e-6 <= added.min() < -0.0259
    assert added.std() == pytest.approx(0.015, rel=0.01)
    assert added.mean() == pytest.approx(0, abs=4 * 0.015 / np.sqrt(added.size))
    assert abs(np.corrcoef(added[..., 0].ravel(), added[..., 1].ravel())[0, 1]) < 0.05


def test_the_noise_set_is_the_papers():
    """In levels: ±6.63, so ±7 after rounding, of deviation 0.015 of the range; black only gets brighter."""
    strange = noise(np.full((10, 32, 32, 3), 128, np.uint8), 256, 0).astype(int) - 128
    assert (strange.min(), strange.max()) == (-7, 7)
    assert strange.std() / 255 == pytest.approx(0.015, rel=0.02)
    assert noise(np.zeros((1, 8, 8, 1), np.uint8), 256, 0).max() == 7


def test_noise_is_not_rounded_away_where_levels_are_coarse():
    """±0.026 is ±0.4 of 17 levels; one level either way moves half of the pixels."""
    strange = noise(np.full((10, 8, 8, 1), 8, np.uint8), 17, 0).astype(int) - 8
    assert set(np.unique(strange)) == {-1, 0, 1}
    assert (strange != 0).mean() == pytest.approx(0.5, abs=0.08)


def test_jpeg_is_pillows_at_quality_75():
    images = random_images(2, (16, 16, 3))
    for image, strange in zip(images, jpeg(images, 256, 0), strict=True):
        file = io.BytesIO()
        Image.fromarray(image).save(file, format="JPEG", quality=75)
        assert np.array_equal(strange, np.asarray(Image.open(file)))
        quantised = Image.open(file).quantization[0]
    assert quantised[0] == 8  # the standard's 16 for the mean, at quality 75


def test_jpeg_of_few_levels_goes_through_256():
    images = random_images(1, (8, 8, 1), levels=17)
    scaled = np.rint(images * (255 / 16)).astype(np.uint8)
    assert np.array_equal(jpeg(images, 17, 0), np.rint(jpeg(scaled, 256, 0) * (16 / 255)))


@pytest.mark.parametrize("levels", [17, 256])
def test_plain_maps(levels):
    images = random_images(3, levels=levels)
    assert np.array_equal(inverted(images, levels, 0).astype(int), levels - 1 - images.astype(int))
    assert np.array_equal(flipped(images, levels, 0)[1], np.flipud(images[1]))
    assert np.array_equal(rotation(images, levels, 0)[1], np.rot90(images[1]))


@pytest.mark.parametrize("levels", [2, 17, 256, 65536])
def test_levels_survive_the_way_to_unit_values_and_back(levels):
    images = np.arange(levels, dtype=np.uint16).reshape(1, 1, -1, 1)
    assert np.array_equal(from_unit(to_unit(images, levels), levels), images)
    assert to_unit(images, levels).max() == 1


# --- read from files ---------------------------------------------------------------------------------


def drawing(seed):
    """A white square of random place on 28 x 28 black."""
    canvas, (i, j) = np.zeros((28, 28, 1), np.uint8), np.random.default_rng(seed).integers(0, 20, 2)
    canvas[i : i + 8, j : j + 8] = 255
    return canvas


@pytest.fixture
def drawings(tmp_path):
    return write_parquet(tmp_path / "drawings.parquet", [encode(drawing(i)) for i in range(40)])


@pytest.fixture
def photos(tmp_path):
    images = random_images(10, (32, 32, 3))
    return write_parquet(tmp_path / "photos.parquet", [encode(image) for image in images], "image"), images


def test_quickdraw_is_coloured_padded_and_inverted(drawings):
    sets = quickdraw(drawings, (32, 32, 3), 256, seed=0)
    assert sets.shape == (40, 32, 32, 3)
    assert (sets[:, :2] == 255).all()  # the rim that pads 28 to 32 is white, as is the ground
    assert (sets[:, :, -2:] == 255).all()
    colours = []
    for image in sets:
        ink = (image != 255).any(2)
        assert ink.sum() == 64
        assert len(np.unique(image[ink], axis=0)) == 1
        colours.append(1 - image[ink][0] / 255)
    colours = np.array(colours)
    assert 0.299 < colours.min() < 0.35
    assert 0.95 < colours.max() <= 1
    assert len(np.unique(colours, axis=0)) == 40
    assert np.abs(np.corrcoef(colours.T) - np.eye(3)).max() < 0.6  # channels are drawn apart


def test_quickdraw_keeps_each_drawing_in_the_middle(drawings):
    masks = (quickdraw(drawings, (32, 32, 3), 256, seed=0) != 255).any(3)
    expected = np.stack([np.pad(drawing(i)[:, :, 0] > 0, 2) for i in range(40)])
    assert sorted(m.tobytes() for m in masks) == sorted(m.tobytes() for m in expected)
    assert not np.array_equal(masks, expected)  # the seed shuffles


def test_quickdraw_for_grey_inliers_is_grey(drawings):
    grey = quickdraw(drawings, (28, 28, 1), 256, seed=0)
    assert grey.shape == (40, 28, 28, 1)
    assert (grey.max((1, 2, 3)) == 255).all()
    assert (grey.min((1, 2, 3)) <= round(0.7 * 255)).all()


def test_quickdraw_for_small_inliers_is_made_smaller(tmp_path):
    path = write_parquet(tmp_path / "one.parquet", [encode(np.full((28, 28), 255, np.uint8))])
    assert len(np.unique(quickdraw(path, (8, 8, 1), 17, 0))) == 1  # ink all over, edges included
    shrunk = place_drawing(drawing(3), 8, 8)
    assert shrunk.shape == (8, 8, 1)
    assert shrunk.sum() == pytest.approx(64 * (8 / 28) ** 2, rel=0.1)  # antialiased: the ink stays
    wide = place_drawing(np.full((28, 28, 1), 255, np.uint8), 8, 12)
    assert wide[:, 2:10].min() == 1
    assert wide[:, :2].max() == wide[:, 10:].max() == 0


def test_imagenet_of_the_right_size_is_untouched_but_for_its_order(photos):
    path, images = photos
    found = imagenet(path, (32, 32, 3), 256, seed=0)
    assert sorted(i.tobytes() for i in found) == sorted(i.tobytes() for i in images)
    assert not np.array_equal(found, images)


def test_photos_of_all_sizes_and_modes_are_fitted(tmp_path):
    rng = np.random.default_rng(0)
    modes = [
        rng.integers(0, 256, s, dtype=np.uint8) for s in [(40, 60, 3), (20, 10), (32, 32, 4), (5, 5, 3)]
    ]
    encoded = [encode(image) for image in modes] + [encode(modes[0], "JPEG")]
    path = write_parquet(tmp_path / "mixed.parquet", encoded)
    assert imagenet(path, (32, 32, 3), 256, 0).shape == (5, 32, 32, 3)
    assert imagenet(path, (7, 12, 1), 17, 0).shape == (5, 7, 12, 1)
    assert imagenet(path, (7, 12, 1), 17, 0).max() <= 16


@pytest.mark.parametrize("name", OOD_FILES)
def test_files_are_read_in_an_order_fixed_by_the_seed(name, drawings):
    load = OOD_FILES[name]
    first, again, other = (load(drawings, (28, 28, 3), 256, seed) for seed in (1, 1, 2))
    assert first.dtype == np.uint8
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert np.array_equal(load(str(drawings), (28, 28, 3), 256, 1, n=7), first[:7])


def test_white_drawings_are_the_ink_and_the_others_its_inverse(drawings):
    white = OOD_FILES["quickdraw_white"](drawings, (32, 32, 3), 256, 0)
    coloured = quickdraw(drawings, (32, 32, 3), 256, 0)
    assert (white == white[..., :1]).all()
    assert ((white == 0) == (coloured == 255)).all()  # the same drawings on the other ground
    assert white.max() == 255
    assert (white[:, 0] == 0).all()  # padded


def test_a_folder_is_all_its_parquet_files(tmp_path):
    images = random_images(5, (8, 8, 3))
    write_parquet(tmp_path / "a.parquet", [encode(image) for image in images[:2]])
    write_parquet(tmp_path / "b.parquet", [encode(image) for image in images[2:]], "image")
    (tmp_path / "README.md").write_text("no Parquet")
    found = imagenet(tmp_path, (8, 8, 3), 256, 0)
    assert sorted(i.tobytes() for i in found) == sorted(i.tobytes() for i in images)


# --- any other set -----------------------------------------------------------------------------------


def test_what_fits_already_comes_back_as_it_is():
    for kind, images in KINDS.items():
        levels = LEVELS.get(kind, 256)
        assert np.array_equal(as_inlier_like(images, images.shape[1:], levels, levels), images)


def test_grey_and_colour_change_as_pillow_changes_them():
    colour = random_images()
    grey = as_inlier_like(colour, (8, 8, 1), 256)
    expected = np.stack([np.asarray(Image.fromarray(image).convert("L")) for image in colour])
    assert np.abs(grey[..., 0].astype(int) - expected).max() <= 1
    back = as_inlier_like(grey, (8, 8, 3), 256)
    assert np.array_equal(back, np.repeat(grey, 3, axis=3))


def test_sizes_change_as_pillow_changes_them():
    colour = random_images(3, (20, 33, 3))
    fitted = as_inlier_like(colour, (9, 9, 3), 256)
    for image, found in zip(colour, fitted, strict=True):
        expected = np.asarray(ImageOps.fit(Image.fromarray(image), (9, 9), Image.Resampling.LANCZOS))
        assert np.abs(found.astype(int) - expected).max() <= 2  # Pillow rounds twice: rows, then columns


def test_levels_change_in_proportion():
    images = np.array([0, 127, 128, 255], np.uint8).reshape(1, 2, 2, 1)
    assert as_inlier_like(images, (2, 2, 1), 17).ravel().tolist() == [0, 8, 8, 16]
    wide = as_inlier_like(images, (2, 2, 1), 65536)
    assert wide.dtype == np.uint16
    assert wide.ravel().tolist() == [0, 127 * 257, 128 * 257, 65535]
    assert as_inlier_like(wide, (2, 2, 1), 256, from_levels=65536).ravel().tolist() == [0, 127, 128, 255]


@given(*[st.integers(1, 40)] * 4)
def test_every_size_can_be_fitted_to_every_other(h, w, height, width):
    flat = np.full((1, h, w, 3), 200, np.uint8)
    assert np.array_equal(
        as_inlier_like(flat, (height, width, 3), 256), np.full((1, height, width, 3), 200)
    )


def test_the_middle_is_kept():
    """A wide image's outer thirds are cropped before it is resized."""
    image = np.zeros((10, 30, 1), np.float32)
    image[:, 10:20] = 1
    np.testing.assert_allclose(resize(image, 10, 10), 1)
    np.testing.assert_allclose(resize(image.swapaxes(0, 1), 5, 5), 1, atol=0.1)


# --- mistakes ----------------------------------------------------------------------------------------


def bomb():
    """A PNG that claims 60,000 x 60,000 pixels."""
    head = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")]
    packed = [
        struct.pack(">I", len(d)) + name + d + struct.pack(">I", zlib.crc32(name + d)) for name, d in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


grey, colour = random_images(shape=(8, 8, 1)), random_images()
MISTAKES = {
    "no colours": (lambda: rgb_rotation(grey, 256, 0), "grey; use rotation, noise or inverted"),
    "not square": (lambda: rotation(colour[:, :4], 256, 0), "square .* 4 x 8; use flipped"),
    "floats": (lambda: noise(colour / 255, 256, 0), "float64 .* uint8 or uint16"),
    "one image": (lambda: flipped(colour[0], 256, 0), r"shape \(8, 8, 3\)"),
    "channels first": (lambda: inverted(colour.transpose(0, 3, 1, 2), 256, 0), "1 or 3 channels"),
    "too few levels": (lambda: noise(np.full_like(colour, 255), 17, 0), "up to 255 .* levels=256 or more"),
    "one level": (lambda: noise(colour * 0, 1, 0), "levels is 1"),
    "more levels than the type": (lambda: inverted(colour, 4096, 0), "uint8 cannot hold"),
    "shape without channels": (lambda: as_inlier_like(colour, (8, 8), 256), r"shape is \(8, 8\)"),
}
good = encode(colour[0])
FILES = {
    "no file": (None, "no Parquet file at"),
    "no image": ([], "holds 0 images"),
    "broken": ([good[:60]], "row 0"),
    "not an image": ([b"hello"], "row 0"),
    "only a path": ([None], "row 0 .*it is empty"),
    "a decompression bomb": ([bomb()], "row 0"),
}


@pytest.mark.parametrize(("act", "sentence"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_get_one_clear_sentence(act, sentence):
    with pytest.raises(ValueError, match=sentence) as error:
        act()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("load", OOD_FILES.values(), ids=OOD_FILES)
@pytest.mark.parametrize(("encoded", "sentence"), FILES.values(), ids=FILES)
def test_bad_files_get_one_clear_sentence(load, encoded, sentence, tmp_path):
    if encoded is not None:
        write_parquet(tmp_path / "set.parquet", encoded)
    with pytest.raises(ValueError, match=sentence) as error:
        load(tmp_path / "set.parquet", (8, 8, 3), 256, 0)
    assert "\n" not in str(error.value)


def test_other_bad_files_get_one_clear_sentence(tmp_path):
    path = write_parquet(tmp_path / "set.parquet", [good] * 3)
    with pytest.raises(ValueError, match="3 images but n is 4"):
        imagenet(path, (8, 8, 3), 256, 0, n=4)
    with pytest.raises(ValueError, match="n is 0"):
        imagenet(path, (8, 8, 3), 256, 0, n=0)
    with pytest.raises(ValueError, match=r"shape is \(8, 8, 2\)"):
        quickdraw(path, (8, 8, 2), 256, 0)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"set\.parquet is not a whole Parquet file"):
        imagenet(path, (8, 8, 3), 256, 0)
    pq.write_table(pa.table({"img": [1, 2], "label": [0, 1]}), path)
    with pytest.raises(ValueError, match="no column img or image with encoded images"):
        imagenet(path, (8, 8, 3), 256, 0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"no Parquet file at .*empty"):
        imagenet(tmp_path / "empty", (8, 8, 3), 256, 0)


# --- the sheet that shows them -----------------------------------------------------------------------


def test_the_contact_sheet_shows_every_image_crisply(tmp_path):
    """The PNG's own pixels: each block holds its images, enlarged by a whole number, below its title."""
    sheets = {"inliers": colour, "noise": noise(colour, 256, 0), "grey": grey}
    figure = draw_contact_sheet(sheets, columns=4)
    assert [axis.get_title(loc="left") for axis in figure.axes] == list(sheets)
    save_figure(figure, tmp_path / "sheet")
    picture = np.asarray(Image.open(tmp_path / "sheet.png").convert("RGB"))
    zoom = 96 // 8
    for axis, images in zip(figure.axes, sheets.values(), strict=True):
        place = axis.get_position()
        left, top = round(place.x0 * picture.shape[1]), round((1 - place.y1) * picture.shape[0])
        for i, image in enumerate(images):
            y, x = top + i // 4 * (96 + 6) + 1, left + i % 4 * (96 + 6) + 1
            shown = picture[y : y + 96, x : x + 96].astype(int)
            enlarged = np.kron(np.broadcast_to(image, (8, 8, 3)), np.ones((zoom, zoom, 1)))
            assert np.abs(shown - enlarged).max() <= 1
    assert (picture[-24:] == 255).all()
    assert (picture[:, -24:] == 255).all()


def test_tiles_of_other_levels_are_scaled_to_them():
    digits = random_images(5, (8, 8, 1), levels=17)
    digits[:, 0, 0] = 16
    sheet = tile(digits, columns=3, levels=17)
    assert sheet.shape == (2 * 98 + 4, 3 * 98 + 8, 3)
    assert sheet[1, 1].tolist() == [1, 1, 1]
    assert sheet[40, 40, 0] == digits[0, 39 // 12, 39 // 12, 0] / 16
    assert (sheet[103:, 205:] == 1).all()  # no sixth image


@pytest.mark.parametrize(
    ("sheets", "sentence"),
    [({}, "sheets is empty"), ({"a": colour[0]}, r"\(8, 8, 3\)"), ({"a": colour[:0]}, "n > 0")],
)
def test_a_sheet_of_nothing_gets_one_clear_sentence(sheets, sentence):
    with pytest.raises(ValueError, match=sentence):
        draw_contact_sheet(sheets)
