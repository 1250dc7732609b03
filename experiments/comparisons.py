"""Comparisons of several trained models: results/fashion-ensemble.json and results/fashion-generation.json."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ibinn.config import from_dict
from ibinn.run.results import Calibration, Interval, Intervals

T = TypeVar("T")


@dataclass(frozen=True)
class EnsembleOod:
    """One OoD set; auroc and fpr95 by score."""

    n: int
    auroc: dict[str, float]
    fpr95: dict[str, float]
    entropy_increase: float


@dataclass(frozen=True)
class Ensemble:
    """Several classifiers as one; the numbers have the names and units of `Results`."""

    n_members: int
    seeds: tuple[int, ...]
    train_seconds: float
    error: float | None
    nll_y: float | None
    brier: float | None
    calibration: Calibration
    ood: dict[str, EnsembleOod]
    intervals: Intervals


@dataclass(frozen=True)
class Generated:
    """Images that one model generates, and where its classes lie in the latent space.

    Shares are in percent, `intervals` theirs. offset: distance of the mean z of a class from its mu, averaged over
    the classes; offset_by_chance: what it would be if z of this spread were drawn around mu; mu_apart: mean
    distance of two mu.
    """

    gamma: float
    method: str
    samples_lifelike: float | None
    samples_of_their_class: float | None
    middles_lifelike: float | None
    offset: float
    offset_by_chance: float
    mu_apart: float
    sq_distance_per_dim: float
    intervals: dict[str, Interval]


@dataclass(frozen=True)
class Generation:
    """Images of several models by run: n of each kind, judged by the features of the ResNet `judge`."""

    n: int
    judge: str
    test_lifelike: float
    runs: dict[str, Generated]


def write_comparison(path: Path, comparison: Ensemble | Generation) -> None:
    path.write_text(json.dumps(dataclasses.asdict(comparison), indent=1) + "\n")


def read_comparison(kind: type[T], path: Path) -> T:
    return from_dict(kind, json.loads(path.read_text()), str(path))
