"""What a person sees of a sweep: a live table in a terminal, a line per event elsewhere."""

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ibinn.config import parse_toml
from ibinn.formats import clock
from ibinn.run import CONFIG, HISTORY, RESULTS
from ibinn.sweep.plan import Planned
from ibinn.sweep.work import Outcome, Place, State, Stop, state_of

STOPPING = "stopping: what runs is saved first"


SURVEY_SECONDS = 5.0  # between two looks at what other sweeps do


COLOURS = {"running": "cyan", "elsewhere": "blue", "failed": "red", "done": "green", "waiting": "dim"}


FRAME = 5  # lines of the table that are no runs: head, rule, "and more", counts, one to spare


@dataclass
class Row:
    """A run as far as it has come; `at` is when that was noticed, `numbers` are those of results.json."""

    run: Planned
    state: State = "waiting"
    at: float = 0.0
    seconds: float = 0.0
    why: str = ""
    numbers: dict[str, Any] | None = None


class Board:
    """Keeps the rows, and shows them."""

    def __init__(
        self, plan: Sequence[Planned], place: Place, n_workers: int, console: Console, stop: Stop
    ) -> None:
        self.place, self.n_workers, self.console, self.stop = place, n_workers, console, stop
        self.rows = {run.name: Row(run) for run in plan}
        self.surveyed, self.is_stopping = -math.inf, False
        self.live = Live(console=console, auto_refresh=False) if console.is_terminal else None

    def __enter__(self) -> "Board":
        for row in self.rows.values():
            if state_of(row.run, self.place) == "done":
                self.change(row, "done", told=False)
        if self.live:
            self.live.start()
        else:
            self.say(f"{len(self.rows)} {'run' if len(self.rows) == 1 else 'runs'}")
        return self

    def __exit__(self, *error: object) -> None:
        if self.live:
            self.tick()
            self.live.stop()

    def started(self, run: Planned) -> None:
        self.change(self.rows[run.name], "running")

    def ended(self, run: Planned, outcome: Outcome) -> None:
        row = self.rows[run.name]
        row.seconds, row.why = max(row.seconds, outcome.seconds), outcome.why
        self.change(row, "waiting" if outcome.state == "stopped" else outcome.state)

    def tick(self) -> None:
        if time.monotonic() - self.surveyed > SURVEY_SECONDS:
            self.survey()
            self.surveyed = time.monotonic()
        if self.live:
            self.live.update(self.picture(), refresh=True)
        elif self.stop.number and not self.is_stopping:
            self.is_stopping = True
            self.say(STOPPING)

    def survey(self) -> None:
        """What has become of runs that are not ours."""
        for row in self.rows.values():
            if row.state in ("waiting", "elsewhere"):
                self.change(row, state_of(row.run, self.place))

    def change(self, row: Row, state: State, told: bool = True) -> None:
        if state == row.state:
            return
        if state == "done":
            row.numbers = read_numbers(self.place.working / row.run.folder)
            row.seconds = max(row.seconds, row.numbers.get("train_seconds") or 0.0)
        row.state, row.at = state, time.monotonic()
        if told and not self.live and state != "waiting":
            self.say(f"{self.event(row)}; {self.counts()}")

    def event(self, row: Row) -> str:
        name = row.run.name
        if row.state == "done":
            error, bits, seconds = cells(row)
            return f"done {name}: error {error}{f', {bits} bits/dim' if bits else ''}, {seconds}"
        if row.state == "failed":
            return f"failed {name}: {row.why}"
        return f"started {name}" if row.state == "running" else f"running elsewhere {name}"

    def say(self, text: str) -> None:
        print(text, file=self.console.file, flush=True)

    def counts(self) -> str:
        """3 of 7 done, 1 failed, 1 running, 2 waiting, ETA 1:30"""
        rows = list(self.rows.values())
        n = {state: sum(row.state == state for row in rows) for state in COLOURS}
        parts = [f"{n['done']} of {len(rows)} done"]
        parts += [
            f"{n[state]} {state}" for state in ("failed", "running", "elsewhere", "waiting") if n[state]
        ]
        left = time_left(rows, self.n_workers, time.monotonic())
        return ", ".join(parts if left is None else [*parts, f"ETA {clock(left)}"])

    def picture(self) -> Group:
        """The rows that fit the terminal, why the last one failed, and a line with counts."""
        rows = list(self.rows.values())
        failed = max((row for row in rows if row.state == "failed"), key=lambda row: row.at, default=None)
        shown, n_more = chosen(rows, self.console.height - FRAME - bool(failed))
        title, names = shortened(list(self.rows))
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column(title, overflow="ellipsis")  # the one that gets shorter on narrow terminals
        table.add_column("", no_wrap=True)
        for column in ("error", "bits/dim", "time"):
            table.add_column(column, justify="right", no_wrap=True)
        for row in shown:
            name, state = one_line(names[row.run.name]), Text(self.progress(row), COLOURS[row.state])
            table.add_row(name, state, *self.numbers(row))
        more = [Text(f"... and {n_more} more", "dim")] if n_more else []
        why = [one_line(f"{names[failed.run.name]}: {failed.why}", "red")] if failed else []
        last = STOPPING if self.stop.number else self.counts()
        return Group(table, *more, *why, one_line(last, "bold"))

    def progress(self, row: Row) -> str:
        """The state, with the epoch of a run that is trained."""
        if row.state not in ("running", "elsewhere"):
            return row.state
        return f"{row.state} {epoch_of(self.place.working / row.run.folder)}".rstrip()

    def numbers(self, row: Row) -> tuple[str, str, str]:
        if row.state == "done":
            return cells(row)
        return "", "", clock(time.monotonic() - row.at) if row.state == "running" else ""


def one_line(text: str, style: str = "") -> Text:
    return Text(text, style, no_wrap=True, overflow="ellipsis")


def shortened(names: Sequence[str]) -> tuple[str, dict[str, str]]:
    """A pattern for all names, as in cifar10-*-seed0, and what stands for the star in each."""
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


def cells(row: Row) -> tuple[str, str, str]:
    """Test error, bits/dim and duration of a run that is done."""
    numbers = row.numbers or {}
    error, bits = numbers.get("error"), numbers.get("bits_per_dim")
    return (
        "unknown" if error is None else f"{error:.2f} %",
        "" if bits is None else f"{bits:.3f}",
        clock(row.seconds),
    )


def read_numbers(folder: Path) -> dict[str, Any]:
    """results.json of a run; empty where it cannot be read."""
    try:
        numbers = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return numbers if isinstance(numbers, dict) else {}


def epoch_of(folder: Path) -> str:
    """3/40, from the run's files; nothing before its first epoch is over."""
    try:
        done = (folder / HISTORY).read_text(encoding="utf-8").count("\n")
        epochs = parse_toml((folder / CONFIG).read_text(encoding="utf-8"), CONFIG)["recipe"]["epochs"]
    except (OSError, ValueError, KeyError):
        return ""
    return f"{done}/{epochs}"


def time_left(rows: Sequence[Row], n_workers: int, now: float) -> float | None:
    """Seconds till all is done, if runs take as long as others of their method did, or of any; None if unknown."""
    by_method: dict[str, list[float]] = {}
    for row in rows:
        if row.state == "done" and row.seconds:
            by_method.setdefault(row.run.method, []).append(row.seconds)
    if not by_method:
        return None
    usual = fmean(seconds for of_method in by_method.values() for seconds in of_method)
    left = [
        max(
            fmean(by_method.get(row.run.method, [usual])) - (now - row.at if row.state == "running" else 0),
            0,
        )
        for row in rows
        if row.state in ("waiting", "running", "elsewhere")
    ]
    return max(sum(left) / n_workers, max(left)) if left else None


def chosen(rows: Sequence[Row], n: int) -> tuple[list[Row], int]:
    """At most n rows, and how many are left out: what runs or failed, the latest done, the next waiting."""
    first = [row for state in ("running", "failed", "elsewhere") for row in rows if row.state == state]
    done = sorted((row for row in rows if row.state == "done"), key=lambda row: -row.at)
    waiting = [row for row in rows if row.state == "waiting"]
    room = max(n - len(first), 0)
    n_done = min(len(done), max(room // 2, room - len(waiting)))
    shown = [*first[: max(n, 0)], *done[:n_done], *waiting[: room - n_done]]
    return shown, len(rows) - len(shown)
