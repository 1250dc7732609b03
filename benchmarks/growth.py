"""The growth of time with images, blocks, resolution, classes and features, as slopes on log-log axes.

    python benchmarks/growth.py

Slope 1 is linear. Fixed costs dominate at small sizes, so the slope is fitted to the upper half of the sizes.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from turns import save

from ibinn.flows.base import Chain
from ibinn.mixture import GaussianMixture
from ibinn.models.architectures import default_network, dense_flow, image_flow
from ibinn.models.classifier import GenerativeClassifier

ROUNDS = 5


def image_model(n_blocks: int = 4, side: int = 16, n_classes: int = 10) -> GenerativeClassifier:
    shape = (3, side, side)
    network = replace(
        default_network(shape),
        blocks=(0, n_blocks),
        widths=(32, 32),
        dropouts=(0.0, 0.0),
        dense_blocks=0,
    )
    return classifier(image_flow(shape, network), math.prod(shape), n_classes)


def classifier(flow: Chain, n_dims: int, n_classes: int = 10) -> GenerativeClassifier:
    model = GenerativeClassifier(flow, GaussianMixture(n_classes, n_dims))
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def step(model: GenerativeClassifier, x: Tensor) -> None:
    """A training step without the optimiser."""
    model.train().zero_grad()
    model.log_q_x(x).mean().backward()


@torch.no_grad()
def evaluate(model: GenerativeClassifier, x: Tensor) -> None:
    model.eval()(x)


def images_of(n: int = 64, side: int = 16) -> Tensor:
    return torch.randn(n, 3, side, side)


SWEEPS: dict[str, tuple[Sequence[int], Callable[[int], tuple[GenerativeClassifier, Tensor]]]] = {
    "images": ((16, 32, 64, 128, 256, 512), lambda n: (image_model(), images_of(n))),
    "blocks": ((4, 8, 16, 32, 64), lambda n: (image_model(n), images_of())),
    "pixels": ((8, 16, 32, 64), lambda side: (image_model(side=side), images_of(32, side))),
    "classes": ((10, 30, 100, 300, 1000), lambda n: (image_model(n_classes=n), images_of())),
    "features": (
        (2, 10, 50, 200, 500, 1000, 2000),
        lambda n: (classifier(dense_flow(n), n), torch.randn(256, n)),
    ),
}


def seconds_of(
    work: Callable[[GenerativeClassifier, Tensor], None], model: GenerativeClassifier, x: Tensor
) -> float:
    best = math.inf
    for number in range(ROUNDS + 1):
        start = time.perf_counter()
        work(model, x)
        if number:
            best = min(best, time.perf_counter() - start)
    return best


def main() -> None:
    rows = []
    for name, (sizes, make) in SWEEPS.items():
        times: dict[str, list[float]] = {"training": [], "evaluation": []}
        for size in sizes:
            torch.manual_seed(0)
            model, x = make(size)
            times["training"].append(seconds_of(step, model, x))
            times["evaluation"].append(seconds_of(evaluate, model, x))
        amounts = np.square(sizes) if name == "pixels" else np.array(sizes)
        upper = len(sizes) // 2
        for work, seconds in times.items():
            slope = float(np.polyfit(np.log(amounts[upper:]), np.log(seconds[upper:]), 1)[0])
            rows.append(
                {"over": name, "work": work, "sizes": amounts.tolist(), "seconds": seconds, "slope": slope}
            )
            listed = "  ".join(f"{1e3 * s:.1f}" for s in seconds)
            print(
                f"{name:9} {amounts[0]} to {amounts[-1]:5}  {work:10} ms {listed}  slope {slope:.2f}",
                flush=True,
            )
    save("growth", rows, rounds=ROUNDS)


if __name__ == "__main__":
    main()
