"""The results of ibinn evaluate, for the page."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ibinn._types import Array, Floats
from ibinn.config import ALPHA
from ibinn.explorer import schema
from ibinn.formats import finite_or_none
from ibinn.ood.scores import Reference
from ibinn.report.text import OOD_SET_CONTENTS, alarm_rate, findings, headline
from ibinn.run import RunError
from ibinn.run.arrays import read_arrays
from ibinn.run.results import Results, read_results

N_BARS = 40


def quality_of(folder: Path, reference: Reference) -> schema.QualityReply:
    try:
        results, arrays = read_results(folder), read_arrays(folder)
    except RunError as error:
        return schema.QualityReply(missing=str(error))
    scores = stored_scores(results, arrays)
    edges = common_edges(list(scores.values()))
    return schema.QualityReply(
        missing=None,
        headline=headline(results),
        findings=findings(results),
        bins=list(results.scaled.calibration.bins),
        score=results.score,
        edges=edges.tolist(),
        threshold=threshold(reference),
        sets=[histogram_of(results, name, values, edges) for name, values in scores.items()],
    )


def stored_scores(results: Results, arrays: Mapping[str, Array]) -> dict[str, Floats]:
    """The headline scores in evaluation.npz by OoD set, those of the test set under the empty name."""
    keys = {"": f"scores/{results.score}"}
    keys |= {name: f"scores/{name}/{results.score}" for name in results.ood}
    found = {name: arrays.get(key, np.array([])) for name, key in keys.items()}
    return {
        name: v.astype(np.float64)
        for name, v in found.items()
        if v.ndim == 1 and v.dtype.kind == "f" and len(v)
    }


def histogram_of(results: Results, name: str, scores: Floats, edges: Floats) -> schema.SetHistogram:
    """Of an OoD set, or of the test set for the empty name."""
    ood = results.ood.get(name)
    return schema.SetHistogram(
        name=name or "test",
        title="test inputs, like the training data" if ood is None else OOD_SET_CONTENTS.get(name, name),
        n=len(scores),
        shares=shares(scores, edges),
        flagged=alarm_rate(results) if ood is None else ood.detected_at_alpha.get(results.score),
        auroc=None if ood is None else ood.auroc.get(results.score),
    )


def common_edges(sets: list[Floats]) -> Floats:
    """Edges of bars over the central 99 % of each set."""
    finite = [values[np.isfinite(values)] for values in sets]
    ends = [np.percentile(values, (0.5, 99.5)) for values in finite if len(values)]
    if not ends:
        return np.array([])
    low, high = float(np.min(ends)), float(np.max(ends))
    return np.linspace(low, high if high > low else low + 1, N_BARS + 1)


def shares(values: Floats, edges: Floats) -> list[float]:
    """In percent. The outermost bars hold all values outside."""
    if not len(edges):
        return []
    counts, _ = np.histogram(values.clip(edges[0], edges[-1]), edges)
    percentages: list[float] = (100 * counts / len(values)).tolist()
    return percentages


def threshold(reference: Reference) -> float | None:
    """Scores above it have p <= alpha; None where no score has."""
    scores = np.sort(reference.calibration[reference.headline])[::-1]
    most = int(ALPHA * (len(scores) + 1) + 1e-9)  # p = (1 + number of scores as high) / (n + 1)
    return finite_or_none(scores[most - 1]) if most >= 1 else None
