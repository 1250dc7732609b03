"""Two processes of one thread against one process of two threads: images per second in training.

    python benchmarks/processes.py

Each measurement starts the loop of `ibinn train`, under torchrun if there are two processes. The contenders
take turns, and the best step of all rounds counts. Takes about seven minutes.
"""

import argparse
import os
import subprocess
import sys
import time

from turns import save

from ibinn.config import Size

# Name, processes, threads of each, whether batch-norms share their statistics.
CONTENDERS = (
    ("1 process, 2 threads", 1, 2, True),
    ("2 processes, 1 thread", 2, 1, True),
    ("2 processes, 1 thread, own statistics", 2, 1, False),
    ("1 process, 1 thread", 1, 1, True),
)
NETWORKS: tuple[Size, ...] = ("small", "paper")
BATCH = 128


def best_step(size: Size, steps: int, shares: bool) -> float:
    """In this process, or in those that torchrun has started: seconds of the fastest step."""
    import numpy as np

    from ibinn._system import keep_freed_memory
    from ibinn.data.dataset import Dataset, Part
    from ibinn.data.splits import split
    from ibinn.training.data import TrainingData, build_pipeline
    from ibinn.training.distributed import join_team
    from ibinn.training.loop import Loop
    from ibinn.training.options import TrainingOptions
    from ibinn.training.progress import TrainingObserver
    from ibinn.training.recipes import configure

    keep_freed_memory()
    shape = (28, 28, 1) if size == "small" else (32, 32, 3)
    images = np.random.default_rng(0).integers(256, size=(4000, *shape), dtype=np.uint8)
    dataset = Dataset("random", Part(images, np.arange(4000) % 10), None, tuple("0123456789"), 256)
    splits = split(dataset, 0)
    config = configure(
        dataset,
        len(splits.train),
        size,
        method="ibinn",
        gamma=1.0,
        seed=0,
        priors="uniform",
        precision="float32",
    )
    times = []
    with join_team("cpu") as team:
        options = TrainingOptions(team=team, sync_batch_norm=shares)
        pipeline = build_pipeline(config, dataset, splits.train)
        loop = Loop(TrainingData(pipeline, config, dataset, splits, options), options, TrainingObserver())
        with loop.sharing_objective():
            for _, rows in zip(range(steps), loop.batches.epoch(0), strict=False):
                start = time.perf_counter()
                loop.step(rows)
                loop.save_or_stop()
                times.append(time.perf_counter() - start)
    return min(times) if team.is_writer else 0.0


def measured(size: str, n_processes: int, n_threads: int, shares: bool, steps: int) -> float:
    start = [sys.executable]
    if n_processes > 1:
        start += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n_processes)]
    command = [*start, __file__, "--worker", size, "--steps", str(steps)]
    command += [] if shares else ["--own-statistics"]
    environment = os.environ | {"OMP_NUM_THREADS": str(n_threads)}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return max(float(line) for line in done.stdout.split())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--worker", metavar="SIZE")
    parser.add_argument("--own-statistics", action="store_true")
    options = parser.parse_args()
    if options.worker:
        print(best_step(options.worker, options.steps, not options.own_statistics))
        return
    rows = []
    for size in NETWORKS:
        contenders = [c for c in CONTENDERS if c[3] or size == "paper"]  # the other has no batch-norm
        found: dict[str, list[float]] = {name: [] for name, *_ in contenders}
        for _ in range(options.rounds):
            for name, n_processes, n_threads, shares in contenders:
                found[name].append(measured(size, n_processes, n_threads, shares, options.steps))
        for name, seconds in found.items():
            ratio = min(found[CONTENDERS[0][0]]) / min(seconds)
            rows.append({"network": size, "name": name, "seconds": min(seconds), "ratio": ratio})
            print(f"{size:6} {name:37} {BATCH / min(seconds):6.0f}/s  {ratio:.2f}", flush=True)
    save("processes", rows, batch=BATCH, rounds=options.rounds, steps=options.steps)


if __name__ == "__main__":
    main()
