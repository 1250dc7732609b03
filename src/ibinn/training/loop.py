"""The training loop of every method. A run can be killed at any time and resumes with the same result.

Nothing random is stored between steps: the order of an epoch comes from (seed, epoch), everything drawn in a step
from (seed, step). So weights, optimiser and position are the whole state. Several processes share each batch and
decide together; noise and augmentation of an example do not depend on the process that holds it.
"""

import contextlib
import copy
import dataclasses
import math
import signal
import threading
import time
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from ibinn._types import Rows
from ibinn.data.batches import Shard
from ibinn.flows.fast.batch_norm import set_group
from ibinn.formats import finite_or_none
from ibinn.models.methods import Batch, Classifier, Losses
from ibinn.run.checkpoints import save_state
from ibinn.run.facts import EpochLine, write_history
from ibinn.training.data import TrainingData
from ibinn.training.distributed import detect_lost_process
from ibinn.training.options import TrainingOptions
from ibinn.training.progress import TrainingObserver
from ibinn.training.recipes import make_optimizer, rate_factor, set_learning_rate

BAD_STEPS = 10  # non-finite steps in a row that send the run back
GO_BACKS = 3
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class TrainingError(ValueError):
    """Training cannot continue: one sentence, with the way out."""


class Stopped(Exception):
    """The run was stopped by SIGINT or SIGTERM, and is saved."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number = number


class Diverging(Exception):
    """Too many non-finite steps in a row, or a non-finite validation loss."""


@dataclasses.dataclass
class Position:
    """The state of a run beside weights and optimiser. The sums are over the steps of the current epoch."""

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
    history: tuple[EpochLine, ...] = ()


class Loop:
    """Trains the model of `data.pipeline`.

    `average` is the exponential moving average of the model; it is the one that is validated and returned.
    """

    def __init__(self, data: TrainingData, options: TrainingOptions, observer: TrainingObserver) -> None:
        self.data, self.options, self.observer = data, options, observer
        self.batches, self.recipe, self.team = data.batches, data.config.recipe, options.team
        self.objective = data.objective(data.pipeline.model, self.recipe.smoothing)
        self.position = Position()
        self.average: Classifier = copy.deepcopy(data.pipeline.model)
        self.best = self.good = snapshot(self.average)
        self.optimizer = make_optimizer(self.objective.model, self.recipe, data.config.precision)
        self.parameters = list(self.objective.model.parameters())
        self.device = self.parameters[0].device
        self.generator = torch.Generator(self.device)
        self.shared: nn.Module = self.objective
        self.signal: int | None = None
        self.folder = options.folder if self.team.is_writer else None
        self.saved_at = self.ticked_at = time.monotonic()

    def run(self) -> Classifier:
        """Train to the last epoch or until patience ends; return the best model, or the last without patience."""
        self.observer.begin(self.recipe.epochs, len(self.batches), self.batches.batch_size)
        # Training reseeds torch's global generator in every step; the caller's state is restored afterwards.
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices), self.handling_signals(), self.sharing_objective():
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
            self.observer.step(position)
            self.save_or_stop()
        self.end_epoch()
        self.save_or_stop()

    def step(self, rows: Rows) -> None:
        """One step of the optimiser. A step with a non-finite loss or gradient is skipped and counted."""
        set_learning_rate(self.optimizer, self.learning_rate())
        self.objective.set_gamma_share(self.gamma_share())
        self.objective.train()
        self.optimizer.zero_grad()
        on_x = on_y = torch.zeros((), device=self.device)
        n = self.options.accumulate
        for number in range(n):
            batch = self.data.fetch(rows[number::n], self.seeded_shard(number))
            if not self.team.all(bool(batch.v.isfinite().all())):
                self.skip()
                return
            losses = self.backward(batch, is_last=number == n - 1)
            on_x, on_y = on_x + losses.loss_x.detach().sum(), on_y + losses.loss_y.detach().sum()
        # The norm is non-finite if any gradient is, and reading it waits for the device only once.
        if not nn.utils.clip_grad_norm_(self.parameters, self.recipe.clip).isfinite():
            self.skip()
            return
        self.optimizer.step()
        self.update_average()
        self.count(torch.stack([on_x, on_y]) / self.batches.batch_size)

    def backward(self, batch: Batch, is_last: bool) -> Losses:
        """Add the gradient of a micro-batch. With the last one, the processes exchange their gradients."""
        bf16 = self.data.config.precision == "bf16"
        with self.shared.no_sync() if self.team.n > 1 and not is_last else contextlib.nullcontext():  # type: ignore[operator]
            with torch.autocast(self.device.type, torch.bfloat16, enabled=bf16):
                losses: Losses = self.shared(*batch)
            # The mean over the whole batch: gradients of micro-batches are added, those of processes averaged.
            (losses.loss.sum() * (self.team.n / self.batches.batch_size)).backward()
        return losses

    def learning_rate(self) -> float:
        peak = self.recipe.learning_rate * 0.5**self.position.n_go_backs
        return peak * rate_factor(self.recipe.schedule, self.progress())

    def gamma_share(self) -> float:
        """The gamma ramp: gamma rises linearly from 0 to its value over the first `gamma_ramp` of the training."""
        ramp = self.recipe.gamma_ramp
        return min(1.0, self.progress() / ramp) if ramp else 1.0

    def progress(self) -> float:
        """The share of the training that is over."""
        return self.n_steps() / (self.recipe.epochs * len(self.batches))

    def n_steps(self) -> int:
        """Steps before this one, skipped ones included."""
        return self.position.epoch * len(self.batches) + self.position.batch

    def seeded_shard(self, number: int) -> Shard:
        """Seed the random numbers of a micro-batch: dropout by shard, noise and augmentation by batch."""
        first, n_shards = self.team.rank + self.team.n * number, self.team.n * self.options.accumulate
        seed, step = self.data.config.seed, self.n_steps()
        own, common = (
            np.random.SeedSequence([seed, step, share]).generate_state(2, np.uint64) >> np.uint64(1)
            for share in (first, 0)
        )
        torch.manual_seed(int(own[0]))  # dropout
        self.generator.manual_seed(int(common[1]))  # noise and augmentation
        return Shard(self.generator, self.batches.batch_size, slice(first, None, n_shards))

    def skip(self) -> None:
        self.position.n_skipped += 1
        self.position.n_bad_in_a_row += 1
        # The forward pass may have put NaN into the running statistics of batch-norm.
        for mine, good in zip(self.objective.model.buffers(), self.average.buffers(), strict=True):
            mine.copy_(good)
        if self.position.n_bad_in_a_row >= BAD_STEPS:
            raise Diverging

    @torch.no_grad()
    def update_average(self) -> None:
        """Average parameters and running statistics, over few steps at first and more later."""
        number = self.n_steps()
        decay = min(self.recipe.ema, (1 + number) / (10 + number))
        theirs = [*self.average.parameters(), *floating_buffers(self.average)]
        mine = [*self.parameters, *floating_buffers(self.objective.model)]
        get_ema_multi_avg_fn(decay)(theirs, mine, 0)

    def count(self, mine: Tensor) -> None:
        """Add the losses of this process to the sums of all processes."""
        self.position.n_bad_in_a_row = 0
        self.position.n_good += 1
        on_x, on_y = self.team.sum(mine.tolist())
        self.position.sum_x += on_x
        self.position.sum_y += on_y

    def end_epoch(self) -> None:
        """Validate, store the best model and the epoch's numbers; raise Diverging on a non-finite loss."""
        position = self.position
        # Without sync_batch_norm, each process has statistics of its own.
        self.team.broadcast([*floating_buffers(self.objective.model), *floating_buffers(self.average)])
        validation = self.data.validate(self.average, self.team)
        if validation.loss is None:
            raise Diverging
        self.good = snapshot(self.average)
        if validation.loss < position.best_loss:
            position.best_loss, position.best_epoch = validation.loss, position.epoch + 1
            self.best = self.good
        self.tick()
        n = position.n_good or math.nan
        line = EpochLine(
            epoch=position.epoch + 1,
            loss_x=finite_or_none(position.sum_x / n),
            loss_y=finite_or_none(position.sum_y / n),
            validation=validation,
            learning_rate=self.learning_rate(),
            skipped=position.n_skipped,
            seconds=round(position.seconds, 3),
        )
        position.history += (line,)
        position.epoch, position.batch = position.epoch + 1, 0
        position.sum_x = position.sum_y = 0.0
        position.n_good = 0
        if self.folder is not None:
            write_history(self.folder, position.history)
        self.observer.epoch(line)

    def go_back(self) -> None:
        """Return to the end of the last epoch, or the start, with half the learning rate and a new optimiser."""
        position = self.position
        if position.n_go_backs == GO_BACKS:
            raise TrainingError(
                f"the loss stayed non-finite after {GO_BACKS} returns to the last good state, each with half the "
                f"learning rate; start again in another --out with a smaller learning rate, such as --set "
                f"recipe.learning_rate={self.recipe.learning_rate / 100:g}, and check the data for extreme values"
            )
        self.objective.model.load_state_dict(self.good)
        self.average.load_state_dict(self.good)
        self.optimizer = make_optimizer(self.objective.model, self.recipe, self.data.config.precision)
        self.position = dataclasses.replace(
            position,
            batch=0,
            sum_x=0.0,
            sum_y=0.0,
            n_good=0,
            n_bad_in_a_row=0,
            n_go_backs=position.n_go_backs + 1,
        )
        self.observer.warn(
            f"the loss is not finite; back to the end of epoch {position.epoch} with half the learning rate"
        )

    def save_or_stop(self) -> None:
        """Between two steps: save if it is time, stop if any process has received a signal."""
        received = self.team.sum([self.signal == number for number in SIGNALS])
        if any(received):
            self.checkpoint()
            raise Stopped(SIGNALS[received.index(max(received))])
        if time.monotonic() - self.saved_at >= self.options.save_every:
            self.checkpoint()

    def checkpoint(self) -> None:
        self.tick()
        if self.folder is not None:
            position = dataclasses.asdict(self.position)
            save_state(self.folder, self.data.config, self.data.digest, self.state(), position)
        self.saved_at = time.monotonic()

    def tick(self) -> None:
        """Add the time since the last tick to the run's seconds."""
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
        """Continue from what `state` returned."""
        names = ("model", "average", "good", "best", "optimizer")
        parts: dict[str, dict[str, Tensor]] = {name: {} for name in names}
        for name, value in tensors.items():
            part, _, rest = name.partition(".")
            parts[part][rest] = value
        self.objective.model.load_state_dict(parts["model"])
        self.good = self.best = self.in_model_layout(parts["good"])
        if parts["best"]:
            self.best = self.in_model_layout(parts["best"])
        self.average.load_state_dict(parts["average"])
        self.load_optimizer(parts["optimizer"])
        self.position = position

    def in_model_layout(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors in the memory layout of the model."""
        self.average.load_state_dict(state)
        return snapshot(self.average)

    def load_optimizer(self, values: dict[str, Tensor]) -> None:
        ordered = [p for group in self.optimizer.param_groups for p in group["params"]]
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in values.items():
            number, key = name.split(".")
            like = ordered[int(number)]
            # In the memory layout of the parameter: with other strides, sums may round differently.
            value = torch.empty_like(like).copy_(value) if value.shape == like.shape else value
            state.setdefault(int(number), {})[key] = value
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})

    @contextlib.contextmanager
    def handling_signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM take effect between two steps; a second SIGINT interrupts at once."""
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread may set handlers
            return

        def receive(number: int, frame: object) -> None:
            # With several processes, two SIGINTs are normal: one from the terminal, one from torchrun.
            if self.signal == number == signal.SIGINT and self.team.n == 1:
                raise KeyboardInterrupt
            self.signal = number

        before = {number: signal.signal(number, receive) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def sharing_objective(self) -> Iterator[None]:
        """Share the objective with the team until the loop ends."""
        try:
            with detect_lost_process():
                self.shared = self.team.shared(self.objective, self.device)
                set_group(self.objective, self.team.group if self.options.sync_batch_norm else None)
                yield
        finally:
            self.shared = self.objective
            set_group(self.objective, None)


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def floating_buffers(model: nn.Module) -> list[Tensor]:
    return [buffer for buffer in model.buffers() if buffer.is_floating_point()]
