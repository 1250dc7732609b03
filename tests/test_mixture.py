"""The mixture against torch.distributions, SciPy and brute force."""

import subprocess
import sys

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal
from torch.testing import assert_close

from ibinn import GaussianMixture
from ibinn.mixture import separated_means

sizes = {"n_classes": st.integers(2, 12), "n_dims": st.integers(1, 30), "seed": st.integers(0, 1000)}
far = pytest.mark.parametrize("scale", [1.0, 1e2, 1e5], ids=["near", "far", "very far"])


def random_mixture(n_classes, n_dims, seed):
    torch.manual_seed(seed)
    mixture = GaussianMixture(n_classes, n_dims, learn_phi=True)
    with torch.no_grad():
        mixture.mu.add_(2 * torch.randn_like(mixture.mu))
        mixture.phi.add_(torch.randn_like(mixture.phi))
    return mixture


def oracle(mixture):
    components = Independent(Normal(mixture.mu, torch.ones_like(mixture.mu)), 1)
    return MixtureSameFamily(Categorical(logits=mixture.phi), components)


@far
@given(**sizes)
def test_agrees_with_torch_distributions(scale, n_classes, n_dims, seed):
    mixture = random_mixture(n_classes, n_dims, seed)
    z, expected = scale * torch.randn(7, n_dims), oracle(mixture)
    log_q_z_given_y = expected.component_distribution.log_prob(z[:, None])
    assert_close(mixture.log_q_z(z), expected.log_prob(z), atol=1e-6, rtol=1e-12)
    assert_close(mixture.log_q_z_given_y(z), log_q_z_given_y, atol=1e-6, rtol=1e-12)


@given(**sizes)
def test_posterior_is_bayes_rule(n_classes, n_dims, seed):
    mixture = random_mixture(n_classes, n_dims, seed)
    z = 3 * torch.randn(7, n_dims)
    joint = oracle(mixture).component_distribution.log_prob(z[:, None]) + mixture.phi.log_softmax(0)
    assert_close(mixture.log_q_y_given_z(z), joint - joint.logsumexp(1, keepdim=True), atol=1e-9, rtol=1e-9)
    assert_close(mixture.log_q_y_given_z(z).exp().sum(1), torch.ones(7))


def test_posterior_of_far_away_z_keeps_its_digits_in_float32():
    """Differences of squared distances would lose them: |z|^2 is 1e10 here, float32 has 7 digits."""
    mixture = GaussianMixture(2, 4, distance=2.0)
    direction = mixture.mu[0] + mixture.mu[1]  # equally far from both means
    z = 1e5 * direction + torch.tensor([0.3, 0.0, -0.2, 0.0])
    single = GaussianMixture(2, 4, distance=2.0).float()
    assert_close(
        single.log_q_y_given_z(z[None].float()).double(),
        mixture.log_q_y_given_z(z[None]),
        atol=0.02,
        rtol=0,
    )


@pytest.mark.parametrize(("n_classes", "n_dims"), [(2, 2), (10, 64), (10, 3072), (3, 7), (100, 128)])
def test_means_start_the_asked_distance_apart_on_a_sphere(n_classes, n_dims):
    mu = separated_means(n_classes, n_dims, distance=5.0)
    assert_close(torch.pdist(mu), torch.full((n_classes * (n_classes - 1) // 2,), 5.0))
    assert_close(mu.norm(dim=1), mu.norm(dim=1)[:1].expand(n_classes))


@given(n_classes=st.integers(2, 60), n_dims=st.integers(1, 8))
@example(n_classes=300, n_dims=200)
def test_means_start_no_closer_where_there_are_more_classes_than_dimensions(n_classes, n_dims):
    closest = torch.pdist(separated_means(n_classes, n_dims, distance=5.0)).min()
    assert_close(closest, torch.tensor(5.0))


def test_fixed_means_are_no_parameters_but_are_saved():
    mixture = GaussianMixture(3, 4, distance=10.0, learn_mu=False)
    assert not list(mixture.parameters())
    assert set(mixture.state_dict()) == {"mu", "phi"}
    assert_close(torch.pdist(mixture.mu), torch.full((3,), 10.0))


def test_priors_become_class_weights():
    assert_close(GaussianMixture(3, 2, priors=[1, 2, 5]).log_w.exp(), torch.tensor([1, 2, 5]) / 8)
    assert_close(GaussianMixture(3, 2).log_w.exp(), torch.full((3,), 1 / 3))


def test_samples_have_the_means_and_the_temperature_asked_for():
    mixture = random_mixture(3, 5, seed=0)
    y = torch.tensor([0, 2, 1]).repeat(20_000)
    z = mixture.sample(y, temperature=0.5, generator=torch.Generator().manual_seed(0)) - mixture.mu[y]
    assert_close(z.mean(0), torch.zeros(5), atol=0.01, rtol=0)
    assert_close(z.T @ z / len(z), 0.25 * torch.eye(5), atol=0.01, rtol=0)
    assert torch.equal(mixture.sample(y, temperature=0.0), mixture.mu[y])


def test_sampling_follows_its_generator_and_leaves_the_means_alone():
    mixture = random_mixture(3, 5, seed=0)
    before = mixture.mu.clone()

    def draw(seed):
        return mixture.sample(torch.tensor([0, 1]), generator=torch.Generator().manual_seed(seed))

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))
    assert torch.equal(mixture.mu, before)


def test_labels_are_drawn_with_the_class_weights():
    labels = GaussianMixture(3, 2, priors=[0.7, 0.2, 0.1]).sample_labels(50_000)
    assert_close(labels.bincount() / 50_000, torch.tensor([0.7, 0.2, 0.1]), atol=0.01, rtol=0)


MEMORY = """
import resource, sys, torch
from ibinn import GaussianMixture

def peak():
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20

def step(mixture, z):
    mixture.log_q_z(z).sum().backward()

small = GaussianMixture(4, 8)
step(small, torch.randn(2, 8, requires_grad=True))  # what torch itself needs the first time
mixture, z = GaussianMixture(1000, 3072), torch.randn(128, 3072, requires_grad=True)
before = peak()
step(mixture, z)
print(peak() - before)
"""


def test_memory_does_not_grow_with_batch_times_classes_times_dimensions():
    """K = 1000, D = 3072, B = 128, float32: a (B, K, D) tensor alone would take 1500 MB."""
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    assert 0 <= float(done.stdout) < 120
