"""Batch-norm statistics re-estimated after training, for exact densities in evaluation mode."""

from collections.abc import Iterable
from contextlib import ExitStack

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ibinn.flows.fast.recompute import frozen_statistics
from ibinn.models.classifier import evaluation_mode


@torch.no_grad()
def refresh_batch_norm(model: nn.Module, batches: Iterable[Tensor]) -> None:
    """Replace running means and variances by those of all batches together, the weights being frozen.

    model is called as model(x) on each batch, of two inputs or more. Everything but batch-norm is in
    evaluation mode: dropout would bend the statistics. The batches may differ in size and in kind.
    Modes are left as they were; after an error so are the statistics.
    """
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    pooled = {norm: Pooled() for norm in norms}
    with evaluation_mode(model), ExitStack() as stack:
        for norm in norms:
            norm.train()
            stack.callback(norm.register_forward_pre_hook(pooled[norm].add).remove)
        stack.enter_context(frozen_statistics(model))
        for x in batches:
            check_batch(x)
            model(x)
    for norm, statistics in pooled.items():
        if statistics.n == 0:
            raise ValueError("refresh_batch_norm got no batches; give it those of the training set")
        norm.load_state_dict(statistics.state(), strict=False)


class Pooled:
    """Per-channel mean and sum of squared deviations over batches (Chan, Golub and LeVeque 1979)."""

    def __init__(self) -> None:
        self.n = 0
        self.mean = self.squares = torch.zeros(())

    def add(self, norm: nn.Module, inputs: tuple[Tensor]) -> None:
        """A forward pre-hook: take in what a batch-norm is about to normalise."""
        x = inputs[0].movedim(1, 0).flatten(1)
        n, mean = x.shape[1], x.mean(1)
        if self.n == 0:
            self.mean, self.squares = torch.zeros_like(mean), torch.zeros_like(mean)
        step, share = mean - self.mean, n / (self.n + n)
        self.squares = self.squares + (x - mean[:, None]).square().sum(1) + self.n * share * step.square()
        self.mean = self.mean + share * step
        self.n += n

    def state(self) -> dict[str, Tensor]:
        """As entries of a batch-norm's state_dict; the variance is the unbiased one, as torch keeps it."""
        return {"running_mean": self.mean, "running_var": self.squares / (self.n - 1)}


def check_batch(x: object) -> None:
    """Raise ValueError unless a batch is a tensor with something in it."""
    if not isinstance(x, Tensor) or len(x) == 0:
        raise ValueError(
            f"each batch must be a tensor of inputs and not empty, not {type(x).__name__}; "
            f"for a loader of (x, y) pass (x for x, y in loader)"
        )
