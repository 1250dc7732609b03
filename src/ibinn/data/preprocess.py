"""Levels -> pixel units -> noise -> normalised, and the way back: written once, for everybody.

Both classes answer the same methods, and their constants are buffers, so that they travel with the model:

to_units(raw) -> x             raw values as a tensor: pixels in [0, 1), or a table's own units
add_noise(x, generator) -> x   dequantisation or E, in those units; nothing for tables
fixed_noise(draw) -> eps       one draw of the dequantisation for all inputs: answers that do not change
forward(x) -> v, log_det       normalised for the network; log|det dv/dx|, (B,), in nats
inverse(v) -> x                the way back
to_raw(x) -> raw               levels or rows again, as NumPy
log_scale                      log|det dx/d(raw)|: from the caller's units to x, in nats
"""

import math
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from ibinn._types import Array
from ibinn.data.batches import Source, draw

Noise = Literal["uniform", "gaussian", "both"]
EVEN = 0.1  # share of the even histogram in an equalising one
LOGISTIC = math.sqrt(3) / math.pi  # one over the deviation of a logistic variable
LEAST_SHRINKAGE = 1e-4  # of a covariance: keeps columns that follow from others from blowing up
MARGIN = 2.0**-12  # of a level: keeps w + u inside its level through float32's rounding on the way back


class ImagePreprocess(nn.Module):
    """Images (N, H, W, C) of `levels` values 0, 1, ... <-> normalised tensors (N, C, H', W').

    x = w / levels, in [0, 1). Noise: uniform within a level (x then fills [0, 1)), Gaussian of deviation
    sigma in pixel units, or both. v = (x - mean) / std per channel; or, where `rise` (C, levels) is given,
    v = logit(c(x)) sqrt(3) / pi, c rising from 0 to 1 over the levels by so much over each, in a straight line.
    Sides that are no multiple of `multiple` are padded with level 0, evenly; the density is that of the
    padded image.
    """

    mean: Tensor
    std: Tensor
    rise: Tensor | None

    def __init__(
        self,
        shape: tuple[int, int, int],
        levels: int,
        mean: Array | Tensor,
        std: Array | Tensor,
        noise: Noise = "uniform",
        sigma: float = 0.0,
        multiple: int = 1,
        rise: Array | Tensor | None = None,
    ) -> None:
        super().__init__()
        check_settings(shape, levels, noise, sigma)
        self.image_shape, self.levels = tuple(shape), levels
        self.noise, self.sigma, self.multiple = noise, sigma, multiple
        self.register_buffer("mean", torch.as_tensor(mean, dtype=torch.get_default_dtype())[:, None, None])
        self.register_buffer("std", torch.as_tensor(std, dtype=torch.get_default_dtype())[:, None, None])
        if rise is not None and noise != "uniform":
            raise ValueError(
                f"only uniform noise keeps x within [0, 1], as equalising needs it, not {noise}"
            )
        if rise is not None:
            rise = torch.as_tensor(rise, dtype=torch.get_default_dtype())
        self.register_buffer("rise", rise)

    @classmethod
    def fit(
        cls,
        images: Array,
        levels: int,
        noise: Noise = "uniform",
        sigma: float = 0.0,
        multiple: int = 1,
        equalise: bool = False,
        rows: NDArray[np.int64] | None = None,
    ) -> "ImagePreprocess":
        """With mean and deviation of each channel of images (N, H, W, C), or of their rows, in pixel units.

        equalise=True takes `rise` from the histogram of each channel (see `equalising_rise`).
        """
        share = level_shares(images, levels, rows)
        mean, std = share_statistics(share)
        height, width, n_channels = images.shape[1:]
        rise = equalising_rise(share) if equalise else None
        return cls((height, width, n_channels), levels, mean, guarded(std), noise, sigma, multiple, rise)

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments, but for mean, std and rise, to make this preprocessing again."""
        names = ("levels", "noise", "sigma", "multiple")
        return {"shape": self.image_shape} | {name: getattr(self, name) for name in names}

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H', W') of what the network sees."""
        height, width, n_channels = self.image_shape
        return n_channels, height + sum(self._padding[2:]), width + sum(self._padding[:2])

    @property
    def n_dims(self) -> int:
        return math.prod(self.shape)

    @property
    def log_scale(self) -> float:
        return -self.n_dims * math.log(self.levels)

    @property
    def _padding(self) -> tuple[int, int, int, int]:
        """left, right, top, bottom."""
        height, width, _ = self.image_shape
        extra_h, extra_w = -height % self.multiple, -width % self.multiple
        return extra_w // 2, extra_w - extra_w // 2, extra_h // 2, extra_h - extra_h // 2

    def to_units(self, raw: Array | Tensor) -> Tensor:
        """Levels (N, H, W, C) -> x (N, C, H', W') = w / levels."""
        w = torch.as_tensor(np.array(raw) if isinstance(raw, np.ndarray) else raw)
        if w.ndim != 4 or tuple(w.shape[1:]) != self.image_shape:
            raise ValueError(
                f"images have shape {tuple(w.shape[1:])} (H, W, C) but {self.image_shape} was expected"
            )
        w = w.to(self.mean.device).permute(0, 3, 1, 2).to(self.mean.dtype)
        return F.pad(w, self._padding) / self.levels

    def add_noise(self, x: Tensor, generator: Source | None = None) -> Tensor:
        """x + E: what is fed to the network in training, and averaged over in evaluation."""
        if self.noise != "gaussian":
            x = dequantise(x, self.levels, generator)
        if self.noise != "uniform":
            x = x + self.sigma * draw(torch.randn, x.shape, generator, device=x.device, dtype=x.dtype)
        return x

    def fixed_noise(self, draw: int = 0) -> Tensor:
        """One draw of the uniform noise, (1, C, H', W'), for all images alike; nothing where there is none."""
        nothing = torch.zeros(1, *self.shape, device="cpu", dtype=self.mean.dtype)
        if self.noise == "gaussian":
            return nothing
        return dequantise(nothing, self.levels, torch.Generator().manual_seed(draw))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.rise is None:
            log_det = -self.std.log().sum() * (x.shape[2] * x.shape[3])
            return (x - self.mean) / self.std, log_det.expand(x.shape[0])
        w = x.detach().mul(self.levels).floor().clamp(0, self.levels - 1)
        u = x * self.levels - w
        below, rise, above = self._piece(w.long())
        # c from below and 1 - c from above: each keeps its digits where it is small.
        log_c, log_rest = (c.clamp_min(1e-8).log() for c in (below + u * rise, above + (1 - u) * rise))
        log_slope = rise.log() + math.log(self.levels * LOGISTIC) - log_c - log_rest
        return LOGISTIC * (log_c - log_rest), log_slope.flatten(1).sum(1)

    def inverse(self, v: Tensor) -> Tensor:
        if self.rise is None:
            return v * self.std + self.mean
        c, rest = (v / LOGISTIC).sigmoid(), (-v / LOGISTIC).sigmoid()
        w = torch.stack([self._level(c[:, k], rest[:, k], k) for k in range(v.shape[1])], 1)
        below, rise, above = self._piece(w)
        u = torch.where(c < rest, (c - below) / rise, 1 - (rest - above) / rise)
        return (w + u.clamp(0, 1)) / self.levels

    def _piece(self, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """c at the beginning of level w (B, C, H, W), its rise over that level, and what is left at its end."""
        assert self.rise is not None
        channel = torch.arange(w.shape[1], device=w.device)[:, None, None]
        below = F.pad(self.rise.cumsum(1), (1, 0))[:, :-1]
        above = F.pad(self.rise.flip(1).cumsum(1), (1, 0))[:, :-1].flip(1)
        return below[channel, w], self.rise[channel, w], above[channel, w]

    def _level(self, c: Tensor, rest: Tensor, channel: int) -> Tensor:
        """The level that c = 1 - rest lies in, found from the side where it keeps its digits."""
        assert self.rise is not None
        ends = self.rise[channel].cumsum(0)[:-1]
        starts = self.rise[channel].flip(0).cumsum(0)[:-1]
        up = torch.bucketize(c.detach().contiguous(), ends, right=True)
        down = self.levels - 1 - torch.bucketize(rest.detach().contiguous(), starts)
        return torch.where(c < rest, up, down)

    def to_raw(self, x: Tensor) -> Array:
        """x (N, C, H', W') -> levels (N, H, W, C), uint8; what lies outside of [0, 1) is clipped."""
        left, right, top, bottom = self._padding
        x = x[:, :, top : x.shape[2] - bottom, left : x.shape[3] - right]
        half = (
            0.5 if self.noise == "gaussian" else MARGIN / 2
        )  # to the nearest level, or down to the one begun
        w = (x * self.levels + half).floor()
        return w.clamp(0, self.levels - 1).to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()


class TablePreprocess(nn.Module):
    """Rows (N, D) <-> standardised rows; a column that does not vary is only shifted.

    With `whiten` (D, D) the standardised columns are mixed by it as well. In float64 whatever the network works
    in: a column of dates loses its digits in float32 before its mean is taken off. The caller casts the result.
    """

    levels: int | None = None
    mean: Tensor
    std: Tensor
    whiten: Tensor | None

    def __init__(
        self, mean: Array | Tensor, std: Array | Tensor, whiten: Array | Tensor | None = None
    ) -> None:
        super().__init__()
        self.register_buffer("mean", torch.as_tensor(mean, dtype=torch.float64))
        self.register_buffer("std", torch.as_tensor(std, dtype=torch.float64))
        self.register_buffer("whiten", None if whiten is None else torch.as_tensor(whiten).double())

    @classmethod
    def fit(cls, rows: Array, y: Array | None = None) -> "TablePreprocess":
        """With mean and deviation of each column; with labels y, whitened within the classes (see `whitening`)."""
        mean = rows.mean(0)
        std = guarded(np.sqrt(np.square(rows - mean).mean(0)), np.abs(mean))
        return cls(mean, std, None if y is None else whitening((rows - mean) / std, y))

    @property
    def shape(self) -> tuple[int]:
        return (self.n_dims,)

    @property
    def n_dims(self) -> int:
        return self.mean.shape[0]

    @property
    def log_scale(self) -> float:
        return 0.0

    def to_units(self, raw: Array | Tensor) -> Tensor:
        x = torch.as_tensor(np.array(raw) if isinstance(raw, np.ndarray) else raw)
        x = x.to(self.mean.device, self.mean.dtype)
        if x.ndim != 2 or x.shape[1] != self.n_dims:
            raise ValueError(f"rows have shape {tuple(x.shape)} but (N, {self.n_dims}) was expected")
        return x

    def add_noise(self, x: Tensor, generator: Source | None = None) -> Tensor:
        return x

    def fixed_noise(self, draw: int = 0) -> Tensor:
        return torch.zeros(())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        v, log_det = (x - self.mean) / self.std, -self.std.log().sum()
        if self.whiten is not None:
            v, log_det = v @ self.whiten.T, log_det + torch.linalg.slogdet(self.whiten)[1]
        return v, log_det.expand(x.shape[0])

    def inverse(self, v: Tensor) -> Tensor:
        if self.whiten is not None:
            v = torch.linalg.solve(self.whiten, v.to(self.whiten).T).T
        return v * self.std + self.mean

    def to_raw(self, x: Tensor) -> Array:
        return x.cpu().numpy()


def dequantise(x: Tensor, levels: int, generator: Source | None = None) -> Tensor:
    """x + u / levels, u uniform in [0, 1) but for a margin."""
    u = draw(torch.rand, x.shape, generator, device=x.device, dtype=x.dtype)
    return x + u.clamp(MARGIN, 1 - MARGIN) / levels


def channel_statistics(images: Array, levels: int) -> tuple[Array, Array]:
    """Mean and deviation of w / levels for each channel of (N, H, W, C), exactly."""
    return share_statistics(level_shares(images, levels))


def level_shares(images: Array, levels: int, rows: NDArray[np.int64] | None = None) -> Array:
    """How often each level occurs in each channel of (N, H, W, C), or of some rows: (C, levels), sums 1."""
    rows = np.arange(len(images)) if rows is None else np.sort(rows)
    counts = np.zeros((images.shape[3], levels), dtype=np.int64)
    step = max(1, 2**24 // max(1, images[:1].size))  # some 16 million values at a time
    for start in range(0, len(rows), step):
        chunk = np.moveaxis(images[rows[start : start + step]], -1, 0).reshape(len(counts), -1)
        counts += np.stack([np.bincount(channel, minlength=levels) for channel in chunk])
    return np.asarray(counts / counts.sum(1, keepdims=True))


def share_statistics(share: Array) -> tuple[Array, Array]:
    """Mean and deviation of w / levels from level_shares, each (C,)."""
    values = np.arange(share.shape[1]) / share.shape[1]
    mean = share @ values
    return mean, np.sqrt((share * (values - mean[:, None]) ** 2).sum(1))


def equalising_rise(share: Array) -> Array:
    """The histogram of each channel, (C, levels), mixed with an even one; rows sum to 1.

    It gives the levels that are frequent, such as a black background, the room in v that a density wants for
    them. The even part keeps rare levels from being squeezed into the rounding of float32.
    """
    return np.asarray((1 - EVEN) * share + EVEN / share.shape[1])


def whitening(rows: Array, y: Array) -> Array:
    """The matrix (D, D) after which rows scatter about their class means alike in all directions, deviation 1.

    It is the inverse square root of the covariance within classes, shrunk towards a multiple of the identity
    by the oracle approximation (Chen et al. 2010, as scikit-learn has it), so that few rows or equal columns do
    no harm. A Gaussian mixture of unit covariance on top is linear discriminant analysis.
    """
    classes, number = np.unique(y, return_inverse=True)
    means = np.stack([rows[number == k].mean(0) for k in range(len(classes))])
    values, axes = np.linalg.eigh(shrunk_covariance(rows - means[number], len(rows) - len(classes)))
    return np.asarray((axes / np.sqrt(values)) @ axes.T)


def shrunk_covariance(centred: Array, n: int) -> Array:
    """(1 - rho) S + rho tr(S) / D, for the covariance S of centred rows (N, D) with n degrees of freedom."""
    n, n_dims = max(n, 1), centred.shape[1]
    covariance = centred.T @ centred / n
    mean = np.trace(covariance) / n_dims
    of_square, square = np.square(covariance).sum(), (n_dims * mean) ** 2
    excess = (n + 1) * (of_square - square / n_dims)
    rho = 1.0 if excess <= 0 else min(1.0, (of_square + square) / excess)
    rho = max(rho, LEAST_SHRINKAGE)
    return np.asarray((1 - rho) * covariance + rho * (mean or 1.0) * np.eye(n_dims))


def guarded(std: Array, size: Array | float = 1.0) -> Array:
    """std, but 1 where it is nothing beside the size of the values: dividing by it would blow up noise."""
    return np.where(std > 1e-10 * np.maximum(size, 1e-10), std, 1.0)


def check_settings(shape: tuple[int, int, int], levels: int, noise: str, sigma: float) -> None:
    if len(shape) != 3 or min(shape) < 1:
        raise ValueError(f"shape must be (height, width, channels), each at least 1, not {shape}")
    if not 2 <= levels <= 256:
        raise ValueError(f"levels is {levels} but must be from 2 to 256; rescale the images to 8 bits")
    if noise not in ("uniform", "gaussian", "both"):
        raise ValueError(f"noise is {noise!r} but must be uniform, gaussian or both")
    if (noise == "uniform") != (sigma == 0) or not 0 <= sigma < math.inf:
        raise ValueError(
            f"noise {noise!r} does not go with sigma {sigma}; Gaussian noise has sigma > 0, uniform 0"
        )
