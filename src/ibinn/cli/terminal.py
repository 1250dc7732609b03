"""What a person sees of a command: progress, notices, errors in one line."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress(title: str, unit: str = "", scale: float = 1.0) -> Iterator[Callable[[int, int | None], None]]:
    """A callback (done, total) that draws a bar with ETA in a terminal, and plain lines every 5 s elsewhere.

    Nothing is shown of what takes less than two seconds.
    """
    start = time.monotonic()
    last = start - 3

    def report(done: int, total: int | None) -> None:
        nonlocal last
        now = time.monotonic()
        interactive = sys.stderr.isatty()
        if now - start < 2 or now - last < (0.2 if interactive else 5):
            return
        last = now
        left = f", {(now - start) / done * (total - done):.0f} s left" if total and done else ""
        line = (
            f"{title}: {done * scale:.0f}{f' of {total * scale:.0f}' if total else ''} {unit}".rstrip()
            + left
        )
        print(
            f"\r\x1b[K{line}" if interactive else line,
            end="" if interactive else "\n",
            file=sys.stderr,
            flush=True,
        )

    try:
        yield report
    finally:
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return " ".join(str(error).split())


def show_notice(message: Warning | str, category: type[Warning], *rest: object, **more: object) -> None:
    note(str(message))


def note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr)
