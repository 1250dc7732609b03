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

from ibinn.config import ConfigError
from ibinn.files import MODEL, RESULTS
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
    """A sweep's folder, and the one that its commands are run in; threads of a run, if not torch's choice."""

    home: Path
    working: Path
    threads: int | None = None

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
    """The first SIGINT or SIGTERM that came, if any."""

    number: int | None = None

    def hear(self, number: int, frame: FrameType | None) -> None:
        self.number = self.number or number


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
    file = locked(place.lock(run))
    if file is None:
        return "elsewhere"
    file.close()
    return "waiting"


def locked(path: Path) -> BinaryIO | None:
    """A file that is locked as long as it is open, here or in a process that got it; None if it is already."""
    try:
        import fcntl
    except ImportError as error:  # Windows
        raise ConfigError(
            "this system has not the file locks that ibinn sweep needs; run the commands of --dry-run yourself"
        ) from error
    path.parent.mkdir(parents=True, exist_ok=True)
    file = open(path, "ab")  # noqa: SIM115 - the lock outlives this function
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def perform(run: Planned, place: Place, stop: Stop, watcher: Watcher | None = None) -> Outcome:
    """Make a run, or go on with it, unless it is finished or somebody else is at it."""
    if is_finished(place.working / run.folder):
        return Outcome("done")
    lock = locked(place.lock(run))
    if lock is None:
        return Outcome("elsewhere")
    with lock:
        if is_finished(place.working / run.folder):  # by now
            return Outcome("done")
        place.log(run).parent.mkdir(parents=True, exist_ok=True)
        with open(place.log(run), "ab") as log:
            begun, start = log.tell(), time.monotonic()
            if watcher:
                watcher.started(run)
            code = call(run, place, lock, log, stop, watcher.tick if watcher else None)
        seconds = time.monotonic() - start
        if is_finished(place.working / run.folder):
            return Outcome("done", seconds)
        if stop.number and code in (128 + signal.SIGTERM, -signal.SIGTERM):
            return Outcome("stopped", seconds)
        return Outcome("failed", seconds, reason(place.log(run), begun, code))


def call(
    run: Planned, place: Place, lock: BinaryIO, log: BinaryIO, stop: Stop, tick: Callable[[], None] | None
) -> int:
    """Run the command and wait; its exit code. It keeps the lock, also if this process is killed.

    In a session of its own it hears no Ctrl-C of a terminal: a stop reaches it once, as a SIGTERM, and it saves.
    """
    log.write(f"{shlex.join(run.command)}\n".encode())
    log.flush()
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}  # or stdout would come after stderr in the log
    if place.threads:
        environment["OMP_NUM_THREADS"] = str(place.threads)
    child = subprocess.Popen(
        [sys.executable, *run.command[1:]],  # which may be at another place on another machine
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        cwd=place.working,
        env=environment,
        pass_fds=(lock.fileno(),),
        start_new_session=True,
    )
    told = False
    while True:
        try:
            return child.wait(TICK_SECONDS)
        except subprocess.TimeoutExpired:
            if stop.number and not told:
                child.terminate()
                told = True
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
