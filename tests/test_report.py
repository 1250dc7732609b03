"""`ibinn evaluate` and `ibinn report` from end to end: files, pages, and inputs that are broken."""

import csv
import json
import math
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from helpers.results import results as made_results
from helpers.trainings import few_digits, trained, two_moons
from PIL import Image

from ibinn.cli import main
from ibinn.evaluation import evaluate, read_test
from ibinn.inference.latent import latent_arrays
from ibinn.ood.sets import ood_rows, ood_set
from ibinn.report.runs import Evaluated, alike, side_by_side, sweep_figures
from ibinn.run.arrays import write_arrays
from ibinn.run.results import read_results, write_results

pytestmark = pytest.mark.slow

FIGURES = {
    "calibration",
    "histograms",
    "roc",
    "latent",
    "samples",
    "interpolations",
    "trajectory",
    "training",
}


@pytest.fixture
def cli(own_places, capsys):
    """Run a command: what it printed, and its exit code."""

    def run(*words):
        code = 0
        try:
            main([str(word) for word in words])
        except SystemExit as stop:
            code = stop.code
        streams = capsys.readouterr()
        assert "Traceback" not in streams.err
        return streams.out, streams.err, code

    return run


def save_digits(path, n=600):
    part = few_digits(n).train
    np.savez(path, x=part.x, y=part.y)
    return path


def write_evaluation(folder, dataset, **settings):
    """What `ibinn evaluate` writes but for the figures."""
    run = trained(folder, dataset, epochs=1, **settings)
    test = read_test(run, dataset)
    sets = {name: ood_set(name, test.x, dataset.levels) for name in ("noise", "inverted")}
    results, arrays = evaluate(run, dataset, sets)
    write_results(folder, results)
    write_arrays(folder, arrays | latent_arrays(run, test))


class Outside(HTMLParser):
    """All that a page would load or follow."""

    def __init__(self):
        super().__init__()
        self.links = []

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in ("src", "href", "srcset", "data", "action", "poster"):
                self.links.append(value)


def rows_of(report):
    """The rows of table.csv, but for those of averages over views."""
    rows = csv.DictReader((report / "table.csv").read_text().splitlines())
    return [row for row in rows if row["source"] != "averaged"]


def test_evaluate_writes_numbers_figures_and_a_page_that_needs_nothing_else(cli, tmp_path):
    trained(tmp_path / "run", few_digits(1797), epochs=2)
    out, err, code = cli("evaluate", tmp_path / "run")
    assert code == 0, err
    assert "test: error" in out
    assert "AUROC" in out
    figures = tmp_path / "run" / "figures"
    assert {path.stem for path in figures.glob("*.png")} == FIGURES
    assert {path.stem for path in figures.glob("*.pdf")} == FIGURES
    page = (tmp_path / "run" / "report.html").read_text()
    outside = Outside()
    outside.feed(page)
    assert len([link for link in outside.links if link.startswith("data:image/png")]) == len(FIGURES)
    assert all(link.startswith(("data:image/png;base64,", "#")) for link in outside.links)
    assert "url(" not in page
    assert "@import" not in page
    results = read_results(tmp_path / "run")
    assert {*results.ood} == {"rotation", "noise", "inverted", "flipped"}
    assert f"{100 - results.error:.1f}" in page


def test_a_missing_set_is_one_sentence_and_the_rest_is_reported(cli, tmp_path):
    trained(tmp_path / "run", few_digits(1797), epochs=1)
    _, err, code = cli("evaluate", tmp_path / "run", "--ood", "noise", "quickdraw", "no/such/file")
    assert code == 0
    assert "note: quickdraw is left out: " in err
    assert "note: no/such/file is left out:" in err
    assert "Error" not in err
    results = read_results(tmp_path / "run")
    assert {*results.ood} == {"noise"}
    assert {*results.ood_left_out} == {"quickdraw", "no/such/file"}
    assert "quickdraw" in (tmp_path / "run" / "report.html").read_text()


def test_no_strange_sets_at_all(cli, tmp_path):
    trained(tmp_path / "run", few_digits(1797), epochs=1)
    _, err, code = cli("evaluate", tmp_path / "run", "--ood")
    assert code == 0, err
    assert not (tmp_path / "run" / "figures" / "roc.png").exists()


def test_tables_are_evaluated_beside_tables(cli, tmp_path):
    moons = two_moons()
    data = tmp_path / "moons.csv"
    rows = [f"{u},{v},{'ab'[y]}" for (u, v), y in zip(moons.train.x, moons.train.y, strict=True)]
    data.write_text("\n".join(["u,v,kind", *rows]))
    far = tmp_path / "far.csv"
    far.write_text("\n".join(["u,v,kind", *[f"{50 + i},{-i},{'ab'[i % 2]}" for i in range(40)]]))
    assert cli("train", data, "--target", "kind", "--out", tmp_path / "run", "--epochs", "3")[2] == 0
    out, err, code = cli("evaluate", tmp_path / "run", "--ood", "permuted", far, "mnist")
    assert code == 0, err
    assert "mnist is left out" in err
    results = read_results(tmp_path / "run")
    assert {*results.ood} == {"permuted", str(far)}
    assert results.ood[str(far)].auroc["combined"] > 90
    assert "of 60" in out


def test_inputs_without_labels_are_fine_as_strange_ones(cli, tmp_path):
    """A folder of loose pictures, an npz with x alone, a table without the classes and with its columns mixed."""
    trained(tmp_path / "run", few_digits(1797), epochs=1)
    pictures = tmp_path / "loose pictures"
    pictures.mkdir()
    rng = np.random.default_rng(0)
    for i in range(30):
        Image.fromarray(rng.integers(256, size=(20, 24, 3), dtype=np.uint8)).save(pictures / f"{i}.png")
    np.savez(tmp_path / "x.npz", x=rng.integers(256, size=(25, 8, 8), dtype=np.uint8))
    (tmp_path / "empty").mkdir()
    _, err, code = cli(
        "evaluate", tmp_path / "run", "--ood", pictures, tmp_path / "x.npz", tmp_path / "empty", "test"
    )
    assert code == 0
    assert "empty holds no images" in err
    sets = read_results(tmp_path / "run").ood
    assert {name: ood.n for name, ood in sets.items()} == {
        str(pictures): 30,
        str(tmp_path / "x.npz"): 25,
    }


def test_columns_of_a_table_are_matched_by_name(tmp_path):
    (tmp_path / "a.csv").write_text("c,b,a\nred,2,1\nblue,4,3\n")
    columns = ("a", "b", "c=green", "c=red")
    found = ood_rows(str(tmp_path / "a.csv"), np.zeros((1, 4)), columns)
    assert found.tolist() == [[1, 2, 0, 1], [3, 4, 0, 0]]
    with pytest.raises(ValueError, match="has no column 'd'"):
        ood_rows(str(tmp_path / "a.csv"), np.zeros((1, 4)), ("a", "d"))


def test_broken_files_are_told_of_and_the_rest_is_reported(cli, tmp_path):
    digits = few_digits(600)
    for name, gamma in (("a", 1.0), ("b", 2.0), ("c", 3.0), ("d", 4.0)):
        write_evaluation(tmp_path / name, digits, gamma=gamma)
    (tmp_path / "b" / "evaluation.npz").write_bytes(b"PK no archive")
    edited = json.loads((tmp_path / "c" / "results.json").read_text()) | {"gamma": None, "ood": []}
    (tmp_path / "c" / "results.json").write_text(json.dumps(edited))
    shutil.copytree(tmp_path / "a", tmp_path / "copy of a")
    config = (tmp_path / "d" / "config.toml").read_text()
    (tmp_path / "d" / "config.toml").write_text(config.replace("epochs", "epoch"))
    _, err, code = cli(
        *["report", *[tmp_path / n for n in ("a", "b", "c", "d", "copy of a")], "--out", tmp_path / "out"]
    )
    assert code == 0
    notes = [line for line in err.splitlines() if line.startswith("note: left out")]
    assert len(notes) == 3
    assert "b/evaluation.npz is damaged" in notes[0]
    assert "c/results.json is of another version" in notes[1]
    assert "ood in" in notes[1], "which key"
    assert "copy of a is the same training as" in notes[2]
    (unknown,) = (line for line in err.splitlines() if "settings" in line)
    assert "d/config.toml" in unknown
    assert "'epoch'" in unknown
    rows = rows_of(tmp_path / "out")
    assert [row["gamma"] for row in rows] == ["1", "4"] or [float(row["gamma"]) for row in rows] == [1, 4]
    assert (tmp_path / "out" / "figures" / "gamma.png").is_file()
    assert cli("report")[2] == 2


def test_only_runs_that_differ_in_the_knob_alone_share_a_curve():
    def run(**changes):
        return Evaluated(Path("x"), made_results(**changes), {})

    notes = []
    runs = [run(gamma=1.0), run(gamma=2.0), run(gamma=1.0, size="small"), run(gamma=1.0, seed=1)]
    chosen = alike(runs, ("size", "noise", "sigma"), "gamma", notes.append)
    assert chosen == [runs[0], runs[1], runs[3]]
    assert "size base" in notes[0]
    assert alike(runs[:2], ("size",), "gamma", notes.append) == runs[:2]
    assert len(notes) == 1


def test_runs_with_other_settings_are_not_averaged(cli, tmp_path):
    """Two recipes, one of them with two seeds; a VIB and other gammas have only one."""
    digits = few_digits(600)
    runs = {
        "a": {},
        "b": {"seed": 1},
        "c": {"smoothing": 0.5},
        "d": {"smoothing": 0.5, "gamma": 4.0},
        "e": {"smoothing": 0.5, "gamma": 9.0},
        "f": {"method": "vib"},
        "g": {"method": "resnet"},
    }
    for name, settings in runs.items():
        write_evaluation(tmp_path / name, digits, **settings)
    _, err, code = cli("report", *[tmp_path / name for name in runs], "--out", tmp_path / "out")
    assert code == 0
    assert "left out" not in err
    assert "gamma figure shows only the runs with recipe.smoothing 0.5" in err
    rows = rows_of(tmp_path / "out")
    kept = [(row["method"], row["gamma"], row["variant"], row["n_seeds"]) for row in rows]
    assert ("ibinn", "1.0", "recipe.smoothing 0.05", "2") in kept
    assert ("ibinn", "1.0", "recipe.smoothing 0.5", "1") in kept
    assert ("ibinn", "4.0", "", "1") in kept
    assert len(kept) == 6
    error_of = {run: read_results(tmp_path / run).error for run in "abc"}
    errors = {row["variant"]: float(row["error"]) for row in rows if row["gamma"] == "1.0"}
    assert errors["recipe.smoothing 0.05"] == pytest.approx((error_of["a"] + error_of["b"]) / 2)
    assert errors["recipe.smoothing 0.5"] == pytest.approx(error_of["c"])
    assert "| γ = 1, recipe.smoothing 0.5 |" in (tmp_path / "out" / "table.md").read_text()


def test_report_over_all_methods_and_several_gammas(cli, tmp_path):
    """A dozen runs: the table in three forms, the gamma figures, latents, samples and interpolations."""
    digits, folders = few_digits(600), []
    runs = [("ibinn", gamma, 0) for gamma in (0.0, 0.1, 1.0, 10.0, float("inf"))] + [("ibinn", 1.0, 1)]
    runs += [("vib", 0.1, 0), ("vib", 1.0, 0)]
    runs += [(method, 1.0, 0) for method in ("class-nll", "class-nll-fixed", "resnet", "irevnet")]
    for method, gamma, seed in runs:
        folders.append(tmp_path / f"{method}-{gamma}-{seed}")
        write_evaluation(folders[-1], digits, method=method, gamma=gamma, seed=seed)
    _, err, code = cli("report", *folders, "--out", tmp_path / "out")
    assert code == 0, err
    written = {path.name for path in (tmp_path / "out").rglob("*.*")}
    assert {"table.md", "table.tex", "table.csv", "gamma.png", "gamma.pdf", "gamma_full.png"} <= written
    assert {"latent.png", "samples.png", "interpolations.png"} <= written
    assert "sigma.png" not in written
    rows = rows_of(tmp_path / "out")
    assert len(rows) == 11  # two seeds are one row
    for width in {line.count("|") for line in (tmp_path / "out" / "table.md").read_text().splitlines()} - {
        0
    }:
        assert width > 10
    if shutil.which("pdflatex"):
        command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "table.tex"]
        assert (
            subprocess.run(command, cwd=tmp_path / "out", capture_output=True, check=False).returncode == 0
        )
    runs = [Evaluated(folder, read_results(folder), {}) for folder in folders]
    assert [run.results.gamma for run in side_by_side(runs)][-5:] == [0.0, 0.1, 1.0, 10.0, math.inf]
    assert "mean ± standard error" in (tmp_path / "out" / "table.md").read_text()


def test_runs_without_results_and_of_several_data_sets(cli, tmp_path):
    trained(tmp_path / "a", few_digits(1797), epochs=1)
    data = save_digits(tmp_path / "d.npz")
    assert cli("train", data, "--epochs", "1", "--out", tmp_path / "b")[2] == 0
    trained(tmp_path / "c", few_digits(1797), epochs=1, seed=1)
    _, err, code = cli("report", tmp_path / "a")
    assert code == 2
    assert "none of these runs has results" in err
    for name in "ab":
        assert cli("evaluate", tmp_path / name, "--ood", "noise")[2] == 0
    _, err, code = cli(
        *["report", *[tmp_path / name for name in ("a", "b", "c", "none")]],
        "--out",
        tmp_path / "out",
        "--paper",
    )
    assert code == 0
    assert "c holds no results.json; make it with: ibinn evaluate" in err
    assert "of several data sets" in err
    assert (tmp_path / "out" / "2-digits" / "table.md").is_file()
    assert (tmp_path / "out" / "1-d" / "table.md").is_file()
    assert err.count("the paper has no table for") == 2


def test_data_that_has_moved_can_be_named(cli, tmp_path):
    data = save_digits(tmp_path / "d.npz")
    assert cli("train", data, "--epochs", "1", "--out", tmp_path / "run")[2] == 0
    moved = data.rename(tmp_path / "moved.npz")
    _, err, code = cli("evaluate", tmp_path / "run")
    assert code == 2
    assert str(data) in err
    assert "--data" in err
    assert cli("evaluate", tmp_path / "run", "--data", moved, "--ood")[2] == 0


def test_sigma_runs_make_the_sigma_figure(cli, tmp_path):
    folders = []
    for sigma in (0.01, 0.05):
        folders.append(tmp_path / f"s{sigma}")
        noise = {"noise": "gaussian", "sigma": sigma, "normalise": "standard"}
        write_evaluation(folders[-1], few_digits(600), **noise)
    assert cli("report", *folders, "--out", tmp_path / "out")[2] == 0
    with Image.open(tmp_path / "out" / "figures" / "sigma.png") as picture:
        assert picture.width > 800


def test_one_run_makes_no_sweep():
    assert [*sweep_figures([Evaluated(Path("x"), made_results(), {})], "typicality", print)] == []


def test_colour_images(cli, tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.integers(256, size=(240, 8, 8, 3), dtype=np.uint8), np.arange(240) % 3
    np.savez(tmp_path / "c.npz", x=x, y=y)
    assert (
        cli("train", tmp_path / "c.npz", "--size", "tiny", "--epochs", "1", "--out", tmp_path / "run")[2]
        == 0
    )
    _, err, code = cli("evaluate", tmp_path / "run")
    assert code == 0
    assert "quickdraw is left out" in err
    assert "imagenet is left out" in err
    results = read_results(tmp_path / "run")
    assert [*results.ood] == ["rgb_rotation", "noise", "jpeg"]
