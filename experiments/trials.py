"""Short trainings that compare settings on the validation split; the test set is not read.

    python experiments/trials.py NAME ... [--seed 0] [--runs RUNS]

Each trial is a training to the end of its schedule. Its numbers go to results/trials.json, from which
docs/recipes.md takes its table; a trial that is there already is not repeated. An interrupted one goes on.
"""

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ibinn._system import keep_freed_memory, write_atomically
from ibinn.config import Method
from ibinn.data.known import load
from ibinn.data.splits import split
from ibinn.training.data import TrainingData, build_pipeline
from ibinn.training.loop import Loop
from ibinn.training.options import TrainingOptions
from ibinn.training.progress import ConsoleObserver
from ibinn.training.recipes import configure, override
from ibinn.training.refresh_batch_norm import refresh_batch_norm
from ibinn.training.trainer import n_parameters, prepared_folder, resume

RESULTS = Path(__file__).parents[1] / "results" / "trials.json"


class Trial(NamedTuple):
    """What is tried, and the settings that differ from the defaults of the data set."""

    question: str
    settings: tuple[str, ...]
    data: str = "cifar10"
    gamma: float = 1.0
    method: Method = "ibinn"


FIVE = ("recipe.epochs=5", "recipe.smoothing=0.02")
SLOW_MEANS = "recipe.mu_rate=0.03"
SUMMARY = "network.summary=[32,96,192,384]"
THIN = (*FIVE, SUMMARY, "network.blocks=[1,1,1]")
AS_BASE = ("recipe.learning_rate=1e-3", "recipe.weight_decay=1e-4", "recipe.crop=2", "recipe.cutout=0")
FASHION = (*FIVE, "network.summary=[32,64,128]", SLOW_MEANS)
TRIALS: dict[str, Trial] = {
    "control": Trial("the recipe of `base`", FIVE),
    "control-slow-means": Trial("the means change a hundredth as fast", (*FIVE, SLOW_MEANS)),
    "summary-slow-means": Trial("the same with summary of the whole image", (*FIVE, SLOW_MEANS, SUMMARY)),
    "thin-slow-means": Trial("the same with few blocks", (*THIN, SLOW_MEANS)),
    "thin-slow-means-no-ramp": Trial("and gamma does not rise", (*THIN, SLOW_MEANS, "recipe.gamma_ramp=0")),
    "rival-narrow": Trial(
        "a plain classifier with that residual network, and the recipe of `base`",
        (*FIVE, "network.widths=[32,96,192,384]", *AS_BASE),
        method="rival",
    ),
    "fashion-control": Trial("the recipe of `small`", FIVE, data="fashion_mnist"),
    "fashion-summary": Trial("summary of the whole image, and slow means", FASHION, data="fashion_mnist"),
}


def run_trial(name: str, trial: Trial, seed: int, runs: Path) -> dict[str, Any]:
    dataset = load(trial.data)
    splits = split(dataset, seed)
    config = override(
        configure(
            dataset,
            len(splits.train),
            method=trial.method,
            gamma=trial.gamma,
            seed=seed,
            priors="data",
            precision="bf16",
        ),
        trial.settings,
    )
    options = TrainingOptions(folder=runs / f"{name}-seed{seed}", resume=True)
    pipeline = build_pipeline(config, dataset, splits.train)
    loop = Loop(TrainingData(pipeline, config, dataset, splits, options), options, ConsoleObserver())
    with prepared_folder(config, options):
        resume(loop)
        loop.run()
    refresh_batch_norm(loop.average, loop.data.inputs())
    return {
        "name": name,
        "seed": seed,
        "question": trial.question,
        "data": trial.data,
        "method": trial.method,
        "gamma": trial.gamma,
        "settings": list(trial.settings),
        "epochs": loop.position.epoch,
        "minutes": round(loop.position.seconds / 60, 1),
        "n_parameters": n_parameters(pipeline),
        "train_loss_y": loop.position.history[-1].loss_y,
        **dataclasses.asdict(loop.data.validate(loop.average)),
    }


def stored() -> list[dict[str, Any]]:
    return json.loads(RESULTS.read_text())["trials"] if RESULTS.is_file() else []


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="+", choices=TRIALS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=Path, default=Path("runs/trials"))
    options = parser.parse_args()
    keep_freed_memory()
    for name in options.names:
        if any((row["name"], row["seed"]) == (name, options.seed) for row in stored()):
            continue
        row = run_trial(name, TRIALS[name], options.seed, options.runs)
        write_atomically(RESULTS, json.dumps({"trials": [*stored(), row]}, indent=1) + "\n")
        print(json.dumps(row), f"{torch.get_num_threads()} threads", flush=True)


if __name__ == "__main__":
    main()
