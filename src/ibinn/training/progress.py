"""Progress of a training: a live line in a terminal, plain lines with the ETA elsewhere, TensorBoard."""

import time
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from ibinn.formats import clock
from ibinn.run.facts import EpochLine, Validation

if TYPE_CHECKING:
    from ibinn.training.loop import Position

LIVE_SECONDS, PLAIN_SECONDS = 0.2, 30.0  # between two updates within an epoch


class TrainingObserver:
    """Follows a training and shows nothing; subclasses show progress.

    Attributes
    ----------
    history : list of EpochLine
        The numbers of each epoch that has ended since the training started or resumed.
    """

    def __init__(self) -> None:
        self.history: list[EpochLine] = []

    def begin(self, n_epochs: int, n_batches: int, batch_size: int) -> None:
        """Training begins, with n_batches steps per epoch."""

    def step(self, position: "Position") -> None:
        """A step has ended."""

    def epoch(self, line: EpochLine) -> None:
        """An epoch has ended."""
        self.history.append(line)

    def finishing(self, done: int, total: int | None) -> None:
        """After the last epoch, `done` of `total` inputs have been encoded to fit scores and samples to them."""

    def note(self, text: str) -> None:
        """Something worth knowing."""

    def warn(self, text: str) -> None:
        """Something may be wrong."""
        self.note(text)

    def close(self) -> None:
        """Training has ended, one way or another."""


class WarningObserver(TrainingObserver):
    """Shows no progress; warnings become Python warnings."""

    def warn(self, text: str) -> None:
        warnings.warn(text, stacklevel=2)


class ConsoleObserver(TrainingObserver):
    """Prints a line per epoch. Within an epoch it shows a live bar in a terminal, or a line every 30 s."""

    def __init__(
        self, tensorboard: "TensorBoardWriter | None" = None, stream: TextIO | None = None
    ) -> None:
        super().__init__()
        self.tensorboard = tensorboard
        self.console = Console(file=stream, stderr=True, force_jupyter=False)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[text]}"),
        )
        # Drawn by `step`: a refreshing thread could draw over an error message.
        self.bar = Progress(*columns, console=self.console, auto_refresh=False, transient=True)
        self.task = self.bar.add_task("", text="")

    def begin(self, n_epochs: int, n_batches: int, batch_size: int) -> None:
        self.n_epochs, self.n_batches, self.batch_size = n_epochs, n_batches, batch_size
        self.n_steps = self.n_left = 0  # steps of this process, and those that are left
        self.begun = self.shown = time.monotonic()
        self.finishing_begun: float | None = None

    def step(self, position: "Position") -> None:
        done, total = position.epoch * self.n_batches + position.batch, self.n_epochs * self.n_batches
        self.n_steps, self.n_left = self.n_steps + 1, total - done
        if not self.is_due():
            return
        n = max(position.n_good, 1)
        place = f"epoch {position.epoch + 1}/{self.n_epochs}  batch {position.batch}/{self.n_batches}"
        text = f"{losses_text(position.sum_x / n, position.sum_y / n)}  {self.speed()}"
        self.show(place, done, total, text)

    def finishing(self, done: int, total: int | None) -> None:
        if self.finishing_begun is None:
            self.finishing_begun = time.monotonic()
        if total is None or not self.is_due():
            return
        eta = clock((time.monotonic() - self.finishing_begun) / done * (total - done))
        self.show("fitting scores and samples", done, total, f"{done}/{total}  ETA {eta}")

    def is_due(self) -> bool:
        """Whether it is time to show something again."""
        pause = LIVE_SECONDS if self.console.is_interactive else PLAIN_SECONDS
        return time.monotonic() - self.shown >= pause

    def show(self, place: str, done: int, total: int, text: str) -> None:
        """Update the bar, or print a line."""
        self.shown = time.monotonic()
        if self.console.is_interactive:
            self.bar.update(self.task, completed=done, total=total, description=place, text=text)
            self.bar.start()
            self.bar.refresh()
        else:
            self.print(f"{place}  {text}")

    def epoch(self, line: EpochLine) -> None:
        super().epoch(line)
        parts = [
            f"epoch {line.epoch}/{self.n_epochs}",
            losses_text(line.loss_x, line.loss_y),
            validation_text(line.validation),
            self.speed(),
        ]
        if line.skipped:
            parts.append(f"{line.skipped} steps skipped")
        self.shown = time.monotonic()
        self.print("  ".join(parts))
        if self.tensorboard:
            self.tensorboard.add(line)

    def note(self, text: str) -> None:
        self.print(f"note: {text}")

    def close(self) -> None:
        if self.console.is_interactive:
            self.bar.stop()

    def speed(self) -> str:
        """Inputs per second and the time left, both from the steps of this process."""
        seconds = max(time.monotonic() - self.begun, 1e-9)
        if not self.n_steps:
            return ""
        eta = clock(seconds / self.n_steps * self.n_left)
        return f"{self.n_steps * self.batch_size / seconds:.0f}/s  ETA {eta}"

    def print(self, text: str) -> None:
        self.console.print(text, soft_wrap=True, markup=False, highlight=False, emoji=False)


class TensorBoardWriter:
    """Writes the numbers of each epoch for TensorBoard, into a run folder."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ValueError(
                "TensorBoard is not installed; pip install tensorboard, or leave out --tensorboard"
            ) from error
        self.folder, self.kind = folder / "tensorboard", SummaryWriter
        self.writer: Any = None

    def add(self, line: EpochLine) -> None:
        if self.writer is None:  # not before training has begun: it writes a file at once
            self.writer = self.kind(str(self.folder))
        numbers = {f"train/{name}": getattr(line, name) for name in ("loss_x", "loss_y", "learning_rate")}
        numbers |= {f"validation/{name}": value for name, value in asdict(line.validation).items()}
        for name, value in numbers.items():
            if value is not None:
                self.writer.add_scalar(name, value, line.epoch)
        self.writer.flush()


def losses_text(loss_x: float | None, loss_y: float | None) -> str:
    named = {"loss_x": loss_x, "loss_y": loss_y}
    return "  ".join(f"{name} {v:.4f}" for name, v in named.items() if v is not None and v == v)


def validation_text(validation: Validation) -> str:
    """The error, and bits/dim for a model with a density of images."""
    bits = validation.bits_per_dim
    text = f"validation: error {validation.error:.2f} %"
    return text if bits is None else f"{text}, {bits:.3f} bits/dim"
