"""Error, log-loss, Brier and entropy against scikit-learn and SciPy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_softmax
from scipy.stats import entropy as scipy_entropy
from sklearn import metrics as sk

from ibinn.metrics.classification import brier, entropy, entropy_of_shares, log_loss, wrong


@st.composite
def answers(draw):
    """log q(y|x) (N, K), some of it certain or tied, and labels."""
    n, k, seed = draw(st.integers(1, 40)), draw(st.integers(2, 6)), draw(st.integers(0, 2**32 - 1))
    scale = draw(st.sampled_from([0.0, 1.0, 30.0]))
    rng = np.random.default_rng(seed)
    return log_softmax(scale * rng.normal(size=(n, k)), axis=1), rng.integers(k, size=n)


@given(answers())
def test_means_agree_with_scikit_learn(case):
    log_q_y, y = case
    p, classes = np.exp(log_q_y), np.arange(log_q_y.shape[1])
    assert wrong(log_q_y, y).mean() == pytest.approx(sk.zero_one_loss(y, p.argmax(1)))
    inside = np.clip(p, 1e-15, 1)  # scikit-learn clips; so does the comparison
    expected = sk.log_loss(y, inside / inside.sum(1, keepdims=True), labels=classes)
    assert np.minimum(log_loss(log_q_y, y), -np.log(1e-15)).mean() == pytest.approx(expected, abs=1e-9)
    squares = sum(np.mean((p[:, k] - (y == k)) ** 2) for k in classes)
    assert brier(log_q_y, y).mean() == pytest.approx(squares)
    assert entropy(log_q_y) == pytest.approx(scipy_entropy(p, axis=1))


@given(answers())
def test_ranges(case):
    log_q_y, y = case
    assert ((brier(log_q_y, y) >= 0) & (brier(log_q_y, y) <= 2)).all()
    assert ((entropy(log_q_y) >= 0) & (entropy(log_q_y) <= np.log(log_q_y.shape[1]) + 1e-12)).all()
    assert (log_loss(log_q_y, y) >= 0).all()


def test_certainty_has_no_entropy_and_costs_nothing_or_everything():
    certain = np.array([[0.0, -np.inf], [0.0, -np.inf]])
    y = np.array([0, 1])
    assert entropy(certain).tolist() == [0, 0]
    assert brier(certain, y).tolist() == [0, 2]
    assert log_loss(certain, y).tolist() == [0, np.inf]


def test_what_has_no_number_is_wrong():
    assert wrong(np.array([[np.nan, np.nan], [0.0, -np.inf]]), np.array([0, 0])).tolist() == [1, 0]


def test_entropy_of_labels():
    assert entropy_of_shares(np.array([0, 0, 1, 1, 3, 3])) == pytest.approx(np.log(3))


def test_labels_must_fit():
    with pytest.raises(ValueError, match=r"must be \(N, K\) and \(N,\)"):
        wrong(np.zeros((3, 2)), np.zeros(2, int))
