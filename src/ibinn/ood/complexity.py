"""The length of a lossless code of an image: how complex the image is, independent of any model.

The code is that of an adaptive arithmetic coder. Each pixel is predicted from its neighbours to the left and above
(the median predictor of JPEG-LS). The residual, modulo the levels, is coded with the counts so far among pixels in
the same context: how much those neighbours differ. The length has a closed form, so nothing is actually coded, and
it is the same on every machine.
"""

import functools
import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ibinn._types import Array, Floats

STEPS = (1 / 64, 1 / 16, 1 / 4)  # where contexts begin, as shares of the levels; before them 0 and 1 level
N_CONTEXTS = len(STEPS) + 2


def code_lengths(images: Array, levels: int) -> Floats:
    """The length of a lossless code of each image.

    Parameters
    ----------
    images : array of integers, shape (N, H, W, C)
        Values 0 to levels - 1, with C = 1 or 3.
    levels : int
        Number of values of a pixel.

    Returns
    -------
    array of shape (N,)
        In nats.

    Examples
    --------
    >>> import numpy as np
    >>> from ibinn.ood.complexity import code_lengths
    >>> black = np.zeros((1, 8, 8, 1), np.uint8)
    >>> noise = np.random.default_rng(0).integers(256, size=(1, 8, 8, 1))
    >>> code_lengths(black, 256).round(1).tolist(), code_lengths(noise, 256).round(1).tolist()
    ([9.7], [506.1])
    """
    batches = (images[start : start + 200] for start in range(0, len(images), 200))
    parts = [code_length(torch.from_numpy(batch.astype(np.int32)), levels).numpy() for batch in batches]
    return np.concatenate([np.zeros(0), *parts])


def code_length(images: Tensor, levels: int) -> Tensor:
    """`code_lengths` of a batch, in operations that ONNX has: (N, H, W, C) -> (N,), in float64."""
    w = images.int()
    if w.shape[3] == 3:  # red and blue relative to green, which they resemble
        red, green, blue = w.unbind(3)
        w = torch.stack([green, (red - green) % levels, (blue - green) % levels], 3)
    log_gamma, log_factorial = map(torch.from_numpy, log_gammas(w.shape[1] * w.shape[2], levels))
    counts = context_counts(*residuals(w, levels), levels)
    return (log_factorial[counts.sum(2)] - log_gamma[counts].sum(2)).sum(1)


def residuals(w: Tensor, levels: int) -> tuple[Tensor, Tensor]:
    """The residual of the prediction, modulo levels, and the context, both like w (N, H, W, C)."""
    frame = F.pad(w, (0, 0, 1, 0, 1, 0))
    left, above, corner = frame[:, 1:, :-1], frame[:, :-1, 1:], frame[:, :-1, :-1]
    low, high = torch.minimum(left, above), torch.maximum(left, above)
    between = torch.where(corner <= low, high, left + above - corner)
    predicted = torch.where(corner >= high, low, between)
    change = (left - corner).abs() + (above - corner).abs()
    context = sum((change >= max(1, math.ceil(step * levels))).int() for step in (0, *STEPS))
    return (w - predicted) % levels, context + N_CONTEXTS * torch.arange(w.shape[3], dtype=torch.int32)


def context_counts(residual: Tensor, context: Tensor, levels: int) -> Tensor:
    """How often each residual occurs in each context, (N, contexts of all channels, levels)."""
    n_contexts = N_CONTEXTS * residual.shape[3]
    cell = (context * levels + residual).flatten(1).long()
    zeros = cell.new_zeros(cell.shape[0], n_contexts * levels)
    return zeros.scatter_add(1, cell, torch.ones_like(cell)).reshape(-1, n_contexts, levels)


@functools.cache
def log_gammas(n: int, levels: int) -> tuple[Floats, Floats]:
    """log(Gamma(k + 1/levels) / Gamma(1/levels)) and log(k!) for k = 0 to n.

    An adaptive coder gives a symbol that occurred k times among n so far the probability (k + 1/levels) / (n + 1).
    So n symbols, of which k_i are symbol i, cost log(n!) - sum_i log(Gamma(k_i + 1/levels) / Gamma(1/levels)).
    """
    share = 1 / levels
    log_gamma = [math.lgamma(k + share) - math.lgamma(share) for k in range(n + 1)]
    log_factorial = [math.lgamma(k + 1) for k in range(n + 1)]
    return np.array(log_gamma), np.array(log_factorial)
