"""The published results/: files are whole, pages hold their numbers, and the prose follows from them."""

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev

import benchmark_tables
import claims
import numpy as np
import pytest
import result_tables
from comparisons import Ensemble, read_comparison
from helpers.results import ood_result, results
from published import (
    ENTROPY_INCREASE,
    FLOOR,
    MODELS,
    Estimate,
    estimate,
    mean_auroc,
    of,
    reach_of,
    rescaled,
    runs_of,
)
from scipy import stats

from ibinn.report.quantities import BITS, ERROR, GEO_MEAN, ood_auroc
from ibinn.run.results import Intervals, OodIntervals, from_json, read_results

ROOT = Path(__file__).parent.parent
LIMITS = {"fashion-table": 20, "fashion-no-ramp": 20, "fashion-gamma": 8, "cifar10-base": 100}  # minutes
FOLDERS = sorted(file.parent for file in (ROOT / "results").glob("*/*/results.json"))


@pytest.mark.parametrize("name", result_tables.PAGES)
def test_a_page_holds_what_the_results_say(name):
    page = (ROOT / "docs" / name).resolve()
    assert result_tables.filled(page) == page.read_text(), "run python docs/result_tables.py"


@pytest.mark.parametrize("name", benchmark_tables.PAGES)
def test_a_page_holds_what_the_benchmarks_say(name):
    page = ROOT / "docs" / name
    text = benchmark_tables.filled(page, benchmark_tables.PAGES[name])
    assert text == page.read_text(), "run python docs/benchmark_tables.py"


def rows_of(text, name):
    """The cells of the table at a place of a page, by its first column; the heads under ''."""
    block = text.split(f"<!-- {name} -->\n")[1].split("<!-- end -->")[0].replace("\N{NO-BREAK SPACE}", " ")
    lines = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in block.splitlines()
        if line.startswith("|")
    ]
    return {"": lines[0], **{line[0]: line for line in lines[2:]}}


def test_the_table_in_the_readme_is_that_of_the_files():
    """Once more, by other means."""
    rows = rows_of((ROOT / "README.md").read_text(), "fashion_short")
    found = {}
    for folder in FOLDERS:
        run = read_results(folder)
        if folder.parts[-2] == "fashion-table":
            knob = run.gamma if run.method in ("ibinn", "vib") else None
            found.setdefault((run.method, knob), []).append(run)
    for name, (score, *setup) in {
        "IB-INN, γ = 1": ("combined", "ibinn", 1.0),
        "class-NLL": ("combined", "class-nll", None),
        "VIB, γ = 1": ("knn", "vib", 1.0),
        "ResNet": ("mahalanobis", "resnet", None),
    }.items():
        runs = found[tuple(setup)]
        cells = dict(zip(rows[""], rows[name], strict=True))
        errors = [run.error for run in runs]
        spread = np.std(errors, ddof=1) / np.sqrt(len(errors))
        assert cells["error, %"] == f"{fmean(errors):.2f} ± {spread:.2f}"
        areas = [fmean(ood.auroc[score] for ood in run.ood.values()) for run in runs]
        assert cells["strange inputs, AUROC, % (score)"].split(" ")[0] == f"{fmean(areas):.1f}"
        calibrations = [run.calibration for run in runs]
        floor = fmean(one.floor["geo_mean"].mean for one in calibrations)
        mean = fmean(np.cbrt(one.ece * one.mce * one.ice) for one in calibrations)
        assert cells["calibration (floor), %"].startswith(f"{mean:.2f}")
        assert cells["calibration (floor), %"].endswith(f"({floor:.2f})")
        if runs[0].bits_per_dim is not None:
            assert cells["bits/dim"].startswith(f"{fmean(run.bits_per_dim for run in runs):.2f}")


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_results_are_whole_and_beside_what_made_them(folder):
    run = read_results(folder)
    assert run.train_seconds < 60 * LIMITS.get(folder.parts[-2], 10)
    assert not run.ood_left_out
    assert f"seed = {run.seed}" in (folder / "config.toml").read_text()
    assert len((folder / "history.jsonl").read_text().splitlines()) > 1


def test_the_demo_made_again_has_the_same_digits():
    """As measured on the machine of the results; on other machines it may differ."""
    demo = read_results(ROOT / "results" / "digits")
    stored = json.loads((ROOT / "results" / "digits-elsewhere.json").read_text())
    again = from_json(stored["the same again"], "digits-elsewhere.json")
    same = {"train_seconds": 0.0, "throughput": 0.0, "intervals": Intervals()}
    assert replace(demo, **same) == replace(again, **same)


def some_run(method, error, half=(1.0, 2.0)):
    return results(
        method=method,
        gamma=None,
        error=error,
        bits_per_dim=None,
        ood={
            name: ood_result(auroc={"nll": error + i}) for i, name in enumerate(("noise", "jpeg", "mnist"))
        },
        intervals=Intervals(
            error=(error - half[0], error + half[1]),
            ood={
                "noise": OodIntervals(auroc={"nll": (0.0, 1.0)}),
                "mnist": OodIntervals(auroc={"nll": (2.0, 5.0)}),
            },
        ),
    )


def test_estimates_cover_another_test_set_and_another_training():
    runs = [some_run("a", error) for error in (1.0, 2.0, 6.0)]
    assert estimate(runs[:1], ERROR) == Estimate(1.0, 0.0, 3.0, 1)
    assert estimate(runs, ERROR, 3**0.5) == Estimate(3.0, 3 - 2**0.5, 3 + 5**0.5, 3)
    area = mean_auroc("nll")
    assert area.value(runs[0]) == 2.0  # the control is left out
    assert estimate(runs[:1], area) == Estimate(2.0, 1.0, 3.0, 1)
    assert estimate(runs, BITS) is None


def test_trainings_scatter_as_students_interval_says():
    """One method: Student's own; several: as in an analysis of variance. By simulation: it covers 95 %."""
    runs = [some_run("a", error, half=(0, 0)) for error in (1.0, 2.0, 6.0)]
    low, high = stats.t.interval(0.95, 2, fmean([1, 2, 6]), stdev([1, 2, 6]) / 3**0.5)
    found = estimate(runs, ERROR, reach_of(runs, ERROR))
    assert (found.mean, found.low, found.high) == pytest.approx((3.0, low, high))
    assert reach_of(runs[:1], ERROR) == 0
    rng, covered = np.random.default_rng(0), []
    for _ in range(2000):
        several = [
            some_run(m, rng.normal(mean), half=(0, 0)) for m, mean in (("a", 5), ("b", 9)) for _ in range(3)
        ]
        single = estimate([some_run("c", rng.normal(20), half=(0, 0))], ERROR, reach_of(several, ERROR))
        covered.append(single.low < 20 < single.high)
    assert fmean(covered) == pytest.approx(0.95, abs=0.02)


def test_the_advice_follows_from_the_numbers():
    runs = runs_of("fashion-table")
    ibinn, resnet = of(runs, "ibinn", 1.0), of(runs, "resnet")

    def numbers(some, quantity):
        return estimate(some, quantity, reach_of(runs, quantity))

    def gap(quantity, theirs=None):
        return claims.difference(numbers(resnet, theirs or quantity), numbers(ibinn, quantity))

    score = claims.best_score(resnet)
    assert gap(ERROR).high < 0  # it makes fewer errors
    several = read_comparison(Ensemble, ROOT / "results/fashion-ensemble.json")
    assert several.error < min(run.error for run in resnet)
    assert several.error > numbers(resnet, ERROR).low  # open by the intervals
    mean = gap(mean_auroc("combined"), mean_auroc(score))
    assert mean.low < 0 < mean.high  # mean AUROC is the same within the intervals
    assert gap(ood_auroc("rotation", "combined"), ood_auroc("rotation", score)).low > 0
    assert max(numbers(resnet, ood_auroc("noise", one)).mean for one in claims.FEATURES) < 70
    assert numbers(ibinn, ood_auroc("noise", "combined")).low > 85
    calibration = gap(GEO_MEAN)
    assert calibration.low < 0 < calibration.high  # cannot be separated
    before, after = (numbers(resnet, error).mean for error in (GEO_MEAN, rescaled(GEO_MEAN)))
    assert after > before  # a temperature makes it worse
    assert (len(ibinn), several.n_members) == (3, 3)
    for name in ("inverted", "quickdraw"):  # each is more confident there, but flags all
        assert all(run.intervals.ood[name].entropy_increase[1] < 0 for run in ibinn)
        assert numbers(ibinn, ood_auroc(name, "combined")).low > 99
        assert min(run.ood[name].detected_at_alpha["combined"] for run in ibinn) > 99.9
    assert all(numbers(some, mean_auroc("entropy")).mean < 80 for some in (ibinn, resnet))
    density = of(runs, "ibinn", 0.0)
    assert claims.difference(numbers(ibinn, BITS), numbers(density, BITS)).low > 0
    noisy = [
        fmean(run.ood["noise"].detected_at_alpha["combined"] for run in some) for some in (density, ibinn)
    ]
    assert np.round(noisy, -1).tolist() == [90, 70]


def test_the_advice_on_photographs_follows_from_the_numbers():
    runs = runs_of("cifar10-base")
    [ibinn], [resnet] = of(runs, "ibinn", 1.0), of(runs, "resnet")

    def gap(quantity, theirs=None):
        return claims.difference(estimate([resnet], theirs or quantity), estimate([ibinn], quantity))

    def areas(name):
        """How far each score of the ResNet is from combined."""
        area = partial(ood_auroc, name)
        return {score: gap(area("combined"), area(score)) for score in claims.FEATURES}

    errors = claims.ratio(estimate([resnet], ERROR), estimate([ibinn], ERROR))
    assert -50 < errors.low < errors.high < -35  # little more than half as many
    for name in ("noise", "quickdraw", "rgb_rotation"):
        assert all(area.high < 0 for area in areas(name).values())
    assert max(resnet.ood["noise"].auroc[score] for score in claims.FEATURES) < 55
    assert areas("imagenet")["entropy"].low > 0
    assert estimate([ibinn], ood_auroc("jpeg", "combined")).low > 60  # the compression is noticed
    assert estimate([resnet], ood_auroc("jpeg", "entropy")).low > 55

    def flagged(name):
        """The share that combined flags, over the largest of a score of the ResNet."""
        ours, theirs = (run.ood[name].detected_at_alpha for run in (ibinn, resnet))
        return ours["combined"] / max(theirs.values())

    assert 2.5 < flagged("quickdraw") < 3.5
    assert 1 < flagged("rgb_rotation") < 1.1
    assert gap(GEO_MEAN).low > 0
    scaled = gap(rescaled(GEO_MEAN))
    assert scaled.low < 0 < scaled.high


def test_the_reasons_follow_from_the_numbers():
    runs = runs_of("fashion-table")
    models = ("IB-INN, γ = 1", "class-NLL", "ResNet", "VIB, γ = 1", "IB-INN, γ = 3.7")
    ibinn, class_nll, resnet, vib, middle = (of(runs, *MODELS[name]) for name in models)

    def mean(some, quantity):
        return fmean(quantity.value(run) for run in some)

    for gamma, quantity in ((math.inf, ERROR), (0.0, BITS)):  # (a)
        assert 1.17 < mean(middle, quantity) / mean(of(runs, "ibinn", gamma), quantity) < 1.23
    for some in (resnet, vib):  # (b)
        assert mean(some, GEO_MEAN) < mean(some, FLOOR) + 1.0
    assert 1.5 < mean(class_nll, ERROR) / mean(ibinn, ERROR) < 2.5  # (c)
    steady = of(runs_of("fashion-no-ramp"), "ibinn", 1.0)
    rise = [mean(some, ENTROPY_INCREASE) for some in (ibinn, steady, middle, resnet)]  # (d)
    assert rise == sorted(rise)
    assert rise[2] > 0.8 * rise[3]
    for run in of(runs_of("fashion-gamma"), "vib") + of(runs_of("fashion-gamma"), "ibinn"):  # (h)
        above = GEO_MEAN.value(run) - FLOOR.value(run)
        assert above < 0.6 or run.gamma < 1
        assert above > 2.5 or run.gamma > 0.1 or run.method == "ibinn"
