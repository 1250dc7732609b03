"""What a person sees of a training: a live line in a terminal, plain lines elsewhere, TensorBoard if asked."""

import sys
import time
from pathlib import Path
from typing import Any, TextIO

from ibinn.formats import clock
from ibinn.training.loop import Position

LIVE_SECONDS, PLAIN_SECONDS = 0.2, 30.0  # between two lines within an epoch


class Lines:
    """A line per epoch; in a terminal also one that lives, elsewhere one every 30 s of a long epoch."""

    def __init__(
        self, n_epochs: int, batch_size: int, board: "Board | None" = None, stream: TextIO | None = None
    ) -> None:
        self.n_epochs, self.batch_size, self.board = n_epochs, batch_size, board
        self.stream = stream or sys.stderr
        self.lives = self.stream.isatty()
        self.n_steps = 0  # of this process
        self.begun = self.shown = time.monotonic()
        self.left: float | None = None  # steps

    def step(self, position: Position, n_batches: int) -> None:
        self.n_steps += 1
        self.left = (self.n_epochs - position.epoch) * n_batches - position.batch
        now = time.monotonic()
        if now - self.shown < (LIVE_SECONDS if self.lives else PLAIN_SECONDS):
            return
        self.shown = now
        n = max(position.n_good, 1)
        parts = [
            f"epoch {position.epoch + 1}/{self.n_epochs}",
            f"batch {position.batch}/{n_batches}",
            losses(position.sum_x / n, position.sum_y / n),
            self.speed(),
        ]
        self.write("  ".join(parts), lasting=not self.lives)

    def epoch(self, line: dict[str, Any]) -> None:
        validation = line["validation"]
        bits = validation["bits_per_dim"]
        parts = [
            f"epoch {line['epoch']}/{self.n_epochs}",
            losses(line["loss_x"], line["loss_y"]),
            f"validation: error {validation['error']:.2f} %"
            + ("" if bits is None else f", {bits:.3f} bits/dim"),
            self.speed(),
        ]
        if line["skipped"]:
            parts.append(f"{line['skipped']} steps skipped")
        self.shown = time.monotonic()
        self.write("  ".join(parts), lasting=True)
        if self.board:
            self.board.add(line)

    def note(self, text: str) -> None:
        self.write(f"note: {text}", lasting=True)

    def close(self) -> None:
        """Let what comes next begin on a line of its own."""
        if self.lives:
            print("\r\x1b[K", end="", file=self.stream, flush=True)

    def speed(self) -> str:
        """Images per second and the time that is left, both from the steps of this process."""
        seconds = max(time.monotonic() - self.begun, 1e-9)
        if not self.n_steps or self.left is None:
            return ""
        left = seconds / self.n_steps * self.left
        return f"{self.n_steps * self.batch_size / seconds:.0f}/s  ETA {clock(left)}"

    def write(self, text: str, lasting: bool) -> None:
        start, end = ("\r\x1b[K", "\n" if lasting else "") if self.lives else ("", "\n")
        print(f"{start}{text}", end=end, file=self.stream, flush=True)


class Silence:
    """Of a process that another one speaks for."""

    def step(self, position: Position, n_batches: int) -> None: ...
    def epoch(self, line: dict[str, Any]) -> None: ...
    def note(self, text: str) -> None: ...
    def close(self) -> None: ...


class Board:
    """The epochs' numbers for TensorBoard, below a run folder."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ValueError(
                "TensorBoard is not installed; pip install tensorboard, or leave it out"
            ) from error
        self.folder, self.kind = folder / "tensorboard", SummaryWriter
        self.writer: Any = None

    def add(self, line: dict[str, Any]) -> None:
        if self.writer is None:  # not before training has begun: it writes a file at once
            self.writer = self.kind(str(self.folder))
        numbers = {f"train/{k}": line[k] for k in ("loss_x", "loss_y", "learning_rate")}
        numbers |= {f"validation/{k}": v for k, v in line["validation"].items()}
        for name, value in numbers.items():
            if value is not None:
                self.writer.add_scalar(name, value, line["epoch"])
        self.writer.flush()


def losses(loss_x: float | None, loss_y: float | None) -> str:
    named = {"loss_x": loss_x, "loss_y": loss_y}
    return "  ".join(f"{name} {v:.4f}" for name, v in named.items() if v is not None and v == v)
