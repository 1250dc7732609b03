"""ibinn export."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from ibinn.cli.options import RunFolder


@dataclass(frozen=True)
class Export:
    """Write the model as an ONNX graph: inputs in; probabilities, log q(x) and p-value out."""

    run_folder: RunFolder

    file: tyro.conf.Positional[Path]
    """The .onnx file to write."""

    sampler: Path | None = None
    """A second .onnx file to write, which makes a new input from a class and noise."""

    def run(self) -> None:
        from ibinn.export import export_onnx, export_sampler_onnx
        from ibinn.run.folder import load_run

        run = load_run(self.run_folder, "cpu")
        export_onnx(run, self.file)
        print(f"written to {self.file}")
        if self.sampler is not None:
            export_sampler_onnx(run, self.sampler)
            print(f"written to {self.sampler}")
