"""Random variants of training images: flips, colour jitter, small rotations, crops, on tensor batches."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from ibinn.data.draws import Shard, Source, draw

GREY = (0.299, 0.587, 0.114)  # ITU-R 601, the luma that Pillow uses


@dataclass(frozen=True)
class Augmentation:
    """What may happen to a training image. The default is nothing.

    flip      left and right change places in half of the images
    crop      the window moves by up to so many pixels each way; edges are repeated outside
    rotation  about the centre, by up to so many degrees each way
    jitter    brightness, contrast, saturation: each times a factor from 1 - a to 1 + a
    """

    flip: bool = False
    crop: int = 0
    rotation: float = 0.0
    jitter: tuple[float, float, float] = (0.0, 0.0, 0.0)

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


# A 32 x 32 window within 36 x 36 moves by 2 pixels each way.
PAPER = Augmentation(flip=True, crop=2, rotation=12.0, jitter=(0.1, 0.1, 0.05))


def augment(
    x: Tensor,
    generator: Source,
    flip: bool = False,
    crop: int = 0,
    rotation: float = 0.0,
    jitter: tuple[float, float, float] = (0.0, 0.0, 0.0),
    high: float = 1.0,
    step: float | None = None,
) -> Tensor:
    """Each image of x (B, C, H, W) with its own draw: flip, colour jitter, edge padding, rotation, crop.

    Call it with **asdict(PAPER), or any other Augmentation. Jittered values are clipped to [0, high];
    nothing else leaves the range of x. With a `step` the result is rounded to its multiples: for
    images of 256 levels in pixel units, high = 255/256 and step = 1/256 give levels again.
    """
    check_batch(x, Augmentation(flip, crop, rotation, jitter))
    n = len(x)
    if flip:
        x = mirror(x, uniform(x, (n,), generator) < 0)
    if any(jitter):
        factors = 1 + x.new_tensor(jitter)[:, None] * uniform(x, (n, 3), generator).T
        x = adjust_colours(x, factors, high)
    shift = whole_numbers(x, (n, 2), crop, generator)
    if rotation:
        x = rotate(x, rotation * uniform(x, (n,), generator), shift)
    elif crop:
        x = move_window(x, shift)
    return x if step is None else (x / step).round() * step


def mirror(x: Tensor, chosen: Tensor) -> Tensor:
    """Left and right change places in the chosen images; chosen (B,) is boolean."""
    return torch.where(chosen[:, None, None, None], x.flip(3), x)


def adjust_colours(x: Tensor, factors: Tensor, high: float = 1.0) -> Tensor:
    """Blends with black, then with the image's mean grey, then with its grey version, as Pillow's ImageEnhance.

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
    """out[i, j] = x[i + dy, j + dx] with shift = (dy, dx), (B, 2) whole numbers; edges are repeated outside.

    The same as padding with repeated edges and cropping at padding + shift.
    """
    height, width = x.shape[2:]
    rows = (torch.arange(height, device=x.device) + shift[:, :1]).clamp(0, height - 1)
    columns = (torch.arange(width, device=x.device) + shift[:, 1:]).clamp(0, width - 1)
    sample = torch.arange(len(x), device=x.device)[:, None, None]
    return x[sample, :, rows[:, :, None], columns[:, None, :]].movedim(3, 1).contiguous()


def rotate(x: Tensor, degrees: Tensor, shift: Tensor) -> Tensor:
    """Images turned counter-clockwise about their centre by degrees (B,), then `move_window` by shift (B, 2).

    Both in one bilinear sampling; outside, the edges are repeated for ever.
    """
    height, width = x.shape[2:]
    # Offsets from the centre in pixels, since a turn is not one in grid_sample's [-1, 1] units unless square.
    down = torch.arange(height, device=x.device) - (height - 1) / 2 + shift[:, :1]
    right = torch.arange(width, device=x.device) - (width - 1) / 2 + shift[:, 1:]
    down, right = down.to(x)[:, :, None], right.to(x)[:, None, :]
    cos, sin = (f(degrees.to(x).deg2rad())[:, None, None] for f in (torch.cos, torch.sin))
    source = torch.stack(
        [(cos * right - sin * down) * 2 / width, (sin * right + cos * down) * 2 / height], 3
    )
    return F.grid_sample(x, source, mode="bilinear", padding_mode="border", align_corners=False)


def uniform(x: Tensor, shape: tuple[int, ...], source: Source) -> Tensor:
    """Draws from [-1, 1), of x's dtype and device; the same numbers for every dtype."""
    draws = draw(torch.rand, shape, source, device=device_of(source), dtype=torch.float32)
    return (2 * draws - 1).to(x)


def whole_numbers(x: Tensor, shape: tuple[int, ...], most: int, source: Source) -> Tensor:
    """Whole numbers from -most to most, all equally likely, on x's device; 0 draws nothing."""
    if most == 0:
        return torch.zeros(shape, dtype=torch.long, device=x.device)
    draws = draw(partial(torch.randint, -most, most + 1), shape, source, device=device_of(source))
    return draws.to(x.device)


def device_of(source: Source) -> torch.device:
    return source.generator.device if isinstance(source, Shard) else source.device


def check_batch(x: Tensor, settings: Augmentation) -> None:
    """One clear error if x is no batch of images for these settings."""
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
