"""The runs of a sweep on a Ray cluster: as many at a time as its resources allow."""

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from typing import Any

from ibinn.config import ConfigError
from ibinn.sweep.local import TICK_SECONDS, Stop, SweepObserver, catch_signals, make_run
from ibinn.sweep.plan import PlannedRun
from ibinn.sweep.remaining import Outcome, Workspace, outcome_of_done, state_of

OBJECT_STORE_BYTES = 80 * 2**20  # Ray's minimum: only outcomes are sent
# For workers. Otherwise a worker whose sweep is killed may kill its training before that can save.
WORKER_ENVIRONMENT = {"env_vars": {"RAY_kill_child_processes_on_worker_exit": "0"}}


@contextlib.contextmanager
def connect(address: str) -> Iterator[Any]:
    """The ray module, connected: auto is the cluster of this machine, local starts one for the with-block."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        import ray
    except ImportError as error:
        raise ConfigError("Ray is not installed; pip install ray, or leave out --ray") from error
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == "local":
        options |= {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    elif address != "auto":
        check_reachable(address)
    try:
        ray.init(address=address, runtime_env=WORKER_ENVIRONMENT, **options)
    except (ConnectionError, RuntimeError, ray.exceptions.RayError) as error:
        raise ConfigError(
            "there is no Ray cluster on this machine; start one with: ray start --head, or use --ray local"
            if address == "auto"
            else f"the Ray cluster at {address} does not answer, or this machine is not one of its nodes: "
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


def n_slots(nodes: list[dict[str, Any]], cpus: float, gpus: float) -> int:
    """How many runs fit on the nodes at a time, as Ray counts."""
    total = 0
    for node in nodes:
        has = node["Resources"] if node["Alive"] else {}
        total += int(min(has.get(name, 0) // need for name, need in (("CPU", cpus), ("GPU", gpus)) if need))
    return total


def shortage(nodes: list[dict[str, Any]], cpus: float, gpus: float) -> str:
    """Why no run fits on any node, in a sentence; empty if one does."""
    if n_slots(nodes, cpus, gpus):
        return ""
    most = [
        max((node["Resources"].get(name, 0) for node in nodes if node["Alive"]), default=0)
        for name in ("CPU", "GPU")
    ]
    return (
        f"no node of the Ray cluster has {cpus:g} CPUs and {gpus:g} GPUs for a run; the largest numbers are "
        f"{most[0]:g} and {most[1]:g}: change --cpus-per-run or --gpus-per-run"
    )


def make_run_in_worker(run: PlannedRun, workspace: Workspace) -> Outcome:
    """The task of a Ray worker. Ray cancels it with a SIGINT, after which the run saves."""
    with catch_signals() as stop:
        return make_run(run, workspace, stop, SweepObserver())


def run_on_ray(
    ray: Any, plan: list[PlannedRun], workspace: Workspace, stop: Stop, observer: SweepObserver
) -> None:
    """Make all runs, as Ray finds room for them. A stop is passed on to them, and they are waited for."""
    task = ray.remote(num_cpus=workspace.threads or 1, num_gpus=workspace.gpus or 0, max_retries=0)(
        make_run_in_worker
    )
    left, submitted, started, n_cancels = list(plan), dict[Any, PlannedRun](), set[str](), 0
    while submitted or (left and not stop.number):
        if stop.count > n_cancels:
            n_cancels = stop.count
            for ref in submitted:
                ray.cancel(ref)
        for run in [] if stop.number else list(left):
            state = state_of(run, workspace)
            if state != "elsewhere":
                left.remove(run)
            if state == "done":
                observer.ended(run, outcome_of_done(run, workspace))
            elif state == "waiting":
                submitted[task.remote(run, workspace)] = run
        if submitted:
            for ref in ray.wait([*submitted], timeout=TICK_SECONDS)[0]:
                run = submitted.pop(ref)
                outcome = outcome_of_task(ray, ref, run, workspace)
                observer.ended(run, outcome)
                started.discard(run.name)
                if outcome.state == "elsewhere":
                    left.append(run)
        else:
            time.sleep(TICK_SECONDS)
        for run in submitted.values():
            if run.name not in started and state_of(run, workspace) == "elsewhere":
                started.add(run.name)
                observer.started(run)
        observer.tick()


def outcome_of_task(ray: Any, ref: Any, run: PlannedRun, workspace: Workspace) -> Outcome:
    """What a worker returned; if the worker crashed, the run has failed unless its training is still alive."""
    try:
        outcome: Outcome = ray.get(ref)
    except ray.exceptions.TaskCancelledError:
        return Outcome("stopped")
    except ray.exceptions.RayError as error:
        if state_of(run, workspace) == "elsewhere":
            return Outcome("elsewhere")
        lines = [type(error).__name__, *(line.strip() for line in str(error).splitlines() if line.strip())]
        return Outcome("failed", why=f"its Ray worker ended: {lines[-1]}")
    if outcome.state == "done" and not workspace.is_done(run):
        return Outcome("failed", why=f"it is finished on a node that does not share {workspace.home}")
    return outcome
