"""ibinn interpolate."""

from dataclasses import dataclass
from pathlib import Path

from ibinn.cli.files import read_one, write_inputs
from ibinn.cli.options import OneInput, RunFolder


@dataclass(frozen=True)
class Interpolate:
    """Go from one input to another in latent space."""

    run_folder: RunFolder

    a: OneInput

    b: OneInput

    steps: int = 9
    """Number of inputs, both ends included."""

    out: Path | None = None
    """File to write: .png, .pdf or .npz, for tables .csv or .npz; by default interpolation.png or .csv."""

    def run(self) -> None:
        from ibinn.estimator import IBINNClassifier
        from ibinn.report.pictures import draw_interpolations

        model = IBINNClassifier.load(self.run_folder, device="cpu")
        form, feature_names = model.form_, model.run_.feature_names
        a, b = (form.back(read_one(name, form, feature_names)[None])[0] for name in (self.a, self.b))
        x = model.interpolate(a, b, self.steps)
        out = self.out or Path("interpolation.png" if form.is_images else "interpolation.csv")
        write_inputs(
            out, x, None, model, lambda images, levels: draw_interpolations([("", images)], levels)
        )
