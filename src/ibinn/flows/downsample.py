"""Halving the resolution: i-RevNet's squeeze (Jacobsen et al. 2018), the paper's downsampling coupling."""

import torch
from torch import Tensor
from torch.nn import functional as F

from ibinn.flows.base import Bijection, check_floating, check_input
from ibinn.flows.coupling import AffineCoupling


class Squeeze(Bijection):
    """Space to channels: each 2x2 patch becomes four channels, (C, H, W) <-> (4C, H/2, W/2)."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        check_sides(self, x)
        return F.pixel_unshuffle(x, 2), x.new_zeros(x.shape[0])

    def inverse(self, z: Tensor) -> Tensor:
        if z.ndim != 4 or z.shape[1] % 4:
            raise ValueError(f"z has shape {tuple(z.shape)} but the inverse of Squeeze takes (B, 4C, H, W)")
        check_floating(self, z)
        return F.pixel_shuffle(z, 2)


class DownsampleCoupling(AffineCoupling):
    """z1 = squeeze(x1), z2 = squeeze(x2) * exp(log_s(x1)) + t(x1): (C, H, W) <-> (4C, H/2, W/2).

    The subnet sees x1 at the high resolution and halves it itself (stride 2), which makes the
    downsampling partly learnable.
    """

    @property
    def n_outputs(self) -> int:
        return 4 * (self.n_channels - self.n_passive)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        check_input(self, x, self.n_channels)
        check_sides(self, x)
        x1, x2 = x.tensor_split([self.n_passive], dim=1)
        log_s, t = self.scale_and_shift(x1)
        z2 = F.pixel_unshuffle(x2, 2) * log_s.exp() + t
        return torch.cat([F.pixel_unshuffle(x1, 2), z2], dim=1), log_s.flatten(1).sum(1)

    def inverse(self, z: Tensor) -> Tensor:
        check_input(self, z, 4 * self.n_channels)
        z1, z2 = z.tensor_split([4 * self.n_passive], dim=1)
        x1 = F.pixel_shuffle(z1, 2)
        log_s, t = self.scale_and_shift(x1)
        return torch.cat([x1, F.pixel_shuffle((z2 - t) * (-log_s).exp(), 2)], dim=1)


def check_sides(layer: Bijection, x: Tensor) -> None:
    """Raise ValueError unless x is a floating-point (B, C, H, W) with even H and W."""
    if x.ndim != 4 or x.shape[2] % 2 or x.shape[3] % 2:
        raise ValueError(
            f"x has shape {tuple(x.shape)} but {type(layer).__name__} takes images (B, C, H, W) "
            f"with even H and W; pad the image or use fewer resolutions"
        )
    check_floating(layer, x)
