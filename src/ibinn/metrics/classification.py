"""A classifier's answers against the labels: one number per input, (N,); the metric is their mean."""

import numpy as np

from ibinn._types import Floats, Labels


def wrong(log_q_y: Floats, y: Labels) -> Floats:
    """1 where the likeliest class is not the label, or where there is no number; of equals the first counts."""
    check(log_q_y, y)
    return np.asarray((log_q_y.argmax(1) != y) | np.isnan(log_q_y).any(1), np.float64)


def log_loss(log_q_y: Floats, y: Labels) -> Floats:
    """-log q(y|x) at the label, in nats."""
    check(log_q_y, y)
    return -log_q_y[np.arange(len(y)), y]


def brier(log_q_y: Floats, y: Labels) -> Floats:
    """sum_k (q(k|x) - [k = y])^2, from 0 to 2 (Brier 1950)."""
    check(log_q_y, y)
    gap: Floats = np.exp(log_q_y) - np.eye(log_q_y.shape[1])[y]
    return np.asarray(np.square(gap).sum(1))


def entropy(log_q_y: Floats) -> Floats:
    """H(Y|x) = -sum_k q(k|x) log q(k|x), in nats; a probability of 0 adds nothing."""
    q: Floats = np.exp(log_q_y)
    return np.asarray(np.abs((q * np.where(q > 0, log_q_y, 0.0)).sum(1)))  # no term is positive


def entropy_of_shares(y: Labels) -> float:
    """H(Y) of the labels themselves, in nats."""
    share = np.bincount(y) / len(y)
    return float(-(share[share > 0] * np.log(share[share > 0])).sum())


def check(log_q_y: Floats, y: Labels) -> None:
    if log_q_y.ndim != 2 or y.shape != (len(log_q_y),):
        raise ValueError(
            f"log_q_y has shape {log_q_y.shape} and y {y.shape} but they must be (N, K) and (N,), of the same N"
        )
