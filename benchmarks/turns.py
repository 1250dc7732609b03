"""What the benchmarks share: contenders that take turns, each in a process of its own, and where results go."""

import json
import math
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results")


class Worker:
    """A process that makes one thing and answers each line it is sent with the seconds one call took.

    script is called as `script --worker ARGUMENTS`, and answers by `serve`. A process of its own gives every
    contender the allocator and caches that a user's program would have.
    """

    def __init__(self, script: str, *arguments: str) -> None:
        command = [sys.executable, "-W", "ignore", script, "--worker", *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def call(self) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def close(self) -> None:
        self.process.communicate()


def serve(seconds_of_a_call: Any) -> None:
    """The worker's side: a number for every line."""
    for _ in sys.stdin:
        print(seconds_of_a_call(), flush=True)


def best_of_turns(script: str, contenders: dict[str, tuple[str, ...]], rounds: int) -> dict[str, float]:
    """Seconds of one call by name, the best of several rounds in which the contenders take turns."""
    workers = {name: Worker(script, *arguments) for name, arguments in contenders.items()}
    for worker in workers.values():  # one after the other: building and warming up
        worker.call(), worker.call()
    best = dict.fromkeys(workers, math.inf)
    for _ in range(rounds):
        for name, worker in workers.items():
            best[name] = min(best[name], worker.call())
    for worker in workers.values():
        worker.close()
    return best


def save(name: str, rows: Iterable[dict[str, Any]], **settings: Any) -> None:
    """To results/<name>.json."""
    from machine import machine  # imports torch, which the processes that only wait need not

    RESULTS.mkdir(exist_ok=True)
    text = json.dumps({"machine": machine(), **settings, "rows": list(rows)}, indent=1)
    (RESULTS / f"{name}.json").write_text(text + "\n")
