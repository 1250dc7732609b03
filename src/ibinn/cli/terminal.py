"""What all commands print to the terminal: progress, notes, errors in one line."""

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

QUIET_SECONDS = 2.0  # before any progress is shown
LINE_SECONDS = 5.0  # between two plain lines


@contextlib.contextmanager
def progress(title: str, unit: str = "", scale: float = 1.0) -> Iterator[Callable[[int, int | None], None]]:
    """A callback (done, total) that shows a bar with ETA in a terminal, and plain lines every 5 s elsewhere.

    Nothing is shown in the first two seconds. Numbers are multiplied by `scale` before they are shown.
    """
    start, last = time.monotonic(), -math.inf
    bar = progress_bar(title) if sys.stderr.isatty() else None

    def update(done: int, total: int | None) -> None:
        nonlocal last
        now = time.monotonic()
        if now - start < QUIET_SECONDS:
            return
        count = f"{done * scale:.0f}{f' of {total * scale:.0f}' if total else ''} {unit}".rstrip()
        if bar is not None:
            bar.start()
            bar.update(bar.task_ids[0], completed=done, total=total, count=count)
        elif now - last >= LINE_SECONDS:
            last = now
            left = f", {(now - start) / done * (total - done):.0f} s left" if total and done else ""
            print(f"{title}: {count}{left}", file=sys.stderr, flush=True)

    try:
        yield update
    finally:
        if bar is not None and bar.live.is_started:
            bar.stop()


def progress_bar(title: str) -> Any:
    """A bar of rich that disappears at the end, not started yet."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TimeRemainingColumn

    columns = ("{task.description}", BarColumn(), "{task.fields[count]}", TimeRemainingColumn())
    # What a command prints to stdout is its result, which must not go through the bar's console.
    bar = Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False)
    bar.add_task(title, total=None, count="")
    return bar


def error_text(error: Exception) -> str:
    """The message of an error, in one line."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return " ".join(str(error).split())


def print_note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr)


def show_warning(message: Warning | str, category: type[Warning], *rest: object, **more: object) -> None:
    """A replacement for warnings.showwarning: one line, without file and line number."""
    print_note(str(message))
