"""A trained model on its test set and on inputs from elsewhere: the numbers of results.json.

Shares are in percent, entropies and log-likelihoods in nats. None where a method has no such number.
"""

import dataclasses
import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ibinn.checkpoint import Run, RunError
from ibinn.data.dataset import Array, Dataset, Part, data_digest
from ibinn.data.preprocess import ImagePreprocess
from ibinn.data.splits import split
from ibinn.files import write_whole
from ibinn.metrics import calibration as cal
from ibinn.metrics.bootstrap import interval, resampled_ranks, resampled_sums
from ibinn.metrics.classification import brier, entropy, entropy_of_shares, log_loss, wrong
from ibinn.metrics.conformal import benjamini_hochberg, mondrian_p_values, warn_if_coarse
from ibinn.metrics.likelihood import bits_per_dim, paper_convention_offset
from ibinn.metrics.ood import Evidence, ood_scores, p_values
from ibinn.metrics.roc import auroc_of, fpr95_of, ranks
from ibinn.models.methods import METHODS

ALPHA = 0.05
FDR = 0.1
N_DRAWS = 4  # of the noise, for bits/dim
RESULTS = "results.json"

Floats = NDArray[np.float64]
Progress = Callable[[int, int | None], None] | None
Interval = tuple[float | None, float | None]


@dataclasses.dataclass(frozen=True)
class Calibration:
    """In percent. floor: mean and 95th percentile of what a perfectly calibrated model would show."""

    ece: float | None
    mce: float | None
    ice: float | None
    geo_mean: float | None
    top_label_ece: float | None
    floor: dict[str, dict[str, float | None]]
    bins: list[dict[str, float | int | None]]
    min_count: int
    n_left_out: int


@dataclasses.dataclass(frozen=True)
class Outliers:
    """One set of strange inputs; auroc, fpr95 and detected_at_alpha by score. bh: see `false_discoveries`."""

    n: int
    entropy_increase: float | None
    auroc: dict[str, float]
    fpr95: dict[str, float]
    detected_at_alpha: dict[str, float]
    bh: dict[str, float | None]


@dataclasses.dataclass(frozen=True)
class Results:
    """What results.json holds. gamma is the one in the loss, "inf" for only L_Y; score names the headline score.

    intervals: 95 % bootstrap intervals over the test inputs (and the strange ones), by the path to a number.
    """

    method: str
    gamma: float | str | None
    dataset: str
    size: str
    seed: int
    classes: list[str]
    levels: int | None
    n_dims: int
    n_parameters: int
    n_train: int
    n_validation: int
    n_calibration: int
    n_test: int
    train_seconds: float
    converged: bool
    noise: str | None
    sigma: float | None
    error: float
    nll_y: float | None
    brier: float | None
    entropy: float | None
    loss_x: float | None
    bits_per_dim: float | None
    bits_per_dim_paper_convention: float | None
    n_draws: int
    calibration: Calibration
    score: str
    alpha: float
    false_alarm_rate: dict[str, float]
    false_alarm_rate_by_class: dict[str, float | None]
    ood: dict[str, Outliers]
    ood_left_out: dict[str, str]
    information: dict[str, float | None]
    throughput: float
    intervals: dict[str, Interval]


class Judged(NamedTuple):
    """What a run says of some inputs, (N, ...) each; scores and p-values by score."""

    evidence: Evidence
    scores: dict[str, Floats]
    p: dict[str, Floats]


def evaluate(
    run: Run,
    dataset: Dataset,
    ood: Mapping[str, Array] | None = None,
    left_out: Mapping[str, str] | None = None,
    batch_size: int = 500,
    progress: Progress = None,
) -> tuple[Results, dict[str, Array]]:
    """The numbers, and the scores of every input as scores/test/NAME and scores/SET/NAME, (N,)."""
    test = read_test(run, dataset)
    start = time.perf_counter()
    seen = judge(run, test.x, batch_size, progress)
    throughput = len(test) / (time.perf_counter() - start)
    log_q_x = log_densities(run, test.x, seen.evidence.log_q_x, batch_size, progress)
    arrays = {f"scores/test/{name}": values for name, values in seen.scores.items()}
    numbers, intervals = on_test(run, test, seen, log_q_x)
    sets = {}
    for name, strange in (ood or {}).items():
        theirs = judge(run, strange, batch_size, progress)
        sets[name], more = on_outliers(run, seen, theirs)
        intervals |= {f"ood.{name}.{path}": values for path, values in more.items()}
        arrays |= {f"scores/{name}/{score}": values for score, values in theirs.scores.items()}
    facts, config = run.facts, run.config
    preprocess = run.pipeline.preprocess
    results = Results(
        method=config.method,
        gamma=told_gamma(run),
        dataset=config.data,
        size=config.size,
        seed=config.seed,
        classes=list(run.class_names),
        levels=preprocess.levels if isinstance(preprocess, ImagePreprocess) else None,
        n_dims=preprocess.n_dims,
        **{name: facts[name] for name in ("n_parameters", "n_train", "n_validation", "n_calibration")},
        n_test=len(test),
        train_seconds=facts["train_seconds"],
        converged=facts["converged"],
        noise=preprocess.noise if isinstance(preprocess, ImagePreprocess) else None,
        sigma=sigma_of(run),
        **numbers,
        n_draws=N_DRAWS,
        score=run.reference.headline,
        alpha=ALPHA,
        ood=sets,
        ood_left_out=dict(left_out or {}),
        throughput=throughput,
        intervals=intervals,
    )
    return results, arrays


def read_test(run: Run, dataset: Dataset) -> Part:
    """The test split of the data that a run was trained on."""
    if data_digest(dataset) != run.facts["data_digest"]:
        raise RunError(
            f"{dataset.name} is not the data that the model was trained on, or has changed since: its split would "
            f"mix training and test examples; give the same data"
        )
    rows = split(dataset, run.config.seed)
    part = dataset.train if dataset.test is None else dataset.test
    return Part(part.x[rows.test], part.y[rows.test])


def judge(run: Run, raw: Array, batch_size: int = 500, progress: Progress = None) -> Judged:
    evidence = run.pipeline.evidence(raw, batch_size, progress)
    scores = ood_scores(evidence, run.reference)
    return Judged(evidence, scores, p_values(scores, run.reference))


def log_densities(
    run: Run, raw: Array, first: Floats | None, batch_size: int, progress: Progress
) -> Floats | None:
    """log q(x) at several fixed draws of the noise, (draws, N); `first` is that of draw 0."""
    if first is None:
        return None
    preprocess = run.pipeline.preprocess
    n_draws = N_DRAWS if isinstance(preprocess, ImagePreprocess) and preprocess.noise != "gaussian" else 1
    draws = [first]
    for draw in range(1, n_draws):
        log_q_x = run.pipeline.outputs(raw, draw, batch_size, progress).log_q_x
        assert log_q_x is not None
        draws.append(log_q_x)
    return np.stack(draws)


def on_test(
    run: Run, test: Part, seen: Judged, log_q_x: Floats | None
) -> tuple[dict[str, Any], dict[str, Interval]]:
    """The numbers of the test set, and their intervals."""
    log_q_y, y = seen.evidence.log_q_y, test.y
    means = {  # of one number per input, with what turns the mean into the unit told
        "error": (wrong(log_q_y, y), 100.0),
        "nll_y": (log_loss(log_q_y, y), 1.0),
        "brier": (brier(log_q_y, y), 1.0),
        "entropy": (entropy(log_q_y), 1.0),
    }
    means |= {f"false_alarm_rate.{k}": ((p <= ALPHA).astype(np.float64), 100.0) for k, p in seen.p.items()}
    means |= {name: (values, 1.0) for name, values in densities(run, log_q_x).items()}
    told, intervals = means_with_intervals(means)
    calibration, more = calibrated(np.exp(log_q_y), y)
    intervals |= {f"calibration.{name}": values for name, values in more.items()}
    warn_if_coarse(len(run.reference.calibration_class), ALPHA)
    numbers: dict[str, Any] = {
        name: told.get(name) for name in ("error", "nll_y", "brier", "entropy", *DENSITIES)
    }
    numbers |= {
        "calibration": calibration,
        "false_alarm_rate": {name: told[f"false_alarm_rate.{name}"] for name in seen.p},
        "false_alarm_rate_by_class": by_class(run, seen),
        "information": information(run, test, log_q_x, told["nll_y"]),
    }
    return numbers, intervals


DENSITIES = ("loss_x", "bits_per_dim", "bits_per_dim_paper_convention")


def densities(run: Run, log_q_x: Floats | None) -> dict[str, Floats]:
    """loss_x and bits/dim of each input, (N,) each, as means over the draws of the noise."""
    if log_q_x is None or not np.isfinite(log_q_x).all():
        return {}
    preprocess, n_dims = run.pipeline.preprocess, run.pipeline.preprocess.n_dims
    values = {"loss_x": (preprocess.log_scale - log_q_x.mean(0)) / n_dims}
    bits = run.pipeline.bits_per_dim(log_q_x.mean(0))
    if bits is not None:
        offset = paper_convention_offset(preprocess.std.cpu().double().numpy())
        values["bits_per_dim"] = bits
        values["bits_per_dim_paper_convention"] = bits_per_dim(log_q_x.mean(0), n_dims) + offset
    return values


def means_with_intervals(
    values: Mapping[str, tuple[Floats, float]],
) -> tuple[dict[str, float | None], dict[str, Interval]]:
    """Mean of each (values (N,), factor), and its bootstrap interval."""
    matrix = np.stack([factor * v for v, factor in values.values()], axis=1)
    sums = resampled_sums(matrix, seed=0) / len(matrix)
    told = {name: finite_or_none(mean) for name, mean in zip(values, matrix.mean(0), strict=True)}
    intervals = {name: told_interval(sums[:, i]) for i, name in enumerate(values)}
    return told, intervals


def calibrated(probabilities: Floats, y: NDArray[np.int64]) -> tuple[Calibration, dict[str, Interval]]:
    """The calibration figures with their floor, the curve with its error bars, and their intervals."""
    n, n_true = cal.pairs_per_bin(probabilities), cal.true_per_bin(probabilities, y)
    gaps, n_bins = cal.top_label_gaps(probabilities, y), n.shape[1]
    sums = resampled_sums(np.concatenate([n, n_true, gaps], axis=1), seed=0)
    again = cal.calibration_errors(sums[:, :n_bins], sums[:, n_bins : 2 * n_bins])._asdict()
    again["top_label_ece"] = cal.top_label_ece(sums[:, 2 * n_bins :], len(y))
    here = cal.calibration_errors(n.sum(0), n_true.sum(0))._asdict()
    here["top_label_ece"] = cal.top_label_ece(gaps.sum(0), len(y))
    floor = cal.calibration_floor(probabilities)
    floors = floor.errors._asdict() | {"top_label_ece": floor.top_label_ece}
    shares = cal.true_shares(sums[:, :n_bins], sums[:, n_bins : 2 * n_bins])
    told = Calibration(
        **{name: finite_or_none(100 * float(value)) for name, value in here.items()},
        floor={
            name: {
                "mean": finite_or_none(100 * values.mean()),
                "p95": finite_or_none(100 * np.quantile(values, 0.95)),
            }
            for name, values in floors.items()
        },
        bins=curve(n.sum(0), n_true.sum(0), shares, floor.share),
        min_count=cal.MIN_COUNT,
        n_left_out=int((n.sum(0) <= cal.MIN_COUNT).sum()),
    )
    return told, {name: told_interval(100 * values) for name, values in again.items()}


def curve(
    n: Floats, n_true: Floats, resampled: Floats, drawn: Floats
) -> list[dict[str, float | int | None]]:
    """The calibration curve: a dict per bin, its shares from 0 to 1 and None in a bin that was left out."""
    bins: list[dict[str, float | int | None]] = []
    for i, count in enumerate(n):
        names = ("share", "share_low", "share_high", "floor_low", "floor_high")
        values: list[float | None] = [None] * len(names)
        if count > cal.MIN_COUNT:
            floor = np.quantile(drawn[:, i], [0.025, 0.975])
            values = [float(n_true[i] / count), *told_interval(resampled[:, i]), *floor.tolist()]
        told: dict[str, float | int | None] = {
            "low": float(cal.EDGES[i]),
            "high": float(cal.EDGES[i + 1]),
            "n": int(count),
        }
        bins.append(told | dict(zip(names, values, strict=True)))
    return bins


def by_class(run: Run, seen: Judged) -> dict[str, float | None]:
    """Share of the test inputs called each class with p <= alpha among the calibration inputs called so."""
    score, called = run.reference.headline, seen.evidence.log_q_y.argmax(1)
    p = mondrian_p_values(
        seen.scores[score], called, run.reference.calibration[score], run.reference.calibration_class
    )
    rates = {name: p[called == k] <= ALPHA for k, name in enumerate(run.class_names)}
    return {name: 100 * float(flags.mean()) if flags.size else None for name, flags in rates.items()}


def information(
    run: Run, test: Part, log_q_x: Floats | None, nll_y: float | None
) -> dict[str, float | None]:
    """CI(X, Z_E) = E[-log q(x + E)] - h(E) and CI(Y, Z_E) = H(Y) - E[loss_y], in nats.

    Uniform noise fills a level, whose width is 1 in raw units: h(E) = 0 there, and CI(X, Z_E) bounds H(X).
    """
    ci_xz = None
    preprocess = run.pipeline.preprocess
    if log_q_x is not None and isinstance(preprocess, ImagePreprocess):
        if preprocess.noise == "uniform":
            ci_xz = -float(log_q_x.mean())
        elif preprocess.noise == "gaussian":
            sigma = preprocess.sigma * preprocess.levels
            h_noise = 0.5 * preprocess.n_dims * math.log(2 * math.pi * math.e * sigma**2)
            ci_xz = -float(run.pipeline.noisy_log_q_x(test.x).mean()) - h_noise
    ci_yz = None if nll_y is None else entropy_of_shares(test.y) - nll_y
    return {"ci_xz": finite_or_none(ci_xz), "ci_yz": finite_or_none(ci_yz)}


def on_outliers(run: Run, seen: Judged, theirs: Judged) -> tuple[Outliers, dict[str, Interval]]:
    """The numbers of one set of strange inputs against the test set, and their intervals."""
    means: dict[str, tuple[Floats, float]] = {"entropy": (entropy(theirs.evidence.log_q_y), 1.0)}
    means |= {
        f"detected_at_alpha.{k}": ((p <= ALPHA).astype(np.float64), 100.0) for k, p in theirs.p.items()
    }
    told, intervals = means_with_intervals(means)
    inside = entropy(seen.evidence.log_q_y)
    del intervals["entropy"]
    increase = resampled_sums(means["entropy"][0][:, None], seed=1)[:, 0] / len(means["entropy"][0])
    increase -= resampled_sums(inside[:, None], seed=0)[:, 0] / len(inside)
    intervals["entropy_increase"] = told_interval(increase)
    areas, rates = {}, {}
    for name, scores in theirs.scores.items():
        order = ranks(seen.scores[name], scores)
        areas[name], rates[name] = 100 * auroc_of(order.counts()), 100 * fpr95_of(order.counts())
        intervals[f"auroc.{name}"] = told_interval(100 * resampled_ranks(order, auroc_of, seed=0))
        intervals[f"fpr95.{name}"] = told_interval(100 * resampled_ranks(order, fpr95_of, seed=0))
    mean = told["entropy"]
    outliers = Outliers(
        n=len(theirs.evidence.log_q_y),
        entropy_increase=None if mean is None else finite_or_none(mean - float(inside.mean())),
        auroc=areas,
        fpr95=rates,
        detected_at_alpha={name: told[f"detected_at_alpha.{name}"] or 0.0 for name in theirs.p},
        bh=false_discoveries(seen.p[run.reference.headline], theirs.p[run.reference.headline]),
    )
    return outliers, intervals


def false_discoveries(p_test: Floats, p_strange: Floats) -> dict[str, float | None]:
    """Benjamini and Hochberg over both together: share of the strange found, share of the flagged not strange."""
    flags = benjamini_hochberg(np.concatenate([p_test, p_strange]), FDR)
    false, found = flags[: len(p_test)], flags[len(p_test) :]
    share = 100 * float(false.sum() / flags.sum()) if flags.any() else None
    return {"fdr": 100 * FDR, "found": 100 * float(found.mean()), "false": share}


def told_gamma(run: Run) -> float | str | None:
    gamma = METHODS[run.config.method].gamma(run.config.gamma, run.pipeline.preprocess.n_dims)
    if not run.pipeline.model.has_density and run.config.method != "vib":
        return None
    return "inf" if math.isinf(gamma) else gamma


def sigma_of(run: Run) -> float | None:
    preprocess = run.pipeline.preprocess
    if not isinstance(preprocess, ImagePreprocess) or preprocess.noise == "uniform":
        return None
    return preprocess.sigma


def finite_or_none(value: float | np.floating[Any] | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def told_interval(values: Floats) -> Interval:
    low, high = interval(values)
    return finite_or_none(low), finite_or_none(high)


def write_results(folder: Path, results: Results) -> None:
    write_whole(folder / RESULTS, json.dumps(dataclasses.asdict(results), indent=2, allow_nan=False) + "\n")


def read_results(folder: Path) -> dict[str, Any]:
    """The content of a run's results.json; RunError where there is none, or one of another version."""
    path = folder / RESULTS
    if not path.is_file():
        raise RunError(f"{folder} holds no {RESULTS}; make it with: ibinn evaluate {folder}")
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RunError(f"{path} is damaged; make it again with: ibinn evaluate {folder}") from error
    wanted = {field.name for field in dataclasses.fields(Results)}
    if not isinstance(results, dict) or not wanted <= results.keys():
        raise RunError(f"{path} is of another version; make it again with: ibinn evaluate {folder}")
    return results
