"""The latent space of a model: encode, decode, sample and interpolate, and the arrays that figures of it show."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ibinn._types import Array, Floats, Labels
from ibinn.config import Latent
from ibinn.data.dataset import Part
from ibinn.inference.judge import judge
from ibinn.mixture import GaussianMixture
from ibinn.models.pipeline import Pipeline
from ibinn.ood.drift import DRIFTS, drifted, usual_drifts
from ibinn.run.trained import Run

REDRAWS = 5  # of a sample that is far out of range
Axes = tuple[Tensor, Tensor]  # origin (D,) and two orthonormal directions (2, D)


@torch.no_grad()
def encode(
    pipeline: Pipeline,
    raw: Array,
    noise: torch.Generator | None = None,
    batch_size: int = 500,
    is_local: bool = False,
) -> Tensor:
    """z (N, D) of raw (N, ...); is_local as for `Pipeline.codes`.

    With `noise` each input gets its own draw of the noise; otherwise all share one draw, which shifts all z alike.
    """
    starts = range(0, max(1, len(raw)), batch_size)
    parts = [pipeline.codes(raw[start : start + batch_size], noise, is_local) for start in starts]
    return torch.cat(parts)


def decode(pipeline: Pipeline, z: Tensor, batch_size: int = 500, is_local: bool = False) -> Array:
    """Raw inputs of z (N, D): images (N, H, W, C), clipped to their levels, or rows."""
    parts = [to_units(pipeline, some, is_local) for some in torch.split(z, batch_size)]
    return np.concatenate([pipeline.preprocess.to_raw(x) for x in parts])


@torch.no_grad()
def to_units(pipeline: Pipeline, z: Tensor, is_local: bool = False) -> Tensor:
    """z (N, D) -> x: images (N, C, H', W') in pixel units, not clipped, or rows.

    is_local: z is from the flow without its summaries.
    """
    model = pipeline.generative
    return pipeline.preprocess.inverse(model.local_flow.inverse(z) if is_local else model.decode(z))


class Samples(NamedTuple):
    """Raw inputs drawn from a model, their classes (N,), and which of them are far out of range (N,).

    Far out of range are images with a pixel outside of [0, 1) by more than 1, and rows that are not finite.
    """

    raw: Array
    y: Labels
    is_out_of_range: NDArray[np.bool_]


def sample(
    pipeline: Pipeline,
    n: int,
    generator: torch.Generator,
    y: int | Tensor | None = None,
    temperature: float = 1.0,
    latent: Latent = "fitted",
    batch_size: int = 500,
) -> Samples:
    """Draw inputs from a model: z ~ N(m_y, temperature^2 Sigma), decoded.

    A sample that is far out of range is no possible input, so it is drawn again, at most REDRAWS times: samples
    come from the part of the distribution that decodes to possible inputs. Far from the data the inverse of a flow
    may grow without bound. So is a sample whose own summary says that it is of another class, if the model has
    summaries: what is drawn does not include them.

    Parameters
    ----------
    pipeline : Pipeline
        With a density.
    n : int
        Number of samples.
    generator : torch.Generator
    y : int or Tensor of shape (n,), optional
        One class, or the class of each sample; by default drawn with the class weights.
    temperature : float
        Factor of the deviation from the class mean; 0 gives the means.
    latent : {"fitted", "mixture"}
        "fitted" draws from where the latent codes of the training set lie, see `LatentReference`. "mixture" draws
        from N(mu_y, temperature^2 I), the Gaussians that the model was trained towards, once, as in the paper. So
        does "fitted" for a model without a reference.
    batch_size : int
        Number of samples to decode at once.

    Returns
    -------
    Samples
    """
    mixture, preprocess = pipeline.generative.mixture, pipeline.preprocess
    if y is None:
        labels = mixture.sample_labels(n, generator)
    else:
        labels = torch.as_tensor(y, device=pipeline.device).expand(n)
    fitted = pipeline.reference("drawn") if latent == "fitted" else None
    source, is_images = mixture if fitted is None else fitted, preprocess.levels is not None

    def drawn(y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x, which of it are far out of range, and which have to be drawn again."""
        z = source.sample(y, temperature, generator).detach()
        pairs = zip(torch.split(z, batch_size), torch.split(y, batch_size), strict=True)
        parts = [decoded(pipeline, *pair, is_local=fitted is not None) for pair in pairs]
        x, is_of_class = (torch.cat(part) for part in zip(*parts, strict=True))
        is_out = out_of_range(x, is_images)
        return x, is_out, is_out | ~is_of_class

    x, is_out, is_refused = drawn(labels)
    for _ in range(0 if fitted is None else REDRAWS):
        rows = is_refused.nonzero()[:, 0]
        if len(rows):
            x[rows], is_out[rows], is_refused[rows] = drawn(labels[rows])
    return Samples(preprocess.to_raw(x), labels.cpu().numpy(), is_out.cpu().numpy())


@torch.no_grad()
def decoded(pipeline: Pipeline, z: Tensor, y: Tensor, is_local: bool) -> tuple[Tensor, Tensor]:
    """z (N, D) as `to_units`, and whether the summaries, if there are any, allow the classes y (N,)."""
    model = pipeline.generative
    local = model.local_flow if is_local else model.flow
    v = local.inverse(z)
    x = pipeline.preprocess.inverse(v)
    if local is model.flow:
        return x, torch.ones_like(y, dtype=torch.bool)
    return x, model.mixture.logits(model.flow(v)[0]).argmax(1) == y


def out_of_range(x: Tensor, is_images: bool) -> Tensor:
    """Which of x (N, ...) are far out of range, (N,); see `Samples`."""
    fine = (x >= -1) & (x <= 2) if is_images else x.isfinite()
    return ~fine.flatten(1).all(1)


def interpolate(pipeline: Pipeline, a: Array, b: Array, steps: int = 9) -> Array:
    """(steps, ...): inputs on the line between the z of a and that of b; the ends are a and b themselves."""
    start, end = encode(pipeline, np.stack([a, b]), is_local=True)
    between = torch.lerp(start, end, torch.linspace(0, 1, steps).to(start)[:, None])
    inputs = decode(pipeline, between, is_local=True)
    inputs[0], inputs[-1] = a, b
    return inputs


def latent_axes(mixture: GaussianMixture, z: Tensor) -> Axes:
    """The two principal axes of the means; with two classes, the second is that of z orthogonal to the first."""
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


def on_axes(z: Tensor, axes: Axes) -> Floats:
    """z (N, D) projected on the axes, (N, 2)."""
    origin, directions = axes
    points: Floats = ((z - origin) @ directions.T).cpu().double().numpy()
    return points


def latent_arrays(run: Run, test: Part, batch_size: int = 500, seed: int = 0) -> dict[str, Array]:
    """Latent layout; for images also samples, interpolations and one trajectory. Empty without a density.

    Inputs whose z is not finite, which gamma = inf allows, are left out.
    """
    if not run.pipeline.model.has_density:
        return {}
    pipeline, mixture = run.pipeline, run.pipeline.generative.mixture
    some = test.take(np.random.default_rng(seed).permutation(len(test))[:2000])
    axes = latent_axes(mixture, encode(pipeline, some.x[:batch_size]))
    noise = torch.Generator(pipeline.device).manual_seed(seed)
    points, mu = (
        on_axes(encode(pipeline, some.x, noise, batch_size), axes),
        on_axes(mixture.mu.detach(), axes),
    )
    finite = np.isfinite(points).all(1)
    some = some.take(np.flatnonzero(finite))
    if not len(some) or not np.isfinite(mu).all():
        return {}
    arrays: dict[str, Array] = {"latent/points": points[finite], "latent/y": some.y, "latent/mu": mu}
    if pipeline.preprocess.levels is not None:
        arrays["samples"] = class_samples(pipeline, batch_size, seed)
        if pairs := pairs_of_classes(some.y):
            ways = [interpolate(pipeline, some.x[i], some.x[j]) for i, j in pairs]
            arrays["interpolations"] = np.stack(ways)
        arrays |= trajectory(run, some, axes, seed)
    return arrays


def class_samples(pipeline: Pipeline, batch_size: int, seed: int, n: int = 10) -> Array:
    """(K, n, H, W, C): n samples of each class."""
    n_classes = pipeline.generative.mixture.n_classes
    generator = torch.Generator(pipeline.device).manual_seed(seed)
    y = torch.arange(n_classes).repeat_interleave(n)
    images = sample(pipeline, len(y), generator, y, batch_size=batch_size).raw
    return images.reshape(n_classes, n, *images.shape[1:])


def pairs_of_classes(y: Labels, n: int = 3) -> list[tuple[int, int]]:
    """Up to n pairs of inputs, of the classes 0 and 1, 2 and 3, ...: the first of each."""
    firsts = [int(np.flatnonzero(y == k)[0]) for k in np.unique(y)]
    return list(zip(firsts[::2], firsts[1::2], strict=False))[:n]


def trajectory(run: Run, some: Part, axes: Axes, seed: int, steps: int = 7) -> dict[str, Array]:
    """The first image on its way out of the data: colours rotated by up to 180 degrees, or grey values inverted.

    amount is in degrees for colour and in percent for grey; p are the p-values of the headline score.
    """
    levels, kind = run.pipeline.preprocess.levels, usual_drifts(some.x.shape[-1])[0]
    assert levels is not None
    images = drifted(some.x[0], levels, kind, steps, seed)
    points = on_axes(encode(run.pipeline, images), axes)
    if not np.isfinite(points).all():
        return {}
    return {
        "trajectory/images": images,
        "trajectory/points": points,
        "trajectory/amount": np.linspace(0, DRIFTS[kind].most, steps),
        "trajectory/p": judge(run, images).p_values[run.reference.headline],
        "trajectory/y": some.y[0],
    }
