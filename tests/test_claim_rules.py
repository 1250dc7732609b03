"""The rules that judge the claims of the paper, on made-up results: worlds in which they hold, and fail."""

import dataclasses
import json
import math
import shutil
from dataclasses import replace

import claims
import numpy as np
import published
import pytest
import result_tables
from comparisons import Generated, Generation, write_comparison
from helpers.results import calibration, ood_result, results

from ibinn.report.paper import PRINTED, SETS
from ibinn.run.results import Information, Intervals, OodIntervals, Rescaled, write_results

GAMMAS = (0.02, 0.074, 0.27, 1.0, 3.7, 14.0, 50.0)
SIGMAS = (0.0001, 0.00028, 0.00077, 0.0022, 0.006, 0.017, 0.046, 0.13, 0.36, 1.0)
SCORES = ("typicality", "combined", "entropy", "max_softmax", "energy", "mahalanobis", "knn")
LETTERS = "abcdefghi"


def around(value, share=0.01):
    """An interval of 1 % to either side."""
    return None if value is None else (value - share * abs(value), value + share * abs(value))


def made(method, gamma=None, *, seed=0, geo=1.5, rise=0.3, area=80.0, sets=("noise", "mnist"), **changes):
    """A run with intervals of 1 % to either side."""
    values = {"error": 10.0, "bits_per_dim": 3.4, "loss_x": -3.0, "train_seconds": 60.0, "n_dims": 192}
    values |= changes
    intervals = Intervals(
        error=around(values["error"]),
        bits_per_dim=around(values["bits_per_dim"]),
        loss_x=around(values["loss_x"]),
        calibration={"geo_mean": around(geo)},
        ood={name: OodIntervals(around(rise), dict.fromkeys(SCORES, around(area))) for name in sets},
    )
    floor = calibration().floor | {"geo_mean": replace(calibration().floor["geo_mean"], mean=1.0)}
    values["error"] += 0.001 * seed
    return results(
        method=method,
        gamma=gamma,
        seed=seed,
        nll_y=0.3,
        calibration=calibration(geo_mean=geo + 0.001 * seed, floor=floor),
        scaled=Rescaled(1.0, 0.3, 0.1, calibration(geo_mean=geo, floor=floor)),
        information=Information(ci_xz=1.0),
        ood={name: ood_result(entropy_increase=rise, auroc=dict.fromkeys(SCORES, area)) for name in sets},
        intervals=intervals,
        **values,
    )


def world(good):
    """Results of all experiments: such that every claim holds, or none."""
    sign = 1 if good else -1
    area = 75.0 if good else 95.0
    table = [made("ibinn", 1.0, seed=s, rise=0.3 + 0.1 * sign, geo=1.5 - 0.4 * sign) for s in range(3)]
    for method, gamma in (("resnet", None), ("class-nll", None), ("vib", 1.0)):
        error = 60.0 if good and method == "class-nll" else 9.0
        bits = 3.2 if good else 3.9
        table += [made(method, gamma, seed=s, error=error, bits_per_dim=bits, area=area) for s in range(3)]
    table += [
        made("ibinn", 0.0, bits_per_dim=3.2 if good else 2.2, area=area),
        made("ibinn", math.inf, error=9.0 if good else 5.0),
        made("class-nll-fixed"),
        made("irevnet", error=9.05, geo=1.5 if good else 4.0, rise=0.3 if good else 0.5),
    ]
    sweep = []
    for n, gamma in enumerate(GAMMAS):
        bits = 3.4 + sign * 0.2 * n
        sweep.append(made("ibinn", gamma, error=12 - sign * 0.5 * n, bits_per_dim=bits, geo=1.5))
        sweep.append(made("vib", gamma, error=12 - sign * 0.5 * n - sign, geo=1.5 + 0.5 * sign))
    sigmas = [
        made(
            "ibinn",
            0.2,
            sigma=s,
            error=20.0 if good and s < 1e-3 else 20.0 + 5 * n,
            loss_x=-3.0 + (not good) * n,
        )
        for n, s in enumerate(SIGMAS)
    ]
    sets = ("noise", "imagenet", "jpeg")
    photographs = [made("ibinn", 1.0, error=30.0, sets=sets)]
    photographs += [made("resnet", error=20.0, geo=2.5, rise=0.7, sets=sets)]
    photographs = [
        replace(run, ood=run.ood | {"jpeg": replace(run.ood["jpeg"], entropy_increase=9.0)})
        for run in photographs
    ]
    names = ("fashion-table", "fashion-gamma", "sigma-8x8", "cifar10-base")
    return dict(zip(names, (table, sweep, sigmas, photographs), strict=True)), generation(good)


def generation(good):
    rows = {}
    for n, gamma in enumerate(GAMMAS):
        shares = [80.0 - 10 * n, 80.0 - n]
        samples, middles = shares if good else shares[::-1]
        rows[f"gamma{gamma}"] = Generated(
            gamma=gamma,
            method="ibinn",
            samples_lifelike=samples,
            samples_of_their_class=50.0,
            middles_lifelike=middles,
            offset=3.0 if good else 0.5,
            offset_by_chance=0.5,
            mu_apart=10.0,
            sq_distance_per_dim=1.0,
            intervals={
                "samples_lifelike": (samples - 1, samples + 1),
                "middles_lifelike": (middles - 1, middles + 1),
            },
        )
    return Generation(n=1000, judge="resnet", test_lifelike=95.0, runs=rows)


def write(folder, experiments, generation=None):
    for name, runs in experiments.items():
        for number, run in enumerate(runs):
            (folder / name / str(number)).mkdir(parents=True)
            write_results(folder / name / str(number), run)
    if generation:
        write_comparison(folder / "fashion-generation.json", generation)
    machine = {"processor": "P", "cores": 2, "python": "3", "torch": "2"}
    (folder / "machine.json").write_text(json.dumps(machine))


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(published, "RESULTS", tmp_path)
    return tmp_path


def texts():
    return {claim.__name__[-1]: claim() for claim in claims.CLAIMS}


def verdicts():
    return {letter: text.split("**")[1] for letter, text in texts().items()}


def test_all_hold_where_they_should(place):
    write(place, *world(good=True))
    assert verdicts() == dict.fromkeys(LETTERS, claims.HELD)


def test_none_holds_where_none_should(place):
    write(place, *world(good=False))
    assert verdicts() == dict.fromkeys(LETTERS, claims.NOT)


def test_without_results_nothing_is_claimed(place):
    assert verdicts() == dict.fromkeys(LETTERS, published.MISSING)
    assert claims.fashion_choice() == published.MISSING


def test_what_is_not_finite_or_did_not_learn_cannot_be_judged(place):
    experiments, generated = world(good=True)

    def broken(run):
        if run.gamma == math.inf:
            noise = replace(run.ood["noise"], entropy_increase=None)
            run = replace(run, ood=run.ood | {"noise": noise})
        return replace(run, converged=run.method != "vib")

    experiments["fashion-table"] = [broken(run) for run in experiments["fashion-table"]]
    write(place, experiments, generated)
    found = verdicts()
    assert "not finite" in found["g"]
    assert found["b"] == found["d"] == claims.HELD  # by the others
    for letter in "bd":
        assert "VIB, γ = 1 | did not learn" in texts()[letter]
    assert "only L_Y (γ → ∞) | no such number" in texts()["d"]


def changed(place, experiment, letter, change):
    """The verdict in a good world in which `change` was done to each run of an experiment."""
    experiments, generated = world(good=True)
    experiments[experiment] = [change(run) for run in experiments[experiment]]
    write(place, experiments, generated)
    return verdicts()[letter]


def with_intervals(run, **changes):
    return replace(run, intervals=replace(run.intervals, **changes))


def wider(ends, half):
    return ends[0] - half, ends[1] + half


def set_error(value):
    def change(run):
        if run.method != "class-nll":
            return run
        return with_intervals(replace(run, error=value), error=(value - 0.1, value + 0.1))

    return change


def fail(method, gamma):
    return lambda run: replace(run, converged=(run.method, run.gamma) != (method, gamma))


def widen_calibration(run):
    ends = wider(run.intervals.calibration["geo_mean"], 2.0)
    return with_intervals(run, calibration={"geo_mean": ends})


def widen_bits(run):
    return with_intervals(run, bits_per_dim=wider(run.intervals.bits_per_dim, 0.5))


def widen_entropy(run):
    noise = run.intervals.ood["noise"]
    noise = replace(noise, entropy_increase=wider(noise.entropy_increase, 2.0))
    return with_intervals(run, ood=run.intervals.ood | {"noise": noise})


def widen_auroc(run):
    mnist = run.intervals.ood["mnist"]
    area = wider(mnist.auroc["typicality"], 40)
    mnist = replace(mnist, auroc=mnist.auroc | {"typicality": area})
    return with_intervals(run, ood=run.intervals.ood | {"mnist": mnist})


def step_back(run):
    if run.method == "ibinn" and run.gamma == 3.7:
        return with_intervals(replace(run, error=14.0), error=(13.9, 14.1))
    return run


def seeds_apart(run):
    """ResNets whose seeds differ by 2 points of error and of calibration: one training says little."""
    if run.method != "resnet":
        return run
    geo = run.calibration.geo_mean + 2 * run.seed
    return replace(run, error=run.error + 2 * run.seed, calibration=replace(run.calibration, geo_mean=geo))


def without_sigma_1(run):
    return replace(run, converged=run.sigma != 1.0)


CASES = {
    "a: one step back": ("fashion-gamma", "a", step_back, claims.PART),
    "a: costs are not known": ("fashion-table", "a", seeds_apart, claims.PART),
    "b: nothing to tell": ("fashion-table", "b", widen_calibration, claims.OPEN),
    "c: no collapse": ("fashion-table", "c", set_error(20.0), claims.PART),
    "c: hardly known": ("fashion-table", "c", widen_bits, claims.PART),
    "d: nothing to tell": ("fashion-table", "d", widen_entropy, claims.OPEN),
    "e: nothing to tell": ("fashion-table", "e", widen_auroc, claims.OPEN),
    "f: a large sigma fails": ("sigma-8x8", "f", without_sigma_1, claims.HELD),
    "g: seeds differ": ("fashion-table", "g", seeds_apart, claims.PART),
    "h: does not learn at one": ("fashion-gamma", "h", fail("vib", 0.02), claims.PART),
    "h: nothing to tell": ("fashion-gamma", "h", widen_calibration, claims.PART),
}


@pytest.mark.parametrize(("experiment", "letter", "change", "expected"), CASES.values(), ids=CASES)
def test_what_is_not_sure_is_not_claimed(place, experiment, letter, change, expected):
    assert changed(place, experiment, letter, change) == expected


def test_by_these_rules_the_paper_is_right_about_its_own_table(place):
    rows = {row.label: row.cells for row in PRINTED["cifar10"]}
    methods = {
        "γ = 1": ("ibinn", 1.0),
        "only L_X (γ = 0)": ("ibinn", 0.0),
        "only L_Y (γ → ∞)": ("ibinn", math.inf),
    }
    methods |= {"Class-NLL": ("class-nll", None), "Class-NLL + regul.": ("class-nll-fixed", None)}
    methods |= {"VIB (γ = 1)": ("vib", 1.0), "ResNet": ("resnet", None), "i-RevNet": ("irevnet", None)}
    experiments, _ = world(good=True)
    write(place, {**experiments, "fashion-table": [as_run(rows[k], *v) for k, v in methods.items()]})
    found = verdicts()
    assert {letter: found[letter] for letter in "abcdeg"} == dict.fromkeys("abcdeg", claims.HELD)


def as_run(cells, method, gamma):
    """A run with the numbers of a row of the paper, which has no intervals."""
    increases = {name: cells.get(f"ood.{name}.entropy_increase") for name in SETS}
    typicality = {name: cells.get(f"ood.{name}.auroc.typicality") for name in SETS}
    areas = {name: {} if x is None else {"typicality": x} for name, x in typicality.items()}
    bits = cells.get("bits_per_dim_paper_convention")
    geo = cells.get("calibration.geo_mean", 9.0)
    run = made(method, gamma, error=cells.get("error", 90.0), bits_per_dim=bits, geo=geo)
    points = {
        name: OodIntervals((increases[name],) * 2, {score: (x, x) for score, x in areas[name].items()})
        for name in SETS
    }
    return replace(
        run,
        ood={name: ood_result(entropy_increase=increases[name], auroc=areas[name]) for name in SETS},
        intervals=Intervals(
            error=(run.error, run.error),
            bits_per_dim=(bits, bits),
            calibration={"geo_mean": (geo, geo)},
            ood=points,
        ),
    )


def cells(text):
    """The rows of a pipe table."""
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines()]


def test_the_other_tables_have_a_row_for_what_is_there(place):
    experiments, generated = world(good=True)
    write(place, experiments, generated)
    table = cells(result_tables.fashion_gamma())
    assert len(table) == 2 + len(GAMMAS)
    assert [table[2][1], table[2][6]] == ["12.00", "11.00"]
    assert len(cells(result_tables.sigma())) == 2 + len(SIGMAS)
    [knn] = [row for row in cells(result_tables.fashion_rivals()) if "`knn`" in row]
    assert knn[-3:] == ["75.0 ± 0.0"] * 3
    assert cells(result_tables.effort())[-1][1] == str(sum(map(len, experiments.values())))
    ibinn, resnet = cells(claims.fashion_choice())[2:]
    assert "`combined`" in ibinn
    assert (ibinn[3][:5], resnet[3][:5]) == ("80.00", "75.00")


def test_photographs_are_beside_and_decide_nothing(place):
    write(place, *world(good=True))
    found, on_cifar = verdicts(), ["CIFAR-10: IB-INN, γ = 1", "CIFAR-10: ResNet"]
    rows = {letter: {row[0]: row for row in cells(texts()[letter])} for letter in "bd"}
    assert [rows["b"][name][1::2] for name in on_cifar] == [["1.50", "1.00"], ["2.50", "1.00"]]
    assert [rows["d"][name][1] for name in on_cifar] == ["0.30", "0.70"]  # without the control
    errors = [row[1] for row in cells(claims.cifar_choice())[2:]]
    assert errors == ["30.00 (29.70 to 30.30)", "20.00 (19.80 to 20.20)"]
    models = [row[0] for row in cells(result_tables.cifar_flagged())[2:]]
    assert models == ["IB-INN, γ = 1"] * 2 + ["ResNet"] * 2
    shutil.rmtree(place / "cifar10-base")
    assert verdicts() == found
    assert "CIFAR-10" not in "".join(texts().values())
    assert claims.cifar_choice() == result_tables.cifar_rivals() == published.MISSING


def test_where_no_sample_is_lifelike_the_share_is_bounded_all_the_same(place):
    experiments, generated = world(good=True)
    last = generated.runs["gamma50.0"]
    ends = last.intervals | {"samples_lifelike": (0.0, 0.0)}
    none = replace(last, samples_lifelike=0.0, intervals=ends)
    write(place, experiments, replace(generated, runs=generated.runs | {"gamma50.0": none}))
    assert verdicts()["i"] == claims.HELD
    assert "| 50 | 0.00 (0.00 to 0.30) |" in texts()["i"]
    fallen = claims.ratio(published.Estimate(0.0, 0.0, 0.3, 1), published.Estimate(30.0, 30.0, 30.0, 1))
    assert dataclasses.astuple(fallen)[:3] == pytest.approx([-100, -100, -99])


@pytest.mark.parametrize("n", [2, 3, 7])
def test_a_ratio_has_the_interval_of_two_errors_that_add(n):
    """By simulation: log-normal numbers whose spread is that of their intervals."""
    rng = np.random.default_rng(n)
    top, bottom = (np.exp(rng.normal(mean, 0.05, 200_000)) for mean in (np.log(n), 0.0))
    spans = [published.Estimate(np.median(x), *np.quantile(x, [0.025, 0.975]), 1) for x in (top, bottom)]
    ratio = claims.ratio(*spans)
    expected = np.quantile(100 * (top / bottom - 1), [0.025, 0.975])
    assert [ratio.low, ratio.high] == pytest.approx(expected, rel=0.02)
