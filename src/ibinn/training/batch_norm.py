"""Batch-norm statistics re-estimated after training, for exact densities in evaluation mode."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ibinn.models.classifier import evaluation_mode


@torch.no_grad()
def refresh_batch_norm(model: nn.Module, batches: Iterable[Tensor]) -> None:
    """Replace running means and variances by those of the batches, the weights being frozen.

    model is called as model(x) on each batch. Everything but batch-norm is in evaluation mode:
    dropout would bend the statistics. Each batch counts by its size, so a short last one does no
    harm. Modes are left as they were.
    """
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    momenta = [norm.momentum for norm in norms]
    seen = 0
    with evaluation_mode(model):
        try:
            for norm in norms:
                norm.train()
            for x in batches:
                seen += len(x)
                for norm in norms:
                    norm.momentum = len(x) / seen  # makes the running statistics a plain mean
                model(x)
        finally:
            for norm, momentum in zip(norms, momenta, strict=True):
                norm.momentum = momentum
                norm.eval()
    if seen == 0:
        raise ValueError("refresh_batch_norm got no batches; give it those of the training set")
