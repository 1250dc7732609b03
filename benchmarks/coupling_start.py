"""Why the last convolution of a subnet starts at 0: the paper's network with both initialisations.

    make bench

Trains `paper_flow` for a few steps on smooth random colour images, once with He initialisation and once from 0.
Prints L_X, the gradient norm before clipping, and the float32 round-trip error with batch-norm refreshed. Takes
about four minutes on two cores.
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ibinn import (
    GaussianMixture,
    GenerativeClassifier,
    ib_loss,
    loss_x,
    loss_y,
    paper_flow,
    refresh_batch_norm,
)
from ibinn.flows.coupling import AffineCoupling


def smooth_images(n: int) -> tuple[Tensor, Tensor]:
    """Colour fields on a 4 x 4 grid, enlarged, with fine noise, (n, 3, 32, 32); labels by mean colour."""
    fields = F.interpolate(torch.randn(n, 3, 4, 4), size=32, mode="bicubic")
    x = fields + 0.1 * torch.randn(n, 3, 32, 32)
    return (x - x.mean()) / x.std(), fields.mean((2, 3)).argmax(1)


def from_he(model: GenerativeClassifier) -> None:
    """Give the last convolution of every subnet He initialisation, as the authors do."""
    for module in model.modules():
        subnet = module.subnet if isinstance(module, AffineCoupling) else None
        if isinstance(subnet, nn.Sequential) and isinstance(subnet[-1], nn.Conv2d):
            nn.init.kaiming_normal_(subnet[-1].weight)


def measure(start: str, seed: int, steps: int) -> None:
    """Print a row before the first step and one after the last; L_X is the mean of the last ten steps."""
    torch.manual_seed(seed)
    x, y = smooth_images(512)
    model = GenerativeClassifier(paper_flow(), mixture := GaussianMixture(3, 3072))
    if start == "He":
        from_he(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.07, momentum=0.9, weight_decay=1e-4)
    rates = []
    for step in range(steps + 1):
        batch = torch.randint(len(x), (32,))
        z, log_det = model.train().encode(x[batch])
        rate = loss_x(mixture.log_q_z(z), log_det, 3072)
        loss = ib_loss(
            rate, loss_y(mixture.scores(z), mixture.log_w, y[batch], smoothing=0.05), gamma=1.0
        ).mean()
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 8.0)
        rates.append(float(rate.mean().detach()))
        if step in (0, steps):
            refresh_batch_norm(model, x.split(64))
            recent = rates[-10:]
            print(
                f"{start:>2} start, seed {seed}, step {step:3}: L_X {sum(recent) / len(recent):6.2f} nats/dim, "
                f"gradient norm {norm:8.1e}, round-trip error {model.check_invertibility(x[:16]):8.1e}",
                flush=True,
            )
        optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    for seed in range(options.seeds):
        for start in ("He", "0"):
            measure(start, seed, options.steps)


if __name__ == "__main__":
    main()
