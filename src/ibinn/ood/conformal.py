"""Conformal p-values from ranks among held-out inliers, and what to flag by them.

The calibration scores come from a split that is used for nothing else. Then P(p <= alpha) <= alpha for new
in-distribution data, for any score.
"""

import math
import warnings

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.stats import false_discovery_control
from torch import Tensor

from ibinn._types import Floats
from ibinn.metrics.roc import without_nan


def conformal_p_values(scores: ArrayLike, calibration_scores: ArrayLike) -> Floats:
    """p = (1 + #{calibration scores >= s}) / (n + 1) of each score s.

    P(p <= alpha) <= alpha for new in-distribution data, over the draw of both the input and the n calibration
    samples. p cannot fall below 1 / (n + 1): see `warn_if_coarse`.

    Parameters
    ----------
    scores : array-like
        Higher is stranger; may hold -inf and inf, but no NaN.
    calibration_scores : array-like
        Scores of held-out in-distribution data.

    Returns
    -------
    array in the shape of scores

    Examples
    --------
    >>> from ibinn.ood.conformal import conformal_p_values
    >>> conformal_p_values([0.5, 2.0, 9.0], [1.0, 2.0, 3.0]).tolist()
    [1.0, 0.75, 0.25]
    """
    calibration = np.sort(without_nan("calibration_scores", calibration_scores), axis=None)
    if calibration.size == 0:
        raise ValueError(
            "calibration_scores is empty; p-values need scores of held-out in-distribution data"
        )
    values = np.array(without_nan("scores", scores), order="C")
    return p_values_among(torch.from_numpy(values), torch.from_numpy(calibration)).numpy()


def p_values_among(scores: Tensor, calibration: Tensor) -> Tensor:
    """`conformal_p_values` of scores without NaN, in operations that ONNX has; calibration (n,) is sorted."""
    n_smaller, n = torch.bucketize(scores, calibration), calibration.shape[0]
    return (1 + n - n_smaller).double() / (n + 1)


def mondrian_p_values(
    scores: ArrayLike, groups: ArrayLike, calibration_scores: ArrayLike, calibration_groups: ArrayLike
) -> Floats:
    """p-values among the calibration samples of the same group, (N,): false alarms are rare in each group.

    Parameters
    ----------
    scores, groups : array-like of shape (N,)
        Scores, and the group of each input: a function of the input alone, such as the predicted class.
    calibration_scores, calibration_groups : array-like of shape (n,)

    Returns
    -------
    array of shape (N,)
        1 in a group without calibration samples.

    Examples
    --------
    >>> from ibinn.ood.conformal import mondrian_p_values
    >>> mondrian_p_values([2.0, 2.0], ["a", "b"], [1.0, 1.5, 3.0], ["a", "a", "b"]).round(3).tolist()
    [0.333, 1.0]
    """
    values, groups = without_nan("scores", scores), np.asarray(groups)
    calibration = without_nan("calibration_scores", calibration_scores)
    calibration_groups = np.asarray(calibration_groups)
    p = np.ones(values.shape)
    for group in np.unique(calibration_groups):
        members = groups == group
        p[members] = conformal_p_values(values[members], calibration[calibration_groups == group])
    return p


def prediction_sets(log_q_y: ArrayLike, label_scores: ArrayLike, alpha: float) -> NDArray[np.bool_]:
    """Split-conformal sets of classes: the true class is in its set with probability 1 - alpha or more.

    A class is in the set unless its 1 - q(y|x) exceeds all but a share alpha of the calibration samples' values.
    The probability is over inputs and calibration samples. A set may hold every class, or none.

    Parameters
    ----------
    log_q_y : array-like of shape (N, K)
    label_scores : array-like of shape (n,)
        1 - q(y|x) of the true classes of the calibration samples.
    alpha : float
        Between 0 and 1.

    Returns
    -------
    bool array of shape (N, K)

    Examples
    --------
    >>> import numpy as np
    >>> from ibinn.ood.conformal import prediction_sets
    >>> prediction_sets(np.log([[0.9, 0.1], [0.6, 0.4]]), [0.05, 0.1, 0.2, 0.7], alpha=0.3).tolist()
    [[True, False], [True, True]]
    """
    if not 0 < alpha < 1:
        raise ValueError(f"alpha is {alpha} but must lie between 0 and 1")
    return conformal_p_values(-np.expm1(np.asarray(log_q_y, dtype=np.float64)), label_scores) > alpha


def benjamini_hochberg(p_values: ArrayLike, fdr: float) -> NDArray[np.bool_]:
    """Flags for a batch such that on average at most a share `fdr` of the flagged inputs are inliers.

    Benjamini and Hochberg (1995). Valid for conformal p-values that share their calibration samples
    (Bates et al. 2023).

    Parameters
    ----------
    p_values : array-like of shape (N,)
    fdr : float
        False discovery rate, between 0 and 1.

    Returns
    -------
    bool array of shape (N,)

    Examples
    --------
    >>> from ibinn.ood.conformal import benjamini_hochberg
    >>> benjamini_hochberg([0.001, 0.03, 0.2, 0.9], fdr=0.1).tolist()
    [True, True, False, False]
    """
    if not 0 < fdr < 1:
        raise ValueError(f"fdr is {fdr} but must lie between 0 and 1")
    p = without_nan("p_values", p_values)
    # SciPy rounds p N / i, which may end just above fdr where p equals fdr i / N.
    return np.asarray(false_discovery_control(p) <= fdr * (1 + 1e-12)) if p.size else np.zeros(0, bool)


def smallest_p_value(n: int) -> float:
    """1 / (n + 1): the smallest p-value that n calibration samples allow."""
    return 1 / (n + 1)


def warn_if_coarse(n: int, alpha: float) -> None:
    """Warn if n calibration samples are too few for any p <= alpha: 1 / (n + 1) > alpha."""
    if not 0 < alpha <= 1:
        raise ValueError(f"alpha is {alpha} but must be above 0 and at most 1")
    if smallest_p_value(n) > alpha:
        needed = math.ceil(1 / alpha) - 1
        warnings.warn(
            f"With {n} calibration samples no p-value is below {smallest_p_value(n):.3g}, so nothing can be "
            f"flagged at alpha = {alpha:g}: use at least {needed} calibration samples or a larger alpha.",
            stacklevel=2,
        )
