"""ibinn explain."""

import json
from dataclasses import dataclass
from pathlib import Path

import tyro

from ibinn.cli.files import write_figure
from ibinn.cli.models import loaded, read_one


@dataclass(frozen=True)
class Explain:
    """One decision in words and numbers, with a figure if asked."""

    run_folder: tyro.conf.Positional[Path]
    """What ibinn train or IBINNClassifier.save wrote."""

    file: tyro.conf.Positional[str]
    """An image, or FILE:ROW of an .npz or a table."""

    figure: Path | None = None
    """Draw posterior, place among the calibration scores and the evidence to this .png or .pdf."""

    json: bool = False
    """Print the numbers as JSON."""

    def run(self) -> None:
        from ibinn.inference.attribution import evidence_map
        from ibinn.inference.explain import explain

        run = loaded(self.run_folder, "cpu")
        raw = read_one(self.file, run)
        told = explain(run, raw).in_units(run.form.log_scale)
        print(json.dumps(told.to_dict(), indent=1, ensure_ascii=False) if self.json else told)
        if self.figure is not None:
            from ibinn.report.decision import explanation_figure

            best = sorted(range(len(told.posterior)), key=lambda k: -list(told.posterior.values())[k])
            evidence = evidence_map(run, raw, best[0], best[1])
            write_figure(self.figure, lambda: explanation_figure(told, raw, evidence))
