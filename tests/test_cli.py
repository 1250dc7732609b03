"""The frame of the command line: results on stdout, mistakes in one line with exit code 2."""

import dataclasses
import io
import os
import re
import subprocess
import sys
import time
from typing import get_args

import numpy as np
import pytest

from ibinn.cli import COMMANDS, main, terminal
from ibinn.cli.evaluate import OOD
from ibinn.cli.report import Score
from ibinn.ood.scores import SCORES
from ibinn.ood.sets import OOD_FILES, OOD_SETS
from ibinn.report.text import SCORE_MEANINGS

pytestmark = pytest.mark.usefixtures("own_places")


def test_data_lists_known_sets_and_where_they_are(tmp_path, capsys):
    (tmp_path / "home" / ".cache" / "ibinn" / "mnist").mkdir(parents=True)
    (tmp_path / "home" / ".cache" / "ibinn" / "mnist" / "train-images-idx3-ubyte").touch()
    main(["data"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["digits", "comes", "with", "scikit-learn"]
    assert lines[1].split() == ["mnist", str(tmp_path / "home" / ".cache" / "ibinn" / "mnist")]
    assert "ibinn data fetch cifar10" in lines[3]
    assert lines[5].split()[0] == "quickdraw"
    assert "docs/data.md" in lines[5]
    (tmp_path / "home" / ".cache" / "ibinn" / "ood").mkdir()
    (drawings := tmp_path / "home" / ".cache" / "ibinn" / "ood" / "quickdraw.parquet").touch()
    main(["data"])
    assert capsys.readouterr().out.splitlines()[5].split() == ["quickdraw", str(drawings)]


def test_data_shows_counts_mean_and_deviation(tmp_path, capsys):
    x = np.random.default_rng(0).integers(256, size=(20, 4, 4, 3), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(20) % 2, x_test=x[:5], y_test=np.array([0, 0, 0, 1, 1]))
    main(["data", "show", str(tmp_path / "a.npz")])
    out = capsys.readouterr().out
    mean, std = x.reshape(-1, 3).mean(0) / 255, x.reshape(-1, 3).std(0) / 255
    assert "train: 20 examples\n  10 per class: 0, 1" in out
    assert " ".join(f"{m:.8f}" for m in mean) in out
    assert " ".join(f"{s:.8f}" for s in std) in out
    assert "test: 5 examples\n  0 3, 1 2" in out
    assert "5 test examples equal a training example" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data", "show", "cifar_10"], "did you mean cifar10"),
        (["data", "show", "cifar10"], "ibinn data fetch cifar10"),
        (["data", "show"], "ibinn data show mnist"),
        (["data", "list", "digits"], "ibinn data show digits"),
        (["data", "fetch", "mnisst"], "did you mean mnist"),
        (["data", "fetch", "digits"], "scikit-learn"),
        (["evaluate", "no/such/run"], "no/such/run"),
        (["predict", "run", "--batch-size", "0"], "--batch-size"),
        (["explore", "run", "--pretrained", "digits"], "--pretrained"),
    ],
    ids=str,
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments, message, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    out, err = capsys.readouterr()
    assert caught.value.code == 2
    assert message in err
    assert err.count("\n") == 1
    assert "Traceback" not in out + err


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["data", "--data-dirr", "x"], ["--data-dirr", "--data-dir "]),
        (["data", "fetsh"], ["fetsh", "fetch"]),
        (["train"], ["DATA", "ibinn train --help"]),
        (["train", "digits", "--gamma", "x"], ["--gamma", "'x'"]),
        (["dta"], ["dta", "ibinn --help"]),
        ([], ["demo", "train", "ibinn --help"]),
    ],
    ids=str,
)
def test_a_usage_error_names_the_option_and_has_exit_code_2(arguments, names, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    out, err = capsys.readouterr()
    assert (caught.value.code, out) == (2, "")
    assert all(name in err for name in names)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_a_help_text(name, capsys):
    with pytest.raises(SystemExit) as caught:
        main([name, "--help"])
    assert caught.value.code == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    n_fields = len(dataclasses.fields(COMMANDS[name]))
    assert len(re.findall(r"\w[.)] \((?:default|required|repeatable)", text)) == n_fields


def test_ctrl_c_exits_with_130(monkeypatch, capsys):
    def interrupted(data_dir):
        raise KeyboardInterrupt

    monkeypatch.setattr("ibinn.cli.data.list_known", interrupted)
    with pytest.raises(SystemExit) as caught:
        main(["data"])
    assert caught.value.code == 130
    assert capsys.readouterr().err == "ibinn: stopped\n"


@pytest.mark.filterwarnings("default")
def test_notices_are_one_line(tmp_path, capsys):
    np.savez(tmp_path / "a.npz", x=np.random.default_rng(0).random((8, 4, 4)), y=np.arange(8) % 2)
    main(["data", "show", str(tmp_path / "a.npz")])
    assert capsys.readouterr().err == "note: a: pixel values are taken to be 0–1\n"


def test_progress_is_plain_lines_with_the_time_left_without_a_terminal(monkeypatch, capsys):
    now = iter([0.0, 1.0, 3.0, 4.0, 9.0])
    monkeypatch.setattr(terminal.time, "monotonic", lambda: next(now))
    with terminal.progress("reading") as report:
        for done in (1, 3, 4, 9):
            report(done, 10)
    first, second = capsys.readouterr().err.splitlines()
    assert re.findall(r"\d+", first) == ["3", "10", "7"]
    assert re.findall(r"\d+", second) == ["9", "10", "1"]


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("total", [5_000_000, None])
def test_progress_is_a_bar_in_a_terminal_and_leaves_nothing_behind(total, monkeypatch, capsys):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(terminal, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    with terminal.progress("fetching", unit="MB", scale=1e-6) as report:
        for done in range(1, 6):
            report(done * 1_000_000, total)
        print("result")
        time.sleep(0.15)  # until it is drawn again
    assert re.search(rf"fetching .*━.* 5{' of 5' if total else ''} MB", screen.getvalue())
    assert screen.getvalue().endswith("\x1b[2K")  # which erases the line
    assert capsys.readouterr().out == "result\n"


def test_what_is_quick_shows_no_progress(monkeypatch, capsys):
    for stream in (Terminal(), io.StringIO()):
        monkeypatch.setattr(sys, "stderr", stream)
        with terminal.progress("reading") as report:
            report(1, 10)
        assert stream.getvalue() == ""


@pytest.mark.slow
def test_an_ascii_terminal_and_a_reader_that_has_seen_enough(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 2)), y=np.array(["ä", "b"] * 2))
    command = [sys.executable, "-m", "ibinn.cli", "data", "show", str(tmp_path / "a.npz")]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert "\\xe4" in done.stdout
    for buffered in ("", "1"):  # what is printed goes out at the end, or at once
        environment = {**os.environ, "PYTHONUNBUFFERED": buffered}
        pipe = f"{' '.join(command)} | true"
        quiet = subprocess.run(pipe, shell=True, capture_output=True, text=True, env=environment)
        assert quiet.stderr == ""


@pytest.mark.parametrize("words", [["--help"], ["sweep", "--help"]], ids=str)
def test_help_imports_nothing_heavy(words):
    code = (
        "import sys\nfrom ibinn.cli import main\n"
        f"try:\n    main({words})\nexcept SystemExit:\n    pass\n"
        "print([m for m in ('torch', 'matplotlib', 'sklearn', 'rich', 'ray') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_scores_of_ibinn_report_are_all_scores():
    """test_ood_features.py checks the names of those on features."""
    assert {*get_args(Score)} == {*SCORE_MEANINGS} == {*SCORES, "mahalanobis", "knn"}


def test_the_help_of_ood_names_every_ood_set():
    names = OOD.removeprefix("OoD sets: ").partition(", or any")[0].replace("for tables ", "")
    assert {*names.split(", ")} == {*OOD_SETS, *OOD_FILES, "permuted"}
