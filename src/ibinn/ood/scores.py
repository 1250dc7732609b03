"""OoD scores: how strange an input is, higher = stranger. One table, `SCORES`.

Three splits stay separate. The constants of the scores, such as the centre h of the typicality, come from the
validation split, and the latent reference from the training and the validation split; the p-values come from the
calibration split, which is used for nothing else (see conformal.py); the inputs to judge belong to none of them.

The scores are written once, in torch operations in float64 that ONNX has too: `ood_scores` and `p_values` apply
them to arrays, and the exported graph holds the same operations.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ibinn._types import Array, Floats, Labels, Progress
from ibinn.models.output import Output, to_tensors
from ibinn.models.pipeline import Pipeline
from ibinn.ood.complexity import code_lengths
from ibinn.ood.conformal import conformal_p_values, mondrian_p_values, p_values_among

ROUNDING = 1e-9  # of a score: relative, and absolute below 1
MOST_EXCESS = 1e9  # keeps the combined score finite
# Of the combined score, chosen on validation splits and strange inputs made from them: experiments/headline.py.
PARTS_OF_IMAGES = ("typicality", "complexity", "class_information", "class_distance", "energy")
PARTS_OF_ROWS = ("nll", "class_typicality", "class_information", "class_distance", "energy")


@dataclass(frozen=True)
class Reference:
    """Constants and held-out scores that inputs are compared with.

    Attributes
    ----------
    n_dims : int
        Number of dimensions D of an input.
    h : float or None
        Mean of -log q(x) / D over the validation split; None without a finite density.
    shell : float or None
        Mean of |z - mu|^2 / D over the validation split, to the mean of the most probable class; None likewise.
    parts : dict of arrays
        Sorted scores of the validation split, by part of the combined score.
    calibration : dict of arrays
        Scores of the calibration split, by score.
    calibration_class : array of shape (n,)
        Predicted classes of the calibration split.
    label_scores : array of shape (n,)
        1 - p(y|x) of the true classes of the calibration split, with the calibrated probabilities.
    """

    n_dims: int
    h: float | None
    shell: float | None
    parts: Mapping[str, Floats]
    calibration: Mapping[str, Floats]
    calibration_class: Labels
    label_scores: Floats

    @property
    def uses_density(self) -> bool:
        """Whether the main score uses the density: there is one, and it is finite on the validation split."""
        return "combined" in self.calibration

    @property
    def headline(self) -> str:
        """The main score, named in advance: combined, or the entropy without a density."""
        return "combined" if self.uses_density else "entropy"


def fit_reference(
    validation: Output[Floats], calibration: Output[Floats], n_dims: int, y_calibration: Labels
) -> Reference:
    """The reference from outputs for the validation and the calibration split.

    Scores that need a density are left out if it is not finite on the validation split.

    Parameters
    ----------
    validation, calibration : Output
        From `observe`.
    n_dims : int
        Number of dimensions of an input.
    y_calibration : array of shape (n,)
        True classes of the calibration split.

    Returns
    -------
    Reference

    Examples
    --------
    >>> import numpy as np
    >>> from ibinn.models.output import Output
    >>> from ibinn.ood.scores import fit_reference, ood_scores, p_values
    >>> def output(nll):
    ...     return Output(np.log([[0.9, 0.1]] * len(nll)), np.zeros(len(nll)), log_q_x=-np.array(nll))
    >>> reference = fit_reference(output([2.0, 4.0]), output([1.0, 3.0, 4.0]), 2, np.array([0, 0, 1]))
    >>> reference.h
    1.5
    >>> scores = ood_scores(output([3.0, 20.0]), reference)
    >>> scores["typicality"].tolist()
    [0.0, 8.5]
    >>> p_values(scores, reference.calibration)["typicality"].tolist()
    [1.0, 0.25]
    """
    h = shell = None
    if validation.log_q_x is not None and np.isfinite(validation.log_q_x).all():
        h = typical_entropy(validation.log_q_x, n_dims)
    if validation.sq_distance is not None and np.isfinite(validation.sq_distance).all():
        shell = float(validation.sq_distance.mean()) / n_dims
    true = np.take_along_axis(calibration.log_p_y, y_calibration[:, None], axis=1)[:, 0]
    label_scores = np.where(np.isnan(true), 1.0, -np.expm1(true))
    reference = Reference(
        n_dims=n_dims,
        h=h,
        shell=shell,
        parts={},
        calibration={},
        calibration_class=calibration.predicted,
        label_scores=label_scores,
    )
    if h is not None:
        values, parts = ood_scores(validation, reference), usual_parts(validation)
        ranked = {name: np.sort(values[name]) for name in parts if name in values}
        reference = replace(reference, parts=ranked)
    return replace(reference, calibration=ood_scores(calibration, reference))


def usual_parts(output: Output[Floats]) -> tuple[str, ...]:
    """The parts of the combined score for outputs like this one."""
    return PARTS_OF_ROWS if output.code_length is None else PARTS_OF_IMAGES


def typical_entropy(log_q_x_validation: ArrayLike, n_dims: int) -> float:
    """h, the mean of -log q(x) / D over the validation split, in nats per dimension.

    Not over the calibration split: its scores, and with them the p-values, would be too small.
    """
    log_q_x = np.asarray(log_q_x_validation, dtype=np.float64)
    n_bad = int(np.count_nonzero(~np.isfinite(log_q_x)))
    if log_q_x.size == 0 or n_bad:
        raise ValueError(
            f"log_q_x_validation holds {log_q_x.size} values, {n_bad} of them not finite, but h needs at least "
            f"one and all finite; look for inputs outside the model's range"
        )
    return -float(log_q_x.mean()) / n_dims


def observe(
    pipeline: Pipeline,
    raw: Array,
    batch_size: int = 500,
    progress: Progress | None = None,
    with_z: bool = False,
) -> Output[Floats]:
    """The output of a pipeline for raw (N, ...), with everything that the scores need."""
    output = pipeline.compute_output(raw, batch_size=batch_size, progress=progress, with_z=with_z)
    levels = pipeline.preprocess.levels
    return output if levels is None else replace(output, code_length=code_lengths(raw, levels))


def ood_scores(output: Output[Floats], reference: Reference) -> dict[str, Floats]:
    """Every score of `SCORES` that the output allows, (N,) each; inf where the output is NaN."""
    tensors = to_tensors(output)
    values = {name: score(tensors, reference) for name, score in SCORES.items()}
    return {name: nan_to_inf(value).numpy() for name, value in values.items() if value is not None}


def p_values(scores: Mapping[str, Floats], calibration: Mapping[str, Floats]) -> dict[str, Floats]:
    """The conformal p-value of each score among those of the calibration split, (N,) each."""
    return {
        name: conformal_p_values(subtract_rounding(torch.from_numpy(values)).numpy(), calibration[name])
        for name, values in scores.items()
    }


def class_p_values(output: Output[Floats], reference: Reference) -> Floats:
    """p-values of the headline score among the calibration inputs of the same predicted class, (N,).

    output is that of `judge`. p is 1 for a class that was predicted for no calibration input.
    """
    scores = subtract_rounding(torch.from_numpy(output.scores[reference.headline])).numpy()
    calibration = reference.calibration[reference.headline]
    return mondrian_p_values(scores, output.predicted, calibration, reference.calibration_class)


def headline_p_value(output: Output[Tensor], is_valid: Tensor, reference: Reference) -> Tensor:
    """The p-value of the headline score, (N,), for the exported graph; the smallest where is_valid is False."""
    score = SCORES[reference.headline](output, reference)
    assert score is not None
    score = torch.where(is_valid, nan_to_inf(score), torch.inf)
    calibration = np.sort(reference.calibration[reference.headline])
    return p_values_among(subtract_rounding(score), torch.from_numpy(calibration))


def subtract_rounding(scores: Tensor) -> Tensor:
    """The scores minus what rounding may have added, so that inputs that equal a calibration input tie with it.

    Otherwise their ranks could depend on the batch in which they are computed. This can only raise a p-value.
    """
    return scores - torch.where(scores.isfinite(), ROUNDING * scores.abs().clamp_min(1), 0.0)


def nan_to_inf(scores: Tensor) -> Tensor:
    """NaN counts as the strangest."""
    return torch.where(scores.isnan(), torch.inf, scores)


def nll_score(output: Output[Tensor], reference: Reference) -> Tensor | None:
    """-log q(x) / D, one-sided."""
    return None if reference.h is None or output.log_q_x is None else -output.log_q_x / reference.n_dims


def typicality_score(output: Output[Tensor], reference: Reference) -> Tensor | None:
    """|-log q(x) / D - h|: the paper's score."""
    nll = nll_score(output, reference)
    return None if nll is None or reference.h is None else (nll - reference.h).abs()


def class_typicality_score(output: Output[Tensor], reference: Reference) -> Tensor | None:
    """||z - mu|^2 / D - shell|: the distance from the shell around mu on which members of the class lie."""
    if reference.shell is None or output.sq_distance is None:
        return None
    return (output.sq_distance / reference.n_dims - reference.shell).abs()


def complexity_score(output: Output[Tensor], reference: Reference) -> Tensor | None:
    """(-log q(x) - length of a lossless code) / D: simple images are likely anyway (Serra et al. 2020)."""
    nll = nll_score(output, reference)
    if nll is None or output.code_length is None:
        return None
    return nll - output.code_length / reference.n_dims


def class_information_score(output: Output[Tensor], reference: Reference) -> Tensor | None:
    """log q_0(z) - log q(z): how much worse the classes explain z than a Gaussian that ignores them.

    q_0 and q are those of the latent reference (`LatentReference`), not of the trained mixture.
    """
    return output.class_information


def class_distance_score(output: Output[Tensor], reference: Reference) -> Tensor | None:
    """min_y (z - m_y)^T Sigma^-1 (z - m_y) / D: the distance from the nearest class, in its own covariance."""
    return None if output.class_distance is None else output.class_distance / reference.n_dims


def span_distance_score(output: Output[Tensor], reference: Reference) -> Tensor | None:
    """The part of that distance within the span of the class means, not divided by D."""
    return output.span_distance


def combined_score(output: Output[Tensor], reference: Reference) -> Tensor | None:
    """-2 sum_j log p_j (Fisher), p_j the p-value of each part among the validation split.

    The parts are those of `usual_parts`. An input whose classes have no numbers is the strangest in each of them.
    Beyond all of the n validation inputs, ranks say no more, and p_j = 1 / (n + 1) / (1 + `excess`).
    """
    if not reference.parts:
        return None
    has_no_class = output.log_q_y.isnan().any(1)
    terms = []
    for name, validation in reference.parts.items():
        score = SCORES[name](output, reference)
        assert score is not None
        score, n = torch.where(has_no_class, torch.inf, nan_to_inf(score)), len(validation)
        # From a table of all ranks: a vectorised log may differ in the last bit between equal p-values.
        table = torch.from_numpy(-2 * np.log(np.arange(n + 1, 0, -1) / (n + 1)))
        fisher = table[torch.bucketize(subtract_rounding(score), torch.from_numpy(validation))]
        terms.append(fisher + 2 * (1 + excess(score, validation)).log())
    # Sorted, so that no rounding depends on the order of the parts, which files do not keep.
    return torch.stack(terms).sort(0).values.sum(0)


def excess(scores: Tensor, validation: Floats) -> Tensor:
    """How far scores lie above the highest of the sorted validation scores; that one lies 1 above their median."""
    highest = float(validation[-1])
    scale = highest - float(validation[len(validation) // 2]) or 1.0
    return ((scores - highest) / scale).clamp(0, MOST_EXCESS)


def entropy_score(output: Output[Tensor], reference: Reference) -> Tensor:
    """H(Y|x), in nats; no term of the sum is positive."""
    q = output.log_q_y.exp()
    return (q * torch.where(q > 0, output.log_q_y, 0.0)).sum(1).abs()


def max_softmax_score(output: Output[Tensor], reference: Reference) -> Tensor:
    """1 - max_y q(y|x)."""
    return -torch.expm1(output.log_q_y.amax(1))


def energy_score(output: Output[Tensor], reference: Reference) -> Tensor:
    """-logsumexp of the logits (Liu et al. 2020)."""
    return output.energy


SCORES: dict[str, Callable[[Output[Tensor], Reference], Tensor | None]] = {
    "typicality": typicality_score,
    "nll": nll_score,
    "class_typicality": class_typicality_score,
    "entropy": entropy_score,
    "max_softmax": max_softmax_score,
    "energy": energy_score,
    "complexity": complexity_score,
    "class_information": class_information_score,
    "class_distance": class_distance_score,
    "span_distance": span_distance_score,
    "combined": combined_score,
}
