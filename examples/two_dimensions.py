"""Two classes in the plane whose true densities are known: train, compare with Bayes, draw two figures.

    python examples/two_dimensions.py --out runs/two_dimensions

Prints how far the learned posteriors are from the true one, and draws the paper's pictures of noise
amplification and of the loss landscapes from the trained model. Takes about a minute on two cores.
"""

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from ibinn import GaussianMixture, GenerativeClassifier, class_nll, dense_flow, ib_loss, loss_x, loss_y
from ibinn.objectives import ci_xz
from ibinn.report.figures import draw_loss_landscapes, draw_noise_amplification, save_figure

SIGMA = 0.02  # of the noise in training
PICTURED = 0.08  # of the noise in the figure, to be seen
ARC = torch.linspace(0, math.pi, 4, dtype=torch.float64)
CENTRES = torch.stack(  # (class, component, coordinate): two arcs that reach into each other
    [
        torch.stack([ARC.cos() - 0.5, ARC.sin() - 0.25], dim=1),
        torch.stack([0.5 - ARC.cos(), 0.25 - ARC.sin()], dim=1),
    ]
)
SPREAD = 0.3

Objective = Callable[[GenerativeClassifier, Tensor, Tensor], Tensor]


def true_class(y: int) -> MixtureSameFamily:
    """p(x|y): four round Gaussians along an arc."""
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


def train(
    objective: Objective, steps: int = 2000, sigma: float = SIGMA, seed: int = 0
) -> GenerativeClassifier:
    """A dense flow trained on fresh points, so that nothing can be overfitted."""
    torch.manual_seed(seed)
    model = GenerativeClassifier(dense_flow(2, blocks=12, width=64), GaussianMixture(2, 2))
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=steps)
    for _ in range(steps):
        x, y = draw_data(512)
        loss = objective(model, x + sigma * torch.randn_like(x), y).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()


@torch.no_grad()
def distance_to_bayes(model: GenerativeClassifier, n: int = 20_000) -> float:
    """Mean |q(y=1|x) - p(y=1|x)| over fresh points."""
    x, _ = draw_data(n)
    return float((model.log_q_y_given_x(x).exp() - true_posterior(x))[:, 1].abs().mean())


@torch.no_grad()
def cross_information(model: GenerativeClassifier, sigma: float, n: int = 20_000) -> float:
    """CI(X, Z) in nats at noise sigma."""
    x, _ = draw_data(n)
    return float(ci_xz(-model.log_q_x(x + sigma * torch.randn_like(x)) / 2, sigma, n_dims=2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=Path("runs/two_dimensions"), help="where the figures go"
    )
    parser.add_argument("--steps", type=int, default=2000, help="training steps of each model")
    options = parser.parse_args()

    models = {}
    objectives = {"gamma = 1": information_bottleneck(1.0), "class-NLL": only_class_nll}
    for name, objective in objectives.items():
        start = time.perf_counter()
        print(f"{name}: training {options.steps} steps ...", flush=True)
        models[name] = train(objective, options.steps)
        gap, seconds = distance_to_bayes(models[name]), time.perf_counter() - start
        print(f"{name}: mean distance to the true posterior {gap:.3f} ({seconds:.0f} s)", flush=True)

    model = models["gamma = 1"]
    torch.manual_seed(0)
    x, y = draw_data(600)
    untrained = GenerativeClassifier(dense_flow(2), GaussianMixture(2, 2)).eval()
    stages = {"latent Z before training": untrained, "latent Z after training": model}
    latents = {
        f"{name}\nCI(X, Z) = {cross_information(stage, PICTURED):.1f} nats": lambda v, s=stage: s.encode(v)[
            0
        ]
        for name, stage in stages.items()
    }
    save_figure(draw_noise_amplification(x, y, latents, PICTURED), options.out / "noise_amplification")
    save_figure(draw_loss_landscapes(GaussianMixture(2, 2, distance=3.0)), options.out / "loss_landscapes")
    print(f"figures are in {options.out}")


if __name__ == "__main__":
    main()
