"""ROC metrics of a score that separates outliers from inliers. Outliers are the positive class.

Everything is computed from counts at each distinct score, in float64: log-likelihoods near -2000 keep their
order, and ties count half.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ibinn._types import Floats


class Counts(NamedTuple):
    """Numbers of inliers and outliers with each distinct score, in rising order."""

    inlier: Floats
    outlier: Floats


class Ranks(NamedTuple):
    """The rank of each inlier's and outlier's score among the n distinct scores."""

    inlier: NDArray[np.int64]
    outlier: NDArray[np.int64]
    n: int

    def counts(self, w_inlier: Floats | None = None, w_outlier: Floats | None = None) -> Counts:
        """Counts of the inputs, weighted if weights are given."""
        return Counts(
            np.bincount(self.inlier, w_inlier, self.n).astype(np.float64),
            np.bincount(self.outlier, w_outlier, self.n).astype(np.float64),
        )


def ranks(inlier: ArrayLike, outlier: ArrayLike) -> Ranks:
    """The ranks of the scores of inliers (N,) and outliers (M,)."""
    first, second = (without_nan(name, s) for name, s in (("inlier", inlier), ("outlier", outlier)))
    if first.ndim != 1 or second.ndim != 1 or not first.size or not second.size:
        raise ValueError(
            f"scores have shapes {first.shape} and {second.shape} but at least one inlier and one outlier are "
            f"needed, each (N,)"
        )
    values, places = np.unique(np.concatenate([first, second]), return_inverse=True)
    return Ranks(places[: len(first)], places[len(first) :], len(values))


def auroc(inlier: ArrayLike, outlier: ArrayLike) -> float:
    """Share of (inlier, outlier) pairs in which the outlier has the higher score; a tie counts half.

    Examples
    --------
    >>> auroc(inlier=[0.1, 0.2, 0.5], outlier=[0.5, 0.9])
    0.9166666666666666
    """
    return auroc_of(ranks(inlier, outlier).counts())


def auroc_of(counts: Counts) -> float:
    below = counts.inlier.cumsum() - counts.inlier
    pairs = counts.inlier.sum() * counts.outlier.sum()
    return float((counts.outlier * (below + counts.inlier / 2)).sum() / pairs)


def roc_curve(inlier: ArrayLike, outlier: ArrayLike) -> tuple[Floats, Floats]:
    """Shares of inliers and outliers with a score at or above each threshold, from high to low, starting at 0."""
    return roc_curve_of(ranks(inlier, outlier).counts())


def roc_curve_of(counts: Counts) -> tuple[Floats, Floats]:
    above = [np.append(0.0, side[::-1].cumsum()) for side in counts]
    return above[0] / above[0][-1], above[1] / above[1][-1]


def fpr95(inlier: ArrayLike, outlier: ArrayLike) -> float:
    """Share of inliers flagged at the highest threshold that flags 95 % of the outliers.

    Examples
    --------
    >>> fpr95(inlier=[0.1, 0.2, 0.5, 0.7], outlier=[0.6, 0.8, 0.9])
    0.25
    """
    return fpr95_of(ranks(inlier, outlier).counts())


def fpr95_of(counts: Counts) -> float:
    false_alarms, detected = roc_curve_of(counts)
    return float(false_alarms[np.searchsorted(detected, 0.95 - 1e-12)])


def without_nan(name: str, values: ArrayLike) -> NDArray[np.float64]:
    """values as float64; ValueError if any is NaN."""
    array = np.asarray(values, dtype=np.float64)
    n_nan = int(np.count_nonzero(np.isnan(array)))
    if n_nan:
        raise ValueError(
            f"{name} holds {n_nan} NaN among {array.size} values, which have no rank; leave these inputs out, "
            f"or give them the highest score, inf"
        )
    return array
