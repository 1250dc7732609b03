"""What a sweep has left to do: which of its runs are done, which another process is making, which are waiting."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

from ibinn._system import lock
from ibinn.config import ConfigError
from ibinn.run import CONFIG, MODEL, RESULTS
from ibinn.run.settings import read_config
from ibinn.sweep.plan import PlannedRun

State = Literal["waiting", "running", "elsewhere", "done", "failed", "stopped"]


class Outcome(NamedTuple):
    """How an attempt at a run ended; seconds since its start, and the reason if it failed."""

    state: State
    seconds: float = 0.0
    why: str = ""


@dataclass(frozen=True)
class Workspace:
    """Where a sweep works: its folder, and the working directory of its commands.

    threads: threads per run, None for torch's choice. gpus: GPUs that Ray reserves for a run, None without Ray.
    """

    home: Path
    working: Path
    threads: int | None = None
    gpus: float | None = None

    def log(self, run: PlannedRun) -> Path:
        return self.home / "logs" / f"{run.name}.log"

    def lock(self, run: PlannedRun) -> Path:
        return self.home / "locks" / f"{run.name}.lock"

    def folder(self, run: PlannedRun) -> Path:
        return self.working / run.folder

    def is_done(self, run: PlannedRun) -> bool:
        """Whether the run is trained and evaluated."""
        return all((self.folder(run) / name).is_file() for name in (MODEL, RESULTS))


def remaining_runs(plan: Sequence[PlannedRun], workspace: Workspace) -> list[PlannedRun]:
    return [run for run in plan if not workspace.is_done(run)]


def state_of(run: PlannedRun, workspace: Workspace) -> State:
    """done, elsewhere (another process holds its lock) or waiting."""
    if workspace.is_done(run):
        return "done"
    if not workspace.lock(run).is_file():
        return "waiting"
    file = open_locked(workspace.lock(run), is_shared=True)
    if file is None:
        return "elsewhere"
    file.close()
    return "waiting"


def open_locked(path: Path, is_shared: bool = False) -> BinaryIO | None:
    """A file that stays locked while it is open, here or in a child process; None if it is locked already."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = open(path, "ab")  # noqa: SIM115 - the lock outlives this function
    try:
        if lock(file, is_shared):
            return file
    except ImportError as error:  # Windows
        raise ConfigError(
            "ibinn sweep needs file locks, which this system does not have; run the commands of --dry-run instead"
        ) from error
    file.close()
    return None


def outcome_of_done(run: PlannedRun, workspace: Workspace) -> Outcome:
    """done, or failed if the run in the folder was made with other settings, or if they cannot be read."""
    way_out = f"use another --out, or delete {run.folder}"
    try:
        config = read_config(workspace.folder(run) / CONFIG)
    except (OSError, ValueError) as error:
        return Outcome("failed", why=f"{error}; {way_out}")
    for path, here in run.settings:
        there = attrgetter(path)(config)
        if there != here:
            different = f"{path} is {there} there, {here} here"
            return Outcome(
                "failed",
                why=f"its folder holds a finished run with other settings ({different}); {way_out}",
            )
    return Outcome("done")
