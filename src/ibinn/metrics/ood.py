"""How strange is an input: the typicality score and conformal p-values. Higher score = stranger.

Three separate splits: the centre h of the typicality comes from the validation split, the p-values from the
calibration split, which nothing else may touch, and the inputs that are judged from neither.
"""

import math
import warnings

import numpy as np
from numpy.typing import ArrayLike, NDArray


def typical_entropy(log_q_x_validation: ArrayLike, n_dims: int) -> float:
    """h, the mean of -log q(x) / D over the validation split, in nats per dimension.

    Not over the calibration split: its scores would be too small, and the p-values with them.
    """
    log_q_x = np.asarray(log_q_x_validation, dtype=np.float64)
    n_bad = int(np.count_nonzero(~np.isfinite(log_q_x)))
    if log_q_x.size == 0 or n_bad:
        raise ValueError(
            f"log_q_x_validation holds {log_q_x.size} values, {n_bad} of them not finite, but h needs at least "
            f"one and all finite; look for inputs outside the model's range"
        )
    return -float(log_q_x.mean()) / n_dims


def typicality(log_q_x: ArrayLike, n_dims: int, h: float) -> NDArray[np.float64]:
    """|-log q(x) / D - h|, (N,), in nats per dimension; h from `typical_entropy`, in the same units."""
    return np.abs(-np.asarray(log_q_x, dtype=np.float64) / n_dims - h)


def conformal_p_values(scores: ArrayLike, calibration_scores: ArrayLike) -> NDArray[np.float64]:
    """p = (1 + #{calibration scores >= s}) / (n + 1), in the shape of scores; -inf and inf are scores too.

    P(p <= alpha) <= alpha for fresh in-distribution data, over the draw of both the input and the n calibration
    samples. p cannot fall below 1 / (n + 1): see `warn_if_coarse`.
    """
    calibration = np.sort(_without_nan("calibration_scores", calibration_scores), axis=None)
    n = calibration.size
    if n == 0:
        raise ValueError(
            "calibration_scores is empty; p-values need scores of held-out in-distribution data"
        )
    n_smaller = np.searchsorted(calibration, _without_nan("scores", scores), side="left")
    return np.asarray((1 + n - n_smaller) / (n + 1), dtype=np.float64)


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


def _without_nan(name: str, values: ArrayLike) -> NDArray[np.float64]:
    """values as float64; ValueError if any is NaN."""
    array = np.asarray(values, dtype=np.float64)
    n_nan = int(np.count_nonzero(np.isnan(array)))
    if n_nan:
        raise ValueError(
            f"{name} holds {n_nan} NaN among {array.size} values, which have no rank; leave these inputs out, "
            f"or give them the score inf (strangest)"
        )
    return array
