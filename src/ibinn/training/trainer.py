"""From data to a run folder: everything around the loop."""

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ibinn._system import lock
from ibinn._types import Floats, Rows
from ibinn.config import ConfigError, Recipe, RunConfig, to_toml
from ibinn.data.augment import Augmentation, augment
from ibinn.data.batches import Batches, Source
from ibinn.data.dataset import Dataset, Part, data_digest
from ibinn.data.preprocess import ImagePreprocess, Preprocess, TablePreprocess
from ibinn.data.splits import Splits
from ibinn.flows.base import Chain
from ibinn.metrics.classification import brier, log_loss, wrong
from ibinn.models.classifier import evaluation_mode
from ibinn.models.methods import Objective, build_model
from ibinn.models.pipeline import Pipeline, chunks
from ibinn.ood.scores import fit_reference, observe
from ibinn.run import CONFIG, MODEL
from ibinn.run.folder import default_dtype, load_run, read_config, save_run, write_config, write_history
from ibinn.run.state import drop_state, load_state, save_state
from ibinn.run.trained import Run, RunError
from ibinn.training.distributed import ALONE, Team
from ibinn.training.loop import Loop, Position, Validation, Watcher, finite_or_none
from ibinn.training.recipes import halvings
from ibinn.training.refresh_batch_norm import refresh_batch_norm
from ibinn.training.whitening import start_white

LARGEST_INPUT = 2**16  # values per input: the network's dense part and the means grow with them


def train(
    config: RunConfig,
    dataset: Dataset,
    splits: Splits,
    folder: Path,
    watcher: Watcher,
    resume: bool = False,
    device: str = "cpu",
    save_every: float = 30.0,
    constant_memory: bool = False,
    team: Team = ALONE,
    accumulate: int = 1,
    sync_batch_norm: bool = True,
) -> Run | None:
    """Train the model that config describes and write its run folder; with resume, go on where a run stopped.

    constant_memory recomputes the activations of a flow instead of keeping them. A batch is shared by the team
    and worked off in `accumulate` parts. A run may go on with other choices of these. Only the team's writer
    touches the folder and gets the run; to the others it is None.
    """
    if team.from_writer(lambda: is_finished(folder, config, resume)):
        watcher.note(f"the run in {folder} is finished already")
        return load_run(folder, device) if team.is_writer else None
    # Before anything is written: wrong settings leave no trace.
    trainer = Trainer(config, dataset, splits, device)
    if constant_memory:
        trainer.check_flow()
    team.check_same(to_toml(config), "the settings are")
    team.check_same(trainer.digest, f"the data {config.data} is")
    loop = trainer.loop(
        folder if team.is_writer else None, watcher, save_every, team, accumulate, sync_batch_norm
    )
    set_constant_memory(loop.objective, constant_memory)
    with writing(folder, config, team):
        if resume:
            go_on(loop, folder, trainer, watcher, team)
        watcher.note(f"{trainer.n_parameters:,} parameters, {len(splits.train)} training examples")
        if team.n > 1:
            watcher.note(f"{team.n} processes share each batch of {loop.batches.batch_size}")
        loop.run()
        set_constant_memory(loop.objective, False)
        if not team.is_writer:
            return None
        run = trainer.finish(loop)
        save_run(folder, run)
        drop_state(folder)
    return run


@contextlib.contextmanager
def writing(folder: Path, config: RunConfig, team: Team) -> Iterator[None]:
    """The folder begun and locked, by the writer."""
    with contextlib.ExitStack() as stack:

        def begin() -> None:
            if not (folder / CONFIG).exists():
                write_config(folder, config)
            stack.enter_context(locked(folder))

        team.from_writer(begin)
        yield


def set_constant_memory(model: nn.Module, on: bool) -> None:
    for module in model.modules():
        if isinstance(module, Chain):
            module.constant_memory = on


def go_on(loop: Loop, folder: Path, trainer: "Trainer", watcher: Watcher, team: Team) -> None:
    """Load the checkpoint, where there is one; the writer hands it to the others, who may not see the folder."""
    tensors: dict[str, Tensor] = {}

    def read() -> dict[str, Any] | None:
        found = load_state(folder, trainer.config, trainer.digest)
        tensors.update(found[0] if found else {})
        return found[1] if found else None

    position = team.from_writer(read)
    if position is None:
        return
    try:
        loop.load_state(team.named_tensors(tensors), Position(**position))
    except (RuntimeError, KeyError, TypeError) as error:
        raise RunError(
            f"the checkpoint in {folder} does not fit this version of ibinn; delete {folder / 'checkpoint'} to "
            f"start afresh, or use the version that wrote it"
        ) from error
    watcher.note(f"going on in epoch {loop.position.epoch + 1}, batch {loop.position.batch + 1}")


def is_finished(folder: Path, config: RunConfig, resume: bool) -> bool:
    """Whether there is nothing left to train; RunError where the folder holds something else."""
    path = folder / CONFIG
    if not path.is_file():
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise RunError(f"{folder} is no run folder, and not empty; use another --out")
        return False
    if not resume:
        raise RunError(f"{folder} holds a run already; go on with --resume, or use another --out")
    if (there := read_config(path)) != config:
        raise RunError(
            f"{folder} holds a run with other settings ({difference(there, config)}); use another --out"
        )
    return (folder / MODEL).is_file()


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Only one process at a time trains in a folder; where the system has no such locks, nobody looks."""
    with open(folder / CONFIG, "r+b") as file:
        try:
            is_ours = lock(file)
        except ImportError:  # Windows
            is_ours = True
        if not is_ours:
            raise RunError(f"another process is training in {folder}; wait for it, or use another --out")
        yield


def difference(there: Any, here: Any) -> str:
    """The first setting in which two configurations differ."""
    for field in dataclasses.fields(there):
        a, b = getattr(there, field.name), getattr(here, field.name)
        if a != b:
            return (
                difference(a, b) if dataclasses.is_dataclass(a) else f"{field.name} is {a} there, {b} here"
            )
    return "none"


class Trainer:
    """The data of a run on its way to the model."""

    def __init__(self, config: RunConfig, dataset: Dataset, splits: Splits, device: str = "cpu") -> None:
        check_settings(config, dataset)
        self.config, self.dataset, self.splits = config, dataset, splits
        self.digest = data_digest(dataset)
        with default_dtype(torch.float32 if dataset.is_images else torch.float64):
            preprocess = fit_preprocess(config, dataset, splits.train)
            priors = class_weights(config, dataset, splits.train)
            model = build_model(config, preprocess.shape, len(dataset.class_names), priors)
        self.pipeline = Pipeline(preprocess, model).to(device)
        if config.recipe.normalise == "whiten":
            start_white(self.pipeline, dataset.train, splits.train)
        self.n_dims = preprocess.n_dims
        self.n_parameters = sum(p.numel() for p in self.pipeline.parameters())

    def check_flow(self) -> None:
        """Raise ConfigError where there is no flow."""
        if not any(isinstance(module, Chain) for module in self.pipeline.modules()):
            raise ConfigError(
                f"constant memory needs the inverse of a flow, which {self.config.method} has not; leave it out"
            )

    def loop(
        self,
        folder: Path | None,
        watcher: Watcher,
        save_every: float = math.inf,
        team: Team = ALONE,
        accumulate: int = 1,
        sync_batch_norm: bool = True,
    ) -> Loop:
        """Without a folder nothing is written."""
        config, n_train = self.config, len(self.splits.train)
        batch_size = min(config.recipe.batch_size, n_train)
        check_shares(batch_size, team.n, accumulate)
        batches = Batches(
            self.splits.train, batch_size, config.seed, drop_last=True, rank=team.rank, n_ranks=team.n
        )

        def save(tensors: dict[str, Tensor], position: Position) -> None:
            if folder:
                save_state(folder, config, self.digest, tensors, dataclasses.asdict(position))

        return Loop(
            self.objective(self.pipeline.model, config.recipe.smoothing),
            batches,
            self.fetch,
            partial(self.validate, team=team),
            config.recipe,
            config.seed,
            watcher,
            config.precision,
            save,
            save_every,
            partial(write_history, folder) if folder else None,
            team,
            accumulate,
            sync_batch_norm,
        )

    def objective(self, model: nn.Module, smoothing: float) -> Objective:
        return Objective(model, self.config.method, self.config.gamma, self.n_dims, smoothing)  # type: ignore[arg-type]

    def fetch(self, rows: Rows, generator: Source) -> tuple[Tensor, Tensor, Tensor]:
        """A training batch, or a part of one: augmented, with noise, normalised."""
        part, recipe, preprocess = self.dataset.train, self.config.recipe, self.pipeline.preprocess
        x = preprocess.to_units(part.x[rows])
        if isinstance(preprocess, ImagePreprocess):
            step = 1 / preprocess.levels
            x = augment(x, generator, augmentation_of(recipe), 1 - step, step)
        v, log_det = self.pipeline.normalised(preprocess.add_noise(x, generator))
        return v, log_det, self.labels(part, rows)

    def labels(self, part: Part, rows: Rows) -> Tensor:
        return torch.from_numpy(part.y[rows]).to(self.pipeline.device)

    @torch.no_grad()
    def validate(self, model: nn.Module, team: Team = ALONE) -> Validation:
        """Means over the validation split, which a team shares; without label smoothing, with fixed noise."""
        objective = self.objective(model, smoothing=0.0)
        totals, n = np.zeros(4), 0
        with evaluation_mode(objective):
            for _, rows in chunks(self.splits.validation[team.rank :: team.n], 500):
                v, log_det = self.pipeline.prepared(self.dataset.train.x[rows])
                losses = objective(v, log_det, self.labels(self.dataset.train, rows))
                totals += [float(values.cpu().double().sum()) for values in losses]
                n += len(rows)
        *sums, n_all = team.sum([*totals, n])
        loss, loss_x, loss_y, wrong = (total / n_all for total in sums)
        return Validation(loss, loss_x, loss_y, 100 * wrong, self.bits_per_dim(model, loss_x))

    def bits_per_dim(self, model: nn.Module, loss_x: float) -> float | None:
        if not model.has_density:
            return None
        bits = self.pipeline.bits_per_dim(
            np.array([self.pipeline.preprocess.log_scale - self.n_dims * loss_x])
        )
        return None if bits is None else float(bits[0])

    def finish(self, loop: Loop) -> Run:
        """The best model with its batch-norm statistics, h and calibration scores."""
        pipeline, train = self.pipeline, self.dataset.train
        pipeline.model.load_state_dict(loop.average.state_dict())
        if any(isinstance(module, _BatchNorm) for module in pipeline.modules()):
            refresh_batch_norm(pipeline.model, self.training_inputs())
        pipeline.eval()
        validation = self.validate(pipeline.model)
        held_out, y = observe(pipeline, train.x[self.splits.calibration]), train.y[self.splits.calibration]
        reference = fit_reference(
            observe(pipeline, train.x[self.splits.validation]), held_out, self.n_dims, y
        )
        if (
            pipeline.model.has_density and reference.h is None
        ):  # at gamma = inf nothing keeps z from running off
            loop.watcher.note("some densities are not finite: no p-value of this model uses one")
        facts = self.facts(loop, validation) | {"held_out": held_out_numbers(held_out.log_q_y, y)}
        return Run.trained_on(self.dataset, self.config, pipeline, reference, facts)

    def training_inputs(self) -> Iterator[Tensor]:
        """The training set in batches, not augmented; in mixed order, since files may be sorted by class."""
        mixed = np.random.default_rng(self.config.seed).permutation(self.splits.train)
        for _, rows in chunks(mixed, 500):
            if len(rows) > 1:
                yield self.pipeline.prepared(self.dataset.train.x[rows])[0]

    def facts(self, loop: Loop, validation: Validation) -> dict[str, Any]:
        position, splits = loop.position, self.splits
        guessing = 100 * (1 - class_shares(self.dataset, splits.validation).max())
        learns_classes = loop.objective.gamma > 0
        return {
            "data_digest": self.digest,
            "n_parameters": self.n_parameters,
            "n_train": len(splits.train),
            "n_validation": len(splits.validation),
            "n_calibration": len(splits.calibration),
            "train_seconds": round(position.seconds, 1),
            "epochs": position.epoch,
            "best_epoch": position.best_epoch,
            "n_skipped": position.n_skipped,
            "n_go_backs": position.n_go_backs,
            "validation": {k: finite_or_none(v) for k, v in validation._asdict().items()},
            "converged": bool(not learns_classes or validation.error < 0.9 * guessing),
        }


def held_out_numbers(log_q_y: Floats, y: NDArray[np.int64]) -> dict[str, float | None]:
    """Error in percent, cross-entropy in nats and Brier score."""
    numbers = {"error": 100 * wrong(log_q_y, y), "nll_y": log_loss(log_q_y, y), "brier": brier(log_q_y, y)}
    return {name: finite_or_none(float(values.mean())) for name, values in numbers.items()}


def check_shares(batch_size: int, n_processes: int, accumulate: int) -> None:
    """ConfigError unless every part of a batch has an example."""
    if accumulate < 1:
        raise ConfigError(f"accumulate is {accumulate} but must be 1 or more")
    if batch_size < n_processes * accumulate:
        raise ConfigError(
            f"a batch of {batch_size} cannot be cut into {n_processes * accumulate} parts (processes "
            f"{n_processes}, accumulate {accumulate}); use fewer, or a larger recipe.batch_size"
        )


def check_settings(config: RunConfig, dataset: Dataset) -> None:
    """What only the data can tell to be wrong."""
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


def fit_preprocess(config: RunConfig, dataset: Dataset, rows: Rows) -> Preprocess:
    x, recipe = dataset.train.x, config.recipe
    if dataset.levels is None:
        return TablePreprocess.fit(x[rows], dataset.train.y[rows] if recipe.normalise == "whiten" else None)
    return ImagePreprocess.fit(
        x,
        dataset.levels,
        recipe.noise,
        recipe.sigma,
        multiple=2 ** halvings(config.network, x.shape[3]),
        equalise=recipe.normalise == "equalise",
        rows=rows,  # a few at a time: the whole may not fit into memory
    )


def class_weights(config: RunConfig, dataset: Dataset, rows: Rows) -> Any:
    """p(y) to start with, (K,); None for equal ones."""
    if config.priors == "data":
        return class_shares(dataset, rows)
    return config.priors if isinstance(config.priors, tuple) else None


def class_shares(dataset: Dataset, rows: Rows) -> Any:
    """How often each class occurs among these rows, (K,); a class that does not counts as a single example."""
    counts = np.bincount(dataset.train.y[rows], minlength=len(dataset.class_names)).clip(1)
    return counts / counts.sum()


def augmentation_of(recipe: Recipe) -> Augmentation:
    return Augmentation(recipe.flip, recipe.crop, recipe.rotation, recipe.jitter)
