"""The baselines of the paper, ResNet, i-RevNet and VIB, with the interface of the generative classifier.

These models have no density: `mixture` is None, and so is the log-density in the output.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ibinn.config import Network
from ibinn.flows.base import Bijection
from ibinn.flows.coupling import SubnetFactory
from ibinn.flows.dct import DCTPool
from ibinn.flows.downsample import Squeeze
from ibinn.flows.precision import full_precision
from ibinn.flows.subnets import residual_features
from ibinn.models.architectures import ImageShape, Stage, image_stages
from ibinn.models.output import Output


class SoftmaxClassifier(nn.Module):
    """log q(y|x) = log-softmax(W features(x) + b), with features(x) of shape (B, n_features)."""

    has_density = False
    can_sample = False
    mixture = None

    def __init__(self, features: nn.Module, n_features: int, n_classes: int) -> None:
        super().__init__()
        self.features = features
        self.readout = nn.Linear(n_features, n_classes)

    @property
    def flow(self) -> Bijection | None:
        """The invertible part of the network, if there is one."""
        return None

    def embed(self, x: Tensor) -> Tensor:
        """The input of the read-out, (B, n_features)."""
        embedded: Tensor = self.features(x)
        return embedded

    def logits(self, x: Tensor) -> Tensor:
        """(B, K), in float32 or better."""
        return full_precision(self.readout(self.embed(x)))

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        """log q(y|x) (B, K), and None for the log-density."""
        return F.log_softmax(self.logits(x), dim=1), None

    def output(self, x: Tensor) -> Output[Tensor]:
        """log q(y|x) and the energy."""
        logits = self.logits(x)
        return Output(logits.log_softmax(1), -logits.logsumexp(1))

    def log_q_y_given_x(self, x: Tensor) -> Tensor:
        """log q(y|x), (B, K)."""
        return self(x)[0]  # type: ignore[no-any-return]


class ResNet(SoftmaxClassifier):
    """The flow's network with a residual block in place of each coupling block; not invertible."""


class Rival(SoftmaxClassifier):
    """A residual network with batch-norm, global max-pooling and a small linear read-out: the classifier to beat.

    Unlike `ResNet`, it owes nothing to the flow. network.blocks are its residual blocks at each resolution.
    """

    def __init__(self, shape: ImageShape, n_classes: int, network: Network) -> None:
        body = residual_features(shape[0], network.widths, network.blocks)
        features = nn.Sequential(body, nn.AdaptiveMaxPool2d(1), nn.Flatten())
        super().__init__(features, network.widths[-1], n_classes)


class IRevNet(SoftmaxClassifier):
    """The flow itself with a linear read-out of z: invertible, but trained as a plain classifier."""

    features: Bijection

    @property
    def flow(self) -> Bijection:
        return self.features

    def embed(self, x: Tensor) -> Tensor:
        """z, (B, D)."""
        return self.features(x)[0]

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, ...) -> z (B, D), log|det dz/dx| (B,)."""
        return self.features(x)

    def decode(self, z: Tensor) -> Tensor:
        """z (B, D) -> x (B, ...): the inverse of encode."""
        return self.features.inverse(z)


class VIB(SoftmaxClassifier):
    """Variational information bottleneck (Alemi et al. 2017): x -> N(m(x), s(x)^2) -> linear decoder.

    In training, one draw of the code is decoded. In evaluation mode, the probabilities of n_draws draws are
    averaged. Every input gets the same draws of the noise, so that no output depends on the rest of its batch.
    """

    draws: Tensor

    def __init__(
        self, features: nn.Module, n_features: int, n_classes: int, n_code: int = 128, n_draws: int = 12
    ) -> None:
        super().__init__(features, n_code, n_classes)
        self.encoder = nn.Linear(n_features, 2 * n_code)
        generator = torch.Generator().manual_seed(0)
        draws = torch.randn(n_draws, n_code, generator=generator, device="cpu", dtype=torch.float64)
        self.register_buffer("draws", draws.to(self.encoder.weight))

    def embed(self, x: Tensor) -> Tensor:
        """The mean code, (B, C)."""
        return self.code(x)[0]

    def code(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """m (B, C) and log s (B, C) of the code's Gaussian."""
        m, raw = full_precision(self.encoder(self.features(x))).chunk(2, dim=1)
        return m, F.softplus(raw + math.log(math.e - 1)).clamp_min(1e-6).log()

    def decode(self, m: Tensor, log_s: Tensor) -> Tensor:
        """log q(y|x), (B, K), of one random draw in training, averaged over the fixed draws in evaluation mode."""
        noise = torch.randn_like(m)[:, None] if self.training else self.draws
        codes = m[:, None] + log_s.exp()[:, None] * noise  # (B, draws, C)
        log_q_y = F.log_softmax(full_precision(self.readout(codes)), dim=2)
        return log_q_y.logsumexp(1) - math.log(codes.shape[1])

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        return self.decode(*self.code(x)), None

    def output(self, x: Tensor) -> Output[Tensor]:
        """The energy is that of the mean code."""
        m, log_s = self.code(x)
        return Output(self.decode(m, log_s), -full_precision(self.readout(m)).logsumexp(1))


class Residual(nn.Module):
    """skip(x) + subnet(x)."""

    def __init__(self, subnet: nn.Module, skip: nn.Module | None = None) -> None:
        super().__init__()
        self.subnet, self.skip = subnet, skip or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        skipped: Tensor = self.skip(x)
        change: Tensor = self.subnet(x)
        return skipped + change


class Reshaped(nn.Module):
    """A parameter-free bijection without its log-det."""

    def __init__(self, layer: Bijection) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


class SetAside(nn.Module):
    """The counterpart of a summary coupling: its shift is added to the last channel, which the others leave."""

    def __init__(self, n_passed_on: int, subnet: nn.Module, rest: nn.Module) -> None:
        super().__init__()
        self.n_passed_on, self.subnet, self.rest = n_passed_on, subnet, rest

    def forward(self, x: Tensor) -> Tensor:
        x1, x2 = x[:, : self.n_passed_on], x[:, self.n_passed_on :]
        _, t = self.subnet(x1).chunk(2, dim=1)
        return torch.cat([self.rest(x1), (x2 + t).flatten(1)], dim=1)


def residual_image_features(shape: ImageShape, network: Network) -> nn.Sequential:
    """(B, C, H, W) -> (B, C * H * W), the body of the ResNet: the network of image_flow, with its subnets."""
    return residual_stages(image_stages(shape, network))


def residual_stages(stages: Iterator[Stage]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for stage in stages:
        n_out = stage.n_channels
        match stage.kind:
            case "squeeze":
                layers.append(Reshaped(Squeeze()))
            case "down":
                layers.append(Residual(stage.subnet(n_out // 4, n_out), Reshaped(Squeeze())))
            case "summary":
                layers.append(SetAside(n_out, stage.subnet(n_out, 2), residual_stages(stages)))
            case "pool":
                layers.append(Reshaped(DCTPool(stage.shape)))
            case "conv" | "dense":
                layers.append(Residual(stage.subnet(n_out, n_out)))
    return nn.Sequential(*layers)


def residual_vector_features(n_features: int, blocks: int, subnet: SubnetFactory) -> nn.Sequential:
    """(B, D) -> (B, D): residual blocks with dense subnets."""
    return nn.Sequential(*[Residual(subnet(n_features, n_features)) for _ in range(blocks)])
