"""What the paper claims about training and shows at once, on digits and on toys; margins are generous."""

import itertools
import math

import numpy as np
import pytest
import torch
from helpers.trainings import few_digits, trained

from ibinn.data.dataset import Dataset, Part

pytestmark = pytest.mark.slow

PLAIN = {"patience": 0, "schedule": "steps"}
TABLE = {**PLAIN, "normalise": "standard"}  # the means start 5 apart, as in the paper


def table(name, x, y):
    return Dataset(name, Part(x, y), None, ("a", "b"), None, tuple(f"x{i}" for i in range(x.shape[1])))


def quadrants(n=2000, n_columns=16):
    """The class is the sign of x0 x1: it takes learning, and is worth little beside the density of 16 columns."""
    x = np.random.default_rng(0).normal(size=(n, n_columns))
    x[:, :2] += 0.5 * np.sign(x[:, :2])
    return table("quadrants", x, (x[:, 0] * x[:, 1] > 0).astype(np.int64))


def far_apart(n=1000, n_columns=8):
    """Two classes that nobody confuses."""
    x, y = np.random.default_rng(0).normal(size=(n, n_columns)), np.arange(n) % 2
    x[:, 0] += 6 * y
    return table("far apart", x, y)


def distance(run):
    """Mean distance of the class means; they start 5 apart."""
    return float(torch.pdist(run.pipeline.model.mixture.mu.detach()).mean())


def test_means_collapse_at_beta_one_and_stay_apart_at_gamma_one(tmp_path):
    settings = {"dataset": quadrants(), "epochs": 30, "batch_size": 100, "learning_rate": 5e-3, **TABLE}
    collapsed = trained(tmp_path / "a", method="class-nll", **settings)
    apart = trained(tmp_path / "b", gamma=1.0, **settings)
    assert distance(collapsed) < 1.0
    assert distance(apart) > 1.8
    assert apart.facts.validation.error < 15 < collapsed.facts.validation.error


def test_without_label_smoothing_means_keep_drifting_apart(tmp_path):
    settings = {"dataset": far_apart(), "gamma": 1.0, "batch_size": 50, "learning_rate": 1e-2, **TABLE}

    ends = {}
    for smoothing, epochs in itertools.product((0.0, 0.05), (10, 40)):
        folder = tmp_path / f"{smoothing}-{epochs}"
        ends[smoothing, epochs] = distance(trained(folder, smoothing=smoothing, epochs=epochs, **settings))
    assert ends[0.0, 40] > 1.15 * ends[0.0, 10]
    assert ends[0.05, 40] < 1.05 * ends[0.05, 10]
    assert ends[0.0, 40] > 1.3 * ends[0.05, 40]


def test_bits_per_dim_rise_with_gamma(tmp_path):
    def bits(gamma):
        run = trained(
            tmp_path / str(gamma), few_digits(700), gamma=gamma, epochs=15, learning_rate=5e-3, **PLAIN
        )
        return run.facts.validation.bits_per_dim

    densities = [bits(gamma) for gamma in (0.0, 1.0, math.inf)]
    assert densities[0] < densities[1] - 0.1
    assert densities[1] < densities[2] - 0.1


@pytest.mark.parametrize("gamma", [0.0, 1.0])
def test_learned_class_weights_find_the_shares_of_the_classes(gamma, tmp_path):
    """The weights of the mixture's components, which at gamma = 0 need not be the classes."""
    rng = np.random.default_rng(0)
    y = (rng.uniform(size=1500) < 0.2).astype(np.int64)
    x = rng.normal(size=(1500, 2))
    x[:, 0] += 8 * y
    run = trained(
        tmp_path / "run",
        table("unequal", x, y),
        gamma=gamma,
        priors="learned",
        epochs=30,
        learning_rate=1e-2,
        **PLAIN,
    )
    share = float(run.pipeline.model.mixture.log_w.detach().exp().min())
    assert share == pytest.approx(0.2, abs=0.06)
