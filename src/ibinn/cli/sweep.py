"""ibinn sweep."""

import contextlib
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from ibinn.cli.options import ComputeDevice, DataDir
from ibinn.cli.terminal import print_note
from ibinn.config import ConfigError, at_least

if TYPE_CHECKING:
    from ibinn.sweep.local import Stop
    from ibinn.sweep.plan import PlannedRun
    from ibinn.sweep.progress import SweepTable
    from ibinn.sweep.remaining import Workspace


@dataclass(frozen=True)
class Sweep:
    """Make all runs of an experiment. Finished runs are skipped, so the same command continues after a stop."""

    experiment: tyro.conf.Positional[Path]
    """A TOML file with options of ibinn train, lists of values where runs differ, and [[runs]] blocks."""

    out: Path | None = None
    """Folder for the runs; by default runs/EXPERIMENT."""

    ray: str | None = None
    """Make the runs on a Ray cluster: auto (the one on this machine), local (start one here), or HOST:PORT."""

    cpus_per_run: int | None = None
    """Threads per run, and CPUs that Ray reserves for it; by default 1 with --ray, else torch's choice."""

    gpus_per_run: float = 0.0
    """GPUs that Ray reserves per run; with 0.5 two runs share one."""

    device: ComputeDevice = "auto"

    data_dir: DataDir = None

    dry_run: bool = False
    """Print the commands of the runs that are left to do, one per line, and make no run."""

    def run(self) -> None:
        from ibinn.sweep.plan import plan, read_experiment
        from ibinn.sweep.remaining import Workspace, remaining_runs

        self.check()
        folder = self.out or Path("runs", self.experiment.stem)
        options = [] if self.device == "auto" else ["--device", self.device]
        options += [] if self.data_dir is None else ["--data-dir", str(self.data_dir)]
        runs = plan(read_experiment(self.experiment), folder, options)
        threads = self.cpus_per_run or (1 if self.ray else None)
        gpus = self.gpus_per_run if self.ray else None
        workspace = Workspace(folder.absolute(), Path.cwd(), threads, gpus)
        if self.dry_run:
            for run in remaining_runs(runs, workspace):
                print(shlex.join(run.command))
        else:
            self.make_runs(runs, folder, workspace)

    def check(self) -> None:
        if self.cpus_per_run is not None:
            at_least("--cpus-per-run", self.cpus_per_run, 1)
        at_least("--gpus-per-run", self.gpus_per_run, 0)
        if self.gpus_per_run and not self.ray:
            raise ConfigError("--gpus-per-run needs --ray; without it, --device names the device of a run")

    def make_runs(self, runs: "list[PlannedRun]", folder: Path, workspace: "Workspace") -> None:
        """Make the runs and print the outcome; exit with 1 if some failed, with 130 or 143 after a signal."""
        from rich.console import Console

        from ibinn.sweep.cluster import connect, run_on_ray
        from ibinn.sweep.local import catch_signals, run_locally
        from ibinn.sweep.progress import SweepTable

        with contextlib.ExitStack() as stack:
            ray = stack.enter_context(connect(self.ray)) if self.ray else None
            n_workers = self.count_workers(ray, workspace) if ray else 1
            stop = stack.enter_context(catch_signals())  # after Ray, which has signal handlers of its own
            table = SweepTable(runs, workspace, n_workers, Console(stderr=True), stop)
            stack.enter_context(table)
            if ray:
                run_on_ray(ray, runs, workspace, stop, table)
            else:
                run_locally(runs, workspace, stop, table)
        print_outcome(table, folder, stop)

    def count_workers(self, ray: Any, workspace: "Workspace") -> int:
        """How many runs the cluster makes at a time; ConfigError if a local one never has room for one."""
        from ibinn.sweep.cluster import n_slots, shortage

        cpus = workspace.threads or 1
        if text := shortage(ray.nodes(), cpus, self.gpus_per_run):
            if self.ray == "local":
                raise ConfigError(text)
            print_note(f"{text}, or wait for a node that has them")
        return max(1, n_slots(ray.nodes(), cpus, self.gpus_per_run))


def print_outcome(table: "SweepTable", folder: Path, stop: "Stop") -> None:
    failed = [row for row in table.rows.values() if row.state == "failed"]
    for row in failed:
        print(
            f"ibinn: {row.run.name} failed: {row.why}; see {folder / 'logs' / row.run.name}.log",
            file=sys.stderr,
        )
    if stop.number:
        print(f"ibinn: stopped, {table.counts()}; the same command continues", file=sys.stderr)
        raise SystemExit(128 + stop.number)
    print(f"{table.counts()}\nnext: ibinn report {shlex.quote(str(folder))}")
    if failed:
        raise SystemExit(1)
