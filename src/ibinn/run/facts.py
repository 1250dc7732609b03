"""The numbers of a training: of each epoch, as in history.jsonl, and of the finished run. Without torch.

Losses are in nats, loss_x per dimension; errors are in percent. None where a number is not finite, or where a
method has no such number.
"""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ibinn._system import write_atomically
from ibinn.config import from_dict
from ibinn.run import HISTORY


@dataclass(frozen=True)
class Validation:
    """Means over the validation split."""

    loss: float | None
    loss_x: float | None
    loss_y: float | None
    error: float
    bits_per_dim: float | None


@dataclass(frozen=True)
class HeldOut:
    """Means over the calibration split: error, cross-entropy and Brier score."""

    error: float | None
    nll_y: float | None
    brier: float | None


@dataclass(frozen=True)
class EpochLine:
    """One epoch, a line of history.jsonl.

    Attributes
    ----------
    epoch : int
        Number of the epoch, from 1.
    loss_x, loss_y : float, optional
        Means over the training steps of the epoch.
    validation : Validation
        Means over the validation split after the epoch.
    learning_rate : float
        Learning rate at the end of the epoch.
    skipped : int
        Number of steps that were skipped since the start, because of a non-finite loss or gradient.
    seconds : float
        Duration of the training up to here.
    """

    epoch: int
    loss_x: float | None
    loss_y: float | None
    validation: Validation
    learning_rate: float
    skipped: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class TrainingFacts:
    """Facts about a finished training.

    Attributes
    ----------
    data_digest : str
        Fingerprint of the data.
    n_parameters : int
        Number of parameters of the model.
    n_train, n_validation, n_calibration : int
        Sizes of the splits.
    train_seconds : float, optional
        Duration of the training; None for a saved estimator.
    epochs, best_epoch : int
        Number of epochs, and the one with the lowest validation loss.
    n_skipped, n_go_backs : int
        Number of skipped steps, and of returns to the last good state.
    validation : Validation
        Numbers of the finished model on the validation split.
    converged : bool
        False if the model is hardly better than always guessing the most frequent class.
    held_out : HeldOut
        Numbers of the finished model on the calibration split.
    """

    data_digest: str
    n_parameters: int
    n_train: int
    n_validation: int
    n_calibration: int
    train_seconds: float | None = None
    epochs: int
    best_epoch: int
    n_skipped: int
    n_go_backs: int
    validation: Validation
    converged: bool
    held_out: HeldOut


def write_history(folder: Path, history: Sequence[EpochLine]) -> None:
    """Write history.jsonl."""
    lines = (json.dumps(dataclasses.asdict(line)) + "\n" for line in history)
    write_atomically(folder / HISTORY, "".join(lines))


def read_history(folder: Path) -> list[EpochLine]:
    """The lines of history.jsonl; none if it is missing or damaged."""
    path = folder / HISTORY
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    try:
        return [from_dict(EpochLine, json.loads(line), str(path)) for line in lines]
    except (ValueError, TypeError):
        return []
