"""The networks as lists of layers: the paper's, and ours for other images and for vectors."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Literal, NamedTuple

from torch import nn

from ibinn.config import Network
from ibinn.flows.base import Bijection, Chain
from ibinn.flows.coupling import AffineCoupling, SubnetFactory
from ibinn.flows.dct import DCTPool
from ibinn.flows.downsample import DownsampleCoupling, Squeeze
from ibinn.flows.factor_out import FactorOut
from ibinn.flows.mixing import ActNorm, AffineMix, Permute
from ibinn.flows.subnets import SummarySubnet, conv_subnet, dense_subnet, light_subnet

ImageShape = tuple[int, int, int]  # channels, height, width
SUBNETS = {"paper": conv_subnet, "light": light_subnet}
LARGEST_ROTATION = 512  # longer vectors are permuted: a dense matrix would outweigh the subnets

PAPER_NETWORK = Network(
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


def paper_flow(shape: ImageShape = (3, 32, 32), learn_scale: bool = True, seed: int = 0) -> Chain:
    """Build the network of the paper: 8 + 25 + 25 convolutional and 2 dense coupling blocks.

    Each 25 is one downsampling block and 24 ordinary ones. The dense blocks mix by a plain permutation: an
    orthogonal matrix over 3072 features would have nine million entries.

    Parameters
    ----------
    shape : tuple of int, default=(3, 32, 32)
        Channels, height and width of the images.
    learn_scale : bool, default=True
        Whether the scale and shift behind each mix are learned.
    seed : int, default=0
        Seed of the fixed mixes of the channels, as for `image_flow`.

    Returns
    -------
    Chain
        The flow, as from `image_flow`.

    Examples
    --------
    >>> from ibinn import paper_flow
    >>> from ibinn.flows.coupling import AffineCoupling
    >>> flow = paper_flow((3, 8, 8))
    >>> sum(isinstance(layer, AffineCoupling) for layer in flow.layers)
    60
    """
    return image_flow(shape, replace(PAPER_NETWORK, learn_scale=learn_scale), seed)


def default_network(shape: ImageShape) -> Network:
    """Four blocks at each resolution, as many resolutions as the sides allow, three at most."""
    check_image_shape(shape)
    n = min(3, 1 + possible_halvings(shape) - (shape[0] == 1))
    return replace(
        PAPER_NETWORK,
        blocks=(4,) * n,
        widths=(64,) * n,
        dropouts=(0.0,) * n,
        dense_blocks=1,
        dense_width=256,
        dense_dropout=0.0,
        scale=1.0,
    )


def image_flow(shape: ImageShape, network: Network | None = None, seed: int = 0) -> Chain:
    """Build a flow over images: coupling blocks at several resolutions, a cosine transform, dense blocks.

    Each resolution is half the one before. Images of one channel are squeezed into four first, since a coupling
    needs two channels.

    Parameters
    ----------
    shape : tuple of int
        Channels, height and width of the images.
    network : Network, optional
        Blocks, widths and dropout at each resolution, and the kind of subnet. By default
        ``default_network(shape)``; change it with `dataclasses.replace`.
    seed : int, default=0
        Seed of the fixed mixes of the channels. The weights come from torch's global generator.

    Returns
    -------
    Chain
        Maps images (B, C, H, W) to vectors (B, C * H * W).

    Examples
    --------
    >>> import torch
    >>> from dataclasses import replace
    >>> from ibinn import image_flow
    >>> from ibinn.models.architectures import default_network
    >>> flow = image_flow((3, 8, 8))
    >>> z, log_det = flow(torch.rand(5, 3, 8, 8))
    >>> z.shape, log_det.shape
    (torch.Size([5, 192]), torch.Size([5]))

    A network with one resolution of two blocks:

    >>> network = replace(default_network((3, 8, 8)), blocks=(2,), widths=(16,), dropouts=(0.0,))
    >>> len(image_flow((3, 8, 8), network).layers) < len(flow.layers)
    True
    """
    network = network or default_network(shape)
    return stages_chain(image_stages(shape, network), network, seed)


def stages_chain(stages: Iterator["Stage"], network: Network, seed: int) -> Chain:
    """The layers of these stages. Those behind a summary coupling do not see its active channel."""
    clamp, slope, down_slope = network.clamp, network.slope, network.down_slope
    finish = partial(block, scale=network.scale, learn_scale=network.learn_scale)
    layers: list[Bijection] = []
    for stage in stages:
        n_out, block_seed = stage.n_channels, 1000 * seed + stage.number
        match stage.kind:
            case "squeeze":
                layers.append(Squeeze())
            case "down":
                down = DownsampleCoupling(n_out // 4, stage.subnet, clamp, down_slope)
                layers += finish(down, n_out, block_seed)
            case "conv":
                layers += finish(AffineCoupling(n_out, stage.subnet, clamp, slope), n_out, block_seed)
            case "summary":
                layers.append(AffineCoupling(n_out + 1, stage.subnet, clamp, slope, n_active=1))
                layers.append(FactorOut(n_out + 1, 1, stages_chain(stages, network, seed)))
            case "pool":
                layers.append(DCTPool(stage.shape))
            case "dense":
                layers += finish(dense_coupling(n_out, stage.subnet, slope), n_out, block_seed)
    return Chain(*layers)


class Stage(NamedTuple):
    """A step of a network on images: its kind, output channels, subnet and number among the blocks."""

    kind: Literal["squeeze", "down", "conv", "summary", "pool", "dense"]
    n_channels: int
    subnet: SubnetFactory = nn.Identity
    number: int = 0
    shape: ImageShape = (0, 0, 0)


def image_stages(shape: ImageShape, network: Network) -> Iterator[Stage]:
    """The steps from an image to a vector, shared by the flow and the ResNet."""
    check_image_shape(shape)
    check_resolutions(shape, network)
    numbers = itertools.count()  # of the blocks, in order
    n_channels, height, width = shape
    if n_channels == 1:
        n_channels, height, width = 4, height // 2, width // 2
        yield Stage("squeeze", n_channels)
    levels = zip(network.blocks, network.widths, network.dropouts, strict=True)
    for level, (n_blocks, subnet_width, dropout) in enumerate(levels):
        conv = partial(SUBNETS[network.subnet], width=subnet_width, dropout=dropout)
        if level > 0:
            n_channels, height, width = 4 * n_channels, height // 2, width // 2
            number = next(numbers)
            yield Stage("down", n_channels, partial(conv, stride=2, first_relu=number > 0), number)
        if network.summary and level == 1:
            n_channels -= 1
            summary = partial(
                SummarySubnet,
                width=subnet_width,
                widths=network.summary,
                n_summary=network.n_summary,
                reduction=shape[1] // height,
            )
            yield Stage("summary", n_channels, summary, next(numbers))
        for number in itertools.islice(numbers, n_blocks):
            yield Stage("conv", n_channels, partial(conv, first_relu=number > 0), number)
    n_dims = n_channels * height * width
    yield Stage("pool", n_dims, shape=(n_channels, height, width))
    dense = partial(dense_subnet, width=network.dense_width, dropout=network.dense_dropout)
    for number in itertools.islice(numbers, network.dense_blocks):
        yield Stage("dense", n_dims, dense, number)


def without_summaries(flow: Bijection) -> Bijection:
    """The same flow, with the same parameters, but for the summaries: their couplings are ordinary ones.

    The two differ in the latent variables that summaries shift, and only in those.
    """
    if not isinstance(flow, Chain):
        return flow
    layers: list[Bijection] = []
    for layer in flow.layers:
        assert isinstance(layer, Bijection)
        if isinstance(layer, AffineCoupling) and isinstance(layer.subnet, SummarySubnet):
            layer = layer.with_subnet(layer.subnet.local)
        layers.append(layer)
    return flow if all(a is b for a, b in zip(layers, flow.layers, strict=True)) else Chain(*layers)


def dense_flow(
    n_features: int,
    blocks: int = 8,
    width: int = 128,
    dropout: float = 0.0,
    seed: int = 0,
    slope: float = 0.1,
) -> Chain:
    """Build a flow of dense coupling blocks over plain vectors.

    A single feature has nothing to condition on: its flow is a learned scale and shift.

    Parameters
    ----------
    n_features : int
        Length D of the vectors, 1 or more.
    blocks : int, default=8
        Number of coupling blocks.
    width : int, default=128
        Width of the hidden layers of the subnets.
    dropout : float, default=0.0
        Dropout rate in the subnets.
    seed : int, default=0
        Seed of the fixed mixes of the features. The weights come from torch's global generator.
    slope : float, default=0.1
        Slope of the soft clamp, 2 tanh(slope * raw), that bounds the log-scales.

    Returns
    -------
    Chain
        Maps vectors (B, D) to vectors (B, D).

    Examples
    --------
    >>> import torch
    >>> from ibinn import dense_flow
    >>> flow = dense_flow(2)
    >>> x = torch.randn(5, 2)
    >>> z, log_det = flow(x)
    >>> z.shape, log_det.shape
    (torch.Size([5, 2]), torch.Size([5]))
    >>> torch.allclose(flow.inverse(z), x, atol=1e-4)
    True
    """
    if n_features < 1 or blocks < 1:
        raise ValueError(f"dense_flow needs at least 1 feature and 1 block, not {n_features} and {blocks}")
    subnet = partial(dense_subnet, width=width, dropout=dropout)
    layers: list[Bijection] = []
    for number in range(blocks):
        layers += block(dense_coupling(n_features, subnet, slope), n_features, 1000 * seed + number)
    return Chain(*layers)


def dense_coupling(n_features: int, subnet: SubnetFactory, slope: float = 0.1) -> AffineCoupling:
    """An affine coupling over vectors, with the authors' clamp of 2."""
    return AffineCoupling(n_features, subnet, clamp=2.0, slope=slope)


def block(
    coupling: AffineCoupling, n_channels: int, seed: int, scale: float = 1.0, learn_scale: bool = True
) -> list[Bijection]:
    """A coupling, a fixed mix of its n_channels outputs, and a per-channel scale and shift."""
    if n_channels <= LARGEST_ROTATION:
        return [coupling, AffineMix(n_channels, seed, scale, learn_scale)]
    return [coupling, Permute(n_channels, seed), ActNorm(n_channels, scale, learn_scale)]


def possible_halvings(shape: ImageShape) -> int:
    """How many times both sides can be divided by 2."""
    common = math.gcd(shape[1], shape[2])
    return (common & -common).bit_length() - 1


def n_halvings(network: Network, n_channels: int) -> int:
    """How many times the network halves the sides of an image."""
    return len(network.blocks) - 1 + (n_channels == 1)


def summary_capacity(shape: ImageShape) -> int:
    """The number of values of a channel at the second resolution: the most that a summary can shift."""
    factor = 4 if shape[0] == 1 else 2
    return (shape[1] // factor) * (shape[2] // factor)


def check_image_shape(shape: ImageShape) -> None:
    """Raise ValueError unless a coupling can work on images of this shape."""
    if len(shape) != 3 or min(shape) < 1:
        raise ValueError(f"shape must be (channels, height, width), each at least 1, not {shape}")
    if shape[0] == 1 and possible_halvings(shape) == 0:
        raise ValueError(
            f"grey images of {shape[1]} x {shape[2]} cannot be squeezed into 4 channels; pad both sides to "
            f"even numbers, or flatten the images and use dense_flow"
        )


def check_resolutions(shape: ImageShape, network: Network) -> None:
    """Raise ValueError unless the network fits images of this shape."""
    if network.subnet not in SUBNETS:
        raise ValueError(f"subnet is {network.subnet!r} but must be one of {', '.join(SUBNETS)}")
    if not network.blocks:
        raise ValueError("blocks is empty, but a network on images needs at least one resolution")
    if network.summary and len(network.blocks) < 2:
        raise ValueError("summary needs a second resolution; give blocks one more, or use an empty summary")
    if network.summary and min(shape[1:]) < 2 ** (len(network.summary) - 1):
        raise ValueError(
            f"summary has {len(network.summary)} resolutions, too many for images of {shape[1]} x {shape[2]}; "
            f"give it fewer widths"
        )
    if network.summary and network.n_summary > summary_capacity(shape):
        raise ValueError(
            f"n_summary is {network.n_summary} but must be at most {summary_capacity(shape)} for images of "
            f"{shape[1]} x {shape[2]}"
        )
    halvings = n_halvings(network, shape[0])
    if halvings > possible_halvings(shape):
        raise ValueError(
            f"images of {shape[1]} x {shape[2]} cannot be halved {halvings} times; pad both sides to "
            f"multiples of {2**halvings}, or use fewer resolutions with a shorter blocks"
        )
