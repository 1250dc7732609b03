"""p-values from ranks among held-out inliers, and what to flag by them.

The calibration scores come from a split that nothing else may touch; then P(p <= alpha) <= alpha for fresh
in-distribution data, whatever the score.
"""

import math
import warnings

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ibinn.metrics.roc import without_nan


def conformal_p_values(scores: ArrayLike, calibration_scores: ArrayLike) -> NDArray[np.float64]:
    """p = (1 + #{calibration scores >= s}) / (n + 1), in the shape of scores; -inf and inf are scores too.

    P(p <= alpha) <= alpha for fresh in-distribution data, over the draw of both the input and the n calibration
    samples. p cannot fall below 1 / (n + 1): see `warn_if_coarse`.
    """
    calibration = np.sort(without_nan("calibration_scores", calibration_scores), axis=None)
    n = calibration.size
    if n == 0:
        raise ValueError(
            "calibration_scores is empty; p-values need scores of held-out in-distribution data"
        )
    n_smaller = np.searchsorted(calibration, without_nan("scores", scores), side="left")
    return np.asarray((1 + n - n_smaller) / (n + 1), dtype=np.float64)


def mondrian_p_values(
    scores: ArrayLike, groups: ArrayLike, calibration_scores: ArrayLike, calibration_groups: ArrayLike
) -> NDArray[np.float64]:
    """p-values among the calibration samples of the same group, (N,): false alarms are rare in each group.

    A group is what a function of the input alone says, such as the predicted class. In a group without
    calibration samples p is 1.
    """
    values, groups = without_nan("scores", scores), np.asarray(groups)
    calibration, theirs = (
        without_nan("calibration_scores", calibration_scores),
        np.asarray(calibration_groups),
    )
    p = np.ones(values.shape)
    for group in np.unique(theirs):
        p[groups == group] = conformal_p_values(values[groups == group], calibration[theirs == group])
    return p


def prediction_sets(log_q_y: ArrayLike, label_scores: ArrayLike, alpha: float) -> NDArray[np.bool_]:
    """Which classes cannot be excluded, (N, K): the true one is among them with probability 1 - alpha or more.

    label_scores (n,) are 1 - q(y|x) of the true classes of the calibration samples: a class
    is kept where its 1 - q(y|x) is not stranger than all but a share alpha of those (split-conformal sets). The
    probability is over inputs and calibration samples. A set may hold every class, or none.
    """
    if not 0 < alpha < 1:
        raise ValueError(f"alpha is {alpha} but must lie between 0 and 1")
    return conformal_p_values(-np.expm1(np.asarray(log_q_y, dtype=np.float64)), label_scores) > alpha


def benjamini_hochberg(p_values: ArrayLike, fdr: float) -> NDArray[np.bool_]:
    """Which of a batch to flag so that at most a share fdr of the flagged are inliers on average, (N,).

    With p_(1) <= ... <= p_(N): all up to the last i with p_(i) <= fdr i / N (Benjamini and Hochberg 1995; it
    holds for conformal p-values that share their calibration samples: Bates et al. 2023).
    """
    if not 0 < fdr < 1:
        raise ValueError(f"fdr is {fdr} but must lie between 0 and 1")
    p = without_nan("p_values", p_values)
    rising = np.sort(p)
    kept = np.flatnonzero(rising <= fdr * np.arange(1, p.size + 1) / max(1, p.size))
    return p <= rising[kept[-1]] if kept.size else np.zeros(p.shape, bool)


def smallest_p_value(n: int) -> float:
    """1 / (n + 1), the p-value of an input stranger than all n calibration samples."""
    return 1 / (n + 1)


def warn_if_coarse(n: int, alpha: float) -> None:
    """Warn where n calibration samples are too few for any p <= alpha: 1 / (n + 1) > alpha."""
    if not 0 < alpha <= 1:
        raise ValueError(f"alpha is {alpha} but must be above 0 and at most 1")
    if smallest_p_value(n) > alpha:
        needed = math.ceil(1 / alpha) - 1
        warnings.warn(
            f"With {n} calibration samples no p-value is below {smallest_p_value(n):.3g}, so nothing can be "
            f"flagged at alpha = {alpha:g}: use at least {needed} calibration samples or a larger alpha.",
            stacklevel=2,
        )
