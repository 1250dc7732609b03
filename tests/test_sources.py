"""Every source format, pixel-exact, from files that the tests write in that layout."""

import gzip
import json
import pickle
import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.files import colours, png, rng, write_folder, write_parquet, write_tar, written
from PIL import Image

from ibinn.data.arrays import from_arrays
from ibinn.data.dataset import DataError
from ibinn.data.known import find_known, load

pytestmark = pytest.mark.usefixtures("own_places")


def by_content(part):
    """Images and labels in an order that does not depend on the source's."""
    order = sorted(range(len(part)), key=lambda i: part.x[i].tobytes())
    return np.asarray(part.x)[order], part.y[order]


def same(part, images, y):
    order = sorted(range(len(y)), key=lambda i: images[i].tobytes())
    ours, labels = by_content(part)
    return np.array_equal(ours, images[order]) and np.array_equal(labels, np.asarray(y)[order])


def test_digits_are_always_there():
    digits = load("digits")
    assert (digits.train.x.shape, digits.levels, digits.test) == ((1797, 8, 8, 1), 17, None)
    assert digits.train.x.max() == 16
    assert digits.class_names == tuple("0123456789")


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


def write_cifar(path, name, images, y):
    """The official layout: rows of 3072, channel by channel, in pickles with bytes as keys."""
    rows = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    if name == "cifar10":
        members = {
            f"cifar-10-batches-py/data_batch_{i + 1}": {b"data": rows[i::5], b"labels": y[i::5]}
            for i in range(5)
        }
        members["cifar-10-batches-py/test_batch"] = {b"data": rows[:3], b"labels": y[:3]}
        members["cifar-10-batches-py/batches.meta"] = {b"label_names": [b"a", b"b"]}
    else:
        members = {"cifar-100-python/train": {b"data": rows, b"fine_labels": y, b"coarse_labels": y}}
        members["cifar-100-python/test"] = {b"data": rows[:3], b"fine_labels": y[:3]}
        members["cifar-100-python/meta"] = {b"fine_label_names": [b"a", b"b"]}
    write_tar(path, {member: pickle.dumps(content, protocol=2) for member, content in members.items()})


@pytest.mark.parametrize(
    ("name", "file"), [("cifar10", "cifar-10-python.tar.gz"), ("cifar100", "cifar-100-python.tar.gz")]
)
@pytest.mark.parametrize("below", [True, False], ids=["in its folder", "at the top"])
def test_official_cifar(tmp_path, name, file, below):
    images, y = colours(10, 32, 32), [0, 1] * 5
    write_cifar(tmp_path / "data" / (name if below else "") / file, name, images, y)
    data = load(name, data_dir=tmp_path / "data")
    assert same(data.train, images, y)
    assert np.array_equal(data.test.x, images[:3])
    assert data.class_names == ("a", "b")


def write_idx(path, array):
    content = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_official_idx(tmp_path, monkeypatch, name, suffix):
    images, y = rng.integers(256, size=(9, 28, 28), dtype=np.uint8), np.arange(9, dtype=np.uint8)
    for stem, n in (("train", 9), ("t10k", 4)):
        write_idx(tmp_path / name / f"{stem}-images-idx3-ubyte{suffix}", images[:n])
        write_idx(tmp_path / name / f"{stem}-labels-idx1-ubyte{suffix}", y[:n])
    monkeypatch.setenv("IBINN_DATA", str(tmp_path))
    data = load(name)
    assert np.array_equal(data.train.x[..., 0], images)
    assert np.array_equal(data.test.y, y[:4])
    assert len(data.class_names) == 10


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


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_tables(tmp_path, kind):
    columns = {
        "age": [30, 40, 50, 60],
        "colour": ["red", "blue", "red", "green"],
        "fit": [True, False, True, True],
        "size": [1.5, 2.5, 3.5, 4.5],
        "kind": ["yes", "no", "no", "yes"],
    }
    table = pa.table(columns)
    path = tmp_path / f"t.{kind}"
    pa.csv.write_csv(table, path) if kind == "csv" else pq.write_table(table, path)
    data = load(path, target="kind")
    assert data.feature_names == ("age", "colour=blue", "colour=green", "colour=red", "fit", "size")
    assert data.train.x[0].tolist() == [30, 0, 0, 1, 1, 1.5]
    assert data.class_names == ("no", "yes")
    assert data.train.y.tolist() == [1, 0, 0, 1]
    assert data.levels is None


def test_pandas_index_is_no_feature(tmp_path):
    """It comes in the order of the rows, which is often that of the classes."""
    table = pa.table({"a": [1.0, 2.0], "y": [0, 1], "__index_level_0__": [17, 25]})
    table = table.replace_schema_metadata({"pandas": json.dumps({"index_columns": ["__index_level_0__"]})})
    pq.write_table(table, tmp_path / "t.parquet")
    assert load(tmp_path / "t.parquet", target="y").feature_names == ("a",)


def test_a_column_of_numbers_with_an_odd_cell_is_noticed(tmp_path):
    with pytest.warns(UserWarning, match=r"column a is taken as categories because of cells like '\?'"):
        load(written(tmp_path, "t.csv", "a,y\n1,0\n2,1\n?,0\n4,1\n"), target="y")


def test_suffixes_may_be_upper_case_and_large_integers_are_read(tmp_path):
    data = load(written(tmp_path, "T.CSV", "a,y\n9007199254740993,0\n2,1\n"), target="y")
    assert data.train.x[:, 0].tolist() == [9007199254740992.0, 2.0]


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


def test_parquet_labels_without_names_are_numbered_by_what_is_there(tmp_path):
    write_parquet(tmp_path / "p.parquet", colours(4), [5, 50_000_000] * 2)
    data = load(tmp_path / "p.parquet")
    assert data.class_names == ("5", "50000000")
    assert data.train.y.tolist() == [0, 1, 0, 1]


def test_a_class_may_be_called_train(tmp_path):
    write_folder(tmp_path / "f", colours(4), [0, 1] * 2, names=("bus", "train"))
    assert load(tmp_path / "f").class_names == ("bus", "train")


def test_a_clone_with_its_shards_one_folder_down(tmp_path):
    write_parquet(tmp_path / "clone" / "data" / "train-0.parquet", colours(4), [0, 1] * 2)
    assert len(load(tmp_path / "clone").train) == 4


def test_grey_with_a_transparent_colour_stays_grey(tmp_path):
    (tmp_path / "f" / "a").mkdir(parents=True)
    (tmp_path / "f" / "b").mkdir()
    grey = Image.fromarray(np.array([[0, 50], [100, 200]], np.uint8))
    grey.save(tmp_path / "f" / "a" / "1.png", transparency=50)
    grey.save(tmp_path / "f" / "b" / "1.png")
    x = load(tmp_path / "f").train.x
    assert x.shape == (2, 2, 2, 1)
    assert x[0, ..., 0].tolist() == [[0, 255], [100, 200]]


def test_known_sets_are_searched_in_order(tmp_path, monkeypatch):
    for place in ("first", "second"):
        write_parquet(tmp_path / place / "mnist" / "train.parquet", colours(2), [0, 1], "image")
    monkeypatch.setenv("IBINN_DATA", str(tmp_path / "second"))
    assert find_known("mnist") == tmp_path / "second" / "mnist"
    assert find_known("mnist", tmp_path / "first") == tmp_path / "first" / "mnist"
    assert find_known("cifar10") is None
