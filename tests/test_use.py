"""ibinn predict, explain, sample, interpolate and export, as a person calls them; and the files they read."""

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
from ibinn.data.dataset import DataError
from ibinn.data.inputs import InputForm, read_inputs
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


# predict


def test_rows_are_what_the_model_says(tmp_path, capsys, digits_run):
    folder, trained_run = digits_run
    x = load_digits().images[:30].astype(np.uint8)[..., None]
    out = run(capsys, "predict", folder, npz(tmp_path / "x.npz", x), "--format", "jsonl").out
    rows = [json.loads(line) for line in out.splitlines()]
    judged = judge(trained_run, x)
    for i, row in enumerate(rows):
        assert row["label"] == trained_run.class_names[judged.log_q_y[i].argmax()]
        assert row["probability"] == pytest.approx(np.exp(judged.log_q_y[i].max()))
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
    assert "150 of 150 inputs are atypical" in capsys.readouterr().err
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
    assert "1 of 2 images are converted to grey" in shown.err
    assert "1 of 2 images are cropped at the centre and resized to 8 x 8" in shown.err


def test_pictures_come_in_the_levels_of_the_model(tmp_path):
    Image.fromarray(np.array([[0, 128], [64, 255]], np.uint8)).save(tmp_path / "a.png")
    form = InputForm("HW", (2, 2), "float64", 17, 16.0)
    assert_array_equal(read_inputs(tmp_path / "a.png", form)[1][0, ..., 0], [[0, 8], [4, 16]])


def test_columns_are_found_by_name(tmp_path):
    form = InputForm("rows", (3,), "float64")
    (tmp_path / "t.csv").write_text("kind,b,target,a\nred,2.5,x,1\nblue,3,y,2\n")
    names, rows = read_inputs(tmp_path / "t.csv", form, ("a", "b", "kind=red"))
    assert_array_equal(rows, [[1, 2.5, 1], [2, 3, 0]])
    assert names == [f"{tmp_path / 't.csv'}:0", f"{tmp_path / 't.csv'}:1"]
    with pytest.raises(DataError, match="no column 'c'"):
        read_inputs(tmp_path / "t.csv", form, ("a", "b", "c"))


def test_only_the_columns_of_the_model_are_looked_at(tmp_path):
    form = InputForm("rows", (2,), "float64")
    (tmp_path / "t.csv").write_text("a,note,code,when\n1,,1,2020-01-01\n2,x,2,2021-01-01\n")
    assert_array_equal(read_inputs(tmp_path / "t.csv", form, ("a", "code=2"))[1], [[1, 0], [2, 1]])
    (tmp_path / "t.csv").write_text("a,code\n1,1\nodd,2\n")
    with pytest.raises(DataError, match="holds text"):
        read_inputs(tmp_path / "t.csv", form, ("a", "code=2"))
    with pytest.raises(DataError, match="trained on an array of 3"):
        read_inputs(tmp_path / "t.csv", InputForm("rows", (3,), "float64"), ("x0", "x1", "x2"))


def test_the_range_of_floats_is_inferred_or_as_the_model_knows_it(tmp_path):
    levels = np.arange(4, dtype=np.uint8).reshape(1, 2, 2) * 85
    file = tmp_path / "x.npz"
    npz(file, levels / 255)
    with pytest.warns(UserWarning, match="0–1"):
        assert_array_equal(
            read_inputs(file, InputForm("HWC", (2, 2, 1), "uint8", 256, 255.0))[1][..., 0], levels
        )
    assert_array_equal(read_inputs(file, InputForm("HW", (2, 2), "float64", 256, 1.0))[1][..., 0], levels)
    np.savez(file, x=levels[:0], y=np.array([0.5]))
    with pytest.raises(DataError, match="no inputs"):
        read_inputs(file, InputForm("HWC", (2, 2, 1), "uint8", 256, 255.0))


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
    told = json.loads(run(capsys, "explain", tmp_path / "model", f"{file}:0", "--json").out)
    assert told["log_q_x"] == pytest.approx(model.score_samples(x[:1])[0], rel=1e-6)


def test_a_table_without_names_is_taken_in_its_order(tmp_path):
    (tmp_path / "t.csv").write_text("b,a\n2,1\n")
    form = InputForm("rows", (2,), "float64")
    assert_array_equal(read_inputs(tmp_path / "t.csv", form, ("x0", "x1"))[1], [[2, 1]])


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
    assert "there is no" in fails(capsys, "predict", folder, tmp_path / "nothing.png")
    assert "holds no images" in fails(capsys, "predict", folder, tmp_path / "empty")
    assert "give .csv, .parquet or .npz" in fails(capsys, "predict", table, tmp_path / "a.txt")
    assert "was trained on" in fails(capsys, "predict", folder, wide)
    assert "alpha" in fails(capsys, "predict", folder, good, "--alpha", "2")
    assert "fdr" in fails(capsys, "predict", folder, good, "--fdr", "2")
    assert "not a run folder" in fails(capsys, "predict", tmp_path / "empty", good)
    assert "no files" in fails(capsys, "predict", folder)
    assert "say which one" in fails(capsys, "explain", folder, good)
    assert "the last row" in fails(capsys, "explain", folder, f"{good}:7")
    assert "no class z" in fails(capsys, "sample", folder, "--classes", "z")
    assert "--n" in fails(capsys, "sample", folder, "--n", "0")
    assert "use .csv, .npz" in fails(capsys, "sample", table, "--out", tmp_path / "a.png")
    assert "steps" in fails(capsys, "interpolate", folder, f"{good}:0", f"{good}:1", "--steps", "1")
    assert ".onnx" in fails(capsys, "export", folder, tmp_path / "model.txt")


# The other verbs


def test_explain_tells_and_draws(tmp_path, capsys, digits_run):
    x = npz(tmp_path / "x.npz", load_digits().images[:2].astype(np.uint8))
    figure = tmp_path / "why.png"
    assert "p = " in run(capsys, "explain", digits_run[0], f"{x}:1", "--figure", figure).out
    assert width_of(figure) > 400
    told = json.loads(run(capsys, "explain", digits_run[0], f"{x}:1", "--json").out)
    assert sum(told["posterior"].values()) == pytest.approx(1)


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
