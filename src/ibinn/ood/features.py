"""How strange is an input, told from a network's features: what is commonly put on top of a plain classifier.

Higher = stranger, as in ood.py. Both are fitted on features of the training split.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ibinn._types import Array, Floats, Progress
from ibinn.data.dataset import Dataset
from ibinn.data.splits import Splits
from ibinn.models.baselines import SoftmaxClassifier
from ibinn.models.classifier import evaluation_mode
from ibinn.models.pipeline import Pipeline, chunks
from ibinn.ood.scores import p_values

RANK = 1e-6  # directions whose variance is a smaller share of the largest one hold no information


N_NEAREST = 50  # the k of Sun et al. for ten classes


class Gaussians(NamedTuple):
    """A Gaussian per class, all with one covariance.

    mu (K, F); whiten (F, R), whose product with its transpose is the inverse of the covariance.
    """

    mu: Tensor
    whiten: Tensor


def fit_gaussians(features: Tensor, y: Tensor, n_classes: int) -> Gaussians:
    """From features (N, F) and labels (N,), in float64; directions without variance are left out."""
    f = features.double()
    members = torch.zeros(n_classes, f.shape[1], dtype=f.dtype, device=f.device).index_add_(0, y, f)
    mu = members / y.bincount(minlength=n_classes).clamp_min(1)[:, None]
    within = f - mu[y]
    values, vectors = torch.linalg.eigh(within.T @ within / len(f))
    kept = values > RANK * values[-1].clamp_min(0)
    return Gaussians(mu, vectors[:, kept] / values[kept].sqrt())


def mahalanobis(features: Tensor, fitted: Gaussians) -> Tensor:
    """The smallest squared Mahalanobis distance to a class mean, (N,) (Lee et al. 2018)."""
    return torch.cdist(features.double() @ fitted.whiten, fitted.mu @ fitted.whiten).amin(1).square()


def unit_length(features: Tensor) -> Tensor:
    """Each of features (N, F) divided by its length."""
    return torch.nn.functional.normalize(features, dim=1)


def nearest(features: Tensor, training: Tensor, k: int = N_NEAREST) -> Tensor:
    """Distance of the features, brought to length 1, to the k-th nearest of `training`, which are so already.

    (N,) (Sun et al. 2022).
    """
    cosine = (unit_length(features) @ training.T).topk(min(k, len(training)), dim=1).values[:, -1]
    return (2 - 2 * cosine).clamp_min(0).sqrt()


@dataclass(frozen=True)
class FeatureScores:
    """Fitted on the training split: Gaussians of the classes, and `training` (N, F), its features at length 1.

    calibration: the scores of the calibration split.
    """

    gaussians: Gaussians
    training: Tensor
    calibration: dict[str, Floats]

    def p_values(self, scores: dict[str, Floats]) -> dict[str, Floats]:
        return p_values(scores, self.calibration)


def fit_feature_scores(
    pipeline: Pipeline,
    dataset: Dataset,
    splits: Splits,
    batch_size: int = 500,
    progress: Progress | None = None,
) -> FeatureScores | None:
    """None for a model with a density, which has scores of its own."""
    if not isinstance(pipeline.model, SoftmaxClassifier):
        return None
    features = embedded(pipeline, dataset.train.x[splits.train], batch_size, progress)
    y = torch.from_numpy(dataset.train.y[splits.train]).to(features.device)
    gaussians, training = fit_gaussians(features, y, len(dataset.class_names)), unit_length(features)
    fitted = FeatureScores(gaussians, training, {})
    calibration = feature_scores(pipeline, dataset.train.x[splits.calibration], fitted, batch_size)
    return FeatureScores(gaussians, training, calibration)


def feature_scores(
    pipeline: Pipeline, raw: Array, fitted: FeatureScores, batch_size: int = 500
) -> dict[str, Floats]:
    """mahalanobis and knn of raw (N, ...), (N,) each."""
    parts: dict[str, list[Floats]] = {"mahalanobis": [], "knn": []}
    for features in torch.split(embedded(pipeline, raw, batch_size), batch_size):
        parts["mahalanobis"].append(mahalanobis(features, fitted.gaussians).cpu().double().numpy())
        parts["knn"].append(nearest(features, fitted.training).cpu().double().numpy())
    values = {name: np.concatenate(part) for name, part in parts.items()}
    return {name: np.where(np.isnan(value), np.inf, value) for name, value in values.items()}


@torch.no_grad()
def embedded(
    pipeline: Pipeline, raw: Array, batch_size: int = 500, progress: Progress | None = None
) -> Tensor:
    """What the read-out sees of raw (N, ...), (N, F), in evaluation mode."""
    model, batches = pipeline.model, []
    assert isinstance(model, SoftmaxClassifier)
    with evaluation_mode(pipeline):
        for start, chunk in chunks(raw, batch_size):
            batches.append(model.embed(pipeline.prepared(chunk)[0]))
            if progress:
                progress(start + len(chunk), len(raw))
    return torch.cat(batches)
