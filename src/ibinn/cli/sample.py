"""ibinn sample."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ibinn.cli.files import write_inputs
from ibinn.cli.options import RunFolder
from ibinn.config import Latent, at_least


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
    """Factor of the deviation from the centre of a class. Below 1 samples are more typical; 0 gives the centre."""

    latent: Latent = "fitted"
    """Where to draw: from the latent codes of the training set as they are, or from the model's unit Gaussians."""

    seed: int = 0
    """Seed of the random numbers."""

    def run(self) -> None:
        import numpy as np

        from ibinn.estimator import IBINNClassifier
        from ibinn.report.pictures import draw_samples

        at_least("--n", self.n, 1)
        model = IBINNClassifier.load(self.run_folder, device="cpu")
        names = self.classes or model.run_.class_names
        labels = np.repeat(names, self.n)
        x, y = model.sample(len(labels), labels, self.temperature, self.seed, self.latent)
        out = self.out or Path("samples.png" if model.form_.is_images else "samples.csv")

        def draw(images: Any, levels: int) -> Any:
            return draw_samples(images.reshape(len(names), self.n, *images.shape[1:]), names, levels)

        write_inputs(out, x, y, model, draw)
