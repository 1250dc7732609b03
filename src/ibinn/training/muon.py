"""The optimiser Muon: AdamW, with orthogonal updates for convolutions (Jordan et al. 2024)."""

from typing import Any

import torch
from torch import Tensor

# Of the polynomial a s + b s^3 + c s^5: a few iterations bring singular values s in (0, 1] close to 1.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
N_ITERATIONS = 5
RMS = 0.2  # of the update's entries, about that of AdamW, so that both have learning rates of the same size


class Muon(torch.optim.AdamW):
    """AdamW; groups with ``orthogonal=True`` take a momentum whose singular values are all replaced by about 1.

    A convolution (n_out, n_in, h, w) counts as the matrix (n_out, n_in h w). If a batch-norm follows, the scale of
    its weights does not matter, and the update turns all its directions at the same pace.

    Parameters
    ----------
    groups : list of dict
        Parameter groups as for AdamW, with the additional key "orthogonal".
    lr : float
        Learning rate.
    momentum : float
        Decay of the average gradient, which looks one step ahead (Nesterov).
    dtype : torch.dtype
        Number format of the orthogonalisation. Half precision is accurate enough.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        lr: float,
        momentum: float = 0.95,
        dtype: torch.dtype = torch.float32,
        **settings: Any,
    ) -> None:
        super().__init__(groups, lr=lr, **settings)
        self.momentum, self.dtype = momentum, dtype

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """A step of both kinds. Orthogonal groups lose their gradients, so that AdamW passes over them."""
        for group in self.param_groups:
            for p in group["params"] if group["orthogonal"] else ():
                if p.grad is not None:
                    self._step_orthogonally(p, group["lr"], group["weight_decay"])
                    p.grad = None
        return super().step(closure)

    def _step_orthogonally(self, p: Tensor, lr: float, weight_decay: float) -> None:
        assert p.grad is not None
        state = self.state[p]
        if "average" not in state:
            state["average"] = torch.zeros_like(p)
            state["step"] = torch.zeros(())  # AdamW expects it in every state that it loads
        average = state["average"].lerp_(p.grad, 1 - self.momentum)
        matrix = p.grad.lerp(average, self.momentum).flatten(1)
        update = orthogonalised(matrix.to(self.dtype)).to(p) * (RMS * max(matrix.shape) ** 0.5)
        p.mul_(1 - lr * weight_decay).add_(update.view(p.shape), alpha=-lr)


def orthogonalised(matrix: Tensor) -> Tensor:
    """U V^T, roughly, of a matrix with the singular value decomposition U S V^T: S becomes mostly 0.7 to 1.2.

    Examples
    --------
    >>> import torch
    >>> matrix = orthogonalised(torch.randn(4, 9, generator=torch.Generator().manual_seed(0)))
    >>> bool(torch.allclose(matrix @ matrix.T, torch.eye(4).to(matrix), atol=0.5))
    True
    """
    a, b, c = COEFFICIENTS
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if is_tall else matrix
    x = x / x.norm().clamp_min(1e-7)
    for _ in range(N_ITERATIONS):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    orthogonal: Tensor = x.T if is_tall else x
    return orthogonal
