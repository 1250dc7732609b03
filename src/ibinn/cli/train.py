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
from ibinn.cli.terminal import progress
from ibinn.config import Device, Method, Precision, Priors, RunConfig, Size, run_name

if TYPE_CHECKING:
    from ibinn.data.dataset import Dataset
    from ibinn.data.splits import Splits
    from ibinn.training.distributed import Team


@dataclass(frozen=True)
class Train:
    """Train one model and write its run folder. Ctrl-C saves; the same command with --resume goes on."""

    data: tyro.conf.Positional[str]
    """A known name (see ibinn data), an image folder, a Parquet file or folder, an .npz, or a table."""

    method: Method = "ibinn"
    """ibinn, or what the paper compares it with."""

    gamma: float = 1.0
    """The knob: 0 is a density model, inf a plain classifier. For ibinn and vib."""

    size: Size | None = None
    """Network and recipe. By default tiny for tables and tiny images, small for grey images, base for colour."""

    epochs: int | None = None
    """How often the training set is gone through; by default the recipe's."""

    seed: int = 0
    """Drives the split, the start and everything random in training."""

    out: Path | None = None
    """The run folder; by default runs/DATA-METHOD-gammaG-SIZE-seedS."""

    resume: bool = False
    """Go on where the run in the folder stopped; starts afresh where there is nothing to resume."""

    evaluate: bool = False
    """Do what ibinn evaluate does too, at the end."""

    device: Device = "auto"
    """Where to compute."""

    precision: Precision = "float32"
    """bf16: the subnets compute in bfloat16; log-dets and the mixture stay in float32."""

    priors: Priors = "data"
    """Class weights p(y): from the training data, all equal, or learned."""

    target: str | None = None
    """With a table: the column that holds the classes."""

    data_dir: Path | None = None
    """Where known sets are looked for first. Else $IBINN_DATA, then ~/.cache/ibinn."""

    set: tyro.conf.UseAppendAction[tuple[tuple[str, ...], ...]] = ()
    """Other settings, as in --set recipe.learning_rate=0.001 network.blocks=[4,4]; config.toml has them all."""

    save_every: float = 30.0
    """Seconds between two checkpoints."""

    constant_memory: bool = False
    """Recompute activations from the flow's inverse: memory does not grow with depth, for some more time."""

    accumulate: int = 1
    """Work each batch off in so many parts, one after the other: less memory, the same gradient."""

    sync_batch_norm: bool = True
    """Under torchrun: statistics of the batches of all processes together, so that the result is that of one."""

    tensorboard: bool = False
    """Write the epochs' numbers for TensorBoard too."""

    def run(self) -> None:
        from ibinn.training.distributed import WriterFailed, join_team

        try:
            with join_team(self.device) as team:
                folder = self.run_in(team)
        except WriterFailed:  # it tells why, if torchrun does not end it because this process was quicker
            time.sleep(10)
            raise SystemExit(2) from None
        if self.evaluate and team.is_writer:
            Evaluate(folder, data_dir=self.data_dir, device=self.device).run()

    def run_in(self, team: "Team") -> Path:
        """Train with the team; the run folder."""
        from ibinn.data.known import load
        from ibinn.data.splits import split
        from ibinn.training.recipes import configure, override

        with team.local_leader_first(), progress(f"reading {self.data}") as on_progress:
            dataset = load(self.data, self.data_dir, self.target, on_progress)
        splits = split(dataset, self.seed)
        names = ("method", "gamma", "seed", "priors", "precision", "target")
        choices = {name: getattr(self, name) for name in names}
        config = configure(dataset, len(splits.train), self.size, **choices)
        settings = tuple(itertools.chain(*self.set))
        if self.epochs is not None:
            settings += (f"recipe.epochs={self.epochs}",)
        config = override(dataclasses.replace(config, data=self.data), settings)
        folder = self.out or Path(
            "runs", run_name(config.data, config.method, config.gamma, config.size, config.seed)
        )
        train_and_tell(config, dataset, splits, folder, self, team)
        return folder


def train_and_tell(
    config: RunConfig, dataset: "Dataset", splits: "Splits", folder: Path, command: Train, team: "Team"
) -> None:
    from ibinn._system import chosen_device
    from ibinn.formats import clock
    from ibinn.training.loop import Stopped
    from ibinn.training.options import TrainingOptions
    from ibinn.training.progress import (
        ConsoleObserver,
        TensorBoardWriter,
        TrainingObserver,
        validation_text,
    )
    from ibinn.training.trainer import train

    tensorboard = TensorBoardWriter(folder) if command.tensorboard and team.is_writer else None
    observer = ConsoleObserver(tensorboard) if team.is_writer else TrainingObserver()
    options = TrainingOptions(
        folder=folder,
        resume=command.resume,
        device=team.device or chosen_device(command.device, dataset.is_images),
        save_every=command.save_every,
        constant_memory=command.constant_memory,
        accumulate=command.accumulate,
        sync_batch_norm=command.sync_batch_norm,
        team=team,
    )
    try:
        run = train(config, dataset, splits, options, observer)
    except Stopped as stop:
        if team.is_writer:
            print(
                f"ibinn: {stop}; saved in {folder}, the same command with --resume goes on", file=sys.stderr
            )
        raise SystemExit(128 + stop.number) from None
    if run is None:  # another process writes and tells
        return
    facts = run.facts
    print(
        f"{config.method} on {config.data}, size {config.size}: {facts['n_parameters']:,} parameters, trained "
        f"in {clock(facts['train_seconds'])} on {facts['n_train']} examples"
    )
    print(f"{validation_text(facts['validation'])} (best epoch {facts['best_epoch']} of {facts['epochs']})")
    if not facts["converged"]:
        print("note: the run did not converge: it is hardly better than guessing the commonest class")
    print(f"written to {folder}")
