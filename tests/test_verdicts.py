"""The rules that judge the claims of the paper, on made-up results: worlds in which they hold, and fail."""

import json
import shutil

import claims
import kept
import numpy as np
import pytest
import result_tables

from ibinn.report.paper import PRINTED, SETS

GAMMAS = (0.02, 0.074, 0.27, 1.0, 3.7, 14.0, 50.0)
SIGMAS = (0.0001, 0.00028, 0.00077, 0.0022, 0.006, 0.017, 0.046, 0.13, 0.36, 1.0)
SCORES = ("typicality", "combined", "entropy", "max_softmax", "energy", "mahalanobis", "knn")


def made(
    method,
    gamma=None,
    seed=0,
    error=10.0,
    bits=3.4,
    geo=1.5,
    rise=0.3,
    area=80.0,
    sets=("noise", "mnist"),
    **more,
):
    """A results.json, as far as the pages read it, with intervals of 1 % to either side."""
    run = {
        "method": method,
        "gamma": gamma,
        "seed": seed,
        "converged": True,
        "train_seconds": 60.0,
        "n_dims": 192,
        "error": error + 0.001 * seed,
        "bits_per_dim": bits,
        "loss_x": -3.0,
        "nll_y": 0.3,
        "calibration": {"geo_mean": geo + 0.001 * seed, "floor": {"geo_mean": {"mean": 1.0}}},
        "information": {"ci_xz": 1.0},
        "scaled": {"nll_y": 0.3, "calibration": {"geo_mean": geo, "floor": {"geo_mean": {"mean": 1.0}}}},
        "ood": {name: {"entropy_increase": rise, "auroc": dict.fromkeys(SCORES, area)} for name in sets},
        **more,
    }
    numbers = {"error": error, "bits_per_dim": bits, "loss_x": run["loss_x"], "calibration.geo_mean": geo}
    numbers |= {f"ood.{name}.entropy_increase": rise for name in run["ood"]}
    numbers |= {f"ood.{name}.auroc.{score}": area for name in run["ood"] for score in SCORES}
    run["intervals"] = {
        path: None if v is None else [v - 0.01 * abs(v), v + 0.01 * abs(v)] for path, v in numbers.items()
    }
    return run


def world(good):
    """Results of all experiments: such that every claim holds, or none."""
    sign = 1 if good else -1
    area = 75.0 if good else 95.0
    table = [made("ibinn", 1.0, s, rise=0.3 + 0.1 * sign, geo=1.5 - 0.4 * sign) for s in range(3)]
    for method, gamma in (("resnet", None), ("class-nll", None), ("vib", 1.0)):
        error = 60.0 if good and method == "class-nll" else 9.0
        bits = 3.2 if good else 3.9
        table += [made(method, gamma, s, error=error, bits=bits, area=area) for s in range(3)]
    table += [
        made("ibinn", 0.0, bits=3.2 if good else 2.2, area=area),
        made("ibinn", "inf", error=9.0 if good else 5.0),
        made("class-nll-fixed"),
        made("irevnet", error=9.05, geo=1.5 if good else 4.0, rise=0.3 if good else 0.5),
    ]
    sweep = []
    for n, gamma in enumerate(GAMMAS):
        sweep.append(made("ibinn", gamma, error=12 - sign * 0.5 * n, bits=3.4 + sign * 0.2 * n, geo=1.5))
        sweep.append(made("vib", gamma, error=12 - sign * 0.5 * n - sign, geo=1.5 + 0.5 * sign))
    sigmas = [
        made(
            "ibinn",
            0.2,
            sigma=s,
            error=20.0 if good and s < 1e-3 else 20 + 5 * n,
            loss_x=-3.0 + (not good) * n,
        )
        for n, s in enumerate(SIGMAS)
    ]
    rows = {}
    for n, gamma in enumerate(GAMMAS):
        lifelike = {"samples_lifelike": 80.0 - 10 * n, "middles_lifelike": 80.0 - n}
        if not good:
            lifelike = dict(zip(lifelike, [*lifelike.values()][::-1], strict=True))
        rows[f"gamma{gamma}"] = {
            "gamma": gamma,
            **lifelike,
            "offset": 3.0 if good else 0.5,
            "offset_by_chance": 0.5,
            "mu_apart": 10.0,
            "intervals": {what: [value - 1, value + 1] for what, value in lifelike.items()},
        }
    generation = {"n": 1000, "test_lifelike": 95.0, "runs": rows}
    sets = ("noise", "imagenet", "jpeg")
    photographs = [made("ibinn", 1.0, error=30.0, sets=sets)]
    photographs += [made("resnet", error=20.0, geo=2.5, rise=0.7, sets=sets)]
    for run in photographs:
        run["ood"]["jpeg"]["entropy_increase"] = 9.0
    names = ("fashion-table", "fashion-gamma", "sigma-8x8", "cifar10-base")
    return dict(zip(names, (table, sweep, sigmas, photographs), strict=True)), generation


def write(folder, experiments, generation=None):
    for name, runs in experiments.items():
        for number, run in enumerate(runs):
            (folder / name / str(number)).mkdir(parents=True)
            (folder / name / str(number) / "results.json").write_text(json.dumps(run))
    if generation:
        (folder / "fashion-generation.json").write_text(json.dumps(generation))
    (folder / "machine.json").write_text(
        json.dumps({"processor": "P", "cores": 2, "python": "3", "torch": "2"})
    )


@pytest.fixture
def place(tmp_path, monkeypatch):
    for module in (kept, claims, result_tables):
        monkeypatch.setattr(module, "KEPT", tmp_path)
    return tmp_path


def verdicts():
    return {text[3]: text.split("*")[5] for text in claims.claims().split("\n\n")}


def test_all_hold_where_they_should_and_none_where_they_should_not(place):
    write(place, *world(good=True))
    assert verdicts() == dict.fromkeys("abcdefghi", claims.HELD)
    assert "only L_Y" in claims.claims()


def test_none_holds_where_none_should(place):
    write(place, *world(good=False))
    assert verdicts() == dict.fromkeys("abcdefghi", claims.NOT)


def test_without_results_nothing_is_claimed(place):
    assert verdicts() == dict.fromkeys("abcdefghi", kept.MISSING)
    assert claims.practitioner() == kept.MISSING


def test_what_is_not_finite_or_did_not_learn_cannot_be_judged(place):
    experiments, generation = world(good=True)
    for run in experiments["fashion-table"]:
        if run["gamma"] == "inf":
            run["ood"]["noise"]["entropy_increase"] = None
        if run["method"] == "vib":
            run["converged"] = False
    write(place, experiments, generation)
    told = verdicts()
    assert "not finite" in told["g"]
    assert told["b"] == told["d"] == claims.HELD  # by the others
    text = claims.claims()
    assert text.count("VIB did not learn") == 2
    assert "only L_Y has no such number" in text


def changed(place, experiment, letter, change):
    """The verdict in a good world in which `change` was done to each run of an experiment."""
    experiments, generation = world(good=True)
    for run in experiments[experiment]:
        change(run)
    write(place, experiments, generation)
    return verdicts()[letter]


def set_error(value):
    def change(run):
        if run["method"] == "class-nll":
            run["error"], run["intervals"]["error"] = value, [value - 0.1, value + 0.1]

    return change


def fail(method, gamma):
    def change(run):
        run["converged"] &= (run["method"], run["gamma"]) != (method, gamma)

    return change


def widen(path, half):
    def change(run):
        low, high = run["intervals"][path]
        run["intervals"][path] = [low - half, high + half]

    return change


def step_back(run):
    if run["method"] == "ibinn" and run["gamma"] == 3.7:
        run["error"], run["intervals"]["error"] = 14.0, [13.9, 14.1]


def seeds_apart(run):
    """ResNets whose seeds differ by 2 points of error and of calibration: one training says little."""
    if run["method"] == "resnet":
        run["error"] += 2 * run["seed"]
        run["calibration"]["geo_mean"] += 2 * run["seed"]


def without_sigma_1(run):
    run["converged"] = run["sigma"] != 1.0


CASES = {
    "a: one step back": ("fashion-gamma", "a", step_back, claims.PART),
    "a: costs are not known": ("fashion-table", "a", seeds_apart, claims.PART),
    "b: nothing to tell": ("fashion-table", "b", widen("calibration.geo_mean", 2.0), claims.OPEN),
    "c: no collapse": ("fashion-table", "c", set_error(20.0), claims.PART),
    "c: hardly known": ("fashion-table", "c", widen("bits_per_dim", 0.5), claims.PART),
    "d: nothing to tell": ("fashion-table", "d", widen("ood.noise.entropy_increase", 2.0), claims.OPEN),
    "e: nothing to tell": ("fashion-table", "e", widen("ood.mnist.auroc.typicality", 40), claims.OPEN),
    "f: a large sigma fails": ("sigma-8x8", "f", without_sigma_1, claims.HELD),
    "g: seeds differ": ("fashion-table", "g", seeds_apart, claims.PART),
    "h: does not learn at one": ("fashion-gamma", "h", fail("vib", 0.02), claims.PART),
    "h: nothing to tell": ("fashion-gamma", "h", widen("calibration.geo_mean", 2.0), claims.PART),
}


@pytest.mark.parametrize(("experiment", "letter", "change", "expected"), CASES.values(), ids=CASES)
def test_what_is_not_sure_is_not_claimed(place, experiment, letter, change, expected):
    assert changed(place, experiment, letter, change) == expected


def test_by_these_rules_the_paper_is_right_about_its_own_table(place):
    rows = {row.label: row.cells for row in PRINTED["cifar10"]}
    methods = {
        "γ = 1": ("ibinn", 1.0),
        "only L_X (γ = 0)": ("ibinn", 0.0),
        "only L_Y (γ → ∞)": ("ibinn", "inf"),
    }
    methods |= {"Class-NLL": ("class-nll", None), "Class-NLL + regul.": ("class-nll-fixed", None)}
    methods |= {"VIB (γ = 1)": ("vib", 1.0), "ResNet": ("resnet", None), "i-RevNet": ("irevnet", None)}
    table = []
    for label, setup in methods.items():
        cells = rows[label]
        run = made(*setup, error=cells.get("error", 90.0), geo=cells.get("calibration.geo_mean", 9.0))
        run["bits_per_dim"] = cells.get("bits_per_dim_paper_convention")
        run["ood"] = {
            name: {
                "entropy_increase": cells.get(f"ood.{name}.entropy_increase"),
                "auroc": {"typicality": cells.get(f"ood.{name}.auroc.typicality")},
            }
            for name in SETS
        }
        numbers = {"error": run["error"], "bits_per_dim": run["bits_per_dim"]}
        numbers["calibration.geo_mean"] = run["calibration"]["geo_mean"]
        numbers |= {f"ood.{n}.entropy_increase": run["ood"][n]["entropy_increase"] for n in SETS}
        numbers |= {f"ood.{n}.auroc.typicality": run["ood"][n]["auroc"]["typicality"] for n in SETS}
        run["intervals"] = {path: [value, value] for path, value in numbers.items()}
        table.append(run)
    experiments, _ = world(good=True)
    write(place, {**experiments, "fashion-table": table})
    told = verdicts()
    assert {letter: told[letter] for letter in "abcdeg"} == dict.fromkeys("abcdeg", claims.HELD)


def test_the_other_tables_have_a_row_for_what_is_there(place):
    experiments, generation = world(good=True)
    write(place, experiments, generation)
    lines = result_tables.fashion_gamma().splitlines()
    assert len(lines) == 2 + len(GAMMAS)
    assert lines[2].split(" | ")[1] == "12.00"
    assert lines[2].split(" | ")[6] == "11.00"
    assert len(result_tables.sigma().splitlines()) == 2 + len(SIGMAS)
    rivals = result_tables.fashion_rivals()
    assert "`knn` | 75.0 ± 0.0 | 75.0 ± 0.0 | 75.0 ± 0.0" in rivals
    assert f"{sum(map(len, experiments.values()))} trainings" in result_tables.effort()
    told = claims.practitioner()
    assert "combined" in told
    assert "noise 80.0 against 75.0" in told


def test_photographs_stand_beside_and_decide_nothing(place):
    experiments, generation = world(good=True)
    write(place, experiments, generation)
    judged, told = verdicts(), claims.claims()
    assert (
        "On CIFAR-10, the floor in brackets: IB-INN at γ = 1 1.50 (1.00), ResNet 2.50 (1.00); one" in told
    )
    assert "On CIFAR-10, over the four sets: IB-INN at γ = 1 0.30, ResNet 0.70" in told  # no control
    assert "errs on 30.00 (29.70 to 30.30) % and the ResNet on 20.00" in claims.practitioner()
    lines = result_tables.cifar_flagged().splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| IB-INN, γ = 1"] * 2 + ["| ResNet"] * 2
    shutil.rmtree(place / "cifar10-base")
    assert verdicts() == judged
    assert "CIFAR-10, " not in claims.claims().replace("CIFAR-10 at 8", "")
    assert "On CIFAR-10" not in claims.practitioner()
    assert result_tables.cifar_rivals() == kept.MISSING


def test_where_no_sample_is_lifelike_the_share_is_bounded_all_the_same(place):
    experiments, generation = world(good=True)
    last = generation["runs"]["gamma50.0"]
    last["samples_lifelike"], last["intervals"]["samples_lifelike"] = 0.0, [0.0, 0.0]
    write(place, experiments, generation)
    assert verdicts()["i"] == claims.HELD
    assert "0.00 (0.00 to 0.30) % at γ = 50" in claims.claims()
    fallen = claims.ratio(kept.Estimate(0.0, 0.0, 0.3, 1), kept.Estimate(30.0, 30.0, 30.0, 1))
    assert fallen[:3] == pytest.approx([-100, -100, -99])


@pytest.mark.parametrize("n", [2, 3, 7])
def test_a_ratio_has_the_interval_of_two_errors_that_add(n):
    """By simulation: log-normal numbers whose spread is what their intervals say."""
    rng = np.random.default_rng(n)
    top, bottom = (np.exp(rng.normal(mean, 0.05, 200_000)) for mean in (np.log(n), 0.0))
    spans = [kept.Estimate(np.median(x), *np.quantile(x, [0.025, 0.975]), 1) for x in (top, bottom)]
    told = claims.ratio(*spans)
    expected = np.quantile(100 * (top / bottom - 1), [0.025, 0.975])
    assert [told.low, told.high] == pytest.approx(expected, rel=0.02)
