"""Networks as lists of layers: the paper's, and ours for other images and for vectors."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Literal, NamedTuple

from torch import nn

from ibinn.config import Network
from ibinn.flows.base import Bijection, Chain
from ibinn.flows.coupling import AffineCoupling, SubnetFactory
from ibinn.flows.dct import DCTPool
from ibinn.flows.downsample import DownsampleCoupling, Squeeze
from ibinn.flows.mixing import ActNorm, AffineMix, Permute
from ibinn.flows.subnets import conv_subnet, dense_subnet, light_subnet

Shape = tuple[int, int, int]
SUBNETS = {"paper": conv_subnet, "light": light_subnet}
LARGEST_ROTATION = 512  # vectors beyond get a plain permutation: a dense matrix would outweigh the net


PAPER = Network(
    blocks=(8, 24, 24),
    widths=(16, 32, 64),
    dropouts=(0.0, 0.0, 0.25),
    subnet="paper",
    clamp=0.7,
    slope=0.1,
    down_slope=0.2,
    dense_blocks=2,
    dense_width=1024,
    dense_dropout=0.5,
    scale=0.75,
)


def paper_flow(shape: Shape = (3, 32, 32), learn_scale: bool = True, seed: int = 0) -> Chain:
    """The network of the paper: 8 + 25 + 25 convolutional and 2 dense coupling blocks.

    Each 25 is one downsampling block and 24 ordinary ones. The dense blocks mix by a plain
    permutation: an orthogonal matrix over 3072 features would have nine million entries.
    """
    return image_flow(shape, **asdict(replace(PAPER, learn_scale=learn_scale)), seed=seed)


def image_flow(
    shape: Shape,
    blocks: int | Sequence[int] = 4,
    widths: int | Sequence[int] = 64,
    dropouts: float | Sequence[float] = 0.0,
    dense_blocks: int = 1,
    dense_width: int = 256,
    dense_dropout: float = 0.0,
    scale: float = 1.0,
    learn_scale: bool = True,
    seed: int = 0,
    subnet: str = "paper",
    clamp: float = 0.7,
    slope: float = 0.1,
    down_slope: float = 0.2,
) -> Chain:
    """Coupling blocks at several resolutions, each half the one before, then DCT and dense blocks.

    shape is (C, H, W). blocks, widths of the subnets and dropouts have one entry per resolution; a single
    number stands for all of them, and a single number of blocks for as many resolutions as the sides
    allow, three at most. Images of one channel are squeezed first, since a coupling needs two. seed draws
    the fixed mixes of the channels; the weights come from torch's own generator. subnet is one of SUBNETS;
    clamp and slope are those of the convolutional couplings, down_slope that of the downsampling ones.
    """
    finish = partial(block, seed=seed, scale=scale, learn_scale=learn_scale)
    layers: list[Bijection] = []
    for stage in image_stages(
        shape, blocks, widths, dropouts, dense_blocks, dense_width, dense_dropout, subnet
    ):
        n_out = stage.n_channels
        match stage.kind:
            case "squeeze":
                layers.append(Squeeze())
            case "down":
                down = DownsampleCoupling(n_out // 4, stage.subnet, clamp, down_slope)
                layers += finish(down, n_out, stage.number)
            case "conv":
                layers += finish(AffineCoupling(n_out, stage.subnet, clamp, slope), n_out, stage.number)
            case "pool":
                layers.append(DCTPool(stage.shape))
            case "dense":
                layers += finish(dense_coupling(n_out, stage.subnet, slope), n_out, stage.number)
    return Chain(*layers)


class Stage(NamedTuple):
    """A step of a network on images: what it does, the channels it puts out, its subnet, its number as a block."""

    kind: Literal["squeeze", "down", "conv", "pool", "dense"]
    n_channels: int
    subnet: SubnetFactory = nn.Identity
    number: int = 0
    shape: Shape = (0, 0, 0)


def image_stages(
    shape: Shape,
    blocks: int | Sequence[int],
    widths: int | Sequence[int],
    dropouts: float | Sequence[float],
    dense_blocks: int,
    dense_width: int,
    dense_dropout: float,
    subnet: str,
) -> Iterator[Stage]:
    """The steps from an image to a vector that the flow and the ResNet share; arguments as for image_flow."""
    check_shape(shape)
    if subnet not in SUBNETS:
        raise ValueError(f"subnet is {subnet!r} but must be one of {', '.join(SUBNETS)}")
    if isinstance(blocks, int):
        blocks = [blocks] * min(3, 1 + possible_halvings(shape) - (shape[0] == 1))
    widths = [widths] * len(blocks) if isinstance(widths, int) else widths
    dropouts = [dropouts] * len(blocks) if isinstance(dropouts, float | int) else dropouts
    check_levels(shape, blocks, widths, dropouts)
    numbers = itertools.count()  # of the blocks, in order
    n_channels, height, width = shape
    if n_channels == 1:
        n_channels, height, width = 4, height // 2, width // 2
        yield Stage("squeeze", n_channels)
    for level, (n_blocks, subnet_width, dropout) in enumerate(zip(blocks, widths, dropouts, strict=True)):
        conv = partial(SUBNETS[subnet], width=subnet_width, dropout=dropout)
        if level > 0:
            n_channels, height, width = 4 * n_channels, height // 2, width // 2
            number = next(numbers)
            yield Stage("down", n_channels, partial(conv, stride=2, first_relu=number > 0), number)
        for number in itertools.islice(numbers, n_blocks):
            yield Stage("conv", n_channels, partial(conv, first_relu=number > 0), number)
    n_dims = math.prod(shape)
    yield Stage("pool", n_dims, shape=(n_channels, height, width))
    dense = partial(dense_subnet, width=dense_width, dropout=dense_dropout)
    for number in itertools.islice(numbers, dense_blocks):
        yield Stage("dense", n_dims, dense, number)


def dense_flow(
    n_features: int,
    blocks: int = 8,
    width: int = 128,
    dropout: float = 0.0,
    seed: int = 0,
    slope: float = 0.1,
) -> Chain:
    """Dense coupling blocks over plain vectors of n_features >= 1.

    A single feature has nothing to condition on: its flow is a learned scale and shift.
    """
    if n_features < 1 or blocks < 1:
        raise ValueError(f"dense_flow needs at least 1 feature and 1 block, not {n_features} and {blocks}")
    subnet = partial(dense_subnet, width=width, dropout=dropout)
    layers: list[Bijection] = []
    for number in range(blocks):
        layers += block(dense_coupling(n_features, subnet, slope), n_features, number, seed)
    return Chain(*layers)


def dense_coupling(n_features: int, subnet: SubnetFactory, slope: float = 0.1) -> AffineCoupling:
    """An affine coupling over vectors, with the authors' clamp of 2."""
    return AffineCoupling(n_features, subnet, clamp=2.0, slope=slope)


def block(
    coupling: AffineCoupling,
    n_channels: int,
    number: int,
    seed: int = 0,
    scale: float = 1.0,
    learn_scale: bool = True,
) -> list[Bijection]:
    """A coupling, a fixed mix of its n_channels outputs, and a per-channel scale and shift."""
    seed = 1000 * seed + number
    if n_channels <= LARGEST_ROTATION:
        return [coupling, AffineMix(n_channels, seed, scale, learn_scale)]
    return [coupling, Permute(n_channels, seed), ActNorm(n_channels, scale, learn_scale)]


def possible_halvings(shape: Shape) -> int:
    """How often both sides can be divided by 2."""
    common = math.gcd(shape[1], shape[2])
    return (common & -common).bit_length() - 1


def check_shape(shape: Shape) -> None:
    """Raise ValueError unless shape is that of an image which a coupling can work on."""
    if len(shape) != 3 or min(shape) < 1:
        raise ValueError(f"shape must be (channels, height, width), each at least 1, not {shape}")
    if shape[0] == 1 and possible_halvings(shape) == 0:
        raise ValueError(
            f"grey images of {shape[1]} x {shape[2]} cannot be squeezed into 4 channels; pad both sides to "
            f"even numbers, or flatten the images and use dense_flow"
        )


def check_levels(
    shape: Shape, blocks: Sequence[int], widths: Sequence[int], dropouts: Sequence[float]
) -> None:
    """Raise ValueError unless images of this shape can be halved as often as asked."""
    if not len(blocks) == len(widths) == len(dropouts) > 0:
        raise ValueError(
            f"blocks, widths and dropouts need one entry per resolution, or a single number for all, "
            f"not {len(blocks)}, {len(widths)} and {len(dropouts)} entries"
        )
    if min(blocks) < 0 or min(widths) < 1:
        raise ValueError(
            f"blocks must be 0 or more and widths 1 or more, not {tuple(blocks)} and {tuple(widths)}"
        )
    halvings = len(blocks) - 1 + (shape[0] == 1)
    if halvings > possible_halvings(shape):
        raise ValueError(
            f"images of {shape[1]} x {shape[2]} cannot be halved {halvings} times; pad both sides to "
            f"multiples of {2**halvings} or ask for fewer resolutions with a shorter blocks"
        )
