"""Channels that become latent variables early, while the other layers go on with the rest (Dinh et al. 2017)."""

import torch
from torch import Tensor

from ibinn.flows.base import Bijection, check_input


class FactorOut(Bijection):
    """z = (rest(x1), x2): the last channels become latent variables at once, the others pass through `rest`.

    Parameters
    ----------
    n_channels : int
        Channels of x.
    n_factored : int
        Number of channels that are set aside.
    rest : Bijection
        Maps the other channels to vectors.

    Examples
    --------
    >>> import torch
    >>> from ibinn.flows.dct import DCTPool
    >>> from ibinn.flows.factor_out import FactorOut
    >>> layer = FactorOut(4, 1, rest=DCTPool((3, 2, 2)))
    >>> x = torch.rand(5, 4, 2, 2)
    >>> z, log_det = layer(x)
    >>> z.shape, bool(torch.equal(z[:, 12:], x[:, 3].flatten(1)))
    (torch.Size([5, 16]), True)
    """

    def __init__(self, n_channels: int, n_factored: int, rest: Bijection) -> None:
        super().__init__()
        if not 0 < n_factored < n_channels:
            raise ValueError(f"n_factored is {n_factored} but must be between 1 and {n_channels - 1}")
        self.n_channels, self.n_factored, self.rest = n_channels, n_factored, rest

    @property
    def n_passed_on(self) -> int:
        """Channels that pass through `rest`."""
        return self.n_channels - self.n_factored

    def passed_on(self, x: Tensor) -> Tensor:
        """x1, the input of `rest`."""
        return x[:, : self.n_passed_on]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        check_input(self, x, self.n_channels, ndim=4)
        z1, log_det = self.rest(self.passed_on(x))
        return torch.cat([z1, x[:, self.n_passed_on :].flatten(1)], dim=1), log_det

    def inverse(self, z: Tensor) -> Tensor:
        n_pixels = z.shape[1] // self.n_channels
        check_input(self, z, n_pixels * self.n_channels, ndim=2)
        z1, z2 = z.tensor_split([self.n_passed_on * n_pixels], dim=1)
        x1 = self.rest.inverse(z1)
        return torch.cat([x1, z2.reshape(-1, self.n_factored, *x1.shape[2:])], dim=1)
