"""What is fitted once, after training: latent references, temperature, OoD scores. Nothing is trained again.

References and temperature use the training and the validation split, the p-values the calibration split.
"""

import math
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ibinn._types import Floats, Labels, Progress, Rows
from ibinn.data.dataset import Dataset
from ibinn.data.splits import Splits
from ibinn.formats import finite_or_none
from ibinn.metrics.classification import brier, log_loss, wrong
from ibinn.metrics.temperature import useful_temperature
from ibinn.models.classifier import evaluation_mode
from ibinn.models.latent_reference import LatentNoise, fit_latent_reference
from ibinn.models.output import Output
from ibinn.models.pipeline import Pipeline, chunks
from ibinn.ood.scores import Reference, fit_reference, observe
from ibinn.run.facts import HeldOut

BATCH_SIZE = 500


def fit_after_training(
    pipeline: Pipeline, dataset: Dataset, splits: Splits, progress: Progress | None = None
) -> tuple[Reference, HeldOut]:
    """Fit everything that a trained pipeline needs to be used.

    Parameters
    ----------
    pipeline : Pipeline
        Gets its latent references and its temperature.
    dataset : Dataset
        The data that it was trained on; only the training part is used.
    splits : Splits
        The rows for training, validation and calibration.
    progress : callable, optional
        Called with the number of inputs done and their total.

    Returns
    -------
    reference : Reference
        The constants of the OoD scores, and the calibration scores.
    held_out : HeldOut
        The numbers of the model on the calibration split.
    """
    n_codes = len(noises_of(pipeline)) * (len(splits.train) + len(splits.validation))
    count = Counter(progress, n_codes + len(splits.validation) + len(splits.calibration))
    fit_latent_references(pipeline, dataset, splits, count)
    return fit_scores(pipeline, dataset, splits, count)


def fit_scores(
    pipeline: Pipeline, dataset: Dataset, splits: Splits, count: "Counter"
) -> tuple[Reference, HeldOut]:
    """What the calibrated probabilities of the pipeline need, and what `fit_after_training` returns."""
    x, y = dataset.train.x, dataset.train.y
    validation = observe(pipeline, x[splits.validation], BATCH_SIZE, count.from_here())
    log_w = None if pipeline.log_w is None else pipeline.log_w.cpu().double().numpy()
    pipeline.temperature = useful_temperature(validation.log_q_y, y[splits.validation], log_w)
    pipeline.farthest = farthest_distance(validation)
    calibration = observe(pipeline, x[splits.calibration], BATCH_SIZE, count.from_here())
    y_calibration = y[splits.calibration]
    reference = fit_reference(validation, calibration, pipeline.preprocess.n_dims, y_calibration)
    return reference, held_out_numbers(calibration.log_p_y, y_calibration)


def farthest_distance(validation: Output[Floats]) -> float:
    """The largest finite |z - mu|^2 of these inputs, for `Pipeline.farthest`; inf without any above 0."""
    if validation.sq_distance is None:
        return math.inf
    finite = validation.sq_distance[np.isfinite(validation.sq_distance)]
    return float(finite.max(initial=0)) or math.inf


def noises_of(pipeline: Pipeline) -> tuple[LatentNoise, ...]:
    """The kinds of noise to fit a latent reference for; none without a density, one without noise."""
    if not pipeline.model.has_density:
        return ()
    return ("bank",) if pipeline.preprocess.noise is None else ("bank", "drawn")


def fit_latent_references(pipeline: Pipeline, dataset: Dataset, splits: Splits, count: "Counter") -> None:
    """Set the latent references of the pipeline, from inputs without augmentation."""
    pipeline.references.clear()
    for noise in noises_of(pipeline):
        codes = partial(latent_codes, pipeline, dataset, noise=noise, count=count)
        with evaluation_mode(pipeline):
            fitted = fit_latent_reference(
                partial(codes, splits.train),
                partial(codes, splits.validation),
                pipeline.generative.mixture,
            )
        if fitted is not None:
            pipeline.references[noise] = fitted.to(pipeline.device)


@torch.no_grad()
def latent_codes(
    pipeline: Pipeline, dataset: Dataset, rows: Rows, noise: LatentNoise, count: "Counter"
) -> Iterator[tuple[Tensor, Tensor]]:
    """z and y of these rows of the training part, in batches and in an order without structure."""
    generator = None if noise == "bank" else torch.Generator(pipeline.device).manual_seed(0)
    for _, some in chunks(np.random.default_rng(0).permutation(rows), BATCH_SIZE):
        z = pipeline.codes(dataset.train.x[some], generator, is_local=noise == "drawn")
        yield z, torch.from_numpy(dataset.train.y[some])
        count.add(len(some))


class Counter:
    """Counts the inputs of several passes over the data."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.progress, self.total, self.done = progress, total, 0

    def add(self, n: int) -> None:
        self.done += n
        if self.progress:
            self.progress(self.done, self.total)

    def from_here(self) -> Progress:
        """A callback for one more pass, which counts from 0."""
        start = self.done

        def update(done: int, _: int | None) -> None:
            self.add(start + done - self.done)

        return update


def held_out_numbers(log_p_y: Floats, y: Labels) -> HeldOut:
    """The numbers of a model on its calibration split."""
    return HeldOut(
        error=finite_or_none((100 * wrong(log_p_y, y)).mean()),
        nll_y=finite_or_none(log_loss(log_p_y, y).mean()),
        brier=finite_or_none(brier(log_p_y, y).mean()),
    )
