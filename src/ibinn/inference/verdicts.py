"""A row per input: class, probability, p-value and verdict, as a table, CSV or JSON lines."""

import csv
import dataclasses
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ibinn._types import Floats
from ibinn.formats import probability_text
from ibinn.models.output import Output
from ibinn.ood.conformal import benjamini_hochberg, warn_if_coarse
from ibinn.run.trained import Run

Format = Literal["table", "csv", "jsonl"]
Verdict = Literal["typical", "atypical"]


@dataclass(frozen=True)
class FlagRule:
    """Which inputs of a batch are atypical: p <= alpha; or with fdr, those that Benjamini-Hochberg flags.

    Examples
    --------
    >>> import numpy as np
    >>> from ibinn.inference.verdicts import FlagRule
    >>> p_values = np.array([0.01, 0.04, 0.5])
    >>> FlagRule(alpha=0.05).flags(p_values).tolist(), FlagRule(fdr=0.05).flags(p_values).tolist()
    ([True, True, False], [True, False, False])
    """

    alpha: float = 0.05
    fdr: float | None = None

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if value is not None and not 0 < value < 1:
                raise ValueError(f"{name} is {value} but must lie between 0 and 1")

    def flags(self, p_values: Floats) -> NDArray[np.bool_]:
        """Whether each input of the batch is atypical, (N,)."""
        return p_values <= self.alpha if self.fdr is None else benjamini_hochberg(p_values, self.fdr)


def verdict_text(is_atypical: bool) -> Verdict:
    return "atypical" if is_atypical else "typical"


@dataclass(frozen=True)
class VerdictRow:
    """One input: its class and the probability of that class, its p-value and the verdict."""

    input: str
    label: str
    probability: float
    p_value: float
    verdict: Verdict
    log_q_x: float | None


def verdict_rows(
    run: Run, names: Sequence[str], output: Output[Floats], rule: FlagRule
) -> list[VerdictRow]:
    """A row for each input; output is that of `judge`."""
    warn_if_coarse(len(run.reference.calibration_class), rule.fdr or rule.alpha)
    p, log_q_x, predicted = output.p_values[run.reference.headline], output.log_q_x, output.predicted
    flags = rule.flags(p)
    return [
        VerdictRow(
            name,
            run.class_names[predicted[i]],
            float(np.exp(output.log_p_y[i, predicted[i]])),
            float(p[i]),
            verdict_text(bool(flags[i])),
            None
            if log_q_x is None or not np.isfinite(log_q_x[i])
            else float(log_q_x[i]) + run.form.log_scale,
        )
        for i, name in enumerate(names)
    ]


def format_rows(rows: Sequence[VerdictRow], form: Format) -> str:
    """All rows, one per line."""
    if form == "jsonl":
        return "".join(json.dumps(dataclasses.asdict(row), ensure_ascii=False) + "\n" for row in rows)
    return as_csv(rows) if form == "csv" else as_table(rows)


def as_csv(rows: Sequence[VerdictRow]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([field.name for field in dataclasses.fields(VerdictRow)])
    writer.writerows(dataclasses.astuple(row) for row in rows)  # None is written as an empty cell
    return file.getvalue()


def as_table(rows: Sequence[VerdictRow]) -> str:
    """Numbers rounded, columns aligned."""
    cells = [("input", "class", "probability", "p-value", "verdict")]
    for row in rows:
        p = f"{row.p_value:.4f}" if row.p_value >= 1e-4 else f"{row.p_value:.1e}"
        cells.append((row.input, row.label, probability_text(row.probability, 2), p, row.verdict))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(
            text.rjust(width) if i in (2, 3) else text.ljust(width)
            for i, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    ]
    return "\n".join(lines) + "\n"
