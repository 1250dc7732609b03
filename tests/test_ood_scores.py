"""The OoD scores against their definitions, and the p-values of a trained model."""

import dataclasses
import itertools
import math
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.trainings import few_digits, trained
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from scipy.special import log_softmax, logsumexp

from ibinn.data.splits import split
from ibinn.models.output import Output
from ibinn.ood.conformal import conformal_p_values, mondrian_p_values
from ibinn.ood.scores import (
    PARTS_OF_IMAGES,
    PARTS_OF_ROWS,
    SCORES,
    Reference,
    class_p_values,
    fit_reference,
    observe,
    ood_scores,
    p_values,
    typical_entropy,
)

SOAK = os.environ.get("HYPOTHESIS_PROFILE") == "soak"
N_DIMS = 64


def output(n, seed=0, **changes):
    rng = np.random.default_rng(seed)
    logits = 3 * rng.normal(size=(n, 4))
    values = Output(
        log_softmax(logits, axis=1),
        -logsumexp(logits, axis=1),
        -150 + 9 * rng.normal(size=n),
        rng.chisquare(N_DIMS, size=n),
        class_information=-3 + rng.normal(size=n),
        class_distance=rng.chisquare(N_DIMS, size=n),
        span_distance=rng.chisquare(3, size=n),
        code_length=300 + 30 * rng.normal(size=n),
    )
    return replace(values, **changes)


def fitted(validation, calibration):
    return fit_reference(validation, calibration, N_DIMS, np.arange(len(calibration.log_q_y)) % 4)


def test_every_score_by_its_definition():
    validation, calibration, new = output(50, 1), output(40, 2), output(30, 3)
    reference = fitted(validation, calibration)
    scores = ood_scores(new, reference)
    assert {*scores} == {*SCORES} == {*reference.calibration}
    h = -validation.log_q_x.mean() / N_DIMS
    shell = validation.sq_distance.mean() / N_DIMS
    for i in range(30):
        p = np.exp(new.log_q_y[i])
        assert scores["nll"][i] == pytest.approx(-new.log_q_x[i] / N_DIMS)
        assert scores["typicality"][i] == pytest.approx(abs(-new.log_q_x[i] / N_DIMS - h))
        assert scores["class_typicality"][i] == pytest.approx(abs(new.sq_distance[i] / N_DIMS - shell))
        assert scores["complexity"][i] == pytest.approx((-new.log_q_x[i] - new.code_length[i]) / N_DIMS)
        assert scores["entropy"][i] == pytest.approx(stats.entropy(p))
        assert scores["max_softmax"][i] == pytest.approx(1 - p.max())
        assert scores["energy"][i] == new.energy[i]
        assert scores["class_information"][i] == new.class_information[i]
        assert scores["class_distance"][i] == pytest.approx(new.class_distance[i] / N_DIMS)
        assert scores["span_distance"][i] == new.span_distance[i]


def test_typicality_is_the_distance_from_the_mean_nll():
    """-log q / D is 1, 2, 6: h = 3, whichever side."""
    log_q_x = np.array([-4.0, -8.0, -24.0])
    h = typical_entropy(log_q_x, n_dims=4)
    assert h == 3
    reference = Reference(4, h, None, {}, {}, np.zeros(0, int), np.zeros(0))
    new = Output(np.zeros((4, 2)), np.zeros(4), log_q_x=np.append(log_q_x, -math.inf))
    assert_allclose(ood_scores(new, reference)["typicality"], [2, 1, 3, math.inf])


def test_typical_entropy_of_a_gaussian_is_its_entropy():
    """1/2 log(2 pi e) per dimension; the mean of 1000 images has standard error 1 / sqrt(2 D 1000)."""
    rng, n_dims = np.random.default_rng(0), 3072
    log_q_x = -0.5 * rng.chisquare(n_dims, size=1000) - 0.5 * n_dims * math.log(2 * math.pi)
    error = abs(typical_entropy(log_q_x, n_dims) - 0.5 * math.log(2 * math.pi * math.e))
    assert error < 4 / math.sqrt(2 * n_dims * 1000)


@pytest.mark.parametrize(
    ("values", "sentence"), [([], "0 values"), ([1.0, -math.inf], "2 values, 1 of them")]
)
def test_typical_entropy_needs_finite_values(values, sentence):
    with pytest.raises(ValueError, match=sentence):
        typical_entropy(values, 4)


def test_class_p_values_are_ranks_within_the_predicted_class():
    reference, new = fitted(output(50, 1), output(40, 2)), output(30, 3)
    scores = ood_scores(new, reference)
    p = class_p_values(replace(new, scores=scores), reference)
    held = reference.calibration["combined"], reference.calibration_class
    assert_array_equal(p, mondrian_p_values(scores["combined"], new.log_q_y.argmax(1), *held))
    assert_array_equal(reference.calibration_class, output(40, 2).log_q_y.argmax(1))


def test_label_scores_are_what_the_true_classes_lack_to_certainty():
    calibration = output(40, 2)
    for i, score in enumerate(fitted(output(50, 1), calibration).label_scores):
        assert score == pytest.approx(1 - np.exp(calibration.log_q_y[i, i % 4]))


def test_combined_is_fishers_statistic_of_ranks_among_the_validation_split():
    """With a Pareto tail beyond the highest: twice as far beyond it as the median is below it makes p a third."""
    validation, new = output(50, 1), output(30, 3)
    reference = fitted(validation, output(40, 2))
    mine, theirs = ood_scores(new, reference), ood_scores(validation, reference)
    n_beyond = 0
    for i in range(30):
        p = []
        for name in PARTS_OF_IMAGES:
            score, others = mine[name][i], np.sort(theirs[name])
            p.append((1 + (others >= score).sum()) / 51)
            if score > others[-1]:
                p[-1] /= 1 + (score - others[-1]) / (others[-1] - others[25])
                n_beyond += 1
        fisher = stats.combine_pvalues(p, "fisher").statistic
        assert mine["combined"][i] == pytest.approx(fisher, rel=1e-12)
    assert n_beyond


def test_combined_does_not_depend_on_the_order_of_its_parts():
    """To the last bit, since ties decide an AUROC; and a file gives tensors in any order."""
    new, reference = output(2000, 3), fitted(output(500, 1), output(40, 2))
    orders = [
        dataclasses.replace(reference, parts={name: reference.parts[name] for name in names})
        for names in itertools.permutations(reference.parts)
    ]
    first, *others = (ood_scores(new, one)["combined"] for one in orders)
    assert len(others) == math.factorial(len(PARTS_OF_IMAGES)) - 1
    for other in others:
        assert_array_equal(first, other)


def test_of_inputs_beyond_all_validation_scores_the_farther_is_the_stranger():
    reference = fitted(output(50, 1), output(40, 2))
    far = 1000.0 * np.arange(1, 6)
    evidence = dict.fromkeys(("energy", "class_information", "class_distance", "span_distance"), far)
    new = output(5, 3, log_q_x=-150 - far, sq_distance=100 * far, **evidence)
    scores = ood_scores(new, reference)["combined"]
    assert (np.diff(scores) > 0).all()
    assert (p_values({"combined": scores}, reference.calibration)["combined"] == 1 / 41).all()


def test_scores_that_differ_by_rounding_only_tie():
    calibration = output(40, 2)
    reference = fitted(output(50, 1), calibration)
    again = {name: values * (1 + 1e-13) for name, values in reference.calibration.items()}
    for name, p in p_values(again, reference.calibration).items():
        assert_array_equal(p, conformal_p_values(reference.calibration[name], reference.calibration[name]))


def test_scores_need_their_evidence():
    latent = dict.fromkeys(("class_information", "class_distance", "span_distance"))
    bare = {"log_q_x": None, "sq_distance": None, "code_length": None, **latent}
    reference = fitted(output(20, 1, **bare), output(20, 2, **bare))
    assert {*ood_scores(output(5, 3, **bare), reference)} == {"entropy", "max_softmax", "energy"}
    assert reference.headline == "entropy"
    table = {"code_length": None}
    reference = fitted(output(20, 1, **table), output(20, 2, **table))
    assert {*SCORES} - {*ood_scores(output(5, 3, **table), reference)} == {"complexity"}
    assert {*reference.parts} == {*PARTS_OF_ROWS}
    unfitted = fitted(output(20, 1, **latent), output(20, 2, **latent))  # no latent reference
    assert {*SCORES} - {*unfitted.calibration} == {*latent}
    assert {*unfitted.parts} == {*PARTS_OF_IMAGES} - {*latent}


def test_a_model_whose_densities_run_off_keeps_the_scores_of_its_classes():
    off = output(20, 1)
    off.log_q_x[3] = -np.inf
    reference = fitted(off, output(20, 2))
    assert reference.h is None
    assert {*SCORES} - {*reference.calibration} == {"typicality", "nll", "complexity", "combined"}


def test_an_input_without_a_number_is_the_strangest():
    reference = fitted(output(20, 1), output(19, 2))
    new = output(3, 3)
    new.log_q_x[1] = np.nan
    new.log_q_y[1] = np.nan
    scores = ood_scores(new, reference)
    assert scores["typicality"][1] == scores["entropy"][1] == np.inf
    assert np.isfinite(scores["combined"]).all()
    assert p_values(scores, reference.calibration)["typicality"][1] == 1 / 20


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    """Scores of a trained model on held-out digits."""
    digits = few_digits(1797)
    run = trained(tmp_path_factory.mktemp("pool") / "run", digits, epochs=3)
    splits = split(digits, 0)
    held = digits.train.x[np.r_[splits.calibration, splits.test]]
    return ood_scores(observe(run.pipeline, held), run.reference)


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.1])
@pytest.mark.parametrize("name", ["typicality", "class_information", "class_distance", "combined"])
def test_false_alarms_over_many_splits_follow_the_beta_binomial_law(pool, name, alpha):
    """Of m test inputs BetaBinomial(m, k, n + 1 - k) are flagged, k = floor(alpha (n + 1)), when none are tied.

    Ties, which `combined` has among the strangest, are broken at random: without that, alarms are only rarer.
    """
    rng, n, n_splits = np.random.default_rng(0), 179, 20_000 if SOAK else 1500
    ranked = np.lexsort([rng.random(len(pool[name])), pool[name]]).argsort()  # no ties, the same order
    scores = ranked.astype(float) if name == "combined" else np.unique(pool[name])
    m = len(scores) - n
    counts = []
    for _ in range(n_splits):
        order = rng.permutation(len(scores))
        p = conformal_p_values(scores[order[n:]], scores[order[:n]])
        counts.append((p <= alpha).sum())
    law = stats.betabinom(m, math.floor(alpha * (n + 1)), n + 1 - math.floor(alpha * (n + 1)))
    error = law.std() / math.sqrt(n_splits)
    assert np.mean(counts) == pytest.approx(law.mean(), abs=4 * error)
    edges = [-1, *np.unique(law.ppf(np.arange(0.1, 1, 0.1))), m]
    seen = np.histogram(counts, np.array(edges) + 0.5)[0]
    assert stats.chisquare(seen, n_splits * np.diff(law.cdf(edges))).pvalue > 1e-4


def test_distance_and_energy_of_a_model(pool, tmp_path):
    run = trained(tmp_path / "run", epochs=1)
    x = few_digits(40).train.x
    out = run.pipeline.compute_output(x)
    model, mixture = run.pipeline.model, run.pipeline.model.mixture
    with torch.no_grad():
        v, log_det = run.pipeline.prepared(x)
        z, log_det_flow = model.encode(v)
        log_q_z_y = torch.distributions.MultivariateNormal(mixture.mu[:, None], torch.eye(64)).log_prob(z).T
    joint = (log_q_z_y + mixture.log_w).double().numpy()
    called = joint.argmax(1)
    mu = mixture.mu.detach()[called]
    assert_allclose(out.sq_distance, (z - mu).square().sum(1).double(), rtol=1e-5)
    assert_allclose(out.log_q_y, log_softmax(joint, axis=1), atol=1e-4)
    total = logsumexp(joint, axis=1) + (log_det + log_det_flow).double().numpy() - 64 * np.log(17)
    assert_allclose(out.log_q_x, total, rtol=1e-5)
    origin = torch.distributions.Normal(0, 1).log_prob(z).sum(1).double().numpy()
    assert_allclose(out.energy, origin - logsumexp(joint, axis=1), rtol=1e-4, atol=1e-3)
