"""The style of all figures: colours, marks, panels, labels that do not overlap. Only `save_figure` writes."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import colormaps, patheffects, rc_context
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.text import Annotation
from matplotlib.textpath import TextPath
from matplotlib.ticker import FixedLocator, NullLocator
from matplotlib.transforms import Bbox
from matplotlib.typing import LegendLocType
from numpy.typing import NDArray

from ibinn._system import write_atomically
from ibinn.formats import gamma_text

# Okabe and Ito's palette, which colour-blind readers can tell apart; wine and olive for more than eight.
COLOURS = (
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00"),
    *("#000000", "#882255", "#999933", "#F0E442"),
)
MARKERS = "o^sDvPX"  # seven beside ten colours: 70 pairs
MOST_COLOURED = 20  # classes beyond this cannot be told apart by colour and mark
CLASS_SCALE = colormaps["viridis"]  # for their means
INK, FAINT = "#222222", "#9a9a9a"
PAGE = 7.2  # inches: the width of a page
STYLE: dict[Any, Any] = {
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.formatter.useoffset": False,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "savefig.dpi": 200,
    "pdf.fonttype": 42,
}

PLACES = [(distance, angle) for distance in (5.0, 9.0) for angle in range(0, 360, 45)]  # of labels

Arrays = Mapping[str, NDArray[Any]]


def save_figure(figure: Figure, stem: Path) -> None:
    """Write a figure as PNG and PDF, atomically.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        The figure.
    stem : Path
        The path without suffix; missing folders are created.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     save_figure(Figure(), Path(folder, "empty"))
    ...     sorted(path.name for path in Path(folder).iterdir())
    ['empty.pdf', 'empty.png']
    """
    stem.parent.mkdir(parents=True, exist_ok=True)
    for suffix, content in png_and_pdf(figure).items():
        write_atomically(stem.with_name(f"{stem.name}.{suffix}"), content)


def png_and_pdf(figure: Figure) -> dict[str, bytes]:
    """The figure as the contents of a PNG and of a PDF file, by suffix."""
    files = {}
    with rc_context(STYLE):
        for suffix in ("png", "pdf"):
            file = io.BytesIO()
            figure.savefig(file, format=suffix)
            files[suffix] = file.getvalue()
    return files


# --- panels and text ---------------------------------------------------------------------------------


def new_panels(n: int, across: int, height: float, key: float = 0.0) -> tuple[Figure, list[Axes]]:
    """A figure as wide as a page with n panels, at most `across` to a row.

    Each is `height` inches high, title and labels included; `key` more inches hold a legend for all.
    """
    rows, columns = table_shape(n, across)
    width = PAGE if columns > 1 else 0.6 * PAGE
    figure = Figure(figsize=(width, rows * height + key), layout="constrained")
    return figure, [figure.add_subplot(rows, columns, i + 1) for i in range(n)]


def table_shape(n: int, across: int) -> tuple[int, int]:
    """Rows and columns for n panels, at most `across` per row, with rows as full as possible."""
    rows = -(-n // across)
    return rows, -(-n // rows)


def plain(name: str, longest: int = 18) -> str:
    """A user's name for something as one short line, without formulas."""
    line = " ".join(name.split())
    if len(line) > longest:
        half = longest // 2
        line = f"{line[: half - 1]}…{line[-half:]}"  # both ends: the last part of a path matters most
    return line.replace("$", r"\$")


def text_width(text: str, size: float) -> float:
    """The width of a text of this font size, in points."""
    if not text.strip():
        return 0.0
    return float(TextPath((0, 0), text, prop=FontProperties(size=size)).get_extents().width)


def write_note(axis: Axes, text: str) -> None:
    """Text in the middle of an empty panel."""
    axis.text(0.5, 0.5, text, transform=axis.transAxes, ha="center", va="center", color=FAINT)


def label_points(axis: Axes, xy: NDArray[Any], texts: Sequence[str], size: float = 7.5) -> list[Annotation]:
    """A text at each of the points (n, 2), legible on top of others; `spread_labels` sets them apart."""
    look: dict[str, Any] = {"fontsize": size, "color": INK, "in_layout": False, "zorder": 6}
    look["path_effects"] = [patheffects.withStroke(linewidth=1.8, foreground="white")]
    return [
        axis.annotate(text, (x, y), xytext=(0, 0), textcoords="offset points", **look)
        for text, (x, y) in zip(texts, xy.tolist(), strict=True)
    ]


def spread_labels(axis: Axes, labels: Sequence[Annotation], keep_free: NDArray[Any] | None = None) -> None:
    """Move each label to a free place beside its point, in order; remove it if there is none.

    Labels avoid the points (n, 2) in keep_free. Call `draw_without_rendering` first to fix the layout.
    """
    points = [label.xy for label in labels] + ([] if keep_free is None else keep_free.tolist())
    marks = axis.transData.transform(np.reshape(points, (-1, 2)))
    taken = [Bbox.from_bounds(x - 3, y - 3, 6, 6) for x, y in marks]
    inside = axis.get_window_extent()
    for label in labels:
        for distance, angle in PLACES:
            box = move_label(label, distance, angle)
            corners = inside.contains(box.x0, box.y0) and inside.contains(box.x1, box.y1)
            if corners and not box.count_overlaps(taken):
                taken.append(box)
                break
        else:
            label.remove()


def move_label(label: Annotation, distance: float, angle: float) -> Bbox:
    """Put a label at this distance (points) and angle (degrees) from its point; its new bounding box."""
    dx, dy = np.cos(np.radians(angle)), np.sin(np.radians(angle))
    label.set_position((distance * dx, distance * dy))
    label.set_horizontalalignment("left" if dx > 0.1 else "right" if dx < -0.1 else "center")
    label.set_verticalalignment("bottom" if dy > 0.1 else "top" if dy < -0.1 else "center")
    return label.get_window_extent()


# --- classes -----------------------------------------------------------------------------------------


def class_look(label: int, n_classes: int) -> tuple[Any, str]:
    """Colour and mark of a class: ten colours beside seven marks, or a continuous scale for many classes."""
    if n_classes > MOST_COLOURED:
        return CLASS_SCALE(label / (n_classes - 1)), "o"
    return COLOURS[label % len(COLOURS)], MARKERS[label % len(MARKERS)]


def scatter_classes(axis: Axes, arrays: Arrays, n_classes: int) -> None:
    """The latent points by class, faint, and the class means; many classes: grey points, means on a scale."""
    points, y, mu = (arrays.get(f"latent/{name}") for name in ("points", "y", "mu"))
    faint: dict[str, Any] = {"s": 7, "alpha": 0.35, "linewidths": 0, "rasterized": True}
    bold: dict[str, Any] = {"s": 42, "edgecolors": "white", "zorder": 4}
    if n_classes > MOST_COLOURED and points is not None:
        axis.scatter(points[:, 0], points[:, 1], color=FAINT, **faint)
    for label in range(n_classes):
        colour, mark = class_look(label, n_classes)
        if n_classes <= MOST_COLOURED and points is not None and y is not None:
            own = points[y == label]
            axis.scatter(own[:, 0], own[:, 1], color=colour, marker=mark, **faint)
        if mu is not None:
            axis.scatter(mu[label, 0], mu[label, 1], color=colour, marker=mark, **bold)
    axis.set(xlabel="1st axis of the means", aspect="equal")


def fit_view(axis: Axes, points: NDArray[Any] | None, *whole: NDArray[Any] | None) -> None:
    """A square view of the central 99 % of points and of all of `whole`, each (n, 2) or None."""
    ends: list[NDArray[Any]] = [w for w in whole if w is not None and len(w)]
    if points is not None and len(points):
        ends.append(np.percentile(points, (0.5, 99.5), axis=0))
    low, high = np.concatenate(ends).min(0), np.concatenate(ends).max(0)
    middle, half = (low + high) / 2, 0.56 * max(float((high - low).max()), 1e-6)
    axis.set(xlim=(middle[0] - half, middle[0] + half), ylim=(middle[1] - half, middle[1] + half))


def class_key(figure: Figure, axes: Sequence[Axes], classes: Sequence[str], loc: LegendLocType) -> None:
    """One legend of all classes, below the panels or on their right; a colour bar for many classes."""
    n = len(classes)
    if n > MOST_COLOURED:
        ticks = np.unique(np.linspace(0, n - 1, 6).round().astype(int))
        scale = ScalarMappable(Normalize(0, n - 1), CLASS_SCALE)
        bar = figure.colorbar(scale, ax=list(axes), ticks=ticks, fraction=0.03, label="mean of class")
        bar.ax.set_yticklabels([plain(classes[i]) for i in ticks])
        return
    marks = []
    for label in range(n):
        colour, mark = class_look(label, n)
        marks.append(Line2D([], [], color=colour, marker=mark, linestyle="", markersize=5))
    columns = key_shape(classes, figure.get_figwidth())[1] if loc == "outside lower center" else 1
    figure.legend(marks, [plain(name) for name in classes], loc=loc, ncols=columns, handletextpad=0.1)


def key_shape(classes: Sequence[str], width: float) -> tuple[int, int]:
    """Rows and columns of a legend of this width in inches; no rows if a colour bar replaces it."""
    if len(classes) > MOST_COLOURED:
        return 0, 1
    widest = max(text_width(plain(name), STYLE["font.size"]) for name in classes) + 40  # for mark and gap
    return table_shape(len(classes), across=max(1, min(5, int(72 * width / widest))))


# --- gamma -------------------------------------------------------------------------------------------


class GammaAxis(NamedTuple):
    """A log axis from low to high with places for 0 and infinity beyond its ends, `gap` times further."""

    low: float
    high: float
    gap: float
    with_zero: bool
    with_infinity: bool

    def positions(self, gamma: NDArray[np.float64]) -> NDArray[np.float64]:
        """Positions on the axis."""
        finite = np.where(np.isinf(gamma), self.high * self.gap, gamma)
        return np.where(gamma == 0, self.low / self.gap, finite)

    @property
    def margin(self) -> float:
        """How far the axis extends beyond its last mark, as a factor."""
        return float(self.gap**0.4)

    def set_ticks(self, axis: Axes) -> None:
        """Set scale and ticks, with a break before 0 and infinity."""
        axis.set_xscale("log")
        left, right = self.low, self.high
        ticks = {x: gamma_text(x) for x in gamma_ticks(left, right)}
        if self.with_zero:
            cut_axis(axis, left / self.gap**0.5, self.gap)
            left = left / self.gap
            ticks[left] = "0"
        if self.with_infinity:
            cut_axis(axis, right * self.gap**0.5, self.gap)
            right = right * self.gap
            ticks[right] = "∞"
        axis.xaxis.set_major_locator(FixedLocator(list(ticks)))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_xticklabels(list(ticks.values()))
        axis.set_xlim(left / self.margin, right * self.margin)
        axis.set_xlabel("γ", labelpad=0)


def gamma_ticks(low: float, high: float) -> list[float]:
    """Powers of ten between low and high; where there are fewer than two, low and high themselves."""
    exponents = np.arange(np.ceil(np.log10(low) - 1e-9), np.floor(np.log10(high) + 1e-9) + 1)
    step = -(-len(exponents) // 4)
    return [float(10.0**e) for e in exponents[::step]] if len(exponents) > 1 else sorted({low, high})


def cut_axis(axis: Axes, x: float, gap: float) -> None:
    """Draw a break in the axis: two slashes with white between them."""
    style: dict[str, Any] = {"transform": axis.get_xaxis_transform(), "clip_on": False, "zorder": 5}
    axis.plot([x], [0], marker="s", markersize=4, color="white", **style)
    slashes: dict[str, Any] = {"marker": [(-0.4, -1), (0.4, 1)], "markersize": 7, "linestyle": ""}
    axis.plot([x / gap**0.07, x * gap**0.07], [0, 0], color=FAINT, **slashes, **style)
