"""ONNX files against the models they were made of, in ONNX Runtime."""

import dataclasses
import json
import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from helpers.trainings import FEW_BLOCKS, few_digits, trained, two_moons
from numpy.testing import assert_allclose, assert_array_equal
from serve_onnx import predict
from torch import nn

import ibinn
from ibinn.data.dataset import Dataset, Part
from ibinn.data.inputs import InputForm
from ibinn.data.known import load
from ibinn.export import as_raw, export_onnx, export_sampler_onnx, in_form, write_graph
from ibinn.inference.judge import judge
from ibinn.inference.latent import decode
from ibinn.models.output import TENSORS, Output
from ibinn.ood.complexity import code_length, code_lengths
from ibinn.ood.conformal import conformal_p_values, p_values_among
from ibinn.ood.scores import SCORES, headline_p_value, observe, ood_scores, p_values
from ibinn.run.folder import default_dtype

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[1] / "examples" / "serve_onnx.py"


def stripes(n=300, seed=0):
    """Colour images of odd sides: a tint, with stripes along one side or the other, and noise."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3
    tint = rng.uniform(0, 120, (n, 1, 1, 3)) + 30 * y[:, None, None, None]
    row, column = np.arange(9)[:, None, None], np.arange(7)[:, None]
    wave = np.where((y == 0)[:, None, None, None], np.sin(row), np.cos(2 * column))
    x = (tint + 30 * wave + rng.normal(0, 5, (n, 9, 7, 3))).clip(0, 255).astype(np.uint8)
    return Dataset("stripes", Part(x, y), None, ("a", "b", "c"), 256)


FORMS = {
    "grey floats": InputForm("HW", (8, 8), "float32", 17, 1.0),
    "channels first": InputForm("CHW", (3, 9, 7), "float64", 256, 255.0),
    "integers": InputForm("HWC", (9, 7, 3), "int32", 256, 1000.0),
    "truth values": InputForm("HW", (8, 8), "bool", 2, 1.0),
}
ONE_LEVEL = FEW_BLOCKS | {"blocks": (1,), "widths": (8,), "dropouts": (0.2,), "subnet": "paper"}
GAUSSIAN = {"normalise": "standard", "noise": "gaussian", "sigma": 0.01}
CASES = {
    "table": (two_moons, {}),
    "grey floats": (few_digits, {"network": ONE_LEVEL}),
    "colour": (stripes, {"network": FEW_BLOCKS | {"blocks": (0, 1)}}),
    "summary": (
        stripes,
        {
            "network": FEW_BLOCKS | {"blocks": (1, 1), "summary": (4, 6), "n_summary": 3},
            "optimizer": "muon",
        },
    ),
    "resnet": (few_digits, {"network": ONE_LEVEL, "method": "resnet", **GAUSSIAN}),
}
WITH_INVERSE = [name for name in CASES if name != "resnet"]


class Exported:
    """A trained run, its graphs, inputs that it has not seen, the last ones strange: raw, and x in its form."""

    def __init__(self, name, folder):
        data, settings = CASES[name]
        run = trained(folder / "run", data(), epochs=2, **settings)
        self.folder, self.form = folder, FORMS.get(name, run.form)
        self.run = dataclasses.replace(run, form=self.form)
        self.graphs = {}
        if data is few_digits:
            x, strange = (
                load("digits").train.x[400:600],
                np.random.default_rng(0).integers(17, size=(57, 8, 8, 1)),
            )
        else:
            x = data(200, seed=1).train.x
            strange = 20 * x[:57] + 3 if data is two_moons else 255 - x[:57]
        self.raw = np.concatenate([x, strange.astype(x.dtype)])
        self.x = self.form.back(self.raw)

    def session(self, export):
        if export not in self.graphs:
            path = self.folder / f"{export.__name__}.onnx"
            export(self.run, path)
            self.graphs[export] = session_of(path)
        return self.graphs[export]

    @property
    def p_values(self):
        return judge(self.run, self.raw).p_values[self.run.reference.headline]


def session_of(path):
    """From the bytes of the file alone: nothing can lie beside it."""
    return onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])


@pytest.fixture(autouse=True, scope="module")
def _single_precision():
    """As everywhere but in other tests: what must be float64 has to say so."""
    with default_dtype(torch.float32):
        yield


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    made = {}

    def get(name):
        if name not in made:
            made[name] = Exported(name, tmp_path_factory.mktemp("exported"))
        return made[name]

    return get


@pytest.mark.parametrize("n", [1, 257])
@pytest.mark.parametrize("name", CASES)
def test_answers_are_those_of_the_model(exported, name, n):
    case = exported(name)
    pipeline, n_calibration = case.run.pipeline, len(case.run.reference.calibration_class)
    got, want = predict(case.session(export_onnx), case.x[-n:]), pipeline.compute_output(case.raw[-n:])
    assert_allclose(got["probabilities"], np.exp(want.log_p_y), atol=1e-5)
    ranks = got["p_value"] * (n_calibration + 1)
    assert_allclose(ranks, np.round(ranks), rtol=1e-12)
    assert abs(ranks - case.p_values[-n:] * (n_calibration + 1)).max() < 1.01
    assert n == 1 or len(np.unique(got["p_value"])) > 10
    assert ("log_q_x" in got) == pipeline.model.has_density
    if want.log_q_x is not None:
        rtol = 1e-5 if pipeline.dtype == torch.float32 else 1e-12
        assert_allclose(got["log_q_x"], want.log_q_x + case.form.log_scale, rtol=rtol)


def smallest(case):
    return 1 / (1 + len(case.run.reference.calibration_class))


def test_rows_of_no_numbers_are_as_strange_as_can_be(exported):
    case = exported("table")
    got = predict(case.session(export_onnx), np.array([[np.nan, 0.0], [1e200, 0.0]]))
    assert_array_equal(got["p_value"], smallest(case))


def test_images_out_of_range_are_as_strange_as_can_be(exported):
    case = exported("grey floats")
    usual = case.p_values > 0.5
    x, p = case.x[usual][:7], case.p_values[usual][:7]
    x[:6, 0, 0] = [np.nan, np.inf, -np.inf, 1.11, -0.11, 255]
    x[6] = np.select([x[6] == 0, x[6] == 1], [-0.09, 1.09], x[6])  # a tenth too much is clipped
    assert_array_equal(predict(case.session(export_onnx), x)["p_value"], [smallest(case)] * 6 + [p[6]])


@pytest.mark.parametrize("n", [1, 257])
@pytest.mark.parametrize("name", WITH_INVERSE)
def test_samples_are_those_of_the_model(exported, name, n):
    case = exported(name)
    session, pipeline = case.session(export_sampler_onnx), case.run.pipeline
    y = np.arange(n) % len(case.run.class_names)
    noise = torch.randn(n, pipeline.preprocess.n_dims, dtype=pipeline.dtype)
    (got,) = session.run(["x"], {"y": y, "noise": noise.numpy()})
    z = pipeline.reference("drawn").from_noise(torch.from_numpy(y), noise)
    want = decode(pipeline, z, is_local=True)
    assert got.shape == (n, *case.x.shape[1:])
    assert got.dtype == case.x.dtype
    if case.form.is_images:  # rounding may end beyond the edge of a level
        levels = case.form.raw(got).astype(int)
        assert abs(levels - want).max() <= 1
        assert (levels != want).mean() < 1e-3
    else:
        assert_allclose(got, want, rtol=1e-10, atol=1e-10)


def graph_of(tmp_path, module, x):
    write_graph(tmp_path / "graph.onnx", module, {"x": torch.from_numpy(x[:2])}, ["out"], {})
    return session_of(tmp_path / "graph.onnx").run(["out"], {"x": x})[0]


class Graph(nn.Module):
    """A function of tensors as a module, for the exporter."""

    def __init__(self, function):
        super().__init__()
        self.forward = function


@pytest.mark.parametrize("n_channels", [1, 3])
@pytest.mark.parametrize("levels", [17, 256])
def test_code_lengths_in_a_graph(tmp_path, levels, n_channels):
    rng = np.random.default_rng(0)
    noise = rng.integers(levels, size=(30, 7, 6, n_channels))
    smooth = noise // 8 + np.arange(6)[:, None] * (levels // 12)
    x = np.concatenate([noise, smooth, np.full_like(noise[:1], levels - 1)]).astype(np.uint8)
    got = graph_of(tmp_path, Graph(lambda x: code_length(x, levels)), x)
    assert_allclose(got, code_lengths(x, levels), rtol=1e-12)


def test_p_values_in_a_graph_also_of_ties(tmp_path):
    rng = np.random.default_rng(0)
    calibration = [np.sort(rng.integers(9, size=n).astype(float)) for n in (1, 2, 3, 7, 8, 100)]
    calibration.append(np.array([-np.inf, 0.0, 3.0, np.inf, np.inf]))
    x = np.concatenate([np.arange(-1, 10, 0.5), 1e-10 + np.arange(9), [-np.inf, np.inf]])

    def ranks(x):
        """p-values, and how many calibration scores are not above."""
        tensors = [torch.from_numpy(values) for values in calibration]
        not_above = [torch.bucketize(x, values, right=True).double() for values in tensors]
        return torch.stack([p_values_among(x, values) for values in tensors] + not_above)

    p, not_above = np.split(graph_of(tmp_path, Graph(ranks), x), 2)
    assert_array_equal(p, [conformal_p_values(x, values) for values in calibration])
    assert_array_equal(not_above, [np.searchsorted(values, x, "right") for values in calibration])


@pytest.mark.parametrize("name", CASES)
def test_scores_in_a_graph_are_those_of_arrays(exported, tmp_path, name):
    """From the same output, whose fields are the columns of a matrix; also of NaN and inf."""
    case = exported(name)
    reference, output = case.run.reference, observe(case.run.pipeline, case.raw)
    output.log_q_y[0] = np.nan
    if output.log_q_x is not None:
        output.log_q_x[1], output.sq_distance[2] = np.nan, np.inf
    fields = [k for k in TENSORS if getattr(output, k) is not None and k not in ("log_q_y", "log_p_y")]

    def headline(x):
        k = x.shape[1] - len(fields)
        values = {name: x[:, k + i] for i, name in enumerate(fields)}
        given = Output(x[:, :k], **values)
        is_valid = torch.arange(x.shape[0]) != 3
        p_value = headline_p_value(given, is_valid, reference)
        return torch.stack([SCORES[reference.headline](given, reference), p_value])

    x = np.column_stack([output.log_q_y, *(getattr(output, name) for name in fields)])
    score, p_value = graph_of(tmp_path, Graph(headline), x)
    scores = ood_scores(output, reference)
    want = scores[reference.headline]
    assert_allclose(np.where(np.isnan(score), np.inf, score), want, rtol=1e-12)
    want = p_values(scores, reference.calibration)[reference.headline]
    want[3] = smallest(case)
    assert_array_equal(p_value, want)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_forms_are_those_of_numpy(form):
    rng = np.random.default_rng(0)
    x = (rng.uniform(0, form.pixel_max, (20, *form.shape))).astype(form.dtype)
    raw = as_raw(torch.from_numpy(x), form).numpy()
    assert raw.dtype == np.uint8
    assert_array_equal(raw, form.raw(x))
    back = in_form(torch.from_numpy(raw), form).numpy()
    assert back.dtype == x.dtype
    assert_array_equal(back, form.back(raw))


def test_metadata_say_what_goes_in_and_what_comes_out(exported):
    case = exported("table")
    assert [(i.name, i.shape) for i in case.session(export_onnx).get_inputs()] == [("x", ["N", 2])]
    about = case.session(export_onnx).get_modelmeta().custom_metadata_map
    form = {
        "kind": "table",
        "layout": "rows",
        "shape": [2],
        "dtype": "float64",
        "feature_names": ["u", "v"],
    }
    assert json.loads(about["class_names"]) == ["a", "b"]
    assert json.loads(about["input"]) == form
    assert about["score"] == "combined"
    assert int(about["n_calibration"]) == len(case.run.reference.calibration["combined"])
    assert about["ibinn_version"] == ibinn.__version__
    about = case.session(export_sampler_onnx).get_modelmeta().custom_metadata_map
    assert json.loads(about["output"]) == form
    assert_allclose(
        json.loads(about["class_weights"]), case.run.pipeline.model.mixture.log_w.exp().detach()
    )
    about = exported("colour").session(export_onnx).get_modelmeta().custom_metadata_map
    assert json.loads(about["input"]) == {
        "kind": "images",
        "layout": "HWC",
        "shape": [9, 7, 3],
        "dtype": "uint8",
        "levels": 256,
        "pixel_max": 255,
    }


def test_an_export_is_one_file_and_leaves_no_other_trace(exported, tmp_path, capfd, caplog):
    run = exported("table").run
    before = {name: value.clone() for name, value in run.pipeline.state_dict().items()}
    run.pipeline.train()
    export_onnx(run, tmp_path / "model.onnx")
    assert all(module.training for module in run.pipeline.modules())
    run.pipeline.eval()
    assert all(torch.equal(before[name], value) for name, value in run.pipeline.state_dict().items())
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    content = (tmp_path / "model.onnx").read_bytes()
    assert b"pipeline.py" not in content
    assert str(Path(ibinn.__file__).parent).encode() not in content
    assert capfd.readouterr() == ("", "")
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_mistakes_end_in_one_sentence_and_leave_no_file(exported, tmp_path, monkeypatch):
    run = exported("resnet").run
    with pytest.raises(ValueError, match=r"model\.pt .*model\.onnx"):
        export_onnx(run, tmp_path / "model.pt")
    with pytest.raises(ValueError, match=r"no folder .*nowhere"):
        export_onnx(run, tmp_path / "nowhere" / "model.onnx")
    with pytest.raises(ValueError, match="has no density and no class means"):
        export_sampler_onnx(run, tmp_path / "model.onnx")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ValueError, match="pip install onnx"):
        export_onnx(run, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def served(*arguments):
    """What the example prints where neither PyTorch nor ibinn can be imported."""
    code = f"""
import runpy, sys
sys.modules |= dict.fromkeys(("torch", "ibinn", "onnx"))
sys.argv = {[str(EXAMPLE), *map(str, arguments)]}
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_the_example_serves_without_torch(exported, tmp_path):
    case = exported("colour")
    case.session(export_onnx)
    model = case.folder / "export_onnx.onnx"
    np.save(tmp_path / "x.npy", case.x[:3])
    np.savez(tmp_path / "x.npz", x=case.x[:3])
    q = np.exp(case.run.pipeline.compute_output(case.raw[:3]).log_q_y)
    lines = served(model, tmp_path / "x.npy").splitlines()
    assert lines == served(model, tmp_path / "x.npz").splitlines()
    for line, row, p in zip(lines, q, case.p_values, strict=False):
        name, probability, p_value = line.split(", ")
        assert name == "abc"[row.argmax()]
        assert float(probability.removeprefix("probability ")) == pytest.approx(row.max(), abs=1e-3)
        assert float(p_value.removeprefix("p-value ")) == pytest.approx(p, abs=1e-3)
    assert len(served(model).splitlines()) == 5
