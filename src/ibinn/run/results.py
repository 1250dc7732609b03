"""What an evaluation found: results.json of a run folder.

Shares are in percent, entropies and log-likelihoods in nats. None where a method has no such number.
"""

import dataclasses
import json
import math
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from ibinn._system import write_whole
from ibinn.config import GAMMA_METHODS
from ibinn.metrics.calibration import MIN_COUNT
from ibinn.run import RESULTS
from ibinn.run.trained import RunError

Interval = tuple[float | None, float | None]


@dataclasses.dataclass(frozen=True)
class Calibration:
    """In percent. floor: mean and 95th percentile of what a perfectly calibrated model would show."""

    ece: float | None = None
    mce: float | None = None
    ice: float | None = None
    geo_mean: float | None = None
    top_label_ece: float | None = None
    floor: dict[str, dict[str, float | None]] = dataclasses.field(default_factory=dict)
    bins: list[dict[str, float | int | None]] = dataclasses.field(default_factory=list)
    min_count: int = MIN_COUNT
    n_left_out: int = 0


@dataclasses.dataclass(frozen=True)
class Scaled:
    """What changes when the answers are scaled by the temperature that fits the validation split."""

    temperature: float
    nll_y: float | None = None
    brier: float | None = None
    calibration: Calibration = dataclasses.field(default_factory=Calibration)


@dataclasses.dataclass(frozen=True)
class Outliers:
    """One set of strange inputs; auroc, fpr95 and detected_at_alpha by score. bh: see `false_discoveries`."""

    n: int
    entropy_increase: float | None
    auroc: dict[str, float]
    fpr95: dict[str, float]
    detected_at_alpha: dict[str, float | None]
    bh: dict[str, float | None]


@dataclasses.dataclass(frozen=True)
class Results:
    """What results.json holds. gamma is the one in the loss, "inf" for only L_Y; score names the headline score.

    n_without_answer counts the test inputs to which the model gave no numbers; they are errors, and not in the
    calibration. intervals: 95 % bootstrap intervals over the test inputs (and the strange ones), by the path to a
    number.
    """

    method: str
    gamma: float | str | None
    dataset: str
    size: str
    seed: int
    classes: list[str]
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
    scaled: Scaled
    score: str
    alpha: float
    false_alarm_rate: dict[str, float | None]
    false_alarm_rate_by_class: dict[str, float | None]
    ood: dict[str, Outliers]
    ood_left_out: dict[str, str]
    information: dict[str, float | None]
    throughput: float
    intervals: dict[str, Interval]


def finite_or_none(value: float | np.floating[Any] | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def write_results(folder: Path, results: Results) -> None:
    write_whole(folder / RESULTS, json.dumps(dataclasses.asdict(results), indent=2, allow_nan=False) + "\n")


def read_results(folder: Path) -> dict[str, Any]:
    """The content of a run's results.json; RunError where there is none, or one of another version."""
    path = folder / RESULTS
    if not path.is_file():
        raise RunError(f"{folder} holds no {RESULTS}; make it with: ibinn evaluate {quote(str(folder))}")
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RunError(
            f"{path} is damaged; make it again with: ibinn evaluate {quote(str(folder))}"
        ) from error
    if not isinstance(results, dict) or not has_fields(results):
        raise RunError(
            f"{path} is of another version; make it again with: ibinn evaluate {quote(str(folder))}"
        )
    return results


def has_fields(results: dict[str, Any]) -> bool:
    """Whether results that were read have the fields that reports need, each of its kind."""
    if not {field.name for field in dataclasses.fields(Results)} <= results.keys():
        return False
    number, mapping = (int, float, type(None)), (dict,)
    kinds: dict[str, tuple[type, ...]] = {
        **dict.fromkeys(
            ("error", "nll_y", "bits_per_dim", "bits_per_dim_paper_convention", "sigma", "levels"), number
        ),
        **dict.fromkeys(("ood", "information", "intervals", "false_alarm_rate", "calibration"), mapping),
        **dict.fromkeys(("method", "dataset", "size", "score"), (str,)),
        "classes": (list,),
        "seed": (int,),
    }
    known_gamma = results["gamma"] in (None, "inf") or isinstance(results["gamma"], int | float)
    swept = results["method"] not in GAMMA_METHODS or results["gamma"] is not None
    return known_gamma and swept and all(isinstance(results[name], kind) for name, kind in kinds.items())
