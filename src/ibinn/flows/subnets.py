"""The networks inside couplings, which compute scale and shift. They need not be invertible."""

import itertools
import math
import warnings

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ibinn.flows.fast.batch_norm import BatchNorm
from ibinn.flows.fast.fused import is_plain

QUIET = -4.0  # raw of the values that carry the summary, at the start: a scale of 0.15 with our clamp of 2
MIN_FOLD_BATCH = 8  # folding is repeated in each call, and pays from this batch size on


class Subnet(nn.Sequential):
    """A sequence of layers for inputs of ndim dimensions, batch included: 2 for vectors, 4 for images.

    Without gradients, a batch-norm is folded into the convolution before it: one pass instead of two.
    """

    def __init__(self, *layers: nn.Module, ndim: int) -> None:
        super().__init__(*layers)
        self.ndim = ndim

    def forward(self, x: Tensor) -> Tensor:
        conv: nn.Module | None = None  # a convolution to be applied together with its batch-norm
        for layer, after in itertools.zip_longest(self, list(self)[1:]):
            if isinstance(conv, nn.Conv2d) and isinstance(layer, nn.BatchNorm2d):
                x, conv = folded(x, conv, layer), None
            elif is_foldable(layer, after) and len(x) >= MIN_FOLD_BATCH:
                conv = layer
            else:
                x = layer(x)
        return x


def is_foldable(conv: nn.Module, norm: nn.Module | None) -> bool:
    """Whether norm scales and shifts each channel of conv's output by constants."""
    if type(conv) is not nn.Conv2d or not isinstance(norm, nn.BatchNorm2d) or norm.training:
        return False
    if conv.padding_mode != "zeros" or norm.running_var is None or norm.weight is None or norm.bias is None:
        return False
    has_hooks = any(m._forward_hooks or m._forward_pre_hooks for m in (conv, norm))
    return not (has_hooks or torch.is_grad_enabled() or is_plain())


def folded(x: Tensor, conv: nn.Conv2d, norm: nn.BatchNorm2d) -> Tensor:
    """norm(conv(x)) as one convolution."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
    shift = norm.bias - norm.running_mean * scale
    if conv.bias is not None:
        shift = shift + scale * conv.bias
    weight = conv.weight * scale[:, None, None, None]
    return F.conv2d(x, weight, shift, conv.stride, conv.padding, conv.dilation, conv.groups)


def conv_subnet(
    n_in: int,
    n_out: int,
    width: int,
    stride: int = 1,
    dropout: float = 0.0,
    first_relu: bool = True,
) -> Subnet:
    """The paper's subnet: [ReLU,] 3x3 conv, BN, ReLU, 3x3 conv (strided), BN, ReLU, channel dropout, 1x1 conv.

    The 1x1 convolution starts at 0, so every coupling starts as the identity. With He initialisation, sixty
    blocks that each shrink x by 0.75 would drown it in the shifts, and the inverse would lose it to rounding.
    """
    check_passive(n_in)
    layers: list[nn.Module] = [nn.ReLU()] if first_relu else []
    layers += conv_norm_relu(n_in, width) + conv_norm_relu(width, width, stride)
    if dropout:
        layers.append(nn.Dropout2d(dropout))
    return Subnet(*layers, zero_conv(width, n_out, 1), ndim=4)


def light_subnet(
    n_in: int,
    n_out: int,
    width: int,
    stride: int = 1,
    dropout: float = 0.0,
    first_relu: bool = False,
) -> Subnet:
    """A subnet for CPUs: 3x3 conv, SiLU, 1x1 conv (3x3 if strided), SiLU, channel dropout, 3x3 conv from 0.

    Not in the paper. The wide step is a matrix product, and nothing depends on the batch. first_relu is ignored:
    it is there to have the signature of conv_subnet, and a ReLU would hide the sign of the input.
    """
    check_passive(n_in)
    layers: list[nn.Module] = [he_conv(n_in, width, 3), nn.SiLU()]
    layers += [he_conv(width, width, 1 if stride == 1 else 3, stride), nn.SiLU()]
    if dropout:
        layers.append(nn.Dropout2d(dropout))
    return Subnet(*layers, zero_conv(width, n_out, 3), ndim=4)


def check_passive(n_in: int) -> None:
    if n_in < 1:
        raise ValueError(
            "a convolutional coupling needs at least 2 channels, one passive and one active; "
            "squeeze images of one channel first"
        )


def he_conv(n_in: int, n_out: int, size: int, stride: int = 1, bias: bool = True) -> nn.Conv2d:
    """A convolution with He initialisation that keeps the resolution, or divides it by its stride."""
    conv = nn.Conv2d(n_in, n_out, size, stride=stride, padding=size // 2, bias=bias)
    nn.init.kaiming_normal_(conv.weight)
    if conv.bias is not None:
        nn.init.zeros_(conv.bias)
    return conv


def zero_conv(n_in: int, n_out: int, size: int) -> nn.Conv2d:
    """A convolution with weights and bias initialised to 0."""
    conv = nn.Conv2d(n_in, n_out, size, padding=size // 2)
    for parameter in conv.parameters():
        nn.init.zeros_(parameter)
    return conv


def conv_norm_relu(n_in: int, n_out: int, stride: int = 1) -> list[nn.Module]:
    """3x3 conv with He initialisation, batch-norm, ReLU. No bias: batch-norm would remove it."""
    return [he_conv(n_in, n_out, 3, stride, bias=False), BatchNorm(n_out), nn.ReLU(inplace=True)]


def dense_subnet(n_in: int, n_out: int, width: int, dropout: float = 0.0) -> Subnet:
    """Linear, ReLU, dropout, linear."""
    layers: list[nn.Module] = [linear(n_in, width), nn.ReLU()]
    if dropout:
        layers.append(nn.Dropout(dropout))
    return Subnet(*layers, linear(width, n_out), ndim=2)


def linear(n_in: int, n_out: int) -> nn.Linear:
    """A linear layer with a tenth of He's initial weights and a bias of 0."""
    with warnings.catch_warnings():  # a single feature has no passive half: zero inputs are intended
        warnings.filterwarnings("ignore", "Initializing zero-element tensors")
        layer = nn.Linear(n_in, n_out)
    nn.init.normal_(layer.weight, std=0.1 * math.sqrt(2 / max(n_in, 1)))
    nn.init.zeros_(layer.bias)
    return layer


class SummarySubnet(nn.Module):
    """A subnet that sees the whole image: the (raw, t) of a local subnet, plus a summary of the image.

    A light subnet computes raw and t from the neighbourhood of each pixel. A residual network goes from the image,
    at `reduction` times the resolution of x, down to a vector of features. A linear layer, 0 at the start, turns
    it into the summary, which shifts the first `n_summary` active values. These start with a small scale, so that
    little but the shift is left of them.
    """

    ndim = 4

    def __init__(
        self, n_in: int, n_out: int, width: int, widths: tuple[int, ...], n_summary: int, reduction: int
    ) -> None:
        super().__init__()
        check_passive(n_in)
        self.n_summary, self.reduction = n_summary, reduction
        self.local = light_subnet(n_in, n_out, width)
        n_squeezed = n_in + n_out // 2
        self.unmix = nn.Conv2d(n_in, n_squeezed, 1)
        blocks = (0, *(1,) * (len(widths) - 1))
        self.features = nn.Sequential(
            nn.PixelShuffle(reduction), residual_features(n_squeezed // reduction**2, widths, blocks)
        )
        self.readout = nn.Linear(widths[-1], n_summary)
        for parameter in self.readout.parameters():
            nn.init.zeros_(parameter)
        self.quiet = nn.Parameter(torch.full((n_summary,), QUIET))

    @torch.no_grad()
    def start_from(self, image: Tensor) -> None:
        """Let the residual network see image (n, n) @ channels, but for the active ones."""
        self.unmix.weight.copy_(image[:, : self.unmix.in_channels, None, None])
        assert self.unmix.bias is not None
        self.unmix.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        local: Tensor = self.local(x)
        summary: Tensor = self.readout(self.features(self.unmix(x)).amax((2, 3)))
        summary = torch.stack(
            [self.quiet.to(summary).expand_as(summary), summary], dim=1
        )  # of raw and of t
        n_values = local[0].numel() // 2
        return local + F.pad(summary, (0, n_values - summary.shape[2])).view_as(local)


class ResidualBlock(nn.Module):
    """x + conv, batch-norm, ReLU, twice."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*conv_norm_relu(width, width), *conv_norm_relu(width, width))

    def forward(self, x: Tensor) -> Tensor:
        change: Tensor = self.layers(x)
        return x + change


def residual_features(n_in: int, widths: tuple[int, ...], blocks: tuple[int, ...]) -> nn.Sequential:
    """At each resolution a convolution and residual blocks; max-pooling halves the resolution between them.

    Pooling comes before the batch-norm, which then has a quarter of the values.
    """
    layers: list[nn.Module] = []
    for level, (width, n_blocks) in enumerate(zip(widths, blocks, strict=True)):
        conv, *norm_relu = conv_norm_relu(n_in, width)
        layers += [conv, nn.MaxPool2d(2), *norm_relu] if level > 0 else [conv, *norm_relu]
        layers += [ResidualBlock(width) for _ in range(n_blocks)]
        n_in = width
    return nn.Sequential(*layers)
