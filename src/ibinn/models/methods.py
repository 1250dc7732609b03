"""The methods of the paper's tables: which model belongs to each, and what its loss is."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ibinn.config import Network, RunConfig
from ibinn.flows.base import Bijection
from ibinn.flows.subnets import dense_subnet
from ibinn.mixture import GaussianMixture
from ibinn.models.architectures import Shape, dense_flow, image_flow
from ibinn.models.baselines import (
    VIB,
    IRevNet,
    ResNet,
    SoftmaxClassifier,
    residual_image_features,
    residual_vector_features,
)
from ibinn.models.classifier import GenerativeClassifier
from ibinn.objectives import ib_loss, loss_x, loss_y, vib_rate

Classifier = GenerativeClassifier | SoftmaxClassifier


class Losses(NamedTuple):
    """Of each input, (B,): the method's loss, its parts in nats, and whether the likeliest class is wrong.

    loss_x is -log q(x) / D in pixel units, the rate per dimension for VIB, and NaN where there is neither.
    """

    loss: Tensor
    loss_x: Tensor
    loss_y: Tensor
    wrong: Tensor


class Batch(NamedTuple):
    """Preprocessed inputs (B, ...), log|det| of the preprocessing (B,), labels (B,)."""

    v: Tensor
    log_det: Tensor
    y: Tensor


class Terms(NamedTuple):
    """What the losses depend on beside model and batch: gamma as it stands in the loss, label smoothing, D."""

    gamma: float
    smoothing: float
    n_dims: int


class Method(NamedTuple):
    make: Callable[..., Classifier]
    losses: Callable[..., Losses]
    gamma: Callable[[float, int], float]  # of the configured gamma and D: the one in the loss


def build_model(
    config: RunConfig, shape: tuple[int, ...], n_classes: int, priors: Sequence[float] | None = None
) -> Classifier:
    """The model of config.method over inputs of shape (C, H, W) or (D,), its start drawn from config.seed."""
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        model = METHODS[config.method].make(config, shape, n_classes, priors)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # faster convolutions
    return model


class Objective(nn.Module):
    """A model and what it is trained for: (v, log_det, y) -> Losses. The module that several processes share."""

    def __init__(self, model: Classifier, method: str, gamma: float, n_dims: int, smoothing: float) -> None:
        super().__init__()
        self.model = model
        self.losses = METHODS[method].losses
        self.gamma = METHODS[method].gamma(gamma, n_dims)
        self.terms = Terms(self.gamma, smoothing, n_dims)

    def set_share_of_gamma(self, share: float) -> None:
        self.terms = self.terms._replace(gamma=share * self.gamma)

    @property
    def leaves_some_out(self) -> bool:
        """Whether parameters get no gradient: learned class weights at gamma = inf, VIB's read-out at 0."""
        phi = self.model.mixture.phi if isinstance(self.model, GenerativeClassifier) else None
        without_x, without_y = self.gamma == math.inf, self.gamma == 0
        return (without_x and isinstance(phi, nn.Parameter)) or (without_y and isinstance(self.model, VIB))

    def forward(self, v: Tensor, log_det: Tensor, y: Tensor) -> Losses:
        """v is preprocessed, (B, ...); log_det (B,) is that of the preprocessing."""
        return self.losses(self.model, Batch(v, log_det, y), self.terms)


def generative_losses(model: GenerativeClassifier, batch: Batch, terms: Terms) -> Losses:
    """The IB loss; at gamma = 1 / D that of class-NLL."""
    z, log_det_flow = model.flow(batch.v)
    scores, log_w = model.mixture.scores(z), model.mixture.log_w
    logits = scores + log_w
    log_q_z = logits.logsumexp(1) + model.mixture.log_q_origin(z)
    on_x = loss_x(log_q_z, batch.log_det + log_det_flow, terms.n_dims)
    on_y = loss_y(scores, log_w, batch.y, terms.smoothing)
    return Losses(ib_loss(on_x, on_y, terms.gamma), on_x, on_y, logits.argmax(1) != batch.y)


def softmax_losses(model: SoftmaxClassifier, batch: Batch, terms: Terms) -> Losses:
    """Twice the cross-entropy: the IB loss at gamma = inf."""
    on_y, wrong = cross_entropy(model(batch.v)[0], batch.y, terms.smoothing)
    return Losses(2 * on_y, torch.full_like(on_y, math.nan), on_y, wrong)


def vib_losses(model: VIB, batch: Batch, terms: Terms) -> Losses:
    """2 / (1 + gamma) (rate + gamma cross-entropy)."""
    m, log_s = model.code(batch.v)
    rate = vib_rate(m, log_s, terms.n_dims)
    on_y, wrong = cross_entropy(model.decode(m, log_s), batch.y, terms.smoothing)
    return Losses(ib_loss(rate, on_y, terms.gamma), rate, on_y, wrong)


def cross_entropy(log_q_y: Tensor, y: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """The cross-entropy with label smoothing, (B,), and whether the likeliest class is wrong, (B,)."""
    on_y = F.cross_entropy(log_q_y, y, reduction="none", label_smoothing=smoothing)
    return on_y, log_q_y.argmax(1) != y


def make_flow(config: RunConfig, shape: tuple[int, ...]) -> Bijection:
    network = config.network
    if len(shape) == 3:
        return image_flow(image_shape(shape), **asdict(network), seed=config.seed)
    return dense_flow(
        shape[0],
        network.dense_blocks,
        network.dense_width,
        network.dense_dropout,
        config.seed,
        network.slope,
    )


def make_generative(
    config: RunConfig,
    shape: tuple[int, ...],
    n_classes: int,
    priors: Sequence[float] | None,
    distance: float = 5.0,
    learn_mu: bool = True,
) -> GenerativeClassifier:
    mixture = GaussianMixture(
        n_classes, math.prod(shape), distance, learn_mu, priors, learn_phi=config.priors == "learned"
    )
    return GenerativeClassifier(make_flow(config, shape), mixture)


def make_irevnet(
    config: RunConfig, shape: tuple[int, ...], n_classes: int, priors: Sequence[float] | None
) -> IRevNet:
    return IRevNet(make_flow(config, shape), math.prod(shape), n_classes)


def make_residual(
    config: RunConfig,
    shape: tuple[int, ...],
    n_classes: int,
    priors: Sequence[float] | None,
    kind: type[SoftmaxClassifier],
) -> SoftmaxClassifier:
    return kind(residual_features(config.network, shape), math.prod(shape), n_classes)


def residual_features(network: Network, shape: tuple[int, ...]) -> nn.Module:
    dense = partial(dense_subnet, width=network.dense_width, dropout=network.dense_dropout)
    if len(shape) == 1:
        return residual_vector_features(shape[0], network.dense_blocks, dense)
    return residual_image_features(
        image_shape(shape),
        network.blocks,
        network.widths,
        network.dropouts,
        network.dense_blocks,
        network.dense_width,
        network.dense_dropout,
        network.subnet,
    )


def image_shape(shape: tuple[int, ...]) -> Shape:
    n_channels, height, width = shape
    return n_channels, height, width


def configured(gamma: float, n_dims: int) -> float:
    return gamma


def beta_one(gamma: float, n_dims: int) -> float:
    return 1 / n_dims


def only_y(gamma: float, n_dims: int) -> float:
    return math.inf


METHODS: dict[str, Method] = {
    "ibinn": Method(make_generative, generative_losses, configured),
    "class-nll": Method(make_generative, generative_losses, beta_one),
    "class-nll-fixed": Method(
        partial(make_generative, distance=10.0, learn_mu=False), generative_losses, beta_one
    ),
    "resnet": Method(partial(make_residual, kind=ResNet), softmax_losses, only_y),
    "irevnet": Method(make_irevnet, softmax_losses, only_y),
    "vib": Method(partial(make_residual, kind=VIB), vib_losses, configured),
}
