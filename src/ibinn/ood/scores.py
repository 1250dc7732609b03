"""How strange is an input: scores, higher = stranger, all in one table.

Three separate splits: what a score is measured against, such as the centre h of the typicality, comes from the
validation split; the p-values from the calibration split, which nothing else may touch (see conformal.py); the
inputs that are judged from neither.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ibinn._types import Array, Floats, Progress
from ibinn.metrics.classification import entropy
from ibinn.models.output import Output
from ibinn.models.pipeline import Pipeline
from ibinn.ood.complexity import code_lengths
from ibinn.ood.conformal import conformal_p_values

ROUNDING = 1e-9  # of a score: relative, and absolute below 1


TIE = 1e-3  # less than any two ranks differ in Fisher's statistic, of a usual number of samples


PARTS = ("typicality", "class_typicality", "complexity")  # of the combined score


@dataclass(frozen=True)
class Reference:
    """What inputs are measured against.

    From the validation split: h, the mean of -log q(x) / D; shell, that of |z - mu|^2 / D; parts, the sorted
    scores that `combined` ranks among. From the calibration split: its scores, its likeliest classes, and
    label_scores, 1 - q(y|x) of its true classes.
    """

    n_dims: int
    h: float | None
    shell: float | None
    parts: Mapping[str, Floats]
    calibration: Mapping[str, Floats]
    calibration_class: NDArray[np.int64]
    label_scores: Floats

    @property
    def headline(self) -> str:
        """The score named beforehand: combined, or without a density the entropy."""
        return "combined" if "combined" in self.calibration else "entropy"


def fit_reference(
    validation: Output[Floats], calibration: Output[Floats], n_dims: int, y_calibration: NDArray[np.int64]
) -> Reference:
    """h, shell and ranks from the validation split, then scores of the calibration split.

    Where a density is not finite on the validation split, all that needs one is left out.
    """
    h = shell = None
    called = calibration.log_q_y.argmax(1)
    if validation.log_q_x is not None and np.isfinite(validation.log_q_x).all():
        h = typical_entropy(validation.log_q_x, n_dims)
    if validation.sq_distance is not None and np.isfinite(validation.sq_distance).all():
        shell = float(validation.sq_distance.mean()) / n_dims
    true = np.take_along_axis(calibration.log_q_y, y_calibration[:, None], axis=1)[:, 0]
    label_scores = np.where(np.isnan(true), 1.0, -np.expm1(true))
    bare = Reference(n_dims, h, shell, {}, {}, called, label_scores)
    values = ood_scores(validation, bare)
    ranked = replace(bare, parts={name: np.sort(values[name]) for name in PARTS if name in values})
    return replace(ranked, calibration=ood_scores(calibration, ranked))


def observe(
    pipeline: Pipeline,
    raw: Array,
    batch_size: int = 500,
    progress: Progress | None = None,
    with_z: bool = False,
) -> Output[Floats]:
    """The output of a pipeline for raw (N, ...), with all that the scores need."""
    output, levels = pipeline.predict(raw, 0, batch_size, progress, with_z), pipeline.preprocess.levels
    return output if levels is None else replace(output, code_length=code_lengths(raw, levels))


def ood_scores(output: Output[Floats], reference: Reference) -> dict[str, Floats]:
    """Every score that the output allows, (N,) each; an input without a number is the strangest."""
    values = {name: score(output, reference) for name, score in SCORES.items()}
    return {
        name: np.where(np.isnan(value), np.inf, value)
        for name, value in values.items()
        if value is not None
    }


def p_values(scores: Mapping[str, Floats], reference: Reference) -> dict[str, Floats]:
    """The conformal p-value of each score, (N,) each."""
    return {
        name: conformal_p_values(hardly_less(values), reference.calibration[name])
        for name, values in scores.items()
    }


def hardly_less(scores: Floats) -> Floats:
    """The scores less what rounding may have added: inputs that equal a calibration input then tie with it.

    Else their ranks could depend on the batch that they are computed in. It can only raise a p-value.
    """
    return scores - np.where(np.isfinite(scores), ROUNDING * np.maximum(1, np.abs(scores)), 0)


def typical_entropy(log_q_x_validation: ArrayLike, n_dims: int) -> float:
    """h, the mean of -log q(x) / D over the validation split, in nats per dimension.

    Not over the calibration split: its scores would be too small, and the p-values with them.
    """
    log_q_x = np.asarray(log_q_x_validation, dtype=np.float64)
    n_bad = int(np.count_nonzero(~np.isfinite(log_q_x)))
    if log_q_x.size == 0 or n_bad:
        raise ValueError(
            f"log_q_x_validation holds {log_q_x.size} values, {n_bad} of them not finite, but h needs at least "
            f"one and all finite; look for inputs outside the model's range"
        )
    return -float(log_q_x.mean()) / n_dims


def typicality(log_q_x: ArrayLike, n_dims: int, h: float) -> NDArray[np.float64]:
    """|-log q(x) / D - h|, (N,), in nats per dimension; h from `typical_entropy`, in the same units."""
    return np.abs(-np.asarray(log_q_x, dtype=np.float64) / n_dims - h)


def nll_score(output: Output[Floats], reference: Reference) -> Floats | None:
    """-log q(x) / D, one-sided."""
    return None if reference.h is None or output.log_q_x is None else -output.log_q_x / reference.n_dims


def typicality_score(output: Output[Floats], reference: Reference) -> Floats | None:
    """|-log q(x) / D - h|: the paper's."""
    if reference.h is None or output.log_q_x is None:
        return None
    return typicality(output.log_q_x, reference.n_dims, reference.h)


def class_typicality_score(output: Output[Floats], reference: Reference) -> Floats | None:
    """||z - mu|^2 / D - shell|, mu of the likeliest class: how far from the shell where its members lie."""
    if reference.shell is None or output.sq_distance is None:
        return None
    return np.abs(output.sq_distance / reference.n_dims - reference.shell)


def complexity_score(output: Output[Floats], reference: Reference) -> Floats | None:
    """(-log q(x) - length of a lossless code) / D: plain images are likely anyway (Serra et al. 2020)."""
    nll = nll_score(output, reference)
    if nll is None or output.code_length is None:
        return None
    return nll - output.code_length / reference.n_dims


def combined_score(output: Output[Floats], reference: Reference) -> Floats | None:
    """-2 sum_j log p_j (Fisher), p_j the rank of each part among the validation split's.

    Inputs beyond all of those would tie: how far beyond decides among equals.
    """
    if not reference.parts:
        return None
    fisher, far = [], []
    for name, validation in reference.parts.items():
        values = SCORES[name](output, reference)
        assert values is not None
        values = np.where(np.isnan(values), np.inf, values)
        fisher.append(-2 * np.log(conformal_p_values(hardly_less(values), validation)))
        far.append(beyond(values, validation))
    # Sorted, so that no rounding depends on the order of the parts, which files do not keep.
    return np.asarray(np.sum(np.sort(fisher, axis=0), axis=0) + TIE * np.mean(np.sort(far, axis=0), axis=0))


def beyond(values: Floats, validation: Floats) -> Floats:
    """0 up to the highest of the sorted validation scores, then rising to 1 with the distance from it."""
    scale = validation[-1] - validation[len(validation) // 2] or 1.0
    excess = np.maximum(values - validation[-1], 0) / scale
    return np.asarray(1 - 1 / (1 + excess))


def entropy_score(output: Output[Floats], reference: Reference) -> Floats:
    return entropy(output.log_q_y)


def max_softmax_score(output: Output[Floats], reference: Reference) -> Floats:
    """1 - max_y q(y|x)."""
    return np.asarray(-np.expm1(output.log_q_y.max(1)))


def energy_score(output: Output[Floats], reference: Reference) -> Floats:
    """-logsumexp of the logits (Liu et al. 2020)."""
    return output.energy


SCORES: dict[str, Callable[[Output[Floats], Reference], Floats | None]] = {
    "typicality": typicality_score,
    "nll": nll_score,
    "class_typicality": class_typicality_score,
    "entropy": entropy_score,
    "max_softmax": max_softmax_score,
    "energy": energy_score,
    "complexity": complexity_score,
    "combined": combined_score,
}
