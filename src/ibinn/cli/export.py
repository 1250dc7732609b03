"""ibinn export."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from ibinn.cli.models import loaded


@dataclass(frozen=True)
class Export:
    """One ONNX graph: inputs in; probabilities, log q(x) and p-value out."""

    run_folder: tyro.conf.Positional[Path]
    """What ibinn train or IBINNClassifier.save wrote."""

    file: tyro.conf.Positional[Path]
    """The .onnx file to write."""

    sampler: Path | None = None
    """Write a second graph here, from class and noise to a new input."""

    def run(self) -> None:
        from ibinn.export import export_onnx, export_sampler_onnx

        run = loaded(self.run_folder, "cpu")
        export_onnx(run, self.file, run.form)
        print(f"written to {self.file}")
        if self.sampler is not None:
            export_sampler_onnx(run, self.sampler, run.form)
            print(f"written to {self.sampler}")
