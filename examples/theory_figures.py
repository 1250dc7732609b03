"""The paper's figures on its theory: the effect of noise, and the gradients of the losses."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from torch import Tensor

from ibinn.report.style import COLOURS, INK, STYLE

SHADES = ListedColormap(colormaps["Greens_r"](range(80, 256)))  # low is green, dark ink stays legible


class Space(NamedTuple):
    """One panel of the noise figure: points (N, 2) with labels, and noisy copies (M, n, 2) of a few of them."""

    title: str
    points: Tensor
    y: Tensor
    clouds: Tensor
    y_clouds: Tensor


class Landscape(NamedTuple):
    """One panel of the loss figure: a loss over a square of z, and its forces on a point and on the two means."""

    title: str
    x_axis: Tensor
    y_axis: Tensor
    loss: Tensor  # (len(y_axis), len(x_axis))
    z: Tensor  # (2,)
    mu: Tensor  # (2, 2)
    forces: Tensor  # (3, 2): minus the loss's gradient on z and on each mean


def draw_noise_amplification(spaces: Sequence[Space]) -> Figure:
    """The paper's figure 3 for data in the plane: clouds of noise in the input space and in latent spaces."""
    span = 1.1 * max(float(space.points.amax(0).sub(space.points.amin(0)).max()) for space in spaces)
    with rc_context(STYLE):
        figure = Figure(figsize=(3.1 * len(spaces), 3.6), layout="constrained")
        for position, space in enumerate(spaces):
            axis = figure.add_subplot(1, len(spaces), position + 1)
            draw_clouds(axis, space)
            middle = (space.points.amax(0) + space.points.amin(0)) / 2
            left, bottom = (middle - span / 2).tolist()  # the same scale in all panels
            axis.set(xlim=(left, left + span), ylim=(bottom, bottom + span), title=space.title)
            axis.set(xlabel="z₁" if position else "x₁", ylabel="z₂" if position else "x₂", aspect="equal")
            if position == 0:
                axis.legend(loc="upper left", markerscale=2)
    return figure


def draw_clouds(axis: Axes, space: Space) -> None:
    """Faint points in the colour of their class, with the clouds on top."""
    for label in range(int(space.y.max()) + 1):
        colour = COLOURS[label]
        points = space.points[space.y == label]
        noisy = space.clouds[space.y_clouds == label].flatten(0, 1)
        axis.scatter(points[:, 0], points[:, 1], s=5, c=colour, alpha=0.2, linewidths=0)
        axis.scatter(
            noisy[:, 0], noisy[:, 1], s=3, c=colour, alpha=0.7, linewidths=0, label=f"class {label}"
        )


def draw_loss_landscapes(landscapes: Sequence[Landscape]) -> Figure:
    """The paper's figure 4: losses over the latent plane, with their forces on one point and on both means."""
    with rc_context(STYLE):
        figure = Figure(figsize=(3.2 * len(landscapes), 3.3), layout="constrained")
        axes = [figure.add_subplot(1, len(landscapes), i + 1) for i in range(len(landscapes))]
        for axis, landscape in zip(axes, landscapes, strict=True):
            picture = draw_landscape(axis, landscape)
        bar = figure.colorbar(picture, ax=axes, ticks=[0, 1], fraction=0.03, pad=0.01, shrink=0.8)
        bar.ax.set_yticklabels(["lower\nloss", "higher\nloss"])
    return figure


def draw_landscape(axis: Axes, landscape: Landscape) -> QuadMesh:
    """One loss as shades. The scale ends at its 90 % quantile, because the structure is in the low values."""
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
    """A dotted line at equal distance from the two means."""
    (dx, dy), (x, y) = (mu[1] - mu[0]).tolist(), mu.mean(0).tolist()
    axis.axline((x, y), (x - dy, y + dx), color=INK, linestyle=":", linewidth=1)


def draw_forces(axis: Axes, landscape: Landscape) -> None:
    """The point and both means with arrows for the forces; the longest is a quarter of the means' distance."""
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
