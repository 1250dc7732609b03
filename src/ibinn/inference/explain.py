"""One decision explained: in numbers and in a sentence. See attribution.py for what each pixel or column adds."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from ibinn._types import Array, Floats
from ibinn.formats import probability_text, rounded_p, to_json_types
from ibinn.inference.judge import CalibrationRank, calibration_rank, judge
from ibinn.inference.sentences import decision_sentence
from ibinn.models.classifier import evaluation_mode
from ibinn.models.output import Output
from ibinn.models.pipeline import Pipeline
from ibinn.ood.conformal import smallest_p_value
from ibinn.run.trained import Run

MAX_CLASSES = 5  # in a printed explanation


@dataclass(frozen=True)
class Mean:
    """The mean of a class in latent space, and the distance |z - mu| of an input from it."""

    label: str
    distance: float


@dataclass(frozen=True)
class Explanation:
    """Why one input gets its class, and whether to trust it. `print` shows the most important numbers.

    Attributes
    ----------
    text : str
        The decision in one or two sentences.
    posterior : dict
        Calibrated probability of each class.
    log_likelihoods : dict or None
        log q(x|y) of each class, in nats and in the units of the raw input. None without a density.
    log_q_x : float or None
        log q(x), likewise.
    p_value : float
        Conformal p-value of the headline score.
    p_values : dict
        Conformal p-value of each score.
    smallest_p : float
        The smallest p-value that the calibration split allows.
    rank : CalibrationRank
        The rank of the headline score among the calibration inputs.
    nearest : tuple of Mean, or None
        The two nearest class means. None without a density.
    typical_distance : float or None
        Typical distance of an input from the mean of its class. None without a density.
    levels : int or None
        Number of values of a pixel; None for rows.
    """

    text: str
    posterior: dict[str, float]
    log_likelihoods: dict[str, float] | None
    log_q_x: float | None
    p_value: float
    p_values: dict[str, float]
    smallest_p: float
    rank: CalibrationRank
    nearest: tuple[Mean, ...] | None
    typical_distance: float | None
    levels: int | None

    def in_units(self, log_scale: float) -> "Explanation":
        """The same with densities in other units; log_scale is log|det d(raw)/d(new units)|."""
        shifted = self.log_likelihoods and {k: v + log_scale for k, v in self.log_likelihoods.items()}
        log_q_x = None if self.log_q_x is None else self.log_q_x + log_scale
        return dataclasses.replace(self, log_likelihoods=shifted, log_q_x=log_q_x)

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON types; None for numbers that are not finite."""
        fields: dict[str, Any] = to_json_types(dataclasses.asdict(self))
        return fields

    def __str__(self) -> str:
        return "\n".join([self.text, "", *class_lines(self), "", *number_lines(self)])


class ByClass(NamedTuple):
    """log q(x|y) and |z - mu_y| for each class, (K,) each."""

    log_likelihoods: Floats
    distances: Floats


def explain(run: Run, raw: Array, output: Output[Floats] | None = None) -> Explanation:
    """Explain the decision on one input.

    Parameters
    ----------
    run : Run
    raw : array
        Levels (H, W, C), a row (D,), or a batch of one.
    output : Output, optional
        What `judge` returns for it, if that is known already.

    Returns
    -------
    Explanation
    """
    raw, reference = one_input(run, raw), run.reference
    output, by_class = output or judge(run, raw), density_by_class(run.pipeline, raw)
    posterior = named(run, np.exp(output.log_p_y[0]))
    p = {name: float(values[0]) for name, values in output.p_values.items()}
    p_value = p[reference.headline]
    rank = calibration_rank(reference, float(output.scores[reference.headline][0]), p_value)
    return Explanation(
        text=decision_sentence(posterior, rank, p_value, reference.uses_density),
        posterior=posterior,
        log_likelihoods=None if by_class is None else named(run, by_class.log_likelihoods),
        log_q_x=None if output.log_q_x is None else float(output.log_q_x[0]),
        p_value=p_value,
        p_values=p,
        smallest_p=smallest_p_value(rank.n),
        rank=rank,
        nearest=None if by_class is None else nearest_means(run, by_class.distances),
        typical_distance=None if reference.shell is None else math.sqrt(reference.shell * reference.n_dims),
        levels=run.pipeline.preprocess.levels,
    )


def one_input(run: Run, raw: Array) -> Array:
    """raw as a batch of one; ValueError if it is anything else."""
    raw, preprocess = np.asarray(raw), run.pipeline.preprocess
    shape = preprocess.raw_shape
    if raw.shape not in (shape, (1, *shape)):
        raise ValueError(f"raw has shape {raw.shape} but one input of shape {shape} was expected")
    if preprocess.levels is not None:
        check_pixels(raw, preprocess.levels)
    return raw.reshape(1, *shape)


def check_pixels(raw: Array, levels: int) -> None:
    if raw.dtype.kind not in "iu" or raw.min() < 0 or raw.max() >= levels:
        raise ValueError(
            f"raw holds {raw.dtype} values from {raw.min()} to {raw.max()} but this model takes the levels "
            f"0 to {levels - 1}; convert the image to them"
        )


@torch.no_grad()
def density_by_class(pipeline: Pipeline, raw: Array) -> ByClass | None:
    """Of one input; None without a density."""
    if not pipeline.model.has_density:
        return None
    mixture = pipeline.generative.mixture
    with evaluation_mode(pipeline):
        v, log_det = pipeline.prepared(raw)
        z, log_det_flow = pipeline.generative.encode(v)
    log_q_z = mixture.log_q_z_given_y(z)[0]
    log_likelihoods = log_q_z + log_det_flow + log_det + pipeline.preprocess.log_scale
    distances = torch.linalg.vector_norm(z - mixture.mu, dim=1)
    return ByClass(log_likelihoods.cpu().double().numpy(), distances.cpu().double().numpy())


def named(run: Run, values: Floats) -> dict[str, float]:
    """Values (K,) by the name of their class."""
    return dict(zip(run.class_names, values.tolist(), strict=True))


def nearest_means(run: Run, distances: Floats) -> tuple[Mean, ...]:
    return tuple(Mean(run.class_names[k], float(distances[k])) for k in distances.argsort()[:2])


def class_lines(explanation: Explanation) -> list[str]:
    """A table of the most probable classes."""
    posterior, likelihoods = explanation.posterior, explanation.log_likelihoods or {}
    names = sorted(posterior, key=lambda name: -posterior[name])[:MAX_CLASSES]
    width = max(len(name) for name in ["class", *names])
    lines = [f"{'class':{width}}  probability" + "  log q(x|y)" * bool(likelihoods)]
    for name in names:
        line = f"{name:{width}}  {probability_text(posterior[name], 2):>11}"
        lines.append(line + (f"  {likelihoods[name]:10.1f}" if likelihoods else ""))
    return lines


def number_lines(explanation: Explanation) -> list[str]:
    """The numbers that do not belong to one class."""
    rank, lines = explanation.rank, []
    if explanation.log_q_x is not None:
        lines.append(f"log q(x)       {explanation.log_q_x:.1f} nats")
    p_values = ", ".join(f"{name} {rounded_p(p)}" for name, p in explanation.p_values.items())
    lines.append(f"p-values       {p_values} (smallest possible {rounded_p(explanation.smallest_p)})")
    lines.append(f"as strange     {rank.n_stranger} of {rank.n} calibration inputs, by {rank.score}")
    if explanation.nearest is not None:
        means = ", ".join(f"{mean.label} at {mean.distance:.2f}" for mean in explanation.nearest)
        typical = explanation.typical_distance
        lines.append(
            f"nearest means  {means}" + (f" (typical: {typical:.2f})" if typical is not None else "")
        )
    return lines
