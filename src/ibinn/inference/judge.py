"""A trained model on a batch of inputs: its output with OoD scores and p-values."""

import math
from dataclasses import dataclass, replace

import numpy as np

from ibinn._types import Array, Floats, Progress
from ibinn.models.output import Output
from ibinn.ood.scores import Reference, observe, ood_scores, p_values
from ibinn.run.trained import Run

MAX_BINS = 40  # of the histogram of the calibration scores


def judge(
    run: Run, raw: Array, batch_size: int = 500, progress: Progress | None = None, with_z: bool = False
) -> Output[Floats]:
    """The output of a run for raw inputs, with OoD scores and p-values.

    Parameters
    ----------
    run : Run
    raw : array of shape (N, ...)
        Levels (N, H, W, C) or rows (N, D).
    batch_size : int
        Number of inputs to compute at once.
    progress : callable, optional
        Called with the number of inputs done, and the total.
    with_z : bool
        Whether the output holds the latent codes.

    Returns
    -------
    Output
        Arrays in float64, with `scores` and `p_values`.
    """
    output = observe(run.pipeline, raw, batch_size, progress, with_z)
    scores = ood_scores(output, run.reference)
    return replace(output, scores=scores, p_values=p_values(scores, run.reference.calibration))


@dataclass(frozen=True)
class CalibrationRank:
    """The rank of an input among the calibration inputs, which are like the training data but were not in it.

    Attributes
    ----------
    score : str
        Name of the headline score.
    value : float
        Score of the input.
    n : int
        Number of calibration inputs.
    n_stranger : int
        Number of calibration inputs with the same or a higher score, up to rounding: that of the p-value.
    edges, counts : tuple
        Histogram of the calibration scores; the outermost bins hold all beyond.
    """

    score: str
    value: float
    n: int
    n_stranger: int
    edges: tuple[float, ...]
    counts: tuple[int, ...]


def calibration_rank(reference: Reference, value: float, p: float) -> CalibrationRank:
    """The rank of an input with the headline score `value` and the p-value p = (1 + n_stranger) / (n + 1)."""
    calibration = reference.calibration[reference.headline]
    n = len(calibration)
    return CalibrationRank(reference.headline, value, n, round(p * (n + 1)) - 1, *histogram(calibration))


def histogram(scores: Floats) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Edges and counts over the central 99 % of the finite scores; the outermost bins hold all beyond."""
    finite = scores[np.isfinite(scores)]
    low, high = np.percentile(finite, (0.5, 99.5)).tolist() if len(finite) else (0.0, 1.0)
    if high - low <= 1e-9 * abs(high):  # too narrow for bins
        low, high = low - max(0.5, abs(low)), high + max(0.5, abs(high))
    n_bins = min(MAX_BINS, math.ceil(2 * len(scores) ** (1 / 3)))
    counts, edges = np.histogram(scores.clip(low, high), n_bins, (low, high))
    return tuple(edges.tolist()), tuple(counts.tolist())
