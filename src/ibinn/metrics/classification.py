"""Metrics of a classifier's probabilities: one number per input, (N,); the metric is the mean."""

import numpy as np

from ibinn._types import Floats, Labels


def wrong(log_q_y: Floats, y: Labels) -> Floats:
    """1 where the most probable class is not the label, or a value is NaN. Ties go to the first class.

    Examples
    --------
    >>> import numpy as np
    >>> wrong(np.log([[0.7, 0.3], [0.4, 0.6]]), np.array([0, 0]))
    array([0., 1.])
    """
    check_predictions(log_q_y, y)
    return np.asarray((log_q_y.argmax(1) != y) | np.isnan(log_q_y).any(1), np.float64)


def log_loss(log_q_y: Floats, y: Labels) -> Floats:
    """-log q(y|x) at the label, in nats.

    Examples
    --------
    >>> import numpy as np
    >>> log_loss(np.log([[0.5, 0.5], [0.25, 0.75]]), np.array([0, 1])).round(4)
    array([0.6931, 0.2877])
    """
    check_predictions(log_q_y, y)
    return -log_q_y[np.arange(len(y)), y]


def brier(log_q_y: Floats, y: Labels) -> Floats:
    """Brier score sum_k (q(k|x) - [k = y])^2, from 0 to 2 (Brier 1950).

    Examples
    --------
    >>> import numpy as np
    >>> brier(np.log([[0.5, 0.5], [0.1, 0.9]]), np.array([0, 1])).round(4)
    array([0.5 , 0.02])
    """
    check_predictions(log_q_y, y)
    gap: Floats = np.exp(log_q_y) - np.eye(log_q_y.shape[1])[y]
    return np.asarray(np.square(gap).sum(1))


def entropy(log_q_y: Floats) -> Floats:
    """Entropy H(Y|x) = -sum_k q(k|x) log q(k|x), in nats; a probability of 0 adds nothing.

    Examples
    --------
    >>> import numpy as np
    >>> entropy(np.log([[0.5, 0.5], [0.9, 0.1]])).round(4)
    array([0.6931, 0.3251])
    """
    q: Floats = np.exp(log_q_y)
    return np.asarray(np.abs((q * np.where(q > 0, log_q_y, 0.0)).sum(1)))  # no term is positive


def entropy_of_shares(y: Labels) -> float:
    """Entropy H(Y) of the labels, in nats."""
    share = np.bincount(y) / len(y)
    return float(-(share[share > 0] * np.log(share[share > 0])).sum())


def check_predictions(log_q_y: Floats, y: Labels) -> None:
    """Raise ValueError unless the shapes are (N, K) and (N,)."""
    if log_q_y.ndim != 2 or y.shape != (len(log_q_y),):
        raise ValueError(
            f"log_q_y has shape {log_q_y.shape} and y {y.shape} but they must be (N, K) and (N,), of the same N"
        )
