"""Networks as lists of layers: the paper's, and ours for other images and for vectors."""

import itertools
import math
from collections.abc import Sequence
from functools import partial

from ibinn.flows.base import Bijection, Chain
from ibinn.flows.coupling import AffineCoupling
from ibinn.flows.dct import DCTPool
from ibinn.flows.downsample import DownsampleCoupling, Squeeze
from ibinn.flows.mixing import ActNorm, Permute, Rotate
from ibinn.flows.subnets import conv_subnet, dense_subnet

Shape = tuple[int, int, int]
LARGEST_ROTATION = 512  # vectors beyond get a plain permutation: a dense matrix would outweigh the net


def paper_flow(shape: Shape = (3, 32, 32), learn_scale: bool = True, seed: int = 0) -> Chain:
    """The network of the paper: 8 + 25 + 25 convolutional and 2 dense coupling blocks.

    Each 25 is one downsampling block and 24 ordinary ones. The dense blocks mix by a plain
    permutation: an orthogonal matrix over 3072 features would have nine million entries.
    """
    return image_flow(
        shape,
        blocks=(8, 24, 24),
        widths=(16, 32, 64),
        dropouts=(0.0, 0.0, 0.25),
        dense_blocks=2,
        dense_width=1024,
        dense_dropout=0.5,
        scale=0.75,
        learn_scale=learn_scale,
        seed=seed,
    )


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
) -> Chain:
    """Coupling blocks at several resolutions, each half the one before, then DCT and dense blocks.

    shape is (C, H, W). blocks, widths of the subnets and dropouts have one entry per resolution; a single
    number stands for all of them, and a single number of blocks for as many resolutions as the sides
    allow, three at most. Images of one channel are squeezed first, since a coupling needs two. seed draws
    the fixed mixes of the channels; the weights come from torch's own generator.
    """
    check_shape(shape)
    if isinstance(blocks, int):
        blocks = [blocks] * min(3, 1 + possible_halvings(shape) - (shape[0] == 1))
    widths = [widths] * len(blocks) if isinstance(widths, int) else widths
    dropouts = [dropouts] * len(blocks) if isinstance(dropouts, float | int) else dropouts
    check_levels(shape, blocks, widths, dropouts)
    numbers = itertools.count()  # of the coupling blocks, in order
    finish = partial(block, seed=seed, scale=scale, learn_scale=learn_scale)
    layers: list[Bijection] = []
    n_channels, height, width = shape
    if n_channels == 1:
        layers.append(Squeeze())
        n_channels, height, width = 4, height // 2, width // 2
    for level, (n_blocks, subnet_width, dropout) in enumerate(zip(blocks, widths, dropouts, strict=True)):
        subnet = partial(conv_subnet, width=subnet_width, dropout=dropout)
        if level > 0:
            number = next(numbers)
            strided = partial(subnet, stride=2, first_relu=number > 0)
            down = DownsampleCoupling(n_channels, strided, slope=0.2)  # 0.2: the authors' factor here
            n_channels, height, width = 4 * n_channels, height // 2, width // 2
            layers += finish(down, n_channels, number)
        for number in itertools.islice(numbers, n_blocks):
            coupling = AffineCoupling(n_channels, partial(subnet, first_relu=number > 0))
            layers += finish(coupling, n_channels, number)
    layers.append(DCTPool((n_channels, height, width)))
    for number in itertools.islice(numbers, dense_blocks):
        coupling = dense_coupling(math.prod(shape), dense_width, dense_dropout)
        layers += finish(coupling, math.prod(shape), number)
    return Chain(*layers)


def dense_flow(
    n_features: int, blocks: int = 8, width: int = 128, dropout: float = 0.0, seed: int = 0
) -> Chain:
    """Dense coupling blocks over plain vectors of n_features >= 1.

    A single feature has nothing to condition on: its flow is a learned scale and shift.
    """
    if n_features < 1 or blocks < 1:
        raise ValueError(f"dense_flow needs at least 1 feature and 1 block, not {n_features} and {blocks}")
    layers: list[Bijection] = []
    for number in range(blocks):
        layers += block(dense_coupling(n_features, width, dropout), n_features, number, seed)
    return Chain(*layers)


def dense_coupling(n_features: int, width: int, dropout: float) -> AffineCoupling:
    """An affine coupling with a dense subnet and the authors' clamp of 2."""
    return AffineCoupling(n_features, partial(dense_subnet, width=width, dropout=dropout), clamp=2.0)


def block(
    coupling: AffineCoupling,
    n_channels: int,
    number: int,
    seed: int = 0,
    scale: float = 1.0,
    learn_scale: bool = True,
) -> list[Bijection]:
    """A coupling, a fixed mix of its n_channels outputs, and a per-channel scale and shift."""
    mix = Rotate if n_channels <= LARGEST_ROTATION else Permute
    return [
        coupling,
        mix(n_channels, seed=1000 * seed + number),
        ActNorm(n_channels, scale, learned=learn_scale),
    ]


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
