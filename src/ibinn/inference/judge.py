"""A trained model on a batch of inputs: its output with OoD scores and p-values."""

import math
from dataclasses import dataclass, replace

import numpy as np

from ibinn._types import Array, Floats, Progress
from ibinn.models.output import Output
from ibinn.ood.scores import Reference, observe, ood_scores, p_values
from ibinn.run.trained import Run


def judge(
    run: Run, raw: Array, batch_size: int = 500, progress: Progress | None = None, with_z: bool = False
) -> Output[Floats]:
    """The output of a run for raw (N, ...), with OoD scores and p-values."""
    output = observe(run.pipeline, raw, batch_size, progress, with_z)
    scores = ood_scores(output, run.reference)
    return replace(output, scores=scores, p_values=p_values(scores, run.reference.calibration))


MOST_BARS = 40  # of a histogram


@dataclass(frozen=True)
class Place:
    """Where an input stands among the n calibration inputs, which are like the training data but were not in it.

    value is its score, n_stranger the number of them with the same or a higher one. edges and counts are a
    histogram of theirs; its outermost bars hold all beyond.
    """

    score: str
    value: float
    n: int
    n_stranger: int
    edges: tuple[float, ...]
    counts: tuple[int, ...]


def place_among(reference: Reference, value: float) -> Place:
    """The place of the headline score `value`."""
    calibration = reference.calibration[reference.headline]
    edges, counts = histogram(calibration)
    n_stranger = int((calibration >= value).sum())
    return Place(reference.headline, value, len(calibration), n_stranger, edges, counts)


def histogram(scores: Floats) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Edges and counts over the central 99 % of the finite scores; all beyond is in the outermost bars."""
    finite = scores[np.isfinite(scores)]
    low, high = np.percentile(finite, (0.5, 99.5)).tolist() if len(finite) else (0.0, 1.0)
    if high - low <= 1e-9 * abs(high):  # no room for bars
        low, high = low - max(0.5, abs(low)), high + max(0.5, abs(high))
    n_bars = min(MOST_BARS, math.ceil(2 * len(scores) ** (1 / 3)))
    counts, edges = np.histogram(scores.clip(low, high), n_bars, (low, high))
    return tuple(edges.tolist()), tuple(counts.tolist())
