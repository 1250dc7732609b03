"""What stands between couplings: per-channel scale and shift, and fixed mixes of the channels."""

import math

import torch
from torch import Tensor, nn

from ibinn.flows.base import Bijection, check_channels, check_dtype, check_input
from ibinn.precision import as_default, autocast_off, full_precision


class ActNorm(Bijection):
    """z = x * exp(log_scale) + shift, per channel.

    learned=False keeps `scale` and a zero shift for ever. data_init=True sets both from the first
    batch seen in training mode, so that every channel leaves with mean 0 and deviation `scale`; the
    buffer `initialised` remembers it across checkpoints.
    """

    log_scale: Tensor
    shift: Tensor
    initialised: Tensor

    def __init__(
        self, n_channels: int, scale: float = 1.0, learned: bool = True, data_init: bool = False
    ) -> None:
        super().__init__()
        check_channels(self, n_channels)
        if not scale > 0:
            raise ValueError(f"scale is {scale} but ActNorm needs a scale > 0")
        if data_init and not learned:
            raise ValueError("data_init=True sets the scale from data: it needs learned=True")
        self.n_channels, self.scale, self.data_init = n_channels, scale, data_init
        log_scale, shift = torch.full((n_channels,), math.log(scale)), torch.zeros(n_channels)
        if learned:
            self.log_scale, self.shift = nn.Parameter(log_scale), nn.Parameter(shift)
        else:
            self.register_buffer("log_scale", log_scale)
            self.register_buffer("shift", shift)
        self.register_buffer("initialised", torch.tensor(not data_init))

    @torch.no_grad()
    def start_from(self, x: Tensor) -> None:
        """Set scale and shift from a batch. A constant channel, of deviation 0, is only shifted."""
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
        return z, (self.log_scale.sum() * x.shape[2:].numel()).expand(x.shape[0])

    def inverse(self, z: Tensor) -> Tensor:
        check_input(self, z, self.n_channels)
        check_dtype(self, z, self.log_scale.dtype)
        return (z - per_channel(self.shift, z)) * per_channel((-self.log_scale).exp(), z)


class Permute(Bijection):
    """A fixed random order of the channels, from a seed. Volume-preserving."""

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


class Rotate(Bijection):
    """A fixed random orthogonal mix of the channels ("soft permutation"), from a seed.

    The matrix is drawn uniformly (Haar), so its log|det| is 0 and its inverse the transpose.
    """

    rotation: Tensor

    def __init__(self, n_channels: int, seed: int = 0) -> None:
        super().__init__()
        check_channels(self, n_channels)
        self.n_channels = n_channels
        self.register_buffer("rotation", random_orthogonal(n_channels, seed))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        check_input(self, x, self.n_channels)
        check_dtype(self, x, self.rotation.dtype)
        return mix_channels(x, self.rotation), x.new_zeros(x.shape[0])

    def inverse(self, z: Tensor) -> Tensor:
        check_input(self, z, self.n_channels)
        check_dtype(self, z, self.rotation.dtype)
        return mix_channels(z, self.rotation.T)


def per_channel(values: Tensor, x: Tensor) -> Tensor:
    """values (C,) in a shape that broadcasts against x, (B, C) or (B, C, H, W)."""
    return values if x.ndim == 2 else values[:, None, None]


def mix_channels(x: Tensor, matrix: Tensor) -> Tensor:
    """matrix @ (the channels of x), at every position; never in half precision."""
    with autocast_off(x):
        x = full_precision(x)
        if x.ndim == 2:
            return x @ matrix.T
        # Not a 1x1 convolution: GPUs run those in TF32 unless told otherwise, with 10 bits of mantissa.
        return (matrix @ x.flatten(2)).reshape(x.shape)


def random_orthogonal(n: int, seed: int) -> Tensor:
    """An (n, n) orthogonal matrix, uniform under the Haar measure, in torch's default dtype."""
    generator = torch.Generator().manual_seed(seed)
    gaussian = torch.randn(n, n, generator=generator, dtype=torch.float64, device="cpu")
    q, r = torch.linalg.qr(gaussian)
    # Without the signs of r's diagonal, q would favour the conventions of the QR routine.
    return as_default(q * r.diagonal().sign())
