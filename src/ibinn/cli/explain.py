"""ibinn explain."""

import json
from dataclasses import dataclass
from pathlib import Path

from ibinn.cli.files import read_one, write_figure
from ibinn.cli.options import OneInput, RunFolder


@dataclass(frozen=True)
class Explain:
    """Explain the decision on one input in words and numbers, and optionally in a figure."""

    run_folder: RunFolder

    file: OneInput

    figure: Path | None = None
    """A .png or .pdf to draw to: posterior, rank among the calibration scores, and evidence."""

    json: bool = False
    """Print the numbers as JSON."""

    def run(self) -> None:
        from ibinn.inference.attribution import evidence_map
        from ibinn.inference.explain import explain
        from ibinn.run.folder import load_run

        run = load_run(self.run_folder, "cpu")
        raw = read_one(self.file, run.form, run.feature_names)
        explanation = explain(run, raw).in_units(run.form.log_scale)
        as_json = json.dumps(explanation.to_dict(), indent=1, ensure_ascii=False)
        print(as_json if self.json else explanation)
        if self.figure is not None:
            from ibinn.report.decision import explanation_figure

            probabilities = list(explanation.posterior.values())
            first, second = sorted(range(len(probabilities)), key=lambda k: -probabilities[k])[:2]
            evidence = evidence_map(run, raw, first, second)
            write_figure(self.figure, lambda: explanation_figure(explanation, raw, evidence))
