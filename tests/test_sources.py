"""Every source format, from files that the tests write in that layout; and every way to get one wrong."""

import gzip
import io
import json
import os
import pickle
import struct
import subprocess
import sys
import tarfile
import time
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from ibinn.cli import main
from ibinn.data import images as image_module
from ibinn.data.arrays import from_arrays
from ibinn.data.dataset import DataError
from ibinn.data.sources import find_known, load

rng = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("IBINN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("IBINN_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def colours(n, height=6, width=5):
    return rng.integers(256, size=(n, height, width, 3), dtype=np.uint8)


def png(array):
    file = io.BytesIO()
    Image.fromarray(array.squeeze()).save(file, format="PNG")
    return file.getvalue()


def write_folder(root, images, y, names=("cat", "dog")):
    for i, (image, label) in enumerate(zip(images, y, strict=True)):
        folder = root / names[label]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{i:04}.png").write_bytes(png(image))


def write_parquet(path, images, y, image="img", label="label", names=None):
    rows = [{"bytes": png(i), "path": f"{n}.png"} for n, i in enumerate(images)]
    table = pa.table({image: rows, label: pa.array(y, pa.int64())})
    if names:
        features = {"info": {"features": {label: {"names": list(names), "_type": "ClassLabel"}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(features)})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


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


@pytest.mark.parametrize("suffix", ["jpg", "webp", "bmp"])
def test_folder_formats(tmp_path, suffix):
    for label in "ab":
        (tmp_path / "f" / label).mkdir(parents=True)
        Image.new("RGB", (5, 4), (200, 30, 90)).save(tmp_path / "f" / label / f"1.{suffix}")
    x = np.asarray(load(tmp_path / "f").train.x).astype(int)
    assert x.shape == (2, 4, 5, 3)
    assert np.abs(x - [200, 30, 90]).max() < 12


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


def write_tar(path, members):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


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


# The cache


def test_a_decoded_folder_is_read_from_the_cache_and_made_again_when_it_changes(tmp_path):
    write_folder(tmp_path / "f", colours(6), [0, 1] * 3)
    calls = []
    load(tmp_path / "f", progress=lambda done, total: calls.append(done))
    assert calls == [1, 2, 3, 4, 5, 6] * 2  # sizes, then pixels
    again = load(tmp_path / "f", progress=lambda done, total: calls.append(done))
    assert len(calls) == 12
    assert isinstance(again.train.x, np.memmap)
    time.sleep(0.01)
    (tmp_path / "f" / "cat" / "new.png").write_bytes(png(colours(1)[0]))
    assert len(load(tmp_path / "f").train) == 7


def test_a_full_disk_leaves_no_half_written_cache(tmp_path, monkeypatch):
    write_folder(tmp_path / "f", colours(6), [0, 1] * 3)
    real = os.fsync

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(image_module.os, "fsync", full)
    with pytest.raises(DataError, match="No space left"):
        load(tmp_path / "f")
    assert list((tmp_path / "cache").iterdir()) == []
    monkeypatch.setattr(image_module.os, "fsync", real)
    assert len(load(tmp_path / "f").train) == 6


def test_a_damaged_entry_is_made_again(tmp_path):
    write_folder(tmp_path / "f", colours(4), [0, 1] * 2)
    before = np.array(load(tmp_path / "f").train.x)
    (entry,) = (tmp_path / "cache").iterdir()
    (entry / "y.npy").write_bytes(b"")
    assert np.array_equal(load(tmp_path / "f").train.x, before)


def test_leftovers_of_killed_processes_are_swept_after_a_day(tmp_path):
    for name, age in (("old", 90_000), ("new", 10)):
        (tmp_path / "cache" / f".part.{name}").mkdir(parents=True)
        os.utime(tmp_path / "cache" / f".part.{name}", (time.time() - age,) * 2)
    write_folder(tmp_path / "f", colours(4), [0, 1] * 2)
    load(tmp_path / "f")
    assert {p.name for p in (tmp_path / "cache").glob(".part.*")} == {".part.new"}


def test_an_empty_cache_variable_is_none_and_there_may_be_no_home(monkeypatch):
    monkeypatch.setenv("IBINN_CACHE", "")
    assert image_module.cache_folder().parts[-3:] == (".cache", "ibinn", "decoded")

    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(image_module.Path, "home", homeless)
    assert image_module.cache_folder().is_absolute()


def test_a_broken_image_leaves_no_half_written_cache(tmp_path):
    write_folder(tmp_path / "f", colours(6), [0, 1] * 3)
    (tmp_path / "f" / "dog" / "0001.png").write_bytes(png(colours(1)[0])[:60])
    with pytest.raises(DataError, match=r"0001\.png cannot be read as an image"):
        load(tmp_path / "f")
    assert not (tmp_path / "cache").exists() or list((tmp_path / "cache").iterdir()) == []


# Hostile input


class Evil:
    """Unpickled without care, this would make a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.system, (f"touch {self.path}",))


def malicious_pickle(tmp_path):
    write_tar(
        tmp_path / "data" / "cifar-10-python.tar.gz",
        {"cifar-10-batches-py/test_batch": pickle.dumps(Evil(tmp_path / "pwned"))},
    )


def test_a_malicious_pickle_is_not_executed(tmp_path):
    malicious_pickle(tmp_path)
    with pytest.raises(DataError, match="refused"):
        load("cifar10", data_dir=tmp_path / "data")
    assert not (tmp_path / "pwned").exists()


def test_an_npz_with_a_pickle_is_not_executed(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.array([Evil(tmp_path / "pwned")], dtype=object), y=np.zeros(1))
    with pytest.raises(DataError, match="plain arrays"):
        load(tmp_path / "a.npz")
    assert not (tmp_path / "pwned").exists()


def folder_with(tmp_path, name, content):
    write_folder(tmp_path / "f", colours(4), [0, 1] * 2)
    (tmp_path / "f" / "dog" / name).write_bytes(content)
    return tmp_path / "f"


def bomb(side):
    """A PNG header that claims side x side pixels."""
    content = bytearray(png(colours(1)[0]))
    content[16:24] = struct.pack(">II", side, side)
    import zlib

    content[29:33] = struct.pack(">I", zlib.crc32(bytes(content[12:29])))
    return bytes(content)


def saved(tmp_path, **arrays):
    np.savez(tmp_path / "a.npz", **arrays)
    return tmp_path / "a.npz"


def written(tmp_path, name, content):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content) if isinstance(content, bytes) else path.write_text(content)
    return path


def truncated_parquet(tmp_path):
    write_parquet(tmp_path / "p.parquet", colours(40), [0, 1] * 20)
    content = (tmp_path / "p.parquet").read_bytes()
    return written(tmp_path, "p.parquet", content[: len(content) // 2])


def damaged_npz(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", x=x, y=y)
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[60:90] = b"\xff" * 30
    return written(tmp_path, "a.npz", bytes(content))


def npy():
    file = io.BytesIO()
    np.save(file, x)
    return file.getvalue()


def damaged_gzip():
    content = bytearray(gzip.compress(rng.bytes(5000)))
    content[100:160] = b"\xff" * 60
    return bytes(content)


def identifiers(tmp_path):
    rows = "".join(f"u{i},{i % 2}\n" for i in range(1200))
    return written(tmp_path, "t.csv", f"id,y\n{rows}")


def only_one_class(tmp_path):
    write_folder(tmp_path / "f", colours(4), [0] * 4)
    return tmp_path / "f"


def empty_folder(tmp_path):
    (tmp_path / "empty").mkdir()
    return tmp_path / "empty"


def string_labels(tmp_path):
    table = pa.table({"img": [{"bytes": png(colours(1)[0]), "path": "a"}], "label": ["cat"]})
    pq.write_table(table, tmp_path / "s.parquet")
    return tmp_path / "s.parquet"


x, y = rng.normal(size=(6, 3)), np.array([0, 1] * 3)
HOSTILE = {  # what: (make it, what the sentence must name)
    "nothing there": (lambda t: t / "nowhere", "no file, folder or known set"),
    "misspelt": (lambda t: "cifar_10", "did you mean cifar10"),
    "not downloaded": (lambda t: "cifar10", "ibinn data fetch cifar10"),
    "empty folder": (empty_folder, "each class into a folder"),
    "one class only": (only_one_class, "1 class only"),
    "not an image": (lambda t: folder_with(t, "bad.png", b"hello"), "bad.png"),
    "decompression bomb": (
        lambda t: folder_with(t, "bomb.png", bomb(60_000)),
        r"bomb\.png has more than 50,000,000",
    ),
    "smaller bomb": (
        lambda t: folder_with(t, "bomb.png", bomb(9_000)),
        r"bomb\.png has 9000 x 9000 pixels",
    ),
    "channels differ": (
        lambda t: folder_with(t, "grey.png", png(colours(1)[0][..., 0])),
        "grey.png has 1 colour",
    ),
    "labels are fractions": (lambda t: saved(t, x=x, y=y + 0.5), "one integer or name"),
    "labels in two dimensions": (lambda t: saved(t, x=x, y=np.eye(6)[:, :2]), r"\(6, 2\)"),
    "NaN rows": (
        lambda t: saved(t, x=np.where(x > x.max() - 1e-9, np.nan, x), y=y),
        "NaN or infinite values in 1 of 6",
    ),
    "lengths differ": (lambda t: saved(t, x=x, y=y[:4]), "6 inputs but 4 labels"),
    "no y": (lambda t: saved(t, x=x), "x and y"),
    "test without labels": (lambda t: saved(t, x=x, y=y, x_test=x), "both or neither"),
    "unknown test class": (lambda t: saved(t, x=x, y=y, x_test=x, y_test=y + 1), "y lacks: 2"),
    "other test shape": (lambda t: saved(t, x=x, y=y, x_test=x[:, :2], y_test=y), r"shape \(2,\)"),
    "strange pixel range": (lambda t: saved(t, x=np.full((6, 4, 4), -300, np.int16), y=y), "0–255"),
    "not an npz": (lambda t: written(t, "a.npz", b"hello"), "plain arrays"),
    "truncated npz": (lambda t: written(t, "a.npz", saved(t, x=x, y=y).read_bytes()[:200]), "plain arrays"),
    "damaged npz": (damaged_npz, "plain arrays"),
    "an npy called npz": (lambda t: written(t, "a.npz", npy()), "plain arrays"),
    "missing texts": (lambda t: written(t, "t.csv", "a,y\nred,0\n,1\n"), "missing values in a"),
    "missing classes": (lambda t: written(t, "t.csv", "a,y\n1,red\n2,\n"), "missing values in y"),
    "two columns of one name": (lambda t: written(t, "t.csv", "a,a,y\n1,2,0\n2,3,1\n"), "same name"),
    "no rows": (lambda t: written(t, "t.csv", "a,y\n"), "no rows"),
    "not UTF-8": (lambda t: written(t, "t.csv", "ä,y\n1,0\n2,1\n".encode("latin-1")), "UTF-8"),
    "an identifier": (identifiers, "id has 1200 different texts"),
    "damaged gzip": (
        lambda t: (
            written(t, "home/.cache/ibinn/mnist/train-images-idx3-ubyte.gz", damaged_gzip()),
            "mnist",
        )[1],
        "not a whole gzip",
    ),
    "truncated Parquet": (truncated_parquet, "not a whole Parquet"),
    "Parquet labels are strings": (string_labels, "labels must be integers"),
    "unknown kind of file": (lambda t: written(t, "a.docx", "hello"), "no known kind"),
    "missing values": (lambda t: written(t, "t.csv", "a,b,y\n1,,0\n2,5,1\n"), "missing values in b"),
    "no target": (lambda t: written(t, "t.csv", "a,b,z\n1,2,0\n2,5,1\n"), "no column 'y'"),
    "infinite values": (lambda t: written(t, "t.csv", "a,y\ninf,0\n2.5,1\n"), "infinite values in a"),
    "fractions as target": (lambda t: written(t, "t.csv", "a,y\n1,0.5\n2,1\n"), "fractions"),
    "ragged csv": (lambda t: written(t, "t.csv", "a,y\n1,0,3\n2\n"), "cannot be read as a table"),
    "path traversal": (
        lambda t: (
            write_tar(t / "home" / ".cache" / "ibinn" / "cifar-10-python.tar.gz", {"../evil": b"x"}),
            "cifar10",
        )[1],
        "points outside",
    ),
    "truncated tar": (
        lambda t: (
            written(t, "home/.cache/ibinn/cifar-10-python.tar.gz", gzip.compress(b"x" * 9999)[:40]),
            "cifar10",
        )[1],
        "not a whole tar",
    ),
    "tar lacks members": (
        lambda t: (
            write_tar(t / "home" / ".cache" / "ibinn" / "cifar-10-python.tar.gz", {"a/b": b"x"}),
            "cifar10",
        )[1],
        "lacks batches.meta",
    ),
    "truncated idx": (
        lambda t: (
            written(t, "home/.cache/ibinn/mnist/train-images-idx3-ubyte", b"\0\0\x08\x03" + b"\0" * 20),
            "mnist",
        )[1],
        "idx",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_input_is_one_clear_sentence_and_exit_code_2(tmp_path, case, capsys):
    make, pattern = HOSTILE[case]
    data = make(tmp_path)
    with pytest.raises(DataError, match=pattern) as caught:
        load(data, target="y")
    assert "\n" not in str(caught.value)
    with pytest.raises(SystemExit) as exited:
        main(["data", "show", str(data), "--target", "y"])
    assert exited.value.code == 2
    assert capsys.readouterr().err == f"ibinn: {caught.value}\n"


def test_no_permission(tmp_path, monkeypatch):
    """Pillow is made to fail, for root may read everything."""
    write_folder(tmp_path / "f", colours(4), [0, 1] * 2)

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Image, "open", refuse)
    with pytest.raises(DataError, match=r"no permission to read .*0000\.png"):
        load(tmp_path / "f")


def test_a_zip_in_disguise_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", b"nonsense")
        archive.writestr("y.npy", b"nonsense")
    with pytest.raises(DataError, match="plain arrays"):
        load(tmp_path / "a.npz")


MEMORY = """
import sys, threading, time
import numpy as np
from ibinn.data.batches import Batches
from ibinn.data.preprocess import ImagePreprocess
from ibinn.data.splits import groups_of_duplicates

def private():
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) / 1024

def watch():
    global peak
    while True:
        peak = max(peak, private())
        time.sleep(0.002)

images = np.load(sys.argv[1], mmap_mode="r")
preprocess = ImagePreprocess.fit(images[:300], 256)
before = peak = private()
threading.Thread(target=watch, daemon=True).start()
for epoch in range(1):
    ImagePreprocess.fit(images, 256)
    groups_of_duplicates(images)
    for rows in Batches(np.arange(len(images)), 128).epoch(epoch):
        preprocess(preprocess.add_noise(preprocess.to_units(images[np.sort(rows)])))
print(peak - before)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads Linux's accounts of memory")
def test_memory_over_a_memory_mapped_set_does_not_grow_with_it(tmp_path):
    """Private memory: the pages of the file itself belong to the system, which takes them back at need."""
    peaks = []
    for n in (10_000, 40_000):  # 31 MB and 123 MB
        shape = (n, 32, 32, 3)
        array = np.lib.format.open_memmap(tmp_path / f"{n}.npy", mode="w+", dtype=np.uint8, shape=shape)
        array[::7] = 200
        array.flush()
        command = [sys.executable, "-c", MEMORY, str(tmp_path / f"{n}.npy")]
        peaks.append(float(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    assert peaks[1] < peaks[0] + 30
