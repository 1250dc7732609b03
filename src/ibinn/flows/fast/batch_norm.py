"""Batch-norm over images whose batch may be distributed over several processes."""

from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.autograd.function import once_differentiable

from ibinn.flows.precision import autocast_off, full_precision

IMAGE_DIMS = (0, 2, 3)


class BatchNorm(nn.BatchNorm2d):
    """torch's BatchNorm2d. With a `group` of processes, training uses the statistics of all their inputs together.

    torch.nn.SyncBatchNorm does the same, but on GPUs only.
    """

    group: Any = None

    def forward(self, x: Tensor) -> Tensor:
        if self.group is None or not self.training:
            return super().forward(x)
        with autocast_off(x):
            y, mean, var, n = Normalised.apply(
                full_precision(x), self.weight, self.bias, self.eps, self.group
            )  # type: ignore[no-untyped-call]
        if self.track_running_stats:
            self._remember(mean, var * (n / (n - 1)))
        return y.to(x.dtype)  # type: ignore[no-any-return]

    @torch.no_grad()
    def _remember(self, mean: Tensor, var: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        assert self.momentum is not None
        self.num_batches_tracked.add_(1)
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(var, self.momentum)


class Normalised(torch.autograd.Function):
    """x, weight, bias -> weight (x - mean) / std + bias, and the mean, variance and count over all processes.

    One exchange in the forward pass, one in the backward pass.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, group: Any) -> Any:
        n_here = x.numel() // x.shape[1]
        here = x.mean(IMAGE_DIMS)
        squares = (x - across(here)).square().sum(IMAGE_DIMS)
        mean, squares, n = pooled(here, squares, n_here, group)
        var = squares / n
        inverse = (var + eps).rsqrt()
        ctx.save_for_backward(x, weight, mean, inverse)
        ctx.n, ctx.group = n, group
        ctx.mark_non_differentiable(mean, var, n)
        return (x - across(mean)) * across(inverse * weight) + across(bias), mean, var, n

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *rest: Tensor) -> Any:
        x, weight, mean, inverse = ctx.saved_tensors
        unit = (x - across(mean)) * across(inverse)
        grad_bias, grad_weight = grad.sum(IMAGE_DIMS), (grad * unit).sum(IMAGE_DIMS)
        sums = torch.stack([grad_bias, grad_weight])
        dist.all_reduce(sums, group=ctx.group)
        of_mean, of_var = sums / ctx.n
        grad_x = (grad - across(of_mean) - unit * across(of_var)) * across(inverse * weight)
        return grad_x, grad_weight, grad_bias, None, None


def pooled(mean: Tensor, squares: Tensor, n: int, group: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Combine the means, sums of squared deviations and counts of all processes (Chan, Golub and LeVeque 1979)."""
    mine = torch.cat([mean, squares, mean.new_tensor([n])])
    gathered = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, mine, group=group)
    table = torch.stack(gathered)
    means, squares, numbers = table[:, : len(mean)], table[:, len(mean) : -1], table[:, -1:]
    total = numbers.sum()
    mean = (numbers * means).sum(0) / total
    squares = (squares + numbers * (means - mean).square()).sum(0)
    return mean, squares, total


def across(values: Tensor) -> Tensor:
    """(C,) as (C, 1, 1), to broadcast against images."""
    return values[:, None, None]


def set_group(model: nn.Module, group: Any) -> None:
    """Let every batch-norm of a model share its statistics with a group of processes, or stop it with None."""
    for module in model.modules():
        if isinstance(module, BatchNorm):
            module.group = group
