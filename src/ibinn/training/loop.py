"""The one loop: every method is trained by it, and every run can be killed and goes on as if it had not been.

Nothing random is kept between steps: the order of an epoch comes from (seed, epoch), all that is drawn in a
step from (seed, step). So weights, optimiser and position are the whole state. Several processes share a batch
and take every decision together; noise and augmentation of an example are the same whoever holds it.
"""

import contextlib
import copy
import dataclasses
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from ibinn._types import Rows
from ibinn.config import Precision, Recipe
from ibinn.data.batches import Batches, Shard
from ibinn.flows.fast.batch_norm import set_group
from ibinn.models.methods import Losses, Objective
from ibinn.training.distributed import ALONE, Team, answering
from ibinn.training.recipes import make_optimizer, rate_factor, set_learning_rate

BAD_STEPS = 10  # non-finite ones in a row, after which the run goes back
GO_BACKS = 3
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class TrainingError(ValueError):
    """Training cannot go on: one sentence, with the way out."""


class Stopped(Exception):
    """SIGINT or SIGTERM came; the run is saved."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number = number


class Diverging(Exception):
    """Too many non-finite steps in a row, or a non-finite validation loss."""


class Validation(NamedTuple):
    """Means over the validation split; error in percent, bits_per_dim None where there is no such number."""

    loss: float
    loss_x: float
    loss_y: float
    error: float
    bits_per_dim: float | None


@dataclasses.dataclass
class Position:
    """Where a run is, beside weights and optimiser. The sums are over the epoch's steps so far."""

    epoch: int = 0
    batch: int = 0
    sum_x: float = 0.0
    sum_y: float = 0.0
    n_good: int = 0
    n_bad_in_a_row: int = 0
    n_skipped: int = 0
    n_go_backs: int = 0
    best_loss: float = math.inf
    best_epoch: int = 0
    seconds: float = 0.0
    history: list[dict[str, Any]] = dataclasses.field(default_factory=list)


class Watcher(Protocol):
    """What is told of progress."""

    def step(self, position: Position, n_batches: int) -> None: ...
    def epoch(self, line: dict[str, Any]) -> None: ...
    def note(self, text: str) -> None: ...


class Loop:
    """Trains objective.model; `average` is its exponential moving average, the model that is validated and kept.

    fetch(rows, part) -> (v, log_det, y) makes a batch; validate(model) judges `average` after each epoch;
    save(tensors, position) keeps a checkpoint, every save_every seconds and when a signal comes, record(history)
    the lines of the epochs. `batches` are the team's member's own; they are worked off in `accumulate` parts, one
    after the other.
    """

    def __init__(
        self,
        objective: Objective,
        batches: Batches,
        fetch: Callable[[Rows, Shard], tuple[Tensor, Tensor, Tensor]],
        validate: Callable[[nn.Module], Validation],
        recipe: Recipe,
        seed: int,
        watcher: Watcher,
        precision: Precision = "float32",
        save: Callable[[dict[str, Tensor], Position], None] | None = None,
        save_every: float = 30.0,
        record: Callable[[list[dict[str, Any]]], None] | None = None,
        team: Team = ALONE,
        accumulate: int = 1,
        sync_batch_norm: bool = True,
    ) -> None:
        self.objective, self.batches, self.fetch, self.validate = objective, batches, fetch, validate
        self.recipe, self.seed, self.watcher, self.precision = recipe, seed, watcher, precision
        self.save, self.save_every, self.record = save, save_every, record
        self.team, self.accumulate, self.sync_batch_norm = team, accumulate, sync_batch_norm
        self.position = Position()
        self.average = copy.deepcopy(objective.model)
        self.best = self.good = snapshot(self.average)
        self.optimizer = make_optimizer(objective.model, recipe)
        self.parameters = list(objective.model.parameters())
        self.device = self.parameters[0].device
        self.generator = torch.Generator(self.device)
        self.shared: nn.Module = objective
        self.signal: int | None = None
        self.saved_at = self.ticked_at = time.monotonic()

    def run(self) -> nn.Module:
        """Train to the end or until patience ends; the model of the best epoch, or the last without patience."""
        # Training reseeds torch's own generator in every step; whoever called keeps theirs as it was.
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices), self.listening(), self.working_together():
            self.saved_at = self.ticked_at = time.monotonic()
            while not self.is_over():
                try:
                    self.run_epoch()
                except Diverging:
                    self.go_back()
            self.checkpoint()
        self.average.load_state_dict(self.best if self.recipe.patience else self.good)
        return self.average

    def is_over(self) -> bool:
        waited = self.position.epoch - self.position.best_epoch
        return self.position.epoch >= self.recipe.epochs or 0 < self.recipe.patience <= waited

    def run_epoch(self) -> None:
        position = self.position
        for rows in self.batches.epoch(position.epoch, start=position.batch):
            self.step(rows)
            position.batch += 1
            self.watcher.step(position, len(self.batches))
            self.look_up()
        self.end_epoch()
        self.look_up()

    def step(self, rows: Rows) -> None:
        """One step of the optimiser, skipped and counted where loss or gradient is not finite."""
        set_learning_rate(self.optimizer, self.learning_rate())
        if self.recipe.gamma_ramp:
            self.objective.set_share_of_gamma(min(1.0, self.done() / self.recipe.gamma_ramp))
        self.objective.train()
        self.optimizer.zero_grad()
        on_x = on_y = torch.zeros((), device=self.device)
        for number in range(self.accumulate):
            v, log_det, y = self.fetch(rows[number :: self.accumulate], self.seeded_part(number))
            if not self.team.all(bool(v.isfinite().all())):
                self.skip()
                return
            losses = self.backward(v, log_det, y, is_last=number == self.accumulate - 1)
            on_x, on_y = on_x + losses.loss_x.detach().sum(), on_y + losses.loss_y.detach().sum()
        # The norm is not finite wherever a gradient is not; its value waits for the device once.
        if not nn.utils.clip_grad_norm_(self.parameters, self.recipe.clip).isfinite():
            self.skip()
            return
        self.optimizer.step()
        self.update_average()
        self.count(torch.stack([on_x, on_y]) / self.batches.batch_size)

    def backward(self, v: Tensor, log_det: Tensor, y: Tensor, is_last: bool) -> Losses:
        """Add the gradient of a part of the batch; with the last one, the processes exchange theirs."""
        bf16 = self.precision == "bf16"
        with self.shared.no_sync() if self.team.n > 1 and not is_last else contextlib.nullcontext():  # type: ignore[operator]
            with torch.autocast(self.device.type, torch.bfloat16, enabled=bf16):
                losses: Losses = self.shared(v, log_det, y)
            # The mean over the batch, whatever the parts; of the processes' gradients the mean is taken.
            (losses.loss.sum() * (self.team.n / self.batches.batch_size)).backward()  # type: ignore[no-untyped-call]
        return losses

    def learning_rate(self) -> float:
        peak = self.recipe.learning_rate * 0.5**self.position.n_go_backs
        return peak * rate_factor(self.recipe.schedule, self.done())

    def done(self) -> float:
        """The share of the training that is over."""
        return self.n_steps() / (self.recipe.epochs * len(self.batches))

    def n_steps(self) -> int:
        """Steps before this one, skipped ones included."""
        return self.position.epoch * len(self.batches) + self.position.batch

    def seeded_part(self, number: int) -> Shard:
        """Start the random numbers of a part of the batch: dropout's are its own, the rest is drawn for all."""
        team, step = self.team, self.n_steps()
        own, common = (
            np.random.SeedSequence([self.seed, step, share]).generate_state(2, np.uint64) >> np.uint64(1)
            for share in (team.rank + team.n * number, 0)
        )
        torch.manual_seed(int(own[0]))  # dropout
        self.generator.manual_seed(int(common[1]))  # noise and augmentation
        mine = slice(team.rank + team.n * number, None, team.n * self.accumulate)
        return Shard(self.generator, self.batches.batch_size, mine)

    def skip(self) -> None:
        self.position.n_skipped += 1
        self.position.n_bad_in_a_row += 1
        # The forward pass may have brought NaN into the running statistics of batch-norm.
        for mine, good in zip(self.objective.model.buffers(), self.average.buffers(), strict=True):
            mine.copy_(good)
        if self.position.n_bad_in_a_row >= BAD_STEPS:
            raise Diverging

    @torch.no_grad()
    def update_average(self) -> None:
        """Parameters and running statistics; a short memory at first, when there is little to remember."""
        number = self.n_steps()
        decay = min(self.recipe.ema, (1 + number) / (10 + number))
        theirs = [*self.average.parameters(), *floating_buffers(self.average)]
        mine = [*self.parameters, *floating_buffers(self.objective.model)]
        get_ema_multi_avg_fn(decay)(theirs, mine, 0)  # type: ignore[no-untyped-call]

    def count(self, mine: Tensor) -> None:
        """Add loss_x and loss_y, of which this process has its share."""
        self.position.n_bad_in_a_row = 0
        self.position.n_good += 1
        on_x, on_y = self.team.sum(mine.tolist())
        self.position.sum_x += on_x
        self.position.sum_y += on_y

    def end_epoch(self) -> None:
        """Validate, remember the best model, write the epoch's line; raise Diverging on a non-finite loss."""
        position = self.position
        # Batch-norms that do not share their statistics have each their own.
        self.team.broadcast([*floating_buffers(self.objective.model), *floating_buffers(self.average)])
        validation = self.validate(self.average)
        if not math.isfinite(validation.loss):
            raise Diverging
        self.good = snapshot(self.average)
        if validation.loss < position.best_loss:
            position.best_loss, position.best_epoch = validation.loss, position.epoch + 1
            self.best = self.good
        self.tick()
        n = position.n_good or math.nan
        line = {
            "epoch": position.epoch + 1,
            "loss_x": finite_or_none(position.sum_x / n),
            "loss_y": finite_or_none(position.sum_y / n),
            "validation": {k: finite_or_none(v) for k, v in validation._asdict().items()},
            "learning_rate": self.learning_rate(),
            "skipped": position.n_skipped,
            "seconds": round(position.seconds, 3),
        }
        position.history.append(line)
        position.epoch, position.batch = position.epoch + 1, 0
        position.sum_x = position.sum_y = 0.0
        position.n_good = 0
        if self.record is not None:
            self.record(position.history)
        self.watcher.epoch(line)

    def go_back(self) -> None:
        """To the end of the last epoch, or the start, with half the learning rate and a fresh optimiser."""
        position = self.position
        if position.n_go_backs == GO_BACKS:
            raise TrainingError(
                f"the loss stayed non-finite in spite of {GO_BACKS} returns to the last good state, each with "
                f"half the learning rate; start again, in another --out, with a smaller one, such as --set "
                f"recipe.learning_rate={self.recipe.learning_rate / 100:g}, and see to extreme values in the data"
            )
        self.objective.model.load_state_dict(self.good)
        self.average.load_state_dict(self.good)
        self.optimizer = make_optimizer(self.objective.model, self.recipe)
        self.position = dataclasses.replace(
            position,
            batch=0,
            sum_x=0.0,
            sum_y=0.0,
            n_good=0,
            n_bad_in_a_row=0,
            n_go_backs=position.n_go_backs + 1,
        )
        self.watcher.note(
            f"the loss is not finite; back to the end of epoch {position.epoch} with half the learning rate"
        )

    def look_up(self) -> None:
        """Between two steps: save when it is time to, stop when a signal has come to any of the team."""
        heard = self.team.sum([self.signal == number for number in SIGNALS])
        if any(heard):
            self.checkpoint()
            raise Stopped(SIGNALS[heard.index(max(heard))])
        if time.monotonic() - self.saved_at >= self.save_every:
            self.checkpoint()

    def checkpoint(self) -> None:
        self.tick()
        if self.save is not None:
            self.save(self.state(), self.position)
        self.saved_at = time.monotonic()

    def tick(self) -> None:
        """Add the time since the last tick to the run's."""
        now = time.monotonic()
        self.position.seconds += now - self.ticked_at
        self.ticked_at = now

    def state(self) -> dict[str, Tensor]:
        """Model, average, best model and optimiser, as named tensors."""
        named = {f"model.{k}": v for k, v in self.objective.model.state_dict().items()}
        named |= {f"average.{k}": v for k, v in self.average.state_dict().items()}
        named |= {f"good.{k}": v for k, v in self.good.items()}
        if self.best is not self.good:
            named |= {f"best.{k}": v for k, v in self.best.items()}
        for number, values in self.optimizer.state_dict()["state"].items():
            named |= {f"optimizer.{number}.{k}": v for k, v in values.items() if isinstance(v, Tensor)}
        return named

    def load_state(self, tensors: dict[str, Tensor], position: Position) -> None:
        """Go on where `state` was taken."""
        names = ("model", "average", "good", "best", "optimizer")
        parts: dict[str, dict[str, Tensor]] = {name: {} for name in names}
        for name, value in tensors.items():
            part, _, rest = name.partition(".")
            parts[part][rest] = value
        self.objective.model.load_state_dict(parts["model"])
        self.good = self.best = self.laid_out(parts["good"])
        if parts["best"]:
            self.best = self.laid_out(parts["best"])
        self.average.load_state_dict(parts["average"])
        self.load_optimizer(parts["optimizer"])
        self.position = position

    def laid_out(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """state in the memory layout of the model."""
        self.average.load_state_dict(state)
        return snapshot(self.average)

    def load_optimizer(self, values: dict[str, Tensor]) -> None:
        ordered = [p for group in self.optimizer.param_groups for p in group["params"]]
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in values.items():
            number, key = name.split(".")
            like = ordered[int(number)]
            # In the layout of the parameter: other strides may round in another order.
            value = torch.empty_like(like).copy_(value) if value.shape == like.shape else value
            state.setdefault(int(number), {})[key] = value
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """SIGINT and SIGTERM are heard between two steps; a second SIGINT is not waited for."""
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread may listen
            return

        def hear(number: int, frame: object) -> None:
            # To several processes both the terminal and torchrun send one.
            if self.signal == number == signal.SIGINT and self.team.n == 1:
                raise KeyboardInterrupt
            self.signal = number

        before = {number: signal.signal(number, hear) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def working_together(self) -> Iterator[None]:
        """The objective shared with the team, until the loop ends."""
        try:
            with answering():
                self.shared = self.team.shared(self.objective, self.device)
                set_group(self.objective, self.team.group if self.sync_batch_norm else None)
                yield
        finally:
            self.shared = self.objective
            set_group(self.objective, None)


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def floating_buffers(model: nn.Module) -> list[Tensor]:
    return [buffer for buffer in model.buffers() if buffer.is_floating_point()]


def finite_or_none(value: float | None) -> float | None:
    """JSON has no NaN."""
    return value if value is not None and math.isfinite(value) else None
