"""Preprocessing: every level comes back, every log-det is autograd's."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.special import log_softmax
from sklearn.covariance import OAS
from torch.distributions import Normal
from torch.func import jacrev
from torch.testing import assert_close

from ibinn.data.preprocess import ImagePreprocess, TablePreprocess, shrunk_covariance
from ibinn.metrics.likelihood import bits_per_dim, bits_per_dim_plugin
from ibinn.mixture import GaussianMixture

NOISES = {"uniform": 0.0, "gaussian": 1e-3, "both": 1e-4}


def every_level(levels, height=5, width=7, n_channels=3):
    """Images that hold every level in every channel."""
    rng = np.random.default_rng(0)
    n = math.ceil(levels / (height * width)) + 1
    values = np.concatenate([np.arange(levels), rng.integers(levels, size=n * height * width - levels)])
    return (
        np.stack([rng.permutation(values) for _ in range(n_channels)], -1)
        .reshape(n, height, width, n_channels)
        .astype(np.uint8)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("levels", [256, 17, 2])
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("multiple", [1, 4])
@pytest.mark.parametrize("equalise", [False, True])
def test_levels_come_back(noise, levels, multiple, dtype, equalise):
    images = every_level(levels)
    if equalise and noise != "uniform":
        with pytest.raises(ValueError, match="only uniform noise"):
            ImagePreprocess.fit(images, levels, noise, NOISES[noise], multiple, equalise)
        return
    preprocess = ImagePreprocess.fit(images, levels, noise, NOISES[noise], multiple, equalise).to(dtype)
    x = preprocess.to_units(images)
    assert np.array_equal(preprocess.to_raw(preprocess.inverse(preprocess(x)[0])), images)


@pytest.mark.parametrize("equalise", [False, True])
def test_nan_becomes_level_0_and_values_outside_are_clipped(equalise):
    images = every_level(17)
    preprocess = ImagePreprocess.fit(images, 17, equalise=equalise)
    x = preprocess.to_units(images)
    x[:, :, 0, 0], x[:, :, 0, 1], x[:, :, 0, 2] = math.nan, -math.inf, math.inf
    for raw in (preprocess.to_levels(x).numpy(), preprocess.to_raw(x)):
        assert raw.dtype == np.uint8
        assert not raw[:, 0, :2].any()
        assert (raw[:, 0, 2] == 16).all()
        assert np.array_equal(raw[:, 1:], images[:, 1:])


@pytest.mark.parametrize("levels", [256, 17])
@pytest.mark.parametrize("equalise", [False, True])
def test_levels_come_back_after_uniform_noise_in_float32(levels, equalise):
    """Also at the very ends of a level, where rounding would reach the next one."""
    images = np.repeat(every_level(levels), 20, axis=0)
    background = np.zeros_like(images)  # most pixels: the others are squeezed together when equalised
    fitted = np.concatenate([images, *[background] * 9])
    preprocess = ImagePreprocess.fit(fitted, levels, equalise=equalise).float()
    x = preprocess.add_noise(preprocess.to_units(images), torch.Generator().manual_seed(0))
    assert np.array_equal(preprocess.to_raw(preprocess.inverse(preprocess(x)[0])), images)
    for u in (2.0**-12, 1 - 2.0**-12):
        x = preprocess.to_units(images) + u / levels
        assert np.array_equal(preprocess.to_raw(preprocess.inverse(preprocess(x)[0])), images)


@pytest.mark.parametrize("multiple", [1, 4])
@pytest.mark.parametrize("equalise", [False, True])
def test_log_det_agrees_with_autograd_from_levels_to_the_network(multiple, equalise):
    images = every_level(256, height=3, width=2)[:1]
    preprocess = ImagePreprocess.fit(images, 256, multiple=multiple, equalise=equalise)
    w = preprocess.to_units(images) * 256 + 0.3
    n = preprocess.n_dims
    jacobian = jacrev(lambda v: preprocess(v / 256)[0])(w).reshape(n, n)
    expected = torch.linalg.slogdet(jacobian).logabsdet
    assert_close(preprocess(w / 256)[1] + preprocess.log_scale, expected[None])
    assert preprocess.shape == tuple(w.shape[1:])


def test_pixels_are_in_0_1_and_normalised_ones_have_mean_0_and_deviation_1():
    images = every_level(256)
    preprocess = ImagePreprocess.fit(images, 256)
    x = preprocess.to_units(images)
    assert x.min() >= 0
    assert preprocess.add_noise(x).max() < 1
    v = preprocess(x)[0].movedim(1, 0).flatten(1)
    assert_close(v.mean(1), torch.zeros(3), atol=1e-12, rtol=0)
    assert_close(v.std(1, correction=0), torch.ones(3))


@pytest.mark.parametrize("noise", NOISES)
def test_noise_has_the_law_asked_for(noise):
    images = np.full((1, 300, 300, 1), 7, dtype=np.uint8)
    preprocess = ImagePreprocess((300, 300, 1), 256, np.zeros(1), np.ones(1), noise, NOISES[noise])
    x = preprocess.to_units(images)
    eps = preprocess.add_noise(x, torch.Generator().manual_seed(0)) - x
    uniform = noise != "gaussian"
    variance = uniform / (12 * 256**2) + NOISES[noise] ** 2
    assert_close(eps.mean(), torch.tensor(uniform * 0.5 / 256), atol=5e-5, rtol=0)
    assert_close(eps.var(), torch.tensor(variance), rtol=0.03, atol=0)


def test_an_equalised_image_is_spread_as_a_logistic_variable():
    images = (every_level(256) / 255.0 * every_level(256)).astype(np.uint8)
    preprocess = ImagePreprocess.fit(images, 256, equalise=True)
    x = torch.linspace(0.0005, 0.9995, 1000)[None, None, :, None].expand(1, 3, -1, 1)
    v, _ = preprocess(x)
    assert (v.diff(dim=2) > 0).all()
    assert_close(preprocess.inverse(v), x)
    assert_close(
        preprocess.inverse(torch.tensor([-99.0, 99.0]).expand(1, 3, 1, 2))[0, 0, 0],
        torch.tensor([0.0, 1.0]),
    )
    spread = preprocess(preprocess.add_noise(preprocess.to_units(images)))[0].std()
    assert 0.85 < spread < 1.15  # 1, but for the share of the even histogram


def test_under_an_equalised_logistic_density_a_pixel_costs_what_its_level_says():
    """v logistic with deviation 1 has the probability 0.9 share + 0.1 / levels for each level."""
    images = (every_level(256) / 255.0 * every_level(256)).astype(np.uint8)[..., :1]
    preprocess = ImagePreprocess.fit(images, 256, equalise=True)
    x = preprocess.add_noise(preprocess.to_units(images))
    scale = math.sqrt(3) / math.pi
    law = scipy.stats.logistic(scale=scale)
    log_p = level_log_density(preprocess, x, lambda v: torch.as_tensor(law.logpdf(v)).flatten(1).sum(1))
    probability = 0.9 * np.bincount(images.ravel(), minlength=256) / images.size + 0.1 / 256
    expected = -np.log2(probability)[images].mean((1, 2, 3))
    np.testing.assert_allclose(bits_per_dim(log_p, preprocess.n_dims), expected, rtol=1e-10)


def test_fixed_noise_is_one_draw_for_all_and_gaussian_noise_is_left_out():
    images = every_level(256)
    uniform = ImagePreprocess.fit(images, 256)
    assert torch.equal(uniform.fixed_noise(3), uniform.fixed_noise(3))
    assert not torch.equal(uniform.fixed_noise(3), uniform.fixed_noise(4))
    assert uniform.fixed_noise().shape == (1, *uniform.shape)
    assert 0 < uniform.fixed_noise().min() < uniform.fixed_noise().max() < 1 / 256
    assert not ImagePreprocess.fit(images, 256, "gaussian", 0.01).fixed_noise().any()


def test_some_rows_are_fitted_as_if_they_were_all():
    images = np.random.default_rng(0).integers(0, 256, (60, 6, 5, 3), dtype=np.uint8)
    rows = np.random.default_rng(1).permutation(60)[:37]
    some = ImagePreprocess.fit(images, 256, equalise=True, rows=rows).state_dict()
    alone = ImagePreprocess.fit(images[rows], 256, equalise=True).state_dict()
    whole = ImagePreprocess.fit(images, 256, equalise=True).state_dict()
    for key, value in alone.items():
        assert torch.equal(some[key], value)
        assert not torch.equal(some[key], whole[key])


def test_padding_is_even_and_cropped_again():
    images = every_level(256, height=5, width=6)
    preprocess = ImagePreprocess.fit(images, 256, multiple=4)
    x = preprocess.to_units(images)
    assert x.shape[1:] == (3, 8, 8)
    assert torch.equal(x[:, :, 1:6, 1:7] * 256, torch.from_numpy(images).permute(0, 3, 1, 2).double())
    assert float(x[:, :, 0].max()) == float(x[:, :, :, 0].max()) == 0


def test_constant_images_are_not_blown_up():
    preprocess = ImagePreprocess.fit(np.full((4, 3, 3, 1), 9, dtype=np.uint8), 256)
    assert torch.equal(preprocess.std, torch.ones(1, 1, 1))


def test_constants_travel_with_the_state():
    images = every_level(256)
    fitted, blank = (
        ImagePreprocess.fit(images, 256),
        ImagePreprocess((5, 7, 3), 256, np.zeros(3), np.ones(3)),
    )
    blank.load_state_dict(fitted.state_dict())
    x = fitted.to_units(images)
    assert torch.equal(fitted(x)[0], blank(x)[0])


@given(seed=st.integers(0, 1000), n_rows=st.integers(2, 20), n_columns=st.integers(1, 6))
def test_tables_round_trip_with_autograds_log_det(seed, n_rows, n_columns):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n_rows, n_columns)) * 10 ** rng.uniform(-3, 3, n_columns) + rng.normal(
        size=n_columns
    )
    rows[:, 0] = 1e6  # a constant column
    preprocess = TablePreprocess.fit(rows)
    x = preprocess.to_units(rows)
    v, log_det = preprocess(x)
    assert_close(preprocess.inverse(v), x)
    assert v.abs().max() < 10
    expected = torch.linalg.slogdet(jacrev(lambda r: preprocess(r[None])[0][0])(x[0])).logabsdet
    assert_close(log_det[0], expected)
    assert np.array_equal(preprocess.to_raw(x), rows)


def test_tables_keep_their_digits_whatever_the_default():
    """Seconds since 1970: in float32 a thousand of them would become nine."""
    torch.set_default_dtype(torch.float32)
    try:
        rows = 1.6e9 + np.arange(1000.0)[:, None]
        preprocess = TablePreprocess.fit(rows)
        v = preprocess(preprocess.to_units(rows))[0]
    finally:
        torch.set_default_dtype(torch.float64)
    assert len(v.unique()) == 1000
    assert np.abs(preprocess.to_raw(preprocess.inverse(v)) - rows).max() < 1e-5


def test_a_memory_mapped_array_needs_no_writing(tmp_path):
    np.save(tmp_path / "x.npy", every_level(256))
    images = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert len(ImagePreprocess.fit(images, 256).to_units(images)) == len(images)


@pytest.mark.parametrize("levels", [256, 17])
def test_levels_come_back_for_any_mean_and_deviation_in_float32(levels):
    images = np.arange(levels, dtype=np.uint8).reshape(-1, 1, 1, 1)
    for mean, std in np.random.default_rng(0).uniform(0.05, 0.9, size=(200, 2)):
        preprocess = ImagePreprocess((1, 1, 1), levels, np.array([mean]), np.array([std])).float()
        x = preprocess.to_units(images)
        for u in (0.0, 2.0**-12, 0.5, 1 - 2.0**-12):
            back = preprocess.to_raw(preprocess.inverse(preprocess(x + u / levels)[0]))
            assert np.array_equal(back, images), (mean, std, u)


# Bits per dimension through the preprocessing, for densities that are known exactly


def level_log_density(preprocess, x, log_q_v):
    """log p in level units from a density log_q_v of the normalised image, (B,)."""
    v, log_det = preprocess(x)
    return log_q_v(v) + log_det + preprocess.log_scale


def uniform_pixels(n=64):
    rng = np.random.default_rng(1)
    images = rng.integers(256, size=(n, 4, 3, 3), dtype=np.uint8)
    return images, ImagePreprocess.fit(images, 256)


def test_uniform_pixels_cost_exactly_8_bits():
    """x is uniform on [0, 1), so the normalised image has the density prod(std) on its box."""
    images, preprocess = uniform_pixels()
    x = preprocess.add_noise(preprocess.to_units(images), torch.Generator().manual_seed(0))
    log_q_v = preprocess.std.log().sum() * 12
    log_p = level_log_density(preprocess, x, lambda v: log_q_v.expand(len(v)))
    np.testing.assert_allclose(bits_per_dim(log_p, preprocess.n_dims), 8, rtol=1e-12)


@pytest.mark.parametrize("sigma", [5e-4, 1e-3])
def test_uniform_pixels_with_gaussian_noise_cost_8_bits_up_to_the_neighbours(sigma):
    """The exact density of w / 256 + E: the plug-in value misses 8 by log2(1 + 2 exp(-1 / 2 s^2)) at most."""
    images, _ = uniform_pixels()
    preprocess = ImagePreprocess.fit(images, 256, "gaussian", sigma)
    levels = torch.arange(256) / 256

    def log_q_v(v):
        x = preprocess.inverse(v)
        log_q_x = Normal(levels, sigma).log_prob(x[..., None]).logsumexp(-1) - math.log(256)
        return (log_q_x + preprocess.std.log()).flatten(1).sum(1)

    log_p = level_log_density(preprocess, preprocess.to_units(images), log_q_v)
    bits = bits_per_dim_plugin(log_p, preprocess.n_dims, sigma * 256)
    miss = math.log2(1 + 2 * math.exp(-1 / (2 * (sigma * 256) ** 2)))
    assert np.all(bits <= 8 + 1e-9)
    assert np.all(bits >= 8 - miss - 1e-9)


def test_a_peaked_distribution_costs_its_entropy():
    """Level k with probability 2^-(k+1), the last two equal: 17 levels, as the digits have."""
    probability = np.append(2.0 ** -np.arange(1, 17), 2.0**-16)
    images = np.random.default_rng(2).choice(17, size=(400, 5, 4, 1), p=probability).astype(np.uint8)
    preprocess = ImagePreprocess.fit(images, 17)
    x = preprocess.add_noise(preprocess.to_units(images), torch.Generator().manual_seed(0))

    def log_q_v(v):  # constant within a level: P * 17 in pixel units
        level = (preprocess.inverse(v) * 17).floor().long()
        return (
            (torch.tensor(probability).log()[level] + math.log(17) + preprocess.std.log()).flatten(1).sum(1)
        )

    bits = bits_per_dim(level_log_density(preprocess, x, log_q_v), preprocess.n_dims)
    empirical = -np.log2(probability)[images].mean()
    assert bits.mean() == pytest.approx(empirical, rel=1e-12)
    assert bits.mean() == pytest.approx(-(probability * np.log2(probability)).sum(), abs=0.05)


MISTAKES = {
    "65536 levels": (lambda: ImagePreprocess((2, 2, 1), 65536, np.zeros(1), np.ones(1)), "8 bits"),
    "unknown noise": (lambda: ImagePreprocess((2, 2, 1), 256, np.zeros(1), np.ones(1), "loud"), "loud"),
    "Gaussian without sigma": (
        lambda: ImagePreprocess((2, 2, 1), 256, np.zeros(1), np.ones(1), "gaussian"),
        "sigma",
    ),
    "uniform with sigma": (
        lambda: ImagePreprocess((2, 2, 1), 256, np.zeros(1), np.ones(1), sigma=1.0),
        "sigma",
    ),
    "flat shape": (
        lambda: ImagePreprocess((2, 2), 256, np.zeros(1), np.ones(1)),
        "height, width, channels",
    ),
    "images of another size": (
        lambda: ImagePreprocess((2, 2, 1), 256, np.zeros(1), np.ones(1)).to_units(np.zeros((1, 3, 3, 1))),
        r"\(3, 3, 1\)",
    ),
    "rows of another length": (
        lambda: TablePreprocess(np.zeros(2), np.ones(2)).to_units(np.zeros((1, 3))),
        "N, 2",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_clear_sentence(mistake):
    act, pattern = MISTAKES[mistake]
    with pytest.raises(ValueError, match=pattern):
        act()


# Whitened tables


def of_classes(n=60, n_dims=4, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3
    mixing = rng.normal(size=(n_dims, n_dims))
    return rng.normal(size=(n, n_dims)) @ mixing + 5 * rng.normal(size=(3, n_dims))[y] + 100, y


def test_whitened_rows_scatter_alike_about_their_class_means():
    rows, y = of_classes(100_000)
    preprocess = TablePreprocess.fit(rows, y)
    v = preprocess(preprocess.to_units(rows))[0].numpy()
    centred = v - np.stack([v[y == k].mean(0) for k in range(3)])[y]
    assert_allclose(centred.T @ centred / (len(v) - 3), np.eye(4), atol=5e-3)


def test_whitening_has_an_exact_inverse_and_log_determinant():
    rows, y = of_classes()
    preprocess = TablePreprocess.fit(rows, y)
    x = preprocess.to_units(rows[:3])
    v, log_det = preprocess(x)
    assert_allclose(preprocess.inverse(v), x, rtol=1e-12)
    jacobian = jacrev(lambda row: preprocess(row[None])[0][0])(x[0])
    assert_allclose(log_det, torch.linalg.slogdet(jacobian)[1].expand(3))


@pytest.mark.parametrize(("n", "n_dims"), [(20, 3), (9, 30), (200, 8)])
def test_the_covariance_is_shrunk_as_scikit_learn_does(n, n_dims):
    centred = np.random.default_rng(0).normal(size=(n, n_dims)) * np.arange(1, n_dims + 1)
    assert_allclose(shrunk_covariance(centred, n), OAS(assume_centered=True).fit(centred).covariance_)


def test_columns_that_follow_from_others_or_never_vary_do_no_harm():
    rows, y = of_classes()
    rows = np.column_stack([rows, rows[:, 0], np.full(len(rows), 7.0), (y == 1).astype(float)])
    preprocess = TablePreprocess.fit(rows, y)
    x = preprocess.to_units(rows)
    v, log_det = preprocess(x)
    assert v.isfinite().all()
    assert log_det.isfinite().all()
    assert_allclose(preprocess.inverse(v), x, rtol=1e-6)


def test_a_mixture_on_whitened_rows_is_linear_discriminant_analysis():
    rows, y = of_classes(90)
    preprocess = TablePreprocess.fit(rows, y)
    v = preprocess(preprocess.to_units(rows))[0]
    mixture = GaussianMixture(3, 4, priors=[1, 1, 1])
    with torch.no_grad():
        for k in range(3):
            mixture.mu[k] = v[torch.from_numpy(y == k)].mean(0)
    mean, std = preprocess.mean.numpy(), preprocess.std.numpy()
    scaled = (rows - mean) / std
    means = np.stack([scaled[y == k].mean(0) for k in range(3)])
    covariance = shrunk_covariance(scaled - means[y], len(rows) - 3)
    log_q = np.stack([scipy.stats.multivariate_normal(m, covariance).logpdf(scaled) for m in means], 1)
    assert_allclose(mixture.log_q_y_given_z(v).detach(), log_softmax(log_q, axis=1), atol=1e-9)
