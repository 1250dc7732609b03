"""Which pixels or columns of an input speak for a class: integrated gradients."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ibinn._types import Array, Floats
from ibinn.inference.explain import one_input
from ibinn.models.classifier import evaluation_mode
from ibinn.models.pipeline import Pipeline, chunks
from ibinn.run.trained import Run

TOLERANCE = 0.005  # share of the difference that an evidence map may miss
SMALLEST_DIFFERENCE = 1e-3  # nats: smaller ones drown in rounding
MAX_PATH_POINTS = 4096  # of a path
SHORTEST = 2.0**-20  # piece of a path
BATCH_SIZE = 64  # points of a path


@dataclass(frozen=True, eq=False)
class EvidenceMap:
    """What each value of an input adds to log q(a|x) - log q(b|x), in nats.

    Attributes
    ----------
    a, b : str
        Names of the classes.
    values : array in the shape of the raw input
        Values above 0 speak for a. They add up to `difference`, up to the share `missing` of it.
    difference : float
        The log-ratio of the input minus that of the mean of the training data.
    missing : float
        Share of the difference that the values miss.
    n_points : int
        Number of gradients computed.
    columns : tuple of str or None
        Names of a row's values.
    """

    a: str
    b: str
    values: Floats
    difference: float
    missing: float
    n_points: int
    columns: tuple[str, ...] | None = None


class Line(NamedTuple):
    """A straight path between start and end, (1, ...) each, and the log-ratio along it, (B, ...) -> (B,)."""

    start: Tensor
    end: Tensor
    log_ratio: Callable[[Tensor], Tensor]

    def at(self, share: Floats) -> Tensor:
        """The points at these shares of the path, (B, ...)."""
        weight = torch.from_numpy(share).to(self.start)
        return torch.lerp(self.start, self.end, weight.reshape(-1, *[1] * (self.start.ndim - 1)))


class Pieces(NamedTuple):
    """Pieces of a line: the ends of each, as shares of the line, and the log-ratios there, (n,) each."""

    left: Floats
    right: Floats
    low: Floats
    high: Floats


def evidence_map(
    run: Run, raw: Array, a: int, b: int, steps: int = 64, tolerance: float = TOLERANCE
) -> EvidenceMap:
    """Which pixels or columns of one input speak for class a against class b.

    Integrated gradients (Sundararajan et al. 2017) of log q(a|x) - log q(b|x), from the mean of the training data
    to the input; see `integrated_gradients`.

    Parameters
    ----------
    run : Run
    raw : array
        Levels (H, W, C), a row (D,), or a batch of one.
    a, b : int
        Numbers of two different classes.
    steps : int
        Number of pieces that the path starts with; pieces that miss too much are halved.
    tolerance : float
        Share of the difference that the sum may miss.

    Returns
    -------
    EvidenceMap
    """
    check_pair(run, a, b, steps)
    with evaluation_mode(run.pipeline), torch.no_grad():
        line = line_to(run.pipeline, one_input(run, raw), a, b)
        values, difference, n_points = integrated_gradients(line, steps, tolerance)
    return EvidenceMap(
        run.class_names[a],
        run.class_names[b],
        run.pipeline.preprocess.crop(values)[0].numpy(),
        difference,
        share_missed(values, difference),
        n_points,
        run.feature_names,
    )


def check_pair(run: Run, a: int, b: int, steps: int) -> None:
    n = len(run.class_names)
    if a == b or not {a, b} <= set(range(n)):
        raise ValueError(f"a is {a} and b is {b} but they must be two different classes, from 0 to {n - 1}")
    if steps < 1:
        raise ValueError(f"steps is {steps} but must be at least 1")


def line_to(pipeline: Pipeline, raw: Array, a: int, b: int) -> Line:
    """From the mean of the training data to raw (1, ...).

    For images it is straight in the normalised v. Equalising bends the way from x to v at every level, steeply
    near both ends: along a straight line in x the sums missed ten times as much. v is computed pixel by pixel, so
    a value of v adds what its pixel adds; and where v is linear in x, the line is straight in x as well. The
    mean gets the fixed noise and the padding of all inputs, so padded pixels stay constant and add nothing.
    For tables, where v may mix the columns, it is straight in x.
    """
    model, preprocess = pipeline.model, pipeline.preprocess

    def log_ratio(v: Tensor) -> Tensor:
        log_q_y = model.output(v).log_q_y
        return log_q_y[:, a] - log_q_y[:, b]

    if preprocess.levels is None:
        start, end = preprocess.to_units(preprocess.raw_mean), preprocess.to_units(raw)
        return Line(start, end, lambda x: log_ratio(pipeline.normalised(x)[0]))
    return Line(pipeline.prepared(preprocess.raw_mean)[0], pipeline.prepared(raw)[0], log_ratio)


def integrated_gradients(line: Line, steps: int, tolerance: float = TOLERANCE) -> tuple[Tensor, float, int]:
    """What each value adds along the line (1, ...), the difference of the log-ratios at its ends, and n_points.

    A piece of the line adds its length times the gradient at its midpoint. What that misses of the rise of the
    log-ratio over the piece is known, and pieces that miss too much are halved, until the sum misses less than
    the share `tolerance` of the difference, and the pieces together less than that share of all rises and falls.
    Gradients jump wherever a ReLU does, and atypical inputs can make the ratio rise by millions at the very end of
    the path: halving there does better than a rule of higher order.
    """
    pieces, n_points = equal_pieces(line, steps), 0
    difference, variation = pieces.high[-1] - pieces.low[0], np.abs(pieces.high - pieces.low).sum()
    total = torch.zeros(line.start.shape, dtype=torch.float64, device="cpu")
    while True:
        middle, parts = contributions(line, pieces)
        miss = np.abs(parts.flatten(1).sum(1).numpy() - (pieces.high - pieces.low))
        n_points += len(miss)
        is_whole = share_missed(total + parts.sum(0), difference) <= tolerance
        halved = too_long(
            miss, pieces.right - pieces.left, difference, tolerance, (MAX_PATH_POINTS - n_points) // 2
        )
        if (is_whole and miss.sum() <= tolerance * variation) or not halved.any():
            return total + parts.sum(0), float(difference), n_points
        total += parts[~torch.from_numpy(halved)].sum(0)
        pieces = halves(pieces, middle, halved)


def equal_pieces(line: Line, n: int) -> Pieces:
    ends = np.linspace(0, 1, n + 1)
    heights = np.concatenate(
        [line.log_ratio(line.at(some)).cpu().double() for _, some in chunks(ends, BATCH_SIZE)]
    )
    return Pieces(ends[:-1], ends[1:], heights[:-1], heights[1:])


def share_missed(values: Tensor, difference: float) -> float:
    return abs(float(values.sum()) - difference) / max(abs(difference), SMALLEST_DIFFERENCE)


def contributions(line: Line, pieces: Pieces) -> tuple[Floats, Tensor]:
    """The log-ratio at the midpoint of each piece, and its gradient there times the piece, (n, ...)."""
    heights, gradients = [], []
    for _, share in chunks((pieces.left + pieces.right) / 2, BATCH_SIZE):
        with torch.enable_grad():
            points = line.at(share).requires_grad_()
            height = line.log_ratio(points)
            gradients.append(torch.autograd.grad(height.sum(), points)[0].cpu().double())
        heights.append(height.detach().cpu().double().numpy())
    length = torch.from_numpy(pieces.right - pieces.left).reshape(-1, *[1] * (line.start.ndim - 1))
    path = (line.end - line.start).cpu().double()
    return np.concatenate(heights), torch.cat(gradients) * length * path


def too_long(
    miss: Floats, length: Floats, difference: float, tolerance: float, room: int
) -> NDArray[np.bool_]:
    """Which pieces miss more than their share; the worst of them, if there is no room for all."""
    share = tolerance / 2 * max(abs(difference), SMALLEST_DIFFERENCE) * length
    worse = (miss > share) & (length > SHORTEST)
    worst = np.argsort(np.where(worse, -miss, 0), stable=True)[: max(room, 0)]
    return worse & np.isin(np.arange(len(miss)), worst)


def halves(pieces: Pieces, middle: Floats, halved: NDArray[np.bool_]) -> Pieces:
    """Two pieces for each that is halved; `middle` are the log-ratios at the midpoints of all pieces."""
    left, right, low, high = (values[halved] for values in pieces)
    centre, height = (left + right) / 2, middle[halved]
    firsts, seconds = Pieces(left, centre, low, height), Pieces(centre, right, height, high)
    return Pieces(*map(np.concatenate, zip(firsts, seconds, strict=True)))
