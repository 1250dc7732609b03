"""Conformal p-values against their definition, the guarantee by simulation, and what is flagged by them."""

import math
import os
import warnings
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from scipy import stats

from ibinn.ood.conformal import (
    benjamini_hochberg,
    conformal_p_values,
    mondrian_p_values,
    smallest_p_value,
    warn_if_coarse,
)
from ibinn.ood.scores import typical_entropy

SOAK = os.environ.get("HYPOTHESIS_PROFILE") == "soak"
N_DIMS = 3072
score = st.one_of(st.floats(allow_nan=False), st.integers(-3, 3).map(float))  # the second for ties
some_scores = st.lists(score, min_size=1, max_size=30)


@given(scores=some_scores, calibration=some_scores)
def test_p_values_are_counts(scores, calibration):
    expected = []
    for s in scores:
        at_least_as_strange = 0
        for c in calibration:
            if c >= s:
                at_least_as_strange += 1
        expected.append(float(Fraction(1 + at_least_as_strange, len(calibration) + 1)))
    assert_array_equal(conformal_p_values(scores, calibration), expected)


def test_p_values_by_hand_with_ties_and_infinities():
    calibration = [1.0, 2.0, 2.0, math.inf]
    scores = [-math.inf, 1.0, 1.5, 2.0, 3.0, math.inf]
    assert_array_equal(conformal_p_values(scores, calibration), np.array([5, 5, 4, 4, 2, 2]) / 5)
    assert_array_equal(conformal_p_values([0.0], [-math.inf]), [1 / 2])


@given(scores=some_scores, calibration=some_scores)
def test_p_values_fall_with_the_score_and_stay_in_range(scores, calibration):
    p = conformal_p_values(np.sort(scores), calibration)
    assert (np.diff(p) <= 0).all()
    assert (p >= smallest_p_value(len(calibration))).all()
    assert (p <= 1).all()


@given(scores=st.lists(st.integers(-50, 50)), calibration=st.permutations(range(-20, 20)))
def test_p_values_depend_on_ranks_alone(scores, calibration):
    """Neither the order of the calibration set nor a strictly increasing map of all scores matters."""
    p = conformal_p_values(scores, sorted(calibration))
    assert_array_equal(conformal_p_values(scores, calibration), p)
    assert_array_equal(conformal_p_values(np.exp(scores), np.exp(calibration)), p)


def test_p_values_keep_the_shape_of_the_scores_and_their_arguments():
    scores, calibration = np.array([[3.0, 1.0, 2.0]]), np.array([2.0, 1.0])
    assert conformal_p_values(scores, calibration).shape == (1, 3)
    assert conformal_p_values(1.5, calibration).shape == ()
    assert conformal_p_values([], calibration).shape == (0,)
    assert_array_equal(calibration, [2.0, 1.0])


def test_scores_that_differ_only_in_float64_are_told_apart():
    assert_array_equal(conformal_p_values([1 + 1e-12], [1.0]), [1 / 2])
    assert_array_equal(conformal_p_values([1.0], [1 + 1e-12]), [1.0])


def gaussian_log_density(rng, shape):
    """log q(x) of x ~ N(0, I) in N_DIMS dimensions, by the chi-square law of |x|^2."""
    return -0.5 * rng.chisquare(N_DIMS, size=shape) - 0.5 * N_DIMS * math.log(2 * math.pi)


def p_values_of_fresh_draws(n, repeats, h_from, seed):
    """Typicality p-values, (repeats,), each of one new input, n new calibration and 20 validation samples."""
    rng = np.random.default_rng(seed)
    splits = {
        "validation": gaussian_log_density(rng, (repeats, 20)),
        "calibration": gaussian_log_density(rng, (repeats, n)),
    }
    test = gaussian_log_density(rng, repeats)
    p = np.empty(repeats)
    for i in range(repeats):
        h = typical_entropy(splits[h_from][i], N_DIMS)
        calibration = np.abs(-splits["calibration"][i] / N_DIMS - h)
        p[i] = conformal_p_values(np.abs(-test[i] / N_DIMS - h), calibration)
    return p


@pytest.mark.parametrize("n", [20, 50, 500])
def test_false_alarms_are_as_rare_as_promised(n):
    """P(p <= alpha) = floor(alpha (n + 1)) / (n + 1) <= alpha, even with h from 20 samples only."""
    repeats = 10_000
    p = p_values_of_fresh_draws(n, repeats, "validation", seed=n)
    for alpha in (0.01, 0.05, 0.1, 0.5):
        expected = math.floor(alpha * (n + 1)) / (n + 1)
        rate = (p <= alpha).mean()
        assert abs(rate - expected) <= 4 * math.sqrt(expected * (1 - expected) / repeats)
        assert rate <= alpha + 4 * math.sqrt(alpha * (1 - alpha) / repeats)


def rate_with_its_own_mean_as_centre(k, n=20, repeats=200_000):
    """P(p <= k / (n + 1)) for Gaussian scores centred by the calibration mean: a fresh score, by brute force."""
    rng = np.random.default_rng(7)
    calibration, fresh = rng.normal(size=(repeats, n)), rng.normal(size=repeats)
    centre = calibration.mean(1)
    stranger = (np.abs(calibration - centre[:, None]) >= np.abs(fresh - centre)[:, None]).sum(1)
    return (1 + stranger <= k).mean()


@pytest.mark.parametrize("k", [1, 2])
def test_h_from_the_calibration_split_breaks_the_guarantee(k):
    """With n = 20, P(p <= 1/21) is 0.059 instead of 0.048, P(p <= 2/21) 0.112 instead of 0.095.

    h then lies closer to the calibration samples than to a fresh one: -log q / D - h has variance
    (1 - 1/n) s^2 for the former and (1 + 1/n) s^2 for the latter, so fresh data look too strange.
    """
    repeats = 20_000
    alpha = k / 21
    error = math.sqrt(alpha * (1 - alpha) / repeats)
    rate = (p_values_of_fresh_draws(20, repeats, "calibration", seed=0) <= alpha).mean()
    assert rate > alpha + 4 * error
    assert abs(rate - rate_with_its_own_mean_as_centre(k)) < 5 * error
    honest = (p_values_of_fresh_draws(20, repeats, "validation", seed=0) <= alpha).mean()
    assert abs(honest - alpha) <= 4 * error


def test_the_smallest_p_value_is_reached():
    assert conformal_p_values([9.0], np.arange(9)) == smallest_p_value(9) == 0.1


@pytest.mark.parametrize(("alpha", "needed"), [(0.05, 19), (0.01, 99), (0.1, 9), (0.3, 3), (0.5, 1)])
def test_too_few_calibration_samples_are_warned_about(alpha, needed):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_coarse(needed, alpha)
    with pytest.warns(UserWarning, match=f"at least {needed} calibration samples"):
        warn_if_coarse(needed - 1, alpha)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: conformal_p_values([1, math.nan, math.nan], [1.0]), "^scores holds 2 NaN among 3.* leave"),
        (lambda: conformal_p_values([1.0], [math.nan]), "^calibration_scores holds 1 NaN among 1 "),
        (lambda: conformal_p_values([1.0], []), "calibration_scores is empty"),
        (lambda: warn_if_coarse(10, 0.0), r"alpha is 0\.0"),
    ],
)
def test_wrong_arguments_are_named(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()


# Groups and batches


groups = st.lists(st.tuples(st.integers(-3, 3).map(float), st.integers(0, 3)), max_size=25)


@given(groups, groups)
def test_mondrian_p_values_are_those_of_each_group_alone(new, calibration):
    scores, mine = np.array(new).reshape(-1, 2).T
    held, theirs = np.array(calibration).reshape(-1, 2).T
    p = mondrian_p_values(scores, mine, held, theirs)
    for i in range(len(scores)):
        same = held[theirs == mine[i]]
        assert p[i] == pytest.approx((1 + (same >= scores[i]).sum()) / (1 + len(same)))


@given(
    st.lists(st.one_of(st.floats(0, 1), st.sampled_from([0.01, 0.02, 0.5])), max_size=40),
    st.floats(0.01, 0.5),
)
def test_benjamini_hochberg_agrees_with_scipy(p, fdr):
    flags = benjamini_hochberg(p, fdr)
    if p:
        adjusted = stats.false_discovery_control(p)
        clear = np.abs(adjusted - fdr) > 1e-9
        assert_array_equal(flags[clear], (adjusted <= fdr)[clear])
    assert len(flags) == len(p)


def test_false_discoveries_are_as_rare_as_asked():
    rng, shares = np.random.default_rng(0), []
    for _ in range(1000 if SOAK else 200):
        calibration, inlier, outlier = rng.normal(size=300), rng.normal(size=90), rng.normal(3, 1, size=30)
        flags = benjamini_hochberg(conformal_p_values(np.r_[inlier, outlier], calibration), 0.2)
        shares.append(flags[:90].sum() / max(1, flags.sum()))
    assert np.mean(shares) < 0.2 + 3 * np.std(shares) / math.sqrt(len(shares))
    assert np.mean(shares) > 0.05
