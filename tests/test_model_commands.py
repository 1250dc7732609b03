"""The commands that use a trained model: ibinn predict, explain, sample, interpolate and export."""

import csv
import dataclasses
import json

import numpy as np
import pytest
from helpers.trainings import few_digits, trained
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image
from sklearn.datasets import load_digits, load_iris

from ibinn import IBINNClassifier
from ibinn.cli import main
from ibinn.inference.judge import judge
from ibinn.ood.conformal import benjamini_hochberg

pytestmark = pytest.mark.usefixtures("own_places")


@pytest.fixture(scope="module")
def digits_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits") / "run"
    return folder, trained(folder, few_digits(), epochs=2)


@pytest.fixture(scope="module")
def iris_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("iris") / "model"
    x, y = load_iris(return_X_y=True)
    model = IBINNClassifier(epochs=2, random_state=0).fit(x, np.array(["a", "b", "c"])[y])
    model.save(folder)
    return folder, model


def npz(path, x):
    np.savez(path, x=x)
    return str(path)


def width_of(picture):
    with Image.open(picture) as image:
        return image.width


def run(capsys, *arguments):
    main([str(a) for a in arguments])
    return capsys.readouterr()


def fails(capsys, *arguments):
    with pytest.raises(SystemExit) as caught:
        main([str(a) for a in arguments])
    assert caught.value.code == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 + err.count("note: ")
    return err


def test_rows_are_what_the_model_says(tmp_path, capsys, digits_run):
    folder, trained_run = digits_run
    x = load_digits().images[:30].astype(np.uint8)[..., None]
    out = run(capsys, "predict", folder, npz(tmp_path / "x.npz", x), "--format", "jsonl").out
    rows = [json.loads(line) for line in out.splitlines()]
    judged = judge(trained_run, x)
    for i, row in enumerate(rows):
        assert row["label"] == trained_run.class_names[judged.log_p_y[i].argmax()]
        assert row["probability"] == pytest.approx(np.exp(judged.log_p_y[i].max()))
        assert row["p_value"] == judged.p_values["combined"][i]
        assert row["verdict"] == ("atypical" if judged.p_values["combined"][i] <= 0.05 else "typical")
        assert row["input"] == f"{tmp_path / 'x.npz'}:{i}"


def test_false_discoveries_are_controlled_in_the_batch(tmp_path, capsys, digits_run):
    folder, trained_run = digits_run
    x = load_digits().images[:60].astype(np.uint8)[..., None]
    x[:40] = 16 - x[:40]
    out = run(capsys, "predict", folder, npz(tmp_path / "x.npz", x), "--fdr", "0.2", "--format", "csv").out
    flagged = [row["verdict"] == "atypical" for row in csv.DictReader(out.splitlines())]
    assert_array_equal(flagged, benjamini_hochberg(judge(trained_run, x).p_values["combined"], 0.2))
    assert any(flagged)


def test_an_exit_code_for_atypical_inputs(tmp_path, capsys, iris_run):
    folder, model = iris_run
    x = load_iris().data
    odd = npz(tmp_path / "odd.npz", x + 100)
    with pytest.raises(SystemExit) as caught:
        main(["predict", str(folder), odd, "--alpha", "0.1", "--fail"])
    assert caught.value.code == 3
    assert "150 of 150" in capsys.readouterr().err
    usual = npz(tmp_path / "usual.npz", x[model.p_values(x) > 0.1][:5])
    assert "0 of 5" in run(capsys, "predict", folder, usual, "--alpha", "0.1", "--fail").err


@pytest.mark.filterwarnings("default::UserWarning")
def test_images_are_fitted_to_the_model(tmp_path, capsys, digits_run):
    folder, _ = digits_run
    (tmp_path / "new" / "deep").mkdir(parents=True)
    digit = np.round(load_digits().images[3] * 255 / 16).astype(np.uint8)
    Image.fromarray(digit).save(tmp_path / "new" / "a.png")
    Image.fromarray(digit).convert("RGB").resize((32, 32)).save(tmp_path / "new" / "deep" / "b.png")
    shown = run(capsys, "predict", folder, tmp_path / "new")
    lines = shown.out.splitlines()
    assert lines[0].split() == ["input", "class", "probability", "p-value", "verdict"]
    assert [line.split()[0] for line in lines[1:]] == [
        str(tmp_path / "new" / name) for name in ("a.png", "deep/b.png")
    ]
    notes = [line for line in shown.err.splitlines() if line.startswith("note: ")]
    assert ["grey" in note for note in notes] == [True, False]
    assert ["8 x 8" in note for note in notes] == [False, True]
    assert all("1 of 2" in note for note in notes)


def test_classes_in_any_order_can_be_sampled(tmp_path, capsys):
    data = few_digits(200)
    data = dataclasses.replace(data, class_names=tuple(f"{9 - k} t" for k in range(10)))
    trained(tmp_path / "run", data, epochs=1)
    run(capsys, "sample", tmp_path / "run", "--n", "2", "--classes", "2 t", "--out", tmp_path / "s.npz")
    with np.load(tmp_path / "s.npz") as arrays:
        assert arrays["y"].tolist() == ["2 t"] * 2


@pytest.mark.filterwarnings("ignore:the model is hardly better", "ignore:With .* calibration")
def test_densities_are_those_of_the_estimator(tmp_path, capsys):
    x, y = load_digits().images[:200] / 16, load_digits().target[:200]
    settings = ("network.blocks=[1,1]", "network.widths=[8,8]", "network.dense_width=16")
    model = IBINNClassifier(epochs=1, levels=17, pixel_max=1, random_state=0, settings=settings).fit(x, y)
    model.save(tmp_path / "model")
    file = npz(tmp_path / "x.npz", x[:3])
    out = run(capsys, "predict", tmp_path / "model", file, "--format", "jsonl").out
    assert_allclose(
        [json.loads(line)["log_q_x"] for line in out.splitlines()], model.score_samples(x[:3]), rtol=1e-6
    )
    explanation = json.loads(run(capsys, "explain", tmp_path / "model", f"{file}:0", "--json").out)
    assert explanation["log_q_x"] == pytest.approx(model.score_samples(x[:1])[0], rel=1e-6)


def test_answers_go_to_a_file(tmp_path, capsys, iris_run):
    x = npz(tmp_path / "x.npz", load_iris().data[:4])
    assert run(capsys, "predict", iris_run[0], x, "--format", "csv", "--out", tmp_path / "a.csv").out == ""
    with open(tmp_path / "a.csv") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4
    assert {row["label"] for row in rows} <= {"a", "b", "c"}


def test_mistakes_are_one_line(tmp_path, capsys, digits_run, iris_run):
    folder, table = digits_run[0], iris_run[0]
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.txt").write_text("")
    good = npz(tmp_path / "x.npz", np.zeros((2, 8, 8), np.uint8))
    wide = npz(tmp_path / "w.npz", np.zeros((2, 9, 8), np.uint8))
    for name, *arguments in (
        ("nothing.png", "predict", folder, tmp_path / "nothing.png"),
        ("empty", "predict", folder, tmp_path / "empty"),
        ("a.txt", "predict", table, tmp_path / "a.txt"),
        ("(9, 8, 1)", "predict", folder, wide),
        ("alpha", "predict", folder, good, "--alpha", "2"),
        ("fdr", "predict", folder, good, "--fdr", "2"),
        ("ibinn train", "predict", tmp_path / "empty", good),
        ("files", "predict", folder),
        (f"{good}:0", "explain", folder, good),
        (f"{good}:1", "explain", folder, f"{good}:7"),
        (".pdf", "explain", folder, f"{good}:0", "--figure", tmp_path / "why.gif"),
        ("class 'z'", "sample", folder, "--classes", "z"),
        ("--n", "sample", folder, "--n", "0"),
        (".csv, .npz", "sample", table, "--out", tmp_path / "a.png"),
        ("steps", "interpolate", folder, f"{good}:0", f"{good}:1", "--steps", "1"),
        (".onnx", "export", folder, tmp_path / "model.txt"),
        ("ibinn train", "evaluate", table),
    ):
        assert name in fails(capsys, *arguments)


def test_explain_tells_and_draws(tmp_path, capsys, digits_run):
    x = npz(tmp_path / "x.npz", load_digits().images[:2].astype(np.uint8))
    figure = tmp_path / "why.png"
    assert "p = " in run(capsys, "explain", digits_run[0], f"{x}:1", "--figure", figure).out
    assert width_of(figure) > 400
    explanation = json.loads(run(capsys, "explain", digits_run[0], f"{x}:1", "--json").out)
    assert sum(explanation["posterior"].values()) == pytest.approx(1)


def test_samples_as_picture_arrays_and_table(tmp_path, capsys, digits_run, iris_run):
    run(capsys, "sample", digits_run[0], "--n", "3", "--out", tmp_path / "s.png")
    assert width_of(tmp_path / "s.png") > 100
    run(capsys, "sample", digits_run[0], "--n", "3", "--classes", "4", "7", "--out", tmp_path / "s.npz")
    with np.load(tmp_path / "s.npz") as arrays:
        assert arrays["x"].shape == (6, 8, 8, 1)
        assert arrays["y"].tolist() == ["4"] * 3 + ["7"] * 3
    folder, model = iris_run
    run(capsys, "sample", folder, "--n", "2", "--seed", "5", "--out", tmp_path / "s.csv")
    with open(tmp_path / "s.csv") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["x0", "x1", "x2", "x3", "class"]
    expected, labels = model.sample(6, ["a", "a", "b", "b", "c", "c"], random_state=5)
    assert_allclose([[float(v) for v in row[:4]] for row in rows[1:]], expected, rtol=1e-12)
    assert [row[4] for row in rows[1:]] == labels.tolist()


def test_ways_between_inputs(tmp_path, capsys, digits_run, iris_run):
    x = load_digits().images[:2].astype(np.uint8)
    name = npz(tmp_path / "x.npz", x)
    run(capsys, "interpolate", digits_run[0], f"{name}:0", f"{name}:1", "--out", tmp_path / "w.npz")
    with np.load(tmp_path / "w.npz") as arrays:
        assert_array_equal(arrays["x"][[0, -1], ..., 0], x)
        assert len(arrays["x"]) == 9
    run(capsys, "interpolate", digits_run[0], f"{name}:0", f"{name}:1", "--out", tmp_path / "w.png")
    rows = npz(tmp_path / "r.npz", load_iris().data[:2])
    run(capsys, "interpolate", iris_run[0], f"{rows}:0", f"{rows}:1", "--out", tmp_path / "w.csv")
    assert len((tmp_path / "w.csv").read_text().splitlines()) == 10


def test_a_softmax_model_predicts_and_cannot_sample(tmp_path, capsys):
    trained(tmp_path / "run", few_digits(), method="resnet", epochs=1)
    x = npz(tmp_path / "x.npz", load_digits().images[:3].astype(np.uint8))
    assert "class" in run(capsys, "predict", tmp_path / "run", x).out
    assert "resnet" in fails(capsys, "sample", tmp_path / "run")
