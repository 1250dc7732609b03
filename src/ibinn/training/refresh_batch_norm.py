"""Re-estimate the statistics of batch-norm after training, for exact densities in evaluation mode."""

from collections.abc import Iterable
from contextlib import ExitStack

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ibinn.flows.fast.recompute import frozen_statistics
from ibinn.models.classifier import evaluation_mode


@torch.no_grad()
def refresh_batch_norm(model: nn.Module, batches: Iterable[Tensor]) -> None:
    """Replace the running means and variances of batch-norm by those of all batches together.

    The weights are frozen, and everything but batch-norm is in evaluation mode: dropout would bias the
    statistics. Afterwards each module is back in its mode. After an error, the statistics are unchanged.

    Parameters
    ----------
    model : nn.Module
        The model. Without batch-norm it is left as it is.
    batches : iterable of Tensor
        Batches of the training set, with two inputs or more each. They may differ in size.

    Examples
    --------
    >>> import torch
    >>> from ibinn import image_flow, refresh_batch_norm
    >>> flow = image_flow((3, 8, 8))
    >>> refresh_batch_norm(flow, torch.rand(64, 3, 8, 8).split(16))
    """
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    if not norms:
        return
    pooled = {norm: Pooled() for norm in norms}
    with evaluation_mode(model), ExitStack() as stack:
        for norm in norms:
            norm.train()
            stack.callback(norm.register_forward_pre_hook(pooled[norm].add).remove)
        stack.enter_context(frozen_statistics(model))
        for x in batches:
            check_not_empty(x)
            model(x)
    for norm, statistics in pooled.items():
        if statistics.n == 0:
            raise ValueError("refresh_batch_norm got no batches; pass batches of the training set")
        norm.load_state_dict(statistics.state(), strict=False)


class Pooled:
    """Per-channel mean and sum of squared deviations over batches (Chan, Golub and LeVeque 1979)."""

    def __init__(self) -> None:
        self.n = 0
        self.mean = self.squares = torch.zeros(())

    def add(self, norm: nn.Module, inputs: tuple[Tensor]) -> None:
        """A forward pre-hook: add the inputs of a batch-norm."""
        x = inputs[0].movedim(1, 0).flatten(1)
        n, mean = x.shape[1], x.mean(1)
        if self.n == 0:
            self.mean, self.squares = torch.zeros_like(mean), torch.zeros_like(mean)
        step, share = mean - self.mean, n / (self.n + n)
        self.squares = self.squares + (x - mean[:, None]).square().sum(1) + self.n * share * step.square()
        self.mean = self.mean + share * step
        self.n += n

    def state(self) -> dict[str, Tensor]:
        """Entries for the state_dict of a batch-norm; the variance is unbiased, as in torch."""
        return {"running_mean": self.mean, "running_var": self.squares / (self.n - 1)}


def check_not_empty(x: object) -> None:
    """Raise ValueError unless a batch is a tensor of at least one input."""
    if not isinstance(x, Tensor) or len(x) == 0:
        raise ValueError(
            f"each batch must be a tensor of at least one input, not {type(x).__name__}; "
            f"for a loader of (x, y) pass (x for x, y in loader)"
        )
