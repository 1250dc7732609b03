"""Several ResNets as one: probabilities averaged after temperature scaling, scores averaged.

    python experiments/ensemble.py RUN RUN ... --out FILE

The runs differ in seed alone. Each is scaled by the temperature that fits its own validation split, and its
feature scores are fitted on its own training split. All have the same test split: the data must come with one.
"""

import argparse
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from ibinn.data.dataset import Dataset
from ibinn.data.known import load
from ibinn.evaluation import calibrated, means_with_intervals, read_test, splits_of, told_interval
from ibinn.metrics.bootstrap import resampled_ranks, resampled_sums
from ibinn.metrics.classification import brier, entropy, log_loss, wrong
from ibinn.metrics.roc import auroc_of, fpr95_of, ranks
from ibinn.metrics.temperature import apply_temperature, fit_temperature
from ibinn.ood.features import feature_scores, fit_feature_scores
from ibinn.ood.sets import OOD_SETS, ood_set
from ibinn.run import RESULTS
from ibinn.run.folder import load_run
from ibinn.run.trained import Run

Floats = NDArray[np.float64]
Answers = dict[str, tuple[Floats, dict[str, Floats]]]  # by set: log q(y|x) (N, K), and scores (N,) by name


def member(run: Run, dataset: Dataset, inputs: Mapping[str, NDArray[Any]]) -> Answers:
    """What one run says of each set of inputs, its answers scaled."""
    splits = splits_of(run, dataset)
    validation = dataset.train.take(splits.validation)
    temperature = fit_temperature(run.pipeline.predict(validation.x).log_q_y, validation.y)
    features = fit_feature_scores(run.pipeline, dataset, splits)
    assert features is not None, "an ensemble is one of plain classifiers"
    answers: Answers = {}
    for name, x in inputs.items():
        outputs = run.pipeline.predict(x)
        scores = {"energy": outputs.energy, **feature_scores(run.pipeline, x, features)}
        answers[name] = apply_temperature(outputs.log_q_y, temperature), scores
    return answers


def together(members: list[Answers], name: str) -> tuple[Floats, dict[str, Floats]]:
    """Mean probabilities, and the scores of the ensemble."""
    log_q_y = logsumexp([member[name][0] for member in members], axis=0) - np.log(len(members))
    scores = {"entropy": entropy(log_q_y), "max_softmax": -np.expm1(log_q_y.max(1))}
    for score in members[0][name][1]:
        scores[score] = np.mean([member[name][1][score] for member in members], axis=0)
    return log_q_y, scores


def evaluate(runs: list[Run], dataset: Dataset, names: Sequence[str]) -> dict[str, Any]:
    """The numbers as in results.json, on these sets of strange inputs."""
    assert dataset.test is not None, "without a test part the splits differ, and with them the test inputs"
    test = read_test(runs[0], dataset)
    sets = {name: ood_set(name, test.x, dataset.levels or 256, n=len(test)) for name in names}
    members = [member(run, dataset, {"test": test.x, **sets}) for run in runs]
    log_q_y, inside = together(members, "test")
    told, intervals = means_with_intervals(
        {
            "error": (wrong(log_q_y, test.y), 100.0),
            "nll_y": (log_loss(log_q_y, test.y), 1.0),
            "brier": (brier(log_q_y, test.y), 1.0),
        }
    )
    calibration, more = calibrated(np.exp(log_q_y), test.y)
    intervals |= {f"calibration.{name}": values for name, values in more.items()}
    ood: dict[str, Any] = {}
    for name, x in sets.items():
        outside, seeds = together(members, name)[1], (0, 0 if name in OOD_SETS else 1)
        ood[name] = {"n": len(x), "auroc": {}, "fpr95": {}}
        for score, values in outside.items():
            order = ranks(inside[score], values)
            ood[name]["auroc"][score] = 100 * auroc_of(order.counts())
            ood[name]["fpr95"][score] = 100 * fpr95_of(order.counts())
            again = 100 * resampled_ranks(order, auroc_of, seeds)
            intervals[f"ood.{name}.auroc.{score}"] = told_interval(again)
        rise = resampled_sums(outside["entropy"][:, None], seeds[1])[:, 0] / len(x)
        rise -= resampled_sums(inside["entropy"][:, None], seeds[0])[:, 0] / len(test)
        ood[name]["entropy_increase"] = float(outside["entropy"].mean() - inside["entropy"].mean())
        intervals[f"ood.{name}.entropy_increase"] = told_interval(rise)
    return {
        "n_members": len(runs),
        "seeds": [run.config.seed for run in runs],
        "train_seconds": sum(run.facts["train_seconds"] for run in runs),
        **told,
        "calibration": dataclasses.asdict(calibration),
        "ood": ood,
        "intervals": intervals,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    runs = [load_run(folder) for folder in options.runs]
    alone = json.loads((options.runs[0] / RESULTS).read_text())
    numbers = evaluate(runs, load(runs[0].config.data), [*alone["ood"]])
    options.out.write_text(json.dumps(numbers, indent=1) + "\n")
    print(f"{len(runs)} ResNets: error {numbers['error']:.2f} %; written to {options.out}")


if __name__ == "__main__":
    main()
