"""A trained model on its test set: the numbers of results.json. Shares in percent, log-likelihoods in nats."""

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ibinn.checkpoint import Run, RunError
from ibinn.data.dataset import Dataset, Part, data_digest
from ibinn.data.splits import split
from ibinn.files import write_whole
from ibinn.metrics.ood import conformal_p_values, typicality, warn_if_coarse
from ibinn.models.methods import METHODS

ALPHA = 0.05


@dataclasses.dataclass(frozen=True)
class Results:
    """None where a method has no such number. gamma is the one in the loss, "inf" for only L_Y."""

    method: str
    gamma: float | str | None
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
        gamma=told_gamma(run),
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
        false_alarm_rate=false_alarms(run, log_q_x),
    )


def test_part(run: Run, dataset: Dataset) -> Part:
    """The test split of the data that a run was trained on."""
    if data_digest(dataset) != run.facts["data_digest"]:
        raise RunError(
            f"{dataset.name} is not the data that the model was trained on, or has changed since: its split would "
            f"mix training and test examples; give the same data"
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


def told_gamma(run: Run) -> float | str | None:
    gamma = METHODS[run.config.method].gamma(run.config.gamma, run.pipeline.preprocess.n_dims)
    if not run.pipeline.model.has_density and run.config.method != "vib":
        return None
    return "inf" if math.isinf(gamma) else gamma


def false_alarms(run: Run, log_q_x: np.typing.NDArray[np.float64] | None) -> float | None:
    """Share of the test set with p <= ALPHA, in percent."""
    if log_q_x is None or run.h is None or run.calibration_scores is None:
        return None
    warn_if_coarse(len(run.calibration_scores), ALPHA)
    scores = typicality(log_q_x, run.pipeline.preprocess.n_dims, run.h)
    return 100 * float((conformal_p_values(scores, run.calibration_scores) <= ALPHA).mean())


def write_results(folder: Path, results: Results) -> None:
    write_whole(
        folder / "results.json", json.dumps(dataclasses.asdict(results), indent=2, allow_nan=False) + "\n"
    )
