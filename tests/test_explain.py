"""Explanations of single decisions: their numbers against oracles."""

import copy
import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from helpers.examples import BENT, DATA, DIGITS, WITH_DENSITY
from numpy.testing import assert_allclose
from scipy import stats
from torch.distributions import MultivariateNormal

from ibinn.inference import sentences
from ibinn.inference.attribution import evidence_map
from ibinn.inference.explain import explain
from ibinn.inference.judge import calibration_rank, histogram, judge
from ibinn.ood.scores import observe, p_values


@pytest.fixture
def digits(example_run):
    return example_run("digits")


@pytest.fixture
def bent(example_run):
    return example_run("bent")


@pytest.fixture
def resnet(example_run):
    return example_run("resnet")


@pytest.fixture(params=WITH_DENSITY)
def case(request, example_run):
    """A run with a density, and data for it."""
    return example_run(request.param), DATA[request.param].train.x


def latent(run, raw):
    """z (D,) and the log-det of all the way from raw units, by hand."""
    pipeline = run.pipeline
    with torch.no_grad():
        v, log_det = pipeline.prepared(raw[None])
        z, log_det_flow = pipeline.model.encode(v)
    scale = pipeline.preprocess.log_scale
    return z[0].double(), float(log_det_flow.double() + log_det.double() + scale)


def test_likelihoods_posterior_and_distances_agree_with_plain_formulas(case):
    run, x = case
    mixture = run.pipeline.model.mixture
    mu, weights = mixture.mu.detach().double(), mixture.log_w.detach().double().exp().numpy()
    for raw in x[:5]:
        explanation = explain(run, raw)
        z, log_det = latent(run, raw)
        oracle = [float(MultivariateNormal(m, torch.eye(len(z))).log_prob(z)) + log_det for m in mu]
        assert [*explanation.log_likelihoods] == [*explanation.posterior] == [*run.class_names]
        assert_allclose([*explanation.log_likelihoods.values()], oracle, rtol=1e-5)
        joint = np.exp(oracle - np.max(oracle)) * weights
        assert_allclose([*explanation.posterior.values()], joint / joint.sum(), atol=1e-4)
        assert explanation.log_q_x == pytest.approx(np.log(joint.sum()) + np.max(oracle), rel=1e-5)
        distances = np.sqrt(((z.numpy() - mu.numpy()) ** 2).sum(1))
        order = np.argsort(distances)
        assert [mean.label for mean in explanation.nearest] == [run.class_names[k] for k in order[:2]]
        assert_allclose([mean.distance for mean in explanation.nearest], distances[order[:2]], rtol=1e-5)


def test_log_likelihoods_are_densities_in_raw_units(bent):
    """The log-det of the whole way from a row to z, by autograd."""
    pipeline, raw = bent.pipeline, BENT.train.x[7]
    jacobian = torch.autograd.functional.jacobian(
        lambda x: pipeline.model.encode(pipeline.prepared(x[None])[0])[0][0], torch.tensor(raw)
    )
    z, mu = latent(bent, raw)[0].numpy(), pipeline.model.mixture.mu.detach().numpy()
    oracle = [stats.multivariate_normal(m).logpdf(z) + np.linalg.slogdet(jacobian)[1] for m in mu]
    assert_allclose([*explain(bent, raw).log_likelihoods.values()], oracle, rtol=1e-9)


def test_typical_distance_is_that_of_the_validation_split(case):
    run, x = case
    explanation = explain(run, x[0])
    assert explanation.typical_distance == pytest.approx(
        math.sqrt(run.reference.shell * run.reference.n_dims)
    )
    distances = [explain(run, raw).nearest[0].distance for raw in x[:40]]
    assert np.median(distances) == pytest.approx(explanation.typical_distance, rel=0.3)


def test_p_values_are_shares_of_calibration_inputs(case):
    run, x = case
    strange = x[0] if x.dtype == np.uint8 else 50 * x[0]
    for raw in (x[3], x[9], strange[::-1].copy()):
        explanation, output = explain(run, raw), observe(run.pipeline, raw[None])
        assert {*explanation.p_values} == {*run.reference.calibration}
        for name, p in explanation.p_values.items():
            scores = judge(run, raw[None]).scores[name]
            held = run.reference.calibration[name]
            as_high = held >= scores[0] - 1e-9 * max(1, abs(scores[0]))  # up to rounding
            assert p == pytest.approx((1 + as_high.sum()) / (1 + len(held)))
        rank, held = explanation.rank, run.reference.calibration["combined"]
        assert rank.score == "combined" == run.reference.headline
        assert (
            explanation.p_value == explanation.p_values["combined"] == (1 + rank.n_stranger) / (1 + rank.n)
        )
        assert rank.n == len(held) == sum(rank.counts)
        assert rank.n_stranger == (held >= rank.value - 1e-9 * max(1, abs(rank.value))).sum()
        assert explanation.smallest_p == 1 / (1 + len(held))
        assert explanation.log_q_x == pytest.approx(float(output.log_q_x[0]), rel=1e-5)


def test_a_rank_agrees_with_its_p_value_on_ties(digits):
    """A score that rounding lifts just above that of a calibration input still ties with it."""
    reference = digits.reference
    held = reference.calibration[reference.headline]
    value = np.nextafter(np.median(held[: len(held) // 2 * 2 - 1]), np.inf)
    p = p_values({reference.headline: np.array([value])}, reference.calibration)[reference.headline][0]
    rank = calibration_rank(reference, float(value), float(p))
    assert rank.n_stranger == (held >= np.nextafter(value, 0)).sum() > (held >= value).sum()
    assert p == (1 + rank.n_stranger) / (1 + rank.n)


def test_a_histogram_holds_every_score():
    rng = np.random.default_rng(0)
    scores = np.concatenate([rng.normal(size=500), [np.inf, -np.inf, 1e30]])
    edges, counts = histogram(scores)
    assert sum(counts) == len(scores)
    assert -4 < edges[0] < edges[-1] < 4
    inside = scores[(scores > edges[1]) & (scores < edges[-2])]
    assert_allclose(counts[1:-1], np.histogram(inside, edges[1:-1])[0])
    for same in (
        np.zeros(5),
        np.full(3, 1e20),
        np.full(4, -2.0),
        np.full(3, np.inf),
        np.array([1, 1 + 1e-15]),
    ):
        assert sum(histogram(same)[1]) == len(same)


def test_an_input_may_come_as_a_batch_of_one(case):
    run, x = case
    assert explain(run, x[5]) == explain(run, x[5:6])
    assert_allclose(evidence_map(run, x[5], 0, 1).values, evidence_map(run, x[5:6], 0, 1).values)


def test_what_is_not_one_input_is_refused(digits, bent):
    image, row = DIGITS.train.x[0], BENT.train.x[0]
    for run, raw in (
        (digits, DIGITS.train.x[:2]),
        (digits, image[:7]),
        (bent, BENT.train.x[:2]),
        (bent, row[:2]),
    ):
        with pytest.raises(ValueError, match=r"raw has shape .* but one input of shape .* was expected"):
            explain(run, raw)
    for raw in (image / 16, image + 10, image.astype(int) - 1):
        with pytest.raises(ValueError, match="levels 0 to 16"):
            explain(digits, raw)
    with pytest.raises(ValueError, match="NaN or infinite"):
        explain(bent, row * np.nan)
    for a, b in ((1, 1), (0, 3), (-1, 0)):
        with pytest.raises(ValueError, match="two different classes, from 0 to 2"):
            evidence_map(bent, row, a, b)
    with pytest.raises(ValueError, match="at least 1"):
        evidence_map(bent, row, 0, 1, steps=0)


def test_an_explanation_survives_json(case):
    run, x = case
    explanation = explain(run, x[0])
    back = json.loads(json.dumps(explanation.to_dict(), allow_nan=False))
    assert back == explanation.to_dict()
    assert {*back} == {field.name for field in dataclasses.fields(explanation)}
    assert back["posterior"] == explanation.posterior
    assert back["rank"]["counts"] == [*explanation.rank.counts]
    assert back["nearest"][1] == {
        "label": explanation.nearest[1].label,
        "distance": explanation.nearest[1].distance,
    }
    assert back["levels"] == (17 if x.dtype == np.uint8 else None)


def test_a_model_whose_numbers_overflow_names_no_class(digits):
    broken = copy.deepcopy(digits)
    broken.pipeline.model.mixture.mu.data[0] = math.inf
    explanation = explain(broken, DIGITS.train.x[0])
    assert explanation.text.startswith("No class can be named")
    back = json.loads(json.dumps(explanation.to_dict(), allow_nan=False))
    assert back["log_q_x"] is None
    assert {*back["posterior"].values()} == {None}
    assert explanation.p_value == explanation.smallest_p
    assert "nan" in str(explanation)
    evidence = evidence_map(broken, DIGITS.train.x[0], 0, 1)
    assert math.isnan(evidence.missing)


def test_a_softmax_classifier_has_no_likelihoods(resnet):
    raw = DIGITS.train.x[0]
    explanation = explain(resnet, raw)
    assert (
        explanation.log_likelihoods,
        explanation.log_q_x,
        explanation.nearest,
        explanation.typical_distance,
    ) == (None,) * 4
    assert {*explanation.p_values} == {"entropy", "max_softmax", "energy"}
    assert explanation.rank.score == "entropy"
    with torch.no_grad():
        log_p_y = resnet.pipeline(raw[None]).log_p_y[0]
    assert_allclose([*explanation.posterior.values()], log_p_y.exp(), rtol=1e-5)
    assert explanation.text.endswith(sentences.NO_DENSITY)
    assert "log q" not in str(explanation)
    assert "nearest" not in str(explanation)
    evidence = evidence_map(resnet, raw, 3, 8)
    assert evidence.missing < 0.01


def test_the_printed_block_holds_the_numbers(digits):
    explanation = explain(digits, DIGITS.train.x[0])
    lines = str(explanation).splitlines()
    assert lines[0] == explanation.text
    best = max(explanation.posterior, key=explanation.posterior.get)
    row = next(line for line in lines if line.startswith(f"{best} "))
    assert row.split()[-1] == f"{explanation.log_likelihoods[best]:.1f}"
    assert f"log q(x)       {explanation.log_q_x:.1f} nats" in lines
    assert f"{explanation.rank.n_stranger} of {explanation.rank.n} calibration inputs" in str(explanation)
    assert f"{explanation.nearest[0].label} at {explanation.nearest[0].distance:.2f}" in str(explanation)
    assert all(name in str(explanation) for name in explanation.p_values)
