"""The paper's calibration errors, and the errors that a perfectly calibrated model would show by chance.

All K probabilities of every input count: (input, class) pairs are binned by their probability. P is the middle
of a bin and Q the share of its pairs whose class is the true one. Errors are shares from 0 to 1. Counts can
have leading axes, (..., bins), for resamples of a test set.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ibinn._types import Floats, Labels
from ibinn.metrics.classification import check_predictions

# 0, 1, ..., 5, 15, ..., 95, 96, ..., 100 hundredths: narrow bins where most probabilities lie.
EDGES = np.concatenate([np.arange(5), np.arange(5, 95, 10), np.arange(95, 101)]) / 100
TOP_LABEL_BINS = 15
MIN_COUNT = 20  # bins with at most this many pairs are left out; the authors' choice


class Errors(NamedTuple):
    """Calibration errors (...) of one test set or of many. NaN where every bin is too small."""

    ece: Floats
    mce: Floats
    ice: Floats
    geo_mean: Floats


class FloorDraws(NamedTuple):
    """Calibration of random labels drawn from the model's probabilities: that of a perfectly calibrated model.

    errors and top_label_ece are (n_draws,); share (n_draws, bins) is Q.
    """

    errors: Errors
    top_label_ece: Floats
    share: Floats


def bin_numbers(probabilities: Floats) -> NDArray[np.int64]:
    """The number of the bin [edge_i, edge_i+1) of each probability; 1.0 belongs to the last bin."""
    return (np.searchsorted(EDGES, probabilities, side="right") - 1).clip(0, len(EDGES) - 2)


def pairs_per_bin(probabilities: Floats) -> Floats:
    """Number of the K probabilities of each input in each bin, (N, bins)."""
    numbers, n_bins = bin_numbers(probabilities), len(EDGES) - 1
    cells = numbers + n_bins * np.arange(len(numbers))[:, None]
    counts = np.bincount(cells.ravel(), minlength=len(numbers) * n_bins)
    return counts.reshape(-1, n_bins).astype(np.float64)


def true_per_bin(probabilities: Floats, y: Labels) -> Floats:
    """1 in the bin of the true class's probability, else 0, (N, bins)."""
    check_predictions(probabilities, y)
    at_label = probabilities[np.arange(len(y)), y]
    return np.eye(len(EDGES) - 1)[bin_numbers(at_label)]


def true_shares(n: Floats, n_true: Floats) -> Floats:
    """Q = n_true / n, (..., bins); NaN in an empty bin."""
    shares: Floats = np.divide(
        n_true, n, out=np.full(np.broadcast_shapes(n.shape, n_true.shape), np.nan), where=n > 0
    )
    return shares


def calibration_errors(n: Floats, n_true: Floats, min_count: int = MIN_COUNT) -> Errors:
    """ECE = sum n_i/n |P - Q|, MCE = max |P - Q|, ICE = sum width |P - Q|, and their geometric mean.

    Parameters
    ----------
    n : array
        Pairs per bin, shape (..., bins).
    n_true : array
        Pairs per bin whose class is the true one, shape (..., bins).
    min_count : int
        Bins with at most this many pairs are left out.

    Returns
    -------
    Errors
        Arrays of shape (...), from 0 to 1.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> q = rng.dirichlet(np.ones(3), size=5000)
    >>> y = next(drawn_labels(q, rng))  # labels for which q is perfectly calibrated
    >>> errors = calibration_errors(pairs_per_bin(q).sum(0), true_per_bin(q, y).sum(0))
    >>> bool(errors.ece < 0.02)
    True
    """
    is_used = n > min_count
    gap = np.where(is_used, np.abs((EDGES[1:] + EDGES[:-1]) / 2 - true_shares(n, n_true)), 0.0)
    weight = np.where(is_used, n, 0.0)
    total = weight.sum(-1)
    ece = np.divide((weight * gap).sum(-1), total, out=np.full(gap.shape[:-1], np.nan), where=total > 0)
    mce = np.where(total > 0, gap.max(-1), np.nan)
    ice = np.where(total > 0, (np.diff(EDGES) * gap).sum(-1), np.nan)
    return Errors(ece, mce, ice, np.cbrt(ece * mce * ice))


def top_label_gaps(probabilities: Floats, y: Labels) -> Floats:
    """[correct] - confidence of each input, in its bin of confidence, (N, 15); see `top_label_ece`."""
    check_predictions(probabilities, y)
    confidence = probabilities.max(1)
    gap = (probabilities.argmax(1) == y) - confidence
    return np.asarray(gap[:, None] * np.eye(TOP_LABEL_BINS)[top_label_bins(confidence)])


def top_label_bins(confidence: Floats) -> NDArray[np.int64]:
    """The number of the bin (i/15, (i+1)/15] of each confidence; 0 belongs to the first bin."""
    return (np.ceil(TOP_LABEL_BINS * confidence) - 1).astype(np.int64).clip(0, TOP_LABEL_BINS - 1)


def top_label_ece(gap_sums: Floats, n: int) -> Floats:
    """sum_b |sum of gaps in b| / n, (...), for 15 equal bins of the largest probability (Guo et al. 2017)."""
    return np.asarray(np.abs(gap_sums).sum(-1) / n)


def calibration_floor(
    probabilities: Floats, n_draws: int = 2000, seed: int = 0, min_count: int = MIN_COUNT
) -> FloorDraws:
    """Calibration errors for n_draws sets of labels drawn from the model's probabilities."""
    rng = np.random.default_rng(seed)
    rows, numbers = np.arange(len(probabilities)), bin_numbers(probabilities)
    confidence, predicted = probabilities.max(1), probabilities.argmax(1)
    top = top_label_bins(confidence)
    n_true = np.empty((n_draws, len(EDGES) - 1))
    gaps = np.empty((n_draws, TOP_LABEL_BINS))
    for i, y in enumerate(itertools.islice(drawn_labels(probabilities, rng), n_draws)):
        n_true[i] = np.bincount(numbers[rows, y], minlength=len(EDGES) - 1)
        gaps[i] = np.bincount(top, (predicted == y) - confidence, minlength=TOP_LABEL_BINS)
    n = pairs_per_bin(probabilities).sum(0)
    return FloorDraws(
        calibration_errors(np.broadcast_to(n, n_true.shape), n_true, min_count),
        top_label_ece(gaps, len(probabilities)),
        true_shares(n, n_true),
    )


def drawn_labels(probabilities: Floats, rng: np.random.Generator) -> Iterator[Labels]:
    """Labels (N,) drawn for each input from its row of probabilities, again and again."""
    n, n_classes = probabilities.shape
    rising, first = probabilities.cumsum(1), np.arange(n)
    ends = (first[:, None] + rising / rising[:, -1:]).ravel()  # one row after the other, each of length 1
    while True:
        drawn: Labels = np.searchsorted(ends, first + rng.random(n), side="right") - n_classes * first
        yield drawn.clip(0, n_classes - 1)
