"""ibinn sweep from end to end: each run is done once, whatever is killed, stopped or started twice."""

import contextlib
import csv
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ibinn.cli import main
from ibinn.sweep.plan import PlannedRun, plan, read_experiment
from ibinn.sweep.remaining import Workspace, state_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_places")]
N_RUNS = 12 if os.environ.get("HYPOTHESIS_PROFILE") == "soak" else 4
FOREVER = 100_000  # epochs
SLOW = "[[runs]]\nmethod = 'class-nll'\nepochs = 300\n"  # ten seconds or so
SIGNALS = [signal.SIGINT, signal.SIGTERM] if N_RUNS > 4 else [signal.SIGINT]


class Experiment:
    """A small table and an experiment file, in a folder of its own; sweeps as processes there."""

    def __init__(self, folder, caches):
        self.folder, self.home = folder, folder / "runs" / "e"
        self.environment = os.environ | {"MPLCONFIGDIR": str(caches), "IBINN_CACHE": str(caches)}
        y = np.arange(120) % 2
        np.savez(folder / "t.npz", x=np.random.default_rng(0).normal(size=(120, 2)) + 2 * y[:, None], y=y)

    def write(self, blocks, epochs=1):
        # Without patience, and with many epochs: a run that is not over before somebody stops it.
        text = 'data = "t.npz"\nsize = "tiny"\n'
        text += f"epochs = {epochs}\n[recipe]\npatience = 0\n[network]\ndense_blocks = 1\ndense_width = 8\n"
        (self.folder / "e.toml").write_text(text + blocks)
        self.runs = [run.name for run in plan(read_experiment(self.folder / "e.toml"), self.home)]

    def start(self, *words):
        command = [sys.executable, "-m", "ibinn.cli", "sweep", "e.toml", "--cpus-per-run", "1", *words]
        pipe = subprocess.PIPE
        # A session of its own, so that its process group can be sent what a terminal sends.
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment,
            stdout=pipe,
            stderr=pipe,
            text=True,
            start_new_session=True,
        )

    def sweep(self, *words):
        return ended(self.start(*words))

    def wait_for_epoch(self, number, process):
        """Until a run is in the midst of training."""
        wait_until((self.home / self.runs[number] / "history.jsonl").exists, process)

    def attempts(self, number):
        """How often a run was begun: the lines of its log that are its command."""
        lines = (self.home / "logs" / f"{self.runs[number]}.log").read_text().splitlines()
        assert " -m ibinn.cli train " in lines[0]
        return sum(" -m ibinn.cli train " in line for line in lines)

    def model(self, number):
        """What changes if a model is written again."""
        stat = (self.home / self.runs[number] / "model.safetensors").stat()
        return stat.st_ino, stat.st_mtime_ns

    def checkpoint(self, number):
        return self.home / self.runs[number] / "checkpoint" / "state.safetensors"

    def state(self, number):
        run = PlannedRun(self.runs[number], self.home / self.runs[number], (), "ibinn", ())
        return state_of(run, Workspace(self.home, self.folder))


def processes_in(folder):
    """Number, parent and command of what works in a folder."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if process.joinpath("cwd").readlink() == folder:
                parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
                yield int(process.name), parent, (process / "cmdline").read_bytes().decode()
        except OSError:  # it has ended
            continue


def wait_until(holds, process):
    """While the process lives; a process that hangs is no reason for a test to do so."""
    deadline = time.monotonic() + 300
    while not holds():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def ended(process):
    """Exit code, stdout and stderr of a sweep."""
    out, err = process.communicate(timeout=600)
    assert "Traceback" not in err
    return process.returncode, out, err


def started(err):
    return [line.split()[1].rstrip(";") for line in err.splitlines() if line.startswith("started ")]


@pytest.fixture
def experiment(tmp_path, tmp_path_factory):
    caches = tmp_path_factory.getbasetemp() / "caches"  # matplotlib's list of fonts takes seconds to make
    caches.mkdir(exist_ok=True)
    yield Experiment(tmp_path, caches)
    for number, _, _ in processes_in(tmp_path):  # of a test that failed
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


def test_a_killed_sweep_two_after_it_and_no_run_done_twice(experiment, tmp_path, capsys):
    """SIGKILL leaves a training behind; two sweeps then share the rest and wait for it. Report over the folder."""
    gammas = [2.0**i for i in range(N_RUNS)]
    blocks = f"[[runs]]\ngamma = 1\n[[runs]]\ngamma = 2\nepochs = 150\n[[runs]]\ngamma = {gammas[2:]}"
    experiment.write(blocks)
    first = experiment.start()
    experiment.wait_for_epoch(1, first)
    first.kill()
    first.communicate()
    assert experiment.state(1) == "elsewhere", "the orphan keeps its lock"
    before = experiment.model(0)
    both = [experiment.start(), experiment.start()]
    results = [ended(process) for process in both]
    for code, out, err in results:
        assert code == 0, err
        assert out.splitlines() == [f"{N_RUNS} of {N_RUNS} done", f"next: ibinn report {Path('runs', 'e')}"]
        assert f"running elsewhere {experiment.runs[1]}" in err
    mine, yours = (started(err) for _, _, err in results)
    assert sorted([*mine, *yours]) == sorted(experiment.runs[2:]), "each by one of them"
    assert [experiment.attempts(i) for i in range(N_RUNS)] == [1] * N_RUNS
    assert experiment.model(0) == before
    models = [experiment.model(i) for i in range(N_RUNS)]
    code, _, err = experiment.sweep()
    assert (code, started(err)) == (0, [])
    assert [experiment.model(i) for i in range(N_RUNS)] == models
    experiment.write(blocks, epochs=3)
    code, _, err = experiment.sweep()
    assert code == 1
    failed = [line for line in err.splitlines() if line.startswith("ibinn: ")]
    assert [line.split()[1] for line in failed] == [experiment.runs[0], *experiment.runs[2:]], (
        "1 has its own"
    )
    assert all("epochs is 1 there, 3 here" in line and "--out" in line for line in failed)
    assert [experiment.model(i) for i in range(N_RUNS)] == models
    (experiment.home / experiment.runs[0] / "results.json").unlink()
    main(["report", str(experiment.home)])
    assert f"1 of {N_RUNS} runs in {experiment.home}" in capsys.readouterr().err
    rows = csv.DictReader((experiment.home / "report" / "table.csv").read_text().splitlines())
    assert [float(row["gamma"]) for row in rows] == gammas[1:]
    assert (experiment.home / "report" / "figures" / "gamma.png").is_file()


@pytest.mark.parametrize("number", SIGNALS, ids=lambda n: n.name)
def test_a_stop_saves_and_the_same_command_goes_on(number, experiment):
    experiment.write(f"[[runs]]\nseed = 0\n[[runs]]\nseed = 1\nepochs = {FOREVER}\n[[runs]]\nseed = 2")
    process = experiment.start()
    experiment.wait_for_epoch(1, process)
    before = experiment.model(0)
    os.killpg(process.pid, number)  # as a terminal does it
    code, _, err = ended(process)
    assert code == 128 + number
    assert "failed" not in err
    assert err.splitlines()[-1].endswith("the same command continues")
    assert experiment.checkpoint(1).is_file()
    log = experiment.home / "logs" / f"{experiment.runs[1]}.log"
    assert "SIGTERM" in log.read_text(), "from us, and nothing from the terminal"
    assert experiment.state(1) == "waiting"
    assert not (experiment.home / experiment.runs[2]).exists()
    process = experiment.start()
    wait_until(lambda: re.search(r"note: .* epoch \d", log.read_text()), process)  # where it continues
    os.killpg(process.pid, number)
    code, _, err = ended(process)
    assert code == 128 + number
    assert started(err) == experiment.runs[1:2]
    assert [experiment.attempts(i) for i in (0, 1)] == [1, 2]
    assert experiment.model(0) == before


def test_failed_runs_are_told_of_at_the_end_and_do_not_stop_the_others(experiment):
    experiment.write('[[runs]]\ndata = ["no.npz", "t.npz"]\n[[runs]]\nseed = 1')
    mine = experiment.home / experiment.runs[2] / "mine.txt"
    mine.parent.mkdir(parents=True)
    mine.touch()
    code, out, err = experiment.sweep()
    assert code == 1
    assert out.splitlines()[0] == "1 of 3 done, 2 failed"
    assert experiment.state(1) == "done"
    last = err.splitlines()[-2:]
    assert last[0].startswith(f"ibinn: {experiment.runs[0]} failed: ")
    assert "no.npz" in last[0]
    assert last[0].endswith(f"see {Path('runs', 'e', 'logs', experiment.runs[0])}.log")
    assert str(Path("runs", "e", experiment.runs[2])) in last[1]
    assert [experiment.attempts(i) for i in range(3)] == [1, 1, 1]


def test_a_sweep_killed_on_ray_goes_on_and_does_no_run_twice(experiment):
    """In the midst of a training, whose worker notices a second or two later and by default would kill it."""
    slow = 2  # on two CPUs begun when a short one is done, so that all of it is ahead
    experiment.write(f"[[runs]]\nseed = [1, 2]\n{SLOW}[[runs]]\nseed = {[*range(3, N_RUNS)]}")
    first = experiment.start("--ray", "local")
    experiment.wait_for_epoch(slow, first)
    wait_until(lambda: "done" in map(experiment.state, range(slow)), first)
    before = {i: experiment.model(i) for i in range(slow) if experiment.state(i) == "done"}
    first.kill()
    first.communicate()
    assert experiment.state(slow) == "elsewhere", "the orphan keeps its lock"
    code, out, err = experiment.sweep("--ray", "local")
    assert code == 0, err
    assert out.splitlines()[-2] == f"{N_RUNS} of {N_RUNS} done"
    assert {i: experiment.model(i) for i in before} == before
    assert [experiment.attempts(i) for i in range(N_RUNS)] == [1] * N_RUNS, "orphans are waited for"


@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="finds processes through /proc")
def test_on_ray_and_a_training_outlives_its_worker(experiment):
    n = N_RUNS - 1
    experiment.write(f"{SLOW}[[runs]]\nseed = {[*range(n - 1)]}")
    process = experiment.start("--ray", "local")
    experiment.wait_for_epoch(0, process)
    wait_until(lambda: experiment.state(1) != "waiting", process)  # beside the first
    assert experiment.state(0) == "elsewhere"
    worker = next(
        parent for _, parent, command in processes_in(experiment.folder) if experiment.runs[0] in command
    )
    os.kill(worker, signal.SIGKILL)
    code, out, err = ended(process)
    assert code == 0, err
    assert out.splitlines()[-2] == f"{n} of {n} done"  # below what Ray prints
    assert f"running elsewhere {experiment.runs[0]}" in err
    assert [experiment.state(i) for i in range(n)] == ["done"] * n
    assert [experiment.attempts(i) for i in range(n)] == [1] * n
    assert sorted(started(err)) == sorted(experiment.runs)


def test_a_stop_on_ray_lets_every_run_save(experiment):
    experiment.write("[[runs]]\nseed = [0, 1, 2]", epochs=FOREVER)
    process = experiment.start("--ray", "local")
    experiment.wait_for_epoch(0, process)
    experiment.wait_for_epoch(1, process)
    os.killpg(process.pid, signal.SIGINT)
    code, _, err = ended(process)
    assert code == 130, err
    assert "failed" not in err
    assert err.splitlines()[-1].endswith("the same command continues")
    for i in (0, 1):
        assert experiment.checkpoint(i).is_file()
        assert "SIGTERM" in (experiment.home / "logs" / f"{experiment.runs[i]}.log").read_text()
        assert experiment.state(i) == "waiting", "its training has ended"
    assert experiment.state(2) == "waiting"
    assert not (experiment.home / experiment.runs[2]).exists()
