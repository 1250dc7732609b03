"""ibinn train as a person uses it: every method, run folders, signals, kills, full disks."""

import dataclasses
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from helpers.trainings import few_digits, two_moons
from safetensors.torch import load_file

from ibinn.cli import main
from ibinn.data.splits import split
from ibinn.models.methods import METHODS
from ibinn.models.output import TENSORS
from ibinn.run.folder import load_run, read_tensors, save_run
from ibinn.run.settings import read_config
from ibinn.training.recipes import RECIPES

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_places")]
FAST = ["--set", "network.blocks=[1,1]", "network.widths=[8,8]", "network.dropouts=[0,0]"]
FAST += ["network.dense_blocks=1"]
SOAK = os.environ.get("HYPOTHESIS_PROFILE") == "soak"
KILLS = 20 if SOAK else 2


def train(*arguments, n_epochs=1):
    main(["train", *map(str, arguments), "--epochs", str(n_epochs), "--device", "cpu", *FAST])


def refused(*arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main([*map(str, arguments)])
    assert caught.value.code == 2
    err = capsys.readouterr().err
    assert "Traceback" not in err
    return err.splitlines()[-1]


MODELS = [(method, "light") for method in METHODS] + [("ibinn", "paper")]


@pytest.mark.parametrize(("method", "subnet"), MODELS, ids=str)
def test_every_method_trains_and_loads_back_with_the_same_predictions(
    method, subnet, tmp_path, capsys, monkeypatch
):
    folder, kept, n_epochs = tmp_path / "run", [], 15 if method == "rival" else 3
    monkeypatch.setattr("ibinn.training.trainer.save_run", lambda *a: (kept.append(a[1]), save_run(*a)))
    train(
        "digits",
        "--method",
        method,
        "--out",
        folder,
        "--set",
        f"network.subnet={subnet}",
        n_epochs=n_epochs,
    )
    assert f"written to {folder}" in capsys.readouterr().out
    run = load_run(folder)
    digits = few_digits(2000)
    splits = split(digits, 0)
    x, y = digits.train.x[splits.validation], digits.train.y[splits.validation]
    outputs = run.pipeline.compute_output(x)
    before = kept[0].pipeline.compute_output(x)
    for name in TENSORS:
        assert np.array_equal(getattr(before, name), getattr(outputs, name))
    error = 100 * (outputs.log_q_y.argmax(1) != y).mean()
    assert error == pytest.approx(run.facts.validation.error, abs=1e-9)
    assert error < 80
    assert json.loads((folder / "history.jsonl").read_text().splitlines()[-1])["epoch"] == n_epochs
    if outputs.log_q_x is None:
        assert run.reference.h is run.facts.validation.bits_per_dim is None
        assert {*run.reference.calibration} == {"entropy", "max_softmax", "energy"}
    else:
        bits = -outputs.log_q_x.mean() / 64 / np.log(2)
        assert bits == pytest.approx(run.facts.validation.bits_per_dim, rel=1e-5)
        assert len(run.reference.calibration["typicality"]) == len(splits.calibration)


def test_vib_that_does_not_converge_is_marked_so(tmp_path, capsys):
    train("digits", "--method", "vib", "--gamma", "1e-6", "--out", tmp_path / "run", n_epochs=2)
    assert "did not converge" in capsys.readouterr().out
    assert load_run(tmp_path / "run").facts.converged is False
    main(["evaluate", str(tmp_path / "run")])
    assert json.loads((tmp_path / "run" / "results.json").read_text())["converged"] is False


def test_tables_images_of_odd_sides_and_colour_train(tmp_path, capsys):
    moons, rng = two_moons(), np.random.default_rng(0)
    np.savez(tmp_path / "moons.npz", x=moons.train.x, y=moons.train.y)
    odd = rng.integers(256, size=(120, 9, 7, 3), dtype=np.uint8)
    np.savez(tmp_path / "odd.npz", x=odd, y=np.arange(120) % 2)
    main(["train", str(tmp_path / "moons.npz"), "--out", str(tmp_path / "a"), "--epochs", "60"])
    assert load_run(tmp_path / "a").facts.validation.error < 20
    train(tmp_path / "odd.npz", "--out", tmp_path / "b")
    run = load_run(tmp_path / "b")
    assert run.pipeline.preprocess.shape == (3, 10, 8)
    assert np.isfinite(run.pipeline.compute_output(odd).log_q_x).all()


def test_the_configuration_holds_everything_and_settings_change_it(tmp_path):
    words = (
        f"train digits --out {tmp_path / 'run'} --epochs 1 --gamma inf --seed 3 --set recipe.optimizer=sgd"
    )
    together = [
        "network.blocks=[1]",
        "network.widths=[9]",
        "network.dropouts=[0]",
    ]  # each alone would not fit
    main([*words.split(), "recipe.learning_rate=0.01", *together])
    config = read_config(tmp_path / "run" / "config.toml")
    assert (config.gamma, config.seed, config.recipe.epochs) == (np.inf, 3, 1)
    assert (config.recipe.learning_rate, config.recipe.optimizer) == (0.01, "sgd")
    assert (config.network.blocks, config.network.widths) == ((1,), (9,))


def test_mistakes_are_one_sentence(tmp_path, capsys):
    run = tmp_path / "run"
    train("digits", "--out", run)
    capsys.readouterr()
    same = ["train", "digits", "--epochs", 1, "--device", "cpu", *FAST, "--out", run]
    assert "--resume" in refused(*same, capsys=capsys)
    assert "gamma is 1.0 there, 2.0 here" in refused(*same, "--resume", "--gamma", 2, capsys=capsys)
    assert "did you mean 'learning_rate'" in refused(
        *same[:2], "--set", "recipe.learningrate=1", capsys=capsys
    )
    assert "must be an integer" in refused(*same[:2], "--set", "recipe.epochs=many", capsys=capsys)
    assert "recipe.KEY=VALUE" in refused(*same[:2], "--set", "learning_rate=1", capsys=capsys)
    assert "gamma is -1.0 but must be 0 or more" in refused(*same[:2], "--gamma", -1, capsys=capsys)
    assert "is not a run folder" in refused("evaluate", tmp_path, capsys=capsys)
    assert "epochs is 0" in refused(*same[:2], "--epochs", 0, capsys=capsys)
    np.savez(tmp_path / "t.npz", x=two_moons().train.x, y=two_moons().train.y)
    other = ["train", "digits", "--out", tmp_path / "other"]
    for setting, message in {
        "recipe.noise=gaussian": "sigma is 0.0",
        "network.blocks=[4]": "one entry per resolution",
        "network.dense_width=-1": "dense_width is -1",
        "recipe.crop=9": "crop is 9",
        "recipe.rotation=200": "rotation is 200",
        "network.dropouts=[0,1]": "dropouts is 1",
    }.items():
        assert message in refused(*other, "--set", setting, capsys=capsys)
        assert not (tmp_path / "other").exists()
    assert "seed is 99999999999" in refused(*other, "--seed", 99999999999, capsys=capsys)
    assert "not empty" in refused("train", "digits", "--out", tmp_path, capsys=capsys)
    assert "there is no cuda" in refused(*other, "--device", "cuda", capsys=capsys)
    assert "leave out --precision bf16" in refused(
        "train", tmp_path / "t.npz", "--precision", "bf16", "--out", tmp_path / "other", capsys=capsys
    )
    assert "for images" in refused("train", tmp_path / "t.npz", "--size", "paper", capsys=capsys)


def test_settings_may_be_given_together_or_one_by_one(tmp_path):
    words = "train digits --epochs 1 --set recipe.crop=1 recipe.ema=0.5 --set recipe.clip=2 --out"
    main([*words.split(), str(tmp_path / "run")])
    recipe = read_config(tmp_path / "run" / "config.toml").recipe
    assert (recipe.crop, recipe.ema, recipe.clip) == (1, 0.5, 2.0)


def test_data_that_changed_is_not_mixed_with_what_was(tmp_path, capsys):
    moons = two_moons()
    np.savez(tmp_path / "moons.npz", x=moons.train.x, y=moons.train.y)
    arguments = ["train", tmp_path / "moons.npz", "--out", tmp_path / "run", "--epochs", 2]
    main([*map(str, arguments)])
    np.savez(tmp_path / "moons.npz", x=moons.train.x[:-1], y=moons.train.y[:-1])
    assert "has changed since" in refused("evaluate", tmp_path / "run", capsys=capsys)


def test_training_deletes_nothing_but_its_own_checkpoint(tmp_path):
    mine = tmp_path / "run" / "checkpoint" / "mine.txt"
    train("digits", "--out", tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").unlink()
    mine.parent.mkdir()
    mine.write_text("precious")
    train("digits", "--out", tmp_path / "run", "--resume")
    assert mine.read_text() == "precious"


def test_only_one_process_trains_in_a_folder(tmp_path, capsys):
    fcntl = pytest.importorskip("fcntl")
    train("digits", "--out", tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").unlink()
    with open(tmp_path / "run" / "config.toml", "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        words = ["train", "digits", "--epochs", 1, "--device", "cpu", *FAST, "--out", tmp_path / "run"]
        assert "another process" in refused(*words, "--resume", capsys=capsys)


def test_a_finished_run_is_not_trained_again(tmp_path, capsys):
    train("digits", "--out", tmp_path / "run", "--resume")
    before = (tmp_path / "run" / "model.safetensors").stat().st_mtime_ns
    train("digits", "--out", tmp_path / "run", "--resume")
    assert (tmp_path / "run" / "model.safetensors").stat().st_mtime_ns == before
    assert "already finished" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("method", "gamma", "expected"),
    [("ibinn", "inf", "inf"), ("class-nll", "3", 1 / 64), ("resnet", "3", None), ("vib", "3", 3.0)],
)
def test_results_tell_the_gamma_of_the_loss_in_plain_json(method, gamma, expected, tmp_path):
    train("digits", "--method", method, "--gamma", gamma, "--out", tmp_path / "run")
    main(["evaluate", str(tmp_path / "run")])
    text = (tmp_path / "run" / "results.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail)["gamma"] == expected


def test_evaluate_agrees_with_the_model_by_hand(tmp_path, capsys):
    train("digits", "--out", tmp_path / "run")
    main(["evaluate", str(tmp_path / "run")])
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    run, digits = load_run(tmp_path / "run"), few_digits(2000)
    rows = split(digits, 0).test
    outputs = [run.pipeline.compute_output(digits.train.x[rows], draw) for draw in range(4)]
    wrong = outputs[0].log_p_y.argmax(1) != digits.train.y[rows]
    assert results["error"] == pytest.approx(100 * wrong.mean())
    bits = np.mean([-o.log_q_x.mean() / 64 / np.log(2) for o in outputs])
    assert results["bits_per_dim"] == pytest.approx(bits)
    assert results["n_test"] == len(rows)


class Command:
    """ibinn train in a process of its own, checkpointing after every step."""

    def __init__(self, folder, *more, n_epochs=4):
        self.folder = Path(folder)
        self.arguments = ["train", "digits", "--out", str(folder), "--epochs", str(n_epochs), "--resume"]
        self.arguments += ["--device", "cpu", "--save-every", "0", *FAST, *more]

    def start(self, **how):
        return subprocess.Popen(
            [sys.executable, "-m", "ibinn.cli", *self.arguments], stderr=subprocess.PIPE, text=True, **how
        )

    def finish(self):
        process = self.start()
        assert process.communicate(timeout=300)[1]
        assert process.returncode == 0
        return load_file(self.folder / "model.safetensors")

    def stop(self):
        """Begin, and stop with SIGTERM after a checkpoint."""
        process = self.start()
        self.wait_for_training(process)
        process.send_signal(signal.SIGTERM)
        process.communicate()

    @property
    def state(self):
        return self.folder / "checkpoint" / "state.safetensors"

    def written(self):
        """When the checkpoint was written; 0 if it was not."""
        return self.state.stat().st_mtime_ns if self.state.exists() else 0

    def wait_for_training(self, process, timeout=120.0):
        """Until this process has written a checkpoint."""
        before, deadline = self.written(), time.monotonic() + timeout
        while self.written() == before:
            assert process.poll() is None, "it ended before"
            assert time.monotonic() < deadline
            time.sleep(0.0005)

    def wait_for_writing(self, process, timeout=120.0):
        """Until a checkpoint is being written."""
        part, deadline = self.state.with_name(f".{self.state.name}.part"), time.monotonic() + timeout
        while not part.exists():
            assert process.poll() is None, "it ended before"
            assert time.monotonic() < deadline


def assert_same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].equal(b[name]), name


def test_killed_runs_end_with_the_same_bits(tmp_path):
    """SIGKILL at random moments, every second time while a checkpoint is being written."""
    n_epochs = 4 + KILLS // 2
    whole = Command(tmp_path / "whole", n_epochs=n_epochs).finish()
    rng, command = random.Random(0), Command(tmp_path / "killed", n_epochs=n_epochs)
    positions = [0]
    for number in range(KILLS):
        process = command.start()
        command.wait_for_training(process)
        if number % 2 == 0:
            command.wait_for_writing(process)
        else:
            time.sleep(rng.uniform(0, 0.2))
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        assert not (tmp_path / "killed" / "model.safetensors").exists()
        position = read_tensors(command.state)[1]["position"]
        positions.append(100 * position["epoch"] + position["batch"])
    assert all(a < b for a, b in pairwise(positions)), "each process came further"
    assert_same(command.finish(), whole)
    histories = [
        (tmp_path / name / "history.jsonl").read_text().splitlines() for name in ("whole", "killed")
    ]
    assert len(histories[0]) == len(histories[1]) == n_epochs


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
def test_signals_save_and_exit(number, tmp_path):
    command = Command(tmp_path / "run", n_epochs=2)
    process = command.start()
    command.wait_for_training(process)
    process.send_signal(number)
    err = process.communicate(timeout=60)[1]
    assert process.returncode == 128 + number
    assert "--resume" in err.splitlines()[-1]
    assert "Traceback" not in err
    assert_same(command.finish(), Command(tmp_path / "whole", n_epochs=2).finish())


def test_a_full_disk_stops_with_one_sentence_and_the_run_goes_on_later(tmp_path):
    """RLIMIT_FSIZE makes the system refuse writes beyond a size, as a full disk would."""
    command = Command(tmp_path / "run", n_epochs=2)
    command.stop()
    state = command.state
    good = state.read_bytes()
    script = (
        "import resource, sys; from ibinn.cli import main\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({len(good) // 2},) * 2); main(sys.argv[1:])"
    )
    full = subprocess.run(
        [sys.executable, "-c", script, *command.arguments], capture_output=True, text=True, timeout=120
    )
    assert full.returncode == 2
    assert "File too large" in full.stderr.splitlines()[-1]
    assert "Traceback" not in full.stderr
    assert state.read_bytes() == good
    assert not state.with_name(".state.safetensors.part").exists()
    assert_same(command.finish(), Command(tmp_path / "whole", n_epochs=2).finish())


@pytest.mark.parametrize("damage", ["cut", "flip", "foreign"])
def test_a_bad_checkpoint_is_refused_in_one_sentence(damage, tmp_path, capsys):
    command = Command(tmp_path / "run", n_epochs=2)
    command.stop()
    state = command.state
    content = bytearray(state.read_bytes())
    if damage == "flip":
        content[-7] ^= 1
    state.write_bytes({"cut": content[:1000], "flip": content, "foreign": b"PK\x03\x04 a zip"}[damage])
    assert "is damaged" in refused(*command.arguments, capsys=capsys)


@pytest.mark.skipif(not SOAK, reason="five trainings: part of make soak")
def test_the_demo_is_right_about_digits(tmp_path):
    errors = []
    for seed in range(5):
        main(["demo", "--seed", str(seed), "--out", str(tmp_path / str(seed))])
        errors.append(json.loads((tmp_path / str(seed) / "results.json").read_text())["error"])
    assert np.mean(errors) <= 2.5


def test_demo_prints_error_and_bits_per_dim(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(RECIPES, "tiny", dataclasses.replace(RECIPES["tiny"], epochs=1))
    monkeypatch.setattr("ibinn.training.recipes.MIN_STEPS", 1)
    main(["demo", "--out", str(tmp_path / "demo")])
    out = capsys.readouterr().out
    assert re.search(r"test: error \d+\.\d\d % of 3\d\d, \d\.\d+ bits/dim", out)
    assert f"open {tmp_path / 'demo' / 'report.html'} in a browser" in out
    assert (tmp_path / "demo" / "report.html").read_text().startswith("<!DOCTYPE html>")
