"""Calibration against a literal double loop; the floor against what a calibrated model shows."""

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import softmax
from scipy.stats import kstest

from ibinn.metrics.calibration import (
    EDGES,
    bin_numbers,
    calibration_errors,
    calibration_floor,
    drawn_labels,
    pairs_per_bin,
    top_label_ece,
    top_label_gaps,
    true_per_bin,
)

SOAK = os.environ.get("HYPOTHESIS_PROFILE") == "soak"


def errors(p, y, min_count=20):
    return calibration_errors(pairs_per_bin(p).sum(0), true_per_bin(p, y).sum(0), min_count)


def by_double_loop(p, y, min_count):
    """The definition, image by image and class by class, with edges in whole hundredths."""
    edges = [0, 1, 2, 3, 4, 5, 15, 25, 35, 45, 55, 65, 75, 85, 95, 96, 97, 98, 99, 100]
    n, n_true = [0] * 19, [0] * 19
    for image in range(len(p)):
        for k in range(p.shape[1]):
            for i in range(19):
                last = i == 18 and p[image, k] == 1.0
                if edges[i] / 100 <= p[image, k] < edges[i + 1] / 100 or last:
                    n[i] += 1
                    n_true[i] += y[image] == k
    ece = mce = ice = 0.0
    kept = [i for i in range(19) if n[i] > min_count]
    for i in kept:
        middle, width = (edges[i] + edges[i + 1]) / 200, (edges[i + 1] - edges[i]) / 100
        gap = abs(middle - n_true[i] / n[i])
        ece += n[i] / sum(n[j] for j in kept) * gap
        mce, ice = max(mce, gap), ice + width * gap
    return (ece, mce, ice, (ece * mce * ice) ** (1 / 3)) if kept else (np.nan,) * 4


@st.composite
def predictions(draw):
    """Probabilities (N, K), some on the edges of bins, some certain, and labels."""
    n, k, seed = draw(st.integers(1, 60)), draw(st.integers(2, 5)), draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    p = softmax(draw(st.sampled_from([0.3, 3.0, 20.0])) * rng.normal(size=(n, k)), axis=1)
    if draw(st.booleans()):
        first = rng.integers(101, size=n) / 100
        p = np.column_stack([first, 1 - first])
    return p, rng.integers(p.shape[1], size=n)


@given(predictions(), st.integers(0, 20))
def test_errors_agree_with_the_double_loop(case, min_count):
    p, y = case
    assert_allclose(errors(p, y, min_count), by_double_loop(p, y, min_count), atol=1e-12)


def test_edges_and_the_last_bin():
    assert len(EDGES) == 20
    for i, edge in enumerate(EDGES[:-1]):
        assert bin_numbers(np.array([edge]))[0] == i
        assert bin_numbers(np.array([np.nextafter(EDGES[i + 1], 0)]))[0] == i
    assert bin_numbers(np.array([1.0, np.nextafter(1, 2)])).tolist() == [18, 18]


@given(predictions(), st.randoms())
def test_order_does_not_matter_and_neither_do_copies(case, random):
    p, y = case
    order = random.sample(range(len(y)), len(y))
    assert_allclose(errors(p[order], y[order], 0), errors(p, y, 0))
    names = random.sample(range(p.shape[1]), p.shape[1])
    assert_allclose(errors(p[:, names], np.argsort(names)[y], 0), errors(p, y, 0))
    assert_allclose(errors(np.tile(p, (3, 1)), np.tile(y, 3), 0), errors(p, y, 0))
    assert_allclose(
        top_label_ece(top_label_gaps(np.tile(p, (3, 1)), np.tile(y, 3)).sum(0), 3 * len(y)),
        top_label_ece(top_label_gaps(p, y).sum(0), len(y)),
    )


@given(predictions())
def test_ranges(case):
    ece, mce, ice, geo_mean = errors(*case, min_count=0)
    assert 0 <= ece <= mce + 1e-12 <= 1 + 2e-12
    assert 0 <= ice <= 1
    assert geo_mean <= mce + 1e-12


def test_small_bins_are_left_out_and_none_is_no_number():
    p, y = np.tile([[0.5, 0.5]], (10, 1)), np.zeros(10, int)
    assert errors(p, y, min_count=19).mce == 0.0
    assert np.isnan(errors(p, y, min_count=20).ece)


def test_top_label_ece_by_hand_and_by_loop():
    rng = np.random.default_rng(1)
    p = softmax(2 * rng.normal(size=(500, 4)), axis=1)
    y = rng.integers(4, size=500)
    p[0], p[1] = [1, 0, 0, 0], [3 / 15, 4 / 15, 4 / 15, 4 / 15]
    total = 0.0
    for i in range(15):
        inside = (p.max(1) > i / 15) & (p.max(1) <= (i + 1) / 15)
        if inside.any():
            gap = (p.argmax(1) == y)[inside].mean() - p.max(1)[inside].mean()
            total += inside.mean() * abs(gap)
    assert top_label_ece(top_label_gaps(p, y).sum(0), 500) == pytest.approx(total)


def test_labels_are_drawn_from_the_probabilities():
    p = np.tile([[0.1, 0.0, 0.6, 0.3]], (40_000, 1))
    drawn = next(drawn_labels(p, np.random.default_rng(0)))
    assert_allclose(np.bincount(drawn, minlength=4) / 40_000, p[0], atol=0.01)
    assert not (drawn == 1).any()


def calibrated_case(rng, n=800, sharper=1.0):
    """Labels drawn from probabilities; the predictor tells them, or sharper ones."""
    logits = 2 * rng.normal(size=(n, 5))
    y = next(drawn_labels(softmax(logits, axis=1), rng))
    return softmax(sharper * logits, axis=1), y


def test_a_calibrated_predictor_shows_the_floor_and_a_sharpened_one_more():
    """Its errors rank evenly among the floor's draws, test set by test set; sharpened they exceed all of them."""
    rng, n_sets = np.random.default_rng(0), 400 if SOAK else 60
    ranks, above = [], []
    for seed in range(n_sets):
        p, y = calibrated_case(rng)
        floor = calibration_floor(p, 99, seed)
        ranks.append([(f < e).mean() for f, e in zip(floor.errors, errors(p, y), strict=True)])
        ranks[-1].append((floor.top_label_ece < top_label_ece(top_label_gaps(p, y).sum(0), len(y))).mean())
        p, y = calibrated_case(rng, sharper=1.6)
        floor = calibration_floor(p, 99, seed)
        above.append(errors(p, y).geo_mean > np.quantile(floor.errors.geo_mean, 0.95))
    for rank in np.transpose(ranks):
        assert kstest(rank, "uniform").pvalue > 1e-4
    assert np.mean(above) > 0.9


def test_the_floor_is_the_same_for_a_seed_and_has_the_curves_bins():
    p, _ = calibrated_case(np.random.default_rng(0))
    first, second = calibration_floor(p, 10, seed=3), calibration_floor(p, 10, seed=3)
    assert_array_equal(first.share, second.share)
    assert first.share.shape == (10, 19)
    assert not np.array_equal(first.share, calibration_floor(p, 10, seed=4).share)
