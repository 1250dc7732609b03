"""The methods of the paper's tables, each with its model and its loss."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ibinn.config import ConfigError, Method, RunConfig
from ibinn.flows.base import Bijection
from ibinn.flows.subnets import dense_subnet
from ibinn.mixture import GaussianMixture
from ibinn.models.architectures import dense_flow, image_flow
from ibinn.models.baselines import (
    VIB,
    IRevNet,
    ResNet,
    Rival,
    SoftmaxClassifier,
    residual_image_features,
    residual_vector_features,
)
from ibinn.models.classifier import GenerativeClassifier
from ibinn.objectives import ib_loss, loss_x, loss_y, vib_rate

Classifier = GenerativeClassifier | SoftmaxClassifier


class Losses(NamedTuple):
    """For each input, (B,): the loss of the method, its parts in nats, and whether the top class is wrong.

    loss_x is -log q(x) / D in pixel units, the rate per dimension for VIB, and NaN for the other methods.
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
    """The parameters of a loss: gamma as it enters the formula, label smoothing, and D."""

    gamma: float
    smoothing: float
    n_dims: int


class MethodSpec(NamedTuple):
    """How to build the model of a method, its loss, and the gamma in that loss."""

    make: Callable[..., Classifier]
    losses: Callable[..., Losses]
    gamma: Callable[[float, int], float]  # (configured gamma, D) -> gamma in the loss


def build_model(
    config: RunConfig, shape: tuple[int, ...], n_classes: int, priors: Sequence[float] | None = None
) -> Classifier:
    """The model of config.method for inputs (C, H, W) or (D,), with initial weights drawn from config.seed."""
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        model = METHODS[config.method].make(config, shape, n_classes, priors)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # faster convolutions
    return model


class Objective(nn.Module):
    """A model with its loss: (v, log_det, y) -> Losses. This is the module that several processes share."""

    def __init__(
        self, model: Classifier, method: Method, gamma: float, n_dims: int, smoothing: float
    ) -> None:
        super().__init__()
        self.model = model
        self.losses = METHODS[method].losses
        self.gamma = METHODS[method].gamma(gamma, n_dims)
        self.terms = Terms(self.gamma, smoothing, n_dims)

    def set_gamma_share(self, share: float) -> None:
        """Train with this share of gamma, for the gamma ramp."""
        self.terms = self.terms._replace(gamma=share * self.gamma)

    @property
    def has_unused_parameters(self) -> bool:
        """Whether parameters get no gradient: learned class weights at gamma = inf, the read-out of VIB at 0."""
        if self.model.mixture is not None:
            return self.gamma == math.inf and isinstance(self.model.mixture.phi, nn.Parameter)
        return self.gamma == 0

    def forward(self, v: Tensor, log_det: Tensor, y: Tensor) -> Losses:
        """v is preprocessed, (B, ...); log_det (B,) is that of the preprocessing."""
        return self.losses(self.model, Batch(v, log_det, y), self.terms)


def generative_losses(model: GenerativeClassifier, batch: Batch, terms: Terms) -> Losses:
    """The IB loss; at gamma = 1 / D it is the class-NLL loss."""
    z, log_det_flow = model.flow(batch.v)
    scores, log_w = model.mixture.scores(z), model.mixture.log_w
    logits = scores + log_w
    log_q_z = logits.logsumexp(1) + model.mixture.log_q_origin(z)
    on_x = loss_x(log_q_z, batch.log_det + log_det_flow, terms.n_dims)
    on_y = loss_y(scores, log_w, batch.y, terms.smoothing)
    return Losses(ib_loss(on_x, on_y, terms.gamma), on_x, on_y, logits.argmax(1) != batch.y)


def softmax_losses(model: SoftmaxClassifier, batch: Batch, terms: Terms) -> Losses:
    """Twice the cross-entropy, the IB loss at gamma = inf."""
    on_y, wrong = cross_entropy(model(batch.v)[0], batch.y, terms.smoothing)
    return Losses(2 * on_y, torch.full_like(on_y, math.nan), on_y, wrong)


def vib_losses(model: VIB, batch: Batch, terms: Terms) -> Losses:
    """2 / (1 + gamma) (rate + gamma cross-entropy)."""
    m, log_s = model.code(batch.v)
    rate = vib_rate(m, log_s, terms.n_dims)
    on_y, wrong = cross_entropy(model.decode(m, log_s), batch.y, terms.smoothing)
    return Losses(ib_loss(rate, on_y, terms.gamma), rate, on_y, wrong)


def cross_entropy(log_q_y: Tensor, y: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """The cross-entropy with label smoothing, (B,), and whether the top class is wrong, (B,)."""
    on_y = F.cross_entropy(log_q_y, y, reduction="none", label_smoothing=smoothing)
    return on_y, log_q_y.argmax(1) != y


def make_flow(config: RunConfig, shape: tuple[int, ...]) -> Bijection:
    network = config.network
    if len(shape) == 3:
        return image_flow(shape, network, config.seed)
    return dense_flow(
        shape[0],
        blocks=network.dense_blocks,
        width=network.dense_width,
        dropout=network.dense_dropout,
        seed=config.seed,
        slope=network.slope,
    )


def make_generative(
    config: RunConfig,
    shape: tuple[int, ...],
    n_classes: int,
    priors: Sequence[float] | None,
    mixture: Callable[..., GaussianMixture] = GaussianMixture,
) -> GenerativeClassifier:
    learn_phi = config.priors == "learned"
    return GenerativeClassifier(
        make_flow(config, shape), mixture(n_classes, math.prod(shape), priors=priors, learn_phi=learn_phi)
    )


def make_irevnet(
    config: RunConfig, shape: tuple[int, ...], n_classes: int, priors: Sequence[float] | None
) -> IRevNet:
    return IRevNet(make_flow(config, shape), math.prod(shape), n_classes)


def make_rival(
    config: RunConfig, shape: tuple[int, ...], n_classes: int, priors: Sequence[float] | None
) -> Rival:
    if len(shape) != 3:
        raise ConfigError(
            "the method rival is for images; for a table compare with scikit-learn's classifiers"
        )
    return Rival(shape, n_classes, config.network)


def make_residual(
    config: RunConfig,
    shape: tuple[int, ...],
    n_classes: int,
    priors: Sequence[float] | None,
    kind: type[SoftmaxClassifier],
) -> SoftmaxClassifier:
    network = config.network
    if len(shape) == 3:
        features = residual_image_features(shape, network)
    else:
        dense = partial(dense_subnet, width=network.dense_width, dropout=network.dense_dropout)
        features = residual_vector_features(shape[0], network.dense_blocks, dense)
    return kind(features, math.prod(shape), n_classes)


def configured_gamma(gamma: float, n_dims: int) -> float:
    return gamma


def class_nll_gamma(gamma: float, n_dims: int) -> float:
    """beta = gamma * D = 1."""
    return 1 / n_dims


def infinite_gamma(gamma: float, n_dims: int) -> float:
    return math.inf


FIXED_MIXTURE = partial(GaussianMixture, distance=10.0, learn_mu=False)
METHODS: dict[Method, MethodSpec] = {
    "ibinn": MethodSpec(make_generative, generative_losses, configured_gamma),
    "class-nll": MethodSpec(make_generative, generative_losses, class_nll_gamma),
    "class-nll-fixed": MethodSpec(
        partial(make_generative, mixture=FIXED_MIXTURE), generative_losses, class_nll_gamma
    ),
    "resnet": MethodSpec(partial(make_residual, kind=ResNet), softmax_losses, infinite_gamma),
    "irevnet": MethodSpec(make_irevnet, softmax_losses, infinite_gamma),
    "rival": MethodSpec(make_rival, softmax_losses, infinite_gamma),
    "vib": MethodSpec(partial(make_residual, kind=VIB), vib_losses, configured_gamma),
}
