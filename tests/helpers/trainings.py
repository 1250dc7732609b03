"""Small trainings for the tests: digits, or a few of them, with a network of a few blocks."""

import dataclasses

import numpy as np

from ibinn.config import Network, Recipe
from ibinn.data.dataset import Dataset, Part
from ibinn.data.known import load
from ibinn.data.splits import split
from ibinn.training.options import TrainingOptions
from ibinn.training.progress import TrainingObserver
from ibinn.training.recipes import configure
from ibinn.training.trainer import train

FEW_BLOCKS = {
    "blocks": (1, 1),
    "widths": (8, 8),
    "dropouts": (0.0, 0.2),
    "dense_blocks": 1,
    "dense_width": 16,
}


class RecordingObserver(TrainingObserver):
    """Collects the notes, warnings included."""

    def __init__(self):
        super().__init__()
        self.notes = []

    def note(self, text):
        self.notes.append(text)


def few_digits(n=400):
    digits = load("digits")
    return dataclasses.replace(digits, train=Part(digits.train.x[:n], digits.train.y[:n]))


def two_moons(n=300, seed=0):
    """A table of two columns with two classes that a straight line does not separate."""
    rng = np.random.default_rng(seed)
    angle, y = rng.uniform(0, np.pi, n), np.arange(n) % 2
    x = np.stack([np.cos(angle) + y, np.sin(angle) * (1 - 2 * y) + 0.5 * y], 1)
    return Dataset("moons", Part(x + 0.1 * rng.normal(size=x.shape), y), None, ("a", "b"), None, ("u", "v"))


def small_config(dataset, method="ibinn", gamma=1.0, seed=0, network=None, priors="data", **recipe):
    n_train = len(split(dataset, seed).train)
    config = configure(
        dataset, n_train, "tiny", method=method, gamma=gamma, seed=seed, priors=priors, precision="float32"
    )
    assert {*recipe} <= {field.name for field in dataclasses.fields(Recipe)}
    assert {*(network or {})} <= {field.name for field in dataclasses.fields(Network)}
    shape = FEW_BLOCKS if dataset.is_images else {"dense_blocks": 2, "dense_width": 16}
    return dataclasses.replace(
        config,
        network=dataclasses.replace(config.network, **(shape if network is None else network)),
        recipe=dataclasses.replace(config.recipe, **recipe),
    )


def trained(folder, dataset=None, resume=False, constant_memory=False, **settings):
    dataset = dataset or few_digits()
    config = small_config(dataset, **settings)
    options = TrainingOptions(folder, resume=resume, constant_memory=constant_memory)
    return train(config, dataset, split(dataset, config.seed), options)
