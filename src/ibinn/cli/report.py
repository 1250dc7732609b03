"""ibinn report."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from ibinn.cli.terminal import note

Score = Literal[
    "typicality",
    "nll",
    "class_typicality",
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
    """The paper's tables and figures over several evaluated runs."""

    run_folders: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders with a results.json each: methods, gammas, seeds. Or the folder of a sweep."""

    out: Path | None = None
    """Where the tables and figures go; by default report, or FOLDER/report for the FOLDER of a sweep."""

    paper: bool = False
    """Put the numbers that the paper prints below ours; for cifar10 and cifar100."""

    score: Score = "typicality"
    """The OoD score of tables and figures; the paper's by default."""

    def run(self) -> None:
        from ibinn.report.runs import is_sweep, report

        folders = self.run_folders
        home = folders[0] if len(folders) == 1 and is_sweep(folders[0]) else Path()
        for path in report(folders, self.out or home / "report", self.paper, self.score, note):
            print(f"written to {path}")
