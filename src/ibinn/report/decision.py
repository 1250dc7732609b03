"""One decision -> Figure: the input, its probabilities, its place among familiar inputs, what speaks for it."""

import textwrap
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from ibinn.formats import p_equation, whole_percent
from ibinn.inference.attribution import EvidenceMap
from ibinn.inference.explain import Explanation
from ibinn.report.figures import UNITS
from ibinn.report.style import COLOURS, FAINT, INK, PAGE, STYLE, plain

FOR, AGAINST, QUIET = COLOURS[5], COLOURS[0], "#c8c8c8"


SCALE = LinearSegmentedColormap.from_list("evidence", (AGAINST, "white", FOR))


MOST_BARS = 10


def explanation_figure(
    explanation: Explanation, raw: NDArray[Any], evidence: EvidenceMap | None = None
) -> Figure:
    """raw is what was explained, levels (H, W, C) or a row (D,); each class of the evidence has one colour."""
    left = ["image"] * (explanation.levels is not None) + ["evidence"] * (evidence is not None)
    rows: Any = [[left[0], "posterior"], [left[-1], "place"]] if left else [["posterior", "place"]]
    with rc_context(STYLE):
        figure = Figure(figsize=(PAGE, 2.4 * len(rows) + 0.4), layout="constrained")
        axes = figure.subplot_mosaic(rows, width_ratios=(1, 1.3) if left else (1, 1))
        text = textwrap.fill(explanation.text, 105).replace("$", r"\$")
        figure.suptitle(text, fontsize=9.5, x=0.01, ha="left")
        draw_posterior(axes["posterior"], explanation, evidence)
        draw_place(axes["place"], explanation)
        if explanation.levels is not None:
            draw_image(axes["image"], raw, explanation.levels)
        if evidence is not None and explanation.levels is not None:
            draw_map(figure, axes["evidence"], evidence)
        elif evidence is not None:
            draw_columns(axes["evidence"], raw, evidence)
    return figure


def draw_image(axis: Axes, raw: NDArray[Any], levels: int) -> None:
    image = raw.reshape(raw.shape[-3:]) / (levels - 1)
    axis.imshow(image.repeat(3 // image.shape[2], axis=2), interpolation="nearest")
    dress(axis, "the input")


def draw_map(figure: Figure, axis: Axes, evidence: EvidenceMap) -> None:
    """What each pixel adds, its channels together; white is nothing."""
    values = np.nan_to_num(evidence.values.sum(2), posinf=0.0, neginf=0.0)
    most = float(np.abs(values).max()) or 1.0
    shown = axis.imshow(values, cmap=SCALE, vmin=-most, vmax=most, interpolation="nearest")
    dress(axis, "which pixels speak for it?")
    place = axis.inset_axes((1.06, 0, 0.06, 1))
    bar = figure.colorbar(shown, cax=place, label=told_unit(evidence))
    bar.outline.set_edgecolor(FAINT)


def draw_columns(axis: Axes, raw: NDArray[Any], evidence: EvidenceMap) -> None:
    """What the columns add that add most, each with its value."""
    values, row = evidence.values, raw.reshape(-1)
    order = np.abs(values).argsort()[::-1][:MOST_BARS]
    names = evidence.columns or [f"column {i + 1}" for i in range(len(values))]
    axis.barh(range(len(order)), values[order], color=[FOR if values[i] > 0 else AGAINST for i in order])
    axis.axvline(0, color=INK, linewidth=0.8)
    axis.set_yticks(range(len(order)), [f"{plain(names[i])} = {row[i]:.4g}" for i in order])
    axis.set(title="which columns speak for it?", xlabel=told_unit(evidence))
    upside_down(axis)


def draw_posterior(axis: Axes, explanation: Explanation, evidence: EvidenceMap | None) -> None:
    """The probabilities of the likeliest classes as bars."""
    likeliest = sorted(explanation.posterior.items(), key=lambda item: -item[1])[:MOST_BARS]
    colours = dict.fromkeys(explanation.posterior, AGAINST)
    if evidence is not None:
        colours = {evidence.a: FOR, evidence.b: AGAINST}
    for i, (name, share) in enumerate(likeliest):
        axis.barh(i, 100 * share, color=colours.get(name, QUIET))
        write_share(axis, i, share, "white" if name in colours else INK)
    axis.set_yticks(range(len(likeliest)), [plain(name) for name, _ in likeliest])
    axis.set(title="which class is it?", xlabel="probability (%)", xlim=(0, 100))
    upside_down(axis)


def write_share(axis: Axes, i: int, share: float, on_bar: str) -> None:
    """At the end of bar i: on it where it is long, else beside it."""
    look: dict[str, Any] = {"va": "center", "fontsize": 8}
    if share > 0.8:
        axis.text(100 * share - 1.5, i, whole_percent(share), ha="right", color=on_bar, **look)
    elif not np.isnan(share):
        axis.text(
            100 * share + 1.5, i, whole_percent(share), color=INK if share >= 0.005 else FAINT, **look
        )


def draw_place(axis: Axes, explanation: Explanation) -> None:
    """The scores of the calibration inputs, and that of the input; with an arrow where it is far beyond."""
    place = explanation.place
    low, high = place.edges[0], place.edges[-1]
    axis.stairs(place.counts, place.edges, fill=True, color=QUIET)
    axis.set(title="how strange is it?", ylabel="familiar inputs", ylim=(0, 1.35 * max(place.counts)))
    axis.set_xlabel(f"score “{plain(place.score)}”{UNITS.get(place.score, '')}: stranger to the right")
    axis.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    end = high + 0.5 * (high - low)
    here = float(np.clip(place.value, low, end))
    axis.axvline(here, color=INK, linewidth=1.4)
    arrow = "" if place.value <= end else " →"
    on_left = here > (low + high) / 2
    axis.annotate(
        f"this input{arrow}\n{p_equation(explanation.p_value)}",
        (here, 0.97),
        xycoords=axis.get_xaxis_transform(),
        xytext=(-4 if on_left else 4, 0),
        textcoords="offset points",
        ha="right" if on_left else "left",
        va="top",
    )


def told_unit(evidence: EvidenceMap) -> str:
    """On one line, or with long names on two."""
    a, b = plain(evidence.a, 14), plain(evidence.b, 14)
    return f"nats for {a}{' ' if len(a + b) <= 12 else chr(10)}against {b}"


def upside_down(axis: Axes) -> None:
    """The first bar on top; no marks beside names."""
    axis.invert_yaxis()
    axis.tick_params(axis="y", length=0)


def dress(axis: Axes, title: str) -> None:
    """A thin frame and no ticks."""
    axis.set(title=title, xticks=[], yticks=[])
    axis.spines[:].set(visible=True, color=FAINT)
