"""Evidence maps: they add up, and are those of a fine path and of linear models."""

import math

import numpy as np
import pytest
import torch
from helpers.examples import BENT, DATA, DIGITS, WITH_DENSITY
from numpy.testing import assert_allclose
from torch import nn

from ibinn.data.preprocess import ImagePreprocess, TablePreprocess
from ibinn.inference import attribution
from ibinn.inference.attribution import Line, evidence_map, integrated_gradients
from ibinn.inference.explain import explain
from ibinn.models.baselines import SoftmaxClassifier
from ibinn.models.pipeline import Pipeline
from ibinn.run.trained import Run


@pytest.fixture
def digits(example_run):
    return example_run("digits")


@pytest.fixture
def padded(example_run):
    return example_run("padded")


@pytest.fixture
def bent(example_run):
    return example_run("bent")


@pytest.fixture(params=WITH_DENSITY)
def case(request, example_run):
    """A run with a density, and data for it."""
    return example_run(request.param), DATA[request.param].train.x


def ratio(run, raw, a, b):
    """log q(a|x) - log q(b|x) of raw (1, ...)."""
    with torch.no_grad():
        log_q_y = run.pipeline(raw).log_q_y[0].double()
    return float(log_q_y[a] - log_q_y[b])


def test_evidence_adds_up(case):
    run, x = case
    rng = np.random.default_rng(0)
    for raw in x[rng.permutation(len(x))[:12]]:
        a, b = (int(k) for k in rng.permutation(len(run.class_names))[:2])
        evidence = evidence_map(run, raw, a, b)
        difference = ratio(run, raw[None], a, b) - ratio(run, run.pipeline.preprocess.raw_mean, a, b)
        assert evidence.values.shape == raw.shape
        assert (evidence.a, evidence.b) == (run.class_names[a], run.class_names[b])
        assert evidence.difference == pytest.approx(difference, rel=1e-4, abs=1e-4)
        assert abs(evidence.values.sum() - difference) < 0.01 * abs(difference)
        assert evidence.missing < 0.01
        against = evidence_map(run, raw, b, a)
        assert_allclose(against.values, -evidence.values, atol=0.01 * np.abs(evidence.values).max())


def test_evidence_for_inputs_unlike_all_others_adds_up_or_says_by_how_much_not(digits, bent):
    rng = np.random.default_rng(0)
    black = np.zeros((8, 8, 1), np.uint8)
    for raw in (black, black + 16, rng.integers(0, 17, (8, 8, 1)).astype(np.uint8)):
        evidence = evidence_map(digits, raw, 3, 5)
        missed = abs(evidence.values.sum() - evidence.difference)
        assert evidence.missing == pytest.approx(missed / abs(evidence.difference))
        assert evidence.missing < 0.01
    for factor in (-10, 100, 1e4):
        assert evidence_map(bent, factor * BENT.train.x[0], 0, 2).missing < 0.01


def test_evidence_is_that_of_a_fine_path(case):
    """The same path in very small steps, in x: the chain rule by autograd, as for any path."""
    run, x = case
    pipeline, raw, n = run.pipeline, x[11], 2000
    ends = [
        pipeline.preprocess.to_units(r) + pipeline.preprocess.fixed_noise().to(pipeline.device)
        for r in (run.pipeline.preprocess.raw_mean, raw[None])
    ]
    shares = torch.arange(n + 1).to(ends[0]) / n
    shape = (-1, *[1] * (ends[0].ndim - 1))
    v0, v1 = (pipeline.normalised(end)[0] for end in ends)
    path = pipeline.preprocess.inverse(torch.lerp(v0, v1, shares.reshape(shape)))
    middle = ((path[1:] + path[:-1]) / 2).requires_grad_()
    log_q_y = pipeline.model.output(pipeline.normalised(middle)[0]).log_q_y
    (gradient,) = torch.autograd.grad((log_q_y[:, 1] - log_q_y[:, 2]).sum(), middle)
    added = (gradient * (path[1:] - path[:-1])).double().sum(0)
    if added.ndim == 3:
        top, left = ((full - own) // 2 for full, own in zip(added.shape[1:], raw.shape[:2], strict=True))
        added = added[:, top : top + raw.shape[0], left : left + raw.shape[1]].permute(1, 2, 0)
    evidence = evidence_map(run, raw, 1, 2)
    assert_allclose(evidence.values, added, atol=0.02 * float(added.abs().max()))


def linear_run(preprocess, n_classes=3, seed=0, columns=None):
    """A model whose log-ratios are linear in v; its weights (K, n) and the run."""
    torch.manual_seed(seed)
    model = SoftmaxClassifier(nn.Flatten(), preprocess.n_dims, n_classes)
    pipeline, classes = Pipeline(preprocess, model), np.array([*"abcdef"[:n_classes]])
    run = Run(
        config=None,
        pipeline=pipeline,
        form=preprocess.form,
        classes=classes,
        reference=None,
        facts=None,
        feature_names=columns,
    )
    return model.readout.weight.detach(), run


def test_evidence_of_a_linear_model_is_weight_times_deviation_for_images():
    """Colours, sides that differ, and padding: every pixel keeps its place."""
    rng = np.random.default_rng(0)
    mean, std = np.array([0.2, 0.5, 0.7]), np.array([0.1, 0.3, 0.2])
    preprocess = ImagePreprocess((3, 5, 3), 16, mean, std, multiple=4)
    weight, run = linear_run(preprocess)
    raw = rng.integers(0, 16, (3, 5, 3)).astype(np.uint8)
    evidence = evidence_map(run, raw, 2, 0)
    w = (
        (weight[2] - weight[0]).reshape(3, 4, 8).numpy()[:, 0:3, 1:6]
    )  # one row below, one column left, two right
    oracle = w.transpose(1, 2, 0) / std * (raw / 16 - mean)
    assert_allclose(evidence.values, oracle, rtol=1e-9, atol=1e-12)
    assert evidence.difference == pytest.approx(oracle.sum())
    assert evidence.missing < 1e-9


def test_evidence_of_a_linear_model_is_weight_times_deviation_for_columns():
    """Also where whitening mixes the columns: what counts are the columns themselves."""
    rng = np.random.default_rng(0)
    mean, std, mix = rng.normal(size=4), rng.uniform(1, 5, 4), rng.normal(size=(4, 4))
    for whiten in (None, mix):
        preprocess = TablePreprocess(mean, std) if whiten is None else TablePreprocess(mean, std, whiten)
        weight, run = linear_run(preprocess, columns=("p", "q", "r", "s"))
        raw = 10 * rng.normal(size=4)
        w = (weight[0] - weight[1]).numpy() @ (np.eye(4) if whiten is None else whiten) / std
        evidence = evidence_map(run, raw, 0, 1)
        assert_allclose(evidence.values, w * (raw - mean), rtol=1e-9)
        assert evidence.columns == ("p", "q", "r", "s")


def test_evidence_leaves_the_model_alone(padded):
    pipeline, raw = padded.pipeline, DIGITS.train.x[0, :7, 1:7]
    before = evidence_map(padded, raw, 0, 1)
    for parameter in pipeline.parameters():
        parameter.grad = torch.ones_like(parameter)
    pipeline.train()
    pipeline.preprocess.eval()
    modes = [module.training for module in pipeline.modules()]
    with torch.no_grad():
        again = evidence_map(padded, raw, 0, 1)
    assert [module.training for module in pipeline.modules()] == modes
    assert all((parameter.grad == 1).all() for parameter in pipeline.parameters())
    pipeline.eval()
    pipeline.requires_grad_(False)
    frozen = evidence_map(padded, raw, 0, 1)
    pipeline.requires_grad_(True)
    pipeline.zero_grad()
    assert_allclose(again.values, before.values)
    assert_allclose(frozen.values, before.values)
    explain(padded, raw)
    assert all(parameter.grad is None for parameter in pipeline.parameters())


def line(function, n=1):
    return Line(torch.zeros(1, n), torch.ones(1, n), lambda points: function(points).sum(1))


def test_steps_are_halved_where_they_are_too_long():
    """A cliff at the end of the way, a kink, and something smooth."""
    steep = [lambda t: torch.expm1(60 * t), lambda t: (t - 0.3456).relu() * 7, lambda t: (9 * t).sin()]
    for function in steep:
        values, difference, n_points = integrated_gradients(line(function), 16)
        assert difference == pytest.approx(float(function(torch.tensor(1.0)) - function(torch.tensor(0.0))))
        assert float(values.sum()) == pytest.approx(difference, rel=0.005)
        assert n_points < 1500
    many = integrated_gradients(line(lambda t: (t - 1e-3).sign() * 1e-9 + t.sin() * 100, 3), 8)
    assert_allclose(many[0], np.full((1, 3), 100 * math.sin(1)), rtol=0.005)


def test_misses_that_cancel_are_found_all_the_same():
    """Two kinks of opposite signs at the same place of their steps: the sum is right at once, not its parts."""
    knees = torch.tensor([0.34, 0.34 + 4 / 16])
    signs = torch.tensor([100.0, -100.0])
    values = integrated_gradients(line(lambda t: signs * (t - knees).relu(), 2), 16)[0]
    assert_allclose(values[0], signs * (1 - knees), rtol=0.01)


def test_there_is_an_end_to_halving():
    wild = line(lambda t: torch.sin(1e6 * t) + t * 1e-3)
    values, difference, n_points = integrated_gradients(wild, 64)
    assert n_points <= attribution.MAX_PATH_POINTS
    jump = line(lambda t: (t > 0.3).double() + 0 * t)  # no gradient shows it
    values, difference, n_points = integrated_gradients(jump, 64)
    assert (float(values.sum()), difference) == (0.0, 1.0)
    assert n_points < 200
    flat = integrated_gradients(line(lambda t: 0 * t), 64)
    assert (float(flat[0].sum()), *flat[1:]) == (0.0, 0.0, 64)
