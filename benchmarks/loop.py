"""The overhead of the training loop over forward, backward and step, with `small` on 28 x 28 grey images.

Compares a step of the loop (batch from the array, noise, normalisation, loss, clipping, moving average, checks,
counting) with forward, backward and optimiser step alone on a prepared batch. Both are measured in turns, and
the best of several rounds counts, because other work on the machine only adds time.
"""

import math
import time

import numpy as np
import torch

from ibinn.config import Precision
from ibinn.data.dataset import Dataset, Part
from ibinn.data.splits import split
from ibinn.training.data import TrainingData, build_pipeline
from ibinn.training.loop import Loop
from ibinn.training.options import TrainingOptions
from ibinn.training.progress import TrainingObserver
from ibinn.training.recipes import configure

ROUNDS, STEPS = 6, 8


def main() -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(256, size=(4000, 28, 28, 1), dtype=np.uint8)
    names = tuple("0123456789")
    dataset = Dataset("random", Part(images, np.arange(4000) % 10), None, names, 256)
    for precision in ("float32", "bf16"):
        compare(dataset, precision)


def compare(dataset: Dataset, precision: Precision) -> None:
    splits = split(dataset, 0)
    config = configure(
        dataset,
        len(splits.train),
        "small",
        method="ibinn",
        gamma=1.0,
        seed=0,
        priors="data",
        precision=precision,
    )
    options = TrainingOptions(save_every=math.inf)
    pipeline = build_pipeline(config, dataset, splits.train)
    loop = Loop(TrainingData(pipeline, config, dataset, splits, options), options, TrainingObserver())
    whole, bare = [], []
    for _ in range(ROUNDS):
        whole.append(seconds_of(loop_steps, loop))
        bare.append(seconds_of(bare_steps, loop))
    overhead = 100 * (min(whole) / min(bare) - 1)
    print(
        f"{precision}: loop {1e3 * min(whole):.1f} ms, bare {1e3 * min(bare):.1f} ms per step of "
        f"{config.recipe.batch_size}; overhead {overhead:.1f} %; {torch.get_num_threads()} threads"
    )


def seconds_of(work: object, loop: Loop) -> float:
    start = time.perf_counter()
    work(loop)  # type: ignore[operator]
    return (time.perf_counter() - start) / STEPS


def loop_steps(loop: Loop) -> None:
    loop.position.batch = 0
    for number, rows in enumerate(loop.batches.epoch(0)):
        if number == STEPS:
            return
        loop.step(rows)
        loop.position.batch += 1
        loop.observer.step(loop.position)
        loop.save_or_stop()


def bare_steps(loop: Loop) -> None:
    v, log_det, y = loop.data.fetch(next(loop.batches.epoch(0)), loop.generator)
    loop.objective.train()
    for _ in range(STEPS):
        loop.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=loop.data.config.precision == "bf16"):
            losses = loop.objective(v, log_det, y)
        losses.loss.mean().backward()
        loop.optimizer.step()


if __name__ == "__main__":
    main()
