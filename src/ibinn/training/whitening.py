"""The start of training: white images, means close to linear discriminant analysis (LDA), summaries of images."""

import math

import numpy as np
import torch
from torch import Tensor, nn

from ibinn._types import Array, Labels, Rows
from ibinn.data.dataset import Dataset
from ibinn.flows.base import Bijection, Chain
from ibinn.flows.coupling import AffineCoupling
from ibinn.flows.factor_out import FactorOut
from ibinn.flows.mixing import ActNorm, AffineMix
from ibinn.flows.subnets import SummarySubnet
from ibinn.mixture import separated_means
from ibinn.models.classifier import evaluation_mode
from ibinn.models.methods import Classifier
from ibinn.models.pipeline import Pipeline, chunks

DISTANCE_OF_SUMMARIES = 3.0  # of the means, at the start
MAX_VALUES = 20_000_000  # of the images used: half a gigabyte for their covariance


@torch.no_grad()
def start_from_lda(pipeline: Pipeline, dataset: Dataset, rows: Rows) -> None:
    """Whiten images in the flow, as the preprocessing whitens tables; then set each mean to its class average."""
    if dataset.is_images:
        n = max(100, MAX_VALUES // math.prod(dataset.shape))
        rows = np.sort(np.random.default_rng(0).permutation(rows)[:n])
    x, y = dataset.train.x[rows], dataset.train.y[rows]
    if dataset.is_images:
        whiten_flow(pipeline, x)
    set_means_to_class_averages(pipeline, x, y)


def whiten_flow(pipeline: Pipeline, images: Array) -> None:
    """Set mixes and scales of the flow so that these images leave every resolution white.

    The first mix at each resolution is set from the principal components of its channels, and the scale of each
    feature behind the cosine transform from its deviation. The couplings start close to the identity, so that the
    whole flow starts close to the best Gaussian that such a chain can represent.
    """
    flow = pipeline.model.flow
    if not isinstance(flow, Chain):
        return
    with evaluation_mode(flow):
        whiten_chain(flow, noisy_batches(pipeline, images))


def whiten_chain(chain: Chain, batches: list[Tensor]) -> None:
    """`whiten_flow` for the layers of a chain, whose inputs are these batches."""
    n_channels = 0  # of the last mix
    for layer in chain.layers:
        if isinstance(layer, ActNorm) or (isinstance(layer, AffineMix) and layer.n_channels != n_channels):
            n_channels = layer.n_channels
            layer.start_from(torch.cat(batches))
        if isinstance(layer, FactorOut):
            assert isinstance(layer.rest, Chain)
            whiten_chain(layer.rest, [layer.passed_on(batch) for batch in batches])
            return
        batches = [layer(batch)[0] for batch in batches]


def noisy_batches(pipeline: Pipeline, raw: Array) -> list[Tensor]:
    """The inputs, normalised, with the noise of training."""
    generator = torch.Generator(pipeline.device)
    return [pipeline.noisy(chunk, generator.manual_seed(seed)) for seed, chunk in chunks(raw, 500)]


def set_means_to_class_averages(pipeline: Pipeline, x: Array, y: Labels) -> None:
    """Set each learned mean to the average latent code of its class.

    With whitened rows and a flow that starts close to a rotation, this is linear discriminant analysis.
    """
    model = pipeline.model
    if model.mixture is None or not isinstance(model.mixture.mu, nn.Parameter):
        return
    with evaluation_mode(model):
        z = torch.cat([model.encode(batch)[0] for batch in noisy_batches(pipeline, x)])
    for k in np.unique(y).tolist():
        model.mixture.mu[k] = z[torch.from_numpy(y == k).to(z.device)].mean(0)


@torch.no_grad()
def start_summaries(pipeline: Pipeline) -> None:
    """Prepare the couplings with a summary: what they summarise is the image, and the means differ for them alone.

    The class averages of all other values say little about the class at first, and hold much noise.
    """
    sequences = [m for m in pipeline.model.modules() if isinstance(m, Chain | nn.Sequential)]
    for sequence in sequences:
        layers = list(sequence.layers if isinstance(sequence, Chain) else sequence)
        for position, layer in enumerate(layers):
            subnet = getattr(layer, "subnet", None)
            if isinstance(subnet, SummarySubnet):
                subnet.start_from(image_of_channels(layers[:position], pipeline, subnet.reduction))
                if isinstance(layer, AffineCoupling):
                    separate_summaries(pipeline.model, layer, subnet.n_summary)


def image_of_channels(layers: list[nn.Module], pipeline: Pipeline, reduction: int) -> Tensor:
    """The matrix (n, n) that maps the channels of a pixel behind these layers to the image.

    At the start, the layers map each patch of `reduction` x `reduction` pixels linearly to one pixel, up to a
    constant. The values of a patch are in the order of PixelShuffle.
    """
    n_channels, height, width = pipeline.preprocess.shape  # type: ignore[misc]  # of images
    n = n_channels * reduction**2
    patches = torch.cat([torch.zeros(1, n), torch.eye(n)]).to(pipeline.device, pipeline.dtype)
    images = patches.new_zeros(n + 1, n_channels, height, width)
    images[:, :, :reduction, :reduction] = patches.view(n + 1, n_channels, reduction, reduction)
    with evaluation_mode(pipeline.model):
        for layer in layers:
            images = layer(images)[0] if isinstance(layer, Bijection) else layer(images)
    channels = images[:, :, 0, 0].cpu().double()
    image: Tensor = torch.linalg.inv((channels[1:] - channels[0]).T)
    return image


def separate_summaries(model: Classifier, coupling: AffineCoupling, n_summary: int) -> None:
    """Let the class means differ in the values that the summary shifts, and nowhere else."""
    mu = None if model.mixture is None else model.mixture.mu
    if isinstance(mu, nn.Parameter):
        first = mu.shape[1] // coupling.n_channels * coupling.n_passive
        mu[:] = mu.mean(0)
        mu[:, first:] = 0
        means = separated_means(len(mu), n_summary, DISTANCE_OF_SUMMARIES)
        mu[:, first : first + n_summary] = means.to(mu)
