"""ibinn train, evaluate, report and demo."""

import dataclasses
import itertools
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from ibinn.cli.terminal import note, one_line, progress
from ibinn.config import Device, Method, Precision, Priors, RunConfig, Size, run_name

if TYPE_CHECKING:
    from ibinn.checkpoint import Run
    from ibinn.data.dataset import Array, Dataset
    from ibinn.data.splits import Splits
    from ibinn.results import Results
    from ibinn.training.distributed import Team

Score = Literal[
    "typicality",
    "nll",
    "class_typicality",
    "complexity",
    "combined",
    "entropy",
    "max_softmax",
    "energy",
    "mahalanobis",
    "knn",
]


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
        from ibinn.training.distributed import WriterFailed, assembled

        try:
            with assembled(self.device) as team:
                folder = self.run_in(team)
        except WriterFailed:  # it tells why, if torchrun does not end it because this process was quicker
            time.sleep(10)
            raise SystemExit(2) from None
        if self.evaluate and team.is_writer:
            Evaluate(folder, data_dir=self.data_dir, device=self.device).run()

    def run_in(self, team: "Team") -> Path:
        """Train with the team; the run folder."""
        from ibinn.data.sources import load
        from ibinn.data.splits import split
        from ibinn.training.recipes import configure, override

        with team.first_here(), progress(f"reading {self.data}") as on_progress:
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


@dataclass(frozen=True)
class Evaluate:
    """Every metric on the test set and on strange inputs: writes results.json, figures/ and report.html."""

    run_folder: tyro.conf.Positional[Path]
    """What ibinn train wrote."""

    ood: tuple[str, ...] | None = None
    """Sets of strange inputs: noise, rotation, inverted, flipped, jpeg, rgb_rotation, quickdraw, imagenet, for
    tables permuted, or any data by name or path. By default those of the paper that fit the data."""

    data: str | None = None
    """The data, if it is not where it was at training."""

    data_dir: Path | None = None
    """Where known sets are looked for first. Else $IBINN_DATA, then ~/.cache/ibinn."""

    batch_size: int = 500
    """Inputs at a time: less needs less memory."""

    device: Device = "auto"
    """Where to compute."""

    def run(self) -> None:
        from ibinn.checkpoint import load_run
        from ibinn.data.sources import KNOWN, load
        from ibinn.precision import chosen_device

        if self.batch_size < 1:
            raise ValueError(f"--batch-size is {self.batch_size} but must be 1 or more")
        run = load_run(self.run_folder)
        data = self.data or run.config.data
        if data not in KNOWN and not Path(data).exists():
            raise ValueError(
                f"there is no {data}, which the run was trained on; say where it is with --data"
            )
        with progress(f"reading {data}") as on_progress:
            dataset = load(data, self.data_dir, run.config.target, on_progress)
        run.pipeline.to(chosen_device(self.device, dataset.is_images))
        evaluate_and_tell(run, dataset, self)


@dataclass(frozen=True)
class Report:
    """The paper's tables and figures over several evaluated runs."""

    run_folders: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders with a results.json each: methods, gammas, seeds. Or the folder of a sweep."""

    out: Path | None = None
    """Where the tables and figures go; by default report, or FOLDER/report for the FOLDER of a sweep."""

    paper: bool = False
    """Put the numbers that the paper prints below ours; for cifar10 and cifar100."""

    score: Score = "typicality"
    """The OoD score of tables and figures; the paper's by default."""

    def run(self) -> None:
        from ibinn.report.runs import is_sweep, report

        folders = self.run_folders
        home = folders[0] if len(folders) == 1 and is_sweep(folders[0]) else Path()
        for path in report(folders, self.out or home / "report", self.paper, self.score, note):
            print(f"written to {path}")


@dataclass(frozen=True)
class Demo:
    """Train on the handwritten digits that come with scikit-learn, evaluate, and write a run folder."""

    out: Path = Path("runs", "demo")
    """The run folder."""

    seed: int = 0
    """Drives split and start."""

    def run(self) -> None:
        print("1,797 handwritten digits of 8 x 8 pixels; gamma = 1: class and density in equal parts")
        Train("digits", seed=self.seed, out=self.out, resume=True, device="cpu").run()
        Evaluate(self.out, device="cpu").run()
        print(
            f"next: open {self.out / 'report.html'} in a browser, or look around with: ibinn explore {self.out}"
        )


def train_and_tell(
    config: RunConfig, dataset: "Dataset", splits: "Splits", folder: Path, command: Train, team: "Team"
) -> None:
    from ibinn.precision import chosen_device
    from ibinn.training.loop import Stopped
    from ibinn.training.progress import Board, Lines, Silence
    from ibinn.training.run import train
    from ibinn.units import clock

    device = team.device or chosen_device(command.device, dataset.is_images)
    board = Board(folder) if command.tensorboard and team.is_writer else None
    batch_size = min(config.recipe.batch_size, len(splits.train))
    lines = Lines(config.recipe.epochs, batch_size, board) if team.is_writer else Silence()
    try:
        how = (command.resume, device, command.save_every, command.constant_memory)
        shared = (team, command.accumulate, command.sync_batch_norm)
        run = train(config, dataset, splits, folder, lines, *how, *shared)
    except Stopped as stop:
        lines.close()
        if team.is_writer:
            print(
                f"ibinn: {stop}; saved in {folder}, the same command with --resume goes on", file=sys.stderr
            )
        raise SystemExit(128 + stop.number) from None
    finally:
        lines.close()
    if run is None:  # another process writes and tells
        return
    facts = run.facts
    validation = facts["validation"]
    bits = validation["bits_per_dim"]
    print(
        f"{config.method} on {config.data}, size {config.size}: {facts['n_parameters']:,} parameters, trained "
        f"in {clock(facts['train_seconds'])} on {facts['n_train']} examples"
    )
    print(
        f"validation: error {validation['error']:.2f} %"
        + ("" if bits is None else f", {bits:.3f} bits/dim")
        + f" (best epoch {facts['best_epoch']} of {facts['epochs']})"
    )
    if not facts["converged"]:
        print("note: the run did not converge: it is hardly better than guessing the commonest class")
    print(f"written to {folder}")


def evaluate_and_tell(run: "Run", dataset: "Dataset", command: Evaluate) -> None:
    from ibinn.evaluation import evaluate, read_test
    from ibinn.exploration import explore
    from ibinn.report.runs import write_run

    folder = command.run_folder
    test = read_test(run, dataset)
    sets, left_out = strange_sets(run, dataset, test.x, command)
    with progress("evaluating") as on_progress:
        results, arrays = evaluate(run, dataset, sets, left_out, command.batch_size, on_progress)
    arrays |= explore(run, test, command.batch_size)
    with progress("drawing", unit="figures") as on_progress:
        write_run(folder, results, arrays, on_progress)
    tell(results)
    print(f"written to {folder}: results.json, figures, report.html")


def strange_sets(
    run: "Run", dataset: "Dataset", test: "Array", command: Evaluate
) -> "tuple[dict[str, Array], dict[str, str]]":
    """The sets of strange inputs, and of those that could not be had a sentence why."""
    from ibinn.data.ood import ood_rows, ood_set, usual_sets

    sets, left_out = {}, {}
    data_dir, target = command.data_dir, run.config.target
    for name in usual_sets(run.config.data, dataset.shape) if command.ood is None else command.ood:
        try:
            if dataset.levels is None:
                sets[name] = ood_rows(name, test, dataset.feature_names, 0, data_dir, target)
            else:
                sets[name] = ood_set(name, test, dataset.levels, 0, data_dir, len(test))
        except (ValueError, OSError) as error:
            left_out[name] = one_line(error)
            note(f"{name} is left out: {left_out[name]}")
    return sets, left_out


def tell(results: "Results") -> None:
    """The headline numbers."""
    calibration, score = results.calibration, results.score
    bits = "" if results.bits_per_dim is None else f", {results.bits_per_dim:.3f} bits/dim"
    print(f"test: error {results.error:.2f} % of {results.n_test}{bits}")
    if calibration.ece is not None:
        print(
            f"calibration: ECE {calibration.ece:.2f} % (perfect: {calibration.floor['ece']['mean']:.2f} %), "
            f"MCE {calibration.mce:.2f} %, ICE {calibration.ice:.2f} %"
        )
    rate, sets = results.false_alarm_rate[score], "; of" if results.ood else ""
    print(f"flagged as strange ({score}, alpha {results.alpha:g}): {rate:.1f} % of the test set{sets}")
    for name, strange in results.ood.items():
        print(f"  {name:14} {strange.detected_at_alpha[score]:5.1f} %, AUROC {strange.auroc[score]:5.1f} %")
