"""ibinn: generative classifiers trained with the information bottleneck."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ibinn._system import keep_freed_memory
    from ibinn.estimator import IBINNClassifier, IBINNOutlierDetector
    from ibinn.flows.base import Bijection, Chain
    from ibinn.mixture import GaussianMixture
    from ibinn.models.architectures import dense_flow, image_flow, paper_flow
    from ibinn.models.classifier import GenerativeClassifier
    from ibinn.objectives import class_nll, ib_loss, loss_x, loss_y
    from ibinn.pretrained import load_pretrained
    from ibinn.training.refresh_batch_norm import refresh_batch_norm

__version__ = "0.1.0.dev0"

__all__ = [
    "Bijection",
    "Chain",
    "GaussianMixture",
    "GenerativeClassifier",
    "IBINNClassifier",
    "IBINNOutlierDetector",
    "class_nll",
    "dense_flow",
    "ib_loss",
    "image_flow",
    "keep_freed_memory",
    "load_pretrained",
    "loss_x",
    "loss_y",
    "paper_flow",
    "refresh_batch_norm",
]

# Each name is imported when it is first asked for: `ibinn --help` should not wait for torch.
HOME = {
    "Bijection": "ibinn.flows.base",
    "Chain": "ibinn.flows.base",
    "GaussianMixture": "ibinn.mixture",
    "GenerativeClassifier": "ibinn.models.classifier",
    "IBINNClassifier": "ibinn.estimator",
    "IBINNOutlierDetector": "ibinn.estimator",
    "class_nll": "ibinn.objectives",
    "dense_flow": "ibinn.models.architectures",
    "ib_loss": "ibinn.objectives",
    "image_flow": "ibinn.models.architectures",
    "keep_freed_memory": "ibinn._system",
    "load_pretrained": "ibinn.pretrained",
    "loss_x": "ibinn.objectives",
    "loss_y": "ibinn.objectives",
    "paper_flow": "ibinn.models.architectures",
    "refresh_batch_norm": "ibinn.training.refresh_batch_norm",
}


def __getattr__(name: str) -> Any:
    if name not in HOME:
        raise AttributeError(f"module 'ibinn' has no attribute {name!r}")
    return getattr(import_module(HOME[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
