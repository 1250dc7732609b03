"""The tables of layers and networks that the property tests run over.

A layer or network is done when it has an entry here: round trip, log-det, gradients, saving,
copying and exporting are then tested with no new test code.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from hypothesis import strategies as st
from torch import nn

from ibinn import Bijection, Chain, dense_flow, image_flow
from ibinn.flows.coupling import AffineCoupling
from ibinn.flows.dct import DCTPool
from ibinn.flows.downsample import DownsampleCoupling, Squeeze
from ibinn.flows.factor_out import FactorOut
from ibinn.flows.mixing import ActNorm, AffineMix, Permute
from ibinn.flows.subnets import SummarySubnet, conv_subnet, dense_subnet, light_subnet
from ibinn.models.architectures import default_network


class Case(NamedTuple):
    make: Callable[[tuple[int, ...]], Bijection]
    shapes: st.SearchStrategy[tuple[int, ...]]
    example: tuple[int, ...] = (4, 4, 4)


def images(channels, sides, step=1):
    """Shapes (C, H, W) with at most 200 values, so that the full Jacobian is at hand."""
    side = st.integers(sides[0], sides[1]).map(lambda n: n * step)
    shapes = st.tuples(st.integers(*channels), side, side)
    return shapes.filter(lambda shape: math.prod(shape) <= 200)


vectors = st.tuples(st.integers(1, 12))
conv = partial(conv_subnet, width=5)
dense = partial(dense_subnet, width=7)
summary = partial(SummarySubnet, width=5, widths=(4, 6), n_summary=3, reduction=2)


def flow_of(shape, blocks=(1, 1), widths=64, dropouts=0.0, seed=0, **settings):
    """An image flow of a few blocks; a single width or dropout stands for all resolutions."""
    widths, dropouts = (
        value if isinstance(value, tuple) else (value,) * len(blocks) for value in (widths, dropouts)
    )
    sizes = {"blocks": blocks, "widths": widths, "dropouts": dropouts}
    return image_flow(shape, replace(default_network(shape), **sizes, **settings), seed)


def small_image_flow(shape):
    return flow_of(shape, blocks=(2, 1), widths=(6, 6), dropouts=(0.0, 0.2), dense_width=8)


LAYERS = {
    "conv coupling": Case(lambda s: AffineCoupling(s[0], conv), images((2, 7), (1, 6))),
    "conv coupling, no first ReLU": Case(
        lambda s: AffineCoupling(s[0], partial(conv, first_relu=False)), images((2, 7), (1, 6))
    ),
    "light conv coupling": Case(
        lambda s: AffineCoupling(s[0], partial(light_subnet, width=5), clamp=2.0, slope=0.5),
        images((2, 7), (1, 6)),
    ),
    "dense coupling": Case(lambda s: AffineCoupling(s[0], dense, clamp=2.0), vectors, (4,)),
    "dense coupling with dropout": Case(
        lambda s: AffineCoupling(s[0], partial(dense, dropout=0.5)), vectors, (4,)
    ),
    "downsampling coupling": Case(
        lambda s: DownsampleCoupling(s[0], partial(conv, stride=2), slope=0.2),
        images((2, 5), (1, 3), step=2),
    ),
    "light downsampling coupling": Case(
        lambda s: DownsampleCoupling(s[0], partial(light_subnet, width=5, stride=2, dropout=0.2)),
        images((2, 5), (1, 3), step=2),
    ),
    "one active channel": Case(
        lambda s: AffineCoupling(s[0], conv, clamp=2.0, slope=0.5, n_active=1), images((2, 7), (1, 6))
    ),
    "summary coupling": Case(
        lambda s: AffineCoupling(s[0], summary, n_active=1),
        images((4, 4), (2, 5)),
    ),
    "factor out": Case(
        lambda s: FactorOut(s[0], 1, Chain(AffineMix(s[0] - 1), DCTPool((s[0] - 1, *s[1:])))),
        images((2, 7), (1, 6)),
    ),
    "squeeze": Case(lambda s: Squeeze(), images((1, 5), (1, 3), step=2)),
    "scale on images": Case(lambda s: ActNorm(s[0], scale=0.75), images((1, 7), (1, 6))),
    "scale on vectors": Case(lambda s: ActNorm(s[0]), vectors, (4,)),
    "fixed scale": Case(lambda s: ActNorm(s[0], scale=0.75, learned=False), images((1, 7), (1, 6))),
    "permutation of channels": Case(lambda s: Permute(s[0], seed=3), images((1, 7), (1, 6))),
    "permutation of features": Case(lambda s: Permute(s[0], seed=3), vectors, (4,)),
    "rotation of channels": Case(lambda s: AffineMix(s[0], seed=3, learned=False), images((1, 7), (1, 6))),
    "rotation of features": Case(lambda s: AffineMix(s[0], seed=3, learned=False), vectors, (4,)),
    "affine mix of channels": Case(lambda s: AffineMix(s[0], 3, scale=0.75), images((1, 7), (1, 6))),
    "affine mix of features": Case(lambda s: AffineMix(s[0], 3), vectors, (4,)),
    "fixed affine mix": Case(lambda s: AffineMix(s[0], 3, 0.75, learned=False), images((1, 7), (1, 6))),
    "cosine transform": Case(DCTPool, images((1, 4), (1, 9))),
    "chain of chains": Case(
        lambda s: Chain(
            AffineMix(s[0], learned=False), Chain(ActNorm(s[0]), AffineCoupling(s[0], dense)), Chain()
        ),
        vectors,
        (4,),
    ),
}

NETWORKS = {
    "image flow, colour": Case(small_image_flow, images((2, 5), (1, 4), step=2)),
    "image flow, grey": Case(small_image_flow, images((1, 1), (1, 3), step=4), (1, 8, 8)),
    "image flow, light subnets": Case(
        lambda s: flow_of(s, blocks=(1, 1), widths=6, dense_width=8, subnet="light", clamp=2.0, slope=0.5),
        images((1, 3), (1, 3), step=4),
        (1, 8, 8),
    ),
    "image flow, one resolution": Case(
        lambda s: flow_of(s, blocks=(3,), widths=(6,), dropouts=(0.0,), dense_blocks=0),
        images((2, 5), (1, 7)),
    ),
    "image flow, downsampling first": Case(
        lambda s: flow_of(s, blocks=(0, 1), widths=(4, 4), dropouts=(0.0, 0.0), learn_scale=False),
        images((2, 4), (1, 3), step=2),
    ),
    "image flow, summary": Case(
        lambda s: flow_of(
            s, blocks=(1, 1), widths=6, dense_width=8, subnet="light", summary=(4, 6), n_summary=3
        ),
        images((1, 3), (2, 3), step=4),
        (1, 8, 8),
    ),
    "dense flow": Case(lambda s: dense_flow(s[0], blocks=4, width=8), vectors, (4,)),
    "dense flow with dropout": Case(
        lambda s: dense_flow(s[0], blocks=2, width=8, dropout=0.3), vectors, (4,)
    ),
}

LARGE_IMAGES = [(1, 4, 4), (1, 28, 28), (3, 32, 32), (3, 64, 64), (5, 16, 48), (7, 8, 8), (3, 12, 20)]


def perturbed(bijection, amount=0.05):
    """The same in evaluation mode, its parameters and statistics shaken by amount * N(0, 1).

    A fresh coupling is the identity; this makes every formula count.
    """
    with torch.no_grad():
        for parameter in bijection.parameters():
            parameter.add_(amount * torch.randn_like(parameter))
        for module in bijection.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.add_(amount * torch.randn_like(module.running_mean))
                module.running_var.mul_((amount * torch.randn_like(module.running_var)).exp())
    return bijection.eval()


def perturbed_weights(bijection, amount=0.05):
    """The same for the weights of the subnets alone, leaving scales, shifts and statistics.

    For the paper's network, whose sixty scales of 0.75 shrink x by 3e-8 at the start: a shift of
    0.05 behind them would leave no digit of x in float32.
    """
    with torch.no_grad():
        for parameter in bijection.parameters():
            if parameter.ndim >= 2:
                parameter.add_(amount * torch.randn_like(parameter))
    return bijection.eval()
