"""Out-of-distribution sets, in the shape and levels of the inliers, each determined by a seed.

Images are unsigned integers (N, H, W, C) with C = 1 or 3 and values 0 to levels - 1. The maps work on
unit values w / (levels - 1), 0 to 1, then round and clip. Two tables hold the sets:

    OOD_SETS[name](images, levels, seed)           made from the inliers
    OOD_FILES[name](path, shape, levels, seed, n)  read from Parquet in Hugging Face image form

and `ood_set` takes a name from either, or any data set by name or path.
"""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

from ibinn.data.augment import GREY
from ibinn.data.dataset import DataError
from ibinn.data.folders import image_files
from ibinn.data.images import open_image
from ibinn.data.known import KNOWN, load, search_folders
from ibinn.data.parquet import image_column, parquet_folder, parquet_rows, parquet_schema
from ibinn.data.tables import read_table, rows_by_name

Images = NDArray[Any]  # (N, H, W, C), uint8 or uint16
Unit = NDArray[np.floating[Any]]  # the same in [0, 1], until a map leaves that range
LevelsShape = tuple[int, int, int]  # height, width, channels

PIVOT, ANGLE = 0.5, 0.3 * np.pi
AMPLITUDE = 0.026  # a standard deviation of 0.026 / sqrt(3) = 0.015


def ood_set(
    name: str,
    images: Images,
    levels: int,
    seed: int = 0,
    data_dir: Path | None = None,
    n: int | None = None,
) -> Images:
    """An out-of-distribution set for inliers.

    Parameters
    ----------
    name : str
        A key of `OOD_SETS` or `OOD_FILES`, or any data set of images by name or path.
    images : array of shape (N, H, W, C)
        The inliers, uint8 or uint16.
    levels : int
        Number of values of a pixel.
    seed : int
        Determines the set.
    data_dir : Path, optional
        Where to look for files first.
    n : int, optional
        Maximum number of images: made from the first n inliers, or drawn by the seed.

    Returns
    -------
    array of shape (n, H, W, C)

    Examples
    --------
    >>> import numpy as np
    >>> from ibinn.ood.sets import ood_set
    >>> images = np.arange(16, dtype=np.uint8).reshape(1, 4, 4, 1)
    >>> ood_set("inverted", images, levels=16)[0, 0, :, 0].tolist()
    [15, 14, 13, 12]
    >>> ood_set("rotation", images, levels=16)[0, 0, :, 0].tolist()
    [3, 7, 11, 15]
    """
    if name in OOD_SETS:
        return OOD_SETS[name](images[:n], levels, seed)
    shape = (images.shape[1], images.shape[2], images.shape[3])
    if name in OOD_FILES:
        file = find_file(name, data_dir)
        if file is None:
            places = ", ".join(str(folder) for folder in search_folders(data_dir))
            raise DataError(
                f"there is no Parquet file for {name} in {places}; put one called {file_stem(name)}.parquet there "
                "(docs/data.md shows how to make it)"
            )
        total = sum(pq.ParquetFile(f).metadata.num_rows for f in parquet_files(file))
        return OOD_FILES[name](file, shape, levels, seed, None if n is None else min(n, total))
    return any_images(name, shape, levels, seed, data_dir, n)


def any_images(
    name: str, shape: LevelsShape, levels: int, seed: int, data_dir: Path | None, n: int | None
) -> Images:
    """n images, or all, of a known set, a folder of images or a file, labelled or not."""
    rng, path = np.random.default_rng(seed), Path(name)
    if name not in KNOWN and path.is_dir() and parquet_folder(path) is None:
        files = image_files(path)
        if not files:
            raise DataError(f"{path} holds no images; give a folder with images, in sub-folders or not")
        mode = "L" if shape[2] == 1 else "RGB"
        fitted = []
        for i in np.sort(rng.permutation(len(files))[:n]):
            pixels = np.asarray(open_image(files[i], str(files[i])).convert(mode))
            fitted.append(as_inlier_like(pixels.reshape(1, *pixels.shape[:2], -1), shape, levels))
        return np.concatenate(fitted)
    data = load(name, data_dir, labelled=False)
    if data.levels is None:
        raise DataError(f"{name} is a table but the inliers are images; choose a set of images")
    part = data.train if data.test is None else data.test
    rows = np.sort(rng.permutation(len(part))[:n])
    return as_inlier_like(part.x[rows], shape, levels, data.levels)


def ood_rows(
    name: str,
    rows: NDArray[Any],
    columns: tuple[str, ...] | None,
    seed: int = 0,
    data_dir: Path | None = None,
    target: str | None = None,
) -> NDArray[Any]:
    """An OoD set for a table's rows (N, D): "permuted", or a file with the same columns, with or without classes.

    Columns are matched by name; a category that the inliers do not have counts as none of theirs.
    """
    if name == "permuted":
        return permuted(rows, seed)
    path = Path(name)
    if columns is not None and path.suffix.lower() in (".csv", ".parquet") and path.is_file():
        return rows_by_name(read_table(path), columns, path)
    data = load(name, data_dir, target, labelled=False)
    part = data.train if data.test is None else data.test
    if data.levels is not None or part.x.shape[1] != rows.shape[1]:
        raise DataError(
            f"{name} is not a table with {rows.shape[1]} columns beside the classes; give such a table"
        )
    return part.x


def permuted(rows: NDArray[Any], seed: int) -> NDArray[Any]:
    """Each column permuted on its own: the same values, but independent of each other."""
    rng = np.random.default_rng(seed)
    return np.stack([rng.permutation(column) for column in rows.T], axis=1)


def usual_sets(name: str, shape: tuple[int, ...]) -> tuple[str, ...]:
    """The default sets for inliers of this name and shape: the paper's for colour, similar ones for grey."""
    if len(shape) == 1:
        return ("permuted",)
    if shape[2] == 3:
        return ("rgb_rotation", "quickdraw", "noise", "imagenet", "jpeg")
    if max(shape[:2]) <= 16:  # too small for the content of other sets
        return ("rotation", "noise", "inverted", "flipped")
    other = "fashion_mnist" if name == "mnist" else "mnist"
    return ("rotation", "noise", "inverted", other, "quickdraw")


def find_file(name: str, data_dir: Path | None) -> Path | None:
    """A Parquet file or folder with the set's `file_stem` in its name, in the data folders or their folder ood."""
    for root in search_folders(data_dir):
        for folder in (root, root / "ood"):
            for path in sorted(folder.glob(f"*{file_stem(name)}*")):
                if path.suffix == ".parquet" or any(path.glob("*.parquet")):
                    return path
    return None


def file_stem(name: str) -> str:
    """quickdraw for quickdraw_white: sets that are made from the same file."""
    return name.partition("_")[0]


def rgb_rotation(images: Images, levels: int, seed: int) -> Images:
    """All colours rotated by 0.3 pi about mid-grey, around one random axis, then clipped."""
    if images.shape[-1] != 3:
        raise DataError(
            "rgb_rotation needs colours but these images are grey; use rotation, noise or inverted instead"
        )
    axis = random_axis(np.random.default_rng(seed))
    return from_unit(rotate_colours(to_unit(images, levels), axis, ANGLE), levels, images.dtype)


def rotate_colours(unit: Unit, axis: NDArray[Any], angle: float) -> Unit:
    """v -> R (v - pivot) + pivot for colours v (..., 3), pivot (.5, .5, .5), a unit axis, radians; no clipping."""
    return (unit - PIVOT) @ rotation_matrix(axis, angle).T.astype(unit.dtype) + unit.dtype.type(PIVOT)


def rotation_matrix(axis: NDArray[Any], angle: float) -> NDArray[np.float64]:
    """Rodrigues: R = I + sin(angle) K + (1 - cos(angle)) K^2, where K v = axis x v for a unit vector `axis`."""
    x, y, z = axis
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    matrix: NDArray[np.float64] = np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross
    return matrix


def random_axis(rng: np.random.Generator) -> NDArray[np.float64]:
    """A unit vector (3,), uniform on the sphere."""
    vector = rng.normal(size=3)
    return vector / np.linalg.norm(vector)


def noise(images: Images, levels: int, seed: int) -> Images:
    """Uniform noise in ±0.026, then clipped; at least ±1 level, since rounding removes less than half a level."""
    unit, amplitude = to_unit(images, levels), max(AMPLITUDE, 1 / (levels - 1))
    return from_unit(add_noise(unit, amplitude, np.random.default_rng(seed)), levels, images.dtype)


def add_noise(unit: Unit, amplitude: float, rng: np.random.Generator) -> Unit:
    """unit + u, with u uniform in ±amplitude for each value; no clipping."""
    return unit + amplitude * (2 * rng.random(unit.shape, dtype=np.float32) - 1)


def jpeg(images: Images, levels: int, seed: int) -> Images:
    """The inliers after JPEG of quality 75: a control for sets stored as JPEG. `seed` is ignored."""
    coded = [through_jpeg(image) for image in from_unit(to_unit(images, levels), 256)]
    decoded = np.array(coded, np.uint8).reshape(images.shape)
    return from_unit(to_unit(decoded, 256), levels, images.dtype)


def through_jpeg(image: NDArray[Any], quality: int = 75) -> NDArray[Any]:
    """One image (H, W, C), uint8, coded and decoded by Pillow."""
    file = io.BytesIO()
    Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file)).reshape(image.shape)


def inverted(images: Images, levels: int, seed: int) -> Images:
    """w -> levels - 1 - w. `seed` is ignored."""
    check_images(images, levels)
    return np.asarray(images.dtype.type(levels - 1) - images)


def flipped(images: Images, levels: int, seed: int) -> Images:
    """Upside down: the rows in reverse. `seed` is ignored."""
    check_images(images, levels)
    return images[:, ::-1].copy()


def rotation(images: Images, levels: int, seed: int) -> Images:
    """A quarter turn, counter-clockwise. `seed` is ignored."""
    check_images(images, levels)
    height, width = images.shape[1:3]
    if height != width:
        raise DataError(
            f"rotation by 90° needs square images but these are {height} x {width}; use flipped instead"
        )
    return np.rot90(images, axes=(1, 2)).copy()


def quickdraw(path: Path | str, shape: LevelsShape, levels: int, seed: int, n: int | None = None) -> Images:
    """Drawings, stored white on black, each in a random colour of 0.3 to 1 per channel, padded, then inverted.

    The ink is then dark or coloured, and the background white. Drawings larger than `shape` are shrunk.
    """
    rng = np.random.default_rng(seed)
    ink = drawings(path, shape, levels, rng, n)
    colours = rng.uniform(0.3, 1, (len(ink), 1, 1, shape[2])).astype(np.float32)
    return from_unit(1 - ink * colours, levels)


def quickdraw_white(
    path: Path | str, shape: LevelsShape, levels: int, seed: int, n: int | None = None
) -> Images:
    """The same drawings, white on black, as they are stored."""
    ink = drawings(path, shape, levels, np.random.default_rng(seed), n)
    return from_unit(np.repeat(ink, shape[2], axis=3), levels)


def drawings(
    path: Path | str, shape: LevelsShape, levels: int, rng: np.random.Generator, n: int | None
) -> Unit:
    """The ink of drawings, (N, height, width, 1): 0 where there is none."""
    check_levels_shape(shape, levels)
    return np.stack([place_drawing(image, *shape[:2]) for image in read_images(path, "L", rng, n)])


def place_drawing(drawing: Images, height: int, width: int) -> Unit:
    """A drawing (h, w, 1), uint8, centred on black, (height, width, 1) in unit values; shrunk if necessary."""
    h, w = drawing.shape[:2]
    scale = min(1.0, height / h, width / w)
    ink = resize(to_unit(drawing[None], 256)[0], max(1, round(scale * h)), max(1, round(scale * w)))
    top, left = (height - ink.shape[0]) // 2, (width - ink.shape[1]) // 2
    canvas = np.zeros((height, width, 1), np.float32)
    canvas[top : top + ink.shape[0], left : left + ink.shape[1]] = ink.clip(0, 1)
    return canvas


def imagenet(path: Path | str, shape: LevelsShape, levels: int, seed: int, n: int | None = None) -> Images:
    """Photos, cropped to the centre and resized to `shape`."""
    check_levels_shape(shape, levels)
    photos = read_images(path, "L" if shape[2] == 1 else "RGB", np.random.default_rng(seed), n)
    return np.concatenate([as_inlier_like(photo[None], shape, levels) for photo in photos])


def as_inlier_like(images: Images, shape: LevelsShape, levels: int, from_levels: int = 256) -> Images:
    """Images (N, H, W, C) of from_levels values in the inliers' shape and levels.

    Colour becomes grey by its luma, grey becomes three equal channels. The largest central part with the right
    proportions is resized. Images that fit already are unchanged.
    """
    check_levels_shape(shape, levels)
    unit = with_channels(to_unit(images, from_levels), shape[2])
    if unit.shape[1:3] != shape[:2]:
        resized = [resize(image, shape[0], shape[1]) for image in unit]
        unit = np.array(resized, np.float32).reshape(len(unit), *shape)
    return from_unit(unit, levels)


def with_channels(unit: Unit, channels: int) -> Unit:
    """(..., C) -> (..., channels), both 1 or 3."""
    if unit.shape[-1] == channels:
        return unit
    return unit @ np.array(GREY, unit.dtype)[:, None] if channels == 1 else unit.repeat(3, axis=-1)


def resize(unit: Unit, height: int, width: int) -> Unit:
    """The largest central part of (H, W, C) with these proportions, in height x width pixels, antialiased.

    Lanczos' filter may overshoot [0, 1] slightly.
    """
    h, w = unit.shape[:2]
    if (h, w) == (height, width):
        return unit
    scale = min(h / height, w / width)
    top, left = max(0.0, (h - scale * height) / 2), max(0.0, (w - scale * width) / 2)
    box = (left, top, w - left, h - top)
    planes = [Image.fromarray(plane.astype(np.float32)) for plane in np.moveaxis(unit, 2, 0)]
    resized = [plane.resize((width, height), Image.Resampling.LANCZOS, box) for plane in planes]
    return np.stack([np.asarray(plane) for plane in resized], axis=2)


def to_unit(images: Images, levels: int) -> Unit:
    """Levels -> [0, 1], float32."""
    check_images(images, levels)
    return images.astype(np.float32) / np.float32(levels - 1)


def from_unit(unit: Unit, levels: int, dtype: Any = None) -> Images:
    """[0, 1] -> the nearest of `levels` values, clipped; by default uint8, or uint16 above 256 levels."""
    dtype = dtype if dtype is not None else np.uint8 if levels <= 256 else np.uint16
    return np.rint(unit * (levels - 1)).clip(0, levels - 1).astype(dtype)


def read_images(path: Path | str, mode: str, rng: np.random.Generator, n: int | None) -> list[Images]:
    """n images, or all, of a Parquet file or of all Parquet files in a folder, in an order given by rng.

    Each is uint8 (H, W, C), of Pillow's mode "L" or "RGB".
    """
    files = parquet_files(path)
    total = sum(pq.ParquetFile(file).metadata.num_rows for file in files)
    if not 1 <= (total if n is None else n) <= total:
        raise DataError(
            f"{path} holds {total} images but n is {n}; choose n from 1 to the number of images"
        )
    order = rng.permutation(total)[:n]
    wanted, images = set(order.tolist()), {}
    rows = (row for file in files for row in parquet_rows(file, image_name(file)))
    for number, row in enumerate(rows):
        if number in wanted:
            image = open_image((row or {}).get("bytes") or b"", f"row {number} of {path}").convert(mode)
            images[number] = np.asarray(image).reshape(image.height, image.width, -1)
    return [images[number] for number in order]


def parquet_files(path: Path | str) -> list[Path]:
    """The file itself, or a folder's *.parquet in order of name, each with a column of images."""
    path = Path(path)
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not files or not files[0].is_file():
        raise DataError(
            f"there is no Parquet file at {path}; give the path of one, or of a folder with Parquet files"
        )
    for file in files:
        image_name(file)
    return files


def image_name(file: Path) -> str:
    """The column of encoded images."""
    name = image_column(parquet_schema(file))
    if name is None:
        raise DataError(
            f"{file} has no column img or image with encoded images; save it in Hugging Face's image format"
        )
    return name


def check_images(images: Images, levels: int) -> None:
    """ValueError unless these are images with this number of levels."""
    if images.ndim != 4 or images.dtype not in (np.uint8, np.uint16):
        raise ValueError(
            f"images are {images.dtype} of shape {images.shape} but must be uint8 or uint16, (N, H, W, C)"
        )
    check_levels_shape(images.shape[1:], levels)
    most = int(images.max(initial=0))
    if most >= levels:
        raise ValueError(
            f"images have values up to {most} but levels is {levels}; pass levels={most + 1} or more"
        )
    if levels - 1 > np.iinfo(images.dtype).max:
        raise ValueError(
            f"levels is {levels} but {images.dtype} cannot hold them; convert images to uint16"
        )


def check_levels_shape(shape: tuple[int, ...], levels: int) -> None:
    """ValueError unless an image can have this shape, (H, W, C), and this number of levels."""
    if len(shape) != 3 or min(shape) < 1 or shape[2] not in (1, 3):
        raise ValueError(f"shape is {shape} but must be (height, width, channels), with 1 or 3 channels")
    if not 2 <= levels <= 65536:
        raise ValueError(f"levels is {levels} but must be 2 to 65536; 8-bit images have 256")


OOD_SETS: dict[str, Callable[[Images, int, int], Images]] = {
    "rgb_rotation": rgb_rotation,
    "noise": noise,
    "jpeg": jpeg,
    "inverted": inverted,
    "flipped": flipped,
    "rotation": rotation,
}


OOD_FILES: dict[str, Callable[..., Images]] = {
    "quickdraw": quickdraw,
    "quickdraw_white": quickdraw_white,
    "imagenet": imagenet,
}
