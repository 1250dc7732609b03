"""ibinn interpolate."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from ibinn.cli.files import is_picture, write_arrays, write_figure
from ibinn.cli.models import estimator_of, loaded, read_one

if TYPE_CHECKING:
    from ibinn._types import Array
    from ibinn.run.trained import Run


@dataclass(frozen=True)
class Interpolate:
    """The way in latent space from one input to another."""

    run_folder: tyro.conf.Positional[Path]
    """What ibinn train or IBINNClassifier.save wrote."""

    a: tyro.conf.Positional[str]
    """An image, or FILE:ROW of an .npz or a table."""

    b: tyro.conf.Positional[str]
    """Another."""

    steps: int = 9
    """Inputs on the way, both ends included."""

    out: Path | None = None
    """.png or .pdf (images), .npz, or .csv (tables); by default interpolation.png or interpolation.csv."""

    def run(self) -> None:
        run = loaded(self.run_folder, "cpu")
        model = estimator_of(run, self.run_folder)
        a, b = (run.form.back(read_one(name, run)[None])[0] for name in (self.a, self.b))
        x = model.interpolate(a, b, self.steps)
        out = self.out or Path("interpolation.png" if run.form.is_images else "interpolation.csv")
        write_way(out, x, run)
        print(f"written to {out}")


def write_way(out: Path, x: "Array", run: "Run") -> None:
    from ibinn.report.pictures import draw_interpolations

    if is_picture(out, run):
        images = run.form.raw(x)
        write_figure(out, lambda: draw_interpolations([("", images)], run.form.levels or 256))
    else:
        write_arrays(out, x, run, None)
