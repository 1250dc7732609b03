"""ibinn train."""

import dataclasses
import itertools
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from ibinn.cli.evaluate import Evaluate
from ibinn.cli.files import read_data
from ibinn.cli.options import ComputeDevice, DataDir, Target
from ibinn.config import Method, Precision, Priors, RunConfig, Size, run_name

if TYPE_CHECKING:
    from ibinn.data.dataset import Dataset
    from ibinn.run.trained import Run
    from ibinn.training.distributed import Team
    from ibinn.training.options import TrainingOptions
    from ibinn.training.progress import TrainingObserver


@dataclass(frozen=True)
class Train:
    """Train one model and write its run folder. Ctrl-C saves; the same command with --resume continues."""

    data: tyro.conf.Positional[str]
    """A known name (see ibinn data), a folder of images, a Parquet file or folder, an .npz, or a table."""

    method: Method = "ibinn"
    """ibinn, or a method that the paper compares it with."""

    gamma: float = 1.0
    """Weight of classification against density, for ibinn and vib; 0: density model, inf: plain classifier."""

    size: Size | None = None
    """Network and recipe. By default tiny for tables and tiny images, small for grey images, base for colour."""

    epochs: int | None = None
    """Number of passes over the training set; by default the recipe's."""

    seed: int = 0
    """Seed of the split, the initial weights and the training."""

    out: Path | None = None
    """The run folder to write; by default runs/DATA-METHOD-gammaG-SIZE-seedS."""

    resume: bool = False
    """Continue the run in the folder from its last checkpoint; without one, start from scratch."""

    evaluate: bool = False
    """Run ibinn evaluate after training."""

    device: ComputeDevice = "auto"

    precision: Precision = "float32"
    """With bf16 the subnets compute in bfloat16; log-determinants and the mixture stay in float32."""

    priors: Priors = "data"
    """Class weights p(y): the class frequencies of the training data, uniform, or learned."""

    target: Target = None

    data_dir: DataDir = None

    set: tyro.conf.UseAppendAction[tuple[tuple[str, ...], ...]] = ()
    """Other settings, as in --set recipe.learning_rate=0.001 network.blocks=[4,4]; config.toml lists them all."""

    save_every: float = 30.0
    """Seconds between two checkpoints."""

    constant_memory: bool = False
    """Recompute activations from the flow's inverse: slower, but memory does not grow with depth."""

    accumulate: int = 1
    """Split each batch into this many micro-batches: less memory, the same gradient."""

    sync_batch_norm: bool = True
    """Under torchrun: compute batch-norm statistics over the batches of all processes, as one process would."""

    tensorboard: bool = False
    """Write the numbers of each epoch for TensorBoard."""

    def run(self) -> None:
        from ibinn.training.distributed import WriterFailed, join_team

        try:
            with join_team(self.device) as team:
                folder = self.run_in(team)
        except WriterFailed:
            # The writer prints the reason, unless torchrun ends it because this process was quicker.
            time.sleep(10)
            raise SystemExit(2) from None
        if self.evaluate and team.is_writer:
            Evaluate(folder, data_dir=self.data_dir, device=self.device).run()

    def run_in(self, team: "Team") -> Path:
        """Train with the processes of the team, and print how it went; the run folder."""
        from ibinn.data.splits import split
        from ibinn.training.loop import Stopped
        from ibinn.training.trainer import train

        with team.local_leader_first():
            dataset = read_data(self.data, self.data_dir, self.target)
        splits = split(dataset, self.seed)
        config = self.config(dataset, len(splits.train))
        name = run_name(config.data, config.method, config.gamma, config.size, config.seed)
        folder = self.out or Path("runs", name)
        options, observer = self.options(folder, team, dataset.is_images), self.observer(folder, team)
        try:
            run = train(config, dataset, splits, options, observer)
        except Stopped as stop:
            if team.is_writer:
                print(
                    f"ibinn: {stop}; saved in {folder}, run the same command with --resume to continue",
                    file=sys.stderr,
                )
            raise SystemExit(128 + stop.number) from None
        if run is not None:  # of the writer
            print_summary(run)
            print(f"written to {folder}")
        return folder

    def config(self, dataset: "Dataset", n_train: int) -> RunConfig:
        """The settings of the model."""
        from ibinn.training.recipes import configure, override

        config = configure(
            dataset,
            n_train,
            self.size,
            method=self.method,
            gamma=self.gamma,
            seed=self.seed,
            priors=self.priors,
            precision=self.precision,
            target=self.target,
        )
        settings = tuple(itertools.chain(*self.set))
        if self.epochs is not None:
            settings += (f"recipe.epochs={self.epochs}",)
        return override(dataclasses.replace(config, data=self.data), settings)

    def options(self, folder: Path, team: "Team", is_images: bool) -> "TrainingOptions":
        from ibinn._system import choose_device
        from ibinn.training.options import TrainingOptions

        return TrainingOptions(
            folder=folder,
            resume=self.resume,
            device=team.device or choose_device(self.device, is_images),
            save_every=self.save_every,
            constant_memory=self.constant_memory,
            accumulate=self.accumulate,
            sync_batch_norm=self.sync_batch_norm,
            team=team,
        )

    def observer(self, folder: Path, team: "Team") -> "TrainingObserver":
        """Shows the progress, in the process that writes the run."""
        from ibinn.training.progress import ConsoleObserver, TensorBoardWriter, TrainingObserver

        if not team.is_writer:
            return TrainingObserver()
        return ConsoleObserver(TensorBoardWriter(folder) if self.tensorboard else None)


def print_summary(run: "Run") -> None:
    from ibinn.formats import clock
    from ibinn.training.progress import validation_text

    config, facts = run.config, run.facts
    seconds = "" if facts.train_seconds is None else f" in {clock(facts.train_seconds)}"
    print(
        f"{config.method} on {config.data}, size {config.size}: {facts.n_parameters:,} parameters, trained"
        f"{seconds} on {facts.n_train} examples"
    )
    print(f"{validation_text(facts.validation)} (best epoch {facts.best_epoch} of {facts.epochs})")
    if not facts.converged:
        print(
            "note: the run did not converge: it is hardly better than always guessing the most frequent class"
        )
