"""Temperature scaling against SciPy's search, and what it must not change."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from ibinn.metrics.classification import log_loss
from ibinn.metrics.temperature import FARTHEST, apply_temperature, fit_temperature, useful_temperature


def drawn(seed, n=300, n_classes=4, sharpness=1.0):
    """Labels drawn from some probabilities, and log-probabilities that are `sharpness` times as sure."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(n, n_classes))
    p = np.exp(log_softmax(logits, axis=1))
    y = np.array([rng.choice(n_classes, p=row) for row in p])
    return log_softmax(sharpness * logits, axis=1), y


@pytest.mark.parametrize("weights", [None, (0.7, 0.1, 0.1, 0.1)], ids=["no weights", "weights"])
@given(st.integers(0, 1000), st.floats(0.3, 4.0))
def test_the_fit_is_the_one_that_scipy_finds(weights, seed, sharpness):
    """The sum of the losses of p(y) q(x|y)^(1/T), and a Gaussian of deviation 1/2 for log T."""
    log_q_y, y = drawn(seed, sharpness=sharpness)
    log_w = None if weights is None else np.log(weights)
    prior = np.zeros(4) if log_w is None else log_w

    def loss(log_t):
        scaled = log_softmax((log_q_y - prior) / np.exp(log_t) + prior, axis=1)
        return log_loss(scaled, y).sum() + 0.5 * (log_t / 0.5) ** 2

    limits = (-np.log(FARTHEST), np.log(FARTHEST))
    found = minimize_scalar(loss, bounds=limits, method="bounded", options={"xatol": 1e-9})
    assert fit_temperature(log_q_y, y, log_w) == pytest.approx(np.exp(found.x), rel=1e-4)


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
    assert fit_temperature(log_q_y[:2], y[:2]) == pytest.approx(1)  # already certain, and right


def test_a_few_correct_answers_do_not_make_it_certain():
    """Without the term for log T, the temperature would fall to its limit."""
    log_q_y = np.log(np.tile([0.8, 0.2], (10, 1)))
    assert 1 / FARTHEST < 0.3 < fit_temperature(log_q_y, np.zeros(10, int)) < 1
    assert fit_temperature(log_q_y[:0], np.zeros(0, int)) == 1.0


def test_weights_are_not_tempered():
    """An input that says nothing of the class keeps the class weights, at any temperature."""
    log_w = np.log([[0.7, 0.2, 0.1]])
    assert_allclose(apply_temperature(log_w, 5.0, log_w[0]), log_w)
    assert not np.allclose(apply_temperature(log_w, 5.0), log_w)


def test_a_temperature_is_used_only_if_it_helps_beyond_its_error():
    calibrated = [useful_temperature(*drawn(seed, n=500)) for seed in range(60)]
    assert np.mean(np.array(calibrated) != 1) < 0.15  # about 5 %: two standard deviations of log T
    sure, labels = drawn(0, n=2000, sharpness=3.0)
    assert useful_temperature(sure, labels) == fit_temperature(sure, labels) > 2
    assert useful_temperature(sure[:1], labels[:1]) == 1.0  # one example has no standard error
    assert useful_temperature(sure[:0], labels[:0]) == 1.0
