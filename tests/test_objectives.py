"""The losses against their definitions, each other and their limits."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.testing import assert_close

from ibinn import GaussianMixture, class_nll, dense_flow, ib_loss, loss_x, loss_y
from ibinn.objectives import ci_xz, ci_y, ci_yz, smooth_labels


def problem(n_classes=3, n_dims=4, n=16, learn_phi=False):
    flow = dense_flow(n_dims, blocks=2, width=8)
    mixture = GaussianMixture(n_classes, n_dims, learn_phi=learn_phi, priors=range(1, n_classes + 1))
    return flow, mixture, torch.randn(n, n_dims), torch.randint(n_classes, (n,))


@given(n_dims=st.integers(1, 8), n_classes=st.integers(2, 5), seed=st.integers(0, 1000))
def test_beta_1_is_class_nll_up_to_the_class_weight(n_dims, n_classes, seed):
    """gamma = 1/D: ib_loss = 2D/(D+1) (class_nll - log_w_y / D), so the gradients agree up to 2D/(D+1)."""
    torch.manual_seed(seed)
    flow, mixture, x, y = problem(n_classes, n_dims)
    z, log_det = flow(x)
    ours = ib_loss(
        loss_x(mixture.log_q_z(z), log_det, n_dims), loss_y(mixture.scores(z), mixture.log_w, y), 1 / n_dims
    )
    nll = class_nll(mixture.log_q_z_given_y(z), log_det, y, n_dims)
    factor = 2 * n_dims / (n_dims + 1)
    assert_close(ours, factor * (nll - mixture.log_w[y] / n_dims))
    parameters = [*flow.parameters(), mixture.mu]
    ours_grad = torch.autograd.grad(ours.mean(), parameters, retain_graph=True)
    nll_grad = torch.autograd.grad(nll.mean(), parameters)
    for a, b in zip(ours_grad, nll_grad, strict=True):
        assert_close(a, factor * b)
    assert max(g.abs().max() for g in nll_grad if g.numel()) > 1e-3


def test_gamma_0_and_inf_are_the_limits():
    a, b = torch.randn(5), torch.randn(5)
    assert_close(ib_loss(a, b, 0.0), 2 * a)
    assert_close(ib_loss(a, b, math.inf), 2 * b)
    assert_close(ib_loss(a, b, 1e-12), ib_loss(a, b, 0.0))
    assert_close(ib_loss(a, b, 1e12), ib_loss(a, b, math.inf))
    assert_close(ib_loss(a, b, 1.0), a + b)


def test_the_term_without_weight_cannot_spoil_the_other():
    finite, broken = torch.ones(1), torch.tensor([math.nan])
    assert ib_loss(finite, broken, 0.0).item() == 2
    assert ib_loss(broken, finite, math.inf).item() == 2


@given(gamma=st.floats(0, 1e6), a=st.floats(-10, 10), b=st.floats(-10, 10))
def test_ib_loss_is_the_rebalanced_sum(gamma, a, b):
    expected = 2 / (1 + gamma) * (a + gamma * b)
    assert_close(ib_loss(torch.tensor(a), torch.tensor(b), gamma), torch.tensor(expected))


def test_loss_y_is_torchs_cross_entropy_also_with_smoothing():
    _, mixture, z, y = problem()
    logits = mixture.scores(z) + mixture.log_w
    for smoothing in (0.0, 0.05, 1.0):
        expected = F.cross_entropy(logits, y, reduction="none", label_smoothing=smoothing)
        assert_close(loss_y(mixture.scores(z), mixture.log_w, y, smoothing), expected)


def test_smoothed_labels_are_probabilities():
    y_soft = smooth_labels(torch.tensor([0, 2]), 4, 0.2)
    assert_close(y_soft, torch.tensor([[0.85, 0.05, 0.05, 0.05], [0.05, 0.05, 0.85, 0.05]]))


def test_only_loss_x_sends_gradients_to_phi():
    flow, mixture, x, y = problem(learn_phi=True)
    z, log_det = flow(x)
    loss_y(mixture.scores(z), mixture.log_w, y).mean().backward(retain_graph=True)
    assert mixture.phi.grad is None
    loss_x(mixture.log_q_z(z), log_det, 4).mean().backward()
    assert mixture.phi.grad.abs().max() > 0


def test_ci_y_is_minus_loss_y_minus_the_class_weight():
    _, mixture, z, y = problem()
    scores, log_w = mixture.scores(z), mixture.log_w
    assert_close(ci_y(scores, log_w, y), -loss_y(scores, log_w, y) - log_w[y])
    assert_close(ci_yz(loss_y(scores, log_w, y), log_w, y), ci_y(scores, log_w, y).mean())


@pytest.fixture(scope="module")
def skewed():
    """Labels with shares 0.6, 0.3, 0.1 and z from their true components, 2 apart."""
    torch.manual_seed(0)
    mixture = GaussianMixture(3, 3, distance=2.0, learn_mu=False, learn_phi=True)
    y = torch.multinomial(torch.tensor([0.6, 0.3, 0.1]), 40_000, replacement=True)
    return mixture, mixture.sample(y), y


def test_phi_reaches_the_class_shares_through_loss_x_alone(skewed):
    mixture, z, y = skewed
    train_phi(mixture, lambda: loss_x(mixture.log_q_z(z), torch.zeros(len(z)), 3).mean())
    assert_close(mixture.log_w.exp(), y.bincount() / len(y), atol=0.01, rtol=0)


def test_phi_runs_off_to_one_class_through_ci_y(skewed):
    """The appendix's warning: log sum_y w_y q(z|y) is concave in w, so its minimum is a corner."""
    mixture, z, y = skewed
    train_phi(mixture, lambda: -ci_y(mixture.scores(z), mixture.log_w, y).mean())
    assert mixture.log_w.exp().max() > 0.999


def train_phi(mixture, objective):
    with torch.no_grad():
        mixture.phi.copy_(torch.tensor([0.0, 0.1, -0.1]))
    optimizer = torch.optim.Adam([mixture.phi], lr=0.1)
    for _ in range(250):
        optimizer.zero_grad()
        objective().backward()
        optimizer.step()


def test_ci_xz_of_a_gaussian_is_its_mutual_information():
    """X ~ N(0, 4 I), sigma = 0.1, the right density: I(X, X + E) = D/2 log(1 + 4 / 0.01)."""
    n_dims, variance = 3, 4 + 0.01
    entropy_per_dim = 0.5 * math.log(2 * math.pi * math.e * variance)
    expected = n_dims / 2 * math.log(1 + 4 / 0.01)
    assert_close(ci_xz(torch.tensor([entropy_per_dim]), 0.1, n_dims), torch.tensor(expected))
