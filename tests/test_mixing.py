"""ActNorm's data-dependent start; what makes a mix orthogonal and reproducible."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from ibinn.flows.mixing import ActNorm, AffineMix, Permute


@pytest.mark.parametrize("shape", [(64, 3), (16, 3, 4, 5)], ids=["vectors", "images"])
def test_data_dependent_start_gives_mean_0_and_the_asked_deviation(shape):
    norm = ActNorm(3, scale=0.5, data_init=True)
    x = 3 * torch.randn(shape) + torch.tensor([1.0, -2.0, 5.0]).view(3, *[1] * (len(shape) - 2))
    z = norm(x)[0].movedim(1, 0).flatten(1)
    assert_close(z.mean(1), torch.zeros(3))
    assert_close(z.std(1, correction=0), torch.full((3,), 0.5))


def test_start_happens_once_in_training_mode_only_and_survives_a_checkpoint():
    norm = ActNorm(2, data_init=True).eval()
    x = 4 + 2 * torch.randn(32, 2)
    assert torch.equal(norm(x)[0], x)
    first = norm.train()(x)[0]
    assert not torch.equal(first, x)
    shifted = norm(x + 100)[0]  # a second batch does not start it again
    assert_close(shifted.mean(0), 100 * norm.log_scale.exp())
    loaded = ActNorm(2, data_init=True)
    loaded.load_state_dict(norm.state_dict())
    assert torch.equal(loaded.train()(x)[0], first)


@pytest.mark.parametrize("value", [0.0, 7.0, -1e6])
def test_a_constant_channel_is_shifted_to_0_and_not_blown_up(value):
    norm = ActNorm(2, data_init=True)
    x = torch.stack([torch.full((16,), value), torch.randn(16)], dim=1)
    z, log_det = norm(x)
    assert_close(z[:, 0], torch.zeros(16), atol=1e-6, rtol=0)
    assert norm.log_scale[0] == 0
    assert_close(log_det, norm.log_scale[1].expand(16))
    assert_close(norm.inverse(z), x)


def test_a_single_row_starts_without_nan():
    norm = ActNorm(2, data_init=True)
    assert norm(torch.randn(1, 2))[0].isfinite().all()


def test_fixed_scale_has_no_parameters_but_is_saved():
    norm = ActNorm(3, scale=0.75, learned=False)
    assert not list(norm.parameters())
    assert_close(norm.state_dict()["log_scale"].exp(), torch.full((3,), 0.75))


@given(n=st.integers(1, 40), seed=st.integers(0, 2**31))
def test_rotation_is_orthogonal_and_from_its_seed(n, seed):
    rotation = AffineMix(n, seed, learned=False).rotation
    assert_close(rotation @ rotation.T, torch.eye(n))
    assert torch.equal(rotation, AffineMix(n, seed, learned=False).rotation)
    if n > 1:
        assert not torch.equal(rotation, AffineMix(n, seed + 1, learned=False).rotation)


def test_rotations_are_uniform():
    """Haar: every entry has mean 0 and variance 1/n. Without the sign correction the diagonal does not."""
    draws = torch.stack([AffineMix(3, seed, learned=False).rotation for seed in range(4000)])
    assert_close(draws.mean(0), torch.zeros(3, 3), atol=0.04, rtol=0)
    assert_close(draws.var(0), torch.full((3, 3), 1 / 3), atol=0.03, rtol=0)


@pytest.mark.parametrize("shape", [(3,), (3, 4, 5)])
def test_a_mix_that_starts_from_data_makes_it_white(shape):
    torch.manual_seed(0)
    x = torch.einsum("ij,bj...->bi...", torch.eye(3) + 0.3, torch.randn(500, *shape)) + 7
    layer = AffineMix(3, scale=0.5)
    layer.start_from(x)
    z, log_det = layer(x)
    pixels = z.movedim(1, 0).flatten(1)
    assert_close(torch.cov(pixels, correction=0), 0.25 * torch.eye(3), atol=2e-4, rtol=2e-4)
    assert_close(pixels.mean(1), torch.zeros(3), atol=1e-5, rtol=0)
    assert_close(layer.rotation @ layer.rotation.T, torch.eye(3))
    assert_close(layer.inverse(z), x, atol=1e-4, rtol=1e-5)
    # det cov(z) = det cov(x) exp(2 log|det|), the log-determinant of one pixel
    per_pixel = log_det[0] / (z[0].numel() / 3)
    logdet = [torch.logdet(torch.cov(v.movedim(1, 0).flatten(1))) for v in (x, z)]
    assert_close(logdet[1] - logdet[0], 2 * per_pixel, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("n", [1, 2])
def test_channels_that_do_not_vary_are_not_blown_up(n):
    layer = AffineMix(3)
    x = torch.tensor([0.0, 5.0, 1.0]).expand(n, 3).clone()
    x[:, 2] += torch.arange(n)  # with one row nothing varies
    layer.start_from(x)
    z, log_det = layer(x)
    assert z.abs().max() < 100
    assert log_det.isfinite().all()


def test_drawing_a_mix_leaves_torchs_generator_alone():
    torch.manual_seed(1)
    expected = torch.randn(3)
    torch.manual_seed(1)
    AffineMix(5, seed=3, learned=False), Permute(5, seed=3)
    assert torch.equal(torch.randn(3), expected)


@given(n=st.integers(1, 40), seed=st.integers(0, 2**31))
def test_permutation_keeps_the_values(n, seed):
    x = torch.arange(n)[None].double()
    z = Permute(n, seed)(x)[0]
    assert torch.equal(z.sort(1).values, x)
