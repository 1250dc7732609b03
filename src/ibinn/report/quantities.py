"""The numbers that tables and figures choose from: name, label, unit, and where `Results` has each."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

from ibinn.report.text import CONTROLS
from ibinn.run.results import Interval, Intervals, Results


@dataclass(frozen=True)
class Quantity:
    """A number of `Results`. name identifies it in CSV files; label and unit are for readers.

    about_classes: without meaning if the labels are not in the loss.
    """

    name: str
    label: str
    unit: str
    value: Callable[[Results], float | None]
    interval: Callable[[Intervals], Interval | None]
    higher_is_better: bool | None = False  # None: neither
    about_classes: bool = True

    @property
    def heading(self) -> str:
        return f"{self.label} ({self.unit})" if self.unit else self.label

    @property
    def arrow(self) -> str:
        return {True: " ↑", False: " ↓", None: ""}[self.higher_is_better]

    def finite(self, results: Results) -> float | None:
        """The value; None if it is missing or not finite, or if the labels were not in the loss."""
        value = None if self.about_classes and results.gamma == 0 else self.value(results)
        return value if value is not None and math.isfinite(value) else None


def calibration_error(name: str, label: str) -> Quantity:
    return Quantity(
        f"calibration.{name}",
        label,
        "%",
        lambda r: getattr(r.calibration, name),
        lambda i: i.calibration.get(name),
    )


about_density = partial(Quantity, about_classes=False)
ERROR = Quantity("error", "error", "%", lambda r: r.error, lambda i: i.error)
AVERAGED_ERROR = Quantity(
    "averaged.error",
    "error of averaged probabilities",
    "%",
    lambda r: None if r.averaged is None else r.averaged.error,
    lambda _: None,
)
NLL_Y = Quantity("nll_y", "−log q(y|x)", "nats", lambda r: r.nll_y, lambda i: i.nll_y)
BITS = about_density("bits_per_dim", "bits/dim", "", lambda r: r.bits_per_dim, lambda i: i.bits_per_dim)
PAPER_BITS = about_density(
    "bits_per_dim_paper_convention",
    "bits/dim (paper's convention)",
    "",
    lambda r: r.bits_per_dim_paper_convention,
    lambda i: i.bits_per_dim_paper_convention,
)
LOSS_X = about_density("loss_x", r"$\mathcal{L}_X$", "nats/dim", lambda r: r.loss_x, lambda i: i.loss_x)
CI_XZ = about_density(
    "information.ci_xz",
    "CI(X, Z)",
    "nats",
    lambda r: r.information.ci_xz,
    lambda i: i.information.get("ci_xz"),
    higher_is_better=None,
)
GEO_MEAN = calibration_error("geo_mean", "calibration geo. mean")
ECE, MCE, ICE = (calibration_error(name, name.upper()) for name in ("ece", "mce", "ice"))


def entropy_increase(ood_set: str) -> Quantity:
    """The mean entropy on an OoD set minus that on the test set."""
    return Quantity(
        f"ood.{ood_set}.entropy_increase",
        f"entropy increase: {ood_set}",
        "nats",
        lambda r: r.ood[ood_set].entropy_increase if ood_set in r.ood else None,
        lambda i: i.ood[ood_set].entropy_increase if ood_set in i.ood else None,
        higher_is_better=True,
    )


def ood_auroc(ood_set: str, score: str) -> Quantity:
    """The AUROC of a score between an OoD set and the test set."""
    return Quantity(
        f"ood.{ood_set}.auroc.{score}",
        f"AUROC: {ood_set}",
        "%",
        lambda r: r.ood[ood_set].auroc.get(score) if ood_set in r.ood else None,
        lambda i: i.ood[ood_set].auroc.get(score) if ood_set in i.ood else None,
        higher_is_better=True,
        about_classes=False,
    )


def average(of: Callable[[str], Quantity], sets: Sequence[str] | None = None) -> Quantity:
    """The mean of a quantity over OoD sets; by default over all of a run's except controls.

    None if one is missing. The interval is the mean of theirs, as if all erred together: the widest possible.
    """

    def names(ood: dict[str, Any]) -> Sequence[str]:
        return [name for name in ood if name not in CONTROLS] if sets is None else sets

    def interval(intervals: Intervals) -> Interval | None:
        each = [of(name).interval(intervals) for name in names(intervals.ood)]
        lows, highs = ([None if ends is None else ends[side] for ends in each] for side in (0, 1))
        return mean_if_all(lows), mean_if_all(highs)

    one = of("average")
    return replace(
        one,
        name=one.name.removeprefix("ood."),
        value=lambda r: mean_if_all([of(name).value(r) for name in names(r.ood)]),
        interval=interval,
    )


def mean_if_all(values: Sequence[float | None]) -> float | None:
    """The mean; None if a value is missing or there is none."""
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None
