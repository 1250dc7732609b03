"""Trained runs that several test files explain: images, padded images, a table, a softmax classifier."""

import dataclasses

import numpy as np

from helpers.trainings import few_digits, trained
from ibinn.data.dataset import Dataset, Part


def cropped(dataset):
    """Images of 7 x 6 pixels, which the network must pad."""
    return dataclasses.replace(dataset, train=Part(dataset.train.x[:, :7, 1:7], dataset.train.y))


def three_columns(n=400, seed=0):
    """Three classes along a bent line; the last column is the first, a thousand times larger, and some noise."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3
    x = np.stack([y + 0.3 * rng.normal(size=n), (y - 1.0) ** 2 + 0.3 * rng.normal(size=n)], 1)
    x = np.column_stack([x, 1000 * (x[:, 0] + 0.2 * rng.normal(size=n))])
    return Dataset("bent", Part(x, y), None, ("low", "mid", "high"), None, ("u", "v", "w"))


DIGITS = few_digits(900)
BENT = three_columns()
DATA = {"digits": DIGITS, "padded": cropped(DIGITS), "bent": BENT, "resnet": DIGITS}
SETTINGS = {
    "digits": {"epochs": 25},
    "padded": {"epochs": 8},
    "bent": {"epochs": 25},
    "resnet": {"epochs": 3, "method": "resnet"},
}
WITH_DENSITY = ("digits", "padded", "bent")


def train_example(name, folder):
    return trained(folder, DATA[name], **SETTINGS[name])
