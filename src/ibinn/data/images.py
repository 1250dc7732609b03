"""Encoded images -> uint8 arrays: one decoder for folders and Parquet, and a cache on disk for both."""

import hashlib
import io
import json
import os
import shutil
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from ibinn._types import Array
from ibinn.data.dataset import DataError

SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
FORMATS = (
    "PNG",
    "JPEG",
    "WEBP",
    "BMP",
    "GIF",
    "TIFF",
    "PPM",
)  # and none that runs other programs, as EPS does
DECODER = 1  # to be raised whenever the same file would come out as other pixels
MAX_PIXELS = 50_000_000  # more in one image is taken for a decompression bomb

Progress = Callable[[int, int], None]  # (done, total)


def open_image(source: Path | bytes, name: str) -> Image.Image:
    """A Pillow image in mode L or RGB, upright as its camera meant it, or DataError naming it."""
    with image_header(source, name) as image:
        try:
            image.load()
            return plain_mode(ImageOps.exif_transpose(image))
        except Exception as error:  # decoders raise nearly anything on a broken file
            raise DataError(f"{name} cannot be read as an image ({error}); repair or remove it") from error


def image_header(source: Path | bytes, name: str) -> Image.Image:
    """An image whose pixels are not decoded yet: its size is known, and not absurd."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS)
    except Image.DecompressionBombError as error:
        raise DataError(f"{name} has more than {MAX_PIXELS:,} pixels; make it smaller") from error
    except PermissionError as error:
        raise DataError(f"no permission to read {name}; change its permissions or leave it out") from error
    except Exception as error:
        why = "it is empty" if source == b"" else "of no known format"
        raise DataError(f"{name} cannot be read as an image ({why}); repair or remove it") from error
    if image.width * image.height > MAX_PIXELS:
        image.close()
        raise DataError(
            f"{name} has {image.width} x {image.height} pixels, more than {MAX_PIXELS:,}; make it smaller"
        )
    return image


def plain_mode(image: Image.Image) -> Image.Image:
    """Grey stays grey, everything else becomes RGB; transparent pixels are laid on white, 16 bits become 8."""
    if image.mode.startswith("I;16") or image.mode == "I":
        values = np.asarray(image).clip(0, 65535)
        return Image.fromarray((values >> 8).astype(np.uint8))
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers of an unknown range; save 8 or 16 bits")
    if image.mode == "1":
        return image.convert("L")
    if image.mode in ("LA", "La", "RGBA", "RGBa", "PA") or "transparency" in image.info:
        grey = image.mode in ("L", "LA", "La")
        image = image.convert("RGBA")
        opaque = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
        return opaque.convert("L" if grey else "RGB")
    return image if image.mode in ("L", "RGB") else image.convert("RGB")


def to_size(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Cropped about its centre to the aspect of size = (width, height), then resized."""
    if image.size == size:
        return image
    scale = min(image.width / size[0], image.height / size[1])
    width, height = max(1, round(size[0] * scale)), max(1, round(size[1] * scale))
    left, top = (image.width - width) // 2, (image.height - height) // 2
    middle = image.crop((left, top, left + width, top + height))
    return middle.resize(size, Image.Resampling.LANCZOS)


Encoded = Callable[
    [], Iterator[tuple[str, Path | bytes]]
]  # names and encoded images, from the start at each call


class Decoded(NamedTuple):
    """Images to come, one by one, (H, W, C) uint8 each, and the shape of all of them together."""

    shape: tuple[int, int, int, int]
    rows: Iterator[Array]
    y: NDArray[np.int64]


def decode(
    encoded: Encoded, y: Array, progress: Progress | None = None, like: tuple[int, ...] | None = None
) -> Decoded:
    """All images in one shape (H, W, C): `like`, or the most common size and the first image's channels."""
    height, width, n_channels = like or common_shape(encoded, len(y), progress)

    def rows() -> Iterator[Array]:
        for done, (name, source) in enumerate(encoded(), start=1):
            image = open_image(source, name)
            if len(image.getbands()) != n_channels:
                raise DataError(
                    f"{name} has {len(image.getbands())} colour channel(s) but others have {n_channels}; "
                    f"convert all images to grey or all to colour"
                )
            yield np.asarray(to_size(image, (width, height))).reshape(height, width, n_channels)
            if progress is not None:
                progress(done, len(y))

    return Decoded((len(y), height, width, n_channels), rows(), np.asarray(y, dtype=np.int64))


def common_shape(encoded: Encoded, n: int, progress: Progress | None = None) -> tuple[int, int, int]:
    """The most frequent height and width, and the first image's channels; a notice where sizes differ."""
    sizes: Counter[tuple[int, int]] = Counter()
    n_channels = 0
    for done, (name, source) in enumerate(encoded(), start=1):
        n_channels = n_channels or len(open_image(source, name).getbands())
        with image_header(source, name) as image:
            sizes[upright_size(image)] += 1
        if progress is not None:
            progress(done, n)
    (width, height), count = max(sizes.items(), key=lambda item: (item[1], -item[0][0] * item[0][1]))
    if count < n:
        warnings.warn(
            f"{n - count} of {n} images are not {width} x {height}: "
            f"they are cropped about their centre and resized",
            stacklevel=2,
        )
    return height, width, n_channels


def upright_size(image: Image.Image) -> tuple[int, int]:
    """(width, height) after the turn that a camera may have asked for in its Exif data."""
    try:
        sideways = image.getexif().get(0x0112, 1) in (5, 6, 7, 8)
    except Exception:  # broken Exif data: open_image says so if it matters
        sideways = False
    return (image.height, image.width) if sideways else image.size


def fingerprint(entries: Iterable[tuple[Any, ...]]) -> str:
    """A short hash of names, sizes and times: another content has another one."""
    digest = hashlib.sha256(f"decoder {DECODER}".encode())
    for item in entries:
        digest.update(json.dumps(item).encode() + b"\n")
    return digest.hexdigest()[:24]


def cached(folder: Path, key: str, make: Callable[[], Decoded]) -> tuple[Array, NDArray[np.int64]]:
    """(images, labels) from folder/key, the images memory-mapped; made the first time, row by row.

    Sets larger than memory work. The entry appears under its name only when it is whole; one that cannot be
    read, for whatever reason, is made again.
    """
    try:
        return read_entry(folder / key)
    except (OSError, ValueError, EOFError):
        shutil.rmtree(folder / key, ignore_errors=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        sweep(folder)
        with tempfile.TemporaryDirectory(prefix=".part.", dir=folder, ignore_cleanup_errors=True) as part:
            write(Path(part), make())
            os.chmod(part, 0o755)  # others may share the cache
            publish(Path(part), folder / key)
        return read_entry(folder / key)
    except OSError as error:
        raise DataError(
            f"cannot write the cache {folder} ({error.strerror}); make room or name another with IBINN_CACHE"
        ) from error


def read_entry(entry: Path) -> tuple[Array, NDArray[np.int64]]:
    return np.load(entry / "x.npy", mmap_mode="r"), np.load(entry / "y.npy")


def sweep(folder: Path) -> None:
    """Remove what processes that were killed left behind more than a day ago."""
    for part in folder.glob(".part.*"):
        if time.time() - part.stat().st_mtime > 86_400:
            shutil.rmtree(part, ignore_errors=True)


def publish(part: Path, entry: Path) -> None:
    """Give a finished folder its name, unless another process did so first with the same content."""
    try:
        os.rename(part, entry)
    except OSError:
        if not entry.is_dir():
            raise


def write(folder: Path, decoded: Decoded) -> None:
    """x.npy and y.npy. Plain writes, not a memory map: a full disk is then an error and not a crash."""
    header = {"descr": "|u1", "fortran_order": False, "shape": decoded.shape}
    with open(folder / "x.npy", "wb") as file:
        np.lib.format.write_array_header_2_0(file, header)
        for row in decoded.rows:
            file.write(row.tobytes())
        file.flush()
        os.fsync(file.fileno())
    with open(folder / "y.npy", "wb") as file:
        np.save(file, decoded.y)
        file.flush()
        os.fsync(file.fileno())


def cache_folder() -> Path:
    """$IBINN_CACHE, or decoded/ below the user's cache."""
    named = os.environ.get("IBINN_CACHE")
    return Path(named) if named else user_folder() / "decoded"


def user_folder() -> Path:
    """~/.cache/ibinn, or a folder for temporary files where there is no home."""
    try:
        return Path.home() / ".cache" / "ibinn"
    except RuntimeError:
        return Path(tempfile.gettempdir()) / "ibinn"
