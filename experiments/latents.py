"""Samples of the pretrained models from the fitted latent reference and from the mixture, and a picture of both.

    python experiments/latents.py [--judge RUN]

Writes results/latents.json and, to results/figures, contact sheets of the samples and the latent codes of one
class of Fashion-MNIST. RUN is the folder of a ResNet trained on Fashion-MNIST, which judges the samples of that
model as in generation.py.
"""

import argparse
import json
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from generation import Judge
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse

from ibinn._system import write_atomically
from ibinn._types import Array, Floats
from ibinn.config import Latent
from ibinn.data.known import load
from ibinn.evaluation import splits_of
from ibinn.inference.latent import Samples, encode, out_of_range, sample, to_units
from ibinn.models.latent_reference import LatentReference
from ibinn.pretrained import pretrained_folder
from ibinn.report.pictures import draw_sample_sets
from ibinn.report.runs import rendered
from ibinn.report.style import COLOURS, FAINT, INK, PAGE, STYLE
from ibinn.run.folder import load_run
from ibinn.run.trained import Run

RESULTS = Path(__file__).parent.parent / "results"
MODELS = ("fashion_mnist", "cifar10")
JUDGED = "fashion_mnist"
N = 2000  # samples of each kind, as in generation.py
SHOWN = 10  # of each class
CLASS = 9  # of the picture: ankle boots
SOURCES: dict[Latent, str] = {"mixture": "from N(μ, I)", "fitted": "from N(m, Σ)"}


def drawn(run: Run, latent: Latent) -> Samples:
    y = torch.arange(N) % len(run.class_names)
    return sample(run.pipeline, N, torch.Generator().manual_seed(0), y, latent=latent)


def first_draws_out_of_range(run: Run) -> float:
    """The share of samples of the fitted reference that `sample` has to draw again, in percent."""
    reference = run.pipeline.reference("drawn")
    assert reference is not None
    z = reference.sample(torch.arange(N) % len(run.class_names), 1.0, torch.Generator().manual_seed(0))
    return 100 * float(
        torch.cat([out_of_range(to_units(run.pipeline, s, is_local=True), True) for s in z.split(500)])
        .double()
        .mean()
    )


def shares(samples: Samples, judge: Judge | None) -> dict[str, float]:
    """In percent."""
    found: dict[str, Array] = {"out_of_range": samples.is_out_of_range}
    if judge:
        found |= {
            "lifelike": judge.lifelike(samples.raw),
            "of_their_class": judge.predicted(samples.raw) == samples.y,
        }
    return {name: 100 * float(np.mean(values)) for name, values in found.items()}


def by_class(samples: Samples, n_classes: int) -> Array:
    """(K, n, H, W, C): the first samples of each class."""
    return np.stack([samples.raw[samples.y == k][:SHOWN] for k in range(n_classes)])


def latent_figure(run: Run) -> Figure:
    """Codes of one class along the axes with the most and the least variance, beside those with fixed noise."""
    dataset = load(run.config.data)
    rows = splits_of(run, dataset).train
    x = dataset.train.x[rows[dataset.train.y[rows] == CLASS][:N]]
    with rc_context(STYLE):
        figure = Figure(figsize=(PAGE, 2.8), layout="constrained")
        for i, (noise, title) in enumerate(
            {
                "drawn": "noise drawn for each image",
                "bank": "one draw of noise, shared by all images",
            }.items()
        ):
            reference = run.pipeline.reference("drawn" if noise == "drawn" else "bank")
            assert reference is not None
            generator = torch.Generator().manual_seed(0) if noise == "drawn" else None
            z = encode(run.pipeline, x, generator, is_local=noise == "drawn").double()
            axis = figure.add_subplot(1, 2, i + 1)
            draw_class(
                axis, z.numpy(), reference, run.pipeline.generative.mixture.mu.detach().double().numpy()
            )
            axis.set_title(title)
        figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def draw_class(axis: Axes, z: Floats, reference: LatentReference, mu: Floats) -> None:
    """Codes of the class on two axes of Sigma, with circles and ellipses of two standard deviations."""
    n_dims = z.shape[1]
    factor = reference.covariance.colour(torch.eye(n_dims)).double()  # rows: Sigma^(1/2) of unit vectors
    _, deviations, axes = torch.linalg.svd(factor)
    plane, spread = axes[[0, -1]].numpy(), deviations[[0, -1]].numpy()
    mean = reference.means[CLASS].double().numpy()
    centre = mu[CLASS] @ plane.T
    points = z @ plane.T - centre
    fitted = mean @ plane.T - centre
    axis.scatter(points[:, 0], points[:, 1], s=3, color=FAINT, linewidths=0, label="training images")
    for place, size, colour, name in (
        ((0.0, 0.0), (1.0, 1.0), COLOURS[5], "N(μ, I), as trained for"),
        (fitted, spread, COLOURS[0], "N(m, Σ), fitted"),
    ):
        axis.plot(*place, "+", color=colour, markersize=8, markeredgewidth=1.5)
        axis.add_patch(
            Ellipse(
                (float(place[0]), float(place[1])),
                4 * size[0],
                4 * size[1],
                fill=False,
                edgecolor=colour,
                linewidth=1.5,
                label=name,
            )
        )
    axis.set(xlabel="axis with the most variance", ylabel="axis with the least variance", aspect="equal")
    ends = np.array([(-2, 2), (fitted[0] - 2 * spread[0], fitted[0] + 2 * spread[0])])
    middle = (ends.min() + ends.max()) / 2
    axis.set(xlim=(middle - 7.5, middle + 7.5), ylim=(-4, 4))
    axis.tick_params(colors=INK)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--judge", type=Path)
    options = parser.parse_args()
    judge = None
    if options.judge:
        judging = load_run(options.judge)
        judge = Judge(judging, load(judging.config.data))
    numbers: dict[str, dict[str, Any]] = {}
    for name in MODELS:
        run = load_run(pretrained_folder(name))
        samples = {latent: drawn(run, latent) for latent in get_args(Latent)}
        numbers[name] = {
            latent: shares(found, judge if name == JUDGED else None) for latent, found in samples.items()
        }
        numbers[name]["fitted"]["drawn_again"] = first_draws_out_of_range(run)
        print(name, numbers[name])
        sheets = {
            title: by_class(samples[latent], len(run.class_names)) for latent, title in SOURCES.items()
        }
        levels = run.pipeline.preprocess.levels
        assert levels is not None
        publish(f"{name}-samples", draw_sample_sets(sheets, run.class_names, levels))
    publish("fashion_mnist-codes", latent_figure(load_run(pretrained_folder("fashion_mnist"))))
    write_atomically(RESULTS / "latents.json", json.dumps({"n": N, **numbers}, indent=1) + "\n")


def publish(name: str, figure: Figure) -> None:
    write_atomically(
        RESULTS / "figures" / f"latents-{name}.png", rendered(name, lambda: figure)[f"{name}.png"]
    )


if __name__ == "__main__":
    main()
