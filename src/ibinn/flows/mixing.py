"""Layers between couplings: scale and shift per channel, and fixed permutations or rotations of the channels."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ibinn.flows.base import Back, Bijection, Isometry, check_channels, check_dtype, check_input
from ibinn.flows.fast.fused import Mix, is_cheap, is_plain, run, scale_and_shift_gradients, scaled_rotation
from ibinn.flows.precision import as_default, autocast_off, full_precision

NARROW = 4  # up to this many channels, several pixels are mixed in one row
LEAST_VARIANCE = 1e-4  # of a principal component, relative to the mean over components


class ScaleShift(Bijection):
    """Base class of layers that end in z = exp(log_scale) * ... + shift, per channel."""

    log_scale: Tensor
    shift: Tensor

    def __init__(self, n_channels: int, scale: float, learned: bool) -> None:
        super().__init__()
        check_channels(self, n_channels)
        if not scale > 0:
            raise ValueError(f"scale is {scale} but {type(self).__name__} needs a scale > 0")
        self.n_channels = n_channels
        log_scale, shift = torch.full((n_channels,), math.log(scale)), torch.zeros(n_channels)
        if learned:
            self.log_scale, self.shift = nn.Parameter(log_scale), nn.Parameter(shift)
        else:
            self.register_buffer("log_scale", log_scale)
            self.register_buffer("shift", shift)

    def log_det(self, x: Tensor) -> Tensor:
        return (self.log_scale.sum() * x.shape[2:].numel()).expand(x.shape[0])

    def gradients(self, z: Tensor, grad_z: Tensor, grad_log_det: Tensor) -> dict[nn.Parameter, Tensor]:
        """Gradients of log_scale and shift, if they are learned."""
        found = scale_and_shift_gradients(z, grad_z, self.shift)
        found = found[0] + grad_log_det.sum() * z.shape[2:].numel(), found[1]
        mine = zip((self.log_scale, self.shift), found, strict=True)
        return {p: g for p, g in mine if isinstance(p, nn.Parameter) and p.requires_grad}


class ActNorm(ScaleShift):
    """Scale and shift: z = x * exp(log_scale) + shift, per channel.

    Parameters
    ----------
    n_channels : int
        Channels of x.
    scale : float
        Initial scale. The initial shift is 0.
    learned : bool
        Whether scale and shift are parameters or stay fixed.
    data_init : bool
        If True, the first batch in training mode sets scale and shift so that each channel has mean 0 and
        standard deviation `scale`. The buffer `initialised` stores whether this has happened.

    Examples
    --------
    >>> import torch
    >>> from ibinn.flows.mixing import ActNorm
    >>> z, log_det = ActNorm(3, scale=2.0)(torch.ones(1, 3))
    >>> [round(v, 4) for v in z[0].tolist()], round(log_det[0].item(), 4)
    ([2.0, 2.0, 2.0], 2.0794)
    """

    initialised: Tensor

    def __init__(
        self, n_channels: int, scale: float = 1.0, learned: bool = True, data_init: bool = False
    ) -> None:
        super().__init__(n_channels, scale, learned)
        if data_init and not learned:
            raise ValueError("data_init=True sets the scale from data: it needs learned=True")
        self.scale, self.data_init = scale, data_init
        self.register_buffer("initialised", torch.tensor(not data_init))

    @torch.no_grad()
    def start_from(self, x: Tensor) -> None:
        """Set scale and shift from a batch. A constant channel is only shifted."""
        x = full_precision(x).movedim(1, 0).flatten(1)
        mean, std = x.mean(1), x.std(1, correction=0)
        varies = std > 1e-6 * (mean.abs() + 1e-6)
        self.log_scale.copy_(torch.where(varies, math.log(self.scale) - std.clamp_min(1e-30).log(), 0.0))
        self.shift.copy_(-mean * self.log_scale.exp())
        self.initialised.fill_(True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        check_input(self, x, self.n_channels)
        check_dtype(self, x, self.log_scale.dtype)
        if self.data_init and self.training and len(x) and not self.initialised:
            self.start_from(x)
        z = x * per_channel(self.log_scale.exp(), x) + per_channel(self.shift, x)
        return z, self.log_det(x)

    def inverse(self, z: Tensor) -> Tensor:
        check_input(self, z, self.n_channels)
        check_dtype(self, z, self.log_scale.dtype)
        return (z - per_channel(self.shift, z)) * per_channel((-self.log_scale).exp(), z)

    def step_back(self, z: Tensor, grad_z: Tensor, grad_log_det: Tensor) -> Back:
        with torch.no_grad():
            grad_x = grad_z * per_channel(self.log_scale.exp(), z)
            return self.inverse(z), grad_x, self.gradients(z, grad_z, grad_log_det)


class Permute(Isometry):
    """A fixed random permutation of the channels. log_det = 0.

    Parameters
    ----------
    n_channels : int
        Channels of x.
    seed : int
        Seed of the permutation.

    Examples
    --------
    >>> import torch
    >>> from ibinn.flows.mixing import Permute
    >>> x = torch.arange(4.0)[None]
    >>> layer = Permute(4, seed=1)
    >>> sorted(layer(x)[0][0].tolist()), layer.inverse(layer(x)[0])[0].tolist()
    ([0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 2.0, 3.0])
    """

    order: Tensor

    def __init__(self, n_channels: int, seed: int = 0) -> None:
        super().__init__()
        check_channels(self, n_channels)
        self.n_channels = n_channels
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(n_channels, generator=generator, device="cpu")
        self.register_buffer("order", order.to(torch.get_default_device()))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        check_input(self, x, self.n_channels)
        return x[:, self.order], x.new_zeros(x.shape[0])

    def inverse(self, z: Tensor) -> Tensor:
        check_input(self, z, self.n_channels)
        return z[:, self.order.argsort()]


class AffineMix(ScaleShift):
    """z = exp(log_scale) * (Q x) + shift: a fixed rotation of the channels, then a scale and shift per channel.

    Q, a "soft permutation", is a random orthogonal matrix (Haar measure). Its log|det| is 0 and its inverse the
    transpose. The layer is a single matrix product.

    Parameters
    ----------
    n_channels : int
        Channels of x.
    seed : int
        Seed of Q.
    scale : float
        Initial scale. The initial shift is 0.
    learned : bool
        Whether scale and shift are parameters or stay fixed.

    Examples
    --------
    >>> import torch
    >>> from ibinn.flows.mixing import AffineMix
    >>> x = torch.rand(2, 5)
    >>> z, log_det = AffineMix(5)(x)
    >>> bool(torch.allclose(z.norm(dim=1), x.norm(dim=1))), log_det.tolist()
    (True, [0.0, 0.0])
    """

    rotation: Tensor

    def __init__(self, n_channels: int, seed: int = 0, scale: float = 1.0, learned: bool = True) -> None:
        super().__init__(n_channels, scale, learned)
        self.scale = scale
        self.register_buffer("rotation", random_orthogonal(n_channels, seed))

    @torch.no_grad()
    def start_from(self, x: Tensor) -> None:
        """Mix by the principal components of x: z has uncorrelated channels, mean 0 and deviation `scale`.

        LEAST_VARIANCE of the mean variance is added to each component, so that those that hardly vary are not
        scaled up.
        """
        pixels = full_precision(x).movedim(1, 0).flatten(1).cpu().double()  # not all devices have float64
        variance, components = torch.linalg.eigh(torch.cov(pixels, correction=0).reshape(len(pixels), -1))
        # Their signs are arbitrary: the largest entry of each is made positive.
        rotation = (components * components.gather(0, components.abs().argmax(0)[None]).sign()).T.flip(0)
        variance = variance.flip(0).clamp_min(0) + max(LEAST_VARIANCE * float(variance.mean()), 1e-30)
        stretch = self.scale * variance.rsqrt()
        self.rotation.copy_(rotation)
        self.log_scale.copy_(stretch.log())
        self.shift.copy_(-stretch * (rotation @ pixels.mean(1)))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        check_input(self, x, self.n_channels)
        check_dtype(self, x, self.log_scale.dtype)
        if is_plain() or is_cheap(x):
            return mix_channels(
                x, scaled_rotation(self.rotation, self.log_scale), self.shift
            ), self.log_det(x)
        return run(Mix, x, self.rotation, self.log_scale, self.shift, mix_channels), self.log_det(x)

    def inverse(self, z: Tensor) -> Tensor:
        check_input(self, z, self.n_channels)
        check_dtype(self, z, self.log_scale.dtype)
        back = self.inverse_matrix()
        return mix_channels(z, back, -(back * self.shift).sum(1))

    def inverse_matrix(self) -> Tensor:
        """Q^T exp(-log_scale), (C, C)."""
        return self.rotation.T * (-self.log_scale).exp()

    def step_back(self, z: Tensor, grad_z: Tensor, grad_log_det: Tensor) -> Back:
        with torch.no_grad():
            grad_x = mix_channels(grad_z, scaled_rotation(self.rotation, self.log_scale).T)
            return self.inverse(z), grad_x, self.gradients(z, grad_z, grad_log_det)


def per_channel(values: Tensor, x: Tensor) -> Tensor:
    """values (C,) in a shape that broadcasts against x, (B, C) or (B, C, H, W)."""
    return values if x.ndim == 2 else values[:, None, None]


def mix_channels(x: Tensor, matrix: Tensor, shift: Tensor | None = None) -> Tensor:
    """matrix @ (the channels of x) + shift, at every position; never in half precision.

    The output has channels last in memory, where convolutions are fast. Such an input needs no copy.
    """
    with autocast_off(x):
        x = full_precision(x)
        if x.ndim == 2:
            return F.linear(x, matrix, shift)
        batch, channels, height, width = x.shape
        pixels = math.gcd(height * width, 8) if channels <= NARROW and not is_plain() else 1
        if pixels > 1:  # matrix products are slow where rows are short: take several pixels as one row
            matrix = torch.block_diag(*[matrix] * pixels)
            shift = None if shift is None else shift.repeat(pixels)
        # Not a 1x1 convolution: by default GPUs run those in TF32, with 10 bits of mantissa.
        rows = x.permute(0, 2, 3, 1).reshape(-1, pixels * channels)
        return F.linear(rows, matrix, shift).view(batch, height, width, channels).permute(0, 3, 1, 2)


def random_orthogonal(n: int, seed: int) -> Tensor:
    """An (n, n) orthogonal matrix, uniform under the Haar measure, in torch's default dtype."""
    generator = torch.Generator().manual_seed(seed)
    gaussian = torch.randn(n, n, generator=generator, dtype=torch.float64, device="cpu")
    q, r = torch.linalg.qr(gaussian)
    # Without the signs of r's diagonal, q would depend on the conventions of the QR routine.
    return as_default(q * r.diagonal().sign())
