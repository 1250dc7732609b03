"""Bits per dimension against densities whose answer is known."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy import stats

from ibinn.metrics.likelihood import bits_per_dim, bits_per_dim_plugin, paper_convention_offset

CIFAR_STD = (0.247, 0.243, 0.261)  # the authors' normalisation
PAPER_SIGMA = 256 * 1e-3  # in levels


@pytest.mark.parametrize("n_dims", [1, 64, 3072])
def test_independent_uniform_pixels_take_8_bits(n_dims):
    """p(w + u) = 256^-D everywhere in [0, 256)^D."""
    log_p = np.full(5, -n_dims * math.log(256))
    assert_allclose(bits_per_dim(log_p, n_dims), np.full(5, 8.0), rtol=1e-14)


def test_a_peaked_distribution_takes_its_entropy():
    """P = 1/2, 1/4, 1/8, 1/8 has 7/4 bits; data with exactly these shares, three independent pixels."""
    p = np.array([1 / 2, 1 / 4, 1 / 8, 1 / 8])
    pixel = np.repeat(np.arange(4), (8 * p).astype(int))
    images = np.stack(np.meshgrid(pixel, pixel, pixel), axis=-1).reshape(-1, 3)
    assert bits_per_dim(np.log(p[images]).sum(1), 3).mean() == pytest.approx(7 / 4, rel=1e-14)


def test_uniform_dequantisation_gives_an_upper_bound():
    """p(w + u) = 2u P(w) has the mass P(w) in each cell; a mean over u costs -1 + 1 / ln 2 bits more."""
    u = (np.arange(100_000) + 0.5) / 100_000
    p_w = 1 / 8
    excess = bits_per_dim(np.log(2 * u * p_w), 1).mean() - (-math.log2(p_w))
    assert excess == pytest.approx(1 / math.log(2) - 1, abs=1e-5)
    assert excess > 0


def uniform_levels_with_noise(sigma):
    """log p(w_i), (256,), of p = sum_j 1/256 N(w_j, sigma^2), at the levels themselves."""
    levels = np.arange(256)
    return np.log(stats.norm.pdf(levels[:, None], loc=levels, scale=sigma).mean(1))


@pytest.mark.parametrize("sigma", [0.05, 0.1, PAPER_SIGMA, 0.4])
def test_uniform_pixels_with_gaussian_noise_take_8_bits_up_to_the_neighbours_share(sigma):
    bits = bits_per_dim_plugin(uniform_levels_with_noise(sigma), 1, sigma)
    neighbour, next_but_one = math.exp(-1 / (2 * sigma**2)), math.exp(-4 / (2 * sigma**2))
    tolerance = 4 * next_but_one + 1e-13
    assert_allclose(bits[1:-1], 8 - math.log2(1 + 2 * neighbour), atol=tolerance, rtol=0)
    assert_allclose(bits[[0, -1]], 8 - math.log2(1 + neighbour), atol=tolerance, rtol=0)


def test_the_papers_noise_is_small_enough_for_8_bits():
    """sigma is about a quarter of a step: log2(1 + 2 exp(-7.6)) is 0.0014 bits."""
    bits = bits_per_dim_plugin(uniform_levels_with_noise(PAPER_SIGMA), 1, PAPER_SIGMA)
    assert bits.mean() == pytest.approx(8, abs=0.0015)


def test_the_plugin_value_need_not_be_that_of_a_distribution():
    """With sigma = 1 level, sum_i p(w_i) / r(0) is near sqrt(2 pi), not 1: too few bits for 256 levels."""
    bits = bits_per_dim_plugin(uniform_levels_with_noise(1.0), 1, 1.0)
    assert np.exp2(-bits).sum() == pytest.approx(math.sqrt(2 * math.pi), abs=0.01)
    assert bits.max() < 8


def test_the_papers_convention_on_cifar():
    """log2(2 pi) = 2.65150; log2 of 0.247, 0.243, 0.261 = -2.01742, -2.04097, -1.93788, in the mean -1.99876."""
    assert paper_convention_offset(CIFAR_STD) == pytest.approx(-0.65, abs=0.01)
    assert paper_convention_offset(CIFAR_STD) == pytest.approx(-2.65150 + 1.99876, abs=2e-5)
    assert paper_convention_offset((0.247, 0.2435, 0.2616)) == pytest.approx(-0.655, abs=1e-3)


@given(std=st.lists(st.floats(0.01, 2), min_size=1, max_size=4), seed=st.integers(0, 100))
def test_the_papers_convention_is_the_authors_formula(std, seed):
    """z = (x - mean) / std ~ N(0, I): the exact density of the levels against the authors' arithmetic."""
    rng = np.random.default_rng(seed)
    std, mean = np.array(std)[:, None], rng.uniform(size=(len(std), 1))
    levels = rng.uniform(0, 256, size=(10, len(std), 16))
    n_dims = levels[0].size
    exact = bits_per_dim(stats.norm.logpdf(levels, 256 * mean, 256 * std).sum((1, 2)), n_dims)
    z = (levels / 256 - mean) / std
    nll_without_constant = 0.5 * (z**2).sum((1, 2)) / n_dims
    theirs = (nll_without_constant + math.log(256) - 0.5 * math.log(2 * math.pi)) / math.log(2)
    assert_allclose(exact + paper_convention_offset(std), theirs, rtol=1e-12, atol=1e-12)


log_densities = st.lists(st.floats(-1e5, 1e5), min_size=1, max_size=5).map(np.array)


@given(
    log_p=log_densities, factor=st.floats(-10, 10), shift=st.floats(-1e5, 1e5), n_dims=st.integers(1, 4000)
)
def test_bits_are_linear_in_log_p(log_p, factor, shift, n_dims):
    expected = factor * bits_per_dim(log_p, n_dims) - shift / n_dims / math.log(2)
    assert_allclose(bits_per_dim(factor * log_p + shift, n_dims), expected, atol=1e-8)


@given(log_p=log_densities, d_1=st.integers(1, 50), d_2=st.integers(1, 50), sigma=st.floats(0.01, 10))
def test_bits_add_up_over_independent_parts(log_p, d_1, d_2, sigma):
    """D bits/dim of (a, b) is that of a plus that of b; the noise term counts every dimension once."""
    other = 0.5 * log_p[::-1] - 3
    for bits in (bits_per_dim, lambda p, d: bits_per_dim_plugin(p, d, sigma)):
        parts = d_1 * bits(log_p, d_1) + d_2 * bits(other, d_2)
        assert_allclose((d_1 + d_2) * bits(log_p + other, d_1 + d_2), parts, atol=1e-7)


def test_float32_is_computed_in_float64():
    log_p = np.array([-7777.25], dtype=np.float32)
    assert bits_per_dim(log_p, 3072).dtype == np.float64
    assert bits_per_dim(log_p, 3072)[0] == 7777.25 / (3072 * math.log(2))


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: bits_per_dim([1.0], 0), "n_dims is 0"),
        (lambda: bits_per_dim_plugin([1.0], 1, 0.0), r"sigma_levels is 0\.0.* use bits_per_dim"),
        (lambda: bits_per_dim_plugin([1.0], 1, math.nan), "sigma_levels is nan"),
        (lambda: paper_convention_offset([0.2, 0.0]), "std is .* must be positive"),
        (lambda: paper_convention_offset([]), "std is .* must be positive"),
    ],
)
def test_wrong_arguments_are_named(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
