"""Random changes to batches of training images: flips, colour jitter, small rotations, crops."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from ibinn.data.batches import Shard, Source, draw

GREY = (0.299, 0.587, 0.114)  # ITU-R 601, the luma that Pillow uses


@dataclass(frozen=True)
class Augmentation:
    """The random changes to training images. By default there are none.

    Attributes
    ----------
    flip : bool
        Mirror half of the images.
    crop : int
        Shift the image by up to this many pixels in each direction; edge pixels are repeated outside.
    rotation : float
        Rotate about the centre by up to this many degrees in each direction.
    jitter : tuple of float
        Multiply brightness, contrast and saturation by a factor from 1 - a to 1 + a each.
    cutout : int
        Cover a square of this many pixels a side with the mean colour of the image. Its centre is anywhere in the
        image, so part of the square may lie outside.
    """

    flip: bool = False
    crop: int = 0
    rotation: float = 0.0
    jitter: tuple[float, float, float] = (0.0, 0.0, 0.0)
    cutout: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.crop, int) or self.crop < 0:
            raise ValueError(f"crop is {self.crop} but must be a whole number of pixels, 0 or more")
        if not 0 <= self.rotation <= 180:
            raise ValueError(f"rotation is {self.rotation} but must be 0 to 180 degrees")
        if len(self.jitter) != 3 or not all(0 <= a <= 1 for a in self.jitter):
            raise ValueError(
                f"jitter is {self.jitter} but must be three numbers from 0 to 1: "
                "for brightness, contrast and saturation"
            )


# A 32 x 32 window in 36 x 36 pixels moves by 2 pixels in each direction.
PAPER_AUGMENTATION = Augmentation(flip=True, crop=2, rotation=12.0, jitter=(0.1, 0.1, 0.05))


def augment(
    x: Tensor, source: Source, settings: Augmentation, high: float = 1.0, step: float | None = None
) -> Tensor:
    """Apply random changes to each image of x (B, C, H, W): flip, colour jitter, rotation, crop.

    Jittered values are clipped to [0, high]; nothing else leaves the range of x. With a `step` the result is
    rounded to its multiples: for images of 256 levels in pixel units, high = 255/256 and step = 1/256 give
    levels again.

    Examples
    --------
    >>> import torch
    >>> x = torch.rand(8, 3, 32, 32)
    >>> augment(x, torch.Generator().manual_seed(0), PAPER_AUGMENTATION).shape
    torch.Size([8, 3, 32, 32])
    """
    check_images_for(settings, x)
    n = len(x)
    if settings.flip:
        x = mirror(x, uniform(x, (n,), source) < 0)
    if any(settings.jitter):
        factors = 1 + x.new_tensor(settings.jitter)[:, None] * uniform(x, (n, 3), source).T
        x = adjust_colours(x, factors, high)
    shift = whole_numbers(x, (n, 2), settings.crop, source)
    if settings.rotation:
        x = rotate(x, settings.rotation * uniform(x, (n,), source), shift)
    elif settings.crop:
        x = move_window(x, shift)
    if settings.cutout:
        x = cover(x, uniform(x, (n, 2), source), settings.cutout)
    return x if step is None else (x / step).round() * step


def mirror(x: Tensor, is_mirrored: Tensor) -> Tensor:
    """Swap left and right in the images where is_mirrored (B,) is true."""
    return torch.where(is_mirrored[:, None, None, None], x.flip(3), x)


def adjust_colours(x: Tensor, factors: Tensor, high: float = 1.0) -> Tensor:
    """Blend with black, then with the image's mean grey, then with its grey version, as in Pillow's ImageEnhance.

    The factors (3, B) are for brightness, contrast and saturation; each gives other + factor (x - other),
    clipped to [0, high]. Grey images have no saturation.
    """
    x = blend(x.new_zeros(()), x, factors[0], high)
    x = blend(grey(x).mean((1, 2, 3), keepdim=True), x, factors[1], high)
    return x if x.shape[1] == 1 else blend(grey(x), x, factors[2], high)


def blend(other: Tensor, x: Tensor, factor: Tensor, high: float) -> Tensor:
    """other + factor (x - other) per image, clipped to [0, high]; a factor of 1 gives x exactly."""
    return torch.lerp(other, x, factor[:, None, None, None]).clamp_(0, high)


def grey(x: Tensor) -> Tensor:
    """The luma of x, (B, 1, H, W)."""
    if x.shape[1] == 1:
        return x
    return GREY[0] * x[:, 0:1] + GREY[1] * x[:, 1:2] + GREY[2] * x[:, 2:3]


def move_window(x: Tensor, shift: Tensor) -> Tensor:
    """out[i, j] = x[i + dy, j + dx] with shift = (dy, dx), (B, 2) integers; edge pixels are repeated outside.

    The same as padding with repeated edges and cropping at padding + shift.
    """
    height, width = x.shape[2:]
    rows = (torch.arange(height, device=x.device) + shift[:, :1]).clamp(0, height - 1)
    columns = (torch.arange(width, device=x.device) + shift[:, 1:]).clamp(0, width - 1)
    sample = torch.arange(len(x), device=x.device)[:, None, None]
    return x[sample, :, rows[:, :, None], columns[:, None, :]].movedim(3, 1).contiguous()


def rotate(x: Tensor, degrees: Tensor, shift: Tensor) -> Tensor:
    """Rotate images counter-clockwise about their centre by degrees (B,), then `move_window` by shift (B, 2).

    Both in one bilinear sampling; edge pixels are repeated outside.
    """
    height, width = x.shape[2:]
    # Offsets from the centre in pixels: in grid_sample's [-1, 1] units a rotation is one for square images only.
    down = torch.arange(height, device=x.device) - (height - 1) / 2 + shift[:, :1]
    right = torch.arange(width, device=x.device) - (width - 1) / 2 + shift[:, 1:]
    down, right = down.to(x)[:, :, None], right.to(x)[:, None, :]
    cos, sin = (f(degrees.to(x).deg2rad())[:, None, None] for f in (torch.cos, torch.sin))
    source = torch.stack(
        [(cos * right - sin * down) * 2 / width, (sin * right + cos * down) * 2 / height], 3
    )
    return F.grid_sample(x, source, mode="bilinear", padding_mode="border", align_corners=False)


def cover(x: Tensor, place: Tensor, side: int) -> Tensor:
    """Replace a square by the mean colour of its image; place (B, 2) in [-1, 1) is that of its centre."""
    inside = x.new_ones((), dtype=torch.bool)
    for dim, n_pixels in ((2, x.shape[2]), (3, x.shape[3])):
        centre = ((place[:, dim - 2] + 1) * n_pixels / 2).floor()
        offset = torch.arange(n_pixels, device=x.device) - centre[:, None] + side // 2
        along = (offset >= 0) & (offset < side)
        inside = inside & along.reshape(len(x), 1, *((n_pixels, 1) if dim == 2 else (1, n_pixels)))
    return torch.where(inside, x.mean((2, 3), keepdim=True), x)


def uniform(x: Tensor, shape: tuple[int, ...], source: Source) -> Tensor:
    """Random numbers from [-1, 1) with x's dtype and device; the same numbers for every dtype."""
    draws = draw(torch.rand, shape, source, device=device_of(source), dtype=torch.float32)
    return (2 * draws - 1).to(x)


def whole_numbers(x: Tensor, shape: tuple[int, ...], most: int, source: Source) -> Tensor:
    """Random integers from -most to most, equally likely, on x's device; most = 0 draws nothing."""
    if most == 0:
        return torch.zeros(shape, dtype=torch.long, device=x.device)
    draws = draw(partial(torch.randint, -most, most + 1), shape, source, device=device_of(source))
    return draws.to(x.device)


def device_of(source: Source) -> torch.device:
    return source.generator.device if isinstance(source, Shard) else source.device


def check_images_for(settings: Augmentation, x: Tensor) -> None:
    """Raise ValueError unless x is a batch of images that these settings apply to."""
    if x.ndim != 4 or not x.is_floating_point():
        raise ValueError(
            f"x is {x.dtype} of shape {tuple(x.shape)} but augment takes float images (B, C, H, W); "
            "convert levels to pixel units first"
        )
    if any(settings.jitter) and x.shape[1] not in (1, 3):
        raise ValueError(f"x has {x.shape[1]} channels but jitter needs 1 or 3; pass jitter=(0, 0, 0)")
    if settings.crop >= min(x.shape[2:]):
        raise ValueError(
            f"crop is {settings.crop} but the images are only {x.shape[2]} x {x.shape[3]} pixels; "
            "choose a smaller crop"
        )
