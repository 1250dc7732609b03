"""ibinn: generative classifiers trained with the information bottleneck."""

from ibinn.flows.base import Bijection, Chain
from ibinn.mixture import GaussianMixture
from ibinn.models.architectures import dense_flow, image_flow, paper_flow
from ibinn.models.classifier import GenerativeClassifier
from ibinn.objectives import class_nll, ib_loss, loss_x, loss_y
from ibinn.training.batch_norm import refresh_batch_norm

__version__ = "0.1.0.dev0"

__all__ = [
    "Bijection",
    "Chain",
    "GaussianMixture",
    "GenerativeClassifier",
    "class_nll",
    "dense_flow",
    "ib_loss",
    "image_flow",
    "loss_x",
    "loss_y",
    "paper_flow",
    "refresh_batch_norm",
]
