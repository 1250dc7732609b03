"""ibinn predict."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from ibinn.cli.models import loaded
from ibinn.cli.terminal import progress
from ibinn.config import Device

if TYPE_CHECKING:
    from ibinn._types import Array
    from ibinn.run.folder import Saved


SOME_ATYPICAL = 3  # exit code


@dataclass(frozen=True)
class Predict:
    """A row per input: class, probability, p-value, and whether it is like the training data."""

    run_folder: tyro.conf.Positional[Path]
    """What ibinn train or IBINNClassifier.save wrote."""

    files: tyro.conf.Positional[tuple[Path, ...]]
    """Images, folders of images, .npz with x; for a table .csv, .parquet or .npz."""

    format: Literal["table", "csv", "jsonl"] = "table"
    """For eyes, for spreadsheets, or a JSON object per line."""

    out: Path | None = None
    """Write to this file instead of the terminal."""

    alpha: float = 0.05
    """Atypical is what has p <= alpha: so many false alarms on data like that of training."""

    fdr: float | None = None
    """Instead: flag within the whole batch so that at most this share of the flagged are false alarms."""

    fail: bool = False
    """Exit with 3 where some input is atypical."""

    batch_size: int = 500
    """Inputs at a time: less needs less memory."""

    device: Device = "auto"
    """Where to compute."""

    def run(self) -> None:
        from ibinn._system import write_atomically
        from ibinn.inference.verdicts import as_text, predict

        if self.batch_size < 1:
            raise ValueError(f"--batch-size is {self.batch_size} but must be 1 or more")
        saved = loaded(self.run_folder, self.device)
        names, raw = read_all(self.files, saved)
        with progress("predicting") as on_progress:
            how = (self.alpha, self.fdr, self.batch_size, on_progress, saved.form.log_scale)
            rows = predict(saved.run, names, raw, *how)
        text = as_text(rows, self.format)
        if self.out is None:
            print(text, end="")
        else:
            write_atomically(self.out, text)
        n_atypical = sum(row.verdict == "atypical" for row in rows)
        print(f"{n_atypical} of {len(rows)} inputs are atypical", file=sys.stderr)
        if self.fail and n_atypical:
            raise SystemExit(SOME_ATYPICAL)


def read_all(files: tuple[Path, ...], saved: "Saved") -> "tuple[list[str], Array]":
    """Of several files, one after the other."""
    import numpy as np

    from ibinn.data.unlabelled import read_inputs

    if not files:
        raise ValueError("no files to predict; give images, folders, .npz, .csv or .parquet")
    parts = [read_inputs(file, saved.form, saved.run.feature_names) for file in files]
    return [name for names, _ in parts for name in names], np.concatenate([raw for _, raw in parts])
