"""The contract of an invertible layer, and the composition of layers."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ibinn.flows.fast.recompute import gradients, random_state, recomputed, same_draws

# x, its gradient, and those of the parameters
Back = tuple[Tensor, Tensor, dict[nn.Parameter, Tensor]]


class Bijection(nn.Module, ABC):
    """An invertible map x -> z with a tractable Jacobian.

    forward(x) -> z, log_det    log_det = log|det dz/dx|, shape (B,), in nats
    inverse(z) -> x             inverse(forward(x)[0]) == x
    """

    if TYPE_CHECKING:  # nn.Module.__call__ is untyped

        def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]: ...

    @abstractmethod
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, ...) -> z (B, ...), log|det dz/dx| (B,)."""

    @abstractmethod
    def inverse(self, z: Tensor) -> Tensor:
        """z (B, ...) -> the x with forward(x)[0] == z."""

    def step_back(self, z: Tensor, grad_z: Tensor, grad_log_det: Tensor) -> Back:
        """x, its gradient and those of the parameters, from z and the gradients of z and log_det.

        What the backward pass does where no activations were kept. A layer that can do better than inverse,
        forward and autograd overrides it.
        """
        state = random_state(self, z)
        with torch.no_grad():
            x = self.inverse(z)
        with torch.enable_grad(), same_draws(state, z):
            x = x.detach().requires_grad_()
            again, log_det = self(x)
        return x.detach(), *gradients([again, log_det], [grad_z, grad_log_det], x, self)


class Isometry(Bijection):
    """A fixed orthogonal map: log_det = 0, no parameters, and gradients go back as the values do."""

    def step_back(self, z: Tensor, grad_z: Tensor, grad_log_det: Tensor) -> Back:
        return self.inverse(z), self.inverse(grad_z), {}


class Chain(Bijection):
    """Layers applied one after the other; their log-dets add up.

    With constant_memory set, training recomputes activations on the way back instead of keeping them, for some
    more time; see recompute.py.
    """

    constant_memory = False

    def __init__(self, *layers: Bijection) -> None:
        super().__init__()
        for position, layer in enumerate(layers):
            if not isinstance(layer, Bijection):
                raise ValueError(
                    f"layer {position} of a Chain is a {type(layer).__name__}, not a Bijection; "
                    f"call Chain(first, second, ...) with invertible layers"
                )
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.constant_memory and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            return recomputed(self, x)
        total = x.new_zeros(x.shape[0])
        for layer in self.layers:
            x, log_det = layer(x)
            total = total + log_det
        return x, total

    def inverse(self, z: Tensor) -> Tensor:
        for layer in reversed(self.layers):
            assert isinstance(layer, Bijection)
            z = layer.inverse(z)
        return z


def check_channels(layer: nn.Module, n_channels: int) -> None:
    """Raise ValueError for a layer over no channels."""
    if n_channels < 1:
        raise ValueError(f"n_channels is {n_channels} but {type(layer).__name__} needs at least 1")


def check_input(layer: nn.Module, x: Tensor, n_channels: int, ndim: int | None = None) -> None:
    """Raise ValueError unless x is floating-point, (B, C) or (B, C, H, W), with C = n_channels.

    ndim = 2 or 4 allows only one of the two.
    """
    name = type(layer).__name__
    if x.ndim not in ((2, 4) if ndim is None else (ndim,)):
        takes = {
            2: "vectors (B, C)",
            4: "images (B, C, H, W)",
            None: "vectors (B, C) or images (B, C, H, W)",
        }
        raise ValueError(
            f"this {name} takes {takes[ndim]} but x has shape {tuple(x.shape)}; "
            f"add or drop dimensions, for a single input x[None]"
        )
    if x.shape[1] != n_channels:
        raise ValueError(
            f"the channels of x are {x.shape[1]} (shape {tuple(x.shape)}) but this {name} was built for "
            f"{n_channels}; rebuild it for {x.shape[1]} or check the order of the dimensions"
        )
    check_floating(layer, x)


def check_floating(layer: nn.Module, x: Tensor) -> None:
    """Raise ValueError unless x is of a real floating-point type."""
    if not x.is_floating_point():
        raise ValueError(
            f"x has dtype {x.dtype} but {type(layer).__name__} takes floating-point values; "
            f"convert it with x.to(torch.get_default_dtype())"
        )


def check_dtype(layer: nn.Module, x: Tensor, dtype: torch.dtype) -> None:
    """Raise ValueError unless x has this dtype, or a half precision as autocast makes them."""
    if x.dtype not in (dtype, torch.float16, torch.bfloat16):
        raise ValueError(
            f"x has dtype {x.dtype} but this {type(layer).__name__} works in {dtype}; "
            f"convert it with x.to({dtype})"
        )
