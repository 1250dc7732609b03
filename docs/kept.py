"""What is kept in results/, and estimates from it."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from fill import DOCS
from scipy import stats

KEPT = DOCS.parent / "results"
EXPERIMENTS = ("fashion-table", "fashion-no-ramp", "fashion-gamma", "cifar10-base", "sigma-8x8")
Run = Mapping[str, Any]  # a results.json
SETS = "*"  # in a path: the mean over the out-of-distribution sets, but for the control
CONTROL = "jpeg"
MISSING = "Not trained yet."
MODELS: dict[str, tuple[str, float | str | None]] = {  # of the Fashion-MNIST table: method and gamma
    "IB-INN": ("ibinn", 1.0),
    "IB-INN, γ = 3.7": ("ibinn", 3.7),
    "only L_X": ("ibinn", 0.0),
    "only L_Y": ("ibinn", "inf"),
    "class-NLL": ("class-nll", None),
    "class-NLL + regul.": ("class-nll-fixed", None),
    "VIB": ("vib", 1.0),
    "ResNet": ("resnet", None),
    "i-RevNet": ("irevnet", None),
}


class Estimate(NamedTuple):
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


def runs_of(experiment: str) -> list[Run]:
    """All that is kept of an experiment."""
    return [read(file) for file in sorted((KEPT / experiment).glob("*/results.json"))]


def read(file: Path) -> dict[str, Any]:
    numbers: dict[str, Any] = json.loads(file.read_text())
    return numbers


def of(runs: Iterable[Run], method: str, gamma: float | str | None = None) -> list[Run]:
    """Those of a method, and of a gamma if one is given, by seed."""
    chosen = [run for run in runs if run["method"] == method and gamma in (None, run["gamma"])]
    return sorted(chosen, key=lambda run: (str(run["gamma"]), run["seed"]))


def paths(run: Run, path: str) -> list[str]:
    """The path itself, or one for each set that its star stands for."""
    sets = [name for name in run["ood"] if name != CONTROL]
    return [path.replace(SETS, name) for name in sets] if SETS in path else [path]


def at(run: Run, path: str) -> float | None:
    """The number at a dotted path; None where the run has none."""
    found = []
    for one in paths(run, path):
        value: Any = run
        for key in one.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        found.append(value)
    return None if None in found else fmean(found)


def estimate(runs: Sequence[Run], path: str, reach: float = 0.0) -> Estimate | None:
    """The mean over runs; reach is how far one training may lie from what its method gives on average.

    The interval covers another training and another test set; seeds share the test set, so that more of them
    narrow the first part alone. None where a run has no such number.
    """
    values = [at(run, path) for run in runs]
    numbers = [value for value in values if value is not None and math.isfinite(value)]
    if not numbers or len(numbers) < len(values):
        return None
    # Of a mean over sets: as if all erred together, which is the widest that it can be.
    spans = [[run["intervals"][one] for one in paths(run, path)] for run in runs]
    low, high = (fmean(fmean(span[side] for span in some) for some in spans) for side in (0, 1))
    mean, trained = fmean(numbers), reach / len(numbers) ** 0.5
    below, above = (math.hypot(trained, max(gap, 0.0)) for gap in (mean - low, high - mean))
    return Estimate(mean, mean - below, mean + above, len(numbers))


def reach_of(runs: Iterable[Run], path: str) -> float:
    """Half of the 95 % interval of a single training: from the scatter over seeds, pooled over the methods.

    0 where no method has two seeds: then intervals cover the test set alone.
    """
    groups: dict[tuple[str, str], list[float]] = {}
    for run in runs:
        if run["converged"] and (value := at(run, path)) is not None:
            groups.setdefault((run["method"], str(run["gamma"])), []).append(value)
    several = [values for values in groups.values() if len(values) > 1]
    degrees = sum(len(values) - 1 for values in several)
    if not degrees:
        return 0.0
    variance = sum((len(values) - 1) * stdev(values) ** 2 for values in several) / degrees
    return float(stats.t.ppf(0.975, degrees)) * variance**0.5


def standard_error(values: Sequence[float]) -> float:
    return stdev(values) / len(values) ** 0.5


def minutes(runs: Sequence[Run]) -> str:
    """Of training, on average."""
    return f"{fmean(run['train_seconds'] for run in runs) / 60:.0f}"


def told(runs: Sequence[Run], path: str, digits: int = 2) -> str:
    """Mean ± standard error over seeds, or the number of a single run, or a dash."""
    values = [at(run, path) for run in runs]
    numbers = [value for value in values if value is not None]
    if not numbers or len(numbers) < len(values):
        return "–"
    mean = f"{fmean(numbers):z.{digits}f}"
    return mean if len(numbers) == 1 else f"{mean} ± {standard_error(numbers):.{digits}f}"


def with_floor(runs: Sequence[Run], path: str = "calibration") -> str:
    """The geometric mean of the calibration errors, and in brackets what a perfect model would show."""
    error = told(runs, f"{path}.geo_mean")
    return error if error == "–" else f"{error} ({floor(runs, path)})"


def floor(runs: Sequence[Run], path: str = "calibration") -> str:
    return told(runs, f"{path}.floor.geo_mean.mean").split(" ")[0]
