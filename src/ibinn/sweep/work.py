"""One run after the other, each in a process of its own, each done once however many sweeps are at it."""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import BinaryIO, Literal, NamedTuple, Protocol

from ibinn._system import lock
from ibinn.config import ConfigError, parse_toml
from ibinn.run import CONFIG, MODEL, RESULTS
from ibinn.sweep.plan import Planned

State = Literal["waiting", "running", "elsewhere", "done", "failed", "stopped"]
TICK_SECONDS = 0.5


class Outcome(NamedTuple):
    """How an attempt ended; seconds from its start, and why, where it failed."""

    state: State
    seconds: float = 0.0
    why: str = ""


@dataclass(frozen=True)
class Place:
    """A sweep's folder, and the one that its commands are run in; threads of a run, if not torch's choice.

    hides_gpus: on a cluster, a run that has reserved no GPU must not take one.
    """

    home: Path
    working: Path
    threads: int | None = None
    hides_gpus: bool = False

    def log(self, run: Planned) -> Path:
        return self.home / "logs" / f"{run.name}.log"

    def lock(self, run: Planned) -> Path:
        return self.home / "locks" / f"{run.name}.lock"


class Watcher(Protocol):
    """What is told of progress; tick comes about twice a second."""

    def started(self, run: Planned) -> None: ...
    def ended(self, run: Planned, outcome: Outcome) -> None: ...
    def tick(self) -> None: ...


class Stop:
    """The first SIGINT or SIGTERM that came, if any, and how many did."""

    number: int | None = None
    count = 0

    def hear(self, number: int, frame: FrameType | None) -> None:
        self.number = self.number or number
        self.count += 1


@contextlib.contextmanager
def listening() -> Iterator[Stop]:
    """Signals set a mark instead of breaking in, for the time of a with-block."""
    stop = Stop()
    before = {number: signal.signal(number, stop.hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def is_finished(folder: Path) -> bool:
    """Trained and evaluated."""
    return all((folder / name).is_file() for name in (MODEL, RESULTS))


def state_of(run: Planned, place: Place) -> State:
    """done, elsewhere (somebody holds its lock) or waiting."""
    if is_finished(place.working / run.folder):
        return "done"
    if not place.lock(run).is_file():
        return "waiting"
    file = locked(place.lock(run), is_shared=True)
    if file is None:
        return "elsewhere"
    file.close()
    return "waiting"


def locked(path: Path, is_shared: bool = False) -> BinaryIO | None:
    """A file that is locked as long as it is open, here or in a process that got it; None if it is already."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = open(path, "ab")  # noqa: SIM115 - the lock outlives this function
    try:
        if lock(file, is_shared):
            return file
    except ImportError as error:  # Windows
        raise ConfigError(
            "this system has not the file locks that ibinn sweep needs; run the commands of --dry-run yourself"
        ) from error
    file.close()
    return None


def outcome_of_finished(run: Planned, place: Place) -> Outcome:
    """done, unless the run in the folder was made with other settings."""
    config = parse_toml((place.working / run.folder / CONFIG).read_text(encoding="utf-8"), CONFIG)
    for path, here in run.settings:
        section, _, key = path.rpartition(".")
        there = (config[section] if section else config).get(key)
        if there != (list(here) if isinstance(here, tuple) else here):
            why = (
                f"its folder holds a finished run with other settings ({key} is {there} there, {here} here)"
            )
            return Outcome("failed", why=f"{why}; use another --out, or delete {run.folder}")
    return Outcome("done")


def perform(run: Planned, place: Place, stop: Stop, watcher: Watcher | None = None) -> Outcome:
    """Make a run, or go on with it, unless it is finished or somebody else is at it."""
    if is_finished(place.working / run.folder):
        return outcome_of_finished(run, place)
    held = locked(place.lock(run))
    if held is None:
        return Outcome("elsewhere")
    with held:
        if is_finished(place.working / run.folder):  # by now
            return outcome_of_finished(run, place)
        place.log(run).parent.mkdir(parents=True, exist_ok=True)
        with open(place.log(run), "ab") as log:
            begun, start = log.tell(), time.monotonic()
            if watcher:
                watcher.started(run)
            code = call(run, place, held, log, stop, watcher.tick if watcher else None)
        seconds = time.monotonic() - start
        if is_finished(place.working / run.folder):
            return Outcome("done", seconds)
        if stop.number and code in (128 + signal.SIGTERM, -signal.SIGTERM, -signal.SIGKILL):
            return Outcome("stopped", seconds)
        return Outcome("failed", seconds, reason(place.log(run), begun, code))


def call(
    run: Planned, place: Place, held: BinaryIO, log: BinaryIO, stop: Stop, tick: Callable[[], None] | None
) -> int:
    """Run the command and wait; its exit code. It keeps the lock, also if this process is killed.

    In a session of its own it hears no Ctrl-C of a terminal: a stop reaches it once, as a SIGTERM, and it saves.
    """
    log.write(f"{shlex.join(run.command)}\n".encode())
    log.flush()
    # A job's own ranks are not for its runs; unbuffered, stdout comes in order with stderr.
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    environment |= {"PYTHONUNBUFFERED": "1"}
    if place.threads:
        environment["OMP_NUM_THREADS"] = str(place.threads)
    if place.hides_gpus:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    child = subprocess.Popen(
        [sys.executable, *run.command[1:]],  # which may be at another place on another machine
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        cwd=place.working,
        env=environment,
        pass_fds=(held.fileno(),),
        start_new_session=True,
    )
    n_told = 0
    while True:
        try:
            return child.wait(TICK_SECONDS)
        except subprocess.TimeoutExpired:
            if stop.count > n_told:  # whoever asks twice does not want to wait
                child.kill() if n_told else child.terminate()
                n_told = stop.count
            if tick:
                tick()


def reason(log: Path, begun: int, code: int) -> str:
    """Why a run failed, in a line: the sentence of its command, or what it said last."""
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    lines = log.read_bytes()[begun:].decode(errors="replace").split("\n")[1:]
    said = [line.strip() for line in lines if line.strip()] or [f"ended with exit code {code}"]
    sentences = [line.removeprefix("ibinn: ") for line in said if line.startswith("ibinn: ")]
    return sentences[-1] if sentences else said[-1]


def work_here(plan: list[Planned], place: Place, stop: Stop, watcher: Watcher) -> None:
    """All runs, one after the other; those that somebody else is at are waited for, and taken over if need be."""
    left = list(plan)
    while left and not stop.number:
        for run in left:
            outcome = perform(run, place, stop, watcher)
            watcher.ended(run, outcome)
            if outcome.state != "elsewhere":
                left.remove(run)
                break
        else:
            watcher.tick()
            time.sleep(TICK_SECONDS)
