"""A trained model on its test set and on inputs from elsewhere: fills in the numbers of results.py."""

import itertools
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ibinn._types import Array, Floats, Progress
from ibinn.config import ALPHA
from ibinn.data.dataset import Dataset, Part, data_digest
from ibinn.data.preprocess import ImagePreprocess
from ibinn.data.splits import Splits, split
from ibinn.inference.judge import judge
from ibinn.metrics import calibration as cal
from ibinn.metrics.bootstrap import bootstrap_interval, resampled_ranks, resampled_sums
from ibinn.metrics.classification import brier, entropy, entropy_of_shares, log_loss, wrong
from ibinn.metrics.likelihood import bits_per_dim, paper_convention_offset
from ibinn.metrics.roc import auroc_of, fpr95_of, ranks
from ibinn.metrics.temperature import apply_temperature, fit_temperature
from ibinn.models.methods import METHODS
from ibinn.models.output import Output
from ibinn.objectives import ci_xz
from ibinn.ood.conformal import benjamini_hochberg, mondrian_p_values, smallest_p_value, warn_if_coarse
from ibinn.ood.features import FeatureScores, feature_scores, fit_feature_scores
from ibinn.ood.sets import OOD_SETS
from ibinn.run.results import Calibration, Interval, Outliers, Results, Scaled, finite_or_none
from ibinn.run.trained import Run, RunError

FDR = 0.1


N_DRAWS = 4  # of the noise, for bits/dim


def evaluate(
    run: Run,
    dataset: Dataset,
    ood: Mapping[str, Array] | None = None,
    left_out: Mapping[str, str] | None = None,
    batch_size: int = 500,
    progress: Progress | None = None,
) -> tuple[Results, dict[str, Array]]:
    """The numbers, and the scores of every input as scores/NAME and scores/SET/NAME, (N,)."""
    ood = ood or {}
    splits, test = splits_of(run, dataset), read_test(run, dataset)
    validation = dataset.train.take(splits.validation)
    n_draws, n_fitted = draws_of(run), 0 if run.pipeline.model.has_density else len(splits.train)
    ahead = [n_fitted, len(validation), *[len(test)] * max(1, n_draws), *map(len, ood.values())]
    passes = iter(one_count(progress, ahead))
    features = fit_feature_scores(run.pipeline, dataset, splits, batch_size, next(passes))
    answers = run.pipeline.predict(validation.x, 0, batch_size, next(passes)).log_q_y
    temperature = fit_temperature(answers, validation.y)
    start = time.perf_counter()
    seen = judge(run, test.x, batch_size, next(passes))
    throughput = len(test) / (time.perf_counter() - start)
    seen = with_features(run, test.x, seen, features, batch_size)
    log_q_x = log_densities(
        run, test.x, seen.log_q_x, [next(passes) for _ in range(n_draws - 1)], batch_size
    )
    arrays = {f"scores/{name}": values for name, values in seen.scores.items()}
    numbers, intervals = on_test(run, test, seen, log_q_x, batch_size)
    numbers["scaled"], more = rescaled(seen.log_q_y, test.y, temperature)
    intervals |= {f"scaled.{path}": values for path, values in more.items()}
    sets = {}
    for name, strange in ood.items():
        theirs = with_features(
            run, strange, judge(run, strange, batch_size, next(passes)), features, batch_size
        )
        paired = name in OOD_SETS and len(strange) == len(test)
        sets[name], more = on_outliers(run, seen, theirs, paired)
        intervals |= {f"ood.{name}.{path}": values for path, values in more.items()}
        arrays |= {f"scores/{name}/{score}": values for score, values in theirs.scores.items()}
    results = gathered(run, len(test), n_draws, numbers, sets, dict(left_out or {}), throughput, intervals)
    return results, arrays


def gathered(
    run: Run,
    n_test: int,
    n_draws: int,
    numbers: dict[str, Any],
    sets: dict[str, Outliers],
    left_out: dict[str, str],
    throughput: float,
    intervals: dict[str, Interval],
) -> Results:
    facts, config = run.facts, run.config
    preprocess = run.pipeline.preprocess
    return Results(
        method=config.method,
        gamma=told_gamma(run),
        dataset=config.data,
        size=config.size,
        seed=config.seed,
        classes=list(run.class_names),
        levels=preprocess.levels if isinstance(preprocess, ImagePreprocess) else None,
        n_dims=preprocess.n_dims,
        **{name: facts[name] for name in ("n_parameters", "n_train", "n_validation", "n_calibration")},
        n_test=n_test,
        train_seconds=facts["train_seconds"],
        converged=facts["converged"],
        noise=preprocess.noise if isinstance(preprocess, ImagePreprocess) else None,
        sigma=sigma_of(run),
        **numbers,
        n_draws=n_draws,
        score=run.reference.headline,
        alpha=ALPHA,
        ood=sets,
        ood_left_out=left_out,
        throughput=throughput,
        intervals=intervals,
    )


def one_count(progress: Progress | None, ahead: list[int]) -> Iterator[Progress | None]:
    """For each of several passes a callback that counts on from the passes before it."""
    for before, _ in zip(itertools.accumulate(ahead, initial=0), ahead, strict=False):
        if progress is None:
            yield None
        else:
            yield lambda done, _, before=before: progress(before + done, sum(ahead))  # type: ignore[misc]


def splits_of(run: Run, dataset: Dataset) -> Splits:
    """The splits that a run was trained with; RunError for other data."""
    if data_digest(dataset) != run.facts["data_digest"]:
        raise RunError(
            f"{dataset.name} is not the data that the model was trained on, or has changed since: its split would "
            f"mix training and test examples; give the same data"
        )
    return split(dataset, run.config.seed)


def read_test(run: Run, dataset: Dataset, most: int | None = None) -> Part:
    """The test split of the data that a run was trained on, or at most so many of it, drawn at random."""
    rows = splits_of(run, dataset).test
    if most is not None:
        rows = np.random.default_rng(0).permutation(rows)[:most]
    return (dataset.train if dataset.test is None else dataset.test).take(rows)


def with_features(
    run: Run, raw: Array, judged: Output[Floats], fitted: FeatureScores | None, batch_size: int
) -> Output[Floats]:
    """With the scores from the features, where the model has such."""
    if fitted is None:
        return judged
    scores = feature_scores(run.pipeline, raw, fitted, batch_size)
    return replace(
        judged,
        scores={**judged.scores, **scores},
        p_values={**judged.p_values, **fitted.p_values(scores)},
    )


def draws_of(run: Run) -> int:
    """How many draws of the noise bits/dim is a mean over: none without a density, one where there is no noise."""
    if not run.pipeline.model.has_density:
        return 0
    preprocess = run.pipeline.preprocess
    return N_DRAWS if isinstance(preprocess, ImagePreprocess) and preprocess.noise != "gaussian" else 1


def log_densities(
    run: Run, raw: Array, first: Floats | None, more: list[Progress | None], batch_size: int
) -> Floats | None:
    """log q(x) at several fixed draws of the noise, (draws, N); `first` is that of draw 0."""
    if first is None:
        return None
    draws = [first]
    for draw, progress in enumerate(more, start=1):
        log_q_x = run.pipeline.predict(raw, draw, batch_size, progress).log_q_x
        assert log_q_x is not None
        draws.append(log_q_x)
    return np.stack(draws)


def on_test(
    run: Run, test: Part, seen: Output[Floats], log_q_x: Floats | None, batch_size: int
) -> tuple[dict[str, Any], dict[str, Interval]]:
    """The numbers of the test set, and their intervals."""
    log_q_y, y = seen.log_q_y, test.y
    answered = ~np.isnan(log_q_y).any(1)
    means = {  # of one number per input, with what turns the mean into the unit told
        "error": (wrong(log_q_y, y), 100.0),
        "nll_y": (log_loss(log_q_y, y), 1.0),
        "brier": (brier(log_q_y, y), 1.0),
        "entropy": (entropy(log_q_y), 1.0),
    }
    means |= {
        f"false_alarm_rate.{k}": ((p <= ALPHA).astype(np.float64), 100.0) for k, p in seen.p_values.items()
    }
    means |= {name: (v, 1.0) for name, v in densities(run, test, log_q_x, batch_size).items()}
    h_y = entropy_of_shares(y)
    means["information.ci_yz"] = (h_y - means["nll_y"][0], 1.0)
    told, intervals = means_with_intervals(means)
    calibration = Calibration()
    if answered.any():
        calibration, more = calibrated(np.exp(log_q_y[answered]), y[answered])
        intervals |= {f"calibration.{name}": values for name, values in more.items()}
    rates, more = by_class(run, seen)
    intervals |= {f"false_alarm_rate_by_class.{name}": values for name, values in more.items()}
    warn_if_coarse(len(run.reference.calibration_class), ALPHA)
    numbers: dict[str, Any] = {
        name: told.get(name) for name in ("error", "nll_y", "brier", "entropy", *DENSITIES)
    }
    numbers |= {
        "n_without_answer": int((~answered).sum()),
        "calibration": calibration,
        "false_alarm_rate": {name: told[f"false_alarm_rate.{name}"] for name in seen.p_values},
        "false_alarm_rate_by_class": rates,
        "information": {name: told.get(f"information.{name}") for name in ("ci_xz", "ci_yz")},
    }
    return numbers, intervals


DENSITIES = ("loss_x", "bits_per_dim", "bits_per_dim_paper_convention")


def densities(run: Run, test: Part, log_q_x: Floats | None, batch_size: int) -> dict[str, Floats]:
    """loss_x, bits/dim and CI(X, Z_E) of each input, (N,) each, as means over the draws of the noise.

    With Gaussian noise bits/dim is taken without it, loss_x and the information with it. Uniform noise fills a
    level: h(E) = -D log levels, and CI(X, Z_E) = D loss_x - h(E) is -log q(x) in level units, a bound on H(X).
    """
    if log_q_x is None or not np.isfinite(log_q_x).all():
        return {}
    preprocess, pipeline, n_dims = run.pipeline.preprocess, run.pipeline, run.pipeline.preprocess.n_dims
    mean = log_q_x.mean(0)
    if not isinstance(preprocess, ImagePreprocess):
        return {"loss_x": (preprocess.log_scale - mean) / n_dims}
    offset = paper_convention_offset(preprocess.std.cpu().double().numpy())
    bits = pipeline.bits_per_dim(mean)
    assert bits is not None
    values = {"bits_per_dim": bits, "bits_per_dim_paper_convention": bits_per_dim(mean, n_dims) + offset}
    if preprocess.noise == "gaussian":
        mean = pipeline.noisy_log_q_x(test.x, batch_size)
    values["loss_x"] = (preprocess.log_scale - mean) / n_dims
    if preprocess.noise == "gaussian":
        constant = float(ci_xz(torch.zeros(1), preprocess.sigma, n_dims))
        values["information.ci_xz"] = n_dims * values["loss_x"] + constant
    elif preprocess.noise == "uniform":
        values["information.ci_xz"] = -mean
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
    return told, {name: told_interval(100 * again[name], 100 * float(here[name])) for name in again}


def rescaled(
    log_q_y: Floats, y: NDArray[np.int64], temperature: float
) -> tuple[Scaled, dict[str, Interval]]:
    """The numbers that change when answers are scaled by a temperature, and their intervals."""
    answered = ~np.isnan(log_q_y).any(1)
    if not answered.any():
        return Scaled(temperature), {}
    log_q_y, y = apply_temperature(log_q_y[answered], temperature), y[answered]
    told, intervals = means_with_intervals(
        {"nll_y": (log_loss(log_q_y, y), 1.0), "brier": (brier(log_q_y, y), 1.0)}
    )
    calibration, more = calibrated(np.exp(log_q_y), y)
    intervals |= {f"calibration.{name}": values for name, values in more.items()}
    return Scaled(temperature, told["nll_y"], told["brier"], calibration), intervals


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


def by_class(run: Run, seen: Output[Floats]) -> tuple[dict[str, float | None], dict[str, Interval]]:
    """Share of the test inputs called each class with p <= alpha among the calibration inputs called so.

    None where no test input is called so, or so few calibration inputs that nothing could be flagged.
    """
    score, called = run.reference.headline, seen.log_q_y.argmax(1)
    theirs = run.reference.calibration_class
    p = mondrian_p_values(seen.scores[score], called, run.reference.calibration[score], theirs)
    rates: dict[str, float | None] = dict.fromkeys(run.class_names)
    intervals: dict[str, Interval] = {}
    for k, name in enumerate(run.class_names):
        flags = (p[called == k] <= ALPHA).astype(np.float64)
        if flags.size and smallest_p_value(int((theirs == k).sum())) <= ALPHA:
            told, more = means_with_intervals({name: (flags, 100.0)})
            rates |= told
            intervals |= more
    return rates, intervals


def on_outliers(
    run: Run, seen: Output[Floats], theirs: Output[Floats], paired: bool
) -> tuple[Outliers, dict[str, Interval]]:
    """The numbers of one set of strange inputs against the test set, and their intervals.

    paired: the i-th of them was made from the i-th test input, and they are resampled together.
    """
    seeds = (0, 0 if paired else 1)
    means: dict[str, tuple[Floats, float]] = {"entropy": (entropy(theirs.log_q_y), 1.0)}
    means |= {
        f"detected_at_alpha.{k}": ((p <= ALPHA).astype(np.float64), 100.0)
        for k, p in theirs.p_values.items()
    }
    told, intervals = means_with_intervals(means)
    inside = entropy(seen.log_q_y)
    del intervals["entropy"]
    increase = resampled_sums(means["entropy"][0][:, None], seeds[1])[:, 0] / len(means["entropy"][0])
    increase -= resampled_sums(inside[:, None], seeds[0])[:, 0] / len(inside)
    intervals["entropy_increase"] = told_interval(increase)
    areas, rates = {}, {}
    for name, scores in theirs.scores.items():
        order = ranks(seen.scores[name], scores)
        areas[name], rates[name] = 100 * auroc_of(order.counts()), 100 * fpr95_of(order.counts())
        intervals[f"auroc.{name}"] = told_interval(100 * resampled_ranks(order, auroc_of, seeds))
        intervals[f"fpr95.{name}"] = told_interval(100 * resampled_ranks(order, fpr95_of, seeds))
    mean = told["entropy"]
    outliers = Outliers(
        n=len(theirs.log_q_y),
        entropy_increase=None if mean is None else finite_or_none(mean - float(inside.mean())),
        auroc=areas,
        fpr95=rates,
        detected_at_alpha={name: told[f"detected_at_alpha.{name}"] for name in theirs.p_values},
        bh=false_discoveries(
            seen.p_values[run.reference.headline], theirs.p_values[run.reference.headline]
        ),
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


def told_interval(values: Floats, here: float | None = None) -> Interval:
    low, high = bootstrap_interval(values, here)
    return finite_or_none(low), finite_or_none(high)
