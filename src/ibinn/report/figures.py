"""Numbers -> Figure. Nothing here trains, and only `save_figure` writes."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from torch import Tensor

from ibinn.mixture import GaussianMixture
from ibinn.objectives import class_nll, loss_x, loss_y

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

Encode = Callable[[Tensor], Tensor]


def save_figure(figure: Figure, stem: Path) -> None:
    """Write stem.png and stem.pdf, each whole or not at all."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    with rc_context(STYLE):
        for suffix in ("png", "pdf"):
            part = stem.with_name(f".{stem.name}.{suffix}.part")
            figure.savefig(part, format=suffix)
            os.replace(part, stem.with_name(f"{stem.name}.{suffix}"))


@torch.no_grad()
def draw_noise_amplification(
    x: Tensor, y: Tensor, latents: Mapping[str, Encode], sigma: float, n_clouds: int = 10
) -> Figure:
    """What becomes of noise around a few inputs: the paper's figure 3, for data in the plane.

    x (N, 2), y (N,); latents maps a panel's title to x -> z. Each cloud is one input with many
    draws of N(0, sigma^2) noise, in the input space and as each latent space sees it.
    """
    chosen = spread_out(x, n_clouds)
    noise = sigma * torch.randn(n_clouds, 200, 2, generator=torch.Generator().manual_seed(0), dtype=x.dtype)
    clouds = x[chosen, None] + noise
    panels: dict[str, Encode] = {f"input X\nnoise σ = {sigma:g}": lambda v: v, **latents}
    span = 1.1 * max(float((z := encode(x)).amax(0).sub(z.amin(0)).max()) for encode in panels.values())
    with rc_context(STYLE):
        figure = Figure(figsize=(3.1 * len(panels), 3.6), layout="constrained")
        for position, (title, encode) in enumerate(panels.items()):
            axis = figure.add_subplot(1, len(panels), position + 1)
            points = encode(x)
            draw_clouds(axis, points, y, encode(clouds.flatten(0, 1)).view_as(clouds), y[chosen])
            middle = (points.amax(0) + points.amin(0)) / 2
            left, bottom = (middle - span / 2).tolist()  # one scale for all panels: sizes compare
            axis.set(xlim=(left, left + span), ylim=(bottom, bottom + span), title=title)
            axis.set(xlabel="z₁" if position else "x₁", ylabel="z₂" if position else "x₂", aspect="equal")
            if position == 0:
                axis.legend(loc="upper left", markerscale=2)
    return figure


def draw_clouds(axis: Axes, points: Tensor, y: Tensor, clouds: Tensor, y_clouds: Tensor) -> None:
    """Faint points (N, 2) by class, and on top of them clouds (M, n, 2) in the colour of their class."""
    for label in range(int(y.max()) + 1):
        of_class, noisy = points[y == label], clouds[y_clouds == label].flatten(0, 1)
        axis.scatter(of_class[:, 0], of_class[:, 1], s=5, c=COLOURS[label], alpha=0.2, linewidths=0)
        axis.scatter(
            noisy[:, 0], noisy[:, 1], s=3, c=COLOURS[label], alpha=0.7, linewidths=0, label=f"class {label}"
        )


def spread_out(x: Tensor, n: int) -> Tensor:
    """Indices of n rows of x that are far from each other but no outliers, the most central one first."""
    inside = ((x > x.quantile(0.1, dim=0)) & (x < x.quantile(0.9, dim=0))).all(1).nonzero().flatten()
    inner = x[inside]
    chosen = [int((inner - inner.mean(0)).norm(dim=1).argmin())]
    for _ in range(n - 1):
        chosen.append(int(torch.cdist(inner, inner[chosen]).amin(1).argmax()))
    return inside[chosen]


def draw_loss_landscapes(mixture: GaussianMixture) -> Figure:
    """L_X, L_Y and class-NLL over a plane of z for an input of class 0: the paper's figure 4.

    mixture has two classes in two dimensions. The cross is a latent vector, the arrows are minus
    the loss's gradient on it and on both means: who is pulled where, and who is not.
    """
    losses = {
        "our $\\mathcal{L}_X$: any class will do": lambda m, z, y: loss_x(
            m.log_q_z(z), z.new_zeros(len(z)), 2
        ),
        "our $\\mathcal{L}_Y$: only the class counts": lambda m, z, y: loss_y(m.scores(z), m.log_w, y),
        "class-NLL: no repulsion": lambda m, z, y: class_nll(
            m.log_q_z_given_y(z), z.new_zeros(len(z)), y, 2
        ),
    }
    with rc_context(STYLE):
        figure = Figure(figsize=(9.6, 3.3), layout="constrained")
        axes = [figure.add_subplot(1, len(losses), i + 1) for i in range(len(losses))]
        for axis, (title, loss) in zip(axes, losses.items(), strict=True):
            picture = draw_landscape(axis, mixture, loss)
            axis.set_title(title)
        bar = figure.colorbar(picture, ax=axes, ticks=[0, 1], fraction=0.03, pad=0.01, shrink=0.8)
        bar.ax.set_yticklabels(["lower\nloss", "higher\nloss"])
    return figure


def draw_landscape(
    axis: Axes, mixture: GaussianMixture, loss: Callable[[GaussianMixture, Tensor, Tensor], Tensor]
) -> QuadMesh:
    """One loss as shades over the plane, scaled to its own range there, with the forces of one point."""
    mu = mixture.mu.detach()
    side = torch.linspace(-1, 1, 201, dtype=mu.dtype) * 1.6 * float(torch.pdist(mu))
    centre = mu.mean(0)
    grid = torch.cartesian_prod(side, side) + centre
    with torch.no_grad():
        values = loss(mixture, grid, torch.zeros(len(grid), dtype=torch.int64)).view(201, 201).T
    low, high = float(values.min()), float(values.quantile(0.9))
    shades = ((values - low) / (high - low)).clamp(0, 1).numpy()
    x_axis, y_axis = (side + centre[0]).numpy(), (side + centre[1]).numpy()
    picture = axis.pcolormesh(x_axis, y_axis, shades, cmap=SHADES, shading="gouraud", rasterized=True)
    draw_boundary(axis, mu, float(side[-1]))
    draw_forces(axis, mixture, loss)
    axis.set(xlim=(x_axis[0], x_axis[-1]), ylim=(y_axis[0], y_axis[-1]), xlabel="z₁", ylabel="z₂")
    axis.set_aspect("equal")
    return picture


def draw_boundary(axis: Axes, mu: Tensor, reach: float) -> None:
    """The line of equal distance to two means, dotted."""
    along = (mu[1] - mu[0]).flip(0) * torch.tensor([-1.0, 1.0], dtype=mu.dtype)
    ends = mu.mean(0) + torch.tensor([[-1.0], [1.0]], dtype=mu.dtype) * 2 * reach * along / along.norm()
    axis.plot(*ends.T.numpy(), color=INK, linestyle=":", linewidth=1, scalex=False, scaley=False)


def draw_forces(
    axis: Axes, mixture: GaussianMixture, loss: Callable[[GaussianMixture, Tensor, Tensor], Tensor]
) -> None:
    """A latent vector of class 0 near the boundary, both means, and -gradient of the loss on each."""
    mu = mixture.mu.detach()
    away = (mu[1] - mu[0]).flip(0) * torch.tensor([1.0, -1.0], dtype=mu.dtype)
    z = (mu.mean(0) + 0.2 * (mu[0] - mu[1]) - 0.8 * away)[None].requires_grad_()
    on_z, on_mu = torch.autograd.grad(
        loss(mixture, z, torch.zeros(1, dtype=torch.int64)).sum(), (z, mixture.mu)
    )
    starts = torch.cat([z.detach(), mu])
    forces = -torch.cat([on_z, on_mu])
    forces = forces * 0.45 * float(torch.pdist(mu)) / forces.norm(dim=1).max()
    for start, force, label in zip(starts, forces, ["×", "μ₁", "μ₂"], strict=True):
        if force.norm() > 0.02 * forces.norm():
            arrow = {"arrowstyle": "-|>", "color": COLOURS[5], "linewidth": 1.8, "shrinkA": 9, "shrinkB": 0}
            tip = start + force * (1 + 0.25 * float(torch.pdist(mu)) / force.norm())
            axis.annotate("", xy=tip.tolist(), xytext=start.tolist(), arrowprops=arrow)
        axis.annotate(
            label, start.tolist(), ha="center", va="center", fontsize=13, color=INK, weight="bold"
        )
