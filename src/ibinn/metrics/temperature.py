"""Temperature scaling (Guo et al. 2017): one number that makes all answers softer, or all harder."""

import numpy as np
from numpy.typing import NDArray

from ibinn._types import Floats
from ibinn.metrics.classification import check

FARTHEST = 100.0  # from 1, either way
LOWEST = -1e4  # of a log-probability, in nats: one of 0 has no finite loss at any temperature


def scaled(log_q_y: Floats, temperature: float) -> Floats:
    """log-softmax(log q(y|x) / T), (N, K): softer for T > 1, harder for T < 1."""
    logits = np.maximum(log_q_y, LOWEST) / temperature
    logits = logits - logits.max(1, keepdims=True)
    return np.asarray(logits - np.log(np.exp(logits).sum(1, keepdims=True)))


def fit_temperature(log_q_y: Floats, y: NDArray[np.int64]) -> float:
    """The T, from 1/100 to 100, at which the mean of -log q(y|x) at the labels is least; 1 without answers.

    The mean is convex in 1/T, and its slope there is that of E_q[log q(y|x)] - log q(y|x) at the label: bisection.
    """
    check(log_q_y, y)
    answered = ~np.isnan(log_q_y).any(1)
    log_q_y, y = np.maximum(log_q_y[answered], LOWEST), y[answered]
    if not len(y):
        return 1.0
    here = log_q_y[np.arange(len(y)), y]
    low, high = -np.log(FARTHEST), np.log(FARTHEST)  # of log(1 / T)
    for _ in range(50):
        middle = (low + high) / 2
        q = np.exp(scaled(log_q_y, np.exp(-middle)))
        if ((q * log_q_y).sum(1) - here).mean() > 0:
            high = middle
        else:
            low = middle
    return float(np.exp(-(low + high) / 2))
