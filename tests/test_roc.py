"""AUROC and FPR95 against scikit-learn: random, tied and huge scores; bootstrap against SciPy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy import stats
from sklearn import metrics as sk

from ibinn.metrics.bootstrap import bootstrap_interval, resampled_ranks, resampled_sums
from ibinn.metrics.roc import auroc, auroc_of, fpr95, ranks, roc_curve

finite = st.one_of(
    st.floats(-1e6, 1e6),
    st.integers(-3, 3).map(float),  # ties
    st.floats(-2001, -1999),  # log-likelihoods, which a sigmoid would flatten
)
scores = st.lists(finite, min_size=1, max_size=40)


def by_scikit_learn(inlier, outlier):
    y = np.r_[np.zeros(len(inlier)), np.ones(len(outlier))]
    values = np.r_[inlier, outlier]
    fpr, tpr, _ = sk.roc_curve(y, values, drop_intermediate=False)
    return sk.roc_auc_score(y, values), fpr[np.argmax(tpr >= 0.95 - 1e-12)], fpr, tpr


@given(scores, scores)
def test_scikit_learn_agrees(inlier, outlier):
    area, rate, fpr, tpr = by_scikit_learn(inlier, outlier)
    assert auroc(inlier, outlier) == pytest.approx(area, abs=1e-12)
    assert fpr95(inlier, outlier) == pytest.approx(rate, abs=1e-12)
    assert_allclose(roc_curve(inlier, outlier), (fpr, tpr), atol=1e-12)


@pytest.mark.parametrize("case", ["random", "tied", "near 2000", "apart"])
def test_scikit_learn_agrees_on_many(case):
    rng = np.random.default_rng(0)
    inlier, outlier = rng.normal(size=3000), rng.normal(0.7, 1.2, size=2000)
    if case == "tied":
        inlier, outlier = inlier.round(), outlier.round()
    if case == "near 2000":
        inlier, outlier = 2000 + 1e-3 * inlier, 2000 + 1e-3 * outlier
    if case == "apart":
        outlier += 100
    area, rate, *_ = by_scikit_learn(inlier, outlier)
    assert auroc(inlier, outlier) == pytest.approx(area, abs=1e-12)
    assert fpr95(inlier, outlier) == pytest.approx(rate, abs=1e-12)


@given(scores, scores)
def test_only_the_order_counts(inlier, outlier):
    a, b = np.array(inlier), np.array(outlier)
    area, rate = auroc(a, b), fpr95(a, b)
    places = np.exp(np.unique(np.r_[a, b], return_inverse=True)[1] / 10.0)
    assert auroc(places[: len(a)], places[len(a) :]) == pytest.approx(area)
    assert fpr95(places[: len(a)], places[len(a) :]) == pytest.approx(rate)
    assert auroc(np.repeat(a, 3), np.repeat(b, 2)) == pytest.approx(area)
    assert fpr95(np.repeat(a, 3), np.repeat(b, 20)) == pytest.approx(fpr95(a, np.repeat(b, 20)))
    assert auroc(b, a) == pytest.approx(1 - area)
    assert auroc(a[::-1], b[::-1]) == pytest.approx(area)
    assert 0 <= area <= 1
    assert 0 <= rate <= 1


def test_infinite_scores_have_a_rank_and_nan_has_none():
    assert auroc([0.0, 1.0], [np.inf, np.inf]) == 1
    assert auroc([0.0, np.inf], [np.inf]) == 0.75
    with pytest.raises(ValueError, match="outlier holds 1 NaN"):
        auroc([0.0], [np.nan])
    with pytest.raises(ValueError, match="at least one inlier"):
        auroc([], [1.0])


def test_bootstrap_of_a_mean_agrees_with_scipy():
    values = np.random.default_rng(0).exponential(size=400)
    low, high = bootstrap_interval(resampled_sums(values[:, None], seed=0, n_resamples=4000)[:, 0] / 400)
    theirs = stats.bootstrap((values,), np.mean, n_resamples=4000, method="percentile", rng=1)
    assert_allclose((low, high), theirs.confidence_interval, atol=0.01)


def test_bootstrap_of_auroc_agrees_with_resampling_by_hand():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=150), rng.normal(1, size=100).round(1)
    mine = resampled_ranks(ranks(a, b), auroc_of, (0, 1), n_resamples=3000)
    hand = [by_scikit_learn(rng.choice(a, len(a)), rng.choice(b, len(b)))[0] for _ in range(1000)]
    assert_allclose(bootstrap_interval(mine), np.quantile(hand, [0.025, 0.975]), atol=0.01)
    assert mine.mean() == pytest.approx(auroc(a, b), abs=0.005)


def test_pairs_are_resampled_together():
    """Of outliers that are inliers moved a little, the mean shift is known far better than either mean."""
    a = np.random.default_rng(0).normal(0, 10, size=300)
    b = a + 1
    apart = resampled_ranks(ranks(a, b), auroc_of, (0, 1))
    together = resampled_ranks(ranks(a, b), auroc_of, (0, 0))
    assert together.std() < apart.std() / 5


def test_intervals_of_what_cannot_be_negative_hold_the_value():
    again = np.random.default_rng(0).normal(3, 1, size=1000)
    low, high = bootstrap_interval(again, centre=1.0)
    assert low == 0
    assert high == pytest.approx(1 + 1.96, abs=0.2)


def test_interval_leaves_out_what_has_no_number():
    assert bootstrap_interval(np.array([1.0, np.nan, 1.0])) == (1.0, 1.0)
    assert np.isnan(bootstrap_interval(np.array([np.nan]))).all()
