"""ibinn sweep: experiment files and what they plan, locks, and what is shown."""

import io
import itertools
import json
import math
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import kept
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from ibinn.cli import main, parse
from ibinn.config import GAMMA_METHODS, ConfigError, toml_value
from ibinn.models.methods import METHODS
from ibinn.sweep.cluster import connected, lack_of_room, n_places
from ibinn.sweep.plan import Planned, plan, read_experiment
from ibinn.sweep.progress import Board, Row, chosen, shortened, time_left
from ibinn.sweep.work import Outcome, Place, Stop, locked, state_of

pytestmark = pytest.mark.usefixtures("own_places")
EXPERIMENTS = Path(__file__).parent.parent / "experiments"


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
        pytest.raises(ConfigError, match="Ray is not installed; pip install ray"),
        connected("local"),
    ):
        pass


THREE_SEEDS = {("ibinn", 1.0), ("vib", 1.0), ("resnet", None), ("class-nll", None)}
TABLE = {("ibinn", gamma) for gamma in (0.0, 0.1, 1.0, 10.0, float("inf"))}
TABLE |= {(method, None) for method in ("class-nll", "class-nll-fixed", "resnet", "irevnet")}


RESULTS = kept.EXPERIMENTS  # what make results runs
OTHERS = [path.stem for path in sorted(EXPERIMENTS.glob("*.toml")) if path.stem not in RESULTS]


def runs_of(name):
    """The runs of an experiment of ours as the command line reads them, their setups and their settings."""
    trains = [train_of(run) for run in plan(read_experiment(EXPERIMENTS / f"{name}.toml"), Path("runs"))]
    setups = {(t.method, t.gamma if t.method in GAMMA_METHODS else None) for t in trains}
    return trains, setups, [dict(word.split("=") for words in t.set for word in words) for t in trains]


def sigmas_of(settings):
    return sorted(float(s["recipe.sigma"]) for s in settings if "recipe.sigma" in s)


@pytest.mark.parametrize("name", RESULTS)
def test_the_published_experiments_hold_what_is_published(name):
    trains, setups, settings = runs_of(name)
    recipes = {tuple(sorted((k, v) for k, v in s.items() if k != "recipe.sigma")) for s in settings}
    assert len(recipes) == 1  # the same for all methods
    if name == "fashion-table":
        assert setups == {
            ("ibinn", 0.0),
            ("ibinn", 1.0),
            ("ibinn", 3.7),
            ("ibinn", math.inf),
            ("vib", 1.0),
        } | {(method, None) for method in ("class-nll", "class-nll-fixed", "resnet", "irevnet")}
        for setup in setups:
            seeds = [t.seed for t in trains if (t.method, t.gamma) == setup or (t.method, None) == setup]
            assert seeds == ([0, 1, 2] if setup in THREE_SEEDS else [0])
    elif name == "fashion-no-ramp":
        others = [s for t, s in zip(*runs_of("fashion-table")[::2], strict=True) if t.gamma == 1]
        assert setups == {("ibinn", 1.0)}
        assert [t.seed for t in trains] == [0, 1, 2]
        assert settings[0] == {**others[0], "recipe.gamma_ramp": "0.0"}
    elif name == "fashion-gamma":
        gammas = sorted(gamma for method, gamma in setups if method == "ibinn")
        assert setups == {(method, gamma) for method in GAMMA_METHODS for gamma in gammas}
        assert_log_spaced(gammas, 7, 0.02, 50)
    elif name == "sigma-8x8":
        assert setups == {("ibinn", 0.2)}
        assert_log_spaced(sigmas_of(settings), 10, 1e-4, 1)
    else:
        assert setups == {("ibinn", 1.0), ("resnet", None)}
        assert {(t.data, t.size) for t in trains} == {("cifar10", "base")}


@pytest.mark.parametrize("name", OTHERS)
def test_every_other_experiment_of_ours_can_be_planned(name):
    trains, setups, settings = runs_of(name)
    sigmas, small = sigmas_of(settings), name.endswith("-two-cores")
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
        assert len(trains) == len(setups)
    elif "gamma" in name:
        gammas = sorted(gamma for _, gamma in setups if _ == "ibinn")
        assert setups == {(method, gamma) for method in GAMMA_METHODS for gamma in gammas}
        assert_log_spaced(gammas, 9 if small else 25, 0.02, 50)
        assert 1.0 in gammas
    else:
        assert setups == {("ibinn", 0.2)}
        assert_log_spaced(sigmas, 25, 1e-4, 1)


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
    names = names - {"sigma-sweep-two-cores"} | {"digits", *RESULTS}
    assert names == {path.stem for path in EXPERIMENTS.glob("*.toml")}


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
