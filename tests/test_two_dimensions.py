"""A trained flow in the plane against the truth; the example's figures."""

import os

import pytest
import torch
import two_dimensions
from theory_figures import draw_loss_landscapes, draw_noise_amplification
from torch.testing import assert_close

from ibinn.report.style import save_figure

pytestmark = pytest.mark.slow

SOAKS = os.environ.get("HYPOTHESIS_PROFILE") == "soak"
STEPS = 2000 if SOAKS else 1000


@pytest.fixture(scope="module")
def single_precision():
    """The example as its users run it."""
    torch.set_default_dtype(torch.float32)
    yield
    torch.set_default_dtype(torch.float64)


@pytest.fixture(scope="module")
def bottleneck(single_precision):
    return two_dimensions.train("gamma = 1", two_dimensions.information_bottleneck(gamma=1.0), STEPS)


def test_density_integrates_to_1(bottleneck):
    """The spacing of 0.005 is far below any feature of the data, and outside [-5, 5]^2 is nothing."""
    side = torch.arange(-5, 5, 0.005)
    total = 0.0
    with torch.no_grad():
        for row in side.split(50):
            total += (
                float(bottleneck.log_q_x(torch.cartesian_prod(row, side)).double().exp().sum()) * 0.005**2
            )
    assert total == pytest.approx(1, abs=1e-3)


def test_posterior_is_close_to_bayes(bottleneck):
    assert two_dimensions.distance_to_bayes(bottleneck) < 0.03


def test_samples_come_from_the_classes_they_were_asked_for(bottleneck):
    x, y = bottleneck.sample(4000)
    agreement = two_dimensions.true_posterior(x).gather(1, y[:, None]).mean()
    real, label = two_dimensions.draw_data(4000)
    expected = two_dimensions.true_posterior(real).gather(1, label[:, None]).mean()
    assert_close(agreement, expected, atol=0.05, rtol=0)


def test_the_true_posterior_is_calibrated(single_precision):
    """Among points with p(y=1|x) about 0.3, 30 % are of class 1."""
    x, y = two_dimensions.draw_data(200_000)
    p = two_dimensions.true_posterior(x)[:, 1]
    near = (p > 0.28) & (p < 0.32)
    assert_close(y[near].float().mean(), p[near].mean(), atol=0.03, rtol=0)


def test_class_nll_does_not_pull_on_the_other_mean_and_loss_y_repels_it(single_precision):
    """What the figure of the loss landscapes shows, in numbers."""
    mixture = two_dimensions.GaussianMixture(2, 2, distance=3.0)
    only_x, only_y, nll = two_dimensions.loss_landscapes(mixture)
    towards = (only_x.z - only_x.mu[1]) / (only_x.z - only_x.mu[1]).norm()
    assert only_x.forces[2] @ towards > 0.01  # attraction by both means
    assert only_y.forces[2] @ towards < -0.01  # repulsion
    assert nll.forces[2].norm() == 0
    for landscape in (only_x, only_y, nll):
        assert landscape.forces[1] @ (landscape.z - landscape.mu[0]) > 0  # the own mean is drawn near


def test_figures_are_written_whole(bottleneck, tmp_path):
    spaces = two_dimensions.noise_spaces({"latent": bottleneck}, sigma=0.1)
    save_figure(draw_noise_amplification(spaces), tmp_path / "figures" / "noise")
    landscapes = two_dimensions.loss_landscapes(two_dimensions.GaussianMixture(2, 2))
    save_figure(draw_loss_landscapes(landscapes), tmp_path / "figures" / "losses")
    files = {path.name: path.read_bytes() for path in (tmp_path / "figures").iterdir()}
    assert set(files) == {"noise.png", "noise.pdf", "losses.png", "losses.pdf"}
    for name, content in files.items():
        assert content.startswith(b"\x89PNG" if name.endswith("png") else b"%PDF")


def test_the_points_of_the_figure_are_distinct_and_apart(single_precision):
    x, _ = two_dimensions.draw_data(500)
    rows = two_dimensions.spread_out(x, 8)
    assert torch.pdist(x[rows]).min() > 0.3
