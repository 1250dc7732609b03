"""A row per input: class, probability, p-value and verdict, as a table, CSV or JSON lines."""

import csv
import dataclasses
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ibinn._types import Array, Progress
from ibinn.formats import percent_of
from ibinn.inference.judge import judge
from ibinn.ood.conformal import benjamini_hochberg, warn_if_coarse
from ibinn.run.trained import Run

Format = Literal["table", "csv", "jsonl"]


@dataclass(frozen=True)
class Row:
    """One input: its class with its probability, the p-value, and whether it looks like the training data."""

    input: str
    label: str
    probability: float
    p_value: float
    verdict: Literal["typical", "atypical"]
    log_q_x: float | None


def predict(
    run: Run,
    names: Sequence[str],
    raw: Array,
    alpha: float = 0.05,
    fdr: float | None = None,
    batch_size: int = 500,
    progress: Progress | None = None,
    log_scale: float = 0.0,
) -> list[Row]:
    """A row for each input. Atypical is p <= alpha; with fdr, what Benjamini-Hochberg flags in the whole batch.

    log_scale takes log q(x) to the units that a person knows (see InputForm).
    """
    if not 0 < alpha < 1:
        raise ValueError(f"alpha is {alpha} but must lie between 0 and 1")
    if fdr is not None and not 0 < fdr < 1:
        raise ValueError(f"fdr is {fdr} but must lie between 0 and 1")
    warn_if_coarse(len(run.reference.calibration_class), fdr or alpha)
    judged = judge(run, raw, batch_size, progress)
    p, log_q_x = judged.p_values[run.reference.headline], judged.log_q_x
    flagged = p <= alpha if fdr is None else benjamini_hochberg(p, fdr)
    best = judged.log_q_y.argmax(1)
    return [
        Row(
            name,
            run.class_names[best[i]],
            float(np.exp(judged.log_q_y[i, best[i]])),
            float(p[i]),
            "atypical" if flagged[i] else "typical",
            None if log_q_x is None or not np.isfinite(log_q_x[i]) else float(log_q_x[i]) + log_scale,
        )
        for i, name in enumerate(names)
    ]


def as_text(rows: Sequence[Row], form: Format) -> str:
    """All rows, with a line for each."""
    if form == "jsonl":
        return "".join(json.dumps(dataclasses.asdict(row), ensure_ascii=False) + "\n" for row in rows)
    return as_csv(rows) if form == "csv" else as_table(rows)


def as_csv(rows: Sequence[Row]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([field.name for field in dataclasses.fields(Row)])
    for row in rows:
        writer.writerow(["" if value is None else value for value in dataclasses.astuple(row)])
    return file.getvalue()


def as_table(rows: Sequence[Row]) -> str:
    """For eyes: numbers rounded, columns aligned."""
    cells = [("input", "class", "probability", "p-value", "verdict")]
    for row in rows:
        p = f"{row.p_value:.4f}" if row.p_value >= 1e-4 else f"{row.p_value:.1e}"
        cells.append((row.input, row.label, percent_of(row.probability), p, row.verdict))
    widths = [max(len(line[i]) for line in cells) for i in range(5)]
    lines = [
        "  ".join(
            text.rjust(width) if i in (2, 3) else text.ljust(width)
            for i, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    ]
    return "\n".join(lines) + "\n"
