"""Where training starts with recipe.normalise = "whiten": close to the best linear model of the data."""

import math

import numpy as np
import torch
from torch import Tensor, nn

from ibinn._types import Array, Rows
from ibinn.data.dataset import Part
from ibinn.data.preprocess import ImagePreprocess
from ibinn.flows.base import Chain
from ibinn.flows.mixing import ActNorm, AffineMix
from ibinn.models.classifier import GenerativeClassifier, evaluation_mode
from ibinn.models.pipeline import Pipeline, chunks

MOST_VALUES = 20_000_000  # of the images that are looked at: half a gigabyte for their covariance


@torch.no_grad()
def start_white(pipeline: Pipeline, part: Part, rows: Rows) -> None:
    """Images are whitened by the flow, as rows were by the preprocessing; then the means go to their classes."""
    if isinstance(pipeline.preprocess, ImagePreprocess):
        n = max(100, MOST_VALUES // math.prod(part.x.shape[1:]))
        rows = np.sort(np.random.default_rng(0).permutation(rows)[:n])
        start_flow(pipeline, part.x[rows])
    start_means(pipeline, part, rows)


def start_flow(pipeline: Pipeline, images: Array) -> None:
    """Choose what mixes and scales the channels so that images like these leave every resolution white.

    That is done by the first mix at each resolution, from the principal components of its channels, and by the
    scale of each feature behind the cosine transform. The couplings start close to the identity, so that
    the whole starts close to the best Gaussian that such a chain can have.
    """
    flow = next((module for module in pipeline.modules() if isinstance(module, Chain)), None)
    if flow is None:  # a plain classifier
        return
    n_channels = 0  # of the last mix
    with evaluation_mode(flow):
        batches = [noisy(pipeline, some, seed) for seed, some in chunks(images, 500)]
        for layer in flow.layers:
            if isinstance(layer, ActNorm) or (
                isinstance(layer, AffineMix) and layer.n_channels != n_channels
            ):
                n_channels = layer.n_channels
                layer.start_from(torch.cat(batches))
            batches = [layer(batch)[0] for batch in batches]


def noisy(pipeline: Pipeline, images: Array, seed: int) -> Tensor:
    """Normalised, with the noise of training."""
    return pipeline.noisy(images, torch.Generator(pipeline.device).manual_seed(seed))


def start_means(pipeline: Pipeline, part: Part, rows: Rows) -> None:
    """Put the means, where they are learned, on those of the classes' latents.

    Whitened rows and a flow that starts close to a rotation make this linear discriminant analysis.
    """
    model = pipeline.model
    if not isinstance(model, GenerativeClassifier) or not isinstance(model.mixture.mu, nn.Parameter):
        return
    with evaluation_mode(model):
        batches = [noisy(pipeline, part.x[some], seed) for seed, some in chunks(rows, 500)]
        z = torch.cat([model.encode(batch)[0] for batch in batches])
    for k in np.unique(part.y[rows]).tolist():
        model.mixture.mu[k] = z[torch.from_numpy(part.y[rows] == k).to(z.device)].mean(0)
