"""Training whose memory does not grow with depth: on the way back a layer's input is recomputed from its output.

A flow needs no activations kept: its inverse gives them back. Kept are the input, for a check, and the output.
Dropout repeats its draws, batch-norm its batch statistics, and running statistics are updated once, on the way up.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

if TYPE_CHECKING:
    from ibinn.flows.base import Chain


class NotInvertibleError(ValueError):
    """The inverse misses its input by so much that gradients recomputed from it would be wrong."""


def recomputed(chain: "Chain", x: Tensor) -> tuple[Tensor, Tensor]:
    """chain(x), its activations recomputed from the output when gradients are asked for."""
    parameters = [p for p in chain.parameters() if p.requires_grad]
    z, log_det = Recomputed.apply(chain, parameters, x, *parameters)  # type: ignore[no-untyped-call]
    return z, log_det


class Recomputed(torch.autograd.Function):
    """x, parameters -> z, log_det of a chain."""

    @staticmethod
    def forward(ctx: Any, chain: "Chain", parameters: list[nn.Parameter], x: Tensor, *same: Tensor) -> Any:
        ctx.layers, ctx.parameters, ctx.states = [*flat(chain)], parameters, []
        ctx.autocast = autocast_as_now(x)
        z, total = x, x.new_zeros(x.shape[0])
        for layer in ctx.layers:
            ctx.states.append(random_state(layer, x))
            z, log_det = layer(z)
            total = total + log_det
        ctx.save_for_backward(x, z)
        return z, total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_z: Tensor, grad_log_det: Tensor) -> Any:
        x, z = ctx.saved_tensors
        found: dict[nn.Parameter, Tensor] = {}
        with ctx.autocast():
            for layer, state in zip(reversed(ctx.layers), reversed(ctx.states), strict=True):
                with same_draws(state, x), frozen_statistics(layer):
                    z, grad_z, mine = layer.step_back(z, grad_z, grad_log_det)
                for parameter, gradient in mine.items():
                    found[parameter] = found[parameter] + gradient if parameter in found else gradient
            check_recovered(x, z)
        return None, None, grad_z, *[found.get(p) for p in ctx.parameters]


def flat(chain: "Chain") -> Iterator[Any]:
    """The layers of a chain and of the chains in it, in order."""
    for layer in chain.layers:
        yield from flat(layer) if isinstance(layer, type(chain)) else [layer]


def gradients(
    outputs: list[Tensor], grad_outputs: list[Tensor], x: Tensor, layer: nn.Module
) -> tuple[Tensor, dict[nn.Parameter, Tensor]]:
    """Gradients of x and of the layer's parameters, for outputs that were computed from them."""
    parameters = [p for p in layer.parameters() if p.requires_grad]
    pairs = [(o, g) for o, g in zip(outputs, grad_outputs, strict=True) if o.requires_grad]
    if not pairs:
        return torch.zeros_like(x), {}
    heads, tails = zip(*pairs, strict=True)
    grad_x, *rest = torch.autograd.grad(heads, [x, *parameters], tails, allow_unused=True)
    mine = {p: g for p, g in zip(parameters, rest, strict=True) if g is not None}
    return torch.zeros_like(x) if grad_x is None else grad_x, mine


def autocast_as_now(x: Tensor) -> Any:
    """A context that repeats the mixed precision of this moment."""
    kind = x.device.type
    enabled, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    return lambda: torch.autocast(kind, dtype, enabled=enabled)


def random_state(layer: nn.Module, x: Tensor) -> Tensor | None:
    """The state that the layer's dropout is about to draw from; None where it draws nothing."""
    if not any(isinstance(m, _DropoutNd) and m.training and m.p > 0 for m in layer.modules()):
        return None
    return torch.cuda.get_rng_state(x.device) if x.device.type == "cuda" else torch.get_rng_state()


@contextmanager
def same_draws(state: Tensor | None, x: Tensor) -> Iterator[None]:
    """Random draws as they were at `state`, for the time of a with-block."""
    if state is None:
        yield
        return
    on_cuda = x.device.type == "cuda"
    with torch.random.fork_rng([x.device] if on_cuda else []):
        if on_cuda:
            torch.cuda.set_rng_state(state, x.device)
        else:
            torch.set_rng_state(state)
        yield


def frozen_statistics(layer: nn.Module) -> AbstractContextManager[object]:
    """Batch-norm uses the statistics of the batch, as before, but does not count it a second time."""
    norms = [
        m for m in layer.modules() if isinstance(m, _BatchNorm) and m.training and m.track_running_stats
    ]
    if not norms:
        return nullcontext()
    stack = ExitStack()
    for norm in norms:
        norm.track_running_stats = False
        stack.callback(setattr, norm, "track_running_stats", True)
    return stack


def check_recovered(x: Tensor, again: Tensor) -> None:
    """NotInvertibleError unless the recomputed input agrees with the one that was kept."""
    half = torch.is_autocast_enabled(x.device.type)
    tolerance = 1e-2 if half else float(torch.finfo(x.dtype).eps) ** 0.5
    error = float((again - x).abs().max() / x.abs().max().clamp_min(1.0)) if x.numel() else 0.0
    if not error <= tolerance:
        raise NotInvertibleError(
            f"the inverse of this network misses its input by {error:.1e} where {tolerance:.0e} is needed, so "
            f"gradients recomputed from it would be wrong; train without constant memory, or with a smaller clamp"
        )
