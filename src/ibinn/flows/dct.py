"""Orthonormal cosine transform instead of average pooling (Jacobsen et al. 2019), then flatten to z."""

import math

import torch
from torch import Tensor

from ibinn.flows.base import Bijection, check_input
from ibinn.precision import autocast_off, full_precision


class DCTPool(Bijection):
    """2-D DCT-II of each channel, orthonormal, then flatten: (C, H, W) <-> (C*H*W,). log_det = 0.

    The first coefficient of a channel is its mean times sqrt(H*W), which is why this replaces
    global average pooling without losing the rest.
    """

    rows: Tensor
    columns: Tensor

    def __init__(self, shape: tuple[int, int, int]) -> None:
        super().__init__()
        if len(shape) != 3 or min(shape) < 1:
            raise ValueError(f"shape must be (channels, height, width), each at least 1, not {shape}")
        self.shape = tuple(shape)
        self.register_buffer("rows", dct_matrix(shape[1]))
        self.register_buffer("columns", dct_matrix(shape[2]))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        check_input(self, x, self.shape[0])
        if tuple(x.shape[1:]) != self.shape:
            raise ValueError(
                f"images arrive as {tuple(x.shape[1:])} (C, H, W) but this DCTPool was built for "
                f"{self.shape}; rebuild the network for the size of your images or resize them"
            )
        with autocast_off(x):
            return (self.rows @ full_precision(x) @ self.columns.T).flatten(1), x.new_zeros(x.shape[0])

    def inverse(self, z: Tensor) -> Tensor:
        check_input(self, z, math.prod(self.shape))
        with autocast_off(z):
            return self.rows.T @ full_precision(z).reshape(-1, *self.shape) @ self.columns


def dct_matrix(n: int) -> Tensor:
    """The (n, n) orthonormal DCT-II: row k is sqrt(2/n) cos(pi k (i + 1/2) / n), row 0 over sqrt(2)."""
    k = torch.arange(n, dtype=torch.float64)
    matrix = math.sqrt(2 / n) * torch.cos(math.pi / n * k[:, None] * (k + 0.5))
    matrix[0] /= math.sqrt(2)
    return matrix.to(torch.get_default_dtype())
