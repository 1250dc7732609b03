"""The runs of a sweep on a Ray cluster: as many at a time as its resources allow."""

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from typing import Any

from ibinn.config import ConfigError
from ibinn.sweep.plan import Planned
from ibinn.sweep.work import (
    TICK_SECONDS,
    Outcome,
    Place,
    Stop,
    Watcher,
    is_finished,
    listening,
    perform,
    state_of,
)

OBJECT_STORE_BYTES = 80 * 2**20  # Ray's least: nothing but outcomes is sent
# Of workers. Otherwise one whose sweep is killed may kill its training, which then has no time to save.
SPARING = {"env_vars": {"RAY_kill_child_processes_on_worker_exit": "0"}}


@contextlib.contextmanager
def connected(address: str) -> Iterator[Any]:
    """Ray, connected: auto is the cluster of this machine, local one that lives as long as the with-block."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        import ray
    except ImportError as error:
        raise ConfigError("Ray is not installed; pip install ray, or leave out --ray") from error
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "runtime_env": SPARING}
    if address == "local":
        options |= {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    elif address != "auto":
        check_reachable(address)
    try:
        ray.init(address=address, **options)
    except (ConnectionError, RuntimeError, ray.exceptions.RayError) as error:
        raise ConfigError(
            "there is no Ray cluster on this machine; start one with: ray start --head, or use --ray local"
            if address == "auto"
            else f"this machine is no node of the Ray cluster at {address}, or that does not answer: "
            f"{' '.join(str(error).split())[:200]}"
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def check_reachable(address: str) -> None:
    """ConfigError unless something listens there: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"--ray is {address!r} but must be auto, local or HOST:PORT, as in 10.0.0.1:6379")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError as error:
        raise ConfigError(
            f"nothing answers at {address} ({error.strerror or error}); is the Ray cluster up?"
        ) from error


def n_places(nodes: list[dict[str, Any]], cpus: float, gpus: float) -> int:
    """How many runs the nodes have room for at a time, as Ray counts."""
    total = 0
    for node in nodes:
        has = node["Resources"] if node["Alive"] else {}
        total += int(min(has.get(name, 0) // need for name, need in (("CPU", cpus), ("GPU", gpus)) if need))
    return total


def lack_of_room(nodes: list[dict[str, Any]], cpus: float, gpus: float) -> str:
    """Why no run can start, in a sentence; nothing where one can."""
    if n_places(nodes, cpus, gpus):
        return ""
    most = [
        max((node["Resources"].get(name, 0) for node in nodes if node["Alive"]), default=0)
        for name in ("CPU", "GPU")
    ]
    return (
        f"no node of the Ray cluster has {cpus:g} CPUs and {gpus:g} GPUs for a run; the most that one has "
        f"are {most[0]:g} and {most[1]:g}: change --cpus-per-run or --gpus-per-run"
    )


def attempt(run: Planned, place: Place) -> Outcome:
    """What a worker does. Ray's cancel looks like a SIGINT to it, and lets the run save."""
    with listening() as stop:
        return perform(run, place, stop)


def work_on_ray(
    ray: Any, plan: list[Planned], place: Place, stop: Stop, watcher: Watcher, cpus: int, gpus: float
) -> None:
    """All runs, as Ray finds room for them. A stop is passed on to them, and waited for."""
    task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0)(attempt)
    left, flying, seen, n_told = list(plan), dict[Any, Planned](), set[str](), 0
    while flying or (left and not stop.number):
        if stop.count > n_told:
            n_told = stop.count
            for ref in flying:
                ray.cancel(ref)
        for run in [] if stop.number else list(left):
            state = state_of(run, place)
            if state != "elsewhere":
                left.remove(run)
            if state == "done":
                watcher.ended(run, perform(run, place, stop))
            elif state == "waiting":
                flying[task.remote(run, place)] = run
        if flying:
            for ref in ray.wait([*flying], timeout=TICK_SECONDS)[0]:
                run = flying.pop(ref)
                outcome = outcome_of(ray, ref, run, place)
                watcher.ended(run, outcome)
                seen.discard(run.name)
                if outcome.state == "elsewhere":
                    left.append(run)
        else:
            time.sleep(TICK_SECONDS)
        for run in flying.values():
            if run.name not in seen and state_of(run, place) == "elsewhere":
                seen.add(run.name)
                watcher.started(run)
        watcher.tick()


def outcome_of(ray: Any, ref: Any, run: Planned, place: Place) -> Outcome:
    """What a worker returned; one that crashed is a failed run, unless its training lives on."""
    try:
        outcome: Outcome = ray.get(ref)
    except ray.exceptions.TaskCancelledError:
        return Outcome("stopped")
    except ray.exceptions.RayError as error:
        if state_of(run, place) == "elsewhere":
            return Outcome("elsewhere")
        said = [line.strip() for line in str(error).splitlines() if line.strip()]
        return Outcome("failed", why=f"its Ray worker ended: {said[-1] if said else type(error).__name__}")
    if outcome.state == "done" and not is_finished(place.working / run.folder):
        return Outcome("failed", why=f"it is finished on a node that does not share {place.home}")
    return outcome
