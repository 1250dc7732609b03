"""Temperature scaling (Guo et al. 2017): one number that makes all probabilities softer or sharper.

It enters Bayes' rule: p(y) q(x|y)^(1/T), normalised. The class weights p(y) are not tempered and can still be
changed. For a classifier without class weights this is softmax(logits / T).
"""

import numpy as np
from scipy.special import log_softmax

from ibinn._types import Floats, Labels
from ibinn.metrics.classification import check_predictions, log_loss

FARTHEST = 100.0  # the temperature is between 1 / FARTHEST and FARTHEST
LOWEST = -1e4  # log-probabilities below, in nats, count as this: a probability of 0 has no finite loss
SPREAD = 0.5  # standard deviation of log T before any data is seen
N_GRID = 93  # a step of log T of 0.1


def apply_temperature(log_q_y: Floats, temperature: float, log_w: Floats | None = None) -> Floats:
    """log of p(y) q(x|y)^(1/T), normalised, (N, K): softer for T > 1, sharper for T < 1.

    log_w are the log class weights (K,); by default all are equal.

    Examples
    --------
    >>> import numpy as np
    >>> np.exp(apply_temperature(np.log([[0.8, 0.2]]), temperature=2.0)).round(4)
    array([[0.6667, 0.3333]])
    """
    weights = 0.0 if log_w is None else log_w
    likelihood = np.maximum(log_q_y, LOWEST) - weights
    return np.asarray(log_softmax(weights + likelihood / temperature, axis=1))


def fit_temperature(log_q_y: Floats, y: Labels, log_w: Floats | None = None) -> float:
    """The most probable temperature T, given labels.

    It minimises the sum of -log p(y|x) at the labels plus (log T / SPREAD)^2 / 2. The second term keeps a few
    examples, all of them classified correctly, from making the probabilities extreme.

    Parameters
    ----------
    log_q_y : array
        Log-probabilities, shape (N, K). Rows with NaN are left out.
    y : array
        Labels, shape (N,).
    log_w : array, optional
        Log class weights, shape (K,), which are not tempered.

    Returns
    -------
    float
        T from 1/100 to 100; 1 if no rows are left.

    Examples
    --------
    >>> import numpy as np
    >>> log_q_y = np.log(np.tile([0.9, 0.1], (40000, 1)))  # 90 % sure, 75 % right
    >>> round(fit_temperature(log_q_y, np.arange(40000) // 30000), 2)
    2.0
    """
    check_predictions(log_q_y, y)
    is_number = ~np.isnan(log_q_y).any(1)
    log_q_y, y = np.maximum(log_q_y[is_number], LOWEST), y[is_number]
    likelihood = log_q_y - (0.0 if log_w is None else log_w)
    at_label = likelihood[np.arange(len(y)), y]

    def slope(log_b: float) -> float:
        """Of the sum, in log(1 / T)."""
        p = np.exp(apply_temperature(log_q_y, np.exp(-log_b), log_w))
        return float(np.exp(log_b) * ((p * likelihood).sum(1) - at_label).sum() + log_b / SPREAD**2)

    def loss(log_b: float) -> float:
        at = np.arange(len(y)), y
        return float(
            -apply_temperature(log_q_y, np.exp(-log_b), log_w)[at].sum() + (log_b / SPREAD) ** 2 / 2
        )

    if not len(y):
        return 1.0
    # The sum may have several minima in log T: the best on a grid, then bisection beside it.
    grid = np.linspace(-np.log(FARTHEST), np.log(FARTHEST), N_GRID)
    best = int(np.argmin([loss(log_b) for log_b in grid]))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, N_GRID - 1)]
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if slope(middle) > 0 else (middle, high)
    return float(np.exp(-(low + high) / 2))


def useful_temperature(log_q_y: Floats, y: Labels, log_w: Floats | None = None) -> float:
    """The fitted temperature, or 1 unless it lowers the mean log-loss by more than its standard error.

    Examples
    --------
    >>> import numpy as np
    >>> log_q_y = np.log(np.tile([0.75, 0.25], (40, 1)))  # 75 % sure, 75 % right
    >>> useful_temperature(log_q_y, np.arange(40) // 30)
    1.0
    """
    temperature = fit_temperature(log_q_y, y, log_w)
    before, after = (log_loss(apply_temperature(log_q_y, t, log_w), y) for t in (1.0, temperature))
    gain = (before - after)[~np.isnan(before)]
    helps = len(gain) > 1 and gain.mean() > gain.std(ddof=1) / np.sqrt(len(gain))
    return temperature if helps else 1.0
