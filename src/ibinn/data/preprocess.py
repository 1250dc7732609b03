"""From raw inputs to what the network takes, and back: levels -> pixel units -> noise -> normalised.

`ImagePreprocess` and `TablePreprocess` have the same methods and attributes, so that callers need not distinguish
them. Their constants are buffers and are saved with the model.

=========================== ===========================================================================
to_units(raw) -> x          raw values as a tensor: pixels in [0, 1), or a table's own units
add_noise(x, generator)     dequantisation or the noise E, in those units; tables get none
fixed_noise(draw)           one draw of the dequantisation, shared by all inputs: outputs are reproducible
forward(x) -> v, log_det    normalised for the network; log|det dv/dx|, (B,), in nats
inverse(v) -> x             the inverse of forward
crop(x)                     x in the layout of raw, without padding
to_levels(x)                crop(x), rounded to levels; rows stay as they are
to_raw(x) -> raw            the same as a NumPy array
raw_shape, shape            of one raw input, and of one input of the network
n_dims                      number of values that the network sees
levels                      number of values of a pixel; None for tables
noise, sigma                "uniform", "gaussian" or "both" and its deviation; None and 0 for tables
n_draws                     number of draws of the noise that bits/dim is averaged over
log_scale                   log|det dx/d(raw)|, in nats
raw_mean                    the mean of the training data as one raw input, (1, ...)
settings                    what to save beside the buffers
form                        the form of raw inputs, as an `InputForm`
=========================== ===========================================================================
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
from ibinn.data.inputs import InputForm

Noise = Literal["uniform", "gaussian", "both"]
EVEN = 0.1  # share of the even histogram in an equalising one
LOGISTIC = math.sqrt(3) / math.pi  # one over the deviation of a logistic variable
LEAST_SHRINKAGE = 1e-4  # of a covariance, so that columns that follow from others do not blow up
MARGIN = 2.0**-12  # of a level: keeps w + u inside its level through float32's rounding on the way back
N_DRAWS = 4  # of the uniform noise, for bits/dim


class ImagePreprocess(nn.Module):
    """Images (N, H, W, C) of `levels` values 0, 1, ... <-> normalised tensors (N, C, H', W').

    Pixel units are x = w / levels, in [0, 1). The network sees v = (x - mean) / std; or, with `rise`,
    v = logit(c(x)) sqrt(3) / pi, where c is piecewise linear and rises from 0 to 1, by `rise` over each level.

    Parameters
    ----------
    raw_shape : (int, int, int)
        Height, width and number of channels of the images.
    levels : int
        Number of values of a pixel, from 2 to 256.
    mean, std : array-like of shape (C,)
        Mean and standard deviation of each channel, in pixel units.
    noise : {"uniform", "gaussian", "both"}
        Uniform noise within a level (x then fills [0, 1)), Gaussian noise, or their sum.
    sigma : float
        Standard deviation of the Gaussian noise, in pixel units; 0 for uniform noise.
    multiple : int
        Sides are padded with level 0 to a multiple of this number, evenly on both sides. The density is that of
        the padded image.
    rise : array-like of shape (C, levels), optional
        Equalises the histogram; needs uniform noise. See `equalising_rise`.

    Examples
    --------
    >>> import numpy as np
    >>> from ibinn.data.preprocess import ImagePreprocess
    >>> images = np.arange(2 * 5 * 4).reshape(2, 5, 4, 1).astype(np.uint8)
    >>> preprocess = ImagePreprocess.fit(images, levels=256, multiple=4)
    >>> x = preprocess.to_units(images)
    >>> v, log_det = preprocess(x)
    >>> tuple(v.shape), tuple(log_det.shape)
    ((2, 1, 8, 4), (2,))
    >>> bool((preprocess.to_raw(preprocess.inverse(v)) == images).all())
    True
    """

    mean: Tensor
    std: Tensor
    rise: Tensor | None

    def __init__(
        self,
        raw_shape: tuple[int, int, int],
        levels: int,
        mean: Array | Tensor,
        std: Array | Tensor,
        noise: Noise = "uniform",
        sigma: float = 0.0,
        multiple: int = 1,
        rise: Array | Tensor | None = None,
    ) -> None:
        super().__init__()
        check_image_settings(raw_shape, levels, noise, sigma)
        self.raw_shape, self.levels = tuple(raw_shape), levels
        self.noise, self.sigma, self.multiple = noise, sigma, multiple
        # To the nearest level; with uniform noise, which fills a level, down to the level that x lies in.
        self._half = 0.5 if noise == "gaussian" else MARGIN / 2
        self.register_buffer("mean", torch.as_tensor(mean, dtype=torch.get_default_dtype())[:, None, None])
        self.register_buffer("std", torch.as_tensor(std, dtype=torch.get_default_dtype())[:, None, None])
        if rise is not None and noise != "uniform":
            raise ValueError(
                f"noise is {noise!r} but equalising needs x in [0, 1], which only uniform noise keeps"
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
        """Take mean and deviation of each channel from images (N, H, W, C), or from the given rows of them.

        equalise=True takes `rise` from the histogram of each channel (see `equalising_rise`).
        """
        share = level_shares(images, levels, rows)
        mean, std = share_statistics(share)
        height, width, n_channels = images.shape[1:]
        return cls(
            raw_shape=(height, width, n_channels),
            levels=levels,
            mean=mean,
            std=guarded(std),
            noise=noise,
            sigma=sigma,
            multiple=multiple,
            rise=equalising_rise(share) if equalise else None,
        )

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments other than the buffers mean, std and rise, as files hold them; shape is raw_shape."""
        names = ("levels", "noise", "sigma", "multiple")
        return {"shape": self.raw_shape} | {name: getattr(self, name) for name in names}

    @property
    def form(self) -> InputForm:
        """Levels (N, H, W, C) in uint8."""
        return InputForm("HWC", self.raw_shape, "uint8", self.levels, self.levels - 1.0)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H', W'), as the network sees it."""
        height, width, n_channels = self.raw_shape
        return n_channels, height + sum(self._padding[2:]), width + sum(self._padding[:2])

    @property
    def n_dims(self) -> int:
        return math.prod(self.shape)

    @property
    def log_scale(self) -> float:
        return -self.n_dims * math.log(self.levels)

    @property
    def n_draws(self) -> int:
        """More than one with uniform noise; Gaussian noise is left out of bits/dim."""
        return 1 if self.noise == "gaussian" else N_DRAWS

    @property
    def raw_mean(self) -> Tensor:
        return (self.mean.flatten() * self.levels).expand(1, *self.raw_shape)

    @property
    def _padding(self) -> tuple[int, int, int, int]:
        """left, right, top, bottom."""
        height, width, _ = self.raw_shape
        extra_h, extra_w = -height % self.multiple, -width % self.multiple
        return extra_w // 2, extra_w - extra_w // 2, extra_h // 2, extra_h - extra_h // 2

    def to_units(self, raw: Array | Tensor) -> Tensor:
        """Levels (N, H, W, C) -> x (N, C, H', W') = w / levels."""
        w = torch.as_tensor(np.array(raw) if isinstance(raw, np.ndarray) else raw)
        if w.ndim != 4 or tuple(w.shape[1:]) != self.raw_shape:
            raise ValueError(
                f"images have shape {tuple(w.shape[1:])} (H, W, C) but {self.raw_shape} was expected"
            )
        w = w.to(self.mean.device).permute(0, 3, 1, 2).to(self.mean.dtype)
        return F.pad(w, self._padding) / self.levels

    def add_noise(self, x: Tensor, generator: Source | None = None) -> Tensor:
        """x + E: the input of the network in training."""
        if self.noise != "gaussian":
            x = dequantise(x, self.levels, generator)
        if self.noise != "uniform":
            x = x + self.sigma * draw(torch.randn, x.shape, generator, device=x.device, dtype=x.dtype)
        return x

    def fixed_noise(self, draw: int = 0) -> Tensor:
        """One draw of the uniform noise, (1, C, H', W'), shared by all images; zeros without uniform noise."""
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
        """c at the start of level w (B, C, H, W), its rise over that level, and 1 - c at its end."""
        assert self.rise is not None
        channel = torch.arange(w.shape[1], device=w.device)[:, None, None]
        below = F.pad(self.rise.cumsum(1), (1, 0))[:, :-1]
        above = F.pad(self.rise.flip(1).cumsum(1), (1, 0))[:, :-1].flip(1)
        return below[channel, w], self.rise[channel, w], above[channel, w]

    def _level(self, c: Tensor, rest: Tensor, channel: int) -> Tensor:
        """The level that c = 1 - rest lies in, from the smaller of the two, which keeps its digits."""
        assert self.rise is not None
        ends = self.rise[channel].cumsum(0)[:-1]
        starts = self.rise[channel].flip(0).cumsum(0)[:-1]
        up = torch.bucketize(c.detach().contiguous(), ends, right=True)
        down = self.levels - 1 - torch.bucketize(rest.detach().contiguous(), starts)
        return torch.where(c < rest, up, down)

    def crop(self, x: Tensor) -> Tensor:
        """x (N, C, H', W') -> (N, H, W, C), without the padding."""
        left, right, top, bottom = self._padding
        return x[:, :, top : x.shape[2] - bottom, left : x.shape[3] - right].permute(0, 2, 3, 1)

    def to_levels(self, x: Tensor) -> Tensor:
        """x (N, C, H', W') -> levels (N, H, W, C), uint8. Values outside of [0, 1) are clipped, NaN becomes 0."""
        w = (torch.where(x.isnan(), 0.0, x) * self.levels + self._half).floor()
        return self.crop(w.clamp(0, self.levels - 1).to(torch.uint8))

    def to_raw(self, x: Tensor) -> Array:
        return self.to_levels(x).cpu().numpy()


class TablePreprocess(nn.Module):
    """Rows (N, D) <-> standardised rows; a constant column is only shifted.

    Always in float64: a column of dates would lose its digits in float32 before its mean is subtracted. The caller
    casts the result.

    Parameters
    ----------
    mean, std : array-like of shape (D,)
        Mean and standard deviation of each column.
    whiten : array-like of shape (D, D), optional
        Matrix that mixes the standardised columns. See `whitening`.

    Examples
    --------
    >>> import numpy as np
    >>> from ibinn.data.preprocess import TablePreprocess
    >>> rows = np.array([[1.0, 10.0], [3.0, 30.0]])
    >>> preprocess = TablePreprocess.fit(rows)
    >>> v, _ = preprocess(preprocess.to_units(rows))
    >>> v.tolist()
    [[-1.0, -1.0], [1.0, 1.0]]
    >>> preprocess.inverse(v).tolist()
    [[1.0, 10.0], [3.0, 30.0]]
    """

    levels: int | None = None
    noise: Noise | None = None
    sigma = 0.0
    n_draws = 1
    log_scale = 0.0
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
        """Take mean and deviation of each column; with labels y, whiten within the classes (see `whitening`)."""
        mean = rows.mean(0)
        std = guarded(np.sqrt(np.square(rows - mean).mean(0)), np.abs(mean))
        return cls(mean, std, None if y is None else whitening((rows - mean) / std, y))

    @property
    def settings(self) -> dict[str, Any]:
        return {}

    @property
    def form(self) -> InputForm:
        return InputForm("rows", self.shape, "float64")

    @property
    def shape(self) -> tuple[int]:
        return (self.n_dims,)

    @property
    def raw_shape(self) -> tuple[int]:
        return self.shape

    @property
    def n_dims(self) -> int:
        return self.mean.shape[0]

    @property
    def raw_mean(self) -> Tensor:
        return self.mean[None]

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

    def crop(self, x: Tensor) -> Tensor:
        return x

    def to_levels(self, x: Tensor) -> Tensor:
        return x

    def to_raw(self, x: Tensor) -> Array:
        return x.cpu().numpy()


Preprocess = ImagePreprocess | TablePreprocess


def dequantise(x: Tensor, levels: int, generator: Source | None = None) -> Tensor:
    """x + u / levels, with u uniform in [MARGIN, 1 - MARGIN]."""
    u = draw(torch.rand, x.shape, generator, device=x.device, dtype=x.dtype)
    return x + u.clamp(MARGIN, 1 - MARGIN) / levels


def channel_statistics(images: Array, levels: int) -> tuple[Array, Array]:
    """Mean and deviation of w / levels for each channel of (N, H, W, C), exactly."""
    return share_statistics(level_shares(images, levels))


def level_shares(images: Array, levels: int, rows: NDArray[np.int64] | None = None) -> Array:
    """The share of each level in each channel of (N, H, W, C), or of the given rows: (C, levels), sums 1."""
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

    Frequent levels, such as a black background, get more room in v, which makes their density easier to learn. The
    even part keeps rare levels from being squeezed below float32's resolution.
    """
    return np.asarray((1 - EVEN) * share + EVEN / share.shape[1])


def whitening(rows: Array, y: Array) -> Array:
    """The matrix (D, D) that gives the rows unit covariance around their class means.

    It is the inverse square root of the covariance within classes, shrunk towards a multiple of the identity
    by the oracle approximation (Chen et al. 2010, as in scikit-learn), so that few rows or equal columns do
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
    """std, but 1 where it is negligible beside the size of the values: dividing by it would amplify rounding."""
    return np.where(std > 1e-10 * np.maximum(size, 1e-10), std, 1.0)


def check_image_settings(raw_shape: tuple[int, int, int], levels: int, noise: str, sigma: float) -> None:
    if len(raw_shape) != 3 or min(raw_shape) < 1:
        raise ValueError(f"raw_shape is {raw_shape} but must be (height, width, channels), each at least 1")
    if not 2 <= levels <= 256:
        raise ValueError(f"levels is {levels} but must be from 2 to 256; rescale the images to 8 bits")
    if noise not in ("uniform", "gaussian", "both"):
        raise ValueError(f"noise is {noise!r} but must be uniform, gaussian or both")
    if (noise == "uniform") != (sigma == 0) or not 0 <= sigma < math.inf:
        raise ValueError(
            f"noise is {noise!r} and sigma is {sigma}; Gaussian noise needs a finite sigma > 0, uniform noise 0"
        )
