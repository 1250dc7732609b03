"""ibinn predict."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from ibinn._system import write_atomically
from ibinn.cli.options import BatchSize, ComputeDevice, RunFolder
from ibinn.cli.terminal import progress
from ibinn.config import at_least

if TYPE_CHECKING:
    from ibinn._types import Array
    from ibinn.run.trained import Run

SOME_ATYPICAL = 3  # exit code


@dataclass(frozen=True)
class Predict:
    """Print a row per input: class, probability, p-value, and whether it is typical of the training data."""

    run_folder: RunFolder

    files: tyro.conf.Positional[tuple[Path, ...]]
    """Image files, folders of images, or .npz with an array x; for a table .csv, .parquet or .npz."""

    format: Literal["table", "csv", "jsonl"] = "table"
    """An aligned table with rounded numbers, CSV, or a JSON object per line."""

    out: Path | None = None
    """File to write instead of printing to the terminal."""

    alpha: float = 0.05
    """Inputs with p <= alpha are atypical. At most this share of data like the training data is."""

    fdr: float | None = None
    """False discovery rate, instead of alpha: at most this share of the atypical inputs are false alarms."""

    fail: bool = False
    """Exit with code 3 if an input is atypical."""

    batch_size: BatchSize = 500

    device: ComputeDevice = "auto"

    def run(self) -> None:
        from ibinn.inference.judge import judge
        from ibinn.inference.verdicts import FlagRule, format_rows, verdict_rows
        from ibinn.run.folder import load_run

        at_least("--batch-size", self.batch_size, 1)
        rule = FlagRule(self.alpha, self.fdr)
        run = load_run(self.run_folder, self.device)
        names, raw = read_all(self.files, run)
        with progress("predicting") as on_progress:
            output = judge(run, raw, self.batch_size, on_progress)
        rows = verdict_rows(run, names, output, rule)
        text = format_rows(rows, self.format)
        if self.out is None:
            print(text, end="")
        else:
            write_atomically(self.out, text)
        n_atypical = sum(row.verdict == "atypical" for row in rows)
        print(f"{n_atypical} of {len(rows)} inputs are atypical", file=sys.stderr)
        if self.fail and n_atypical:
            raise SystemExit(SOME_ATYPICAL)


def read_all(files: tuple[Path, ...], run: "Run") -> "tuple[list[str], Array]":
    """Names and raw inputs of all files."""
    import numpy as np

    from ibinn.data.inputs import read_inputs

    if not files:
        raise ValueError("no files to predict; give images, folders, .npz, .csv or .parquet")
    parts = [read_inputs(file, run.form, run.feature_names) for file in files]
    return [name for names, _ in parts for name in names], np.concatenate([raw for _, raw in parts])
