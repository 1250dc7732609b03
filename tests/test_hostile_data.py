"""Every way to get data wrong: one clear sentence, exit code 2, nothing executed."""

import gzip
import io
import os
import pickle
import struct
import zipfile
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.files import colours, png, rng, write_folder, write_parquet, write_tar, written
from PIL import Image

from ibinn.cli import main
from ibinn.data.dataset import DataError
from ibinn.data.known import load

pytestmark = pytest.mark.usefixtures("own_places")


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
    content[29:33] = struct.pack(">I", zlib.crc32(bytes(content[12:29])))
    return bytes(content)


def saved(tmp_path, **arrays):
    np.savez(tmp_path / "a.npz", **arrays)
    return tmp_path / "a.npz"


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

    def refuse(path, **how):
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
