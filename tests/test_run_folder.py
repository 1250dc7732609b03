"""Run folders: what goes out comes back, and nothing damaged or foreign comes in."""

import dataclasses
import json
import resource
import subprocess
import sys

import numpy as np
import pandas
import pytest
import torch
from helpers.trainings import trained, two_moons
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from ibinn import IBINNClassifier
from ibinn._system import write_atomically
from ibinn.config import ConfigError
from ibinn.data.inputs import InputForm
from ibinn.models.output import TENSORS as FIELDS
from ibinn.ood.scores import SCORES
from ibinn.run import RunError
from ibinn.run.checkpoints import STATE, load_state, save_state
from ibinn.run.folder import load_run, read_tensors, save_run, write_tensors
from ibinn.run.settings import read_config

TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(True), "none": torch.zeros(0)}
ABOUT = {"position": {"epoch": 3, "loss": 0.1 + 0.2}, "name": "ä"}


def test_tensors_come_back_as_they_were(tmp_path):
    strange = {"cl": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last), **TENSORS}
    write_tensors(tmp_path / "x", strange, ABOUT)
    tensors, about = read_tensors(tmp_path / "x")
    assert {k: v.tolist() for k, v in tensors.items()} == {k: v.tolist() for k, v in strange.items()}
    assert about == ABOUT


@given(st.data())
def test_no_flipped_bit_goes_unnoticed(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("run") / "x"
    write_tensors(path, TENSORS, ABOUT)
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    with pytest.raises(RunError):
        read_tensors(path)


@pytest.mark.parametrize("length", [0, 5, 100, -1])
def test_a_cut_off_file_is_refused(tmp_path, length):
    write_tensors(tmp_path / "x", TENSORS, ABOUT)
    (tmp_path / "x").write_bytes((tmp_path / "x").read_bytes()[:length])
    with pytest.raises(RunError, match="damaged"):
        read_tensors(tmp_path / "x")


def test_a_foreign_file_is_refused(tmp_path):
    save_file(TENSORS, tmp_path / "x")
    with pytest.raises(RunError, match="ibinn"):
        read_tensors(tmp_path / "x")


def test_a_file_of_another_format_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("ibinn.run.folder.FORMAT", 7)
    write_tensors(tmp_path / "x", TENSORS, ABOUT)
    monkeypatch.undo()
    with pytest.raises(RunError, match=r"format 7 .* format 3"):
        read_tensors(tmp_path / "x")


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    run = trained(tmp_path / "a", seed=0, epochs=1)
    save_state(tmp_path, run.config, "digest", TENSORS, {})
    assert load_state(tmp_path, run.config, "digest") is not None
    with pytest.raises(RunError, match="has changed"):
        load_state(tmp_path, run.config, "another")
    other = trained(tmp_path / "b", seed=1, epochs=1).config
    with pytest.raises(RunError, match="other settings"):
        load_state(tmp_path, other, "digest")


def test_a_checkpoint_from_before_a_setting_was_added_goes_on(tmp_path):
    """If the setting has the value that it stands for."""
    run = trained(tmp_path / "a", epochs=1)
    save_state(tmp_path, run.config, "digest", TENSORS, {"epoch": 1})
    tensors, about = read_tensors(tmp_path / STATE)
    earlier = "".join(
        line for line in about["config"].splitlines(keepends=True) if "gamma_ramp" not in line
    )
    assert earlier != about["config"]
    write_tensors(tmp_path / STATE, tensors, {**about, "config": earlier})
    assert load_state(tmp_path, run.config, "digest")[1] == {"epoch": 1}


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(RunError, match="not a run folder"):
        load_run(tmp_path)
    trained(tmp_path / "run", epochs=1)
    (tmp_path / "run" / "model.safetensors").unlink()
    with pytest.raises(RunError, match="not finished"):
        load_run(tmp_path / "run")


def test_a_model_file_is_enough_to_use_a_model(tmp_path):
    run = trained(tmp_path / "run", epochs=1)
    alone = tmp_path / "alone"
    alone.mkdir()
    (tmp_path / "run" / "model.safetensors").rename(alone / "model.safetensors")
    loaded = load_run(alone)
    x = np.random.default_rng(0).integers(17, size=(5, 8, 8, 1), dtype=np.uint8)
    mine, theirs = run.pipeline.compute_output(x), loaded.pipeline.compute_output(x)
    for name in FIELDS:
        assert np.array_equal(getattr(mine, name), getattr(theirs, name))
    for name in (
        "config",
        "form",
        "class_names",
        "facts",
        "feature_names",
        "has_named_columns",
        "parameters",
    ):
        assert getattr(loaded, name) == getattr(run, name)
    mine, theirs = run.reference, loaded.reference
    assert (theirs.n_dims, theirs.h, theirs.shell) == (mine.n_dims, mine.h, mine.shell)
    assert {*theirs.calibration} == {*SCORES}
    for a, b in ((theirs.calibration, mine.calibration), (theirs.parts, mine.parts)):
        assert a.keys() == b.keys()
        assert all(np.array_equal(a[name], b[name]) for name in a)
    assert np.array_equal(theirs.calibration_class, mine.calibration_class)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The same data once through training as the command does it, and once through the estimator."""
    place, moons = tmp_path_factory.mktemp("runs"), two_moons()
    trained(place / "train", moons, epochs=1)
    clf = IBINNClassifier(epochs=1, random_state=0).fit(moons.train.x, np.array([7, 9])[moons.train.y])
    clf.save(place / "save")
    return place


@pytest.mark.parametrize("writer", ["train", "save"])
def test_both_writers_give_one_format(folders, tmp_path, writer):
    files = {path.name for path in (folders / writer).iterdir()}
    assert files - {"history.jsonl"} == {"config.toml", "model.safetensors", "README.md"}
    run = load_run(folders / writer)
    assert run.form == InputForm("rows", (2,), "float64")
    assert run.is_estimator == (writer == "save")
    assert run.has_named_columns == (writer == "train")
    assert run.class_names == (("a", "b") if writer == "train" else ("7", "9"))
    assert run.classes.dtype.kind == ("U" if writer == "train" else "i")
    x = two_moons().train.x[:20]
    clf = IBINNClassifier.load(folders / writer)
    assert hasattr(clf, "feature_names_in_") == run.has_named_columns
    if run.has_named_columns:
        x = pandas.DataFrame(x, columns=["u", "v"])
    np.testing.assert_array_equal(
        clf.predict(x), run.classes[run.pipeline.compute_output(np.asarray(x)).log_q_y.argmax(1)]
    )
    save_run(tmp_path / "again", run)
    for name in ("config.toml", "model.safetensors", "README.md"):
        assert (tmp_path / "again" / name).read_bytes() == (folders / writer / name).read_bytes()


@pytest.mark.parametrize("writer", ["train", "save"])
@pytest.mark.parametrize("share", [0.001, 0.03, 0.5, 1.0])
def test_one_flipped_byte_of_a_model_is_refused(folders, tmp_path, writer, share):
    content = bytearray((folders / writer / "model.safetensors").read_bytes())
    content[round(share * (len(content) - 1))] ^= 255
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(RunError, match="damaged"):
        load_run(tmp_path)


def test_a_folder_of_an_older_format_is_refused(folders, tmp_path, monkeypatch):
    run = load_run(folders / "train")
    monkeypatch.setattr("ibinn.run.folder.FORMAT", 1)
    save_run(tmp_path, dataclasses.replace(run, config=dataclasses.replace(run.config, format=1)))
    monkeypatch.undo()
    for read in (lambda: load_run(tmp_path), lambda: read_config(tmp_path / "config.toml")):
        with pytest.raises(RunError, match=r"format 1 .* format 3"):
            read()


def test_a_config_of_another_format_is_refused_as_such_whatever_else_it_holds(tmp_path):
    (tmp_path / "config.toml").write_text('format = 4\nnew_setting = "x"\n')
    with pytest.raises(RunError, match=r"format 4 .* format 3"):
        read_config(tmp_path / "config.toml")
    (tmp_path / "config.toml").write_text('new_setting = "x"\n')
    with pytest.raises(ConfigError, match="new_setting"):
        read_config(tmp_path / "config.toml")


def test_facts_of_another_version_are_refused_with_the_key(folders, tmp_path):
    tensors, about = read_tensors(folders / "train" / "model.safetensors")
    about["facts"]["n_skiped"] = about["facts"].pop("n_skipped")
    write_tensors(tmp_path / "model.safetensors", tensors, about)
    with pytest.raises(RunError, match="'n_skiped'"):
        load_run(tmp_path)


def test_results_and_settings_are_read_without_torch(tmp_path):
    modules = "ibinn.run.results", "ibinn.run.settings", "ibinn.run.facts", "ibinn.sweep.progress"
    script = f"import sys, {', '.join(modules)}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_class_name_that_no_encoding_knows(folders, tmp_path):
    run = dataclasses.replace(load_run(folders / "train"), classes=np.array(["\udce9", "ä"]))
    save_run(tmp_path, run)
    assert load_run(tmp_path).class_names == ("\udce9", "ä")
    assert "\\udce9, ä" in (tmp_path / "README.md").read_text(encoding="utf-8")


def test_a_full_disk_leaves_the_last_good_file(tmp_path):
    """The system's own limit on file sizes stands in for a full disk: the write itself fails half-way."""
    target = tmp_path / "x"
    write_atomically(target, b"good")
    script = (
        "import resource, sys; from pathlib import Path; from ibinn._system import write_atomically\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))\n"
        "try: write_atomically(Path(sys.argv[1]), bytes(5000))\n"
        "except OSError as error: print('refused')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, target], capture_output=True, text=True, check=True
    )
    assert done.stdout == "refused\n"
    assert target.read_bytes() == b"good"
    assert list(tmp_path.iterdir()) == [target]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 1000


def test_a_finished_run_has_a_history_and_no_checkpoint(tmp_path):
    trained(tmp_path / "run", epochs=2)
    lines = (tmp_path / "run" / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2]
    assert not (tmp_path / "run" / "checkpoint").exists()
