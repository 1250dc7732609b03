"""ibinn sweep: experiment files, and many runs of which each is done once, whatever happens."""

import contextlib
import csv
import io
import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from ibinn.cli import main, parse
from ibinn.cli.board import Board, Row, chosen, shortened, time_left
from ibinn.config import GAMMA_METHODS, ConfigError, toml_value
from ibinn.models.methods import METHODS
from ibinn.sweep.cluster import connected, lack_of_room, n_places
from ibinn.sweep.plan import Planned, plan, read_experiment
from ibinn.sweep.work import Outcome, Place, Stop, locked, state_of

pytestmark = pytest.mark.usefixtures("own_places")
EXPERIMENTS = Path(__file__).parent.parent / "experiments"
N_RUNS = 12 if os.environ.get("HYPOTHESIS_PROFILE") == "soak" else 4
FOREVER = 100_000  # epochs
SIGNALS = [signal.SIGINT, signal.SIGTERM] if N_RUNS > 4 else [signal.SIGINT]


def planned(text, tmp_path, *more):
    path = tmp_path / "e.toml"
    path.write_text(text)
    return plan(read_experiment(path), Path("runs"), *more)


def train_of(run):
    """The command of a run as ibinn itself understands it."""
    assert run.command[:4] == (sys.executable, "-m", "ibinn.cli", "train")
    return parse([*run.command[3:]])


# The plan


def some(values, **how):
    return st.lists(values, min_size=1, max_size=2, unique=True, **how)


AXES = {
    "data": some(st.sampled_from(["digits", "mnist", "a b/c.npz"])),
    "size": some(st.sampled_from(["tiny", "small"])),
    "seed": some(st.integers(0, 9)),
    "method": some(st.sampled_from([*METHODS])),
    "sigma": some(st.sampled_from([1e-4, 0.001, 1.0])),
}


@given(st.fixed_dictionaries({}, optional=AXES), st.fixed_dictionaries({}, optional=AXES), st.data())
def test_a_plan_is_the_product_of_its_axes(tmp_path_factory, base, block, more):
    base = {"data": ["digits"], "size": ["tiny"]} | base
    both = {"method": ["ibinn"], "seed": [0], "sigma": [None]} | base | block
    if any(method in GAMMA_METHODS for method in both["method"]):
        base["gamma"] = more.draw(some(st.sampled_from([0.0, 0.02, 1.0, float("inf")])))
    lines = [f"{key} = {toml_value(values)}" for key, values in base.items()]
    lines += ["[[runs]]", *(f"{key} = {toml_value(values)}" for key, values in block.items())]
    runs = planned("\n".join(lines), tmp_path_factory.mktemp("plan"))
    wanted = set()
    for values in itertools.product(*(both[key] for key in AXES)):
        wanted |= {(*values, g) for g in (base["gamma"] if values[3] in GAMMA_METHODS else [None])}
    assert len(runs) == len({run.name for run in runs}) == len(wanted)
    for run in runs:
        train = train_of(run)
        settings = dict(word.split("=") for words in train.set for word in words)
        sigma = float(settings["recipe.sigma"]) if "recipe.sigma" in settings else None
        assert settings.get("recipe.noise") == (None if sigma is None else "gaussian")
        gamma = train.gamma if train.method in GAMMA_METHODS else None
        wanted.remove((train.data, train.size, train.seed, train.method, sigma, gamma))
        assert train.out == run.folder == Path("runs", run.name)
        assert train.resume
        assert train.evaluate
    assert not wanted


def test_names_are_those_of_ibinn_train(tmp_path):
    text = 'data = "digits"\nsize = "tiny"\n[[runs]]\ngamma = [0.5, inf]\n[[runs]]\nmethod = "resnet"\n'
    text += '[[runs]]\nsigma = 0.01\npriors = "uniform"\n'
    assert [run.name for run in planned(text, tmp_path)] == [
        "digits-ibinn-gamma0.5-tiny-seed0",
        "digits-ibinn-gammainf-tiny-seed0",
        "digits-resnet-tiny-seed0",
        "digits-ibinn-gamma1-tiny-seed0-uniform-sigma0.01",
    ]


def test_a_block_wins_over_the_base_setting_by_setting(tmp_path):
    text = """
        data = "t.csv"
        size = "tiny"
        target = "kind"
        epochs = 3
        [recipe]
        clip = 2
        [network]
        dense_blocks = 2
        [[runs]]
        seed = [1, 2]
        [[runs]]
        precision = "bf16"
        [runs.recipe]
        epochs = 5
        noise = "both"
        [runs.network]
        dense_width = 16
    """
    runs = [train_of(run) for run in planned(text, tmp_path, "--device", "cpu")]
    assert [run.set for run in runs] == [
        (("recipe.clip=2.0", "recipe.epochs=3", "network.dense_blocks=2"),),
        (("recipe.clip=2.0", "recipe.epochs=3", "network.dense_blocks=2"),),
        (
            (
                *("recipe.clip=2.0", "recipe.epochs=5", "recipe.noise=both"),
                *("network.dense_blocks=2", "network.dense_width=16"),
            ),
        ),
    ]
    assert [run.precision for run in runs] == ["float32", "float32", "bf16"]
    assert {(run.target, run.device) for run in runs} == {("kind", "cpu")}


START = 'data = "digits"\nsize = "tiny"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data = ", "is not valid TOML"),
        (START + "gama = 1", "has an unknown key 'gama'; did you mean 'gamma'?"),
        (START + "[[run]]\nseed = 1", "has an unknown key 'run'; did you mean 'runs'?"),
        (START + "[[runs]]\nsede = 1", "[[runs]] number 1 in"),
        (START + "[[runs]]\nsede = 1", "did you mean 'seed'?"),
        (START + "[runs]\nseed = 1", "must be blocks, each below a line [[runs]]"),
        (START + "runs = []", "must be blocks"),
        (START + 'gamma = "1"', "is '1' but must be a number"),
        (START + "gamma = [1, true]", "is True but must be a number"),
        (START + "gamma = -1", "gamma is -1.0 but must be 0 or more"),
        (START + "gamma = nan", "gamma is nan"),
        (START + "sigma = 0", "sigma is 0.0 but must be positive"),
        (START + "seed = [0, 1.5]", "is 1.5 but must be an integer"),
        (START + "seed = []", "is an empty list"),
        (START + "epochs = 0", "epochs is 0 but must be 1 or more"),
        (START + "epochs = [1, 2]", "is [1, 2] but must be an integer"),
        (START + 'method = "ibin"', "is 'ibin' but must be one of 'ibinn', 'class-nll'"),
        (START + 'precision = "half"', "is 'half' but must be one of 'float32', 'bf16' or nothing"),
        (START + "[recipe]\nlearning_rat = 1", "did you mean 'learning_rate'?"),
        (START + '[recipe]\nclip = "a"', "clip in recipe in"),
        (START + "[network]\nblocks = 4", "blocks in network in"),
        (START + "recipe = 3", "must be a table of settings"),
        (START + "epochs = 2\n[recipe]\nepochs = 3", "gives epochs twice"),
        (START + "sigma = 0.1\n[recipe]\nsigma = 0.2", "leave out sigma in [recipe]"),
        (START + 'sigma = 0.1\n[recipe]\nnoise = "both"', "leave out noise in [recipe]"),
        (START + '[[runs]]\nmethod = ["ibinn", "resnet"]\ngamma = 2', "resnet has no gamma"),
        (START + 'gamma = 2\nmethod = "irevnet"', "gamma is given but no run has one"),
        (
            START + "[[runs]]\nseed = 1\n[[runs]]\nseed = [0, 1]",
            "two runs are called digits-ibinn-gamma1-tiny-seed1",
        ),
        (START + "gamma = [1, 1.0000000001]", "two runs are called digits-ibinn-gamma1-tiny-seed0"),
        ('data = "digits"', "size is missing"),
        ('[[runs]]\ndata = "digits"\nsize = "tiny"\n[[runs]]\nsize = "tiny"', "data is missing"),
    ],
)
def test_what_is_not_understood_is_refused_in_one_sentence(text, message, tmp_path, capsys):
    path = tmp_path / "e.toml"
    path.write_text(text)
    with pytest.raises(SystemExit) as caught:
        main(["sweep", str(path), "--dry-run"])
    assert caught.value.code == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_options_that_do_not_fit_are_refused(tmp_path, capsys):
    (tmp_path / "e.toml").write_text(START)
    (tmp_path / "e.bin").write_bytes(b"\xff\xfe\x00")
    for words, message in {
        ("no.toml",): "No such file",
        ("e.bin",): "is no text in UTF-8",
        ("e.toml", "--cpus-per-run", "0"): "--cpus-per-run is 0 but must be 1 or more",
        ("e.toml", "--gpus-per-run", "1"): "--gpus-per-run is for --ray",
        ("e.toml", "--ray", "nowhere"): "must be auto, local or HOST:PORT",
        ("e.toml", "--ray", "127.0.0.1:1"): "nothing answers at 127.0.0.1:1",
    }.items():
        with pytest.raises(SystemExit) as caught:
            main(["sweep", str(tmp_path / words[0]), *words[1:], "--out", str(tmp_path / "out")])
        assert caught.value.code == 2
        assert message in capsys.readouterr().err
        assert not (tmp_path / "out").exists()


def test_no_ray_and_no_cluster_are_one_sentence(monkeypatch):
    def refused(**how):
        assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
        raise ConnectionError("no instance")

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "1")
    monkeypatch.setattr("ray.init", refused)
    with pytest.raises(ConfigError, match="ray start --head, or use --ray local"), connected("auto"):
        pass
    monkeypatch.setitem(sys.modules, "ray", None)
    with (
        pytest.raises(ConfigError, match=r"Ray is not installed; pip install 'ibinn\[sweep\]'"),
        connected("local"),
    ):
        pass


TABLE = {("ibinn", gamma) for gamma in (0.0, 0.1, 1.0, 10.0, float("inf"))}
TABLE |= {(method, None) for method in ("class-nll", "class-nll-fixed", "resnet", "irevnet")}


@pytest.mark.parametrize("name", [path.stem for path in sorted(EXPERIMENTS.glob("*.toml"))])
def test_every_experiment_of_ours_can_be_planned(name):
    runs = plan(read_experiment(EXPERIMENTS / f"{name}.toml"), Path("runs"))
    trains = [train_of(run) for run in runs]
    setups = {(t.method, t.gamma if t.method in GAMMA_METHODS else None) for t in trains}
    settings = [dict(word.split("=") for words in t.set for word in words) for t in trains]
    sigmas = sorted(float(s["recipe.sigma"]) for s in settings if "recipe.sigma" in s)
    small = name.endswith("-two-cores")
    if name == "digits":
        assert setups == TABLE | {("vib", 1.0)}
        assert [t.seed for t in trains if (t.method, t.gamma) == ("ibinn", 1.0)] == [0, 1]
        return
    assert {t.priors for t in trains} == {"uniform"}
    assert {t.size for t in trains} == ({"small"} if small else {"paper"})
    assert {t.data for t in trains} == {"cifar100" if "cifar100" in name else "cifar10"}
    assert small == all("recipe.epochs" in s for s in settings)
    if "table" in name:
        assert setups == TABLE | ({("vib", 1.0)} if "cifar10-" in name else set())
        assert len(runs) == len(setups)
    elif "gamma" in name:
        gammas = sorted(gamma for _, gamma in setups if _ == "ibinn")
        assert setups == {(method, gamma) for method in GAMMA_METHODS for gamma in gammas}
        assert_log_spaced(gammas, 9 if small else 25, 0.02, 50)
        assert 1.0 in gammas
    else:
        assert setups == {("ibinn", 0.2)}
        assert_log_spaced(sigmas, 9 if small else 25, 1e-4, 1)


def assert_log_spaced(values, n, first, last):
    assert len(values) == n
    assert (values[0], values[-1]) == (first, last)
    assert values == pytest.approx(np.geomspace(first, last, n), rel=0.05)  # two digits


def test_all_experiments_of_the_paper_are_there():
    names = {
        f"{name}{size}"
        for name in ("cifar10-table", "cifar100-table", "gamma-sweep", "sigma-sweep")
        for size in ("", "-two-cores")
    }
    assert names | {"digits"} == {path.stem for path in EXPERIMENTS.glob("*.toml")}


# Locks, and what is shown


def a_plan(n, method="ibinn"):
    return [Planned(f"run{i}", Path(f"run{i}"), ("true",), method, ()) for i in range(n)]


def test_a_lock_is_held_once_and_as_long_as_a_process_that_got_it_lives(tmp_path):
    run, place = a_plan(1)[0], Place(tmp_path, tmp_path)
    assert state_of(run, place) == "waiting"
    with locked(place.lock(run)) as file:
        assert locked(place.lock(run)) is None
        sleeper = subprocess.Popen(["sleep", "60"], pass_fds=(file.fileno(),))
    assert state_of(run, place) == "elsewhere"
    sleeper.kill()
    sleeper.wait()
    assert state_of(run, place) == "waiting"
    (tmp_path / "run0").mkdir()
    for name in ("model.safetensors", "results.json"):
        assert state_of(run, place) == "waiting"
        (tmp_path / "run0" / name).touch()
    assert state_of(run, place) == "done"


def rows_of(**counts):
    rows, n = [], itertools.count()
    for state, number in counts.items():
        for i in range(number):
            run = Planned(f"run{next(n)}", Path(f"run{next(n)}"), (), "ibinn", ())
            rows.append(Row(run, state, at=float(i), seconds=10.0))
    return rows


def test_what_runs_or_failed_comes_first_then_the_latest_done_and_the_next_waiting():
    rows = rows_of(done=20, failed=2, running=1, waiting=30)
    shown, n_more = chosen(rows, 11)
    assert [row.state for row in shown] == ["running", *["failed"] * 2, *["done"] * 4, *["waiting"] * 4]
    assert [row.at for row in shown[3:7]] == [19, 18, 17, 16]
    assert shown[7:] == rows[23:27]
    assert n_more == 53 - 11
    assert [row.state for row in chosen(rows_of(done=20, waiting=1), 5)[0]] == [*["done"] * 4, "waiting"]
    assert [row.state for row in chosen(rows_of(done=1, waiting=20), 5)[0]] == ["done", *["waiting"] * 4]
    assert chosen(rows_of(failed=9), 5)[1] == 4
    assert chosen(rows, 99) == ([*rows[22:23], *rows[20:22], *rows[19::-1], *rows[23:]], 0)


def test_the_time_left_is_what_the_finished_runs_of_a_method_took():
    rows = rows_of(done=2, waiting=3)
    assert time_left(rows, 1, now=0.0) == 30
    assert time_left(rows, 2, now=0.0) == 15
    assert time_left(rows, 9, now=0.0) == 10, "none is faster than itself"
    running = rows_of(done=1, running=1)
    assert time_left(running, 1, now=4.0) == 6
    assert time_left(running, 1, now=400.0) == 0
    slow = Row(Planned("s", Path("s"), (), "resnet", ()), "done", seconds=70.0)
    waiting = Row(Planned("w", Path("w"), (), "resnet", ()))
    other = Row(Planned("v", Path("v"), (), "vib", ()))
    assert time_left([*rows[:2], slow, waiting], 1, now=0.0) == 70
    assert time_left([*rows[:2], slow, other], 1, now=0.0) == 30, "of any method, where it is the first"
    assert time_left(rows_of(waiting=3), 1, now=0.0) is None
    assert time_left(rows_of(done=3), 1, now=0.0) is None


@pytest.mark.parametrize(("height", "width"), [(24, 80), (10, 60), (60, 200)])
def test_a_live_table_of_fifty_runs_fits_the_terminal(height, width, tmp_path):
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=width, height=height)
    runs = [
        Planned(f"cifar10-ibinn-gamma{i}-paper-seed0-uniform", Path(f"r{i}"), (), "ibinn", ())
        for i in range(50)
    ]
    for run in runs[:9]:
        finished(tmp_path / run.folder, error=6.5, bits_per_dim=5.25, train_seconds=3723.0)
    (tmp_path / "r9").mkdir()
    (tmp_path / "r9" / "config.toml").write_text("[recipe]\nepochs = 40\n")
    (tmp_path / "r9" / "history.jsonl").write_text("{}\n" * 3)
    with Board(runs, Place(tmp_path, tmp_path), 1, console, Stop()) as board:
        board.started(runs[9])
        board.ended(runs[11], Outcome("failed", 3.0, "no such data"))
        board.tick()
        shown = Console(file=io.StringIO(), width=width, height=height)
        shown.print(board.picture())
    lines = shown.file.getvalue().splitlines()
    assert len(lines) < height
    assert all(len(line) <= width for line in lines)
    text = "\n".join(lines)
    assert lines[0].startswith("cifar10-ibinn-*")
    assert lines[0].split()[1:] == ["error", "bits/dim", "time"]
    assert "running 3/40" in text
    assert "failed" in text
    assert lines[-2] == "gamma11: no such data"
    assert "6.50 %" in text
    assert "5.250" in text
    assert "1:02:03" in text
    assert ("more" in lines[-3]) == (height < 60)
    assert lines[-1].startswith("9 of 50 done, 1 failed, 1 running, 39 waiting")
    assert "ETA 41:22:" in lines[-1]


def test_names_are_shortened_by_what_they_share():
    assert shortened(["a-b-c", "a-d-c"]) == ("a-*-c", {"a-b-c": "b", "a-d-c": "d"})
    assert shortened(["a-b", "a-b-b"]) == ("a-*", {"a-b": "b", "a-b-b": "b-b"})
    assert shortened(["a-b", "c-d"]) == ("run", {"a-b": "a-b", "c-d": "c-d"})
    assert shortened(["a-b"]) == ("run", {"a-b": "a-b"})


def finished(folder, **numbers):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").touch()
    (folder / "results.json").write_text(json.dumps(numbers))


def test_runs_of_earlier_sweeps_count_for_the_time_left(tmp_path):
    runs, out = a_plan(3), io.StringIO()
    finished(tmp_path / "run0", error=6.5, bits_per_dim=None, train_seconds=60.0)
    with Board(runs, Place(tmp_path, tmp_path), 1, Console(file=out), Stop()) as board:
        board.ended(runs[0], Outcome("done"))
        board.started(runs[1])
        finished(tmp_path / "run1", error=8.0, bits_per_dim=2.5, train_seconds=60.0)
        board.ended(runs[1], Outcome("done", seconds=120.0))
    assert out.getvalue().splitlines() == [
        "3 runs",
        "started run1; 1 of 3 done, 1 running, 1 waiting, ETA 2:00",
        "done run1: error 8.00 %, 2.500 bits/dim, 2:00; 2 of 3 done, 1 waiting, ETA 1:30",
    ]


def test_results_that_cannot_be_read_are_no_reason_to_stop(tmp_path):
    run, out = a_plan(1)[0], io.StringIO()
    finished(tmp_path / "run0")
    (tmp_path / "run0" / "results.json").write_text("{")
    with Board([run], Place(tmp_path, tmp_path), 1, Console(file=out), Stop()) as board:
        assert board.counts() == "1 of 1 done"


def test_room_on_a_cluster_is_counted_node_by_node():
    def node(cpus, gpus, alive=True):
        return {"Alive": alive, "Resources": {"CPU": cpus} | ({"GPU": gpus} if gpus else {})}

    nodes = [node(4.0, 0), node(3.0, 2.0), node(64.0, 8.0, alive=False)]
    assert n_places(nodes, 2, 0) == 3
    assert n_places(nodes, 2, 1) == 1
    assert n_places(nodes, 1, 0.5) == 3
    assert lack_of_room(nodes, 4, 0) == ""
    assert re.search(r"no node .* has 4 CPUs and 1 GPUs .* are 4 and 2", lack_of_room(nodes, 4, 1))


def test_a_dry_run_prints_the_commands_of_what_is_not_finished(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my e.toml").write_text('data = "a b.npz"\nsize = "tiny"\ngamma = [1, 2]')
    main(["sweep", "my e.toml", "--dry-run", "--device", "cpu"])
    out, err = capsys.readouterr()
    commands = [shlex.split(line) for line in out.splitlines()]
    assert err == ""
    assert len(commands) == 2
    assert all(command[4:6] == ["a b.npz", "--method"] for command in commands)
    assert [parse(command[3:]).gamma for command in commands] == [1.0, 2.0]
    assert [*tmp_path.iterdir()] == [tmp_path / "my e.toml"]
    finished(parse(commands[0][3:]).out)
    main(["sweep", "my e.toml", "--dry-run", "--device", "cpu"])
    assert capsys.readouterr().out == out.splitlines()[1] + "\n"


# From end to end


class Experiment:
    """A small table and an experiment file, in a folder of its own; sweeps as processes there."""

    def __init__(self, folder, caches):
        self.folder, self.home = folder, folder / "runs" / "e"
        self.environment = os.environ | {"MPLCONFIGDIR": str(caches), "IBINN_CACHE": str(caches)}
        y = np.arange(120) % 2
        np.savez(folder / "t.npz", x=np.random.default_rng(0).normal(size=(120, 2)) + 2 * y[:, None], y=y)

    def write(self, blocks, epochs=1):
        # Without patience, and with many epochs: a run that is not over before somebody stops it.
        text = f"{START}epochs = {epochs}\n[recipe]\npatience = 0\n[network]\ndense_blocks = 1\ndense_width = 8\n"
        (self.folder / "e.toml").write_text(text.replace("digits", "t.npz") + blocks)
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
        run = Planned(self.runs[number], self.home / self.runs[number], (), "ibinn", ())
        return state_of(run, Place(self.home, self.folder))


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
    said = "failed: its folder holds a finished run with other settings (epochs is 1 there, 3 here); use another"
    assert err.count(f"ibinn: {experiment.runs[0]} {said}") == 1
    assert err.count(said) == N_RUNS - 1, "the other has epochs of its own"
    assert [experiment.model(i) for i in range(N_RUNS)] == models
    (experiment.home / experiment.runs[0] / "results.json").unlink()
    main(["report", str(experiment.home)])
    assert f"note: 1 of {N_RUNS} runs in {experiment.home} is not finished yet\n" in capsys.readouterr().err
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
    assert err.splitlines()[-1].endswith("the same command goes on")
    assert experiment.checkpoint(1).is_file()
    log = experiment.home / "logs" / f"{experiment.runs[1]}.log"
    assert "stopped by SIGTERM; saved in" in log.read_text(), "from us, and nothing from the terminal"
    assert experiment.state(1) == "waiting"
    assert not (experiment.home / experiment.runs[2]).exists()
    process = experiment.start()
    wait_until(lambda: "note: going on in epoch" in log.read_text(), process)
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
    assert last[0].startswith(
        f"ibinn: {experiment.runs[0]} failed: there is no file, folder or known set called no.npz"
    )
    assert last[0].endswith(f"see {Path('runs', 'e', 'logs', experiment.runs[0])}.log")
    assert "is no run folder, and not empty" in last[1]
    assert [experiment.attempts(i) for i in range(3)] == [1, 1, 1]


def test_on_ray_and_a_training_outlives_its_worker(experiment):
    n = N_RUNS - 1
    slow = "[[runs]]\nmethod = 'class-nll'\nepochs = 300\n"
    experiment.write(f"{slow}[[runs]]\nseed = {[*range(n - 1)]}")
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
    assert out.splitlines()[-2] == f"{n} of {n} done"  # Ray has its say before
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
    assert err.splitlines()[-1].endswith("the same command goes on")
    for i in (0, 1):
        assert experiment.checkpoint(i).is_file()
        assert (
            "stopped by SIGTERM; saved in"
            in (experiment.home / "logs" / f"{experiment.runs[i]}.log").read_text()
        )
        assert experiment.state(i) == "waiting", "its training has ended"
    assert experiment.state(2) == "waiting"
    assert not (experiment.home / experiment.runs[2]).exists()
