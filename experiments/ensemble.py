"""Several ResNets as one: probabilities averaged after temperature scaling, scores averaged.

    python experiments/ensemble.py RUN RUN ... --out FILE

The runs differ in seed alone. Each is scaled by the temperature that fits its own validation split, and its
feature scores are fitted on its own training split. All have the same test split: the data must come with one.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from comparisons import Ensemble, EnsembleOod, write_comparison
from scipy.special import logsumexp

from ibinn._types import Array, Floats
from ibinn.data.dataset import Dataset
from ibinn.data.known import load
from ibinn.evaluation import (
    bootstrapped_means,
    calibrated,
    increase_interval,
    read_test,
    separation,
    splits_of,
)
from ibinn.metrics.classification import brier, entropy, log_loss, wrong
from ibinn.metrics.roc import auroc_of, fpr95_of
from ibinn.metrics.temperature import apply_temperature, fit_temperature
from ibinn.ood.features import feature_scores, fit_feature_scores
from ibinn.ood.sets import OOD_SETS, ood_set
from ibinn.run.folder import load_run
from ibinn.run.results import Intervals, OodIntervals, read_results
from ibinn.run.trained import Run

Outputs = dict[str, tuple[Floats, dict[str, Floats]]]  # by set: log q(y|x) (N, K), and scores (N,) by name


def member(run: Run, dataset: Dataset, inputs: Mapping[str, Array]) -> Outputs:
    """The outputs of one run for each set of inputs, scaled by its temperature."""
    splits = splits_of(run, dataset)
    validation = dataset.train.take(splits.validation)
    temperature = fit_temperature(run.pipeline.compute_output(validation.x).log_q_y, validation.y)
    features = fit_feature_scores(run.pipeline, dataset, splits)
    assert features is not None, "an ensemble is one of plain classifiers"
    outputs: Outputs = {}
    for name, x in inputs.items():
        output = run.pipeline.compute_output(x)
        scores = {"energy": output.energy, **feature_scores(run.pipeline, x, features)}
        outputs[name] = apply_temperature(output.log_q_y, temperature), scores
    return outputs


def together(members: list[Outputs], name: str) -> tuple[Floats, dict[str, Floats]]:
    """Mean probabilities, and the scores of the ensemble."""
    log_q_y = logsumexp([member[name][0] for member in members], axis=0) - np.log(len(members))
    scores = {"entropy": entropy(log_q_y), "max_softmax": -np.expm1(log_q_y.max(1))}
    for score in members[0][name][1]:
        scores[score] = np.mean([member[name][1][score] for member in members], axis=0)
    return log_q_y, scores


def evaluate(runs: list[Run], dataset: Dataset, names: Sequence[str]) -> Ensemble:
    """The numbers of the ensemble on its test set and on these OoD sets."""
    assert dataset.test is not None, "without a test part the splits differ, and with them the test inputs"
    test = read_test(runs[0], dataset)
    sets = {name: ood_set(name, test.x, dataset.levels or 256, n=len(test)) for name in names}
    members = [member(run, dataset, {"test": test.x, **sets}) for run in runs]
    log_q_y, inside = together(members, "test")
    [means] = bootstrapped_means(
        {
            "error": 100 * wrong(log_q_y, test.y),
            "nll_y": log_loss(log_q_y, test.y),
            "brier": brier(log_q_y, test.y),
        }
    )
    calibration, calibration_intervals = calibrated(np.exp(log_q_y), test.y)
    ood, ood_intervals = {}, {}
    for name in sets:
        outside, seeds = together(members, name)[1], (0, 0 if name in OOD_SETS else 1)
        ood[name], ood_intervals[name] = on_ood_set(inside, outside, seeds)
    return Ensemble(
        n_members=len(runs),
        seeds=tuple(run.config.seed for run in runs),
        train_seconds=sum(run.facts.train_seconds or 0.0 for run in runs),
        error=means["error"].value,
        nll_y=means["nll_y"].value,
        brier=means["brier"].value,
        calibration=calibration,
        ood=ood,
        intervals=Intervals(
            error=means["error"].interval,
            nll_y=means["nll_y"].interval,
            brier=means["brier"].interval,
            calibration=calibration_intervals,
            ood=ood_intervals,
        ),
    )


def on_ood_set(
    inside: dict[str, Floats], outside: dict[str, Floats], seeds: tuple[int, int]
) -> tuple[EnsembleOod, OodIntervals]:
    """Numbers and intervals from the scores of test and OoD inputs."""
    auroc, auroc_intervals = separation(inside, outside, auroc_of, seeds)
    fpr95, fpr95_intervals = separation(inside, outside, fpr95_of, seeds)
    h_inside, h_outside = inside["entropy"], outside["entropy"]
    return (
        EnsembleOod(len(h_outside), auroc, fpr95, float(h_outside.mean() - h_inside.mean())),
        OodIntervals(increase_interval(h_inside, h_outside, seeds), auroc_intervals, fpr95_intervals),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    runs = [load_run(folder) for folder in options.runs]
    ensemble = evaluate(runs, load(runs[0].config.data), [*read_results(options.runs[0]).ood])
    write_comparison(options.out, ensemble)
    print(f"{len(runs)} ResNets: error {ensemble.error:.2f} %; written to {options.out}")


if __name__ == "__main__":
    main()
