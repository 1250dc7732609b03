"""Inputs between the page and the model: base64 PNG files and rows on one side, arrays on the other."""

import base64
import io
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ibinn._types import Array
from ibinn.data.images import image_header, open_image
from ibinn.data.inputs import InputForm
from ibinn.explorer import schema

MAX_UPLOAD_PIXELS = 25_000_000  # of an upload
MAX_SCANS = 100  # of a JPEG: its decoder passes over the whole image for each


@dataclass(frozen=True)
class InputCodec:
    """Converts inputs of one model. Images are levels (H, W, C), rows (D,). ValueError where one does not fit."""

    form: InputForm

    def decode_row(self, row: list[float]) -> Array:
        if self.form.is_images:
            raise ValueError("this model takes images, not rows of a table; send an image")
        if len(row) != self.form.n_values:
            raise ValueError(
                f"the row has {len(row)} numbers but the model was trained on {self.form.n_values}"
            )
        return np.array(row, dtype=np.float64)

    def decode_png(self, text: str) -> Array:
        """An image that already has the size and the colours of the model."""
        height, width, n_channels = self.image_shape()
        try:
            content = base64.b64decode(text, validate=True)
        except ValueError as error:
            raise ValueError("png is not base64; send the image through /api/upload first") from error
        image = open_upload(content, "the image")
        if (image.width, image.height, len(image.getbands())) != (width, height, n_channels):
            raise ValueError(
                f"the image is {image.width} x {image.height} with {len(image.getbands())} channel(s) but the "
                f"model takes {width} x {height} with {n_channels}; send it through /api/upload first"
            )
        return self.form.from_image(image)

    def upload(self, content: bytes) -> schema.UploadReply:
        """Any image file in the size, the colours and the levels of the model."""
        height, width, n_channels = self.image_shape()
        image = open_upload(content, "the file")
        notes = []
        if len(image.getbands()) != n_channels:
            notes.append(f"converted to {'colour' if n_channels == 3 else 'grey'}")
        if image.size != (width, height):
            notes.append(f"cropped to the middle and resized to {width} × {height} pixels")
        return schema.UploadReply(png=as_base64(self.encode_png(self.form.from_image(image))), notes=notes)

    def image_shape(self) -> tuple[int, int, int]:
        if not self.form.is_images:
            raise ValueError("this model takes rows of a table, not images; send a row")
        height, width, n_channels = self.form.image_shape
        return height, width, n_channels

    def encode_png(self, raw: Array) -> bytes:
        levels = self.form.levels
        assert levels is not None
        return png_file(np.round(raw.astype(np.float64) * (255 / (levels - 1))).astype(np.uint8))


def open_upload(content: bytes, name: str) -> Image.Image:
    """The image in a file; ValueError where decoding it takes too much memory or time."""
    with image_header(content, name) as header:
        if header.width * header.height > MAX_UPLOAD_PIXELS:
            raise ValueError(f"{name} has more than {MAX_UPLOAD_PIXELS:,} pixels; make it smaller")
        if header.format in ("JPEG", "MPO") and content.count(b"\xff\xda") > MAX_SCANS:
            raise ValueError(f"{name} is coded in more than {MAX_SCANS} scans; save it again")
    return open_image(content, name)


def png_file(pixels: NDArray[np.uint8]) -> bytes:
    """Of (H, W, C) with C = 1, 3 or 4."""
    file = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(file, "PNG")
    return file.getvalue()


def as_base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
