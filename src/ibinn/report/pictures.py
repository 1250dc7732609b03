"""Images in rows: contact sheets, samples, interpolations, and one image on its way out of the distribution.

Lengths on a sheet are in dots of the written PNG, so that each pixel of an image is a whole number of them.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from numpy.typing import NDArray

from ibinn.report.style import (
    FAINT,
    INK,
    MOST_COLOURED,
    PAGE,
    STYLE,
    Arrays,
    class_key,
    fit_view,
    label_points,
    plain,
    scatter_classes,
    spread_labels,
    text_width,
)

DOTS: int = STYLE["savefig.dpi"]  # to an inch
MARGIN, HEAD, GAP = 24, 44, 4
SIDES = (96, 72, 48, 32)  # of an image, tried in this order until enough fit on the page
MOST_ROWS = 25
SHOWN_STEPS = 10


class Grid(NamedTuple):
    """A titled block of a sheet: images (rows, columns, H, W, C), each row with a label on its left."""

    title: str
    labels: Sequence[str]
    images: NDArray[Any]


def draw_contact_sheet(sheets: Mapping[str, NDArray[Any]], columns: int = 8, levels: int = 256) -> Figure:
    """Draw blocks of images, two side by side, as in the paper's figure of OoD examples.

    Parameters
    ----------
    sheets : mapping of str to (n, H, W, C)
        The images of each block by its title, C = 1 or 3, with values from 0 to levels - 1.
    columns : int
        Number of images per row.
    levels : int
        Number of grey levels.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> sheets = {"test": np.zeros((16, 8, 8, 1)), "inverted": np.full((16, 8, 8, 1), 255)}
    >>> len(draw_contact_sheet(sheets).axes)
    2
    """
    if not sheets:
        raise ValueError("sheets is empty; give at least one set of images to draw")
    blocks = [tile(images, columns, levels) for images in sheets.values()]
    across = min(2, len(blocks))
    width = max(block.shape[1] for block in blocks) + MARGIN
    heights = [
        max(len(block) for block in blocks[i : i + across]) + HEAD for i in range(0, len(blocks), across)
    ]
    with rc_context(STYLE):
        figure = new_sheet(across * width + MARGIN, sum(heights) + MARGIN)
        for i, (title, block) in enumerate(zip(sheets, blocks, strict=True)):
            left, top = MARGIN + i % across * width, sum(heights[: i // across]) + HEAD
            show_block(figure, block, left, top, title)
    return figure


def draw_samples(samples: NDArray[Any], classes: Sequence[str], levels: int) -> Figure:
    """Draw samples in a row for each class, as many of them as fit on a page.

    More than 25 classes are split into several columns of rows.

    Parameters
    ----------
    samples : (K, n, H, W, C)
        n images of each class, C = 1 or 3, with values from 0 to levels - 1.
    classes : sequence of str
        The K class names.
    levels : int
        Number of grey levels.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> figure = draw_samples(np.zeros((2, 5, 8, 8, 1)), ["cat", "dog"], levels=256)
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['cat', 'dog']
    """
    check_samples("samples", samples, classes)
    parts = -(-len(classes) // MOST_ROWS)
    rows = -(-len(classes) // parts)
    spans = [slice(start, start + rows) for start in range(0, len(classes), rows)]
    side, shown = fit(
        samples.shape, len(spans), sum(label_width(classes[span]) for span in spans), wanted=3
    )
    grids = [Grid("", classes[span], samples[span, :shown]) for span in spans]
    return draw_grids(grids, levels, side)


def draw_sample_sets(
    sets: Mapping[str, NDArray[Any] | None], classes: Sequence[str], levels: int
) -> Figure:
    """Samples (K, n, H, W, C) of several models side by side, titled by their keys; None: a model without samples.

    Only the first 25 classes, and as many samples per row as fit on a page.
    """
    there = {title: samples for title, samples in sets.items() if samples is not None}
    if not there:
        raise ValueError("sets holds no samples; give those of at least one model")
    for title, samples in there.items():
        check_samples(f"sets[{title!r}]", samples, classes)
    classes = classes[:MOST_ROWS]
    smallest = min((samples.shape for samples in there.values()), key=lambda shape: shape[1])
    side, shown = fit(smallest, len(there), label_width(classes), wanted=3)
    grids = [
        Grid(title, classes if i == 0 else (), samples[:MOST_ROWS, :shown])
        for i, (title, samples) in enumerate(there.items())
    ]
    return draw_grids(grids, levels, side)


def draw_interpolations(rows: Sequence[tuple[str, NDArray[Any]]], levels: int) -> Figure:
    """Each row a label and images (steps, H, W, C) from one test image, the first, to another, the last."""
    shapes = {images.shape for _, images in rows}
    if len(shapes) != 1:
        raise ValueError(f"rows have shapes {sorted(shapes)} but must be of one shape, (steps, H, W, C)")
    labels, images = [label for label, _ in rows], np.stack([images for _, images in rows])
    side, _ = fit(images.shape, 1, label_width(labels), wanted=images.shape[1])
    figure = draw_grids([Grid("test image", labels, images)], levels, side)
    with rc_context(STYLE):
        figure.axes[0].set_title("test image", loc="right", pad=3)
        if images.shape[1] > 5:  # room between the two titles
            figure.axes[0].set_title("between them in latent space", pad=3, color=FAINT)
    return figure


def check_samples(name: str, samples: NDArray[Any], classes: Sequence[str]) -> None:
    """Raise ValueError unless samples are (K, n, H, W, C) with n > 0 for K classes."""
    if samples.ndim != 5 or len(samples) != len(classes) or samples.shape[1] == 0:
        raise ValueError(
            f"{name} has shape {samples.shape} but must be (K, n, H, W, C) for {len(classes)} classes, n > 0"
        )


# --- sheets of grids ---------------------------------------------------------------------------------


def draw_grids(grids: Sequence[Grid], levels: int, side: int) -> Figure:
    """The grids from left to right, each below its title and beside its rows' labels."""
    blocks = [
        tile(grid.images.reshape(-1, *grid.images.shape[2:]), grid.images.shape[1], levels, side)
        for grid in grids
    ]
    lefts: list[int] = []
    right = MARGIN
    for grid, block in zip(grids, blocks, strict=True):
        lefts.append(right + label_width(grid.labels))
        right = lefts[-1] + block.shape[1] + MARGIN
    top = HEAD if any(grid.title for grid in grids) else MARGIN
    with rc_context(STYLE):
        figure = new_sheet(right, top + max(len(block) for block in blocks) + MARGIN)
        for grid, block, left in zip(grids, blocks, lefts, strict=True):
            axis = show_block(figure, block, left, top, grid.title)
            row = (len(block) + GAP) / len(grid.images)
            for i, label in enumerate(grid.labels):
                place = (-0.4 * MARGIN, (i + 0.5) * row - GAP / 2)
                axis.text(*place, plain(label), ha="right", va="center", fontsize=label_size(grid.labels))
    return figure


def fit(shape: Sequence[int], n_grids: int, labels: int, wanted: int) -> tuple[int, int]:
    """The largest side at which `wanted` images (or all) of each row fit on a page, and how many fit.

    shape is that of a grid's images, labels the width of all labels.
    """
    room = (PAGE * DOTS - labels - MARGIN) / n_grids - MARGIN
    for side in SIDES:
        zoom = max(1, round(side / shape[3]))
        many = min(shape[1], int((room + GAP) // (zoom * shape[3] + 2 + GAP)))
        if many >= min(wanted, shape[1]):
            break
    return side, max(1, many)


def label_size(labels: Sequence[str]) -> float:
    """Font size of labels: smaller for many rows."""
    return 9.0 if len(labels) <= 12 else 7.0


def label_width(labels: Sequence[str]) -> int:
    """Room for the labels on the left of a grid."""
    widest = max((text_width(plain(label), label_size(labels)) for label in labels), default=0.0)
    return round(widest / 72 * DOTS) + round(0.6 * MARGIN) if widest else 0


def new_sheet(width: int, height: int) -> Figure:
    """An empty figure of this size in dots."""
    return Figure(figsize=(width / DOTS, height / DOTS))


def show_block(figure: Figure, block: NDArray[np.float64], left: int, top: int, title: str) -> Axes:
    """Show a block (height, width, 3) dot by dot at a distance from the figure's left and upper edges."""
    width, height = figure.get_size_inches() * DOTS
    place = (
        left / width,
        1 - (top + len(block)) / height,
        block.shape[1] / width,
        len(block) / height,
    )
    axis = figure.add_axes(place, xticks=[], yticks=[], frame_on=False)
    axis.imshow(block, interpolation="nearest", aspect="auto")
    axis.set_title(title, loc="left", pad=3)
    return axis


def tile(images: NDArray[Any], columns: int, levels: int, side: int = 96) -> NDArray[np.float64]:
    """Images (n, H, W, C) in thin frames side by side on white, RGB in [0, 1], each about `side` dots wide.

    A pixel is a whole number of dots, so all look equally wide.
    """
    if images.ndim != 4 or images.shape[3] not in (1, 3) or len(images) == 0:
        raise ValueError(
            f"images have shape {images.shape} but must be (n, H, W, C), with n > 0 and C = 1 or 3"
        )
    n, height, width, _ = images.shape
    zoom = max(1, round(side / width))
    rows, gap = -(-n // columns), GAP
    sheet = np.ones((rows * columns, zoom * height + 2 + gap, zoom * width + 2 + gap, 3))
    sheet[:n, :-gap, :-gap] = 0.8
    sheet[:n, 1 : -gap - 1, 1 : -gap - 1] = (
        (images / (levels - 1)).repeat(zoom, axis=1).repeat(zoom, axis=2)
    )
    sheet = sheet.reshape(rows, columns, *sheet.shape[1:]).swapaxes(1, 2)
    return sheet.reshape(rows * sheet.shape[1], columns * sheet.shape[3], 3)[:-gap, :-gap]


# --- out of the distribution -------------------------------------------------------------------------


def draw_trajectory(arrays: Arrays, classes: Sequence[str], levels: int) -> Figure:
    """The appendix's figure: how one image leaves its class in latent space, step by step, and its p-values.

    arrays: trajectory/images (steps, H, W, C), /points (steps, 2), /amount, /p (steps,), /y, and latent/*; the
    amount is in degrees of colour, or for grey images in percent inverted.
    At most 10 steps are shown.
    """
    missing = [name for name in ("images", "points", "amount", "p") if f"trajectory/{name}" not in arrays]
    if missing:
        raise ValueError(f"arrays lack trajectory/{missing[0]}; evaluate the run with a trajectory")
    n = len(arrays["trajectory/images"])
    steps = np.linspace(0, n - 1, min(n, SHOWN_STEPS)).round().astype(int)
    with rc_context(STYLE):
        figure = Figure(figsize=(PAGE, 5.6), layout="constrained")
        frame = figure.add_gridspec(2, max(6, len(steps)), height_ratios=(4, 1))
        axis = figure.add_subplot(frame[0, :])
        scatter_classes(axis, arrays, len(classes))
        axis.set(ylabel="2nd axis of the means")
        points = arrays["trajectory/points"][steps]
        labels = draw_path(axis, points)
        if "latent/mu" in arrays and len(classes) <= MOST_COLOURED:
            labels += label_points(axis, arrays["latent/mu"], [plain(name) for name in classes])
        if "trajectory/y" in arrays:
            axis.set_title(f"an image of class {plain(classes[int(arrays['trajectory/y'])])}")
        fit_view(axis, arrays.get("latent/points"), points, arrays.get("latent/mu"))
        class_key(figure, [axis], classes, "outside right center")
        pictures = [figure.add_subplot(frame[1, column]) for column in range(len(steps))]
        for i, (picture, step) in enumerate(zip(pictures, steps, strict=True)):
            draw_step(picture, arrays, int(step), levels)
            picture.set_title(f"{i + 1}", pad=3)
        unit = "turned (°)" if arrays["trajectory/images"].shape[3] == 3 else "inverted (%)"
        write_below(pictures[0], -0.1, f"{unit}\np-value", "right")
        figure.draw_without_rendering()
        spread_labels(axis, labels, keep_free=along(points))
    return figure


def draw_path(axis: Axes, points: NDArray[Any]) -> list[Annotation]:
    """An arrowed line through points (n, 2); their numbers, from 1."""
    axis.plot(*points.T, color=INK, linewidth=1.2, marker="o", markersize=3, zorder=5)
    style = {"arrowstyle": "-|>", "color": INK, "mutation_scale": 7, "shrinkA": 0, "shrinkB": 0}
    for start, end in pairwise(points):
        if not np.array_equal(start, end):
            axis.annotate("", xy=end, xytext=start, arrowprops=style, zorder=5)
    return label_points(axis, points, [f"{i + 1}" for i in range(len(points))], size=9)


def along(points: NDArray[Any]) -> NDArray[np.float64]:
    """Points (n, 2) and nineteen more between each two neighbours."""
    places = np.linspace(0, len(points) - 1, 20 * (len(points) - 1) + 1)
    return np.stack([np.interp(places, np.arange(len(points)), values) for values in points.T], axis=1)


def draw_step(axis: Axes, arrays: Arrays, step: int, levels: int) -> None:
    """One image of the trajectory, the amount of change and its p-value below it."""
    axis.imshow(tile(arrays["trajectory/images"][step : step + 1], 1, levels), interpolation="nearest")
    axis.set(xticks=[], yticks=[], frame_on=False)
    amount, p = (float(arrays[f"trajectory/{name}"][step]) for name in ("amount", "p"))
    write_below(axis, 0.5, f"{amount:.0f}\n{p:.2g}", "center")


def write_below(axis: Axes, x: float, text: str, ha: str) -> None:
    """Text below a picture; x runs from 0 to 1 along its edge."""
    axis.text(x, -0.06, text, transform=axis.transAxes, ha=ha, va="top", fontsize=8, linespacing=1.3)
