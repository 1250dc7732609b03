"""OoD scores from a network's features, as commonly added to a plain classifier: Mahalanobis distance and k-NN.

Higher = stranger, as in scores.py. Both are fitted on features of the training split.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ibinn._types import Array, Floats, Progress
from ibinn.data.dataset import Dataset
from ibinn.data.splits import Splits
from ibinn.models.baselines import SoftmaxClassifier
from ibinn.models.classifier import evaluation_mode
from ibinn.models.pipeline import Pipeline, chunks
from ibinn.ood.scores import nan_to_inf, p_values

RANK = 1e-6  # directions whose variance is a smaller share of the largest one hold no information
N_NEAREST = 50  # the k of Sun et al. for ten classes


class Gaussians(NamedTuple):
    """A Gaussian per class, all with the same covariance.

    mu is (K, F); whiten is (F, R), with whiten @ whiten.T the inverse of the covariance.
    """

    mu: Tensor
    whiten: Tensor


def fit_gaussians(features: Tensor, y: Tensor, n_classes: int) -> Gaussians:
    """Fit to features (N, F) and labels (N,), in float64; directions without variance are left out.

    Examples
    --------
    >>> import torch
    >>> from ibinn.ood.features import fit_gaussians, mahalanobis
    >>> features = torch.tensor([[0.0], [2.0], [10.0], [12.0]])
    >>> gaussians = fit_gaussians(features, torch.tensor([0, 0, 1, 1]), n_classes=2)
    >>> mahalanobis(torch.tensor([[1.0], [4.0]]), gaussians).tolist()
    [0.0, 9.0]
    """
    f = features.double()
    members = torch.zeros(n_classes, f.shape[1], dtype=f.dtype, device=f.device).index_add_(0, y, f)
    mu = members / y.bincount(minlength=n_classes).clamp_min(1)[:, None]
    within = f - mu[y]
    values, vectors = torch.linalg.eigh(within.T @ within / len(f))
    varies = values > RANK * values[-1].clamp_min(0)
    return Gaussians(mu, vectors[:, varies] / values[varies].sqrt())


def mahalanobis(features: Tensor, fitted: Gaussians) -> Tensor:
    """The smallest squared Mahalanobis distance to a class mean, (N,) (Lee et al. 2018)."""
    return torch.cdist(features.double() @ fitted.whiten, fitted.mu @ fitted.whiten).amin(1).square()


def knn_distance(features: Tensor, training: Tensor, k: int = N_NEAREST) -> Tensor:
    """Distance to the k-th nearest training features, all scaled to length 1, (N,) (Sun et al. 2022).

    training (n, F) has length 1 already.
    """
    cosine = (F.normalize(features) @ training.T).topk(min(k, len(training)), dim=1).values[:, -1]
    return (2 - 2 * cosine).clamp_min(0).sqrt()


@dataclass(frozen=True)
class FeatureScores:
    """What the scores compare features with.

    Attributes
    ----------
    gaussians : Gaussians
        Of the classes, fitted on the training split.
    training : Tensor of shape (n, F)
        Features of the training split, scaled to length 1.
    calibration : dict of arrays
        Scores of the calibration split.
    """

    gaussians: Gaussians
    training: Tensor
    calibration: dict[str, Floats]

    def p_values(self, scores: dict[str, Floats]) -> dict[str, Floats]:
        """The conformal p-value of each score, (N,) each."""
        return p_values(scores, self.calibration)


def fit_feature_scores(
    pipeline: Pipeline,
    dataset: Dataset,
    splits: Splits,
    batch_size: int = 500,
    progress: Progress | None = None,
) -> FeatureScores | None:
    """Fit on the training split; None for a model with a density, which has other scores."""
    if pipeline.model.has_density:
        return None
    features = embedded(pipeline, dataset.train.x[splits.train], batch_size, progress)
    y = torch.from_numpy(dataset.train.y[splits.train]).to(features.device)
    fitted = FeatureScores(fit_gaussians(features, y, len(dataset.class_names)), F.normalize(features), {})
    held_out = dataset.train.x[splits.calibration]
    return replace(fitted, calibration=feature_scores(pipeline, held_out, fitted, batch_size))


def feature_scores(
    pipeline: Pipeline, raw: Array, fitted: FeatureScores, batch_size: int = 500
) -> dict[str, Floats]:
    """The scores mahalanobis and knn of raw (N, ...), (N,) each."""
    batches = torch.split(embedded(pipeline, raw, batch_size), batch_size)
    scores = {
        "mahalanobis": [mahalanobis(features, fitted.gaussians) for features in batches],
        "knn": [knn_distance(features, fitted.training) for features in batches],
    }
    return {name: nan_to_inf(torch.cat(parts)).cpu().double().numpy() for name, parts in scores.items()}


@torch.no_grad()
def embedded(
    pipeline: Pipeline, raw: Array, batch_size: int = 500, progress: Progress | None = None
) -> Tensor:
    """The inputs of the read-out for raw (N, ...), (N, F), in evaluation mode."""
    model, batches = pipeline.model, []
    assert isinstance(model, SoftmaxClassifier)
    with evaluation_mode(pipeline):
        for start, chunk in chunks(raw, batch_size):
            batches.append(model.embed(pipeline.prepared(chunk)[0]))
            if progress:
                progress(start + len(chunk), len(raw))
    return torch.cat(batches)
