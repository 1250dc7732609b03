"""predict_proba and p_values of the `small` network for 28 x 28 images: images per second. The pretrained models:
seconds to load them, and to judge one image.

    python benchmarks/predicting.py

The network is untrained, because only time is measured. "Outside" is everything but the network's evaluation on
prepared tensors: levels to tensors, noise, normalisation, code lengths, scores and ranks. "Latent reference" is
the comparison of one latent code with it.
"""

import math
import time
import warnings
from collections.abc import Callable
from typing import get_args

import numpy as np
import torch
from turns import save

from ibinn import IBINNClassifier
from ibinn._system import keep_freed_memory
from ibinn.config import Pretrained
from ibinn.inference.judge import judge
from ibinn.pretrained import pretrained_folder
from ibinn.run import MODEL
from ibinn.run.folder import load_run

N, BATCH, ROUNDS = 2000, 500, 5


def best(work: Callable[[], object]) -> float:
    seconds = math.inf
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        seconds = min(seconds, time.perf_counter() - start)
    return seconds


def pretrained(name: str) -> dict[str, float]:
    """Milliseconds to load a model, to judge one image, and for the part of the latent reference in it."""
    folder = pretrained_folder(name)
    run = load_run(folder)
    image = np.zeros((1, *run.pipeline.preprocess.raw_shape), np.uint8)
    reference = run.pipeline.reference("bank")
    assert reference is not None
    z = torch.zeros(1, run.pipeline.preprocess.n_dims, dtype=run.pipeline.dtype)
    with torch.no_grad():
        seconds = {
            "load": best(lambda: load_run(folder)),
            "judge": best(lambda: judge(run, image)),
            "reference": best(lambda: reference(z)),
        }
    return {"megabytes": (folder / MODEL).stat().st_size / 1e6} | {k: 1e3 * v for k, v in seconds.items()}


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
    models = {name: pretrained(name) for name in get_args(Pretrained)}
    for name, numbers in models.items():
        print(name, ", ".join(f"{key} {value:.1f}" for key, value in numbers.items()))
    save("predicting", rows, n=N, batch=BATCH, rounds=ROUNDS, models=models)


if __name__ == "__main__":
    main()
