"""One training in several processes, as torchrun starts them: who writes, what is exchanged, how one is missed."""

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

TO_ANSWER = timedelta(minutes=3)  # of a process that has died one hears at once
TO_READ = timedelta(hours=24)  # while one process reads the data, the others wait


class LostContact(ValueError):
    """Another process of this training ended or does not answer."""


class WriterFailed(ValueError):
    """The process that writes has said what is wrong."""


@dataclass(frozen=True)
class Team:
    """The processes that train one model: this is number `rank` of n, and `local_rank` of those on its machine.

    Number 0 writes. Alone, nothing is exchanged, and the device is free.
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
        """The sums over all processes, the same in each."""
        if self.n == 1:
            return list(values)
        numbers = torch.tensor(values, dtype=torch.float64, device="cpu")
        with answering():
            dist.all_reduce(numbers, group=self.group)
        return numbers.tolist()

    def all(self, here: bool) -> bool:
        """Whether it holds in every process."""
        return self.sum([0.0 if here else 1.0]) == [0.0]

    def from_writer(self, make: Callable[[], Any]) -> Any:
        """What `make` gives in the writer, as JSON has it; its mistake is that of all."""
        if self.n == 1:
            return make()
        answer: dict[str, Any] = {}
        if self.is_writer:
            try:
                answer = {"value": make()}
            except (ValueError, OSError) as error:
                self._broadcast_text(json.dumps({"error": str(error)}))
                raise
        answer = json.loads(self._broadcast_text(json.dumps(answer)))
        if "error" in answer:
            raise WriterFailed(answer["error"])
        return answer["value"]

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite the tensors by those of the writer."""
        if self.n > 1:
            with answering():
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
        """Those of the writer, whatever the others have."""
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
        """ConfigError in a process whose text is not the writer's."""
        mine = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        if self.from_writer(lambda: mine) != mine:
            raise ConfigError(
                f"{what} in process {self.rank} not the same as in process 0; start all processes with the same "
                f"command, version of ibinn and files"
            )

    @contextlib.contextmanager
    def first_here(self) -> Iterator[None]:
        """One process of each machine goes first, the others after it: they find in the cache what it made."""
        if self.local_rank > 0:
            self._meet()
        yield
        if self.local_rank == 0:
            self._meet()
        self._meet()

    def _meet(self) -> None:
        if self.n > 1:
            with answering():
                dist.barrier(self.patient_group)

    def shared(self, objective: Objective, device: torch.device) -> nn.Module:
        """objective, the gradients of which are the means over all processes."""
        if self.n == 1:
            return objective
        return DistributedDataParallel(
            objective,
            device_ids=[device] if device.type == "cuda" else None,
            process_group=self.group,
            forward_sync_buffers=False,
            gradient_as_bucket_view=True,
            find_unused_parameters=objective.leaves_some_out,
        )


ALONE = Team()


@contextlib.contextmanager
def assembled(name: str) -> Iterator[Team]:
    """The team of this process on a device by name: as torchrun's environment says, or alone."""
    rank, n = os.environ.get("RANK"), os.environ.get("WORLD_SIZE", "1")
    if rank is None or n == "1":
        yield ALONE
        return
    device, local_rank = shared_device(name), int(os.environ.get("LOCAL_RANK", "0"))
    if device == "cuda":
        check_gpus(local_rank)
        torch.cuda.set_device(local_rank)
    with meeting(rank):
        dist.init_process_group("gloo" if device == "cpu" else "cpu:gloo,cuda:nccl", timeout=TO_ANSWER)
        patient = dist.new_group(timeout=TO_READ)
    try:
        yield Team(int(rank), int(n), local_rank, device, dist.group.WORLD, patient)
    finally:
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()


@contextlib.contextmanager
def meeting(rank: str) -> Iterator[None]:
    """The processes find each other in good time, or end with a sentence."""
    sentence = (
        f"process {rank} cannot reach the others; where a machine has several networks, name the one to use, "
        f"as in GLOO_SOCKET_IFNAME=eth0"
    )

    def give_up() -> None:  # gloo waits for ever for one that fails to call
        print(f"ibinn: {sentence}", file=sys.stderr, flush=True)
        os._exit(2)

    timer = threading.Timer(TO_ANSWER.total_seconds(), give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise LostContact(f"{sentence} ({' '.join(str(error).split())[:200]})") from error
    finally:
        timer.cancel()


def shared_device(name: str) -> str:
    """cpu or cuda; several processes cannot share an mps."""
    if name == "auto" and not torch.cuda.is_available():
        return "cpu"
    if name == "mps":
        raise ConfigError("several processes train on cpu or cuda, not on mps; use --device cpu")
    return choose_device(name, is_images=True)


def check_gpus(local_rank: int) -> None:
    if local_rank >= (n := torch.cuda.device_count()):
        raise ConfigError(f"there are {n} GPUs here but more processes; use torchrun --nproc-per-node {n}")


@contextlib.contextmanager
def answering() -> Iterator[None]:
    """LostContact instead of what the backends raise when a process does not answer."""
    try:
        yield
    except RuntimeError as error:
        if not is_lost(error):
            raise
        raise LostContact(
            "another process of this training has ended or does not answer; what it said last tells why; the same "
            "command with --resume goes on, with as many processes as you like"
        ) from error


def is_lost(error: RuntimeError) -> bool:
    """Whether a backend has lost another process; gloo raises plain RuntimeErrors."""
    signs = ("gloo", "nccl", "connection", "timed out", "broken pipe")
    is_told_so = isinstance(error, dist.DistError) or any(sign in str(error).lower() for sign in signs)
    return dist.is_initialized() and is_told_so
