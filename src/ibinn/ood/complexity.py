"""How long is a lossless code of an image: a measure of how complex it is, whatever a model thinks.

The code is that of an adaptive arithmetic coder. Each pixel is predicted from its neighbours to the left and above
(the median predictor of JPEG-LS); what is left, modulo the levels, is coded with the counts so far among pixels in
the same context, the context being how much those neighbours differ. Its length has a closed form, so nothing has
to be coded, and it is the same on every machine.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

STEPS = np.array([1, 1 / 64, 1 / 16, 1 / 4])  # of the contexts: 1 level, then shares of all levels


def code_lengths(images: NDArray[Any], levels: int) -> NDArray[np.float64]:
    """In nats, (N,), of images (N, H, W, C) of `levels` values with C = 1 or 3."""
    lengths = [lengths_of(images[i : i + 200], levels) for i in range(0, len(images), 200)]
    return np.concatenate([np.zeros(0), *lengths])


def lengths_of(images: NDArray[Any], levels: int) -> NDArray[np.float64]:
    w = images.astype(np.int64)
    if w.shape[3] == 3:  # red and blue beside green, which they resemble
        w = np.stack(
            [w[..., 1], (w[..., 0] - w[..., 1]) % levels, (w[..., 2] - w[..., 1]) % levels], axis=3
        )
    residual, context = residuals(w, levels)
    n, _, _, n_channels = w.shape
    n_contexts = (len(STEPS) + 1) * n_channels
    cell = ((np.arange(n)[:, None, None, None] * n_contexts + context) * levels + residual).ravel()
    counts = np.bincount(cell, minlength=n * n_contexts * levels).reshape(n, n_contexts, levels)
    return np.asarray(dirichlet_lengths(counts).sum(1))


def residuals(w: NDArray[np.int64], levels: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """What the prediction leaves, modulo levels, and the context, both like w (N, H, W, C)."""
    frame = np.pad(w, ((0, 0), (1, 0), (1, 0), (0, 0)))
    left, above, corner = frame[:, 1:, :-1], frame[:, :-1, 1:], frame[:, :-1, :-1]
    low, high = np.minimum(left, above), np.maximum(left, above)
    predicted = np.where(corner >= high, low, np.where(corner <= low, high, left + above - corner))
    change = np.abs(left - corner) + np.abs(above - corner)
    edges = np.maximum(1, np.sort(STEPS[1:] * levels))
    context = np.searchsorted(np.append(1, edges), change, side="right")
    channel = np.arange(w.shape[3]) * (len(STEPS) + 1)
    return (w - predicted) % levels, context + channel


def dirichlet_lengths(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """-log of the probability that an adaptive coder gives symbols with these counts, (..., L) -> (...).

    A symbol seen k times among n so far gets (k + 1/L) / (n + 1).
    """
    share = 1 / counts.shape[-1]
    most = int(counts.sum(-1).max(initial=0)) + 1
    log_gamma = np.array([math.lgamma(k + share) - math.lgamma(share) for k in range(most)])
    log_factorial = np.array([math.lgamma(n + 1) for n in range(most)])
    return np.asarray(log_factorial[counts.sum(-1)] - log_gamma[counts].sum(-1))
