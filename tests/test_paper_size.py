"""--size paper on CIFAR-10: ten real steps. With the real images where they are at hand, else with random ones."""

from dataclasses import replace

import numpy as np
import pytest

from ibinn import paper_flow
from ibinn.data.dataset import Dataset, Part
from ibinn.data.known import find_known, load
from ibinn.data.splits import split
from ibinn.evaluation import evaluate
from ibinn.models.methods import build_model
from ibinn.training.options import TrainingOptions
from ibinn.training.progress import TrainingObserver
from ibinn.training.recipes import RECIPES, configure
from ibinn.training.trainer import train

pytestmark = pytest.mark.slow

SETTINGS = {"method": "ibinn", "gamma": 1.0, "seed": 0, "priors": "data", "precision": "float32"}
N_STEPS, BATCH = 10, 32


def cifar10(n, n_test):
    if find_known("cifar10"):
        cifar = load("cifar10")
        return Dataset(
            "cifar10",
            Part(cifar.train.x[:n], cifar.train.y[:n]),
            Part(cifar.test.x[:n_test], cifar.test.y[:n_test]),
            cifar.class_names,
            256,
        )
    rng = np.random.default_rng(0)
    images = rng.integers(256, size=(n + n_test, 32, 32, 3), dtype=np.uint8)
    y = np.arange(n + n_test) % 10
    parts = Part(images[:n], y[:n]), Part(images[n:], y[n:])
    return Dataset("cifar10", *parts, tuple("0123456789"), 256)


def test_the_papers_network_makes_ten_steps_and_evaluates(tmp_path):
    dataset = cifar10(n=N_STEPS * BATCH * 10 // 8, n_test=BATCH)
    splits = split(dataset, 0)
    arguments = configure(dataset, len(splits.train), "paper", **SETTINGS)
    config = replace(arguments, recipe=replace(arguments.recipe, epochs=1, batch_size=BATCH))
    observer = TrainingObserver()
    run = train(config, dataset, splits, TrainingOptions(tmp_path / "run"), observer)
    assert run.facts.epochs == 1
    assert run.facts.n_skipped == 0
    assert len(splits.train) // BATCH == N_STEPS
    assert np.isfinite(observer.history[0].loss_x)
    results, _ = evaluate(run, dataset)
    assert np.isfinite(results.bits_per_dim)
    assert 0 <= results.error <= 100
    # The authors' network has 11.2 million parameters; ours counts the means and biases that it needs.
    assert results.n_parameters == pytest.approx(11.2e6, rel=0.02)
    print(f"\n{results.n_parameters:,} parameters, {observer.history[0].seconds:.0f} s")


def test_the_papers_recipe_is_the_papers():
    recipe = RECIPES["paper"]
    assert (recipe.optimizer, recipe.learning_rate, recipe.batch_size, recipe.epochs) == (
        "sgd",
        0.07,
        128,
        450,
    )
    assert (recipe.noise, recipe.sigma, recipe.smoothing, recipe.clip) == ("gaussian", 1e-3, 0.05, 8.0)
    assert recipe.normalise == "standard"
    config = configure(cifar10(200, 10), 10**5, "paper", **SETTINGS)
    model = build_model(config, (3, 32, 32), 10)
    shapes = [tuple(p.shape) for p in model.flow.parameters()]
    assert shapes == [tuple(p.shape) for p in paper_flow().parameters()]
