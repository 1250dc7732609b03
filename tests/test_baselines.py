"""ResNet, i-RevNet and VIB: the same methods, comparable sizes, and the losses that DESIGN gives them."""

import math

import pytest
import torch
from torch.distributions import Independent, Normal, kl_divergence
from torch.testing import assert_close

from ibinn.config import ConfigError, RunConfig
from ibinn.models.baselines import VIB, ResNet
from ibinn.models.methods import METHODS, Objective, build_model
from ibinn.objectives import class_nll, loss_y, vib_rate
from ibinn.training.recipes import NETWORKS, RECIPES

SHAPES = {"grey": (1, 8, 8), "colour": (3, 8, 8), "vector": (6,)}


def config(method="ibinn", size="tiny", gamma=1.0, seed=0, priors="uniform"):
    return RunConfig(
        1, "data", method, gamma, size, seed, priors, "float32", NETWORKS[size], RECIPES["tiny"]
    )


def model_and_batch(method, shape=(1, 8, 8), n=6, **settings):
    model = build_model(config(method, **settings), shape, 3).eval()
    shake(model)
    return model, torch.randn(n, *shape), torch.arange(n) % 3


def shake(model):
    """Away from the start, where the last layers are 0 and hide what is before them."""
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.01 * torch.randn(p.shape))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_answers_the_same_methods(method, shape):
    if method == "rival" and len(shape) == 1:
        with pytest.raises(ConfigError, match="for images"):
            model_and_batch(method, shape)
        return
    model, x, y = model_and_batch(method, shape)
    log_q_y, log_q_x = model(x)
    assert_close(log_q_y.exp().sum(1), torch.ones(len(x)))
    assert_close(model.log_q_y_given_x(x), log_q_y)
    assert (log_q_x is not None) == model.has_density == hasattr(model, "log_q_x")
    assert model.can_sample == hasattr(model, "sample")
    losses = Objective(model, method, 1.0, math.prod(shape), 0.05)(x, torch.zeros(len(x)), y)
    losses.loss.mean().backward()
    assert all(value.shape == (len(x),) for value in losses)
    assert torch.equal(losses.wrong, log_q_y.argmax(1) != y)
    for name, p in model.named_parameters():
        assert p.grad is not None, name
        assert p.grad.isfinite().all(), name


@pytest.mark.parametrize("method", METHODS)
def test_answers_do_not_depend_on_the_batch(method):
    model, x, _ = model_and_batch(method)
    assert_close(model(x)[0][2:3], model(x[2:3])[0])


@pytest.mark.parametrize(
    ("size", "shape"), [("tiny", (1, 8, 8)), ("small", (1, 28, 28)), ("base", (3, 32, 32)), ("tiny", (12,))]
)
@pytest.mark.parametrize("method", ["resnet", "irevnet", "vib"])
def test_parameter_counts_are_comparable(method, size, shape):
    counts = [
        sum(p.numel() for p in build_model(config(m, size), shape, 10).parameters())
        for m in ("ibinn", method)
    ]
    assert 0.5 < counts[1] / counts[0] < 2


def test_the_same_seed_gives_the_same_start_and_leaves_the_callers_generator_alone():
    before = torch.get_rng_state()
    a, b, c = (build_model(config(seed=seed), (1, 8, 8), 3).state_dict() for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not all(torch.equal(a[name], c[name]) for name in a)


def test_irevnet_is_invertible():
    model, x, _ = model_and_batch("irevnet")
    assert_close(model.decode(model.encode(x)[0]), x)


def test_resnet_is_not_a_flow_with_another_name():
    model, _, _ = model_and_batch("resnet")
    assert isinstance(model, ResNet)
    assert not hasattr(model, "decode")


def test_vib_rate_is_the_divergence_from_a_standard_normal():
    m, log_s = torch.randn(5, 7), torch.randn(5, 7)
    code, prior = Normal(m, log_s.exp()), Normal(torch.zeros(7), torch.ones(7))
    expected = kl_divergence(Independent(code, 1), Independent(prior, 1)) / 20
    assert_close(vib_rate(m, log_s, 20), expected)


def test_vib_loss_is_that_of_its_paper_with_beta_one_over_gamma_d():
    model, x, y = model_and_batch("vib")
    gamma, n_dims = 0.3, 64
    losses = Objective(model, "vib", gamma, n_dims, 0.0)(x, torch.zeros(len(x)), y)
    beta = 1 / (gamma * n_dims)
    cross_entropy = -model(x)[0].gather(1, y[:, None])[:, 0]
    kl = n_dims * vib_rate(*model.code(x), n_dims)
    assert_close(losses.loss, 2 * gamma / (1 + gamma) * (cross_entropy + beta * kl))


def test_vib_averages_probabilities_over_twelve_draws_and_draws_anew_in_training():
    model, x, _ = model_and_batch("vib")
    m, log_s = model.code(x)
    by_hand = torch.stack(
        [(m + log_s.exp() * eps) @ model.readout.weight.T + model.readout.bias for eps in model.draws]
    )
    assert len(model.draws) == 12
    assert_close(model(x)[0].exp(), by_hand.softmax(2).mean(0))
    model.train()
    assert not torch.equal(model(x)[0], model(x)[0])


def test_vib_codes_start_about_unit_deviation():
    model = VIB(torch.nn.Identity(), 4, 3)
    torch.nn.init.zeros_(model.encoder.bias)
    _, log_s = model.code(torch.zeros(1, 4))
    assert_close(log_s, torch.zeros(1, 128), atol=1e-12, rtol=0)


def test_class_nll_is_the_ib_loss_at_beta_one():
    model, x, y = model_and_batch("class-nll")
    n_dims, log_det = 64, torch.randn(len(x))
    losses = Objective(model, "class-nll", 5.0, n_dims, 0.0)(x, log_det, y)
    z, log_det_flow = model.flow(x)
    nll = class_nll(model.mixture.log_q_z_given_y(z), log_det_flow + log_det, y, n_dims)
    scale = 2 * n_dims / (n_dims + 1)
    assert_close(losses.loss, scale * (nll - model.mixture.log_w[y] / n_dims))


def test_class_nll_fixed_has_fixed_means_ten_apart():
    mixture = build_model(config("class-nll-fixed"), (1, 8, 8), 3).mixture
    assert not isinstance(mixture.mu, torch.nn.Parameter)
    assert_close(torch.pdist(mixture.mu), torch.full((3,), 10.0))


@pytest.mark.parametrize("method", ["resnet", "irevnet"])
def test_plain_classifiers_minimise_twice_the_cross_entropy_with_smoothing(method):
    model, x, y = model_and_batch(method)
    losses = Objective(model, method, 0.1, 64, 0.05)(x, torch.zeros(len(x)), y)
    expected = loss_y(model.logits(x), torch.zeros(3), y, 0.05)
    assert_close(losses.loss, 2 * expected)
    assert losses.loss_x.isnan().all()


def test_learned_class_weights_are_taught_by_loss_x_alone():
    model = build_model(config(priors="learned"), (1, 8, 8), 3)
    assert isinstance(model.mixture.phi, torch.nn.Parameter)
    x, y = torch.randn(6, 1, 8, 8), torch.arange(6) % 3
    losses = Objective(model, "ibinn", math.inf, 64, 0.05)(x, torch.zeros(6), y)
    losses.loss.mean().backward()
    assert model.mixture.phi.grad is None or model.mixture.phi.grad.abs().max() == 0
