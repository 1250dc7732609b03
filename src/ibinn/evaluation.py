"""A trained model on its test set: the numbers of results.json. Shares in percent, log-likelihoods in nats."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ibinn.checkpoint import Run, RunError
from ibinn.data.dataset import Dataset, Part
from ibinn.data.splits import split
from ibinn.files import write_whole
from ibinn.metrics.ood import conformal_p_values, typicality

ALPHA = 0.05


@dataclasses.dataclass(frozen=True)
class Results:
    """None where a method has no such number."""

    method: str
    gamma: float
    dataset: str
    size: str
    seed: int
    n_parameters: int
    n_train: int
    n_validation: int
    n_calibration: int
    n_test: int
    train_seconds: float
    converged: bool
    error: float
    nll_y: float
    bits_per_dim: float | None
    false_alarm_rate: float | None


def evaluate(
    run: Run,
    dataset: Dataset,
    n_draws: int = 4,
    progress: Callable[[int, int | None], None] | None = None,
) -> Results:
    """Read the test set of a run. bits/dim is the mean over n_draws fixed draws of the noise."""
    test = test_part(run, dataset)
    on_y, log_q_x = run.pipeline.outputs(test.x, progress=progress)
    facts, config = run.facts, run.config
    return Results(
        method=config.method,
        gamma=config.gamma,
        dataset=config.data,
        size=config.size,
        seed=config.seed,
        n_parameters=facts["n_parameters"],
        n_train=facts["n_train"],
        n_validation=facts["n_validation"],
        n_calibration=facts["n_calibration"],
        n_test=len(test),
        train_seconds=facts["train_seconds"],
        converged=facts["converged"],
        error=100 * float((on_y.argmax(1) != test.y).mean()),
        nll_y=-float(on_y[np.arange(len(test)), test.y].mean()),
        bits_per_dim=mean_bits(run, test, n_draws, progress),
        false_alarm_rate=None if log_q_x is None else false_alarms(run, log_q_x),
    )


def test_part(run: Run, dataset: Dataset) -> Part:
    """The test split of the data that a run was trained on."""
    if dataset.class_names != run.class_names or len(dataset.train) == 0:
        raise RunError(
            f"{dataset.name} has the classes {', '.join(dataset.class_names[:5])}... but the model was trained on "
            f"{', '.join(run.class_names[:5])}...; give the data that it was trained on"
        )
    rows = split(dataset, run.config.seed)
    part = dataset.train if dataset.test is None else dataset.test
    return Part(part.x[rows.test], part.y[rows.test])


def mean_bits(
    run: Run, test: Part, n_draws: int, progress: Callable[[int, int | None], None] | None
) -> float | None:
    if not run.pipeline.model.has_density:
        return None
    bits = []
    for draw in range(n_draws):
        log_q_x = run.pipeline.outputs(test.x, draw, progress=progress).log_q_x
        assert log_q_x is not None
        values = run.pipeline.bits_per_dim(log_q_x)
        if values is None:
            return None
        bits.append(values.mean())
    return float(np.mean(bits))


def false_alarms(run: Run, log_q_x: np.typing.NDArray[np.float64]) -> float:
    """Share of the test set with p <= ALPHA, in percent."""
    assert run.h is not None
    assert run.calibration_scores is not None
    scores = typicality(log_q_x, run.pipeline.preprocess.n_dims, run.h)
    return 100 * float((conformal_p_values(scores, run.calibration_scores) <= ALPHA).mean())


def write_results(folder: Path, results: Results) -> None:
    write_whole(folder / "results.json", json.dumps(dataclasses.asdict(results), indent=2) + "\n")
