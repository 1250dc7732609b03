"""Short trainings that compare settings on the validation split; the test set is not read.

    python experiments/trials.py NAME ... [--seed 0] [--runs RUNS]

Each trial is a training to the end of its schedule. Its numbers go to results/trials.json, from which
docs/recipes.md takes its table; a trial that is there already is not repeated. An interrupted one goes on.
"""

import argparse
import dataclasses
import json
import math
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


FIVE = ("recipe.epochs=5",)
SLOW_MEANS = "recipe.mu_rate=0.03"
BEFORE = (  # the network and the recipe of `base` when these trials began
    *FIVE,
    "network.blocks=[4,8,8]",
    "network.summary=[]",
    'recipe.optimizer="adamw"',
    "recipe.mu_rate=3.0",
    "recipe.smoothing=0.02",
)
WIDE = "network.summary=[32,96,192,384]"
THIN = (*BEFORE, WIDE, "network.blocks=[1,1,1]", SLOW_MEANS)
RIVAL = (  # the recipe of `base`, for a plain classifier
    *(*FIVE, "recipe.smoothing=0.02", "recipe.learning_rate=1e-3", "recipe.weight_decay=1e-4"),
    *("recipe.crop=2", "recipe.cutout=0"),
)
NARROW = "network.widths=[32,64,192,256]"
FASHION = (  # as for the results
    *(*FIVE, "recipe.smoothing=0.02", "recipe.flip=true", "recipe.crop=1", "recipe.weight_decay=0.02"),
)
FASHION_BEFORE = (*FASHION, "network.summary=[]", 'recipe.optimizer="adamw"', "recipe.mu_rate=3.0")
TRIALS: dict[str, Trial] = {
    "control-before": Trial("`base` as it was", BEFORE),
    "control-slow-means": Trial("the means change a hundredth as fast", (*BEFORE, SLOW_MEANS)),
    "thin-slow-means": Trial("a summary of the image, few blocks, slow means", THIN),
    "rival-wide-adamw": Trial(
        "the residual network of that summary as a plain classifier",
        (*RIVAL, "network.widths=[32,96,192,384]", 'recipe.optimizer="adamw"'),
        method="rival",
    ),
    "rival-adamw": Trial("a smaller one", (*RIVAL, NARROW, 'recipe.optimizer="adamw"'), method="rival"),
    "rival-muon": Trial("the same with Muon", (*RIVAL, NARROW, 'recipe.optimizer="muon"'), method="rival"),
    "proxy": Trial("`base` as it is now: that summary, Muon, slow means, some blocks", FIVE),
    "base": Trial("the same for all 16 epochs", ()),
    "proxy-no-ramp": Trial("γ does not rise", (*FIVE, "recipe.gamma_ramp=0")),
    "proxy-adamw": Trial("AdamW instead of Muon", (*FIVE, 'recipe.optimizer="adamw"')),
    "proxy-fast-means": Trial("the means change a hundred times as fast", (*FIVE, "recipe.mu_rate=3.0")),
    "proxy-no-summary": Trial("no summary", (*FIVE, "network.summary=[]")),
    "proxy-fewer-blocks": Trial("few blocks", (*FIVE, "network.blocks=[1,1,1]")),
    "proxy-more-blocks": Trial("more blocks", (*FIVE, "network.blocks=[4,8,8]")),
    "proxy-gamma-0.1": Trial("another γ", FIVE, gamma=0.1),
    "proxy-gamma-4": Trial("another γ", FIVE, gamma=4.0),
    "proxy-gamma-10": Trial("another γ", FIVE, gamma=10.0),
    "proxy-gamma-inf": Trial("another γ", FIVE, gamma=math.inf),
    "fashion-before": Trial("`small` as it was", FASHION_BEFORE, data="fashion_mnist"),
    "fashion": Trial(
        "`small` as it is now: a summary, Muon, slow means",
        ("recipe.epochs=10", *FASHION[1:]),
        data="fashion_mnist",
    ),
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
        "gamma": trial.gamma if math.isfinite(trial.gamma) else "inf",
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
