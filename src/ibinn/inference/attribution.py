"""Which pixels or columns of an input speak for a class: integrated gradients."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ibinn._types import Array, Floats
from ibinn.data.preprocess import ImagePreprocess
from ibinn.inference.explain import one_input
from ibinn.models.classifier import evaluation_mode
from ibinn.models.pipeline import Pipeline
from ibinn.run.trained import Run

ENOUGH = 0.005  # what an evidence map may miss of its difference, as a share


SMALLEST_DIFFERENCE = 1e-3  # nats: smaller ones drown in rounding


MOST_POINTS = 4096  # of a path


SHORTEST = 2.0**-20  # piece of a path


AT_ONCE = 64  # points of a path in a batch


# --- which pixels, which columns ---------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class EvidenceMap:
    """What each value of an input adds to log q(a|x) - log q(b|x), in nats; above 0 it speaks for a.

    values has the shape of the raw input. They add up to `difference`, by how much the log-ratio of the input is
    above that of the mean of the training data, but for a share `missing` of it; n_points is how many gradients
    were taken. columns: the names of a row's values.
    """

    a: str
    b: str
    values: Floats
    difference: float
    missing: float
    n_points: int
    columns: tuple[str, ...] | None = None


class Line(NamedTuple):
    """A straight path to an input, (1, ...) each, and the log-ratio of points on it, (B, ...) -> (B,)."""

    start: Tensor
    end: Tensor
    log_ratio: Callable[[Tensor], Tensor]

    def at(self, share: Floats) -> Tensor:
        """The points after these shares of the way, (B, ...)."""
        weight = torch.from_numpy(share).to(self.start)
        return torch.lerp(self.start, self.end, weight.reshape(-1, *[1] * (self.start.ndim - 1)))


class Pieces(NamedTuple):
    """Pieces of a line, (n,) each: where they begin and end, as shares of it, and the log-ratios there."""

    left: Floats
    right: Floats
    low: Floats
    high: Floats


def evidence_map(
    run: Run, raw: Array, a: int, b: int, steps: int = 64, enough: float = ENOUGH
) -> EvidenceMap:
    """Which pixels or columns of one input speak for class number a against class number b.

    Integrated gradients (Sundararajan et al. 2017) of log q(a|x) - log q(b|x), from the mean of the training data
    to the input. The path begins with so many steps, which are halved where they are too long, until the sum
    misses less than the share `enough` of the difference: see `integrated_gradients`.
    """
    check_classes(run, a, b, steps)
    with evaluation_mode(run.pipeline), torch.no_grad():
        line = line_to(run.pipeline, one_input(run, raw), a, b)
        values, difference, n_points = integrated_gradients(line, steps, enough)
    return EvidenceMap(
        run.class_names[a],
        run.class_names[b],
        like_raw(run.pipeline, values),
        difference,
        share_missed(values, difference),
        n_points,
        run.feature_names,
    )


def check_classes(run: Run, a: int, b: int, steps: int) -> None:
    n = len(run.class_names)
    if a == b or not {a, b} <= set(range(n)):
        raise ValueError(f"a is {a} and b is {b} but they must be two different classes, from 0 to {n - 1}")
    if steps < 1:
        raise ValueError(f"steps is {steps} but a path needs at least 1")


def line_to(pipeline: Pipeline, raw: Array, a: int, b: int) -> Line:
    """From the mean of the training data to raw (1, ...).

    For images it is straight in the normalised v. Equalising bends the way from x to v at every level, steeply
    near both ends: along a straight line in x the sums missed ten times as much. v is made pixel by pixel, so what
    a value of v adds is what its pixel adds; and where v is linear in x, the line is straight in x as well. The
    mean gets the fixed noise and the padding of all inputs, so padded pixels stay the same and add nothing.
    For tables, where v may mix the columns, it is straight in x.
    """
    model, preprocess = pipeline.model, pipeline.preprocess

    def log_ratio(v: Tensor) -> Tensor:
        log_q_y = model.output(v).log_q_y
        return log_q_y[:, a] - log_q_y[:, b]

    if isinstance(preprocess, ImagePreprocess):
        mean = (preprocess.mean.flatten() * preprocess.levels).expand(1, *preprocess.raw_shape)
        return Line(pipeline.prepared(mean)[0], pipeline.prepared(raw)[0], log_ratio)
    start, end = preprocess.mean[None], preprocess.to_units(raw)
    return Line(start, end, lambda x: log_ratio(pipeline.normalised(x)[0]))


def integrated_gradients(line: Line, steps: int, enough: float = ENOUGH) -> tuple[Tensor, float, int]:
    """What each value adds along the line (1, ...), the difference of the log-ratios at its ends, gradients taken.

    A piece of the line adds its length times the gradient in its middle. What that misses of the rise of the
    log-ratio over the piece is known, and pieces that miss too much are halved, until the sum misses less than
    the share `enough` of the difference, and all pieces together of all ups and downs. Gradients jump wherever a
    ReLU does, and inputs unlike any other can make the ratio rise by millions on the last bit of the way: halving
    there does better than a rule of higher order.
    """
    pieces, n_points = equal_pieces(line, steps), 0
    difference, ups_and_downs = pieces.high[-1] - pieces.low[0], np.abs(pieces.high - pieces.low).sum()
    total = torch.zeros(line.start.shape, dtype=torch.float64, device="cpu")
    while True:
        middle, parts = contributions(line, pieces)
        miss = np.abs(parts.flatten(1).sum(1).numpy() - (pieces.high - pieces.low))
        n_points += len(miss)
        is_whole = share_missed(total + parts.sum(0), difference) <= enough
        halved = too_long(
            miss, pieces.right - pieces.left, difference, enough, (MOST_POINTS - n_points) // 2
        )
        if (is_whole and miss.sum() <= enough * ups_and_downs) or not halved.any():
            return total + parts.sum(0), float(difference), n_points
        total += parts[~torch.from_numpy(halved)].sum(0)
        pieces = halves(pieces, middle, halved)


def equal_pieces(line: Line, n: int) -> Pieces:
    ends = np.linspace(0, 1, n + 1)
    heights = np.concatenate([line.log_ratio(line.at(some)).cpu().double() for some in in_parts(ends)])
    return Pieces(ends[:-1], ends[1:], heights[:-1], heights[1:])


def share_missed(values: Tensor, difference: float) -> float:
    return abs(float(values.sum()) - difference) / max(abs(difference), SMALLEST_DIFFERENCE)


def contributions(line: Line, pieces: Pieces) -> tuple[Floats, Tensor]:
    """The log-ratio in the middle of each piece, and its gradient there times the piece, (n, ...), in float64."""
    heights, gradients = [], []
    for share in in_parts((pieces.left + pieces.right) / 2):
        with torch.enable_grad():
            points = line.at(share).requires_grad_()
            height = line.log_ratio(points)
            gradients.append(torch.autograd.grad(height.sum(), points)[0].cpu().double())
        heights.append(height.detach().cpu().double().numpy())
    length = torch.from_numpy(pieces.right - pieces.left).reshape(-1, *[1] * (line.start.ndim - 1))
    way = (line.end - line.start).cpu().double()
    return np.concatenate(heights), torch.cat(gradients) * length * way


def too_long(
    miss: Floats, length: Floats, difference: float, enough: float, room: int
) -> NDArray[np.bool_]:
    """Which pieces miss more than their share; where there is no room for all, the worst of them."""
    share = enough / 2 * max(abs(difference), SMALLEST_DIFFERENCE) * length
    worse = (miss > share) & (length > SHORTEST)
    worst = np.argsort(np.where(worse, -miss, 0), stable=True)[: max(room, 0)]
    return worse & np.isin(np.arange(len(miss)), worst)


def halves(pieces: Pieces, middle: Floats, halved: NDArray[np.bool_]) -> Pieces:
    """Two pieces of each that is halved; `middle` are the log-ratios in the middle of all."""
    left, right, low, high = (values[halved] for values in pieces)
    centre, height = (left + right) / 2, middle[halved]
    firsts, seconds = Pieces(left, centre, low, height), Pieces(centre, right, height, high)
    return Pieces(*map(np.concatenate, zip(firsts, seconds, strict=True)))


def in_parts(shares: Floats) -> Iterator[Floats]:
    for start in range(0, len(shares), AT_ONCE):
        yield shares[start : start + AT_ONCE]


def like_raw(pipeline: Pipeline, values: Tensor) -> Floats:
    """(1, C, H', W') -> (H, W, C) without the padding; (1, D) -> (D,)."""
    preprocess = pipeline.preprocess
    if not isinstance(preprocess, ImagePreprocess):
        return np.asarray(values[0].numpy())
    inside = preprocess.to_units(torch.ones(1, *preprocess.raw_shape)).cpu() > 0
    height, width, n_channels = preprocess.raw_shape
    return np.asarray(values[inside].reshape(n_channels, height, width).permute(1, 2, 0).numpy())
