"""How strange is an input, told from a network's features: what is commonly put on top of a plain classifier.

Higher = stranger, as in ood.py. Both are fitted on features of the training split.
"""

from typing import NamedTuple

import torch
from torch import Tensor

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
