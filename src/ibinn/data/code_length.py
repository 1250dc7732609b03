"""How long is a lossless code of an image: a measure of how complex it is, whatever the model thinks."""

import io
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def code_lengths(images: NDArray[Any]) -> NDArray[np.float64]:
    """Length in nats, (N,), of each image's PNG file; images (N, H, W, C) are uint8 or uint16 with C = 1 or 3."""
    planes = [images] if images.dtype == np.uint8 else [images >> 8, images & 255]
    n_bytes = [sum(png_bytes(plane[i].astype(np.uint8)) for plane in planes) for i in range(len(images))]
    return 8 * math.log(2) * np.array(n_bytes, dtype=np.float64)


def png_bytes(image: NDArray[Any]) -> int:
    """Of one image (H, W, C), uint8."""
    file = io.BytesIO()
    Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image).save(file, "PNG", compress_level=9)
    return file.tell()
