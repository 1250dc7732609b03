"""Orthonormal cosine transform in place of average pooling (Jacobsen et al. 2019), then flatten to z."""

import math

import torch
from torch import Tensor

from ibinn.flows.base import Isometry, check_dtype, check_input
from ibinn.flows.precision import as_default, autocast_off, full_precision


class DCTPool(Isometry):
    """Orthonormal 2-D DCT-II of each channel, then flatten: (C, H, W) <-> (C*H*W,). log_det = 0.

    The first coefficient of a channel is its mean times sqrt(H*W), so this replaces global average pooling
    without losing information.

    Parameters
    ----------
    shape : tuple of int
        (channels, height, width) of the input.

    Examples
    --------
    >>> import torch
    >>> from ibinn.flows.dct import DCTPool
    >>> z, log_det = DCTPool((3, 4, 4))(torch.ones(2, 3, 4, 4))
    >>> z.shape, round(float(z[0, 0]), 4), round(float(z[0, 1]), 4)
    (torch.Size([2, 48]), 4.0, 0.0)
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
        check_input(self, x, self.shape[0], ndim=4)
        if tuple(x.shape[1:]) != self.shape:
            height, width = x.shape[2] / self.shape[1], x.shape[3] / self.shape[2]
            raise ValueError(
                f"x has shape {tuple(x.shape[1:])} at DCTPool, which was built for {self.shape}: the images "
                f"have {height:g} times the height and {width:g} times the width; resize them or rebuild the flow"
            )
        check_dtype(self, x, self.rows.dtype)
        with autocast_off(x):
            return (self.rows @ full_precision(x) @ self.columns.T).flatten(1), x.new_zeros(x.shape[0])

    def inverse(self, z: Tensor) -> Tensor:
        check_input(self, z, math.prod(self.shape), ndim=2)
        check_dtype(self, z, self.rows.dtype)
        with autocast_off(z):
            return self.rows.T @ full_precision(z).reshape(z.shape[0], *self.shape) @ self.columns


def dct_matrix(n: int) -> Tensor:
    """The (n, n) orthonormal DCT-II: row k is sqrt(2/n) cos(pi k (i + 1/2) / n), row 0 over sqrt(2)."""
    k = torch.arange(n, dtype=torch.float64, device="cpu")
    matrix = math.sqrt(2 / n) * torch.cos(math.pi / n * k[:, None] * (k + 0.5))
    matrix[0] /= math.sqrt(2)
    return as_default(matrix)
