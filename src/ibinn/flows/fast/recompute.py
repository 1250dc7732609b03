"""Training in constant memory: the backward pass recomputes a layer's input from its output.

A flow need not store activations, because its inverse recovers them. Only the input, the output and a fixed number
of activations between are stored. The backward pass compares each of these with the recomputed one and continues
from the stored one, so rounding errors do not build up over the whole depth. Dropout repeats its random draws and
batch-norm its batch statistics; running statistics are updated once, in the forward pass.
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


SEGMENTS = 8  # between stored activations


class NotInvertibleError(ValueError):
    """The inverse is too inaccurate for recomputed gradients."""


def recomputed(chain: "Chain", x: Tensor) -> tuple[Tensor, Tensor]:
    """chain(x), with a backward pass that recomputes the activations from the output."""
    parameters = [p for p in chain.parameters() if p.requires_grad]
    z, log_det = Recomputed.apply(chain, x, *parameters)  # type: ignore[no-untyped-call]
    return z, log_det


class Recomputed(torch.autograd.Function):
    """x, parameters -> z, log_det of a chain."""

    @staticmethod
    def forward(ctx: Any, chain: "Chain", x: Tensor, *parameters: Tensor) -> Any:
        ctx.layers, ctx.states, ctx.autocast = [*flat(chain)], [], autocast_as_now(x)
        n = len(ctx.layers)
        ctx.kept = sorted({i * n // SEGMENTS for i in range(SEGMENTS)} if n else ())
        z, total, kept = x, x.new_zeros(x.shape[0]), []
        for number, layer in enumerate(ctx.layers):
            if number in ctx.kept:
                kept.append(z)
            ctx.states.append(random_state(layer, x))
            z, log_det = layer(z)
            total = total + log_det
        # The parameters too: autograd then raises if they change before the backward pass.
        ctx.save_for_backward(z, *parameters, *kept)
        ctx.n_parameters = len(parameters)
        return z, total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_z: Tensor, grad_log_det: Tensor) -> Any:
        z, *saved = ctx.saved_tensors
        parameters = saved[: ctx.n_parameters]
        kept = dict(zip(ctx.kept, saved[ctx.n_parameters :], strict=True))
        # If the output is not finite, neither are the gradients, and training skips the step.
        is_finite = bool(z.isfinite().all())
        # Allocated at once: small tensors between large ones that come and go would fragment the memory.
        places = {p: torch.empty_like(p) for p in parameters}
        found: dict[Tensor, Tensor] = {}
        with ctx.autocast():
            for number in reversed(range(len(ctx.layers))):
                layer = ctx.layers[number]
                with same_draws(ctx.states[number], z), frozen_statistics(layer):
                    z, grad_z, mine = layer.step_back(z, grad_z, grad_log_det)
                if number in kept:
                    if is_finite:
                        check_recovered(kept[number], z)
                    z = kept[number]
                if not mine.keys() <= places.keys():
                    raise ValueError("constant memory needs the chain's own parameters: no functional_call")
                for parameter, gradient in mine.items():
                    if parameter in found:
                        found[parameter].add_(gradient)
                    else:
                        found[parameter] = places[parameter].copy_(gradient)
                del mine
        return None, grad_z, *[found.get(p) for p in parameters]


def flat(chain: "Chain") -> Iterator[Any]:
    """The layers of a chain and of the chains in it, in order."""
    for layer in chain.layers:
        yield from flat(layer) if type(layer) is type(chain) else [layer]


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
    """A function that makes a context with the current mixed precision."""
    kind = x.device.type
    enabled, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    return lambda: torch.autocast(kind, dtype, enabled=enabled)


def random_state(layer: nn.Module, x: Tensor) -> Tensor | None:
    """The state of the random generator before the layer's dropout draws from it; None if it draws nothing."""
    if not any(isinstance(m, _DropoutNd) and m.training and m.p > 0 for m in layer.modules()):
        return None
    state: Tensor = generator_of(x).get_rng_state()
    return state


def generator_of(x: Tensor) -> Any:
    """The module whose get_rng_state and set_rng_state are those of x's device."""
    return torch if x.device.type == "cpu" else torch.get_device_module(x.device)


@contextmanager
def same_draws(state: Tensor | None, x: Tensor) -> Iterator[None]:
    """Set the random generator to `state` within a with-block."""
    if state is None:
        yield
        return
    generator = generator_of(x)
    before = generator.get_rng_state()
    generator.set_rng_state(state)
    try:
        yield
    finally:
        generator.set_rng_state(before)


def frozen_statistics(layer: nn.Module) -> AbstractContextManager[object]:
    """A context in which batch-norms in training mode do not update their running statistics."""
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
    """Raise NotInvertibleError unless the recomputed activation agrees with the stored one for every sample."""
    if not x.numel():
        return
    tolerance = 1e-2 if torch.is_autocast_enabled(x.device.type) else float(torch.finfo(x.dtype).eps) ** 0.5
    size, error = x.flatten(1).norm(dim=1), (again - x).flatten(1).norm(dim=1)
    worst = float((error / size.clamp_min(0.01 * size.median())).nan_to_num(torch.inf).max())
    if worst > tolerance:
        raise NotInvertibleError(
            f"the inverse of this network has a relative error of {worst:.1e}, more than {tolerance:.0e}, so "
            f"recomputed gradients would be wrong; train without constant memory"
        )
