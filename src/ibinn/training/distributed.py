"""One training in several processes, started by torchrun: the writer, exchanges, lost processes."""

import contextlib
import hashlib
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ibinn._system import choose_device
from ibinn.config import ConfigError
from ibinn.models.methods import Objective

TIMEOUT = timedelta(minutes=3)  # for a process that hangs; one that has died is noticed at once
READ_TIMEOUT = timedelta(hours=24)  # the others wait while one process reads the data


class ProcessLost(ValueError):
    """Another process of this training has ended or does not respond."""


class WriterFailed(ValueError):
    """The writer has failed, with this message."""


@dataclass(frozen=True)
class Team:
    """The processes that train one model. This is number `rank` of n, and `local_rank` of those on its machine.

    Number 0 is the writer. `device` is None for a single process, which may use any device.
    """

    rank: int = 0
    n: int = 1
    local_rank: int = 0
    device: str | None = None
    group: Any = None
    patient_group: Any = None

    @property
    def is_writer(self) -> bool:
        return self.rank == 0

    def sum(self, values: Sequence[float]) -> list[float]:
        """The sums over all processes, the same in each of them."""
        if self.n == 1:
            return list(values)
        numbers = torch.tensor(values, dtype=torch.float64, device="cpu")
        with detect_lost_process():
            dist.all_reduce(numbers, group=self.group)
        return numbers.tolist()

    def all(self, condition: bool) -> bool:
        """Whether the condition holds in every process."""
        return self.sum([0.0 if condition else 1.0]) == [0.0]

    def from_writer(self, make: Callable[[], Any]) -> Any:
        """The result of `make` in the writer, passed on as JSON. If it fails, all processes fail."""
        if self.n == 1:
            return make()
        reply: dict[str, Any] = {}
        if self.is_writer:
            try:
                reply = {"value": make()}
            except (ValueError, OSError) as error:
                self._broadcast_text(json.dumps({"error": str(error)}))
                raise
        reply = json.loads(self._broadcast_text(json.dumps(reply)))
        if "error" in reply:
            raise WriterFailed(reply["error"])
        return reply["value"]

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite the tensors with those of the writer."""
        if self.n > 1:
            with detect_lost_process():
                for tensor in tensors:
                    dist.broadcast(tensor, src=0, group=self.group)

    def _broadcast_text(self, text: str) -> str:
        content = torch.tensor(list(text.encode()), dtype=torch.uint8, device="cpu")
        size = torch.tensor([len(content)], device="cpu")
        self.broadcast([size])
        if not self.is_writer:
            content = torch.empty(int(size), dtype=torch.uint8, device="cpu")
        self.broadcast([content])
        return bytes(content.tolist()).decode()

    def named_tensors(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of the writer; those of the other processes are ignored."""
        if self.n == 1:
            return tensors
        kinds = {name: (str(t.dtype).removeprefix("torch."), list(t.shape)) for name, t in tensors.items()}
        kinds = self.from_writer(lambda: kinds)
        if not self.is_writer:
            tensors = {
                name: torch.empty(shape, dtype=getattr(torch, dtype), device="cpu")
                for name, (dtype, shape) in kinds.items()
            }
        self.broadcast([*tensors.values()])
        return tensors

    def check_same(self, text: str, what: str) -> None:
        """Raise ConfigError in a process whose text differs from the writer's."""
        mine = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        if self.from_writer(lambda: mine) != mine:
            raise ConfigError(
                f"{what} not the same in process {self.rank} as in process 0; start all processes with the same "
                f"command, version of ibinn and files"
            )

    @contextlib.contextmanager
    def local_leader_first(self) -> Iterator[None]:
        """One process of each machine runs the block first; the others follow and use what it has cached."""
        if self.local_rank > 0:
            self._barrier()
        yield
        if self.local_rank == 0:
            self._barrier()
        self._barrier()

    def _barrier(self) -> None:
        if self.n > 1:
            with detect_lost_process():
                dist.barrier(self.patient_group)

    def shared(self, objective: Objective, device: torch.device) -> nn.Module:
        """The objective, with gradients averaged over all processes."""
        if self.n == 1:
            return objective
        return DistributedDataParallel(
            objective,
            device_ids=[device] if device.type == "cuda" else None,
            process_group=self.group,
            forward_sync_buffers=False,
            gradient_as_bucket_view=True,
            find_unused_parameters=objective.has_unused_parameters,
        )


SINGLE_PROCESS = Team()


@contextlib.contextmanager
def join_team(name: str) -> Iterator[Team]:
    """The team of this process on a named device, from the environment that torchrun sets."""
    rank, n = os.environ.get("RANK"), os.environ.get("WORLD_SIZE", "1")
    if rank is None or n == "1":
        yield SINGLE_PROCESS
        return
    device, local_rank = shared_device(name), int(os.environ.get("LOCAL_RANK", "0"))
    if device == "cuda":
        check_gpus(local_rank)
        torch.cuda.set_device(local_rank)
    with connecting(rank):
        dist.init_process_group("gloo" if device == "cpu" else "cpu:gloo,cuda:nccl", timeout=TIMEOUT)
        patient = dist.new_group(timeout=READ_TIMEOUT)
    try:
        yield Team(int(rank), int(n), local_rank, device, dist.group.WORLD, patient)
    finally:
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()


@contextlib.contextmanager
def connecting(rank: str) -> Iterator[None]:
    """Raise ProcessLost, or exit, if the processes do not find each other in time."""
    message = (
        f"process {rank} cannot reach the others; on a machine with several networks, name the one to use, "
        f"as in GLOO_SOCKET_IFNAME=eth0"
    )

    def give_up() -> None:  # gloo waits forever for a missing process
        print(f"ibinn: {message}", file=sys.stderr, flush=True)
        os._exit(2)

    timer = threading.Timer(TIMEOUT.total_seconds(), give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise ProcessLost(f"{message} ({' '.join(str(error).split())[:200]})") from error
    finally:
        timer.cancel()


def shared_device(name: str) -> str:
    """cpu or cuda; several processes cannot share an mps device."""
    if name == "auto" and not torch.cuda.is_available():
        return "cpu"
    if name == "mps":
        raise ConfigError("several processes can train on cpu or cuda, not on mps; use --device cpu")
    return choose_device(name, is_images=True)


def check_gpus(local_rank: int) -> None:
    if local_rank >= (n := torch.cuda.device_count()):
        raise ConfigError(f"there are {n} GPUs here but more processes; use torchrun --nproc-per-node {n}")


@contextlib.contextmanager
def detect_lost_process() -> Iterator[None]:
    """Raise ProcessLost for the errors that backends raise when a process does not respond."""
    try:
        yield
    except RuntimeError as error:
        if not is_lost(error):
            raise
        raise ProcessLost(
            "another process of this training has ended or does not respond; its last message shows the cause; "
            "continue with the same command and --resume, with any number of processes"
        ) from error


def is_lost(error: RuntimeError) -> bool:
    """Whether a backend has lost another process; gloo raises plain RuntimeErrors."""
    signs = ("gloo", "nccl", "connection", "timed out", "broken pipe")
    is_from_backend = isinstance(error, dist.DistError) or any(sign in str(error).lower() for sign in signs)
    return dist.is_initialized() and is_from_backend
