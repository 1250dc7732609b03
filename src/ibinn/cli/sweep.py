"""ibinn sweep."""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from ibinn.cli.terminal import note
from ibinn.config import ConfigError, Device, at_least

if TYPE_CHECKING:
    from ibinn.sweep.plan import Planned
    from ibinn.sweep.progress import Board
    from ibinn.sweep.work import Place, Stop


@dataclass(frozen=True)
class Sweep:
    """Make all runs of an experiment. What is finished is skipped, so the same command goes on after a stop."""

    experiment: tyro.conf.Positional[Path]
    """A TOML file: settings of ibinn train, several values where runs differ, and [[runs]] blocks."""

    out: Path | None = None
    """The folder for the runs; by default runs/EXPERIMENT."""

    ray: str | None = None
    """Spread the runs over a Ray cluster: auto (this machine's), local (starts one here), or HOST:PORT."""

    cpus_per_run: int | None = None
    """Threads of a run, and CPUs that Ray reserves for it; 1 with --ray, else all that torch takes."""

    gpus_per_run: float = 0.0
    """GPUs that Ray reserves for a run; 0.5 lets two share one."""

    device: Device = "auto"
    """Where to compute."""

    data_dir: Path | None = None
    """Where known sets are looked for first. Else $IBINN_DATA, then ~/.cache/ibinn."""

    dry_run: bool = False
    """Print the commands of the runs that are not finished, one a line, and do nothing."""

    def run(self) -> None:
        from ibinn.sweep.plan import plan, read_experiment
        from ibinn.sweep.work import Place, is_finished

        self.check()
        folder = self.out or Path("runs", self.experiment.stem)
        more = [] if self.device == "auto" else ["--device", self.device]
        more += [] if self.data_dir is None else ["--data-dir", str(self.data_dir)]
        runs = plan(read_experiment(self.experiment), folder, *more)
        if self.dry_run:
            for run in runs:
                if not is_finished(run.folder):
                    print(shlex.join(run.command))
            return
        threads = self.cpus_per_run or (1 if self.ray else None)
        hides_gpus = self.ray is not None and not self.gpus_per_run
        place = Place(folder.absolute(), Path.cwd(), threads, hides_gpus)
        self.work(runs, folder, place)

    def check(self) -> None:
        if self.cpus_per_run is not None:
            at_least("--cpus-per-run", self.cpus_per_run, 1)
        at_least("--gpus-per-run", self.gpus_per_run, 0)
        if self.gpus_per_run and not self.ray:
            raise ConfigError(
                "--gpus-per-run is for --ray; without it a run takes the GPU that --device names"
            )

    def work(self, runs: "list[Planned]", folder: Path, place: "Place") -> None:
        """Make the runs, tell what became of them, and exit with 1 if some failed, 130 or 143 after a signal."""
        from rich.console import Console

        from ibinn.sweep.progress import Board
        from ibinn.sweep.work import listening, work_here

        console = Console(stderr=True)
        if self.ray:
            from ibinn.sweep.cluster import connected, lack_of_room, n_places, work_on_ray

            needs = (place.threads or 1, self.gpus_per_run)
            with connected(self.ray) as ray:
                if lack := lack_of_room(ray.nodes(), *needs):
                    if self.ray == "local":
                        raise ConfigError(lack)
                    note(f"{lack}, or wait for a node that has them")
                n_workers = max(1, n_places(ray.nodes(), *needs))
                # Ray has signal handlers of its own: ours come after.
                with listening() as stop, Board(runs, place, n_workers, console, stop) as board:
                    work_on_ray(ray, runs, place, stop, board, *needs)
        else:
            with listening() as stop, Board(runs, place, 1, console, stop) as board:
                work_here(runs, place, stop, board)
        conclude(board, folder, stop)


def conclude(board: "Board", folder: Path, stop: "Stop") -> None:
    failed = [row for row in board.rows.values() if row.state == "failed"]
    for row in failed:
        print(
            f"ibinn: {row.run.name} failed: {row.why}; see {folder / 'logs' / row.run.name}.log",
            file=sys.stderr,
        )
    if stop.number:
        print(f"ibinn: stopped, {board.counts()}; the same command goes on", file=sys.stderr)
        raise SystemExit(128 + stop.number)
    print(f"{board.counts()}\nnext: ibinn report {shlex.quote(str(folder))}")
    if failed:
        raise SystemExit(1)
