"""The figure of one decision: the input, its class probabilities, its rank, and the evidence for a class."""

import textwrap
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ibinn._types import Array
from ibinn.formats import p_equation, probability_text
from ibinn.inference.attribution import EvidenceMap
from ibinn.inference.explain import Explanation
from ibinn.report.figures import UNITS
from ibinn.report.style import COLOURS, FAINT, INK, PAGE, STYLE, plain

FOR, AGAINST, QUIET = COLOURS[5], COLOURS[0], "#c8c8c8"
EVIDENCE_COLOURS = LinearSegmentedColormap.from_list("evidence", (AGAINST, "white", FOR))
BARS_SHOWN = 10


def explanation_figure(explanation: Explanation, raw: Array, evidence: EvidenceMap | None = None) -> Figure:
    """Draw why one input gets its class, and whether to trust it.

    Parameters
    ----------
    explanation
        What ``IBINNClassifier.explain`` returns.
    raw
        The explained input: pixel levels (H, W, C), or a row (D,).
    evidence
        What ``IBINNClassifier.evidence`` returns, for a panel with the evidence of each pixel or column.

    Returns
    -------
    matplotlib.figure.Figure
        Write it with ``ibinn.report.style.save_figure``.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from ibinn import load_pretrained
    >>> model = load_pretrained("digits", device="cpu")
    >>> image = load_digits().images[0]
    >>> figure = explanation_figure(model.explain(image), image[..., None])
    >>> [axis.get_title() for axis in figure.axes]
    ['the input', 'which class is it?', 'how typical is it?']
    """
    left = ["image"] * (explanation.levels is not None) + ["evidence"] * (evidence is not None)
    rows: Any = [[left[0], "posterior"], [left[-1], "rank"]] if left else [["posterior", "rank"]]
    with rc_context(STYLE):
        figure = Figure(figsize=(PAGE, 2.4 * len(rows) + 0.4), layout="constrained")
        axes = figure.subplot_mosaic(rows, width_ratios=(1, 1.3) if left else (1, 1))
        text = textwrap.fill(explanation.text, 105).replace("$", r"\$")
        figure.suptitle(text, fontsize=9.5, x=0.01, ha="left")
        draw_posterior(axes["posterior"], explanation, evidence)
        draw_rank(axes["rank"], explanation)
        if explanation.levels is not None:
            draw_image(axes["image"], raw, explanation.levels)
        if evidence is not None and explanation.levels is not None:
            draw_map(figure, axes["evidence"], evidence)
        elif evidence is not None:
            draw_columns(axes["evidence"], raw, evidence)
    return figure


def draw_image(axis: Axes, raw: Array, levels: int) -> None:
    image = raw.reshape(raw.shape[-3:]) / (levels - 1)
    axis.imshow(image.repeat(3 // image.shape[2], axis=2), interpolation="nearest")
    frame(axis, "the input")


def draw_map(figure: Figure, axis: Axes, evidence: EvidenceMap) -> None:
    """The evidence of each pixel, summed over its channels; white is none."""
    values = np.nan_to_num(evidence.values.sum(2), posinf=0.0, neginf=0.0)
    limit = float(np.abs(values).max()) or 1.0
    image = axis.imshow(values, cmap=EVIDENCE_COLOURS, vmin=-limit, vmax=limit, interpolation="nearest")
    frame(axis, "evidence by pixel")
    bar = figure.colorbar(image, cax=axis.inset_axes((1.06, 0, 0.06, 1)), label=unit_text(evidence))
    bar.outline.set_edgecolor(FAINT)


def draw_columns(axis: Axes, raw: Array, evidence: EvidenceMap) -> None:
    """The columns with the strongest evidence, each with its value."""
    values, row = evidence.values, raw.reshape(-1)
    order = np.abs(values).argsort()[::-1][:BARS_SHOWN]
    names = evidence.columns or [f"column {i + 1}" for i in range(len(values))]
    axis.barh(range(len(order)), values[order], color=[FOR if values[i] > 0 else AGAINST for i in order])
    axis.axvline(0, color=INK, linewidth=0.8)
    axis.set_yticks(range(len(order)), [f"{plain(names[i])} = {row[i]:.4g}" for i in order])
    axis.set(title="evidence by column", xlabel=unit_text(evidence))
    from_top(axis)


def draw_posterior(axis: Axes, explanation: Explanation, evidence: EvidenceMap | None) -> None:
    """The probabilities of the most probable classes as bars. The classes of the evidence have its colours."""
    shown = sorted(explanation.posterior.items(), key=lambda item: -item[1])[:BARS_SHOWN]
    colours = dict.fromkeys(explanation.posterior, AGAINST)
    if evidence is not None:
        colours = {evidence.a: FOR, evidence.b: AGAINST}
    for i, (name, share) in enumerate(shown):
        axis.barh(i, 100 * share, color=colours.get(name, QUIET))
        write_share(axis, i, share, "white" if name in colours else INK)
    axis.set_yticks(range(len(shown)), [plain(name) for name, _ in shown])
    axis.set(title="which class is it?", xlabel="probability (%)", xlim=(0, 100))
    from_top(axis)


def write_share(axis: Axes, i: int, share: float, on_bar: str) -> None:
    """At the end of bar i: on it where it is long, else beside it."""
    font: dict[str, Any] = {"va": "center", "fontsize": 8}
    if share > 0.8:
        axis.text(100 * share - 1.5, i, probability_text(share), ha="right", color=on_bar, **font)
    elif not np.isnan(share):
        axis.text(
            100 * share + 1.5, i, probability_text(share), color=INK if share >= 0.005 else FAINT, **font
        )


def draw_rank(axis: Axes, explanation: Explanation) -> None:
    """The scores of the calibration inputs and of this input, with an arrow where it lies far outside."""
    rank = explanation.rank
    low, high = rank.edges[0], rank.edges[-1]
    axis.stairs(rank.counts, rank.edges, fill=True, color=QUIET)
    axis.set(title="how typical is it?", ylabel="calibration inputs", ylim=(0, 1.35 * max(rank.counts)))
    axis.set_xlabel(f"score “{plain(rank.score)}”{UNITS.get(rank.score, '')}: stranger to the right")
    axis.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    end = high + 0.5 * (high - low)
    x = float(np.clip(rank.value, low, end))
    axis.axvline(x, color=INK, linewidth=1.4)
    arrow = "" if rank.value <= end else " →"
    on_left = x > (low + high) / 2
    axis.annotate(
        f"this input{arrow}\n{p_equation(explanation.p_value)}",
        (x, 0.97),
        xycoords=axis.get_xaxis_transform(),
        xytext=(-4 if on_left else 4, 0),
        textcoords="offset points",
        ha="right" if on_left else "left",
        va="top",
    )


def unit_text(evidence: EvidenceMap) -> str:
    """On one line, or with long names on two."""
    a, b = plain(evidence.a, 14), plain(evidence.b, 14)
    return f"nats for {a}{' ' if len(a + b) <= 12 else chr(10)}against {b}"


def from_top(axis: Axes) -> None:
    """The first bar on top, and no ticks beside the names."""
    axis.invert_yaxis()
    axis.tick_params(axis="y", length=0)


def frame(axis: Axes, title: str) -> None:
    """A thin frame and no ticks."""
    axis.set(title=title, xticks=[], yticks=[])
    axis.spines[:].set(visible=True, color=FAINT)
