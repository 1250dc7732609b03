"""The runs of a sweep on this machine: one after the other, each in its own process, each done only once."""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from ibinn.sweep.plan import PlannedRun
from ibinn.sweep.remaining import Outcome, Workspace, open_locked, outcome_of_done

TICK_SECONDS = 0.5


class SweepObserver:
    """Is called when runs start and end; tick about twice a second. This one does nothing."""

    def started(self, run: PlannedRun) -> None: ...
    def ended(self, run: PlannedRun, outcome: Outcome) -> None: ...
    def tick(self) -> None: ...


class Stop:
    """The first SIGINT or SIGTERM, if any, and how many there were."""

    number: int | None = None
    count = 0

    def handle(self, number: int, frame: FrameType | None) -> None:
        self.number = self.number or number
        self.count += 1


@contextlib.contextmanager
def catch_signals() -> Iterator[Stop]:
    """Record SIGINT and SIGTERM instead of being interrupted by them."""
    stop = Stop()
    before = {number: signal.signal(number, stop.handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_locally(plan: list[PlannedRun], workspace: Workspace, stop: Stop, observer: SweepObserver) -> None:
    """Make all runs. Wait for those that another process is making, and take them over if it ends."""
    left = list(plan)
    while left and not stop.number:
        for run in left:
            outcome = make_run(run, workspace, stop, observer)
            observer.ended(run, outcome)
            if outcome.state != "elsewhere":
                left.remove(run)
                break
        else:
            observer.tick()
            time.sleep(TICK_SECONDS)


def make_run(run: PlannedRun, workspace: Workspace, stop: Stop, observer: SweepObserver) -> Outcome:
    """Make or continue a run, unless it is done or another process is making it."""
    if workspace.is_done(run):
        return outcome_of_done(run, workspace)
    lock_file = open_locked(workspace.lock(run))
    if lock_file is None:
        return Outcome("elsewhere")
    with lock_file:
        if workspace.is_done(run):  # since the check above
            return outcome_of_done(run, workspace)
        workspace.log(run).parent.mkdir(parents=True, exist_ok=True)
        with open(workspace.log(run), "ab") as log:
            log_start, start = log.tell(), time.monotonic()
            observer.started(run)
            child = start_command(run, workspace, lock_file, log)
            code = wait_for(child, stop, observer)
        seconds = time.monotonic() - start
        if workspace.is_done(run):
            return Outcome("done", seconds)
        if stop.number and code in (128 + signal.SIGTERM, -signal.SIGTERM, -signal.SIGKILL):
            return Outcome("stopped", seconds)
        return Outcome("failed", seconds, failure_reason(workspace.log(run), log_start, code))


def start_command(
    run: PlannedRun, workspace: Workspace, lock_file: BinaryIO, log: BinaryIO
) -> subprocess.Popen[bytes]:
    """Start the command of a run. It keeps the lock, even if this process is killed."""
    log.write(f"{shlex.join(run.command)}\n".encode())
    log.flush()
    # The ranks of a job are not for its runs. Unbuffered, stdout comes in order with stderr.
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    environment |= {"PYTHONUNBUFFERED": "1"}
    if workspace.threads:
        environment["OMP_NUM_THREADS"] = str(workspace.threads)
    if workspace.gpus == 0:  # on a cluster, a run that has reserved no GPU must not take one
        environment["CUDA_VISIBLE_DEVICES"] = ""
    return subprocess.Popen(
        [sys.executable, *run.command[1:]],  # the interpreter of this machine
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        cwd=workspace.working,
        env=environment,
        pass_fds=(lock_file.fileno(),),
        start_new_session=True,  # so that it gets no Ctrl-C of a terminal, just one SIGTERM, and saves
    )


def wait_for(child: "subprocess.Popen[bytes]", stop: Stop, observer: SweepObserver) -> int:
    """The exit code. The first signal terminates the child, a second one kills it."""
    n_sent = 0
    while True:
        try:
            return child.wait(TICK_SECONDS)
        except subprocess.TimeoutExpired:
            if stop.count > n_sent:
                child.kill() if n_sent else child.terminate()
                n_sent = stop.count
            observer.tick()


def failure_reason(log: Path, log_start: int, code: int) -> str:
    """Why a run failed, in a line: the error message of its command, or the last line of its log."""
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    text = log.read_bytes()[log_start:].decode(errors="replace")
    lines = [line.strip() for line in text.split("\n")[1:] if line.strip()]
    errors = [line.removeprefix("ibinn: ") for line in lines if line.startswith("ibinn: ")]
    return [f"ended with exit code {code}", *lines, *errors][-1]
