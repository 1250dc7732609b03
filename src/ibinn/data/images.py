"""Encoded images -> uint8 arrays: the decoder for folders and Parquet files, and its cache on disk."""

import contextlib
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
from PIL import Image, ImageOps
from platformdirs import user_cache_path

from ibinn._types import Array, Labels, Progress
from ibinn.data.dataset import DataError, Part

SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")  # none that runs other programs, as EPS does
DECODER_VERSION = 1  # increase it when the same file would give other pixels
MAX_PIXELS = 50_000_000  # larger images are taken for decompression bombs


def open_image(source: Path | bytes, name: str) -> Image.Image:
    """A Pillow image in mode L or RGB, turned upright by its Exif data; DataError if it cannot be read."""
    with image_header(source, name) as image:
        try:
            image.load()
            return plain_mode(ImageOps.exif_transpose(image))
        except Exception as error:  # decoders raise nearly anything on a broken file
            raise DataError(f"{name} cannot be read as an image ({error}); repair or remove it") from error


def image_header(source: Path | bytes, name: str) -> Image.Image:
    """An image whose pixels are not decoded yet; DataError if it has too many."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS)
    except Image.DecompressionBombError as error:
        raise DataError(f"{name} has more than {MAX_PIXELS:,} pixels; make it smaller") from error
    except PermissionError as error:
        raise DataError(f"no permission to read {name}; change its permissions or leave it out") from error
    except Exception as error:
        why = "it is empty" if source == b"" else "unknown format"
        raise DataError(f"{name} cannot be read as an image ({why}); repair or remove it") from error
    if image.width * image.height > MAX_PIXELS:
        image.close()
        raise DataError(
            f"{name} has {image.width} x {image.height} pixels, more than {MAX_PIXELS:,}; make it smaller"
        )
    return image


def plain_mode(image: Image.Image) -> Image.Image:
    """Grey stays grey, everything else becomes RGB; transparency becomes white, and 16 bits become 8."""
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
    """The image cropped at its centre to the aspect ratio of size = (width, height), then resized."""
    if image.size == size:
        return image
    scale = min(image.width / size[0], image.height / size[1])
    width, height = max(1, round(size[0] * scale)), max(1, round(size[1] * scale))
    left, top = (image.width - width) // 2, (image.height - height) // 2
    middle = image.crop((left, top, left + width, top + height))
    return middle.resize(size, Image.Resampling.LANCZOS)


# Names and encoded images; each call starts at the first.
Encoded = Callable[[], Iterator[tuple[str, Path | bytes]]]


class Decoded(NamedTuple):
    """Images decoded one at a time, (H, W, C) uint8 each, and the shape of the array that they form."""

    shape: tuple[int, int, int, int]
    rows: Iterator[Array]
    y: Labels


def decode_images(
    encoded: Encoded, y: Array, progress: Progress | None = None, like: tuple[int, ...] | None = None
) -> Decoded:
    """All images in one shape (H, W, C): `like`, or the most frequent size with the first image's channels."""
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
    """The most frequent height and width, and the first image's channels; a warning if sizes differ."""
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
            f"they are cropped at their centre and resized",
            stacklevel=2,
        )
    return height, width, n_channels


def upright_size(image: Image.Image) -> tuple[int, int]:
    """(width, height) after the rotation in the Exif data."""
    try:
        sideways = image.getexif().get(0x0112, 1) in (5, 6, 7, 8)
    except Exception:  # broken Exif data; open_image raises if it matters
        sideways = False
    return (image.height, image.width) if sideways else image.size


def fingerprint(entries: Iterable[tuple[Any, ...]]) -> str:
    """A short hash of names, sizes and modification times: the key of a cache entry."""
    digest = hashlib.sha256(f"decoder {DECODER_VERSION}".encode())
    for item in entries:
        digest.update(json.dumps(item).encode() + b"\n")
    return digest.hexdigest()[:24]


def file_stamp(path: Path) -> tuple[int, int]:
    """Size and time of the last change."""
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns


def cached(key: str, make: Callable[[], Decoded]) -> Part:
    """The cache entry `key`, with memory-mapped images; decoded row by row the first time.

    Sets larger than memory work. An entry gets its name when it is complete. An entry that cannot be read is
    made again.
    """
    folder = cache_folder()
    try:
        return read_entry(folder / key)
    except (OSError, ValueError, EOFError):
        shutil.rmtree(folder / key, ignore_errors=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder)
        with tempfile.TemporaryDirectory(prefix=".part.", dir=folder, ignore_cleanup_errors=True) as part:
            write_entry(Path(part), make())
            os.chmod(part, 0o755)  # others may share the cache
            publish(Path(part), folder / key)
        return read_entry(folder / key)
    except OSError as error:
        raise DataError(
            f"cannot write the cache {folder} ({error.strerror}); free some space or set IBINN_CACHE to another "
            f"folder"
        ) from error


def read_entry(entry: Path) -> Part:
    return Part(np.load(entry / "x.npy", mmap_mode="r"), np.load(entry / "y.npy"))


def remove_leftovers(folder: Path) -> None:
    """Remove the unfinished entries of killed processes after a day."""
    for part in folder.glob(".part.*"):
        if time.time() - part.stat().st_mtime > 86_400:
            shutil.rmtree(part, ignore_errors=True)


def publish(part: Path, entry: Path) -> None:
    """Give a finished entry its name, unless another process has done so with the same content."""
    try:
        os.rename(part, entry)
    except OSError:
        if not entry.is_dir():
            raise


def write_entry(folder: Path, decoded: Decoded) -> None:
    """Write x.npy and y.npy, without a memory map: a full disk is then an error and not a crash."""
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
    """$IBINN_CACHE, or decoded/ in the user's cache."""
    folder = os.environ.get("IBINN_CACHE")
    return Path(folder) if folder else user_folder() / "decoded"


def user_folder() -> Path:
    """The user's cache, ~/.cache/ibinn on Linux, or a folder for temporary files if there is no home."""
    with contextlib.suppress(RuntimeError):
        folder = user_cache_path("ibinn", appauthor=False)
        if folder.is_absolute():  # older versions return "~" unexpanded
            return folder
    return Path(tempfile.gettempdir()) / "ibinn"
