"""Two classes in the plane with known densities: train, compare with Bayes' rule, draw two figures.

    python examples/two_dimensions.py --out runs/two_dimensions

Prints the distance of the learned posteriors to the true one, and draws two figures of the paper: the effect of
training on noise, and the landscapes of the three losses. Takes about a minute on two cores.
"""

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
from theory_figures import Landscape, Space, draw_loss_landscapes, draw_noise_amplification
from torch import Tensor
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from ibinn import GaussianMixture, GenerativeClassifier, class_nll, dense_flow, ib_loss, loss_x, loss_y
from ibinn.objectives import ci_xz
from ibinn.report.style import save_figure

SIGMA = 0.02  # of the noise in training
FIGURE_SIGMA = 0.08  # of the noise in the figure, where it must be visible
ARC = torch.linspace(0, math.pi, 4, dtype=torch.float64)
CENTRES = torch.stack(  # (class, component, coordinate): two interlocking arcs
    [
        torch.stack([ARC.cos() - 0.5, ARC.sin() - 0.25], dim=1),
        torch.stack([0.5 - ARC.cos(), 0.25 - ARC.sin()], dim=1),
    ]
)
SPREAD = 0.3

Objective = Callable[[GenerativeClassifier, Tensor, Tensor], Tensor]


def true_class(y: int) -> MixtureSameFamily:
    """p(x|y): four Gaussians along an arc."""
    centres = CENTRES[y].to(torch.get_default_dtype())
    return MixtureSameFamily(
        Categorical(logits=torch.zeros(len(centres))), Independent(Normal(centres, SPREAD), 1)
    )


def draw_data(n: int) -> tuple[Tensor, Tensor]:
    """n points and their classes, equally likely."""
    y = torch.randint(2, (n,))
    x = torch.where(y[:, None] == 0, true_class(0).sample((n,)), true_class(1).sample((n,)))
    return x, y


def true_posterior(x: Tensor) -> Tensor:
    """p(y|x), (B, 2), by Bayes' rule."""
    return torch.stack([true_class(0).log_prob(x), true_class(1).log_prob(x)], dim=1).softmax(1)


def information_bottleneck(gamma: float) -> Objective:
    """The IB loss at gamma as an objective for `train`."""

    def objective(model: GenerativeClassifier, x: Tensor, y: Tensor) -> Tensor:
        z, log_det = model.encode(x)
        mixture = model.mixture
        rate = loss_x(mixture.log_q_z(z), log_det, mixture.n_dims)
        return ib_loss(rate, loss_y(mixture.scores(z), mixture.log_w, y), gamma)

    return objective


def only_class_nll(model: GenerativeClassifier, x: Tensor, y: Tensor) -> Tensor:
    """-log q(x|y) / D as an objective for `train`."""
    z, log_det = model.encode(x)
    return class_nll(model.mixture.log_q_z_given_y(z), log_det, y, model.mixture.n_dims)


def new_model(seed: int = 0) -> GenerativeClassifier:
    """Twelve dense coupling blocks and two means, untrained."""
    torch.manual_seed(seed)
    return GenerativeClassifier(dense_flow(2, blocks=12, width=64), GaussianMixture(2, 2)).eval()


def train(name: str, objective: Objective, steps: int = 2000, sigma: float = SIGMA) -> GenerativeClassifier:
    """A model trained on new points in every step, so that it cannot overfit."""
    model = new_model().train()
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=steps)
    start = time.perf_counter()
    for step in range(1, steps + 1):
        x, y = draw_data(512)
        loss = objective(model, x + sigma * torch.randn_like(x), y).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 200 == 0:
            left = (time.perf_counter() - start) / step * (steps - step)
            print(f"{name}: step {step} of {steps}, loss {loss:.3f}, {left:.0f} s left", flush=True)
    return model.eval()


@torch.no_grad()
def distance_to_bayes(model: GenerativeClassifier, n: int = 20_000) -> float:
    """Mean |q(y=1|x) - p(y=1|x)| over new points."""
    x, _ = draw_data(n)
    return float((model.log_q_y_given_x(x).exp() - true_posterior(x))[:, 1].abs().mean())


@torch.no_grad()
def cross_information(model: GenerativeClassifier, sigma: float, n: int = 20_000) -> float:
    """CI(X, Z) in nats at noise sigma."""
    x, _ = draw_data(n)
    return float(ci_xz(-model.log_q_x(x + sigma * torch.randn_like(x)) / 2, sigma, n_dims=2))


@torch.no_grad()
def noise_spaces(models: dict[str, GenerativeClassifier], sigma: float) -> list[Space]:
    """Ten inputs with 200 noisy copies each, in the input space and in each model's latent space."""
    torch.manual_seed(0)
    x, y = draw_data(600)
    rows = spread_out(x, 10)
    clouds = x[rows, None] + sigma * torch.randn(10, 200, 2)
    spaces = [Space(f"input X\nnoise σ = {sigma:g}", x, y, clouds, y[rows])]
    for name, model in models.items():
        z, z_clouds = model.encode(x)[0], model.encode(clouds.flatten(0, 1))[0].view_as(clouds)
        title = f"{name}\nCI(X, Z) = {cross_information(model, sigma):.1f} nats"
        spaces.append(Space(title, z, y, z_clouds, y[rows]))
    return spaces


def spread_out(x: Tensor, n: int) -> Tensor:
    """Indices of n rows of x that are far apart but not outliers, the most central one first."""
    inside = ((x > x.quantile(0.1, dim=0)) & (x < x.quantile(0.9, dim=0))).all(1).nonzero().flatten()
    inner = x[inside]
    rows = [int((inner - inner.mean(0)).norm(dim=1).argmin())]
    for _ in range(n - 1):
        rows.append(int(torch.cdist(inner, inner[rows]).amin(1).argmax()))
    return inside[rows]


LOSSES: dict[str, Callable[[GaussianMixture, Tensor, Tensor], Tensor]] = {
    "our $\\mathcal{L}_X$: attraction to both means": lambda q, z, y: loss_x(
        q.log_q_z(z), z.new_zeros(len(z)), 2
    ),
    "our $\\mathcal{L}_Y$: repulsion from the other mean": lambda q, z, y: loss_y(q.scores(z), q.log_w, y),
    "class-NLL: no repulsion": lambda q, z, y: class_nll(q.log_q_z_given_y(z), z.new_zeros(len(z)), y, 2),
}


def loss_landscapes(mixture: GaussianMixture) -> list[Landscape]:
    """Each loss for an input of class 0, over a square around both means, and its forces on one point."""
    mu = mixture.mu.detach()
    side = 1.6 * torch.pdist(mu) * torch.linspace(-1, 1, 201)
    x_axis, y_axis = side + mu[:, 0].mean(), side + mu[:, 1].mean()
    grid = torch.cartesian_prod(y_axis, x_axis).flip(1)
    across = (mu[1] - mu[0]).flip(0) * torch.tensor([-1.0, 1.0])
    z = (mu.mean(0) + 0.2 * (mu[0] - mu[1]) + 0.8 * across)[None].requires_grad_()
    landscapes = []
    for title, loss in LOSSES.items():
        with torch.no_grad():
            values = loss(mixture, grid, torch.zeros(len(grid), dtype=torch.int64)).view(201, 201)
        on_point = loss(mixture, z, torch.zeros(1, dtype=torch.int64)).sum()
        forces = -torch.cat(torch.autograd.grad(on_point, (z, mixture.mu)))
        landscapes.append(Landscape(title, x_axis, y_axis, values, z[0].detach(), mu, forces))
    return landscapes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=Path("runs/two_dimensions"), help="folder for the figures"
    )
    parser.add_argument("--steps", type=int, default=2000, help="training steps of each model")
    options = parser.parse_args()

    models = {}
    objectives = {"gamma = 1": information_bottleneck(1.0), "class-NLL": only_class_nll}
    for name, objective in objectives.items():
        models[name] = train(name, objective, options.steps)
    for name, model in models.items():
        print(f"{name}: mean distance to the true posterior {distance_to_bayes(model):.3f}")

    stages = {"latent Z before training": new_model(), "latent Z after training": models["gamma = 1"]}
    figures = {
        "noise_amplification": draw_noise_amplification(noise_spaces(stages, FIGURE_SIGMA)),
        "loss_landscapes": draw_loss_landscapes(loss_landscapes(GaussianMixture(2, 2, distance=3.0))),
    }
    for name, figure in figures.items():
        save_figure(figure, options.out / name)
    print(f"figures are in {options.out}")


if __name__ == "__main__":
    main()
