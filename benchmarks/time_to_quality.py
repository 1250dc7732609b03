"""Time to a validation loss on CIFAR-10: the paper's network in FrEIA, and a run of ours at gamma = 1.

    python benchmarks/time_to_quality.py RUN --minutes 40

RUN is the folder of `ibinn train cifar10` at gamma = 1, on the same machine. The network in FrEIA is trained in
float32 for as many epochs as fit into the minutes: once with the paper's recipe, once with our one-cycle recipe.
The loss is L_X + L_Y on the validation split, in nats, with uniform noise for all: with the paper's Gaussian noise
L_X would not be comparable. The training loop and the augmentation are those of ibinn; only the network is not.
An interrupted run goes on.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rivals import NETWORKS, freia
from torch import Tensor
from turns import RESULTS, save

from ibinn._system import keep_freed_memory
from ibinn.config import Recipe
from ibinn.data.known import load
from ibinn.data.splits import split
from ibinn.flows.base import Bijection
from ibinn.run.facts import EpochLine, read_history
from ibinn.run.settings import read_config
from ibinn.training.data import TrainingData, build_pipeline
from ibinn.training.loop import Loop
from ibinn.training.options import TrainingOptions
from ibinn.training.progress import ConsoleObserver
from ibinn.training.recipes import RECIPES, configure
from ibinn.training.trainer import prepared_folder, resume

SPEED_STEPS = 5
RECIPES_TRIED: dict[str, Recipe] = {
    "the paper's recipe": replace(RECIPES["paper"], noise="uniform", sigma=0.0),
    # For a network without a summary: AdamW, and means that are not slow.
    "our one-cycle recipe": replace(RECIPES["base"], normalise="standard", optimizer="adamw", mu_rate=3.0),
}


class InFrEIA(Bijection):
    """The paper's network in FrEIA, in channels-last memory."""

    def __init__(self) -> None:
        super().__init__()
        self.network = freia(NETWORKS["paper"], channels_last=True).module
        for module in self.network.modules():  # FrEIA keeps permutations as parameters
            for name, value in [*module.named_parameters(recurse=False)]:
                if not value.is_floating_point():
                    delattr(module, name)
                    module.register_buffer(name, value.data)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z, log_det = self.network(x)
        return z, log_det

    def inverse(self, z: Tensor) -> Tensor:
        x: Tensor = self.network(z, rev=True, jac=False)[0]
        return x


def make_loop(recipe: Recipe, folder: Path | None, epochs: int) -> Loop:
    dataset = load("cifar10")
    splits = split(dataset, 0)
    config = configure(
        dataset,
        len(splits.train),
        size="paper",
        method="ibinn",
        gamma=1.0,
        seed=0,
        priors="data",
        precision="float32",
    )
    config = replace(config, recipe=replace(recipe, epochs=epochs, patience=0))
    pipeline = build_pipeline(config, dataset, splits.train)
    torch.manual_seed(0)
    pipeline.generative.flow = InFrEIA()
    options = TrainingOptions(folder=folder, resume=True)
    return Loop(TrainingData(pipeline, config, dataset, splits, options), options, ConsoleObserver())


def epochs_in(minutes: float, recipe: Recipe) -> int:
    """Whole epochs that fit, from the fastest of a few steps, and the time of a validation."""
    loop = make_loop(recipe, None, 1)
    rows = next(iter(loop.batches.epoch(0)))
    seconds = []
    for _ in range(SPEED_STEPS):
        start = time.perf_counter()
        loop.step(rows)
        seconds.append(time.perf_counter() - start)
    start = time.perf_counter()
    loop.data.validate(loop.average)
    return max(
        1,
        int(60 * minutes / (min(seconds) * len(loop.batches) + time.perf_counter() - start)),
    )


def trained(recipe: Recipe, folder: Path, minutes: float) -> tuple[EpochLine, ...]:
    config = folder / "config.toml"
    epochs = read_config(config).recipe.epochs if config.is_file() else epochs_in(minutes, recipe)
    loop = make_loop(recipe, folder, epochs)
    with prepared_folder(loop.data.config, loop.options):
        resume(loop)
        loop.run()
    return loop.position.history


def curve(name: str, history: tuple[EpochLine, ...]) -> dict[str, Any]:
    points = [
        {
            "minutes": line.seconds / 60,
            "loss": line.validation.loss,
            "error": line.validation.error,
            "bits_per_dim": line.validation.bits_per_dim,
        }
        for line in history
    ]
    return {"name": name, "epochs": len(points), "points": points}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--minutes", type=float, default=40)
    parser.add_argument("--runs", type=Path, default=Path("runs/time-to-quality"))
    options = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(2)
    rows = [curve("ibinn", tuple(read_history(options.run)))]
    for name, recipe in RECIPES_TRIED.items():
        folder = options.runs / name.replace(" ", "-").replace("'", "")
        rows.append(curve(f"FrEIA, {name}", trained(recipe, folder, options.minutes)))
        save("time_to_quality", rows, budget_minutes=options.minutes)
    bar = min(rows[1:], key=lambda row: row["points"][-1]["loss"])["points"][-1]
    for row in rows:
        there = next((p["minutes"] for p in row["points"] if p["loss"] <= bar["loss"]), None)
        print(f"{row['name']:30} loss {row['points'][-1]['loss']:.3f}  at the bar after {there} min")
    print(json.dumps(bar), RESULTS)


if __name__ == "__main__":
    main()
