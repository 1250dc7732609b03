"""What ibinn evaluate found, for the page."""

from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from ibinn._types import Array, Floats
from ibinn.config import ALPHA
from ibinn.explorer import schema
from ibinn.ood.scores import Reference
from ibinn.report.text import OOD_SETS, findings, headline, look
from ibinn.run.arrays import read_arrays
from ibinn.run.results import finite_or_none, read_results
from ibinn.run.trained import RunError

N_BARS = 40


def quality(folder: Path, reference: Reference) -> schema.Quality:
    try:
        return found(read_results(folder), read_arrays(folder), reference)
    except RunError as error:
        return schema.Quality(missing=str(error))
    except (LookupError, TypeError, ValueError, AttributeError):  # other fields, or of other kinds
        again = f"make it again with: ibinn evaluate {quote(str(folder))}"
        return schema.Quality(missing=f"The evaluation is damaged or of another version; {again}")


def found(results: dict[str, Any], arrays: Mapping[str, Array], reference: Reference) -> schema.Quality:
    score = results["score"]
    scores = {"": arrays.get(f"scores/{score}")}
    scores |= {name: arrays.get(f"scores/{name}/{score}") for name in results["ood"]}
    there = {name: v.astype(np.float64) for name, v in scores.items() if v is not None and len(v)}
    edges = common_edges(list(there.values()))
    return schema.Quality(
        missing=None,
        headline=headline(results),
        findings=[schema.Note(title=note.title, text=note.text) for note in findings(results)],
        bins=[schema.Bin(**b) for b in results["calibration"]["bins"]],
        score=score,
        edges=edges.tolist(),
        threshold=threshold(reference),
        sets=[
            schema.Bars(
                name=name or "test",
                told=OOD_SETS.get(name, name) if name else "test inputs, like the training data",
                n=len(values),
                shares=shares(values, edges),
                flagged=look(results["ood"].get(name), "detected_at_alpha", score)
                if name
                else results["false_alarm_rate"].get(score),
                auroc=look(results["ood"].get(name), "auroc", score) if name else None,
            )
            for name, values in there.items()
        ],
    )


def common_edges(sets: list[Floats]) -> Floats:
    """Of bars over the central 99 % of each set."""
    finite = [values[np.isfinite(values)] for values in sets]
    ends = [np.percentile(values, (0.5, 99.5)) for values in finite if len(values)]
    if not ends:
        return np.array([])
    low, high = float(np.min(ends)), float(np.max(ends))
    return np.linspace(low, high if high > low else low + 1, N_BARS + 1)


def shares(values: Floats, edges: Floats) -> list[float]:
    """In percent; all beyond is in the outermost bars."""
    if not len(edges):
        return []
    counts, _ = np.histogram(values.clip(edges[0], edges[-1]), edges)
    shares: list[float] = (100 * counts / len(values)).tolist()
    return shares


def threshold(reference: Reference) -> float | None:
    """Scores above this one have p <= alpha; None where nothing could."""
    scores = np.sort(reference.calibration[reference.headline])[::-1]
    most = int(ALPHA * (len(scores) + 1) + 1e-9)  # p = (1 + number of scores as high) / (n + 1)
    return finite_or_none(scores[most - 1]) if most >= 1 else None
