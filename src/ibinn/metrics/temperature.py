"""Temperature scaling (Guo et al. 2017): one number that makes all probabilities softer or sharper."""

import numpy as np
from scipy.special import log_softmax

from ibinn._types import Floats, Labels
from ibinn.metrics.classification import check_predictions

FARTHEST = 100.0  # the temperature is between 1 / FARTHEST and FARTHEST
LOWEST = -1e4  # log-probabilities below, in nats, count as this: a probability of 0 has no finite loss


def apply_temperature(log_q_y: Floats, temperature: float) -> Floats:
    """log-softmax(log q(y|x) / T), (N, K): softer for T > 1, sharper for T < 1.

    Examples
    --------
    >>> import numpy as np
    >>> np.exp(apply_temperature(np.log([[0.8, 0.2]]), temperature=2.0)).round(4)
    array([[0.6667, 0.3333]])
    """
    return np.asarray(log_softmax(np.maximum(log_q_y, LOWEST) / temperature, axis=1))


def fit_temperature(log_q_y: Floats, y: Labels) -> float:
    """The temperature T with the least mean of -log q(y|x) at the labels.

    The mean is convex in 1/T, and its slope is the mean of E_q[log q(y|x)] - log q(y|x) at the label, so T is
    found by bisection.

    Parameters
    ----------
    log_q_y : array
        Log-probabilities, shape (N, K). Rows with NaN are left out.
    y : array
        Labels, shape (N,).

    Returns
    -------
    float
        T from 1/100 to 100; 1 if no rows are left.

    Examples
    --------
    >>> import numpy as np
    >>> log_q_y = np.log(np.tile([0.9, 0.1], (4, 1)))  # 90 % sure, 75 % right
    >>> round(fit_temperature(log_q_y, np.array([0, 0, 0, 1])), 4)
    2.0
    """
    check_predictions(log_q_y, y)
    is_number = ~np.isnan(log_q_y).any(1)
    log_q_y, y = np.maximum(log_q_y[is_number], LOWEST), y[is_number]
    if not len(y):
        return 1.0
    at_label = log_q_y[np.arange(len(y)), y]
    low, high = -np.log(FARTHEST), np.log(FARTHEST)  # of log(1 / T)
    for _ in range(50):
        middle = (low + high) / 2
        q = np.exp(apply_temperature(log_q_y, np.exp(-middle)))
        if ((q * log_q_y).sum(1) - at_label).mean() > 0:
            high = middle
        else:
            low = middle
    return float(np.exp(-(low + high) / 2))
