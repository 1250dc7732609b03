"""OoD scores from the features of a plain classifier: for comparison with those of metrics/ood.py."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ibinn.data.dataset import Array, Dataset
from ibinn.data.splits import Splits
from ibinn.metrics.conformal import conformal_p_values
from ibinn.metrics.features import Gaussians, fit_gaussians, mahalanobis, nearest, unit_length
from ibinn.metrics.ood import hardly_less
from ibinn.models.baselines import SoftmaxClassifier
from ibinn.models.classifier import evaluation_mode
from ibinn.models.pipeline import Pipeline, chunks

Floats = NDArray[np.float64]
Progress = Callable[[int, int | None], None] | None


@dataclass(frozen=True)
class FeatureScores:
    """Fitted on the training split: Gaussians of the classes, and `training` (N, F), its features at length 1.

    calibration: the scores of the calibration split.
    """

    gaussians: Gaussians
    training: Tensor
    calibration: dict[str, Floats]

    def p_values(self, scores: dict[str, Floats]) -> dict[str, Floats]:
        return {
            name: conformal_p_values(hardly_less(s), self.calibration[name]) for name, s in scores.items()
        }


def fit_feature_scores(
    pipeline: Pipeline,
    dataset: Dataset,
    splits: Splits,
    batch_size: int = 500,
    progress: Progress = None,
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
def embedded(pipeline: Pipeline, raw: Array, batch_size: int = 500, progress: Progress = None) -> Tensor:
    """What the read-out sees of raw (N, ...), (N, F), in evaluation mode."""
    model, batches = pipeline.model, []
    assert isinstance(model, SoftmaxClassifier)
    with evaluation_mode(pipeline):
        for start, chunk in chunks(raw, batch_size):
            batches.append(model.embed(pipeline.prepared(chunk)[0]))
            if progress:
                progress(start + len(chunk), len(raw))
    return torch.cat(batches)
