"""The runs in results/, and estimates from them."""

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from statistics import fmean, stdev

from fill import DOCS
from scipy import stats

from ibinn.config import Method
from ibinn.formats import decimal
from ibinn.report.quantities import GEO_MEAN, NLL_Y, Quantity, average, entropy_increase, ood_auroc
from ibinn.report.text import METHOD_NAMES
from ibinn.run.results import Results, read_results

sys.path.append(str(DOCS.parent / "experiments"))
from comparisons import Ensemble

RESULTS = DOCS.parent / "results"
EXPERIMENTS = ("fashion-table", "fashion-no-ramp", "fashion-gamma", "cifar10-base", "sigma-8x8")
MISSING = "Not trained yet."
MODELS: dict[str, tuple[Method, float | None]] = {  # of the Fashion-MNIST table: method and gamma
    "IB-INN, γ = 1": ("ibinn", 1.0),
    "IB-INN, γ = 3.7": ("ibinn", 3.7),
    "IB-INN, only L_X (γ = 0)": ("ibinn", 0.0),
    "IB-INN, only L_Y (γ → ∞)": ("ibinn", math.inf),
    METHOD_NAMES["class-nll"]: ("class-nll", None),
    METHOD_NAMES["class-nll-fixed"]: ("class-nll-fixed", None),
    "VIB, γ = 1": ("vib", 1.0),
    METHOD_NAMES["resnet"]: ("resnet", None),
    METHOD_NAMES["irevnet"]: ("irevnet", None),
}
ENTROPY_INCREASE = average(entropy_increase)
FLOOR = replace(
    GEO_MEAN,
    name="calibration.floor.geo_mean.mean",
    value=lambda r: r.calibration.floor["geo_mean"].mean if "geo_mean" in r.calibration.floor else None,
    interval=lambda _: None,
)
Runs = Sequence[Results | Ensemble]  # an ensemble has the numbers that the tables ask it for


def mean_auroc(score: str) -> Quantity:
    """Over the OoD sets except controls."""
    return average(partial(ood_auroc, score=score))


def rescaled(quantity: Quantity) -> Quantity:
    """The same with a temperature."""
    intervals = {
        NLL_Y.name: lambda i: i.scaled.nll_y,
        GEO_MEAN.name: lambda i: i.scaled.calibration.get("geo_mean"),
    }
    return replace(
        quantity,
        name=f"scaled.{quantity.name}",
        value=lambda r: quantity.value(r.scaled),  # type: ignore[arg-type]  # it has these numbers too
        interval=intervals.get(quantity.name, lambda _: None),
    )


def flagged(ood_set: str, score: str) -> Quantity:
    """The share of an OoD set with p <= alpha."""
    return Quantity(
        f"ood.{ood_set}.detected_at_alpha.{score}",
        f"flagged: {ood_set}",
        "%",
        lambda r: r.ood[ood_set].detected_at_alpha.get(score),
        lambda i: i.ood[ood_set].detected_at_alpha.get(score),
    )


def false_alarms(score: str) -> Quantity:
    """The share of the test set with p <= alpha."""
    return Quantity(
        f"false_alarm_rate.{score}",
        "false alarms",
        "%",
        lambda r: r.false_alarm_rate.get(score),
        lambda i: i.false_alarm_rate.get(score),
    )


@dataclass(frozen=True)
class Estimate:
    """A mean over n runs and its 95 % interval."""

    mean: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.mean:z.2f} ({self.low:z.2f} to {self.high:z.2f})"

    def signed(self) -> str:
        """Of a difference."""
        return f"{self.mean:+.2f} ({self.low:+.2f} to {self.high:+.2f})"


def runs_of(experiment: str) -> list[Results]:
    """All published runs of an experiment."""
    files = sorted((RESULTS / experiment).glob("*/results.json"))
    return [read_once(file.parent, file.stat().st_mtime_ns) for file in files]


@cache
def read_once(folder: Path, _modified: int) -> Results:
    return read_results(folder)


def of(runs: Iterable[Results], method: Method, gamma: float | None = None) -> list[Results]:
    """The runs of a method, and of a gamma if one is given, by seed."""
    some = [run for run in runs if run.method == method and gamma in (None, run.gamma)]
    return sorted(some, key=lambda run: (str(run.gamma), run.seed))


def estimate(runs: Sequence[Results], quantity: Quantity, reach: float = 0.0) -> Estimate | None:
    """The mean over runs; reach is how far one training may lie from the average of its method.

    The interval covers another training and another test set. Seeds share the test set, so more of them narrow
    only the first part. None if a run lacks the number.
    """
    values = [quantity.value(run) for run in runs]
    numbers = [value for value in values if value is not None and math.isfinite(value)]
    spans = [quantity.interval(run.intervals) or (None, None) for run in runs]
    lows = [low for low, _ in spans if low is not None]
    highs = [high for _, high in spans if high is not None]
    if not numbers or min(map(len, (numbers, lows, highs))) < len(values):
        return None
    low, high = fmean(lows), fmean(highs)
    mean, trained = fmean(numbers), reach / len(numbers) ** 0.5
    below, above = (math.hypot(trained, max(gap, 0.0)) for gap in (mean - low, high - mean))
    return Estimate(mean, mean - below, mean + above, len(numbers))


def reach_of(runs: Iterable[Results], quantity: Quantity) -> float:
    """Half of the 95 % interval of a single training, from the scatter over seeds, pooled over the methods.

    0 if no method has two seeds: then intervals cover only the test set.
    """
    groups: dict[tuple[str, str], list[float]] = {}
    for run in runs:
        if run.converged and (value := quantity.value(run)) is not None:
            groups.setdefault((run.method, str(run.gamma)), []).append(value)
    several = [values for values in groups.values() if len(values) > 1]
    degrees = sum(len(values) - 1 for values in several)
    if not degrees:
        return 0.0
    variance = sum((len(values) - 1) * stdev(values) ** 2 for values in several) / degrees
    return float(stats.t.ppf(0.975, degrees) * math.sqrt(variance))


def standard_error(values: Sequence[float]) -> float:
    return stdev(values) / math.sqrt(len(values))


def minutes(runs: Runs) -> str:
    """Of training, on average."""
    return f"{fmean(run.train_seconds for run in runs) / 60:.0f}"


def cell(runs: Runs, quantity: Quantity, digits: int = 2) -> str:
    """Mean ± standard error over seeds, or the number of a single run, or a dash."""
    values = [quantity.value(run) for run in runs]  # type: ignore[arg-type]  # see Runs
    numbers = [value for value in values if value is not None]
    if not numbers or len(numbers) < len(values):
        return "–"
    mean = decimal(fmean(numbers), digits)
    return mean if len(numbers) == 1 else f"{mean} ± {standard_error(numbers):.{digits}f}"


def with_floor(runs: Runs, error: Quantity = GEO_MEAN, floor: Quantity = FLOOR) -> str:
    """A calibration error, and in brackets what a perfect model would show."""
    text = cell(runs, error)
    return text if text == "–" else f"{text} ({floor_text(runs, floor)})"


def floor_text(runs: Runs, floor: Quantity = FLOOR) -> str:
    return cell(runs, floor).split(" ")[0]
