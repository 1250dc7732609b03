"""What the configuration of a run takes from the data."""

import numpy as np
import pytest

from ibinn.data.dataset import Dataset, Part
from ibinn.models.methods import build_model
from ibinn.training.recipes import NETWORKS, OURS, configure


def images(side, n_channels, n_classes=10, width=None):
    shape = (2 * n_classes, side, width or side, n_channels)
    part = Part(np.zeros(shape, np.uint8), np.arange(2 * n_classes) % n_classes)
    return Dataset("images", part, None, tuple(map(str, range(n_classes))), 256)


def configured(dataset, size, method="ibinn"):
    return configure(
        dataset,
        len(dataset.train),
        size,
        method=method,
        gamma=1.0,
        seed=0,
        priors="data",
        precision="float32",
    )


# images, size -> widths of the summary, values that it shifts
SUMMARIES = {
    "photos": (images(32, 3), "base", (32, 64, 192, 256), 10),
    "garments": (images(28, 1), "small", (32, 64, 128), 10),
    "a hundred classes": (images(32, 3, 100), "base", (32, 64, 192, 256), 100),
    "more classes than room": (images(8, 3, 20), "base", (32, 64, 192), 16),
    "not square": (images(8, 3, width=32), "base", (32, 64, 192), 10),
    "padded to 8 x 8": (images(5, 1), "small", (32, 64, 128), 4),
    "padded to 4 x 4": (images(3, 1), "small", (32, 64), 1),
}


@pytest.mark.parametrize("case", SUMMARIES)
def test_the_summary_fits_the_images(case):
    dataset, size, widths, n_summary = SUMMARIES[case]
    config = configured(dataset, size)
    assert (config.network.summary, config.network.n_summary) == (widths, n_summary)
    assert config.recipe.optimizer == "muon"
    if max(dataset.shape) == 32:
        build_model(config, (dataset.shape[2], *dataset.shape[:2]), len(dataset.class_names))


def test_tables_have_no_summary_and_the_recipe_that_goes_with_it():
    rng = np.random.default_rng(0)
    table = Dataset("table", Part(rng.normal(size=(50, 4)), np.arange(50) % 2), None, ("a", "b"), None)
    for size in ("tiny", "small", "base"):
        config = configured(table, size)
        assert config.network.summary == ()
        assert (config.recipe.optimizer, config.recipe.mu_rate) == ("adamw", OURS.mu_rate)


def test_the_paper_and_the_digits_are_as_they_were():
    assert NETWORKS["tiny"].summary == NETWORKS["paper"].summary == ()
    paper = configured(images(32, 3), "paper")
    assert (paper.recipe.optimizer, paper.recipe.mu_rate) == ("sgd", 3.0)
