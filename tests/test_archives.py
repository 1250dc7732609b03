"""The official archives of CIFAR and MNIST, from files that the tests write in their layout."""

import gzip
import pickle
import struct

import numpy as np
import pytest
from helpers.files import colours, rng, same, write_tar

from ibinn.data.known import load

pytestmark = pytest.mark.usefixtures("own_places")


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
