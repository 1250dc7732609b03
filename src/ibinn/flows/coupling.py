"""Affine coupling with a soft clamp on the log-scale (Dinh et al. 2017; the paper's appendix E)."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ibinn.flows.base import Bijection, check_channels, check_input
from ibinn.flows.subnets import Subnet
from ibinn.precision import full_precision

SubnetFactory = Callable[[int, int], nn.Module]  # (channels in, channels out) -> the s,t-network


class AffineCoupling(Bijection):
    """z1 = x1, z2 = x2 * exp(log_s(x1)) + t(x1), with log_s = clamp * tanh(slope * raw).

    x1 (passive) is the first half of the channels, x2 (active) the rest; of an odd number the
    active half gets one more, so that a single channel is still transformed: D = 1 has an empty
    x1 and becomes a learned scale and shift.
    """

    def __init__(
        self, n_channels: int, subnet: SubnetFactory, clamp: float = 0.7, slope: float = 0.1
    ) -> None:
        super().__init__()
        check_channels(self, n_channels)
        if not clamp > 0 or not slope > 0:
            raise ValueError(f"clamp and slope must be positive, not {clamp} and {slope}")
        self.n_channels = n_channels
        self.n_passive = n_channels // 2
        self.clamp, self.slope = clamp, slope
        self.subnet = subnet(self.n_passive, 2 * self.n_outputs)
        self.ndim = self.subnet.ndim if isinstance(self.subnet, Subnet) else None

    @property
    def n_outputs(self) -> int:
        """Channels of log_s and of t: the active ones."""
        return self.n_channels - self.n_passive

    def scale_and_shift(self, x1: Tensor) -> tuple[Tensor, Tensor]:
        """log_s and t, in float32 or better also where the subnet runs in half precision."""
        raw, t = full_precision(self.subnet(x1)).chunk(2, dim=1)
        return self.clamp * torch.tanh(self.slope * raw), t

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        check_input(self, x, self.n_channels, self.ndim)
        x1, x2 = x.tensor_split([self.n_passive], dim=1)
        log_s, t = self.scale_and_shift(x1)
        return torch.cat([x1, x2 * log_s.exp() + t], dim=1), log_s.flatten(1).sum(1)

    def inverse(self, z: Tensor) -> Tensor:
        check_input(self, z, self.n_channels, self.ndim)
        z1, z2 = z.tensor_split([self.n_passive], dim=1)
        log_s, t = self.scale_and_shift(z1)
        return torch.cat([z1, (z2 - t) * (-log_s).exp()], dim=1)
