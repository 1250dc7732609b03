"""The affine maps of the layers with custom backward passes: the same values in fewer passes over memory.

IBINN_PLAIN=1 in the environment turns off every such path, here and in other files. The plain formulas are then
differentiated by autograd, as they are under torch.export and torch.compile.
"""

import os
from typing import Any

import torch
from torch import Tensor

FEW = 2**15  # up to this many numbers in a tensor, autograd's own functions are faster
PLAIN = os.environ.get("IBINN_PLAIN", "") not in ("", "0")


def is_plain() -> bool:
    """Whether to use the plain formulas only."""
    return PLAIN or torch.compiler.is_compiling()


def is_cheap(x: Tensor) -> bool:
    """Whether a custom function would cost more than its passes over x save."""
    return torch.is_grad_enabled() and x.numel() < FEW


def run(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """function.apply, or only its forward if no gradients are needed."""
    if torch.is_grad_enabled():
        return function.apply(*arguments)
    return function.forward(*arguments)


def scale_and_shift(x2: Tensor, out: Tensor, clamp: float, slope: float) -> tuple[Tensor, Tensor]:
    """x2 * exp(log_s) + t and the sum of log_s over all but the first dimension, from out = (raw, t)."""
    if is_plain() or is_cheap(x2):
        raw, t = out.chunk(2, dim=1)
        log_s = log_scale(raw, clamp, slope)
        return x2 * log_s.exp() + t, log_s.flatten(1).sum(1)
    z2, log_det, *_ = run(ScaleAndShift, x2, out, clamp, slope)
    return z2, log_det


def log_scale(raw: Tensor, clamp: float, slope: float) -> Tensor:
    """log_s = clamp * tanh(slope * raw)."""
    if is_plain():
        return clamp * torch.tanh(slope * raw)
    return affine((2 * slope * raw).sigmoid_(), 2 * clamp, -clamp)  # much cheaper than a tanh, on CPUs


def affine(x: Tensor, scale: float, shift: float) -> Tensor:
    """scale * x + shift in one pass."""
    return torch.add(x.new_full((), shift), x, alpha=scale)


def inner(x: Tensor) -> list[int]:
    """All dimensions but the first."""
    return list(range(1, x.ndim))


class ScaleAndShift(torch.autograd.Function):
    """x2, out -> z2, log_det, s = exp(log_s) and the sigmoid.

    The last two are for the backward pass only. As outputs they have gradients of their own, so the backward
    pass can itself be differentiated.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x2: Tensor, out: Tensor, clamp: float, slope: float) -> tuple[Tensor, ...]:
        raw, t = out.chunk(2, dim=1)
        sigmoid = (2 * slope * raw).sigmoid_()
        log_s = affine(sigmoid, 2 * clamp, -clamp)
        log_det, s = log_s.sum(inner(log_s)), log_s.exp_()
        return torch.addcmul(t, x2, s), log_det, s, sigmoid

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x2, _, ctx.clamp, ctx.slope = inputs
        ctx.save_for_backward(x2, *output[2:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad_z2: Any, grad_log_det: Any, grad_s: Any, grad_sigmoid: Any) -> Any:
        x2, s, sigmoid = ctx.saved_tensors
        grad_z2 = torch.zeros_like(s) if grad_z2 is None else grad_z2
        zero = s.new_zeros(())
        grad_x2 = grad_z2 * s
        per_sample = zero if grad_log_det is None else grad_log_det.reshape(-1, *[1] * (x2.ndim - 1))
        grad_log_s = torch.addcmul(per_sample, grad_x2, x2)
        if grad_s is not None:
            grad_log_s = grad_log_s + grad_s * s
        if grad_sigmoid is not None:
            grad_log_s = grad_log_s + grad_sigmoid / (2 * ctx.clamp)
        steepness = torch.addcmul(sigmoid, sigmoid, sigmoid, value=-1)
        grad_raw = torch.addcmul(zero, grad_log_s, steepness, value=4 * ctx.clamp * ctx.slope)
        return grad_x2, torch.cat([grad_raw, grad_z2], dim=1), None, None


class Mix(torch.autograd.Function):
    """x, rotation, log_scale, shift -> exp(log_scale) * (rotation x) + shift, for a fixed rotation.

    mix(x, matrix, shift) multiplies the channels by a matrix. The gradient of log_scale is computed from the
    output; autograd would compute one for the whole matrix.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, rotation: Tensor, log_scale: Tensor, shift: Tensor, mix: Any) -> Tensor:
        mixed: Tensor = mix(x, scaled_rotation(rotation, log_scale), shift)
        return mixed

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, rotation, log_scale, shift, ctx.mix = inputs
        ctx.dtype = x.dtype
        ctx.save_for_backward(output, rotation, log_scale, shift)

    @staticmethod
    def backward(ctx: Any, grad_z: Tensor) -> Any:
        z, rotation, log_scale, shift = ctx.saved_tensors
        grad_x = ctx.mix(grad_z, scaled_rotation(rotation, log_scale).T).to(ctx.dtype)
        if not any(ctx.needs_input_grad[2:]):
            return grad_x, None, None, None, None
        return grad_x, None, *scale_and_shift_gradients(z, grad_z, shift), None


def scaled_rotation(rotation: Tensor, log_scale: Tensor) -> Tensor:
    """The matrix of x -> exp(log_scale) * (rotation x)."""
    return log_scale.exp()[:, None] * rotation


def scale_and_shift_gradients(z: Tensor, grad_z: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of log_scale and shift, (C,) each, for z = exp(log_scale) * ... + shift."""
    others = [0, *range(2, z.ndim)]
    grad_shift = grad_z.sum(others)
    return (grad_z * z).sum(others) - grad_shift * shift, grad_shift
