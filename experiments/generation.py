"""The images that a model generates, judged by a ResNet's features; and where its classes lie in latent space.

    python experiments/generation.py JUDGE RUN RUN ... --out FILE

JUDGE is the folder of a ResNet's run on the same data. An image counts as lifelike if its features are as near to
those of training images as 95 % of held-out images' are: the ResNet's nearest-neighbour score has p > 0.05.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from comparisons import Generated, Generation, write_comparison
from torch import Tensor

from ibinn._types import Array, Floats, Labels
from ibinn.config import ALPHA
from ibinn.data.dataset import Dataset, Part
from ibinn.data.known import load
from ibinn.evaluation import bootstrapped_means, intervals_of, read_test, splits_of
from ibinn.inference.latent import decode, encode
from ibinn.models.classifier import GenerativeClassifier
from ibinn.ood.features import FeatureScores, feature_scores, fit_feature_scores
from ibinn.run.folder import load_run
from ibinn.run.trained import Run

N = 2000  # images of each kind


class Judge:
    def __init__(self, run: Run, dataset: Dataset) -> None:
        self.pipeline = run.pipeline
        fitted = fit_feature_scores(run.pipeline, dataset, splits_of(run, dataset))
        assert isinstance(fitted, FeatureScores), "the judge is a plain classifier"
        self.fitted = fitted

    def lifelike(self, images: Array) -> Floats:
        """1 or 0, (N,)."""
        score = {"knn": feature_scores(self.pipeline, images, self.fitted)["knn"]}
        return (self.fitted.p_values(score)["knn"] > ALPHA).astype(np.float64)

    def predicted(self, images: Array) -> Labels:
        predicted: Labels = self.pipeline.compute_output(images).predicted
        return predicted


def latents(run: Run, x: Array) -> Tensor:
    """z of each input with a noise of its own: shared noise would move all of them off the means."""
    noise = torch.Generator().manual_seed(0)
    return encode(run.pipeline, x, noise)


def images_of(run: Run, z: Tensor) -> Array:
    return decode(run.pipeline, z)


def pairs(y: Labels, n: int) -> tuple[Labels, Labels]:
    """Rows of n pairs of inputs, the two of each of different classes."""
    rng = np.random.default_rng(0)
    first, second = rng.integers(len(y), size=(2, 2 * n))
    apart = np.flatnonzero(y[first] != y[second])[:n]
    return first[apart], second[apart]


@torch.no_grad()
def generation(run: Run, test: Part, judge: Judge) -> Generated:
    """Shares in percent with their intervals, and distances in the latent space."""
    model = run.pipeline.generative
    y = torch.arange(N) % len(run.class_names)
    samples = images_of(run, model.mixture.sample(y, 1.0, torch.Generator().manual_seed(0)).detach())
    z = latents(run, test.x)
    first, second = pairs(test.y, N)
    middles = images_of(run, (z[first] + z[second]) / 2)
    [shares] = bootstrapped_means(
        {
            "samples_lifelike": 100 * judge.lifelike(samples),
            "samples_of_their_class": 100 * (judge.predicted(samples) == y.numpy()).astype(np.float64),
            "middles_lifelike": 100 * judge.lifelike(middles),
        }
    )
    return Generated(
        gamma=run.config.gamma,
        method=run.config.method,
        samples_lifelike=shares["samples_lifelike"].value,
        samples_of_their_class=shares["samples_of_their_class"].value,
        middles_lifelike=shares["middles_lifelike"].value,
        **offsets(model, z, test.y),
        intervals=intervals_of(shares),
    )


@torch.no_grad()
def offsets(model: GenerativeClassifier, z: Tensor, y: Labels) -> dict[str, float]:
    """The distances of `Generated`."""
    mu = model.mixture.mu.detach()
    members = [z[torch.from_numpy(np.flatnonzero(y == k))] for k in range(len(mu))]
    offset = [float((m.mean(0) - mu[k]).norm()) for k, m in enumerate(members)]
    chance = [float(m.var(0).sum() / len(m)) ** 0.5 for m in members]
    return {
        "offset": float(np.mean(offset)),
        "offset_by_chance": float(np.mean(chance)),
        "mu_apart": float(torch.pdist(mu).mean()),
        "sq_distance_per_dim": float(np.mean([(m - mu[k]).square().mean() for k, m in enumerate(members)])),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("judge", type=Path)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    run = load_run(options.judge)
    dataset = load(run.config.data)
    judge, test = Judge(run, dataset), read_test(run, dataset)
    with torch.no_grad():
        rows = {folder.name: generation(load_run(folder), test, judge) for folder in options.runs}
        real = judge.lifelike(test.x)
    write_comparison(options.out, Generation(N, options.judge.name, 100 * float(real.mean()), rows))
    for name, row in rows.items():
        print(
            f"{name}: samples {row.samples_lifelike:.1f} %, middles {row.middles_lifelike:.1f} % lifelike"
        )


if __name__ == "__main__":
    main()
