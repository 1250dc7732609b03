"""One training from data to a finished run, in a run folder or in memory."""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ibinn._system import lock
from ibinn.config import ConfigError, RunConfig, from_dict, to_toml
from ibinn.data.dataset import Dataset
from ibinn.data.splits import Splits
from ibinn.flows.base import Chain
from ibinn.run import CONFIG, MODEL, RunError
from ibinn.run.checkpoints import drop_state, load_state
from ibinn.run.facts import HeldOut, TrainingFacts
from ibinn.run.folder import load_run, save_run
from ibinn.run.settings import read_config, write_config
from ibinn.run.trained import Run
from ibinn.training.data import TrainingData, build_pipeline, class_shares
from ibinn.training.finishing import fit_after_training, noises_of
from ibinn.training.loop import Loop, Position
from ibinn.training.options import TrainingOptions
from ibinn.training.progress import TrainingObserver
from ibinn.training.refresh_batch_norm import refresh_batch_norm


def train(
    config: RunConfig,
    dataset: Dataset,
    splits: Splits,
    options: TrainingOptions | None = None,
    observer: TrainingObserver | None = None,
) -> Run | None:
    """Train the model that a configuration describes.

    Parameters
    ----------
    config : RunConfig
        Method, network and recipe, as returned by `configure`.
    dataset : Dataset
        The data; only its training part is used.
    splits : Splits
        Rows of the training part for training, validation and calibration.
    options : TrainingOptions, optional
        Run folder, device, checkpoints, processes. By default, train in memory on the CPU.
    observer : TrainingObserver, optional
        Follows the training, as `ConsoleObserver` does. By default, nothing is shown.

    Returns
    -------
    Run or None
        The trained model. None in the processes of a team that are not its writer.

    Examples
    --------
    >>> from ibinn.data.known import load
    >>> from ibinn.data.splits import split
    >>> from ibinn.training.recipes import configure, override
    >>> from ibinn.training.trainer import train
    >>> digits = load("digits")
    >>> splits = split(digits, seed=0)
    >>> config = configure(
    ...     digits, len(splits.train), method="ibinn", gamma=1.0, seed=0, priors="data", precision="float32"
    ... )
    >>> small = ("recipe.epochs=1", "network.blocks=[1, 1]", "network.widths=[8, 8]")
    >>> run = train(override(config, small), digits, splits)
    >>> run.pipeline.compute_output(digits.train.x[:5]).log_q_y.shape
    (5, 10)
    """
    options, observer = options or TrainingOptions(), observer or TrainingObserver()
    folder, team = options.folder, options.team
    with contextlib.closing(observer):
        if folder and team.from_writer(lambda: holds_finished_run(folder, config, options.resume)):
            observer.note(f"the run in {folder} is already finished")
            return load_run(folder, options.device) if team.is_writer else None
        # Before anything is written: wrong settings leave no trace.
        pipeline = build_pipeline(config, dataset, splits.train, options.device)
        data = TrainingData(pipeline, config, dataset, splits, options)
        if options.constant_memory and pipeline.model.flow is None:
            raise ConfigError(f"{config.method} has no flow, so --constant-memory does not apply")
        team.check_same(to_toml(config), "the settings are")
        team.check_same(data.digest, f"the data {config.data} is")
        loop = Loop(data, options, observer)
        with prepared_folder(config, options):
            if options.resume:
                resume(loop)
            return run_loop(loop)


def run_loop(loop: Loop) -> Run | None:
    """Train, and write the finished run if there is a folder."""
    options, team, n_train = loop.options, loop.team, len(loop.data.splits.train)
    loop.observer.note(f"{n_parameters(loop.data.pipeline):,} parameters, {n_train} training examples")
    if team.n > 1:
        loop.observer.note(f"{team.n} processes share each batch of {loop.batches.batch_size}")
    set_constant_memory(loop.objective, options.constant_memory)
    loop.run()
    set_constant_memory(loop.objective, False)
    if not team.is_writer:
        return None
    run = finish(loop)
    if options.folder:
        save_run(options.folder, run)
        drop_state(options.folder)
    return run


def finish(loop: Loop) -> Run:
    """The best model, with the batch-norm statistics of the whole training set and all that is fitted to it."""
    data = loop.data
    pipeline, dataset = data.pipeline, data.dataset
    pipeline.model.load_state_dict(loop.average.state_dict())
    refresh_batch_norm(pipeline.model, data.inputs())
    pipeline.eval()
    reference, held_out = fit_after_training(pipeline, dataset, data.splits, loop.observer.finishing)
    if pipeline.model.has_density and reference.h is None:  # at gamma = inf nothing bounds z
        loop.observer.warn("some densities are not finite, so no p-value of this model uses a density")
    if any(pipeline.reference(noise) is None for noise in noises_of(pipeline)):
        loop.observer.warn(
            "some latent codes are not finite, so it is not known where they lie: samples are drawn from the unit "
            "Gaussians, and scores do not use the latent reference"
        )
    facts = training_facts(loop, held_out)
    return Run.trained_on(dataset, data.config, pipeline, reference, facts)


def training_facts(loop: Loop, held_out: HeldOut) -> TrainingFacts:
    data, position = loop.data, loop.position
    validation = data.validate(data.pipeline.model)
    guessing = 100 * (1 - class_shares(data.dataset, data.splits.validation).max())
    learns_classes = loop.objective.gamma > 0
    return TrainingFacts(
        data_digest=data.digest,
        n_parameters=n_parameters(data.pipeline),
        n_train=len(data.splits.train),
        n_validation=len(data.splits.validation),
        n_calibration=len(data.splits.calibration),
        train_seconds=round(position.seconds, 1),
        epochs=position.epoch,
        best_epoch=position.best_epoch,
        n_skipped=position.n_skipped,
        n_go_backs=position.n_go_backs,
        validation=validation,
        converged=bool(not learns_classes or validation.error < 0.9 * guessing),
        held_out=held_out,
    )


def n_parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def set_constant_memory(model: nn.Module, on: bool) -> None:
    for module in model.modules():
        if isinstance(module, Chain):
            module.constant_memory = on


def holds_finished_run(folder: Path, config: RunConfig, resume: bool) -> bool:
    """Whether there is nothing left to train; RunError if the folder holds anything but this run."""
    path = folder / CONFIG
    if not path.is_file():
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise RunError(f"{folder} is not a run folder, and not empty; use another --out")
        return False
    if not resume:
        raise RunError(f"{folder} already holds a run; continue it with --resume, or use another --out")
    if (stored := read_config(path)) != config:
        raise RunError(
            f"{folder} holds a run with other settings ({difference(stored, config)}); use another --out"
        )
    return (folder / MODEL).is_file()


def difference(stored: Any, config: Any) -> str:
    """The first setting in which two configurations differ."""
    for field in dataclasses.fields(stored):
        a, b = getattr(stored, field.name), getattr(config, field.name)
        if a != b:
            nested = dataclasses.is_dataclass(a)
            return difference(a, b) if nested else f"{field.name} is {a} there, {b} here"
    return "none"


@contextlib.contextmanager
def prepared_folder(config: RunConfig, options: TrainingOptions) -> Iterator[None]:
    """Create and lock the run folder, if there is one."""
    with contextlib.ExitStack() as stack:

        def prepare() -> None:
            if options.folder:
                if not (options.folder / CONFIG).exists():
                    write_config(options.folder, config)
                stack.enter_context(folder_lock(options.folder))

        options.team.from_writer(prepare)
        yield


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Let only one process at a time train in a folder. Without effect on systems that have no such locks."""
    with open(folder / CONFIG, "r+b") as file:
        try:
            is_ours = lock(file)
        except ImportError:  # Windows
            is_ours = True
        if not is_ours:
            raise RunError(f"another process is training in {folder}; wait for it, or use another --out")
        yield


def resume(loop: Loop) -> None:
    """Load the checkpoint, if there is one. The writer sends it to the other processes."""
    folder, data, team = loop.options.folder, loop.data, loop.team
    tensors: dict[str, Tensor] = {}

    def read() -> dict[str, Any] | None:
        stored = load_state(folder, data.config, data.digest) if folder else None
        tensors.update(stored[0] if stored else {})
        return stored[1] if stored else None

    position = team.from_writer(read)
    if position is None:
        return
    try:
        where = f"the checkpoint in {folder}"
        loop.load_state(team.named_tensors(tensors), from_dict(Position, position, where))
    except (ConfigError, RuntimeError, KeyError, TypeError) as error:
        raise RunError(
            f"the checkpoint in {folder} does not fit this version of ibinn; delete {folder}/checkpoint to "
            f"start again, or use the version that wrote it"
        ) from error
    loop.observer.note(f"resuming in epoch {loop.position.epoch + 1}, batch {loop.position.batch + 1}")
