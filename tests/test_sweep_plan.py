"""ibinn sweep: experiment files, the runs that they plan, and the options of the command."""

import itertools
import math
import os
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import published
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibinn.cli import main, parse
from ibinn.config import GAMMA_METHODS, ConfigError, toml_value
from ibinn.models.methods import METHODS
from ibinn.sweep.cluster import connect, n_slots, shortage
from ibinn.sweep.plan import plan, read_experiment

pytestmark = pytest.mark.usefixtures("own_places")
EXPERIMENTS = Path(__file__).parent.parent / "experiments"


def planned(text, tmp_path, options=()):
    path = tmp_path / "e.toml"
    path.write_text(text)
    return plan(read_experiment(path), Path("runs"), options)


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
    runs = [train_of(run) for run in planned(text, tmp_path, ["--device", "cpu"])]
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
    ("text", "names"),
    [
        ("data = ", ["e.toml", "TOML"]),
        (START + "gama = 1", ["'gama'", "'gamma'"]),
        (START + "[[run]]\nseed = 1", ["'run'", "'runs'"]),
        (START + "[[runs]]\nsede = 1", ["[[runs]] number 1", "'sede'", "'seed'"]),
        (START + "[runs]\nseed = 1", ["[[runs]]"]),
        (START + "runs = []", ["[[runs]]"]),
        (START + 'gamma = "1"', ["gamma", "'1'", "number"]),
        (START + "gamma = [1, true]", ["gamma", "True", "number"]),
        (START + "gamma = -1", ["gamma", "-1.0"]),
        (START + "gamma = nan", ["gamma", "nan"]),
        (START + "sigma = 0", ["sigma", "0.0"]),
        (START + "seed = [0, 1.5]", ["seed", "1.5", "integer"]),
        (START + "seed = []", ["seed", "empty"]),
        (START + "epochs = 0", ["epochs", "0"]),
        (START + "epochs = [1, 2]", ["epochs", "[1, 2]", "integer"]),
        (START + 'method = "ibin"', ["method", "'ibin'", "'ibinn'", "'class-nll'"]),
        (START + 'precision = "half"', ["precision", "'half'", "'float32'", "'bf16'"]),
        (START + "[recipe]\nlearning_rat = 1", ["'learning_rat'", "'learning_rate'"]),
        (START + '[recipe]\nclip = "a"', ["clip", "recipe", "'a'"]),
        (START + "[network]\nblocks = 4", ["blocks", "network", "4"]),
        (START + "recipe = 3", ["recipe", "3"]),
        (START + "epochs = 2\n[recipe]\nepochs = 3", ["epochs", "[recipe]"]),
        (START + "sigma = 0.1\n[recipe]\nsigma = 0.2", ["recipe.sigma", "[recipe]"]),
        (START + 'sigma = 0.1\n[recipe]\nnoise = "both"', ["recipe.noise", "[recipe]"]),
        (START + '[[runs]]\nmethod = ["ibinn", "resnet"]\ngamma = 2', ["resnet", "gamma", "[[runs]]"]),
        (START + 'gamma = 2\nmethod = "irevnet"', ["gamma", "ibinn and vib"]),
        (START + "[[runs]]\nseed = 1\n[[runs]]\nseed = [0, 1]", ["digits-ibinn-gamma1-tiny-seed1"]),
        (START + "gamma = [1, 1.0000000001]", ["digits-ibinn-gamma1-tiny-seed0"]),
        ('data = "digits"', ["size", "[[runs]]"]),
        ('[[runs]]\ndata = "digits"\nsize = "tiny"\n[[runs]]\nsize = "tiny"', ["data", "[[runs]]"]),
    ],
)
def test_what_is_not_understood_is_refused_in_one_sentence(text, names, tmp_path, capsys):
    path = tmp_path / "e.toml"
    path.write_text(text)
    with pytest.raises(SystemExit) as caught:
        main(["sweep", str(path), "--dry-run"])
    assert caught.value.code == 2
    err = capsys.readouterr().err
    assert all(name in err for name in names)
    assert err.count("\n") == 1


def test_options_that_do_not_fit_are_refused(tmp_path, capsys):
    (tmp_path / "e.toml").write_text(START)
    (tmp_path / "e.bin").write_bytes(b"\xff\xfe\x00")
    for words, message in {
        ("no.toml",): "No such file",
        ("e.bin",): "UTF-8",
        ("e.toml", "--cpus-per-run", "0"): "--cpus-per-run",
        ("e.toml", "--gpus-per-run", "1"): "--ray",
        ("e.toml", "--ray", "nowhere"): "HOST:PORT",
        ("e.toml", "--ray", "127.0.0.1:1"): "127.0.0.1:1",
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
    with pytest.raises(ConfigError, match="ray start --head"), connect("auto"):
        pass
    monkeypatch.setitem(sys.modules, "ray", None)
    with (
        pytest.raises(ConfigError, match="pip install ray"),
        connect("local"),
    ):
        pass


THREE_SEEDS = {("ibinn", 1.0), ("vib", 1.0), ("resnet", None), ("class-nll", None)}
TABLE = {("ibinn", gamma) for gamma in (0.0, 0.1, 1.0, 10.0, float("inf"))}
TABLE |= {(method, None) for method in ("class-nll", "class-nll-fixed", "resnet", "irevnet")}


RESULTS = published.EXPERIMENTS  # what make results runs
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
    if name == "cifar10-front":
        assert setups == {("ibinn", gamma) for gamma in (0.1, 1.0, 4.0, 10.0, math.inf)}
        assert {(t.data, t.size) for t in trains} == {("cifar10", "base")}
        assert {s["recipe.epochs"] for s in settings} == {"5"}
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
    names = names - {"sigma-sweep-two-cores"} | {"digits", "cifar10-front", *RESULTS}
    assert names == {path.stem for path in EXPERIMENTS.glob("*.toml")}


def test_room_on_a_cluster_is_counted_node_by_node():
    def node(cpus, gpus, alive=True):
        return {"Alive": alive, "Resources": {"CPU": cpus} | ({"GPU": gpus} if gpus else {})}

    nodes = [node(4.0, 0), node(3.0, 2.0), node(64.0, 8.0, alive=False)]
    assert n_slots(nodes, 2, 0) == 3
    assert n_slots(nodes, 2, 1) == 1
    assert n_slots(nodes, 1, 0.5) == 3
    assert shortage(nodes, 4, 0) == ""
    assert re.findall(r"\d+", shortage(nodes, 4, 1)) == [
        "4",
        "1",
        "4",
        "2",
    ]  # wanted, and the most there is


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
    done = parse(commands[0][3:]).out
    done.mkdir(parents=True)
    for name in ("model.safetensors", "results.json"):
        (done / name).touch()
    main(["sweep", "my e.toml", "--dry-run", "--device", "cpu"])
    assert capsys.readouterr().out == out.splitlines()[1] + "\n"
