"""The paper's propositions as executable checks, on cases where every quantity is known.

Notation: p is true, q is the model; CI(U, V) = E_p log q(u, v) / (q(u) q(v)). Expectations over one or
two dimensions are integrals on a fine grid, not samples, unless a test is about samples.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats
from torch import nn
from torch.func import functional_call, jacrev, vmap
from torch.testing import assert_close

from ibinn import Chain, GaussianMixture, GenerativeClassifier, dense_flow, loss_x, loss_y
from ibinn.flows.coupling import AffineCoupling
from ibinn.flows.mixing import ActNorm, AffineMix
from ibinn.objectives import ci_xz, ci_yz

GRID = torch.linspace(-25, 25, 20_001)
seeds = st.integers(0, 10_000)


def integral(values):
    """Of values on GRID."""
    return float(torch.trapezoid(values, GRID))


def tables(seed):
    """Two random positive joint tables p and q over (u, v)."""
    rng = np.random.default_rng(seed)
    p, q = rng.gamma(0.7, size=(2, *rng.integers(2, 7, size=2))) + 1e-3
    return p / p.sum(), q / q.sum()


def information(p, q):
    """E_p log q(u, v) / (q(u) q(v)): CI(U, V), or I(U, V) for q = p."""
    return float((p * np.log(q / (q.sum(1, keepdims=True) * q.sum(0, keepdims=True)))).sum())


def divergence(p, q):
    return float((p * np.log(p / q)).sum())


class TestProposition1:
    """CI = I - D1 + D2 + D3 with the divergences of joint (D1) and marginals; CI = I where q = p.

    The paper prints the three signs the other way round, which these tables refute; its conclusion
    |CI - I| <= D1 + D2 + D3 does not depend on them.
    """

    @given(seed=seeds)
    def test_identity_on_tables(self, seed):
        p, q = tables(seed)
        d1, d2, d3 = divergence(p, q), divergence(p.sum(1), q.sum(1)), divergence(p.sum(0), q.sum(0))
        assert information(p, q) == pytest.approx(information(p, p) - d1 + d2 + d3, abs=1e-12)
        assert abs(information(p, q) - information(p, p)) <= 3 * max(d1, d2, d3) + 1e-12

    def test_the_printed_signs_are_wrong(self):
        """q independent, p not: CI = 0 and D2 = D3 = 0 for equal marginals, so I = D1 and not -D1."""
        p, q = np.array([[0.4, 0.1], [0.1, 0.4]]), np.full((2, 2), 0.25)
        assert information(p, q) == pytest.approx(0)
        assert information(p, p) == pytest.approx(divergence(p, q))
        assert information(p, p) > 0.1

    @given(seed=seeds)
    def test_identity_for_our_mixture(self, seed):
        """U = Z in one dimension, V = Y: p from SciPy, q from GaussianMixture, CI from `ci_yz`'s terms."""
        rng = np.random.default_rng(seed)
        weights, true_means, means = (
            rng.dirichlet([3, 3, 3]),
            3 * rng.normal(size=3),
            3 * rng.normal(size=3),
        )
        q = model_with_means(means[:, None], weights)
        p_zy = true_joint(true_means, weights)
        p_z = p_zy.sum(1)
        log_q_zy = q.log_q_z_given_y(GRID[:, None]) + q.log_w
        log_q_z = q.log_q_z(GRID[:, None])
        ci = cross_information_zy(q, p_zy)
        mutual = integral((p_zy * (p_zy / (p_z[:, None] * torch.tensor(weights))).log()).sum(1))
        d1 = integral((p_zy * (p_zy.log() - log_q_zy)).sum(1))
        d2 = integral(p_z * (p_z.log() - log_q_z))
        assert ci == pytest.approx(mutual - d1 + d2, abs=1e-8)  # d3 = 0: q(y) = p(y)


def model_with_means(mu, weights):
    mixture = GaussianMixture(len(mu), mu.shape[1], priors=weights)
    with torch.no_grad():
        mixture.mu.copy_(torch.as_tensor(mu))
    return mixture.requires_grad_(False)


def true_joint(means, weights):
    """p(z, y) on GRID, (G, K), floored far out in the tails so that logarithms exist."""
    joint = stats.norm.pdf(GRID[:, None].numpy(), loc=means) * weights
    return torch.tensor(joint).clamp_min(1e-300)


def cross_information_zy(mixture, p_zy):
    """CI(Y, Z) of the mixture under p(z, y) on GRID, from the package's own loss_y."""
    n_classes, z = p_zy.shape[1], GRID[:, None]
    per_class = [
        -loss_y(mixture.scores(z), mixture.log_w, torch.full((len(z),), k)) - mixture.log_w[k]
        for k in range(n_classes)
    ]
    return sum(integral(p_zy[:, k] * per_class[k]) for k in range(n_classes))


class TestLabels:
    """CI(Y, Z) <= I(Y, Z), with equality for the right means."""

    @given(seed=seeds)
    def test_bound(self, seed):
        rng = np.random.default_rng(seed)
        weights, true_means = rng.dirichlet([2, 2, 2]), 2 * rng.normal(size=3)
        p_zy = true_joint(true_means, weights)
        mutual = integral((p_zy * (p_zy / (p_zy.sum(1)[:, None] * torch.tensor(weights))).log()).sum(1))
        right = cross_information_zy(model_with_means(true_means[:, None], weights), p_zy)
        wrong = cross_information_zy(model_with_means(2 * rng.normal(size=(3, 1)), weights), p_zy)
        assert right == pytest.approx(mutual, abs=1e-8)
        assert wrong <= mutual + 1e-8

    def test_ci_yz_on_samples_is_the_integral(self):
        mixture = model_with_means(np.array([[-1.0], [1.5]]), [0.3, 0.7])
        y = mixture.sample_labels(400_000)
        z = mixture.sample(y)
        estimate = ci_yz(loss_y(mixture.scores(z), mixture.log_w, y), mixture.log_w, y)
        exact = cross_information_zy(mixture, true_joint(np.array([-1.0, 1.5]), [0.3, 0.7]))
        assert float(estimate) == pytest.approx(exact, abs=0.005)


def affine_model(scale, shift):
    """z = scale * x + shift in one dimension, both means at 0: q(x) is a Gaussian."""
    norm = ActNorm(1, scale=scale)
    norm.shift.data.fill_(shift)
    return GenerativeClassifier(norm, GaussianMixture(2, 1, distance=0.0)).eval().requires_grad_(False)


def ci_of_gaussian(model, deviation, sigma):
    """CI(X, Z) for X ~ N(0, deviation^2), by integrating loss_x over the density of X + E."""
    density = stats.norm.pdf(GRID.numpy(), scale=math.hypot(deviation, sigma))
    rate = integral(torch.tensor(density) * -model.log_q_x(GRID[:, None]))
    return float(ci_xz(torch.tensor([rate]), sigma, n_dims=1))


def information_of_gaussian(deviation, sigma):
    return 0.5 * math.log(1 + (deviation / sigma) ** 2)


class TestProposition2:
    """I(X, Z) <= CI(X, Z) for Z = g(X + E)."""

    @given(scale=st.floats(0.2, 4.0), shift=st.floats(-2, 2), sigma=st.floats(0.01, 1.0))
    def test_bound_for_wrong_models(self, scale, shift, sigma):
        model = affine_model(scale, shift)
        gap = ci_of_gaussian(model, 1.5, sigma) - information_of_gaussian(1.5, sigma)
        total = math.hypot(1.5, sigma)  # the gap is KL(N(0, total^2) || q)
        expected = 0.5 * ((scale * total) ** 2 + shift**2 - 1) - math.log(scale * total)
        assert gap >= -1e-9
        assert gap == pytest.approx(expected, abs=1e-6)

    @given(sigma=st.floats(0.01, 1.0))
    def test_equality_for_the_right_model(self, sigma):
        right = affine_model(1 / math.hypot(1.5, sigma), 0.0)
        assert ci_of_gaussian(right, 1.5, sigma) == pytest.approx(
            information_of_gaussian(1.5, sigma), abs=1e-7
        )


TRUE_CENTRES, TRUE_SPREAD = torch.tensor([[-1.0, 0.0], [1.0, 0.5]]), 0.5


def draw_points(n, sigma):
    """x (n, 2) from two round Gaussians, and x + eps."""
    x = TRUE_CENTRES[torch.randint(2, (n,))] + TRUE_SPREAD * torch.randn(n, 2)
    return x, x + sigma * torch.randn_like(x)


def true_information(sigma):
    """I(X, X + E) = h(X + E) - h(E), the entropy of the two-Gaussian mixture on a grid."""
    side = np.linspace(-6, 6, 601)
    grid = np.stack(np.meshgrid(side, side, indexing="ij"), axis=-1)
    spread = math.hypot(TRUE_SPREAD, sigma)
    density = sum(stats.multivariate_normal(c, spread**2).pdf(grid) for c in TRUE_CENTRES.numpy()) / 2
    surprise = np.where(density > 0, -density * np.log(np.maximum(density, 1e-300)), 0.0)
    entropy = integrate.trapezoid(integrate.trapezoid(surprise, side), side)
    return entropy - math.log(2 * math.pi * math.e * sigma**2)


@pytest.fixture(scope="module")
def trained():
    """A small flow trained on the two Gaussians with loss_x alone."""
    torch.manual_seed(0)
    model = GenerativeClassifier(dense_flow(2, blocks=4, width=32), GaussianMixture(2, 2))
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=600)
    for _ in range(600):
        z, log_det = model.encode(draw_points(512, sigma=0.01)[1])
        optimizer.zero_grad()
        loss_x(model.mixture.log_q_z(z), log_det, 2).mean().backward()
        optimizer.step()
        schedule.step()
    return model.eval()


class TestProposition3:
    """loss_x, shifted by the noise's entropy, is CI(X, Z) for small sigma, and so are its gradients."""

    @pytest.mark.parametrize("sigma", [0.003, 0.01, 0.03])
    def test_ci_xz_is_the_mutual_information_for_small_sigma(self, trained, sigma):
        estimate = estimated_information(trained, sigma)
        assert estimate == pytest.approx(true_information(sigma), rel=0.02)

    def test_ci_xz_falls_by_d_nats_per_e_fold_of_sigma(self, trained):
        values = [estimated_information(trained, 0.001 * math.e**k) for k in range(4)]
        assert np.diff(values) == pytest.approx([-2, -2, -2], abs=0.05)

    def test_gradients_agree_as_sigma_goes_to_0(self):
        """CI with q(z_eps | x) = N(g(x), sigma^2 J J^T), differentiated as it stands, against loss_x.

        A smooth flow, for the paper's Assumption 2 wants a differentiable Jacobian; with ReLU the
        estimate of CI's gradient grows noisier as sigma falls, its mean being the same.
        """
        model = smooth_model()
        gaps = [gradient_gap(model, sigma) for sigma in (0.3, 0.03, 0.003)]
        assert gaps[0] > 0.01
        assert gaps[1] < gaps[0] / 3
        assert gaps[2] < gaps[1] / 3

    def test_gradients_agree_as_n_grows(self):
        """CI's gradient from 200,000 inputs, loss_x's from N others: the gap falls tenfold for 100 times N."""
        model, sigma = smooth_model(), 0.003
        reference = ci_gradient(model, *draw_points(200_000, sigma), sigma)
        errors = []
        for n in (100, 10_000):
            draws = [rate_gradient(model, draw_points(n, sigma)[1]) - reference for _ in range(6)]
            errors.append(float(torch.stack(draws).square().mean().sqrt()))
        assert 5 < errors[0] / errors[1] < 20


@torch.no_grad()
def estimated_information(model, sigma):
    torch.manual_seed(1)
    noisy = draw_points(40_000, sigma)[1]
    return float(ci_xz(-model.log_q_x(noisy) / 2, sigma, n_dims=2))


def smooth_model():
    """An untrained flow with tanh in its subnets, far from any minimum."""

    def subnet(n_in, n_out):
        return nn.Sequential(nn.Linear(n_in, 16), nn.Tanh(), nn.Linear(16, n_out))

    blocks = [
        Chain(AffineCoupling(2, subnet, clamp=2.0, slope=1.0), AffineMix(2, seed, learned=False))
        for seed in range(3)
    ]
    return GenerativeClassifier(Chain(*blocks), GaussianMixture(2, 2))


def gradient_gap(model, sigma, n=4000):
    """|grad CI - grad loss_x| / |grad loss_x|, the same inputs and noise in both."""
    torch.manual_seed(2)
    x, noisy = draw_points(n, sigma)
    ci, rate = ci_gradient(model, x, noisy, sigma), rate_gradient(model, noisy)
    return float((ci - rate).norm() / rate.norm())


def rate_gradient(model, noisy):
    """d(D loss_x) / d(theta), one long vector."""

    def rate(theta):
        z, log_det = functional_call(model.flow, theta, (noisy,))
        return 2 * loss_x(model.mixture.log_q_z(z), log_det, 2).mean()

    return gradient(rate, model)


def ci_gradient(model, x, noisy, sigma):
    """dCI(X, Z) / d(theta) with q(z_noisy | x) = N(g(x), sigma^2 J J^T), J the Jacobian at x by autograd."""

    def cross_information(theta):
        z = functional_call(model.flow, theta, (x,))[0]
        z_noisy = functional_call(model.flow, theta, (noisy,))[0]
        jacobian = vmap(jacrev(lambda v: functional_call(model.flow, theta, (v[None],))[0][0]))(x)
        whitened = torch.linalg.solve(jacobian, (z_noisy - z)[..., None])[..., 0] / sigma
        log_q_noisy_given_x = -0.5 * whitened.square().sum(1) - torch.linalg.slogdet(jacobian).logabsdet
        return (log_q_noisy_given_x - model.mixture.log_q_z(z_noisy)).mean()

    return gradient(cross_information, model)


def gradient(objective, model):
    theta = {name: value.detach() for name, value in model.flow.named_parameters()}
    return torch.cat([g.detach().flatten() for g in torch.func.grad(objective)(theta).values()])


@given(seed=seeds, steps_per_sigma=st.floats(1.0, 5.0), n_levels=st.integers(2, 12))
def test_density_error_of_quantised_data_is_bounded(seed, steps_per_sigma, n_levels):
    """Levels P_i plus N(0, sigma^2) learned perfectly: 0 <= q(w_j) / r(0) - P_j <= exp(-dX^2 / 2 sigma^2).

    The perfect model is one of ours: z = x / sigma and a mean on every level.
    """
    step = 1 / 16
    sigma = step / steps_per_sigma
    levels = step * torch.arange(n_levels)
    p = torch.tensor(np.random.default_rng(seed).dirichlet(np.ones(n_levels))).clamp_min(1e-9)
    p = p / p.sum()
    mixture = model_with_means(levels[:, None] / sigma, p)
    model = GenerativeClassifier(Chain(ActNorm(1, scale=1 / sigma)), mixture).eval()
    r_0 = 1 / math.sqrt(2 * math.pi * sigma**2)
    with torch.no_grad():
        error = model.log_q_x(levels[:, None]).exp() / r_0 - p
    bound = math.exp(-(step**2) / (2 * sigma**2))
    assert error.min() >= -1e-12
    assert error.max() <= bound + 1e-12


def test_density_error_bound_is_not_idle():
    """Two levels, one almost empty: the error there nearly reaches the bound."""
    sigma, step = 0.5, 1.0
    mixture = model_with_means(np.array([[0.0], [step / sigma]]), [1 - 1e-6, 1e-6])
    model = GenerativeClassifier(Chain(ActNorm(1, scale=1 / sigma)), mixture).eval()
    r_0 = 1 / math.sqrt(2 * math.pi * sigma**2)
    with torch.no_grad():
        q_tilde = model.log_q_x(torch.tensor([[step]])).exp() / r_0
    assert_close(q_tilde - 1e-6, torch.tensor([math.exp(-(step**2) / (2 * sigma**2))]), rtol=1e-4, atol=0)
