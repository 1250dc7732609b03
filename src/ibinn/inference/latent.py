"""What a model looks like inside: its latent space, what it thinks its classes look like, the ways between them.

Arrays for figures, levels 0 to levels - 1 for images; nothing is drawn here.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ibinn._types import Array
from ibinn.data.dataset import Part
from ibinn.data.preprocess import ImagePreprocess
from ibinn.mixture import GaussianMixture
from ibinn.models.classifier import GenerativeClassifier
from ibinn.models.pipeline import Pipeline, chunks
from ibinn.ood.drift import DRIFTS, drifted, usual_drifts
from ibinn.ood.scores import observe, ood_scores, p_values
from ibinn.run.trained import Run

Axes = tuple[Tensor, Tensor]  # origin (D,) and two orthonormal directions (2, D)


def explore(run: Run, test: Part, batch_size: int = 500, seed: int = 0) -> dict[str, Array]:
    """Latent layout, samples, interpolations and one trajectory, as far as model and data have them.

    Inputs whose z is not finite, as gamma = inf allows, are left out.
    """
    model, preprocess = run.pipeline.model, run.pipeline.preprocess
    if not isinstance(model, GenerativeClassifier):
        return {}
    rows = np.random.default_rng(seed).permutation(len(test))[:2000]
    some = test.take(rows)
    axes = latent_axes(model.mixture, encoded(run.pipeline, some.x[:batch_size]))
    noise = torch.Generator(run.pipeline.device).manual_seed(seed)
    points = projected(run.pipeline, some.x, axes, batch_size, noise)
    finite = np.isfinite(points).all(1)
    some = some.take(np.flatnonzero(finite))
    mu = on_axes(model.mixture.mu.detach(), axes)
    if not len(some) or not np.isfinite(mu).all():
        return {}
    arrays: dict[str, Array] = {"latent/points": points[finite], "latent/y": some.y, "latent/mu": mu}
    if isinstance(preprocess, ImagePreprocess):
        arrays["samples"] = class_samples(run.pipeline, len(run.class_names), batch_size, seed)
        if pairs := pairs_of_classes(some.y):
            arrays["interpolations"] = np.stack(
                [interpolation(run.pipeline, some.x[i], some.x[j]) for i, j in pairs]
            )
        arrays |= trajectory(run, preprocess, some, axes, seed)
    return arrays


@torch.no_grad()
def encoded(pipeline: Pipeline, raw: Array, noise: torch.Generator | None = None) -> Tensor:
    """z (N, D), of a batch. With `noise` each input has a draw of its own; else all share one, which shifts z."""
    model = pipeline.model
    assert isinstance(model, GenerativeClassifier)
    return model.encode(pipeline.prepared(raw)[0] if noise is None else pipeline.noisy(raw, noise))[0]


def projected(
    pipeline: Pipeline,
    raw: Array,
    axes: Axes,
    batch_size: int = 500,
    noise: torch.Generator | None = None,
) -> NDArray[np.float64]:
    """(N, 2), a batch at a time."""
    parts = [on_axes(encoded(pipeline, chunk, noise), axes) for _, chunk in chunks(raw, batch_size)]
    return np.concatenate(parts)


def on_axes(z: Tensor, axes: Axes) -> NDArray[np.float64]:
    origin, directions = axes
    points: NDArray[np.float64] = ((z - origin) @ directions.T).cpu().double().numpy()
    return points


def latent_axes(mixture: GaussianMixture, z: Tensor) -> Axes:
    """The two principal axes of the means; with two classes the second is that of z across the first."""
    mu = mixture.mu.detach()
    origin = mu.mean(0)
    z = z[z.isfinite().all(1)]
    directions = torch.linalg.svd(mu - origin, full_matrices=False).Vh[:2]
    if len(mu) == 2 and mu.shape[1] > 1 and len(z):
        first = directions[:1]
        across = (z - z.mean(0)) - (z - z.mean(0)) @ first.T @ first
        directions = torch.cat([first, torch.linalg.svd(across, full_matrices=False).Vh[:1]])
    if len(directions) == 1:  # a table of one column
        directions = torch.cat([directions, torch.zeros_like(directions)])
    return origin, directions


@torch.no_grad()
def unclipped(pipeline: Pipeline, z: Tensor) -> Tensor:
    """Images of z (N, D) in pixel units (N, C, H, W), wherever they lie; or rows."""
    model = pipeline.model
    assert isinstance(model, GenerativeClassifier)
    return pipeline.preprocess.inverse(model.decode(z))


def strays(x: Tensor) -> Tensor:
    """(N,): images with a pixel that lies outside of [0, 1) by more than its width, or is no number."""
    return ~((x >= -1) & (x <= 2)).flatten(1).all(1)


def clipped(pipeline: Pipeline, x: Tensor) -> Array:
    """Images (N, H, W, C) in their levels, what is no number being black; or rows."""
    if isinstance(pipeline.preprocess, ImagePreprocess):
        x = x.nan_to_num(0.0, 1.0, 0.0)
    return pipeline.preprocess.to_raw(x)


def decoded(pipeline: Pipeline, z: Tensor) -> Array:
    """Images (N, H, W, C) of z (N, D), clipped to their levels; or rows."""
    return clipped(pipeline, unclipped(pipeline, z))


def calm_temperature(pipeline: Pipeline, seed: int = 0, n: int = 20) -> float:
    """The highest of 1, 0.9, ..., 0.2 at which at most half of n images drawn are strays, or 0.1; 1 for rows."""
    model = pipeline.model
    assert isinstance(model, GenerativeClassifier)
    if not isinstance(pipeline.preprocess, ImagePreprocess):
        return 1.0
    y = torch.arange(n, device=pipeline.device) % len(model.mixture.mu)
    for tenths in range(10, 1, -1):
        generator = torch.Generator(pipeline.device).manual_seed(seed)
        z = model.mixture.sample(y, tenths / 10, generator)
        if strays(unclipped(pipeline, z)).sum() <= n / 2:
            return tenths / 10
    return 0.1


def class_samples(pipeline: Pipeline, n_classes: int, batch_size: int, seed: int, n: int = 10) -> Array:
    """(K, n, H, W, C): n samples of each class."""
    model = pipeline.model
    assert isinstance(model, GenerativeClassifier)
    y = torch.arange(n_classes, device=pipeline.device).repeat_interleave(n)
    generator = torch.Generator(pipeline.device).manual_seed(seed)
    z = model.mixture.sample(y, 1.0, generator)
    images = np.concatenate([decoded(pipeline, part) for part in torch.split(z, batch_size)])
    return images.reshape(n_classes, n, *images.shape[1:])


def pairs_of_classes(y: NDArray[np.int64], n: int = 3) -> list[tuple[int, int]]:
    """Up to n pairs of inputs, of the classes 0 and 1, 2 and 3, ...: the first of each."""
    firsts = [int(np.flatnonzero(y == k)[0]) for k in np.unique(y)]
    return list(zip(firsts[::2], firsts[1::2], strict=False))[:n]


def interpolation(pipeline: Pipeline, a: Array, b: Array, steps: int = 9) -> Array:
    """(steps, H, W, C): images of z on the line from that of a to that of b; the ends are a and b themselves."""
    start, end = encoded(pipeline, np.stack([a, b]))
    images = decoded(pipeline, torch.lerp(start, end, torch.linspace(0, 1, steps).to(start)[:, None]))
    images[0], images[-1] = a, b
    return images


def trajectory(
    run: Run, preprocess: ImagePreprocess, some: Part, axes: Axes, seed: int, steps: int = 7
) -> dict[str, Array]:
    """One image on its way out of the data: colours turned by up to 180 degrees, or grey values inverted.

    amount is in degrees for colour and in percent for grey; p are the p-values of the headline score.
    """
    kind = usual_drifts(some.x.shape[-1])[0]
    images = drifted(some.x[0], preprocess.levels, kind, steps, seed)
    scores = ood_scores(observe(run.pipeline, images), run.reference)
    points = projected(run.pipeline, images, axes)
    if not np.isfinite(points).all():
        return {}
    return {
        "trajectory/images": images,
        "trajectory/points": points,
        "trajectory/amount": np.linspace(0, DRIFTS[kind].most, steps),
        "trajectory/p": p_values(scores, run.reference.calibration)[run.reference.headline],
        "trajectory/y": some.y[0],
    }
