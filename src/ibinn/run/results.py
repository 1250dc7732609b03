"""The numbers of an evaluation: results.json of a run folder, written and read back as one type.

Shares are in percent, entropies and log-likelihoods in nats. None where a method has no such number.
"""

import dataclasses
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any

from ibinn._system import write_atomically
from ibinn.config import ConfigError, Method, Size, from_dict
from ibinn.metrics.calibration import MIN_COUNT
from ibinn.run import RESULTS, RunError

Interval = tuple[float | None, float | None]


@dataclass(frozen=True)
class Floor:
    """Mean and 95th percentile of a calibration error that a perfectly calibrated model would show, in percent."""

    mean: float | None
    p95: float | None


@dataclass(frozen=True)
class Bin:
    """One bin of the calibration curve. Shares are from 0 to 1, and None in a bin with too few pairs.

    share is the share of pairs whose class is the true one, share_low to share_high its bootstrap interval, and
    floor_low to floor_high where a perfectly calibrated model would lie.
    """

    low: float
    high: float
    n: int
    share: float | None
    share_low: float | None
    share_high: float | None
    floor_low: float | None
    floor_high: float | None


@dataclass(frozen=True)
class Calibration:
    """Calibration errors in percent, and their floors by name."""

    ece: float | None = None
    mce: float | None = None
    ice: float | None = None
    geo_mean: float | None = None
    top_label_ece: float | None = None
    floor: dict[str, Floor] = field(default_factory=dict)
    bins: tuple[Bin, ...] = ()
    min_count: int = MIN_COUNT
    n_left_out: int = 0


@dataclass(frozen=True)
class Rescaled:
    """What changes with the temperature of the model, which is fitted on the validation split; 1 if none helps.

    These are the numbers of the probabilities that `predict_proba` returns.
    """

    temperature: float
    nll_y: float | None = None
    brier: float | None = None
    calibration: Calibration = field(default_factory=Calibration)


@dataclass(frozen=True)
class Averaged:
    """Probabilities averaged over views of each input: draws of the noise, mirrored ones too if training had them.

    error is in percent, nll_y in nats; the probabilities of each view are calibrated.
    """

    n_views: int
    error: float
    nll_y: float | None


@dataclass(frozen=True)
class FalseDiscoveries:
    """Benjamini and Hochberg over test and OoD inputs together, in percent.

    fdr is the target rate, found the share of OoD inputs flagged, false the share of the flagged inputs that are
    not OoD.
    """

    fdr: float
    found: float
    false: float | None


@dataclass(frozen=True)
class OodResult:
    """One OoD set against the test set; auroc, fpr95 and detected_at_alpha by score."""

    n: int
    entropy_increase: float | None
    auroc: dict[str, float]
    fpr95: dict[str, float]
    detected_at_alpha: dict[str, float | None]
    bh: FalseDiscoveries


@dataclass(frozen=True)
class Information:
    """CI(X, Z_E) and CI(Y, Z_E), in nats."""

    ci_xz: float | None = None
    ci_yz: float | None = None


@dataclass(frozen=True)
class RescaledIntervals:
    """Intervals of the numbers of `Rescaled`."""

    nll_y: Interval | None = None
    brier: Interval | None = None
    calibration: dict[str, Interval] = field(default_factory=dict)


@dataclass(frozen=True)
class OodIntervals:
    """Intervals of the numbers of `OodResult`."""

    entropy_increase: Interval | None = None
    auroc: dict[str, Interval] = field(default_factory=dict)
    fpr95: dict[str, Interval] = field(default_factory=dict)
    detected_at_alpha: dict[str, Interval] = field(default_factory=dict)


@dataclass(frozen=True)
class Intervals:
    """95 % bootstrap intervals over the inputs, each under the name that its number has in `Results`."""

    error: Interval | None = None
    nll_y: Interval | None = None
    brier: Interval | None = None
    entropy: Interval | None = None
    loss_x: Interval | None = None
    bits_per_dim: Interval | None = None
    bits_per_dim_paper_convention: Interval | None = None
    information: dict[str, Interval] = field(default_factory=dict)
    calibration: dict[str, Interval] = field(default_factory=dict)
    scaled: RescaledIntervals = field(default_factory=RescaledIntervals)
    false_alarm_rate: dict[str, Interval] = field(default_factory=dict)
    false_alarm_rate_by_class: dict[str, Interval] = field(default_factory=dict)
    ood: dict[str, OodIntervals] = field(default_factory=dict)


@dataclass(frozen=True)
class Results:
    """All numbers of one run.

    Attributes
    ----------
    gamma : float, optional
        As it stands in the loss: 1 / D for class-NLL, infinity for only L_Y, None for plain classifiers.
    levels : int, optional
        Number of grey levels, None for tables.
    noise, sigma : optional
        Those of the density, None without one.
    error : float
        Share of the test set that is classified wrongly. Inputs without finite numbers count as errors.
    nll_y, brier, entropy : float, optional
        Means over the test set of -log q(y|x), the Brier score and the entropy of q(y|x), without the temperature.
    loss_x, bits_per_dim, bits_per_dim_paper_convention : float, optional
        The density of the test set: nats and bits per dimension.
    n_draws : int
        Number of draws of the noise that bits/dim is a mean over; 0 without a density.
    n_without_answer : int
        Number of test inputs whose numbers are not finite.
    calibration, scaled : Calibration, Rescaled
        Calibration of q(y|x), and what changes with the temperature.
    averaged : Averaged, optional
        Error and log-loss of probabilities averaged over several views of each input, if there are several.
    score : str
        The headline OoD score.
    false_alarm_rate : dict
        Share of the test set with p <= alpha, by score.
    false_alarm_rate_by_class : dict
        The same for class-conditional p-values of the headline score, by class.
    ood : dict of OodResult
        The OoD sets by name.
    ood_left_out : dict
        OoD sets that were left out, with the reason.
    information : Information
        The two terms of the information bottleneck.
    throughput : float
        Inputs per second.
    intervals : Intervals
        95 % bootstrap intervals of the numbers.
    """

    method: Method
    gamma: float | None
    dataset: str
    size: Size
    seed: int
    classes: tuple[str, ...]
    levels: int | None
    n_dims: int
    n_parameters: int
    n_train: int
    n_validation: int
    n_calibration: int
    n_test: int
    train_seconds: float
    converged: bool
    noise: str | None
    sigma: float | None
    error: float
    nll_y: float | None
    brier: float | None
    entropy: float | None
    loss_x: float | None
    bits_per_dim: float | None
    bits_per_dim_paper_convention: float | None
    n_draws: int
    n_without_answer: int
    calibration: Calibration
    scaled: Rescaled
    score: str
    alpha: float
    false_alarm_rate: dict[str, float | None]
    false_alarm_rate_by_class: dict[str, float | None]
    ood: dict[str, OodResult]
    ood_left_out: dict[str, str]
    information: Information
    throughput: float
    averaged: Averaged | None = None
    intervals: Intervals = field(default_factory=Intervals)

    @property
    def has_density(self) -> bool:
        """Whether the model has a density."""
        return self.n_draws > 0


def to_json(results: Results) -> dict[str, Any]:
    """Plain values for `json.dumps`. JSON has no infinity, so gamma = inf is written as text."""
    values = dataclasses.asdict(results)
    return values | {"gamma": "inf" if results.gamma == math.inf else results.gamma}


def from_json(values: Any, where: str) -> Results:
    """Results from parsed JSON; ConfigError for anything missing, unknown or of another type."""
    if not isinstance(values, dict):
        raise ConfigError(f"{where} holds no results")
    return from_dict(Results, values | ({"gamma": math.inf} if values.get("gamma") == "inf" else {}), where)


def write_results(folder: Path, results: Results) -> None:
    write_atomically(folder / RESULTS, json.dumps(to_json(results), indent=2, allow_nan=False) + "\n")


def read_results(folder: Path) -> Results:
    """The results of a run; RunError if there are none, or if they have another format."""
    path, again = folder / RESULTS, f"make it again with: ibinn evaluate {quote(str(folder))}"
    if not path.is_file():
        raise RunError(f"{folder} holds no {RESULTS}; make it with: ibinn evaluate {quote(str(folder))}")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RunError(f"{path} is damaged; {again}") from error
    try:
        return from_json(values, RESULTS)
    except ConfigError as error:
        raise RunError(f"{path} is of another version ({error}); {again}") from error
