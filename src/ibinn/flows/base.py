"""The interface of an invertible layer, and the composition of layers."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ibinn.flows.fast.recompute import gradients, random_state, recomputed, same_draws

# x, its gradient, and those of the parameters
Back = tuple[Tensor, Tensor, dict[nn.Parameter, Tensor]]


class Bijection(nn.Module, ABC):
    """Base class of invertible layers: a map x -> z with a tractable Jacobian.

    A subclass defines `forward`, which returns z and log|det dz/dx| of shape (B,) in nats, and `inverse`, with
    ``inverse(forward(x)[0]) == x``.

    Examples
    --------
    >>> import math
    >>> import torch
    >>> from ibinn import Bijection
    >>> class Double(Bijection):
    ...     def forward(self, x):
    ...         return 2 * x, torch.full((len(x),), x[0].numel() * math.log(2))
    ...
    ...     def inverse(self, z):
    ...         return z / 2
    >>> z, log_det = Double()(torch.ones(2, 3))
    >>> z[0].tolist(), round(float(log_det[0]), 4)
    ([2.0, 2.0, 2.0], 2.0794)
    """

    if TYPE_CHECKING:  # nn.Module.__call__ is untyped

        def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]: ...

    @abstractmethod
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map x to z.

        Parameters
        ----------
        x : Tensor
            Inputs, shape (B, ...).

        Returns
        -------
        z : Tensor
            Outputs, shape (B, ...), with as many values as x.
        log_det : Tensor
            log|det dz/dx| in nats, shape (B,).
        """

    @abstractmethod
    def inverse(self, z: Tensor) -> Tensor:
        """Map z back to the x with ``forward(x)[0] == z``.

        Parameters
        ----------
        z : Tensor
            Outputs of `forward`, shape (B, ...).

        Returns
        -------
        Tensor
            Inputs, shape (B, ...).
        """

    def step_back(self, z: Tensor, grad_z: Tensor, grad_log_det: Tensor) -> Back:
        """x, its gradient and those of the parameters, from z and the gradients of z and log_det.

        The backward pass when activations are not stored. A layer overrides it if it can do this with less work
        than inverse, forward and autograd.
        """
        state = random_state(self, z)
        with torch.no_grad():
            x = self.inverse(z)
        with torch.enable_grad(), same_draws(state, z):
            x = x.detach().requires_grad_()
            again, log_det = self(x)
        return x.detach(), *gradients([again, log_det], [grad_z, grad_log_det], x, self)


class Isometry(Bijection):
    """A fixed orthogonal map: log_det = 0, no parameters, and gradients are mapped back like values."""

    def step_back(self, z: Tensor, grad_z: Tensor, grad_log_det: Tensor) -> Back:
        return self.inverse(z), self.inverse(grad_z), {}


class Chain(Bijection):
    """A sequence of invertible layers; the log-dets add up.

    Parameters
    ----------
    *layers : Bijection
        Layers in the order in which `forward` applies them.

    Attributes
    ----------
    constant_memory : bool
        If True, training recomputes activations in the backward pass instead of storing them. This takes more
        time, but memory does not grow with depth. By default False.

    Examples
    --------
    >>> import torch
    >>> from ibinn import Chain
    >>> from ibinn.flows.downsample import Squeeze
    >>> from ibinn.flows.mixing import AffineMix
    >>> flow = Chain(Squeeze(), AffineMix(12))
    >>> z, log_det = flow(torch.rand(5, 3, 8, 8))
    >>> z.shape, log_det.shape, flow.inverse(z).shape
    (torch.Size([5, 12, 4, 4]), torch.Size([5]), torch.Size([5, 3, 8, 8]))
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
