"""Layers that halve the resolution: i-RevNet's squeeze (Jacobsen et al. 2018), the paper's coupling."""

from torch import Tensor

from ibinn.flows.base import Bijection, Isometry, check_floating
from ibinn.flows.coupling import AffineCoupling


class Squeeze(Isometry):
    """Space to channels: each 2x2 patch becomes four channels, (C, H, W) <-> (4C, H/2, W/2).

    Examples
    --------
    >>> import torch
    >>> from ibinn.flows.downsample import Squeeze
    >>> z, log_det = Squeeze()(torch.arange(4.0).reshape(1, 1, 2, 2))
    >>> z.flatten().tolist(), z.shape
    ([0.0, 1.0, 2.0, 3.0], torch.Size([1, 4, 1, 1]))
    """

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        check_sides(self, x)
        return squeeze(x), x.new_zeros(x.shape[0])

    def inverse(self, z: Tensor) -> Tensor:
        if z.ndim != 4 or z.shape[1] % 4:
            raise ValueError(f"z has shape {tuple(z.shape)} but the inverse of Squeeze takes (B, 4C, H, W)")
        check_floating(self, z)
        return unsqueeze(z)


class DownsampleCoupling(AffineCoupling):
    """z1 = squeeze(x1), z2 = squeeze(x2) * exp(log_s(x1)) + t(x1): (C, H, W) <-> (4C, H/2, W/2).

    The subnet gets x1 at the high resolution and halves it with a strided convolution. The parameters are those
    of `AffineCoupling`.

    Examples
    --------
    >>> import torch
    >>> from functools import partial
    >>> from ibinn.flows.downsample import DownsampleCoupling
    >>> from ibinn.flows.subnets import conv_subnet
    >>> layer = DownsampleCoupling(4, partial(conv_subnet, width=8, stride=2))
    >>> z, log_det = layer(torch.rand(2, 4, 8, 8))
    >>> z.shape
    torch.Size([2, 16, 4, 4])
    """

    @property
    def n_outputs(self) -> int:
        return 4 * (self.n_channels - self.n_passive)

    def coarse(self, x: Tensor) -> Tensor:
        check_sides(self, x)
        return squeeze(x)

    def fine(self, z: Tensor) -> Tensor:
        return unsqueeze(z)


def squeeze(x: Tensor) -> Tensor:
    """(B, C, H, W) -> (B, 4C, H/2, W/2): channel 4c + 2i + j has the pixels (i, j) of c's patches."""
    batch, channels, height, width = x.shape  # F.pixel_unshuffle does the same, but not for an empty batch
    patches = x.reshape(batch, channels, height // 2, 2, width // 2, 2).permute(0, 1, 3, 5, 2, 4)
    return patches.reshape(batch, 4 * channels, height // 2, width // 2)


def unsqueeze(z: Tensor) -> Tensor:
    """The inverse of squeeze, (B, 4C, H, W) -> (B, C, 2H, 2W)."""
    batch, channels, height, width = z.shape
    patches = z.reshape(batch, channels // 4, 2, 2, height, width).permute(0, 1, 4, 2, 5, 3)
    return patches.reshape(batch, channels // 4, 2 * height, 2 * width)


def check_sides(layer: Bijection, x: Tensor) -> None:
    """Raise ValueError unless x is a floating-point (B, C, H, W) with even H and W."""
    if x.ndim != 4 or x.shape[2] % 2 or x.shape[3] % 2:
        raise ValueError(
            f"x has shape {tuple(x.shape)} but {type(layer).__name__} takes images (B, C, H, W) "
            f"with even H and W; pad the image or use fewer resolutions"
        )
    check_floating(layer, x)
