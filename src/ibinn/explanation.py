"""One decision explained: in numbers, in a sentence, and by which pixels or columns speak for a class.

Nothing is drawn here: see report/explained.py.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ibinn.checkpoint import Run
from ibinn.data.dataset import Array
from ibinn.data.preprocess import ImagePreprocess
from ibinn.evaluation import ALPHA, Judged, judge
from ibinn.metrics.conformal import smallest_p_value
from ibinn.metrics.ood import Reference
from ibinn.models.classifier import GenerativeClassifier, evaluation_mode
from ibinn.models.pipeline import Pipeline

SURE = 0.8  # a class of this probability is named alone
MOST_BARS = 40  # of a histogram
MOST_LINES = 5  # classes in a printed explanation
ENOUGH = 0.005  # what an evidence map may miss of its difference, as a share
SMALLEST_DIFFERENCE = 1e-3  # nats: smaller ones drown in rounding
MOST_POINTS = 4096  # of a path
SHORTEST = 2.0**-20  # piece of a path
AT_ONCE = 64  # points of a path in a batch

Floats = NDArray[np.float64]


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


@dataclass(frozen=True)
class Mean:
    """The mean of a class in latent space, and how far from it an input lies, |z - mu|."""

    label: str
    distance: float


@dataclass(frozen=True)
class Explanation:
    """Why one input gets its class, and whether to trust it; `text` says it in a sentence or two.

    posterior: the probability q(y|x) of each class. log_likelihoods: log q(x|y) of each class, and log_q_x over
    all, in nats, in the units of the raw input. p_values by score, p_value that of the headline score (see Place);
    none can be smaller than smallest_p. nearest: the two nearest means; inputs like the training data lie about
    typical_distance from theirs. levels: how many values a pixel can take, None for a row.
    Without a density there are no likelihoods and no means.
    """

    text: str
    posterior: dict[str, float]
    log_likelihoods: dict[str, float] | None
    log_q_x: float | None
    p_value: float
    p_values: dict[str, float]
    smallest_p: float
    place: Place
    nearest: tuple[Mean, ...] | None
    typical_distance: float | None
    levels: int | None

    def in_units(self, log_scale: float) -> "Explanation":
        """The same with densities in other units, log_scale being log|det d(raw)/d(those)|."""
        shifted = self.log_likelihoods and {k: v + log_scale for k, v in self.log_likelihoods.items()}
        log_q_x = None if self.log_q_x is None else self.log_q_x + log_scale
        return dataclasses.replace(self, log_likelihoods=shifted, log_q_x=log_q_x)

    def to_dict(self) -> dict[str, Any]:
        """All of it in types that JSON knows; None for what is not a finite number."""
        plain: dict[str, Any] = plain_types(dataclasses.asdict(self))
        return plain

    def __str__(self) -> str:
        return "\n".join([self.text, "", *class_lines(self), "", *number_lines(self)])


class Latent(NamedTuple):
    """log q(x|y) and |z - mu_y| for each class, (K,) each."""

    log_likelihoods: Floats
    distances: Floats


def explain(run: Run, raw: Array, seen: Judged | None = None) -> Explanation:
    """The decision on one input: levels (H, W, C), a row (D,), or a batch of one. seen: `judge` of it."""
    raw = one_input(run, raw)
    preprocess, reference = run.pipeline.preprocess, run.reference
    seen, latent = seen or judge(run, raw), in_latent_space(run.pipeline, raw)
    posterior = by_class(run, np.exp(seen.evidence.log_q_y[0]))
    log_q_x, shell = seen.evidence.log_q_x, reference.shell
    place = place_among(reference, float(seen.scores[reference.headline][0]))
    p = {name: float(values[0]) for name, values in seen.p.items()}
    return Explanation(
        text=told(posterior, place, p[reference.headline]),
        posterior=posterior,
        log_likelihoods=None if latent is None else by_class(run, latent.log_likelihoods),
        log_q_x=None if log_q_x is None else float(log_q_x[0]),
        p_value=p[reference.headline],
        p_values=p,
        smallest_p=smallest_p_value(place.n),
        place=place,
        nearest=None if latent is None else nearest_means(run, latent.distances),
        typical_distance=None if shell is None else math.sqrt(shell * reference.n_dims),
        levels=preprocess.levels if isinstance(preprocess, ImagePreprocess) else None,
    )


def one_input(run: Run, raw: Array) -> Array:
    """raw as a batch of one; ValueError where it is something else."""
    raw, preprocess = np.asarray(raw), run.pipeline.preprocess
    shape = preprocess.image_shape if isinstance(preprocess, ImagePreprocess) else preprocess.shape
    if raw.shape not in (shape, (1, *shape)):
        raise ValueError(f"raw has shape {raw.shape} but one input of shape {shape} was expected")
    if isinstance(preprocess, ImagePreprocess):
        check_levels(raw, preprocess.levels)
    return raw.reshape(1, *shape)


def check_levels(raw: Array, levels: int) -> None:
    if raw.dtype.kind not in "iu" or raw.min() < 0 or raw.max() >= levels:
        raise ValueError(
            f"raw holds {raw.dtype} values from {raw.min()} to {raw.max()} but this model knows the levels "
            f"0 to {levels - 1}; convert the image to them"
        )


@torch.no_grad()
def in_latent_space(pipeline: Pipeline, raw: Array) -> Latent | None:
    """Of one input; None without a density."""
    model, preprocess = pipeline.model, pipeline.preprocess
    if not isinstance(model, GenerativeClassifier):
        return None
    with evaluation_mode(pipeline):
        v, log_det = pipeline.prepared(raw)
        z, log_det_flow = model.encode(v)
    log_q_z = model.mixture.log_q_z_given_y(z)[0]
    log_likelihoods = log_q_z + log_det_flow + log_det + preprocess.log_scale
    distances = torch.linalg.vector_norm(z - model.mixture.mu, dim=1)
    return Latent(log_likelihoods.cpu().double().numpy(), distances.cpu().double().numpy())


def by_class(run: Run, values: Floats) -> dict[str, float]:
    return dict(zip(run.class_names, values.tolist(), strict=True))


def nearest_means(run: Run, distances: Floats) -> tuple[Mean, ...]:
    return tuple(Mean(run.class_names[k], float(distances[k])) for k in distances.argsort()[:2])


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


# --- in words ----------------------------------------------------------------------------------------


HARD = "but the classes are hard to tell apart here: look again."
SENTENCES = {  # by whether the score knows a density, the input is strange, one class stands out
    (True, False, True): "{guess}, and typical of the training data ({p}).",
    (True, False, False): "{guess}; typical of the training data ({p}), " + HARD,
    (True, True, True): "{guess}, but unlike the training data ({p}): do not trust it.",
    (True, True, False): "{guess}, but unlike the training data ({p}): do not trust it.",
    (False, False, True): "{guess}, and no less decided than usual ({p}).",
    (False, False, False): "{guess}; no less decided than usual ({p}), " + HARD,
    (False, True, True): "{guess}, but less decided than usual ({p}): look again.",
    (False, True, False): "{guess}, less decided than usual ({p}): do not trust it.",
}
NO_DENSITY = "Without a density this model cannot say whether an input is like the training data."


def told(posterior: dict[str, float], place: Place, p: float) -> str:
    """What it is, and whether to trust that, for somebody who needs no formulas."""
    if any(map(math.isnan, posterior.values())):
        return "No class can be named: the numbers of this model overflow on this input. Do not trust it."
    guess, sure = told_classes(posterior), max(posterior.values()) >= SURE
    if smallest_p_value(place.n) > ALPHA:
        return f"{guess}{'' if sure else ', hard to tell apart'}. {told_coarse(place, p)}"
    has_density = place.score != "entropy"
    chance = told_p(p) + (", the smallest possible" if place.n_stranger == 0 else "")
    sentence = SENTENCES[has_density, p <= ALPHA, sure].format(guess=guess, p=chance)
    return f"{sentence} {told_place(place) if has_density else NO_DENSITY}"


def told_classes(posterior: dict[str, float]) -> str:
    (first, p), (second, q) = sorted(posterior.items(), key=lambda item: -item[1])[:2]
    if p >= SURE:
        return f"Looks like “{first}” ({percent(p)})"
    if p + q >= SURE:
        return f"Could be “{first}” ({percent(p)}) or “{second}” ({percent(q)})"
    return f"Could be “{first}” ({percent(p)}), “{second}” ({percent(q)}) or another class"


def told_place(place: Place) -> str:
    n = place.n_stranger
    stranger = "none is" if n == 0 else "1 is" if n == 1 else f"{n:,} are"
    return f"Of {place.n:,} familiar inputs set aside, {stranger} as strange or stranger."


def told_coarse(place: Place, p: float) -> str:
    smallest = rounded_p(smallest_p_value(place.n))
    return (
        f"With only {place.n} inputs to compare with, p-values cannot fall below {smallest} (here {told_p(p)}): "
        f"nothing can show up as strange."
    )


def told_p(p: float) -> str:
    number = rounded_p(p)
    return f"p {number}" if number.startswith("<") else f"p = {number}"


def rounded_p(p: float) -> str:
    """0.41: two digits, or so many that it stays on its side of alpha and of 1."""
    if p < 1e-4:
        return "< 0.0001"
    texts = (f"{p:.{digits}g}" for digits in range(2, 18))
    return next(t for t in texts if (float(t) <= ALPHA) == (p <= ALPHA) and (float(t) < 1) == (p < 1))


def percent(share: float) -> str:
    """93 %; neither nothing nor all."""
    whole = f"{100 * share:.0f}"
    return {"0": "under 1", "100": "over 99"}.get(whole, whole) + "\u00a0%"


def class_lines(explanation: Explanation) -> list[str]:
    """A table of the likeliest classes."""
    posterior, likelihoods = explanation.posterior, explanation.log_likelihoods or {}
    names = sorted(posterior, key=lambda name: -posterior[name])[:MOST_LINES]
    width = max(len(name) for name in ["class", *names])
    lines = [f"{'class':{width}}  probability" + "  log q(x|y)" * bool(likelihoods)]
    for name in names:
        line = f"{name:{width}}  {percent_of(posterior[name]):>11}"
        lines.append(line + (f"  {likelihoods[name]:10.1f}" if likelihoods else ""))
    return lines


def percent_of(share: float) -> str:
    """93.18 %; neither nothing nor all."""
    text = f"{100 * share:.2f}"
    return {"0.00": "< 0.01", "100.00": "> 99.99"}.get(text, text) + " %"


def number_lines(explanation: Explanation) -> list[str]:
    """The numbers that are not of one class."""
    place, lines = explanation.place, []
    if explanation.log_q_x is not None:
        lines.append(f"log q(x)       {explanation.log_q_x:.1f} nats")
    p_values = ", ".join(f"{name} {rounded_p(p)}" for name, p in explanation.p_values.items())
    lines.append(f"p-values       {p_values} (smallest possible {rounded_p(explanation.smallest_p)})")
    lines.append(f"as strange     {place.n_stranger} of {place.n} calibration inputs, by {place.score}")
    if explanation.nearest is not None:
        means = ", ".join(f"{mean.label} at {mean.distance:.2f}" for mean in explanation.nearest)
        usual = explanation.typical_distance
        lines.append(f"nearest means  {means}" + (f" (usual: {usual:.2f})" if usual is not None else ""))
    return lines


def plain_types(value: Any) -> Any:
    """Nested dicts and lists of what JSON knows."""
    if isinstance(value, dict):
        return {key: plain_types(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain_types(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


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
        log_q_y = model.answers(v).log_q_y
        return log_q_y[:, a] - log_q_y[:, b]

    if isinstance(preprocess, ImagePreprocess):
        mean = (preprocess.mean.flatten() * preprocess.levels).expand(1, *preprocess.image_shape)
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
    inside = preprocess.to_units(torch.ones(1, *preprocess.image_shape)).cpu() > 0
    height, width, n_channels = preprocess.image_shape
    return np.asarray(values[inside].reshape(n_channels, height, width).permute(1, 2, 0).numpy())
