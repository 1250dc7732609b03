"""One run's numbers -> Figure: calibration, scores, ROC curves, training. Nothing is read or computed here."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from ibinn._types import Floats
from ibinn.formats import decimal
from ibinn.metrics.roc import roc_curve
from ibinn.report.style import COLOURS, FAINT, INK, PAGE, STYLE, Arrays, new_panels, plain, write_note
from ibinn.report.text import full_bins
from ibinn.run.facts import EpochLine
from ibinn.run.results import Bin, Calibration, Results

UNITS = dict.fromkeys(("typicality", "nll", "complexity"), " in nats per dimension")  # of scores
UNITS |= dict.fromkeys(("entropy", "energy"), " in nats")


def floats(values: Iterable[float | None]) -> Floats:
    """An array, NaN where a value is missing."""
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)


# --- calibration -------------------------------------------------------------------------------------


def draw_calibration(results: Results) -> Figure:
    """How often a class is the true one, against the probability the model gave it; both ends enlarged.

    Behind the curve what a perfectly calibrated model would show, below it the pairs (image, class) of each bin.
    """
    calibration = results.scaled.calibration
    full = [b for b, _ in full_bins(calibration)]
    with rc_context(STYLE):
        figure = Figure(figsize=(PAGE, 5.0), layout="constrained")
        frame = figure.add_gridspec(1, 2, width_ratios=(2, 1))
        wide, narrow = frame[0].subgridspec(2, 1, height_ratios=(4, 1)), frame[1].subgridspec(3, 1)
        curve, counts = figure.add_subplot(wide[0]), figure.add_subplot(wide[1])
        upper, lower = figure.add_subplot(narrow[0]), figure.add_subplot(narrow[1])
        for axis, low, high in ((curve, 0, 100), (upper, 95, 100), (lower, 0, 5)):
            draw_reliability(axis, full, low, high)
        draw_counts(counts, calibration)
        write_measures(figure.add_subplot(narrow[2]), calibration)
        curve.set(ylabel="share of true classes (%)", xticklabels=[])
        curve.legend(loc="best")
        upper.set_title("the upper end")
        lower.set(title="the lower end", xlabel="probability (%)")
    return figure


def draw_reliability(axis: Axes, bins: Sequence[Bin], low: float, high: float) -> None:
    """Share of true classes against bin centre between low and high, all in %."""
    left, right = 100 * floats(b.low for b in bins), 100 * floats(b.high for b in bins)
    share = 100 * floats(b.share for b in bins)
    below, above = 100 * floats(b.share_low for b in bins), 100 * floats(b.share_high for b in bins)
    floor_below, floor_above = (
        100 * floats(b.floor_low for b in bins),
        100 * floats(b.floor_high for b in bins),
    )
    band: dict[str, Any] = {"color": FAINT, "alpha": 0.4, "label": "95 % of perfectly calibrated models"}
    axis.bar(left, floor_above - floor_below, right - left, floor_below, align="edge", **band)
    axis.axline((0, 0), slope=1, color=INK, linewidth=0.8, linestyle=":", label="share = probability")
    bars = np.nan_to_num(np.maximum([share - below, above - share], 0))
    look: dict[str, Any] = {"color": COLOURS[0], "marker": "o", "markersize": 4, "linewidth": 1.2}
    axis.errorbar((left + right) / 2, share, bars, capsize=2, label="this model, 95 % interval", **look)
    inside = (left >= low - 1e-9) & (right <= high + 1e-9)
    shown = [values[inside] for values in (share, below, above, floor_below, floor_above)]
    bottom, top = (
        float(end) for end in np.nanpercentile(np.concatenate([np.array([low, high]), *shown]), (0, 100))
    )
    axis.set_xlim(low - 0.03 * (high - low), high + 0.03 * (high - low))
    axis.set_ylim(bottom - 0.05 * (top - bottom), top + 0.05 * (top - bottom))


def draw_counts(axis: Axes, calibration: Calibration) -> None:
    """Pairs of image and class in each bin, on a log scale; paler where there are too few."""
    bins, least = calibration.bins, calibration.min_count
    n = floats(b.n for b in bins)
    left, right = 100 * floats(b.low for b in bins), 100 * floats(b.high for b in bins)
    axis.set(yscale="log", ylim=(0.7, 3 * max(n.max(initial=1), 10)), xlim=(-3, 103))
    axis.set(xlabel="probability given to a class (%)", ylabel="pairs")
    colours = np.where(n > least, COLOURS[0], FAINT)
    some = n > 0
    axis.bar(
        left[some], n[some], (right - left)[some], align="edge", color=colours[some], edgecolor="white"
    )
    if least:
        axis.axhline(least + 0.5, color=INK, linewidth=0.8, linestyle="--")
        text = f"bins left out, of at most {least} pairs: {np.count_nonzero(n <= least)}"
        axis.text(50, 2.2 * max(n.max(initial=1), 10), text, ha="center", va="top", fontsize=8)


def write_measures(axis: Axes, calibration: Calibration) -> None:
    """The calibration errors beside those of a perfectly calibrated model, as a small table."""
    axis.set_axis_off()
    rows = [("calibration\nerrors (%)", "this\nmodel", "perfect\nmodel")]
    errors = {"ece": calibration.ece, "mce": calibration.mce, "ice": calibration.ice}
    for name, error in (errors | {"geo_mean": calibration.geo_mean}).items():
        floor = calibration.floor.get(name)
        label = {"geo_mean": "geo. mean"}.get(name, name.upper())
        rows.append((label, decimal(error), decimal(floor.mean if floor else None)))
    for i, row in enumerate(rows):
        for x, text, ha in zip((0, 0.66, 1), row, ("left", "right", "right"), strict=True):
            axis.text(x, 0.75 - 0.13 * i, text, transform=axis.transAxes, ha=ha, va="bottom")


# --- scores of out-of-distribution sets --------------------------------------------------------------


def finite(values: NDArray[Any] | None) -> Floats:
    """Scores as float64, infinities included but no NaN; none where there are no values."""
    array = np.asarray([] if values is None else values, dtype=np.float64)
    return array[~np.isnan(array)]


def draw_score_histograms(results: Results, arrays: Arrays, score: str) -> Figure:
    """The scores of the test inputs against those of each out-of-distribution set, one panel each."""
    names = list(results.ood)
    test = finite(arrays.get(f"scores/{score}"))
    with rc_context(STYLE):
        figure, axes = new_panels(max(1, len(names)), across=4, height=1.6, key=0.6)
        for axis, name in zip(axes, names, strict=False):
            draw_histogram(axis, test, finite(arrays.get(f"scores/{name}/{score}")))
            axis.set_title(f"{plain(name)}\nAUROC {decimal(results.ood[name].auroc.get(score), 1)} %")
        if not names:
            draw_histogram(axes[0], test, finite(None))
        label = f"{score}{UNITS.get(score, '')}\n(the outermost bars hold all beyond)"
        figure.supxlabel(label, fontsize=9)
        figure.supylabel("share of inputs (%)", fontsize=9)
        axis = max(axes, key=lambda axis: len(axis.get_legend_handles_labels()[1]))
        figure.legend(*axis.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure


def draw_histogram(axis: Axes, test: Floats, other: Floats) -> None:
    """Shares in % of test and OoD scores in 40 common bins; scores beyond the range go to its edge bins."""
    if len(test) + len(other) == 0:
        write_note(axis, "no scores")
        return
    low, high = score_range(test, other)
    edges = np.linspace(low, high, 41)
    for scores, colour, label in ((test, COLOURS[0], "test"), (other, COLOURS[5], "out of distribution")):
        if len(scores):
            shares = 100 * np.histogram(scores.clip(low, high), edges)[0] / len(scores)
            axis.stairs(shares, edges, fill=True, color=colour, alpha=0.3)
            axis.stairs(shares, edges, color=colour, linewidth=1.2, label=label)
    axis.set(xlim=(low, high), ylim=(0, None))


def score_range(test: Floats, other: Floats) -> tuple[float, float]:
    """From the 0.5th to the 99.5th percentile of both, but at most six widths of the test's range beyond it."""
    ends = [
        np.percentile(scores[np.isfinite(scores)], (0.5, 99.5))
        for scores in (test, other)
        if np.isfinite(scores).any()
    ] or [np.array([0.0, 1.0])]
    (low, high), (first, last) = ends[0], ends[-1]
    room = 6 * (high - low) or np.inf
    start, end = float(max(min(low, first), low - room)), float(min(max(high, last), high + room))
    return (start, end) if end > start else (start - 0.5, end + 0.5)


def draw_roc(results: Results, arrays: Arrays, score: str) -> Figure:
    """Share of each out-of-distribution set that is detected, against the share of false alarms."""
    with rc_context(STYLE):
        figure = Figure(figsize=(0.85 * PAGE, 4.0), layout="constrained")
        axis = figure.add_subplot()
        for i, name in enumerate(results.ood):
            test, other = (finite(arrays.get(key)) for key in (f"scores/{score}", f"scores/{name}/{score}"))
            if len(test) and len(other):
                alarms, detected = roc_curve(test, other)
                label = f"{plain(name)}  {decimal(results.ood[name].auroc.get(score), 1)} %"
                style = "-" if i < 4 else "--"
                axis.plot(100 * alarms, 100 * detected, style, color=COLOURS[i % len(COLOURS)], label=label)
        axis.axline((0, 0), slope=1, color=FAINT, linewidth=1, linestyle=":", label="chance  50.0 %")
        axis.set(xlim=(-1, 101), ylim=(-1, 101), aspect="equal", anchor="W")
        axis.set(xlabel="false alarms among test inputs (%)", ylabel="detected (%)")
        figure.legend(loc="outside right center", title=f"AUROC by {score}", alignment="left")
    return figure


# --- training ----------------------------------------------------------------------------------------


TRAINING_PANELS = {
    "loss_x": "loss $\\mathcal{L}_X$ (nats per dimension)",
    "loss_y": "loss $\\mathcal{L}_Y$ (nats)",
    "error": "error (%)",
    "bits_per_dim": "bits/dim",
}
LOOKS = {"training": (FAINT, "o"), "validation": (COLOURS[0], "s")}


def draw_training(history: Sequence[EpochLine]) -> Figure:
    """Losses, validation error and bits/dim against the epoch; a panel for each that the history has."""
    epochs = floats(line.epoch for line in history)
    panels: list[tuple[str, dict[str, Floats]]] = []
    for name, title in TRAINING_PANELS.items():
        lines = {
            "training": floats(getattr(line, name, None) for line in history),  # no error while training
            "validation": floats(getattr(line.validation, name) for line in history),
        }
        if lines := {label: values for label, values in lines.items() if np.isfinite(values).any()}:
            panels.append((title, lines))
    if not panels:
        raise ValueError("history holds no losses; train for at least one epoch")
    with rc_context(STYLE):
        figure, axes = new_panels(len(panels), across=2, height=2.1)
        for axis, (title, lines) in zip(axes, panels, strict=True):
            for name, values in lines.items():
                colour, mark = LOOKS[name]
                marks: dict[str, Any] = {"marker": mark if len(epochs) <= 40 else "", "markersize": 3}
                axis.plot(epochs, values, color=colour, label=name, **marks)
            everything = np.concatenate(list(lines.values()))
            bottom, top = usual_range(everything, 10, 90)
            peak = np.nanmax(everything)
            axis.set(title=title if peak <= top else f"{title}, peak of {peak:.4g}", xlabel="epoch")
            axis.set_ylim(bottom, top)
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes[0].legend()
    return figure


def usual_range(values: Floats, low: float, high: float) -> tuple[float, float]:
    """A range without spikes: those further from the low-th to high-th percentile than five times their width."""
    values = values[np.isfinite(values)]
    if not len(values):
        return 0.0, 1.0
    first, last = np.percentile(values, (low, high))
    room = 5 * (last - first) or np.inf
    usual = values[(values >= first - room) & (values <= last + room)]
    margin = 0.06 * float(np.ptp(usual)) or 0.5
    return float(usual.min()) - margin, float(usual.max()) + margin
