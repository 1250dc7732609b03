"""predict_proba and p_values of the `small` network for 28 x 28 images: images per second.

    python benchmarks/predicting.py

The network is untrained, because only time is measured. "Outside" is everything but the network's evaluation on
prepared tensors: levels to tensors, noise, normalisation, code lengths, scores and ranks.
"""

import math
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch
from turns import save

from ibinn import IBINNClassifier
from ibinn._system import keep_freed_memory

N, BATCH, ROUNDS = 2000, 500, 5


def best(work: Callable[[], object]) -> float:
    seconds = math.inf
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        seconds = min(seconds, time.perf_counter() - start)
    return seconds


def main() -> None:
    warnings.filterwarnings("ignore")
    keep_freed_memory()
    torch.set_num_threads(2)
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, size=(N, 28, 28), dtype=np.uint8), np.arange(N) % 10
    model = IBINNClassifier(size="small", epochs=1, random_state=0).fit(x[:400], y[:400])
    pipeline = model.run_.pipeline
    with torch.no_grad():
        ready = [pipeline.prepared(model.form_.raw(x[i : i + BATCH]))[0] for i in range(0, N, BATCH)]

        def network() -> None:
            for v in ready:
                pipeline.model.output(v)

        seconds = {"network": best(network)}
    seconds["predict_proba"] = best(lambda: model.predict_proba(x))
    seconds["p_values"] = best(lambda: model.p_values(x))
    rows = []
    for name, value in seconds.items():
        row = {"name": name, "per_s": N / value, "outside": 100 * (1 - seconds["network"] / value)}
        rows.append(row)
        print(f"{name:14} {row['per_s']:7.0f} images/s, {row['outside']:5.1f} % outside the network")
    both = seconds["predict_proba"] + seconds["p_values"]
    print(f"both: {100 * (1 - 2 * seconds['network'] / both):.1f} % outside")
    save("predicting", rows, n=N, batch=BATCH, rounds=ROUNDS)


if __name__ == "__main__":
    main()
