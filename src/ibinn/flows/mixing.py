"""What stands between couplings: per-channel scale and shift, and fixed mixes of the channels."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ibinn.flows.base import Back, Bijection, Isometry, check_channels, check_dtype, check_input
from ibinn.flows.fast.fused import Mix, call, is_cheap, is_plain, scale_and_shift_gradients, scaled
from ibinn.flows.precision import as_default, autocast_off, full_precision

NARROW = 4  # channels up to which several pixels are mixed in one row
LEAST_VARIANCE = 1e-4  # of a principal component, as a share of the mean one


class Scaled(Bijection):
    """What layers that end in z = exp(log_scale) * ... + shift, per channel, have in common."""

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
        """Those of log_scale and shift, where they are learned."""
        found = scale_and_shift_gradients(z, grad_z, self.shift)
        found = found[0] + grad_log_det.sum() * z.shape[2:].numel(), found[1]
        mine = zip((self.log_scale, self.shift), found, strict=True)
        return {p: g for p, g in mine if isinstance(p, nn.Parameter) and p.requires_grad}


class ActNorm(Scaled):
    """z = x * exp(log_scale) + shift, per channel.

    learned=False keeps `scale` and a zero shift for ever. data_init=True sets both from the first
    batch seen in training mode, so that every channel leaves with mean 0 and deviation `scale`; the
    buffer `initialised` remembers it across checkpoints.
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


class AffineMix(Scaled):
    """z = exp(log_scale) * (Q x) + shift: a fixed orthogonal mix, then a scale and shift per channel.

    Q, a "soft permutation", is drawn from a seed, uniformly (Haar): its log|det| is 0, its inverse the transpose.
    All is one matrix product. learned=False keeps scale and shift as they start: `scale` and 0, or from data.
    """

    rotation: Tensor

    def __init__(self, n_channels: int, seed: int = 0, scale: float = 1.0, learned: bool = True) -> None:
        super().__init__(n_channels, scale, learned)
        self.scale = scale
        self.register_buffer("rotation", random_orthogonal(n_channels, seed))

    @torch.no_grad()
    def start_from(self, x: Tensor) -> None:
        """Mix by the principal components of x: channels leave uncorrelated, with mean 0 and deviation `scale`.

        Components that hardly vary are not blown up: LEAST_VARIANCE of the mean variance is added to each.
        """
        pixels = full_precision(x).movedim(1, 0).flatten(1).cpu().double()  # not all devices have float64
        variance, components = torch.linalg.eigh(torch.cov(pixels, correction=0).reshape(len(pixels), -1))
        # Their signs are arbitrary: the largest entry of each is made positive.
        rotation = (components * components.gather(0, components.abs().argmax(0)[None]).sign()).T
        variance = variance.clamp_min(0) + max(LEAST_VARIANCE * float(variance.mean()), 1e-30)
        stretch = self.scale * variance.rsqrt()
        self.rotation.copy_(rotation)
        self.log_scale.copy_(stretch.log())
        self.shift.copy_(-stretch * (rotation @ pixels.mean(1)))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        check_input(self, x, self.n_channels)
        check_dtype(self, x, self.log_scale.dtype)
        if is_plain() or is_cheap(x):
            return mix_channels(x, scaled(self.rotation, self.log_scale), self.shift), self.log_det(x)
        return call(Mix, x, self.rotation, self.log_scale, self.shift, mix_channels), self.log_det(x)

    def inverse(self, z: Tensor) -> Tensor:
        check_input(self, z, self.n_channels)
        check_dtype(self, z, self.log_scale.dtype)
        back = self.rotation.T * (-self.log_scale).exp()
        return mix_channels(z, back, -(back * self.shift).sum(1))

    def step_back(self, z: Tensor, grad_z: Tensor, grad_log_det: Tensor) -> Back:
        with torch.no_grad():
            grad_x = mix_channels(grad_z, scaled(self.rotation, self.log_scale).T)
            return self.inverse(z), grad_x, self.gradients(z, grad_z, grad_log_det)


def per_channel(values: Tensor, x: Tensor) -> Tensor:
    """values (C,) in a shape that broadcasts against x, (B, C) or (B, C, H, W)."""
    return values if x.ndim == 2 else values[:, None, None]


def mix_channels(x: Tensor, matrix: Tensor, shift: Tensor | None = None) -> Tensor:
    """matrix @ (the channels of x) + shift, at every position; never in half precision.

    Images come out channels-last in memory, which convolutions like, and go in so without a copy.
    """
    with autocast_off(x):
        x = full_precision(x)
        if x.ndim == 2:
            return F.linear(x, matrix, shift)
        batch, channels, height, width = x.shape
        pixels = math.gcd(height * width, 8) if channels <= NARROW and not is_plain() else 1
        if pixels > 1:  # matrix products are slow where rows are short: take several pixels as one row
            matrix = torch.block_diag(*[matrix] * pixels)  # type: ignore[no-untyped-call]
            shift = None if shift is None else shift.repeat(pixels)
        # Not a 1x1 convolution: GPUs run those in TF32 unless told otherwise, with 10 bits of mantissa.
        rows = x.permute(0, 2, 3, 1).reshape(-1, pixels * channels)
        return F.linear(rows, matrix, shift).view(batch, height, width, channels).permute(0, 3, 1, 2)


def random_orthogonal(n: int, seed: int) -> Tensor:
    """An (n, n) orthogonal matrix, uniform under the Haar measure, in torch's default dtype."""
    generator = torch.Generator().manual_seed(seed)
    gaussian = torch.randn(n, n, generator=generator, dtype=torch.float64, device="cpu")
    q, r = torch.linalg.qr(gaussian)
    # Without the signs of r's diagonal, q would favour the conventions of the QR routine.
    return as_default(q * r.diagonal().sign())
