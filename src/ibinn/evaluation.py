"""A trained model on its test set and on OoD sets -> `Results`."""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import logsumexp

from ibinn._types import Array, Floats, Labels, Progress
from ibinn.config import ALPHA
from ibinn.data.dataset import Dataset, Part, data_digest
from ibinn.data.splits import Splits, split
from ibinn.formats import finite_or_none
from ibinn.inference.judge import judge
from ibinn.metrics import calibration as cal
from ibinn.metrics.bootstrap import bootstrap_interval, resampled_ranks, resampled_sums
from ibinn.metrics.classification import brier, entropy, entropy_of_shares, log_loss, wrong
from ibinn.metrics.likelihood import bits_per_dim, paper_convention_offset
from ibinn.metrics.roc import Counts, auroc_of, fpr95_of, ranks
from ibinn.models.methods import METHODS
from ibinn.models.output import Output
from ibinn.objectives import ci_xz
from ibinn.ood.conformal import benjamini_hochberg, smallest_p_value, warn_if_coarse
from ibinn.ood.features import FeatureScores, feature_scores, fit_feature_scores
from ibinn.ood.scores import class_p_values
from ibinn.ood.sets import OOD_SETS
from ibinn.run import RunError
from ibinn.run.results import (
    Averaged,
    Bin,
    Calibration,
    FalseDiscoveries,
    Floor,
    Information,
    Interval,
    Intervals,
    OodIntervals,
    OodResult,
    Rescaled,
    RescaledIntervals,
    Results,
)
from ibinn.run.trained import Run

FDR = 0.1
DENSITIES = ("loss_x", "bits_per_dim", "bits_per_dim_paper_convention")


class BootstrapMean(NamedTuple):
    """The mean of one number per input, None if it is not finite, and its bootstrap interval."""

    value: float | None
    interval: Interval | None


ABSENT = BootstrapMean(None, None)
NO_INTERVAL: Interval = (None, None)


@dataclass(frozen=True)
class OnTestSet:
    """A model on its test set. densities: see `densities`."""

    output: Output[Floats]
    densities: dict[str, Floats]
    throughput: float


def evaluate(
    run: Run,
    dataset: Dataset,
    ood: Mapping[str, Array] | None = None,
    batch_size: int = 500,
    progress: Progress | None = None,
) -> tuple[Results, dict[str, Array]]:
    """Evaluate a run on the test split of its data and on OoD sets.

    Parameters
    ----------
    run : Run
        The trained model.
    dataset : Dataset
        The data that it was trained on.
    ood : mapping of str to (N, ...), optional
        OoD sets by name, in the units of the data.
    batch_size : int
        Number of inputs per forward pass.
    progress : callable, optional
        Called with the number of inputs done and their total.

    Returns
    -------
    results : Results
        All numbers.
    arrays : dict of (N,)
        The scores of every input, as scores/NAME for the test set and scores/SET/NAME for the OoD sets.
    """
    if run.facts.train_seconds is None:
        raise RunError("a saved estimator has no training time; evaluate a run of ibinn train instead")
    ood = ood or {}
    splits, test = splits_of(run, dataset), read_test(run, dataset)
    n_fitted, others = 0 if run.pipeline.model.has_density else len(splits.train), views_of(run)[1:]
    ahead = [n_fitted, len(test), *[len(test)] * len(others), *map(len, ood.values())]
    passes = iter(one_count(progress, ahead))
    features = fit_feature_scores(run.pipeline, dataset, splits, batch_size, next(passes))
    start = time.perf_counter()
    output = judge(run, test.x, batch_size, next(passes))
    throughput = len(test) / (time.perf_counter() - start)
    output = with_features(run, test.x, output, features, batch_size)
    views = [output, *(see(run, test.x, view, batch_size, next(passes)) for view in others)]
    density = densities(run, test, log_densities(views[: draws_of(run)]), batch_size)
    results = on_test(run, test, OnTestSet(output, density, throughput))
    results = replace(results, averaged=averaged(views, test.y))
    arrays = {f"scores/{name}": values for name, values in output.scores.items()}
    sets: dict[str, OodResult] = {}
    set_intervals: dict[str, OodIntervals] = {}
    for name, x in ood.items():
        outside = with_features(run, x, judge(run, x, batch_size, next(passes)), features, batch_size)
        paired = name in OOD_SETS and len(x) == len(test)
        sets[name], set_intervals[name] = on_ood_set(run, output, outside, paired)
        arrays |= {f"scores/{name}/{score}": values for score, values in outside.scores.items()}
    intervals = replace(results.intervals, ood=set_intervals)
    return replace(results, ood=sets, intervals=intervals), arrays


def one_count(progress: Progress | None, ahead: list[int]) -> Iterator[Progress | None]:
    """A callback for each of several passes that continues the count of the passes before it."""
    for before, _ in zip(itertools.accumulate(ahead, initial=0), ahead, strict=False):
        if progress is None:
            yield None
        else:
            yield lambda done, _, before=before: progress(before + done, sum(ahead))  # type: ignore[misc]


def splits_of(run: Run, dataset: Dataset) -> Splits:
    """The splits that a run was trained with; RunError for other data."""
    if data_digest(dataset) != run.facts.data_digest:
        raise RunError(
            f"{dataset.name} is not the data that the model was trained on, or has changed since: its split would "
            f"mix training and test examples; give the same data"
        )
    return split(dataset, run.config.seed)


def read_test(run: Run, dataset: Dataset, most: int | None = None) -> Part:
    """The test split of the data that a run was trained on, or a random subset of at most `most` examples."""
    rows = splits_of(run, dataset).test
    if most is not None:
        rows = np.random.default_rng(0).permutation(rows)[:most]
    return (dataset.train if dataset.test is None else dataset.test).take(rows)


def with_features(
    run: Run, raw: Array, output: Output[Floats], fitted: FeatureScores | None, batch_size: int
) -> Output[Floats]:
    """The output with scores on the features added, if the model has them."""
    if fitted is None:
        return output
    scores = feature_scores(run.pipeline, raw, fitted, batch_size)
    return replace(
        output,
        scores={**output.scores, **scores},
        p_values={**output.p_values, **fitted.p_values(scores)},
    )


# --- density -----------------------------------------------------------------------------------------


def draws_of(run: Run) -> int:
    """Number of draws of the noise that bits/dim is a mean over: 0 without a density, 1 without uniform noise."""
    return run.pipeline.preprocess.n_draws if run.pipeline.model.has_density else 0


class View(NamedTuple):
    """A way to look at the inputs: with this draw of the noise, mirrored or not."""

    draw: int
    mirrored: bool = False


def views_of(run: Run) -> list[View]:
    """The views of each test input, the plain one first: all draws, then mirrored if training mirrored images."""
    draws = range(max(1, draws_of(run)))
    sides = (False, True) if run.form.is_images and run.config.recipe.flip else (False,)
    return [View(draw, mirrored) for mirrored in sides for draw in draws]


def see(run: Run, raw: Array, view: View, batch_size: int, progress: Progress | None) -> Output[Floats]:
    """The output for images (N, H, W, C) seen so."""
    raw = raw[:, :, ::-1] if view.mirrored else raw
    return run.pipeline.compute_output(raw, view.draw, batch_size, progress)


def averaged(views: Sequence[Output[Floats]], y: Labels) -> Averaged | None:
    """Error and log-loss of the mean probabilities over several views."""
    if len(views) < 2 or not len(y):
        return None
    log_p_y = logsumexp([view.log_p_y for view in views], axis=0) - np.log(len(views))
    return Averaged(
        len(views), float(100 * wrong(log_p_y, y).mean()), finite_or_none(log_loss(log_p_y, y).mean())
    )


def log_densities(draws: Sequence[Output[Floats]]) -> Floats | None:
    """log q(x) at several fixed draws of the noise, (draws, N); None without a density."""
    log_q_x = [output.log_q_x for output in draws if output.log_q_x is not None]
    return np.stack(log_q_x) if log_q_x else None


def densities(run: Run, test: Part, log_q_x: Floats | None, batch_size: int) -> dict[str, Floats]:
    """loss_x, bits/dim and CI(X, Z_E) of each input, (N,) each, as means over the draws of the noise.

    With Gaussian noise bits/dim is taken without it, loss_x and the information with it. Uniform noise fills a
    level: h(E) = -D log levels, and CI(X, Z_E) = D loss_x - h(E) is -log q(x) in level units, a bound on H(X).
    """
    if log_q_x is None or not np.isfinite(log_q_x).all():
        return {}
    preprocess, pipeline, n_dims = run.pipeline.preprocess, run.pipeline, run.pipeline.preprocess.n_dims
    mean = log_q_x.mean(0)
    if preprocess.levels is None:
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
        values["ci_xz"] = n_dims * values["loss_x"] + constant
    elif preprocess.noise == "uniform":
        values["ci_xz"] = -mean
    return values


# --- test set ----------------------------------------------------------------------------------------


def on_test(run: Run, test: Part, seen: OnTestSet) -> Results:
    """The results on the test set; those of OoD sets are added later."""
    output, y = seen.output, test.y
    nll_y = log_loss(output.log_q_y, y)
    classes, alarms, density, about_y = bootstrapped_means(
        {
            "error": 100 * wrong(output.log_p_y, y),
            "nll_y": nll_y,
            "brier": brier(output.log_q_y, y),
            "entropy": entropy(output.log_q_y),
        },
        flags(output.p_values),
        seen.densities,
        {"ci_yz": entropy_of_shares(y) - nll_y},
    )
    information = {"ci_xz": density.pop("ci_xz", ABSENT), **about_y}
    means = dict.fromkeys(DENSITIES, ABSENT) | classes | density
    error = means.pop("error")
    assert error.value is not None  # missing answers count as errors
    answered = ~np.isnan(output.log_q_y).any(1)
    calibration, calibration_intervals = calibrated(np.exp(output.log_q_y[answered]), y[answered])
    rescaled, rescaled_intervals = rescale(output.log_p_y[answered], y[answered], run.pipeline.temperature)
    by_class = alarms_by_class(run, output)
    warn_if_coarse(len(run.reference.calibration_class), ALPHA)
    facts, config, preprocess = run.facts, run.config, run.pipeline.preprocess
    assert facts.train_seconds is not None
    return Results(
        method=config.method,
        gamma=gamma_of(run),
        dataset=config.data,
        size=config.size,
        seed=config.seed,
        classes=tuple(run.class_names),
        levels=preprocess.levels,
        n_dims=preprocess.n_dims,
        n_parameters=facts.n_parameters,
        n_train=facts.n_train,
        n_validation=facts.n_validation,
        n_calibration=facts.n_calibration,
        n_test=len(test),
        train_seconds=facts.train_seconds,
        converged=facts.converged,
        noise=preprocess.noise,
        sigma=None if preprocess.noise in (None, "uniform") else preprocess.sigma,
        error=error.value,
        **values_of(means),
        n_draws=draws_of(run),
        n_without_answer=int((~answered).sum()),
        calibration=calibration,
        scaled=rescaled,
        score=run.reference.headline,
        alpha=ALPHA,
        false_alarm_rate=values_of(alarms),
        false_alarm_rate_by_class=values_of(by_class),
        ood={},
        ood_left_out={},
        information=Information(**values_of(information)),
        throughput=seen.throughput,
        averaged=None,
        intervals=Intervals(
            error=error.interval,
            **{name: mean.interval for name, mean in means.items()},
            information=intervals_of(information),
            calibration=calibration_intervals,
            scaled=rescaled_intervals,
            false_alarm_rate=intervals_of(alarms),
            false_alarm_rate_by_class=intervals_of(by_class),
            ood={},
        ),
    )


def gamma_of(run: Run) -> float | None:
    """gamma as it stands in the loss; None for plain classifiers."""
    if not run.pipeline.model.has_density and run.config.method != "vib":
        return None
    return METHODS[run.config.method].gamma(run.config.gamma, run.pipeline.preprocess.n_dims)


def flags(p_values: Mapping[str, Floats]) -> dict[str, Floats]:
    """100 where p <= alpha and 0 elsewhere, (N,) by score: the mean is a share in percent."""
    return {name: 100 * (p <= ALPHA).astype(np.float64) for name, p in p_values.items()}


def bootstrapped_means(*groups: Mapping[str, Floats]) -> list[dict[str, BootstrapMean]]:
    """The mean of each (N,) array of each group, with its interval; one resampling serves all."""
    matrix = np.stack([values for group in groups for values in group.values()], axis=1)
    sums = resampled_sums(matrix, seed=0) / len(matrix)
    means = (
        BootstrapMean(finite_or_none(mean), finite_interval(sums[:, i]))
        for i, mean in enumerate(matrix.mean(0))
    )
    return [{name: next(means) for name in group} for group in groups]


def values_of(means: Mapping[str, BootstrapMean]) -> dict[str, float | None]:
    return {name: mean.value for name, mean in means.items()}


def intervals_of(means: Mapping[str, BootstrapMean]) -> dict[str, Interval]:
    return {name: mean.interval for name, mean in means.items() if mean.interval is not None}


def finite_interval(values: Floats, here: float | None = None) -> Interval:
    low, high = bootstrap_interval(values, here)
    return finite_or_none(low), finite_or_none(high)


def calibrated(probabilities: Floats, y: Labels) -> tuple[Calibration, dict[str, Interval]]:
    """Calibration errors with their floors, the calibration curve, and the intervals of the errors."""
    if not len(y):
        return Calibration(), {}
    n, n_true = cal.pairs_per_bin(probabilities), cal.true_per_bin(probabilities, y)
    gaps, n_bins = cal.top_label_gaps(probabilities, y), n.shape[1]
    sums = resampled_sums(np.concatenate([n, n_true, gaps], axis=1), seed=0)
    resampled = cal.calibration_errors(sums[:, :n_bins], sums[:, n_bins : 2 * n_bins])._asdict()
    resampled["top_label_ece"] = cal.top_label_ece(sums[:, 2 * n_bins :], len(y))
    errors = cal.calibration_errors(n.sum(0), n_true.sum(0))._asdict()
    errors["top_label_ece"] = cal.top_label_ece(gaps.sum(0), len(y))
    floor = cal.calibration_floor(probabilities)
    floors = floor.errors._asdict() | {"top_label_ece": floor.top_label_ece}
    shares = cal.true_shares(sums[:, :n_bins], sums[:, n_bins : 2 * n_bins])
    calibration = Calibration(
        **{name: finite_or_none(100 * float(value)) for name, value in errors.items()},
        floor={name: floor_of(values) for name, values in floors.items()},
        bins=curve(n.sum(0), n_true.sum(0), shares, floor.share),
        min_count=cal.MIN_COUNT,
        n_left_out=int((n.sum(0) <= cal.MIN_COUNT).sum()),
    )
    intervals = {
        name: finite_interval(100 * resampled[name], 100 * float(value)) for name, value in errors.items()
    }
    return calibration, intervals


def floor_of(errors: Floats) -> Floor:
    return Floor(finite_or_none(100 * errors.mean()), finite_or_none(100 * np.quantile(errors, 0.95)))


def curve(n: Floats, n_true: Floats, resampled: Floats, drawn: Floats) -> tuple[Bin, ...]:
    """The bins of the calibration curve; without shares in bins of at most `min_count` pairs."""
    bins = []
    share: float | None
    for i, count in enumerate(n):
        share, interval, floor = None, NO_INTERVAL, NO_INTERVAL
        if count > cal.MIN_COUNT:
            share, interval = float(n_true[i] / count), finite_interval(resampled[:, i])
            floor = finite_interval(drawn[:, i])
        bins.append(
            Bin(
                low=float(cal.EDGES[i]),
                high=float(cal.EDGES[i + 1]),
                n=int(count),
                share=share,
                share_low=interval[0],
                share_high=interval[1],
                floor_low=floor[0],
                floor_high=floor[1],
            )
        )
    return tuple(bins)


def rescale(log_p_y: Floats, y: Labels, temperature: float) -> tuple[Rescaled, RescaledIntervals]:
    """The numbers that change with the temperature, from the calibrated probabilities."""
    if not len(y):
        return Rescaled(temperature), RescaledIntervals()
    [means] = bootstrapped_means({"nll_y": log_loss(log_p_y, y), "brier": brier(log_p_y, y)})
    nll_y, brier_score = means["nll_y"], means["brier"]
    calibration, intervals = calibrated(np.exp(log_p_y), y)
    return (
        Rescaled(temperature, nll_y.value, brier_score.value, calibration),
        RescaledIntervals(nll_y.interval, brier_score.interval, intervals),
    )


def alarms_by_class(run: Run, output: Output[Floats]) -> dict[str, BootstrapMean]:
    """Share of the test inputs predicted as each class with p <= alpha among the calibration inputs of that class.

    `ABSENT` if no test input is predicted as the class, or too few calibration inputs for any p <= alpha.
    """
    p, calibration_class = class_p_values(output, run.reference), run.reference.calibration_class
    means = dict.fromkeys(run.class_names, ABSENT)
    for k, name in enumerate(run.class_names):
        inside = p[output.predicted == k]
        if inside.size and smallest_p_value(int((calibration_class == k).sum())) <= ALPHA:
            means |= bootstrapped_means(flags({name: inside}))[0]
    return means


# --- OoD sets ----------------------------------------------------------------------------------------


def on_ood_set(
    run: Run, inside: Output[Floats], outside: Output[Floats], paired: bool
) -> tuple[OodResult, OodIntervals]:
    """The numbers of one OoD set against the test set, and their intervals.

    paired: the i-th OoD input was made from the i-th test input, and they are resampled together.
    """
    seeds, score = (0, 0 if paired else 1), run.reference.headline
    h_inside, h_outside = entropy(inside.log_q_y), entropy(outside.log_q_y)
    means, detected = bootstrapped_means({"entropy": h_outside}, flags(outside.p_values))
    auroc, auroc_intervals = separation(inside.scores, outside.scores, auroc_of, seeds)
    fpr95, fpr95_intervals = separation(inside.scores, outside.scores, fpr95_of, seeds)
    mean = means["entropy"].value
    result = OodResult(
        n=len(outside.log_q_y),
        entropy_increase=None if mean is None else finite_or_none(mean - float(h_inside.mean())),
        auroc=auroc,
        fpr95=fpr95,
        detected_at_alpha=values_of(detected),
        bh=false_discoveries(inside.p_values[score], outside.p_values[score]),
    )
    intervals = OodIntervals(
        entropy_increase=increase_interval(h_inside, h_outside, seeds),
        auroc=auroc_intervals,
        fpr95=fpr95_intervals,
        detected_at_alpha=intervals_of(detected),
    )
    return result, intervals


def separation(
    inside: Mapping[str, Floats],
    outside: Mapping[str, Floats],
    measure: Callable[[Counts], float],
    seeds: tuple[int, int],
) -> tuple[dict[str, float], dict[str, Interval]]:
    """How well each score separates OoD from test inputs, in percent, and the intervals."""
    orders = {name: ranks(inside[name], scores) for name, scores in outside.items()}
    values = {name: 100 * measure(order.counts()) for name, order in orders.items()}
    resampled = {name: 100 * resampled_ranks(order, measure, seeds) for name, order in orders.items()}
    return values, {name: finite_interval(values) for name, values in resampled.items()}


def increase_interval(inside: Floats, outside: Floats, seeds: tuple[int, int]) -> Interval:
    """Of the mean over OoD inputs minus the mean over test inputs."""
    increase = resampled_sums(outside[:, None], seeds[1])[:, 0] / len(outside)
    increase -= resampled_sums(inside[:, None], seeds[0])[:, 0] / len(inside)
    return finite_interval(increase)


def false_discoveries(p_test: Floats, p_ood: Floats) -> FalseDiscoveries:
    """Benjamini and Hochberg over both together."""
    flagged = benjamini_hochberg(np.concatenate([p_test, p_ood]), FDR)
    false, found = flagged[: len(p_test)], flagged[len(p_test) :]
    share = 100 * float(false.sum() / flagged.sum()) if flagged.any() else None
    return FalseDiscoveries(100 * FDR, 100 * float(found.mean()), share)
