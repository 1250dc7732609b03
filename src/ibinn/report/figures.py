"""Numbers -> Figure. No model is asked here, and only `save_figure` writes."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from ibinn.files import write_whole

# Okabe and Ito's palette: colour-blind readers can tell them apart.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
INK, FAINT = "#222222", "#9a9a9a"
SHADES = ListedColormap(colormaps["Greens_r"](range(80, 256)))  # low is green, dark ink stays legible
STYLE: dict[Any, Any] = {
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "savefig.dpi": 200,
    "pdf.fonttype": 42,
}


class Space(NamedTuple):
    """One panel of the noise figure: points (N, 2) with labels, and noisy copies (M, n, 2) of a few of them."""

    title: str
    points: Tensor
    y: Tensor
    clouds: Tensor
    y_clouds: Tensor


class Landscape(NamedTuple):
    """One panel of the loss figure: a loss over a square of z, and its pull on a point and on the two means."""

    title: str
    x_axis: Tensor
    y_axis: Tensor
    loss: Tensor  # (len(y_axis), len(x_axis))
    z: Tensor  # (2,)
    mu: Tensor  # (2, 2)
    forces: Tensor  # (3, 2): minus the loss's gradient on z and on each mean


def save_figure(figure: Figure, stem: Path) -> None:
    """Write stem.png and stem.pdf, each whole or not at all."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    with rc_context(STYLE):
        for suffix in ("png", "pdf"):
            drawn = io.BytesIO()
            figure.savefig(drawn, format=suffix)
            write_whole(stem.with_name(f"{stem.name}.{suffix}"), drawn.getvalue())


def draw_noise_amplification(spaces: Sequence[Space]) -> Figure:
    """The paper's figure 3 for data in the plane: clouds of noise in the input space and in latent spaces."""
    span = 1.1 * max(float(space.points.amax(0).sub(space.points.amin(0)).max()) for space in spaces)
    with rc_context(STYLE):
        figure = Figure(figsize=(3.1 * len(spaces), 3.6), layout="constrained")
        for position, space in enumerate(spaces):
            axis = figure.add_subplot(1, len(spaces), position + 1)
            draw_clouds(axis, space)
            middle = (space.points.amax(0) + space.points.amin(0)) / 2
            left, bottom = (middle - span / 2).tolist()  # one scale for all panels: sizes compare
            axis.set(xlim=(left, left + span), ylim=(bottom, bottom + span), title=space.title)
            axis.set(xlabel="z₁" if position else "x₁", ylabel="z₂" if position else "x₂", aspect="equal")
            if position == 0:
                axis.legend(loc="upper left", markerscale=2)
    return figure


def draw_clouds(axis: Axes, space: Space) -> None:
    """Faint points by class, and on top of them the clouds in the colour of their class."""
    for label in range(int(space.y.max()) + 1):
        colour = COLOURS[label]
        points = space.points[space.y == label]
        noisy = space.clouds[space.y_clouds == label].flatten(0, 1)
        axis.scatter(points[:, 0], points[:, 1], s=5, c=colour, alpha=0.2, linewidths=0)
        axis.scatter(
            noisy[:, 0], noisy[:, 1], s=3, c=colour, alpha=0.7, linewidths=0, label=f"class {label}"
        )


def draw_loss_landscapes(landscapes: Sequence[Landscape]) -> Figure:
    """The paper's figure 4: losses over the latent plane, with their pull on one point and on both means."""
    with rc_context(STYLE):
        figure = Figure(figsize=(3.2 * len(landscapes), 3.3), layout="constrained")
        axes = [figure.add_subplot(1, len(landscapes), i + 1) for i in range(len(landscapes))]
        for axis, landscape in zip(axes, landscapes, strict=True):
            picture = draw_landscape(axis, landscape)
        bar = figure.colorbar(picture, ax=axes, ticks=[0, 1], fraction=0.03, pad=0.01, shrink=0.8)
        bar.ax.set_yticklabels(["lower\nloss", "higher\nloss"])
    return figure


def draw_landscape(axis: Axes, landscape: Landscape) -> QuadMesh:
    """One loss as shades, scaled to its own range; the nine tenths that are low show the structure."""
    low, high = float(landscape.loss.min()), float(landscape.loss.quantile(0.9))
    shades = ((landscape.loss - low) / (high - low)).clamp(0, 1)
    x_axis, y_axis = landscape.x_axis.numpy(), landscape.y_axis.numpy()
    picture = axis.pcolormesh(
        x_axis, y_axis, shades.numpy(), cmap=SHADES, shading="gouraud", rasterized=True
    )
    axis.set(xlim=(x_axis[0], x_axis[-1]), ylim=(y_axis[0], y_axis[-1]), xlabel="z₁", ylabel="z₂")
    axis.set(aspect="equal", title=landscape.title)
    draw_boundary(axis, landscape.mu)
    draw_forces(axis, landscape)
    return picture


def draw_boundary(axis: Axes, mu: Tensor) -> None:
    """The line of equal distance to two means, dotted."""
    (dx, dy), (x, y) = (mu[1] - mu[0]).tolist(), mu.mean(0).tolist()
    axis.axline((x, y), (x - dy, y + dx), color=INK, linestyle=":", linewidth=1)


def draw_forces(axis: Axes, landscape: Landscape) -> None:
    """The point and both means, each with its force as an arrow; the longest spans a quarter of their distance."""
    starts = torch.cat([landscape.z[None], landscape.mu])
    longest = landscape.forces.norm(dim=1).max()
    arrows = 0.25 * torch.pdist(landscape.mu) * landscape.forces / longest
    for start, arrow, label in zip(starts, arrows, ["×", "μ₀", "μ₁"], strict=True):
        if arrow.norm() > 0.02 * arrows.norm():
            style = {"arrowstyle": "-|>", "color": COLOURS[5], "linewidth": 1.8, "shrinkA": 0, "shrinkB": 0}
            root = start + 0.4 * arrow / arrow.norm()  # clear of the label
            axis.annotate("", xy=(root + arrow).tolist(), xytext=root.tolist(), arrowprops=style)
        axis.annotate(
            label, start.tolist(), ha="center", va="center", fontsize=13, color=INK, weight="bold"
        )


def draw_contact_sheet(sheets: Mapping[str, NDArray[Any]], columns: int = 8, levels: int = 256) -> Figure:
    """The paper's figure of OoD examples: a titled block of images for each set, two blocks side by side.

    Each set is (n, H, W, C) with C = 1 or 3 and values 0 to levels - 1, drawn `columns` to a row.
    """
    if not sheets:
        raise ValueError("sheets is empty; give at least one set of images to draw")
    dots = STYLE["savefig.dpi"]
    margin, head = 24, 44  # in dots, as all lengths here
    blocks = [tile(images, columns, levels) for images in sheets.values()]
    across = min(2, len(blocks))
    width = max(block.shape[1] for block in blocks) + margin
    heights = [
        max(len(block) for block in blocks[i : i + across]) + head for i in range(0, len(blocks), across)
    ]
    size = (across * width + margin, sum(heights) + margin)
    with rc_context(STYLE):
        figure = Figure(figsize=(size[0] / dots, size[1] / dots))
        for i, (title, block) in enumerate(zip(sheets, blocks, strict=True)):
            left, top = margin + i % across * width, sum(heights[: i // across]) + head
            place = (
                left / size[0],
                1 - (top + len(block)) / size[1],
                block.shape[1] / size[0],
                len(block) / size[1],
            )
            axis = figure.add_axes(place, xticks=[], yticks=[], frame_on=False)
            axis.imshow(block, interpolation="nearest", aspect="auto")
            axis.set_title(title, loc="left", pad=3)
    return figure


def tile(images: NDArray[Any], columns: int, levels: int) -> NDArray[np.float64]:
    """Images (n, H, W, C) in thin frames side by side on white, RGB in [0, 1], each about 96 dots wide.

    A pixel is a whole number of dots, so none looks wider than its neighbour.
    """
    if images.ndim != 4 or images.shape[3] not in (1, 3) or len(images) == 0:
        raise ValueError(
            f"images have shape {images.shape} but must be (n, H, W, C), with n > 0 and C = 1 or 3"
        )
    n, height, width, _ = images.shape
    zoom = max(1, round(96 / width))
    rows, gap = -(-n // columns), 4
    sheet = np.ones((rows * columns, zoom * height + 2 + gap, zoom * width + 2 + gap, 3))
    sheet[:n, :-gap, :-gap] = 0.8
    sheet[:n, 1 : -gap - 1, 1 : -gap - 1] = (
        (images / (levels - 1)).repeat(zoom, axis=1).repeat(zoom, axis=2)
    )
    sheet = sheet.reshape(rows, columns, *sheet.shape[1:]).swapaxes(1, 2)
    return sheet.reshape(rows * sheet.shape[1], columns * sheet.shape[3], 3)[:-gap, :-gap]
