"""The data on its way to the model: preprocessing, training batches, the validation split."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ibinn._types import Rows
from ibinn.config import ConfigError, Recipe, RunConfig
from ibinn.data.augment import Augmentation, augment
from ibinn.data.batches import Batches, Source
from ibinn.data.dataset import Dataset, data_digest
from ibinn.data.preprocess import ImagePreprocess, Preprocess, TablePreprocess
from ibinn.data.splits import Splits
from ibinn.formats import finite_or_none
from ibinn.models.architectures import n_halvings
from ibinn.models.classifier import evaluation_mode
from ibinn.models.methods import Batch, Classifier, Objective, build_model
from ibinn.models.pipeline import Pipeline, chunks
from ibinn.run.facts import Validation
from ibinn.run.folder import default_dtype
from ibinn.training.distributed import SINGLE_PROCESS, Team
from ibinn.training.options import TrainingOptions
from ibinn.training.whitening import start_from_lda, start_summaries

LARGEST_INPUT = 2**16  # values per input: the dense part of the network and the means grow with them


class TrainingData:
    """The training and validation examples of a run, as its model sees them."""

    def __init__(
        self,
        pipeline: Pipeline,
        config: RunConfig,
        dataset: Dataset,
        splits: Splits,
        options: TrainingOptions,
    ) -> None:
        self.pipeline, self.config, self.dataset, self.splits = pipeline, config, dataset, splits
        self.n_dims, self.digest = pipeline.preprocess.n_dims, data_digest(dataset)
        batch_size = min(config.recipe.batch_size, len(splits.train))
        check_micro_batches(batch_size, options)
        rank, n_ranks = options.team.rank, options.team.n
        self.batches = Batches(
            splits.train, batch_size, config.seed, drop_last=True, rank=rank, n_ranks=n_ranks
        )

    def objective(self, model: Classifier, smoothing: float) -> Objective:
        """The loss of this run's method for a model."""
        return Objective(model, self.config.method, self.config.gamma, self.n_dims, smoothing)

    def fetch(self, rows: Rows, source: Source) -> Batch:
        """Training examples: augmented, with noise, normalised."""
        recipe, preprocess = self.config.recipe, self.pipeline.preprocess
        x = preprocess.to_units(self.dataset.train.x[rows])
        if self.dataset.levels is not None:
            step = 1 / self.dataset.levels
            x = augment(x, source, augmentation_of(recipe), 1 - step, step)
        v, log_det = self.pipeline.normalised(preprocess.add_noise(x, source))
        return Batch(v, log_det, self.labels(rows))

    def labels(self, rows: Rows) -> Tensor:
        return torch.from_numpy(self.dataset.train.y[rows]).to(self.pipeline.device)

    @torch.no_grad()
    def validate(self, model: Classifier, team: Team = SINGLE_PROCESS) -> Validation:
        """Means over the validation split, without label smoothing, with fixed noise. A team shares the work."""
        objective = self.objective(model, smoothing=0.0)
        totals, n = np.zeros(4), 0
        with evaluation_mode(objective):
            for _, rows in chunks(self.splits.validation[team.rank :: team.n], 500):
                v, log_det = self.pipeline.prepared(self.dataset.train.x[rows])
                losses = objective(v, log_det, self.labels(rows))
                totals += [float(values.cpu().double().sum()) for values in losses]
                n += len(rows)
        *sums, n_all = team.sum([*totals, n])
        loss, loss_x, loss_y, wrong = (total / n_all for total in sums)
        return Validation(
            loss=finite_or_none(loss),
            loss_x=finite_or_none(loss_x),
            loss_y=finite_or_none(loss_y),
            error=100 * wrong,
            bits_per_dim=finite_or_none(self.bits_per_dim(model, loss_x)),
        )

    def bits_per_dim(self, model: Classifier, loss_x: float) -> float | None:
        if not model.has_density:
            return None
        log_q_x = self.pipeline.preprocess.log_scale - self.n_dims * loss_x
        bits = self.pipeline.bits_per_dim(np.array([log_q_x]))
        return None if bits is None else float(bits[0])

    def inputs(self) -> Iterator[Tensor]:
        """The training set in batches without augmentation, shuffled since files may be sorted by class."""
        shuffled = np.random.default_rng(self.config.seed).permutation(self.splits.train)
        for _, rows in chunks(shuffled, 500):
            if len(rows) > 1:
                yield self.pipeline.prepared(self.dataset.train.x[rows])[0]


def build_pipeline(config: RunConfig, dataset: Dataset, rows: Rows, device: str = "cpu") -> Pipeline:
    """The preprocessing fitted to these rows, and the model before its first training step."""
    check_against_data(config, dataset)
    with default_dtype(torch.float32 if dataset.is_images else torch.float64):
        preprocess = fit_preprocess(config, dataset, rows)
        priors = class_weights(config, dataset, rows)
        model = build_model(config, preprocess.shape, len(dataset.class_names), priors)
    pipeline = Pipeline(preprocess, model).to(device)
    if config.recipe.normalise == "whiten":
        start_from_lda(pipeline, dataset, rows)
    start_summaries(pipeline)
    return pipeline


def fit_preprocess(config: RunConfig, dataset: Dataset, rows: Rows) -> Preprocess:
    x, recipe = dataset.train.x, config.recipe
    if dataset.levels is None:
        return TablePreprocess.fit(x[rows], dataset.train.y[rows] if recipe.normalise == "whiten" else None)
    return ImagePreprocess.fit(
        x,
        dataset.levels,
        recipe.noise,
        recipe.sigma,
        multiple=2 ** n_halvings(config.network, x.shape[3]),
        equalise=recipe.normalise == "equalise",
        rows=rows,  # a few at a time: the whole may not fit into memory
    )


def augmentation_of(recipe: Recipe) -> Augmentation:
    return Augmentation(recipe.flip, recipe.crop, recipe.rotation, recipe.jitter, recipe.cutout)


def class_weights(config: RunConfig, dataset: Dataset, rows: Rows) -> Any:
    """Initial p(y), (K,); None for equal weights."""
    if config.priors == "data":
        return class_shares(dataset, rows)
    return config.priors if isinstance(config.priors, tuple) else None


def class_shares(dataset: Dataset, rows: Rows) -> Any:
    """The share of each class among these rows, (K,). An absent class counts as a single example."""
    counts = np.bincount(dataset.train.y[rows], minlength=len(dataset.class_names)).clip(1)
    return counts / counts.sum()


def check_micro_batches(batch_size: int, options: TrainingOptions) -> None:
    """Raise ConfigError unless every process has an example in each of its micro-batches."""
    n_processes, accumulate = options.team.n, options.accumulate
    if batch_size < n_processes * accumulate:
        raise ConfigError(
            f"a batch of {batch_size} cannot be split into {n_processes * accumulate} parts ({n_processes} "
            f"processes with {accumulate} micro-batches each); use fewer, or a larger recipe.batch_size"
        )


def check_against_data(config: RunConfig, dataset: Dataset) -> None:
    """Raise ConfigError for settings that do not suit the data."""
    recipe, n_values = config.recipe, math.prod(dataset.shape)
    if n_values > LARGEST_INPUT:
        raise ConfigError(
            f"{config.data} has {n_values} values per input but the network takes {LARGEST_INPUT} at most; "
            f"make the images smaller, say 64 x 64 pixels"
        )
    if not dataset.is_images:
        if config.precision == "bf16":
            raise ConfigError("tables are computed in float64; leave out --precision bf16")
        if recipe.normalise == "equalise":
            raise ConfigError("only images can be equalised; for a table use recipe.normalise=whiten")
        return
    if not config.network.blocks:
        raise ConfigError(
            "images need at least one resolution in network.blocks, as in network.blocks=[4,4]"
        )
    augmentation_of(recipe)
    if recipe.crop >= min(dataset.shape[:2]):
        raise ConfigError(f"crop is {recipe.crop} but the images are only {dataset.shape[:2]} pixels")
