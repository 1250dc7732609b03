"""The progress of a sweep: a live table in a terminal, a line per event elsewhere."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ibinn.formats import clock
from ibinn.run import CONFIG, HISTORY, RunError
from ibinn.run.results import Results, read_results
from ibinn.run.settings import read_config
from ibinn.sweep.local import Stop, SweepObserver
from ibinn.sweep.plan import PlannedRun
from ibinn.sweep.remaining import Outcome, State, Workspace, state_of

STOPPING = "stopping: runs in progress are saved first"
SURVEY_SECONDS = 5.0  # between two looks at the runs of other sweeps
STATE_COLOURS = {"running": "cyan", "elsewhere": "blue", "failed": "red", "done": "green", "waiting": "dim"}
N_FRAME = 5  # lines of the table besides the runs: head, rule, "and more", counts, one to spare


@dataclass
class RunRow:
    """A run and its state; `at` is when the state was noticed."""

    run: PlannedRun
    state: State = "waiting"
    at: float = 0.0
    seconds: float = 0.0
    why: str = ""
    results: Results | None = None

    def cells(self) -> tuple[str, str, str]:
        """Test error, bits/dim and duration of a run that is done."""
        bits = self.results and self.results.bits_per_dim
        return (
            "unknown" if self.results is None else f"{self.results.error:.2f} %",
            "" if bits is None else f"{bits:.3f}",
            clock(self.seconds),
        )


class SweepTable(SweepObserver):
    """Keeps a row per run, and shows them. Use it in a with-statement."""

    def __init__(
        self,
        plan: Sequence[PlannedRun],
        workspace: Workspace,
        n_workers: int,
        console: Console,
        stop: Stop,
    ) -> None:
        self.workspace, self.n_workers, self.console, self.stop = workspace, n_workers, console, stop
        self.rows = {run.name: RunRow(run) for run in plan}
        self.last_survey, self.is_stopping = -math.inf, False
        self.live = Live(console=console, auto_refresh=False) if console.is_terminal else None

    def __enter__(self) -> "SweepTable":
        for row in self.rows.values():
            if state_of(row.run, self.workspace) == "done":
                self.change(row, "done", is_quiet=True)
        if self.live:
            self.live.start()
        else:
            self.print(f"{len(self.rows)} {'run' if len(self.rows) == 1 else 'runs'}")
        return self

    def __exit__(self, *error: object) -> None:
        if self.live:
            self.tick()
            self.live.stop()

    def started(self, run: PlannedRun) -> None:
        self.change(self.rows[run.name], "running")

    def ended(self, run: PlannedRun, outcome: Outcome) -> None:
        row = self.rows[run.name]
        row.seconds, row.why = max(row.seconds, outcome.seconds), outcome.why
        self.change(row, "waiting" if outcome.state == "stopped" else outcome.state)

    def tick(self) -> None:
        if time.monotonic() - self.last_survey > SURVEY_SECONDS:
            self.survey()
            self.last_survey = time.monotonic()
        if self.live:
            self.live.update(self.render(), refresh=True)
        elif self.stop.number and not self.is_stopping:
            self.is_stopping = True
            self.print(STOPPING)

    def survey(self) -> None:
        """Update the runs that this sweep does not make itself."""
        for row in self.rows.values():
            if row.state in ("waiting", "elsewhere"):
                self.change(row, state_of(row.run, self.workspace))

    def change(self, row: RunRow, state: State, is_quiet: bool = False) -> None:
        if state == row.state:
            return
        if state == "done":
            row.results = read_results_if_valid(self.workspace.folder(row.run))
            row.seconds = max(row.seconds, row.results.train_seconds if row.results else 0.0)
        row.state, row.at = state, time.monotonic()
        if not (is_quiet or self.live or state == "waiting"):
            self.print(f"{event_text(row)}; {self.counts()}")

    def print(self, text: str) -> None:
        print(text, file=self.console.file, flush=True)

    def counts(self) -> str:
        """3 of 7 done, 1 failed, 1 running, 2 waiting, ETA 1:30"""
        rows = list(self.rows.values())
        n = {state: sum(row.state == state for row in rows) for state in STATE_COLOURS}
        parts = [f"{n['done']} of {len(rows)} done"]
        parts += [
            f"{n[state]} {state}" for state in ("failed", "running", "elsewhere", "waiting") if n[state]
        ]
        left = time_left(rows, self.n_workers, time.monotonic())
        return ", ".join(parts if left is None else [*parts, f"ETA {clock(left)}"])

    def render(self) -> Group:
        """The rows that fit the terminal, why the last run failed, and a line with counts."""
        rows = list(self.rows.values())
        failed = max((row for row in rows if row.state == "failed"), key=lambda row: row.at, default=None)
        visible, n_more = visible_rows(rows, self.console.height - N_FRAME - bool(failed))
        title, names = short_names(list(self.rows))
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column(title, overflow="ellipsis")  # the one that gets shorter on narrow terminals
        table.add_column("", no_wrap=True)
        for column in ("error", "bits/dim", "time"):
            table.add_column(column, justify="right", no_wrap=True)
        for row in visible:
            state = Text(self.state_text(row), STATE_COLOURS[row.state])
            table.add_row(unwrapped(names[row.run.name]), state, *self.cells(row))
        more = [Text(f"... and {n_more} more", "dim")] if n_more else []
        why = [unwrapped(f"{names[failed.run.name]}: {failed.why}", "red")] if failed else []
        last = STOPPING if self.stop.number else self.counts()
        return Group(table, *more, *why, unwrapped(last, "bold"))

    def state_text(self, row: RunRow) -> str:
        """The state, with the epoch of a run in training."""
        if row.state not in ("running", "elsewhere"):
            return row.state
        return f"{row.state} {epoch_text(self.workspace.folder(row.run))}".rstrip()

    def cells(self, row: RunRow) -> tuple[str, str, str]:
        if row.state == "done":
            return row.cells()
        return "", "", clock(time.monotonic() - row.at) if row.state == "running" else ""


def event_text(row: RunRow) -> str:
    name = row.run.name
    if row.state == "done":
        error, bits, seconds = row.cells()
        return f"done {name}: error {error}{f', {bits} bits/dim' if bits else ''}, {seconds}"
    if row.state == "failed":
        return f"failed {name}: {row.why}"
    return f"started {name}" if row.state == "running" else f"running elsewhere {name}"


def unwrapped(text: str, style: str = "") -> Text:
    """Text in one line, cut where the terminal ends."""
    return Text(text, style, no_wrap=True, overflow="ellipsis")


def short_names(names: Sequence[str]) -> tuple[str, dict[str, str]]:
    """A pattern for all names, as in cifar10-*-seed0, and the text for the star in each."""
    words = [name.split("-") for name in names]
    shortest = min(map(len, words))
    alike = [len({word[i] for word in words}) == 1 for i in range(shortest - 1)]
    n_first = [*alike, False].index(False)
    alike = [len({word[-1 - i] for word in words}) == 1 for i in range(shortest - 1 - n_first)]
    n_last = [*alike, False].index(False)
    if len(names) == 1 or not n_first + n_last:
        return "run", {name: name for name in names}
    ends = (words[0][:n_first], words[0][len(words[0]) - n_last :])
    pattern = "-".join([*ends[0], "*", *ends[1]])
    return pattern, {"-".join(w): "-".join(w[n_first : len(w) - n_last]) for w in words}


def read_results_if_valid(folder: Path) -> Results | None:
    try:
        return read_results(folder)
    except (OSError, RunError):
        return None


def epoch_text(folder: Path) -> str:
    """3/40, from the run's files; empty before its first epoch has ended."""
    try:
        done = (folder / HISTORY).read_text(encoding="utf-8").count("\n")
        return f"{done}/{read_config(folder / CONFIG).recipe.epochs}"
    except (OSError, ValueError):
        return ""


def time_left(rows: Sequence[RunRow], n_workers: int, now: float) -> float | None:
    """Seconds until all runs are done, if each takes the mean time of its method, or of all; None if unknown."""
    by_method: dict[str, list[float]] = {}
    for row in rows:
        if row.state == "done" and row.seconds:
            by_method.setdefault(row.run.method, []).append(row.seconds)
    if not by_method:
        return None
    of_any = [seconds for of_method in by_method.values() for seconds in of_method]
    left = []
    for row in rows:
        if row.state in ("waiting", "running", "elsewhere"):
            elapsed = now - row.at if row.state == "running" else 0.0
            left.append(max(fmean(by_method.get(row.run.method, of_any)) - elapsed, 0.0))
    return max(sum(left) / n_workers, max(left)) if left else None


def visible_rows(rows: Sequence[RunRow], n: int) -> tuple[list[RunRow], int]:
    """At most n rows, and the number left out: running and failed first, then the latest done, next waiting."""
    first = [row for state in ("running", "failed", "elsewhere") for row in rows if row.state == state]
    done = sorted((row for row in rows if row.state == "done"), key=lambda row: -row.at)
    waiting = [row for row in rows if row.state == "waiting"]
    room = max(n - len(first), 0)
    n_done = min(len(done), max(room // 2, room - len(waiting)))
    visible = [*first[: max(n, 0)], *done[:n_done], *waiting[: room - n_done]]
    return visible, len(rows) - len(visible)
