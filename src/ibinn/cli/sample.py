"""ibinn sample."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ibinn.cli.files import write_inputs
from ibinn.cli.options import RunFolder
from ibinn.config import at_least


@dataclass(frozen=True)
class Sample:
    """Draw new inputs of each class, as a picture, an .npz file or, for a table, a .csv file."""

    run_folder: RunFolder

    out: Path | None = None
    """File to write: .png, .pdf or .npz, for tables .csv or .npz; by default samples.png or .csv."""

    n: int = 10
    """Number of samples per class."""

    classes: tuple[str, ...] = ()
    """Names of the classes to sample; by default all."""

    temperature: float = 1.0
    """Standard deviation in latent space. Below 1 samples are more typical; 0 gives the centre of each class."""

    seed: int = 0
    """Seed of the random numbers."""

    def run(self) -> None:
        import numpy as np

        from ibinn.estimator import IBINNClassifier
        from ibinn.report.pictures import draw_samples

        at_least("--n", self.n, 1)
        model = IBINNClassifier.load(self.run_folder, device="cpu")
        names = self.classes or model.run_.class_names
        x, y = model.sample(len(names) * self.n, np.repeat(names, self.n), self.temperature, self.seed)
        out = self.out or Path("samples.png" if model.form_.is_images else "samples.csv")

        def draw(images: Any, levels: int) -> Any:
            return draw_samples(images.reshape(len(names), self.n, *images.shape[1:]), names, levels)

        write_inputs(out, x, y, model, draw)
