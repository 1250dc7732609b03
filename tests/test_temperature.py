"""Temperature scaling against SciPy's search, and what it must not change."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from ibinn.metrics.classification import log_loss
from ibinn.metrics.temperature import FARTHEST, apply_temperature, fit_temperature


def drawn(seed, n=300, n_classes=4, sharpness=1.0):
    """Labels drawn from some probabilities, and log-probabilities that are `sharpness` times as sure."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(n, n_classes))
    p = np.exp(log_softmax(logits, axis=1))
    y = np.array([rng.choice(n_classes, p=row) for row in p])
    return log_softmax(sharpness * logits, axis=1), y


@given(st.integers(0, 1000), st.floats(0.3, 4.0))
def test_the_fit_is_the_one_that_scipy_finds(seed, sharpness):
    log_q_y, y = drawn(seed, sharpness=sharpness)
    found = minimize_scalar(
        lambda log_t: log_loss(log_softmax(log_q_y / np.exp(log_t), axis=1), y).mean(),
        bounds=(-np.log(FARTHEST), np.log(FARTHEST)),
        method="bounded",
        options={"xatol": 1e-9},
    )
    assert fit_temperature(log_q_y, y) == pytest.approx(np.exp(found.x), rel=1e-4)


def test_overconfident_answers_are_brought_back():
    log_q_y, y = drawn(0, n=20_000, sharpness=3.0)
    assert fit_temperature(log_q_y, y) == pytest.approx(3.0, rel=0.05)


@given(st.integers(0, 1000), st.floats(0.1, 10.0))
def test_scaling_keeps_the_order_and_gives_probabilities(seed, temperature):
    log_q_y, _ = drawn(seed, n=20)
    new = apply_temperature(log_q_y, temperature)
    assert_allclose(np.exp(new).sum(1), 1)
    assert (new.argsort(1) == log_q_y.argsort(1)).all()
    assert_allclose(new, log_softmax(log_q_y / temperature, axis=1), rtol=1e-9, atol=1e-12)


def test_certain_mistakes_missing_answers_and_no_answers():
    log_q_y = np.array([[0.0, -np.inf], [-np.inf, 0.0], [0.0, -np.inf], [np.nan, np.nan]])
    y = np.array([0, 1, 1, 0])
    t = fit_temperature(log_q_y, y)
    assert np.isfinite(apply_temperature(log_q_y[:3], t)).all()
    assert t == FARTHEST or t == pytest.approx(FARTHEST, rel=1e-6)  # no temperature is high enough
    assert fit_temperature(log_q_y[3:], y[3:]) == 1.0
    assert fit_temperature(log_q_y[:2], y[:2]) == pytest.approx(1 / FARTHEST, rel=1e-6)
