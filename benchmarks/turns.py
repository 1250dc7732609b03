"""Shared by the benchmarks: contenders that take turns, each in its own process, and the results folder."""

import json
import math
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results")


class Worker:
    """A process that builds one contender, and prints the seconds of one call for each line on its input.

    It runs `script --worker ARGUMENTS`, which calls `serve`. In its own process every contender has the
    allocator and caches that it would have in a user's program.
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
    """The side of the worker: print a number for every line on the input."""
    for _ in sys.stdin:
        print(seconds_of_a_call(), flush=True)


def best_of_turns(script: str, contenders: Mapping[str, tuple[str, ...]], rounds: int) -> dict[str, float]:
    """Seconds of one call by name, the best of several rounds in which the contenders take turns."""
    workers = {name: Worker(script, *arguments) for name, arguments in contenders.items()}
    for worker in workers.values():  # build and warm up one after the other
        worker.call(), worker.call()
    best = dict.fromkeys(workers, math.inf)
    for _ in range(rounds):
        for name, worker in workers.items():
            best[name] = min(best[name], worker.call())
    for worker in workers.values():
        worker.close()
    return best


def save(name: str, rows: Iterable[dict[str, Any]], **settings: Any) -> None:
    """Write results/<name>.json."""
    from machine import machine  # imports torch, which waiting processes do not need

    RESULTS.mkdir(exist_ok=True)
    text = json.dumps({"machine": machine(), **settings, "rows": list(rows)}, indent=1)
    (RESULTS / f"{name}.json").write_text(text + "\n")
