"""Several runs' numbers -> Figure: what gamma and sigma change, and latent spaces beside each other."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray

from ibinn.formats import gamma_text
from ibinn.report.figures import floats, usual_range
from ibinn.report.paper import IB_INN, PRINTED
from ibinn.report.quantities import (
    AVERAGED_ERROR,
    BITS,
    CI_XZ,
    ECE,
    ERROR,
    GEO_MEAN,
    ICE,
    LOSS_X,
    MCE,
    NLL_Y,
    PAPER_BITS,
    Quantity,
    entropy_increase,
    ood_auroc,
)
from ibinn.report.style import (
    COLOURS,
    FAINT,
    INK,
    MARKERS,
    MOST_COLOURED,
    PAGE,
    STYLE,
    Arrays,
    GammaAxis,
    class_key,
    fit_view,
    key_shape,
    label_points,
    new_panels,
    plain,
    scatter_classes,
    spread_labels,
    table_shape,
    write_note,
)
from ibinn.report.text import METHOD_NAMES
from ibinn.run.results import Results

BITS_TICKS = (1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 10, 12, 15, 20, 30, 50)  # even on a log scale
LINES = {"ibinn": "-", "vib": ":"}  # of the methods that have a gamma


class Look(NamedTuple):
    """Colour and mark of a curve: in ink, or as an OoD set's."""

    colour: str = INK
    mark: str = "o"


class Panel(NamedTuple):
    """A titled panel with a curve for each quantity, and a line at the value of pure chance."""

    title: str
    curves: Sequence[tuple[Quantity, Look]]
    chance: float | None = None


class Curve(NamedTuple):
    """Means over seeds, their standard errors (0 for one seed), and where all runs converged; each (n,)."""

    x: NDArray[np.float64]
    mean: NDArray[np.float64]
    error: NDArray[np.float64]
    converged: NDArray[np.bool_]

    def only(self, mask: NDArray[np.bool_]) -> "Curve":
        """The points where the mask is true."""
        return Curve(self.x[mask], self.mean[mask], self.error[mask], self.converged[mask])


def sweep_curve(
    runs: Sequence[Results], knob: Callable[[Results], float | None], quantity: Quantity
) -> Curve:
    """A quantity against a knob, sorted; runs that lack either are left out."""
    groups: dict[float, list[tuple[float, bool]]] = {}
    for run in runs:
        x, y = knob(run), quantity.value(run)
        if x is not None and y is not None and np.isfinite(y):
            groups.setdefault(x, []).append((y, run.converged))
    places = sorted(groups)
    values = [np.array([y for y, _ in groups[x]]) for x in places]
    errors = [y.std(ddof=1) / len(y) ** 0.5 if len(y) > 1 else 0.0 for y in values]
    converged = [all(sound for _, sound in groups[x]) for x in places]
    means = [y.mean() for y in values]
    return Curve(np.array(places), np.array(means), np.array(errors), np.array(converged, dtype=bool))


def panel_of(quantity: Quantity, title: str = "") -> Panel:
    title = title or quantity.heading[0].upper() + quantity.heading[1:]
    return Panel(title + quantity.arrow, [(quantity, Look())])


# --- gamma -------------------------------------------------------------------------------------------


def gamma_axis(runs: Sequence[Results]) -> GammaAxis:
    """The axis that holds every run's gamma."""
    gammas = floats(run.gamma for run in runs)
    inner = gammas[np.isfinite(gammas) & (gammas > 0)]
    low, high = (float(inner.min()), float(inner.max())) if len(inner) else (1.0, 1.0)
    gap = 10 ** max(0.5, 0.2 * np.log10(high / low))
    return GammaAxis(low, high, float(gap), bool((gammas == 0).any()), bool(np.isinf(gammas).any()))


def draw_gamma_panels(runs: Sequence[Results], score: str = "typicality") -> Figure:
    """The paper's figure 5: five numbers against gamma, IB-INN solid and VIB dotted, means over seeds."""
    sets = ood_sets(runs)
    areas = [(ood_auroc(name, score), look) for name, look in sets.items()]
    increases = [(entropy_increase(name), look) for name, look in sets.items()]
    panels = [
        *map(panel_of, (ERROR, BITS)),
        panel_of(GEO_MEAN, "Calibration error (%)"),
        Panel(f"OoD AUROC by {score} (%) ↑", areas, chance=50),
        Panel("OoD entropy increase (nats) ↑", increases),
    ]
    with rc_context(STYLE):
        figure, axes = new_panels(6, across=3, height=2.2)
        off_scale = draw_gamma(axes[:5], panels, runs)
        write_key(axes[5], runs, sets, off_scale)
    return figure


def draw_gamma_full(runs: Sequence[Results], score: str = "typicality") -> Figure:
    """The appendix's version: every number against gamma, a panel for each OoD set."""
    sets = ood_sets(runs)
    first = [panel_of(quantity) for quantity in (ERROR, NLL_Y, BITS, ECE, MCE, ICE)]
    groups = {
        "": [*first, panel_of(GEO_MEAN, "Geometric mean (%)")],
        "entropy increase (nats)": [
            Panel(f"{plain(name)} ↑", [(entropy_increase(name), look)]) for name, look in sets.items()
        ],
        f"AUROC (%), {score}": [
            Panel(f"{plain(name)} ↑", [(ood_auroc(name, score), look)], chance=50)
            for name, look in sets.items()
        ],
    }
    rows: list[tuple[str, list[Panel]]] = []
    for name, group in groups.items():
        across = table_shape(len(group), 4)[1] if group else 1
        rows += [(name, group[i : i + across]) for i in range(0, len(group), across)]
    with rc_context(STYLE):
        figure = Figure(figsize=(PAGE, 1.65 * len(rows)), layout="constrained")
        off_scale = False
        for i, (name, row) in enumerate(rows):
            axes = [figure.add_subplot(len(rows), 4, 4 * i + j + 1) for j in range(len(row))]
            off_scale |= draw_gamma(axes, row, runs)
            axes[0].set_ylabel(name, fontsize=8)
            for axis in axes:
                axis.tick_params(labelsize=8)
        write_key(figure.add_subplot(len(rows), 4, 8), runs, {}, off_scale)
    return figure


def ood_sets(runs: Sequence[Results]) -> dict[str, Look]:
    """The OoD sets of all runs in order of first appearance, with their looks."""
    names = dict.fromkeys(name for run in runs for name in run.ood)
    return {
        name: Look(COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]) for i, name in enumerate(names)
    }


def draw_gamma(axes: Sequence[Axes], panels: Sequence[Panel], runs: Sequence[Results]) -> bool:
    """The panels on these axes, all over the same gammas; whether some number is off the scale."""
    runs = [run for run in runs if run.method in LINES]
    if not runs:
        raise ValueError(f"no run has a gamma to compare; give runs of {' or '.join(LINES)}")
    gammas = gamma_axis(runs)
    off_scale = False
    for axis, panel in zip(axes, panels, strict=True):
        drawn = []
        for quantity, look in panel.curves:
            for method, line in LINES.items():
                of_method = [run for run in runs if run.method == method]
                curve = sweep_curve(of_method, lambda run: run.gamma, quantity)
                inner = np.isfinite(curve.x) & (curve.x > 0)
                at = curve._replace(x=gammas.positions(curve.x))
                draw_curve(axis, at.only(inner), look, line)
                draw_curve(axis, at.only(~inner), look, "")
                alone = ~inner | (inner.sum() == 1)  # where no line shows the method
                for x, mean in zip(at.x[alone], at.mean[alone], strict=True):
                    axis.plot([x / gammas.margin, x * gammas.margin], [mean, mean], line, color=look.colour)
                drawn.append((at, look))
        off_scale |= clip_spikes(axis, drawn)
        if panel.chance is not None:
            low, high = axis.get_ylim()
            if high - low < 1:  # percent: smaller differences do not matter
                axis.set_ylim((low + high - 1) / 2, (low + high + 1) / 2)
            axis.axhline(panel.chance, color=INK, linewidth=0.8, zorder=1)
        if not axis.containers:
            write_note(axis, "no values")
        axis.set_title(panel.title)
        gammas.set_ticks(axis)
    return off_scale


def clip_spikes(axis: Axes, curves: Sequence[tuple[Curve, Look]]) -> bool:
    """Replace the few values that would flatten all others by arrows at the edge; whether there are any."""
    values = np.concatenate([np.empty(0), *(curve.mean for curve, _ in curves)])
    bottom, top = usual_range(values, 25, 75)
    if ((values >= bottom) & (values <= top)).all():
        return False
    axis.set_ylim(bottom, top)
    for curve, look in curves:
        for edge, beyond, arrow in ((0.97, curve.mean > top, "↑"), (0.03, curve.mean < bottom, "↓")):
            for x in curve.x[beyond]:
                place = axis.get_xaxis_transform()
                axis.text(x, edge, arrow, transform=place, color=look.colour, ha="center", va="center")
    return True


def draw_curve(axis: Axes, curve: Curve, look: Look, line: str) -> None:
    """Means with bars of one standard error; hollow marks where a run did not converge."""
    if not len(curve.x):
        return
    style: dict[str, Any] = {"color": look.colour, "marker": look.mark, "markersize": 4}
    axis.errorbar(curve.x, curve.mean, curve.error, linestyle=line, linewidth=1.3, elinewidth=1, **style)
    hollow = curve.only(~curve.converged)
    if len(hollow.x):
        axis.plot(hollow.x, hollow.mean, linestyle="", markerfacecolor="white", zorder=3, **style)


def write_key(axis: Axes, runs: Sequence[Results], sets: Mapping[str, Look], off_scale: bool) -> None:
    """The legend of lines, colours and marks, in a panel of its own."""
    axis.set_axis_off()
    methods = {run.method for run in runs}
    key = [
        (METHOD_NAMES[method], Line2D([], [], color=INK, ls=line, marker="o", markersize=4))
        for method, line in LINES.items()
        if method in methods
    ]
    if any(run.method in LINES and not run.converged for run in runs):
        hollow: dict[str, Any] = {"marker": "o", "markersize": 4, "markerfacecolor": "white"}
        key.append(("not converged", Line2D([], [], color=INK, linestyle="", **hollow)))
    for name, (colour, mark) in sets.items():
        key.append((plain(name), Line2D([], [], color=colour, marker=mark, markersize=4)))
    key.append(("chance", Line2D([], [], color=INK, linewidth=0.8)))
    if off_scale:
        key.append(("off the scale", Line2D([], [], color=INK, linestyle="", marker=r"$\uparrow$")))
    axis.legend([line for _, line in key], [name for name, _ in key], loc="center")


# --- the front ---------------------------------------------------------------------------------------


def draw_front(runs: Sequence[Results]) -> Figure:
    """Error against bits/dim, a point for each gamma of the IB-INN, and beside it the paper's printed points.

    The printed bits/dim are turned into exact ones: less the constant of the authors' convention.
    """
    found = [run for run in runs if run.method == "ibinn" and run.gamma and run.converged]
    found = [run for run in found if BITS.finite(run) is not None]
    if not found:
        raise ValueError("no IB-INN has bits/dim and an error; give runs with a gamma above 0")
    bits, error = (sweep_curve(found, lambda run: run.gamma, quantity) for quantity in (BITS, ERROR))
    plain = {run.gamma for run in found if run.averaged is None}
    averaged = sweep_curve(
        [run for run in found if run.gamma not in plain], lambda run: run.gamma, AVERAGED_ERROR
    )
    points = {
        f"γ = {gamma_text(x)}": at for x, *at in zip(bits.x, bits.mean, error.mean, strict=True)
    } | printed_front(found)
    style: dict[str, Any] = {"color": COLOURS[0], "marker": "o", "markersize": 4}
    with rc_context(STYLE):
        figure, (axis,) = new_panels(1, across=1, height=3.4)
        axis.errorbar(bits.mean, error.mean, error.error, bits.error, label="IB-INN", **style)
        if len(averaged.x):
            at = bits.mean[np.isin(bits.x, averaged.x)]
            axis.plot(at, averaged.mean, ":", markerfacecolor="w", label="averaged over views", **style)
        if paper := [*points.values()][len(bits.x) :]:
            axis.plot(*np.transpose(paper), "s", color=COLOURS[1], markersize=4, label="the paper's IB-INN")
        axis.set(xlabel=f"bits/dim{BITS.arrow}", ylabel=f"error (%){ERROR.arrow}", xscale="log")
        low, high = axis.get_xlim()
        ticks = [tick for tick in BITS_TICKS if low <= tick <= high]
        axis.xaxis.set_major_locator(FixedLocator(ticks) if len(ticks) > 2 else MaxNLocator(6))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.xaxis.set_major_formatter("{x:g}")
        axis.legend()
        figure.draw_without_rendering()
        spread_labels(axis, label_points(axis, np.array([*points.values()]), [*points]))
    return figure


def printed_front(runs: Sequence[Results]) -> dict[str, tuple[float, float]]:
    """The paper's points (exact bits/dim, error) by name, for the data set of these runs."""
    rows = [row for row in PRINTED.get(runs[0].dataset, ()) if row.group == IB_INN and "error" in row.cells]
    offsets = [
        value - (run.bits_per_dim or 0) for run in runs if (value := PAPER_BITS.finite(run)) is not None
    ]
    return {
        f"paper, {row.label}": (row.cells[PAPER_BITS.name] - offset, row.cells["error"])
        for row in rows
        for offset in offsets[:1]
    }


# --- sigma -------------------------------------------------------------------------------------------


def draw_sigma(runs: Sequence[Results]) -> Figure:
    """The appendix's figure: losses, performance and CI(X, Z) against the noise sigma, means over seeds.

    Beside CI(X, Z) the slope it must have for small sigma, -D log sigma, through the smallest sigma.
    """
    columns = ((LOSS_X, NLL_Y), (ERROR, BITS), (CI_XZ,))
    runs = [run for run in runs if run.sigma]
    levels = {run.levels for run in runs if run.levels}
    with rc_context(STYLE):
        figure = Figure(figsize=(PAGE, 3.6), layout="constrained")
        frame = figure.add_gridspec(2, 3)
        for j, panels in enumerate(columns):
            for i, quantity in enumerate(panels):
                axis = figure.add_subplot(frame[i, j] if len(panels) > 1 else frame[:, j])
                curve = sweep_curve(runs, lambda run: run.sigma, quantity)
                draw_curve(axis, curve, Look(COLOURS[0]), "-")
                if not len(curve.x):
                    write_note(axis, "no values")
                for n in levels:
                    axis.axvline(1 / n, color=FAINT, linewidth=1, linestyle=":", label=f"a level, 1/{n}")
                axis.set(xscale="log", title=panel_of(quantity).title)
            axis.set_xlabel("σ (pixel units)")
        draw_slope(axis, curve, runs[0].n_dims if runs else 0)
        figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def draw_slope(axis: Axes, curve: Curve, n_dims: int) -> None:
    """-D log sigma + const through the curve's first point, over the curve's range."""
    if len(curve.x):
        slope = curve.mean[0] - n_dims * np.log(curve.x / curve.x[0])
        label = f"slope for small σ: −D log σ, D = {n_dims}"
        axis.plot(curve.x, slope, color=INK, linestyle="--", linewidth=1, zorder=1, label=label)


# --- latent spaces -----------------------------------------------------------------------------------


def draw_latents(panels: Mapping[str, Arrays], classes: Sequence[str]) -> Figure:
    """The latent spaces of several runs, titled by their keys: test points by class, means with class names."""
    there = {title: arrays for title, arrays in panels.items() if "latent/points" in arrays}
    if not there:
        raise ValueError("panels hold no latent/points; evaluate at least one run that has a latent space")
    with rc_context(STYLE):
        _, columns = table_shape(len(there), across=3)
        rows, _ = key_shape(classes, PAGE if columns > 1 else 0.6 * PAGE)
        height = min(3.2, 0.6 + 0.8 * PAGE / columns)
        figure, axes = new_panels(len(there), across=3, height=height, key=0.2 * rows)
        labels = []
        for axis, (title, arrays) in zip(axes, there.items(), strict=True):
            scatter_classes(axis, arrays, len(classes))
            mu = arrays.get("latent/mu")
            fit_view(axis, arrays["latent/points"], mu)
            names = [plain(name, 12) for name in classes] if len(classes) <= MOST_COLOURED else []
            labels.append(label_points(axis, mu, names) if mu is not None and names else [])
            axis.set_title(plain(title, 30))
            if len(labels) % columns == 1 or columns == 1:
                axis.set_ylabel("2nd axis of the means")
        class_key(figure, axes, classes, "outside lower center")
        figure.draw_without_rendering()
        for axis, texts in zip(axes, labels, strict=True):
            spread_labels(axis, texts)
    return figure
