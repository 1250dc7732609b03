"""ibinn sample."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from ibinn.cli.files import is_picture, write_arrays, write_figure
from ibinn.cli.models import estimator_of, loaded

if TYPE_CHECKING:
    from ibinn._types import Array
    from ibinn.run.trained import Run


@dataclass(frozen=True)
class Sample:
    """New inputs of each class: a picture, an .npz, or for a table a .csv."""

    run_folder: tyro.conf.Positional[Path]
    """What ibinn train or IBINNClassifier.save wrote."""

    out: Path | None = None
    """.png or .pdf (images), .npz with x and y, or .csv (tables); by default samples.png or samples.csv."""

    n: int = 10
    """So many of each class."""

    classes: tuple[str, ...] = ()
    """Only these classes, by name."""

    temperature: float = 1.0
    """Deviation in latent space: below 1 more typical, 0 the centre of each class."""

    seed: int = 0
    """Other samples for another number."""

    def run(self) -> None:
        import numpy as np

        run = loaded(self.run_folder, "cpu")
        model = estimator_of(run, self.run_folder)
        wanted = chosen_classes(self.classes, run.class_names)
        if self.n < 1:
            raise ValueError(f"--n is {self.n} but must be 1 or more")
        y = np.repeat(run.classes[wanted], self.n)
        x, y = model.sample(len(y), y, self.temperature, self.seed)
        out = self.out or Path("samples.png" if run.form.is_images else "samples.csv")
        write_samples(out, x, y, run, [run.class_names[k] for k in wanted])
        print(f"written to {out}")


def chosen_classes(names: tuple[str, ...], known: tuple[str, ...]) -> list[int]:
    for name in names:
        if name not in known:
            raise ValueError(f"there is no class {name}; the classes are {', '.join(known)}")
    return [known.index(name) for name in names] or list(range(len(known)))


def write_samples(out: Path, x: "Array", y: "Array", run: "Run", names: list[str]) -> None:
    from ibinn.report.pictures import draw_samples

    if is_picture(out, run):
        levels = run.form.levels or 256
        images = run.form.raw(x)
        grid = images.reshape(len(names), -1, *images.shape[1:])
        write_figure(out, lambda: draw_samples(grid, names, levels))
    else:
        write_arrays(out, x, run, y)
