"""Affine coupling with a soft clamp on the log-scale (Dinh et al. 2017; the paper's appendix E)."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ibinn.flows.base import Back, Bijection, check_channels, check_input
from ibinn.flows.fast.fused import log_scale, scale_and_shift
from ibinn.flows.fast.recompute import gradients
from ibinn.flows.precision import full_precision

SubnetFactory = Callable[[int, int], nn.Module]  # (channels in, channels out) -> the s,t-network


class AffineCoupling(Bijection):
    """Affine coupling: z1 = x1, z2 = x2 * exp(log_s(x1)) + t(x1), with log_s = clamp * tanh(slope * raw).

    x1 (passive) is the first half of the channels, x2 (active) the rest. With an odd number the active half has
    one more, so a single channel is still transformed: x1 is then empty, and the layer is a learned scale and
    shift. `n_active` sets another number of active channels.

    Parameters
    ----------
    n_channels : int
        Channels of x.
    subnet : callable
        Builds the network for (raw, t) from its numbers of input and output channels.
    clamp : float
        Bound on the log-scale.
    slope : float
        Slope of the soft clamp at 0, as a factor of `clamp`.
    n_active : int, optional
        Number of active channels; half of them by default.

    Examples
    --------
    >>> import torch
    >>> from functools import partial
    >>> from ibinn.flows.coupling import AffineCoupling
    >>> from ibinn.flows.subnets import dense_subnet
    >>> layer = AffineCoupling(4, partial(dense_subnet, width=8))
    >>> x = torch.rand(2, 4)
    >>> z, log_det = layer(x)
    >>> bool(torch.equal(z[:, :2], x[:, :2])), bool(torch.allclose(layer.inverse(z), x, atol=1e-5))
    (True, True)
    """

    def __init__(
        self,
        n_channels: int,
        subnet: SubnetFactory,
        clamp: float = 0.7,
        slope: float = 0.1,
        n_active: int | None = None,
    ) -> None:
        super().__init__()
        check_channels(self, n_channels)
        if not clamp > 0 or not slope > 0:
            raise ValueError(f"clamp and slope must be positive, not {clamp} and {slope}")
        self.n_channels = n_channels
        self.n_passive = n_channels // 2 if n_active is None else n_channels - n_active
        self.clamp, self.slope = clamp, slope
        self.subnet = subnet(self.n_passive, 2 * self.n_outputs)
        self.ndim: int | None = getattr(self.subnet, "ndim", None)

    def with_subnet(self, subnet: nn.Module) -> "AffineCoupling":
        """The same coupling with another subnet; the parameters are shared, not copied."""
        other = copy.copy(self)
        other._modules = dict(self._modules)
        other.subnet = subnet
        return other

    @property
    def n_outputs(self) -> int:
        """Channels of log_s and of t: the active ones."""
        return self.n_channels - self.n_passive

    def raw_and_shift(self, x1: Tensor) -> tuple[Tensor, Tensor]:
        """raw and t, in float32 or better even if the subnet runs in half precision."""
        raw, t = full_precision(self.subnet(x1)).chunk(2, dim=1)
        return raw, t

    def coarse(self, x: Tensor) -> Tensor:
        """From the resolution of x to that of z, which are the same here."""
        return x

    def fine(self, z: Tensor) -> Tensor:
        """The inverse of coarse."""
        return z

    def split(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """z1 and z2."""
        factor = self.n_outputs // (self.n_channels - self.n_passive)
        check_input(self, z, factor * self.n_channels, self.ndim)
        z1, z2 = z.tensor_split([factor * self.n_passive], dim=1)
        return z1, z2

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        check_input(self, x, self.n_channels, self.ndim)
        x1, x2 = torch.split(x, [self.n_passive, self.n_channels - self.n_passive], dim=1)
        out = full_precision(self.subnet(x1))
        z2, log_det = scale_and_shift(self.coarse(x2), out, self.clamp, self.slope)
        return torch.cat([self.coarse(x1), z2], dim=1), log_det

    def inverse(self, z: Tensor) -> Tensor:
        z1, z2 = self.split(z)
        raw, t = self.raw_and_shift(x1 := self.fine(z1))
        return torch.cat([x1, self.fine((z2 - t) * log_scale(raw, -self.clamp, self.slope).exp())], dim=1)

    def step_back(self, z: Tensor, grad_z: Tensor, grad_log_det: Tensor) -> Back:
        """One call of the subnet gives both the inverse and the gradients."""
        (z1, z2), (g1, g2) = self.split(z), self.split(grad_z)
        with torch.enable_grad():
            x1 = self.fine(z1).detach().requires_grad_()
            raw, t = self.raw_and_shift(x1)
            log_s = log_scale(raw, self.clamp, self.slope)
        with torch.no_grad():
            s = log_s.exp()
            x2 = (z2 - t) / s
            grad_x2 = g2 * s
            grad_log_s = torch.addcmul(grad_log_det.reshape(-1, *[1] * (z.ndim - 1)), grad_x2, x2)
        grad_x1, mine = gradients([log_s, t], [grad_log_s, g2], x1, self)
        x = torch.cat([x1.detach(), self.fine(x2)], dim=1)
        return x, torch.cat([self.fine(g1) + grad_x1, self.fine(grad_x2)], dim=1), mine
