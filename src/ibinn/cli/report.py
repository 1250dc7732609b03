"""ibinn report."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from ibinn.cli.terminal import print_note

Score = Literal[
    "typicality",
    "nll",
    "class_typicality",
    "class_information",
    "class_distance",
    "span_distance",
    "complexity",
    "combined",
    "entropy",
    "max_softmax",
    "energy",
    "mahalanobis",
    "knn",
]


@dataclass(frozen=True)
class Report:
    """Write the paper's tables and figures over several evaluated runs."""

    run_folders: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders with results.json, or the folder of a sweep."""

    out: Path | None = None
    """Folder for the tables and figures; by default report, or FOLDER/report for the FOLDER of a sweep."""

    paper: bool = False
    """Add the numbers printed in the paper; for cifar10 and cifar100."""

    score: Score = "typicality"
    """OoD score of the tables and figures; the default is the paper's."""

    def run(self) -> None:
        from ibinn.report.runs import is_sweep, report

        folders = self.run_folders
        home = folders[0] if len(folders) == 1 and is_sweep(folders[0]) else Path()
        for path in report(folders, self.out or home / "report", self.paper, self.score, print_note):
            print(f"written to {path}")
