"""One decision explained: in numbers, in a sentence, and by which pixels or columns speak for a class.

Nothing is drawn here: see report/explained.py.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from ibinn._types import Array, Floats
from ibinn.data.preprocess import ImagePreprocess
from ibinn.formats import percent_of, plain_types, rounded_p
from ibinn.inference.judge import Place, judge, place_among
from ibinn.inference.sentences import told
from ibinn.models.classifier import GenerativeClassifier, evaluation_mode
from ibinn.models.output import Output
from ibinn.models.pipeline import Pipeline
from ibinn.ood.conformal import smallest_p_value
from ibinn.run.trained import Run

MOST_LINES = 5  # classes in a printed explanation


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


def explain(run: Run, raw: Array, seen: Output[Floats] | None = None) -> Explanation:
    """The decision on one input: levels (H, W, C), a row (D,), or a batch of one. seen: `judge` of it."""
    raw = one_input(run, raw)
    preprocess, reference = run.pipeline.preprocess, run.reference
    seen, latent = seen or judge(run, raw), in_latent_space(run.pipeline, raw)
    posterior = by_class(run, np.exp(seen.log_q_y[0]))
    log_q_x, shell = seen.log_q_x, reference.shell
    place = place_among(reference, float(seen.scores[reference.headline][0]))
    p = {name: float(values[0]) for name, values in seen.p_values.items()}
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
    shape = preprocess.raw_shape if isinstance(preprocess, ImagePreprocess) else preprocess.shape
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
