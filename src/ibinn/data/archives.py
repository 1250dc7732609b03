"""Read the official archives, CIFAR's python tar and MNIST's idx files, without executing anything in them."""

import gzip
import io
import pickle
import tarfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from ibinn._types import Array
from ibinn.data.dataset import DataError, Dataset, Part

# What CIFAR's pickles need to rebuild an array, under NumPy's old and new names. Everything else is refused.
ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}


class RestrictedUnpickler(pickle.Unpickler):
    """Unpickles arrays, strings, lists and dictionaries, and refuses everything else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise DataError(f"it uses {module}.{name}, which a data set does not need")
        return super().find_class(module, name)


class CifarLayout(NamedTuple):
    """The members of a CIFAR archive, and the keys in them."""

    train: list[str]
    test: str
    meta: str
    labels: bytes
    names: bytes


CIFAR_LAYOUTS = {
    "cifar10": CifarLayout(
        [f"data_batch_{i}" for i in range(1, 6)], "test_batch", "batches.meta", b"labels", b"label_names"
    ),
    "cifar100": CifarLayout(["train"], "test", "meta", b"fine_labels", b"fine_label_names"),
}


def load_cifar(name: str, path: Path) -> Dataset:
    """cifar10 or cifar100 from the official python tar.gz."""
    layout = CIFAR_LAYOUTS[name]
    batches = read_tar(path, {*layout.train, layout.test, layout.meta})
    names = entry(batches[layout.meta], layout.names, path)
    class_names = tuple(n.decode() if isinstance(n, bytes) else str(n) for n in names)

    def part(members: list[str]) -> Part:
        images = [cifar_images(batches[m], path) for m in members]
        labels = [np.asarray(entry(batches[m], layout.labels, path), dtype=np.int64) for m in members]
        return Part(np.concatenate(images), np.concatenate(labels))

    return Dataset(name, part(layout.train), part([layout.test]), class_names, levels=256)


def read_tar(path: Path, wanted: set[str]) -> dict[str, dict[Any, Any]]:
    """The wanted members by file name, unpickled safely."""
    found: dict[str, dict[Any, Any]] = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                check_member(member.name, path)
                name = PurePosixPath(member.name).name
                if member.isfile() and name in wanted:
                    content = archive.extractfile(member)
                    assert content is not None
                    found[name] = unpickle(content.read(), f"{name} in {path}")
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(
            f"{path} is not a whole tar archive ({type(error).__name__}); fetch it again"
        ) from error
    if missing := wanted - set(found):
        raise DataError(f"{path} lacks {', '.join(sorted(missing))}; fetch the official archive again")
    return found


def check_member(name: str, path: Path) -> None:
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        raise DataError(
            f"{path} holds {name!r}, which points outside of it, so it is not the official archive; fetch that one"
        )


def unpickle(content: bytes, where: str) -> dict[Any, Any]:
    try:
        value = RestrictedUnpickler(io.BytesIO(content), encoding="bytes").load()
    except DataError as error:
        raise DataError(f"{where} is refused: {error}; fetch the official archive") from error
    except Exception as error:  # a broken pickle can raise nearly anything
        raise DataError(f"{where} cannot be read ({type(error).__name__}); fetch it again") from error
    if not isinstance(value, dict):
        raise DataError(f"{where} holds a {type(value).__name__} instead of a dictionary; fetch it again")
    return value


def entry(batch: dict[Any, Any], key: bytes, path: Path) -> Any:
    """batch[key], whether its keys are bytes, as in the official pickles, or strings."""
    for candidate in (key, key.decode()):
        if candidate in batch:
            return batch[candidate]
    raise DataError(f"{path} lacks an entry {key.decode()!r}; fetch the official archive again")


def cifar_images(batch: dict[Any, Any], path: Path) -> Array:
    """(N, 3072) rows, channel by channel -> (N, 32, 32, 3)."""
    rows = np.asarray(entry(batch, b"data", path))
    if rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != 3072:
        raise DataError(f"{path} holds images of {rows.dtype} {rows.shape} instead of uint8 (N, 3072)")
    return rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def load_idx(name: str, folder: Path, class_names: tuple[str, ...]) -> Dataset:
    """mnist or fashion_mnist from the four idx files, gzipped or not."""
    parts = []
    for stem in ("train", "t10k"):
        images = read_idx(idx_file(folder, f"{stem}-images-idx3-ubyte"), ndim=3)
        labels = read_idx(idx_file(folder, f"{stem}-labels-idx1-ubyte"), ndim=1)
        parts.append(Part(images[..., None], labels.astype(np.int64)))
    return Dataset(name, parts[0], parts[1], class_names, levels=256)


def idx_file(folder: Path, stem: str) -> Path:
    for name in (stem, f"{stem}.gz", stem.replace("-idx", ".idx"), stem.replace("-idx", ".idx") + ".gz"):
        if (folder / name).is_file():
            return folder / name
    raise DataError(f"{folder} lacks {stem} (or {stem}.gz); the four idx files belong together")


def read_idx(path: Path, ndim: int) -> Array:
    """An idx file of unsigned bytes: 0 0 8 ndim, the sizes as big-endian integers, the values."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not a whole gzip file ({error}); fetch it again") from error
    header = 4 + 4 * ndim
    if len(content) < header or content[:4] != bytes([0, 0, 8, ndim]):
        raise DataError(f"{path} is not an idx file of {ndim}-dimensional bytes; fetch it again")
    shape = tuple(int(n) for n in np.frombuffer(content, ">u4", ndim, offset=4))
    if len(content) - header != np.prod(shape, dtype=np.int64):
        raise DataError(
            f"{path} should hold {shape} values but has {len(content) - header} bytes; fetch it again"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)
