"""ibinn interpolate."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from ibinn.cli.files import is_picture, write_arrays, write_figure
from ibinn.cli.models import estimator_of, loaded, read_one

if TYPE_CHECKING:
    from ibinn._types import Array
    from ibinn.run.folder import Saved


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
        saved = loaded(self.run_folder, "cpu")
        model = estimator_of(saved, self.run_folder)
        a, b = (saved.form.back(read_one(name, saved)[None])[0] for name in (self.a, self.b))
        x = model.interpolate(a, b, self.steps)
        out = self.out or Path("interpolation.png" if saved.form.is_images else "interpolation.csv")
        write_way(out, x, saved)
        print(f"written to {out}")


def write_way(out: Path, x: "Array", saved: "Saved") -> None:
    from ibinn.report.pictures import draw_interpolations

    if is_picture(out, saved):
        images = saved.form.raw(x)
        write_figure(out, lambda: draw_interpolations([("", images)], saved.form.levels or 256))
    else:
        write_arrays(out, x, saved, None)
