"""Evaluation of trained models: numbers against oracles, batches of any size, files that hold what they say."""

import dataclasses
import json
import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score
from trainings import few_digits, trained, two_moons

from ibinn.data.dataset import Dataset, Part
from ibinn.data.ood import ood_set, permuted, usual_sets
from ibinn.evaluation import evaluate, read_results, read_test, write_results
from ibinn.exploration import explore, read_arrays, write_arrays
from ibinn.metrics.likelihood import paper_convention_offset
from ibinn.metrics.ood import SCORES

DIGITS = few_digits(900)


def strange(run, dataset=DIGITS):
    test = read_test(run, dataset).x
    return {name: ood_set(name, test, dataset.levels) for name in ("noise", "inverted")}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("evaluated") / "run", DIGITS, epochs=4)


@pytest.fixture(scope="module")
def evaluated(run):
    return evaluate(run, DIGITS, strange(run))


def test_numbers_agree_with_scikit_learn(run, evaluated):
    results, arrays = evaluated
    test = read_test(run, DIGITS)
    out = run.pipeline.outputs(test.x)
    p = np.exp(out.log_q_y)
    assert results.error == pytest.approx(100 * (p.argmax(1) != test.y).mean())
    assert results.nll_y == pytest.approx(log_loss(test.y, p / p.sum(1, keepdims=True), labels=range(10)))
    one_hot = np.eye(10)[test.y]
    assert results.brier == pytest.approx(
        sum(brier_score_loss(one_hot[:, k], p[:, k].clip(0, 1)) for k in range(10))
    )
    assert {*results.ood["noise"].auroc} == {*SCORES}
    for name, outliers in results.ood.items():
        for score, area in outliers.auroc.items():
            inside, outside = arrays[f"scores/test/{score}"], arrays[f"scores/{name}/{score}"]
            y = np.r_[np.zeros(len(inside)), np.ones(len(outside))]
            assert area == pytest.approx(100 * roc_auc_score(y, np.r_[inside, outside]))
            held = run.reference.calibration[score]
            p_value = [(1 + (held >= s).sum()) / (1 + len(held)) for s in outside]
            assert outliers.detected_at_alpha[score] == pytest.approx(
                100 * np.mean(np.array(p_value) <= 0.05)
            )
    strange_y = run.pipeline.outputs(strange(run)["noise"]).log_q_y
    mean_entropy = [-(np.exp(v) * v).sum(1).mean() for v in (strange_y, out.log_q_y)]
    assert results.ood["noise"].entropy_increase == pytest.approx(mean_entropy[0] - mean_entropy[1])
    shares = np.bincount(test.y) / len(test)
    assert results.information["ci_yz"] == pytest.approx(-(shares * np.log(shares)).sum() - results.nll_y)
    assert results.information["ci_xz"] == pytest.approx(results.bits_per_dim * 64 * math.log(2))


def numbers(value, path=""):
    """Every number in nested results, by its path."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from numbers(inner, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for i, inner in enumerate(value):
            yield from numbers(inner, f"{path}.{i}")
    elif isinstance(value, float | int) and not isinstance(value, bool):
        yield path, value


def test_results_do_not_change_with_the_batch_size(run, evaluated):
    others = [
        dataclasses.asdict(evaluate(run, DIGITS, strange(run), batch_size=size)[0]) for size in (1, 64)
    ]
    mine = dict(numbers(dataclasses.asdict(evaluated[0])))
    assert len(mine) > 150
    for other in map(dict, map(numbers, others)):
        assert other.keys() == mine.keys()
        for path, value in mine.items():
            if path != ".throughput":
                assert other[path] == pytest.approx(value, rel=1e-5, abs=1e-5), path


def test_intervals_hold_their_numbers(evaluated):
    results = dataclasses.asdict(evaluated[0])
    assert {"error", "bits_per_dim", "calibration.ece", "ood.noise.auroc.combined"} <= {
        *results["intervals"]
    }
    for path, (low, high) in results["intervals"].items():
        value = results
        for key in path.split("."):
            value = value[key]
        assert low <= high, path
        if not path.startswith("calibration"):  # resampling adds noise to what is never below 0
            slack = 1e-9 + 0.5 * (high - low)
            assert low - slack <= value <= high + slack, path


def test_results_come_back_from_the_folder(evaluated, tmp_path):
    results, arrays = evaluated
    write_results(tmp_path, results)
    assert read_results(tmp_path) == json.loads(json.dumps(dataclasses.asdict(results)))
    write_arrays(tmp_path, arrays)
    for name, values in read_arrays(tmp_path).items():
        assert_allclose(values, arrays[name], rtol=1e-6)
    (tmp_path / "results.json").write_text('{"error": 3}')
    with pytest.raises(ValueError, match="of another version; make it again with: ibinn evaluate"):
        read_results(tmp_path)
    (tmp_path / "results.json").write_text("{")
    with pytest.raises(ValueError, match="is damaged; make it again"):
        read_results(tmp_path)
    (tmp_path / "results.json").unlink()
    with pytest.raises(ValueError, match=r"holds no results\.json; make it with"):
        read_results(tmp_path)


def cifar_like(n=240):
    """Colour images whose channels have CIFAR-10's means and deviations, about."""
    rng = np.random.default_rng(0)
    x = rng.normal([0.4914, 0.4822, 0.4465], [0.247, 0.243, 0.261], size=(n, 8, 8, 3))
    return Dataset(
        "c", Part((256 * x).clip(0, 255).astype(np.uint8), np.arange(n) % 2), None, ("a", "b"), 256
    )


def test_the_papers_convention_is_the_exact_density_and_a_constant(tmp_path):
    """The constant is that of the normalisation; the plug-in value also holds the term of the noise."""
    data, sigma = cifar_like(), 0.01
    run = trained(tmp_path / "run", data, epochs=1, noise="gaussian", sigma=sigma, normalise="standard")
    results, _ = evaluate(run, data)
    std = run.pipeline.preprocess.std.flatten().double().numpy()
    exact = results.bits_per_dim + 0.5 * math.log2(2 * math.pi * (256 * sigma) ** 2)
    constant = paper_convention_offset(std)
    assert results.bits_per_dim_paper_convention == pytest.approx(exact + constant)
    assert constant == pytest.approx(-math.log2(2 * math.pi) - np.log2(std).mean())
    assert results.sigma == sigma
    assert results.noise == "gaussian"


def test_cross_information_of_gaussian_noise(tmp_path):
    """CI(X, Z_E) = E[-log q(x + E)] - h(E), by noise drawn here."""
    data, sigma = cifar_like(), 0.05
    run = trained(tmp_path / "run", data, epochs=1, noise="gaussian", sigma=sigma, normalise="standard")
    told = evaluate(run, data)[0].information["ci_xz"]
    x = run.pipeline.preprocess.to_units(read_test(run, data).x)
    values = []
    for seed in range(20):
        eps = np.random.default_rng(100 + seed).normal(size=tuple(x.shape))
        v, log_det = run.pipeline.normalised(x + sigma * x.new_tensor(eps))
        values.append(-(run.pipeline.model.log_q_x(v) + log_det).mean().item())
    h_noise = 192 * (math.log(sigma) + 0.5 * math.log(2 * math.pi * math.e))
    spread = np.std(values)
    assert told == pytest.approx(np.mean(values) - h_noise, abs=5 * spread)


@pytest.mark.parametrize("method", ["resnet", "vib", "irevnet", "class-nll"])
def test_methods_without_a_density_have_no_such_numbers(method, tmp_path):
    run = trained(tmp_path / "run", DIGITS, method=method, epochs=1)
    results, _ = evaluate(run, DIGITS, strange(run))
    has_density = method == "class-nll"
    assert (results.bits_per_dim is None) != has_density
    assert (results.information["ci_xz"] is None) != has_density
    assert results.score == ("combined" if has_density else "entropy")
    assert ("typicality" in results.ood["noise"].auroc) == has_density
    assert bool(explore(run, read_test(run, DIGITS))) == has_density
    write_results(tmp_path, results)
    assert results.calibration.ece is not None


def test_tables_have_no_bits_but_everything_else(tmp_path):
    moons = two_moons()
    run = trained(tmp_path / "run", moons, epochs=5)
    test = read_test(run, moons)
    results, _ = evaluate(run, moons, {"permuted": permuted(test.x, 0)})
    assert results.bits_per_dim is results.levels is results.noise is None
    assert results.loss_x is not None
    assert {*SCORES} - {*results.ood["permuted"].auroc} == {"complexity"}
    assert {*explore(run, test)} == {"latent/points", "latent/y", "latent/mu"}


def test_permuted_keeps_the_columns_and_breaks_the_rows():
    rows = np.arange(60.0).reshape(20, 3)
    strange = permuted(rows, 0)
    assert_allclose(np.sort(strange, axis=0), rows)
    assert not (np.ptp(strange - np.arange(3), axis=1) == 0).all()


def test_the_usual_sets_fit_the_data():
    assert usual_sets("cifar10", (32, 32, 3))[:4] == ("rgb_rotation", "quickdraw", "noise", "imagenet")
    assert "mnist" in usual_sets("fashion_mnist", (28, 28, 1))
    assert "mnist" not in usual_sets("mnist", (28, 28, 1))
    assert usual_sets("x", (7,)) == ("permuted",)


def test_exploration_has_the_models_own_geometry(run):
    test = read_test(run, DIGITS)
    arrays = explore(run, test)
    mu = run.pipeline.model.mixture.mu.detach().double().numpy()
    spread = np.linalg.svd(mu - mu.mean(0), compute_uv=False)
    assert_allclose(np.square(arrays["latent/mu"]).sum(0), np.square(spread[:2]), rtol=1e-3)
    assert arrays["samples"].shape == (10, 10, 8, 8, 1)
    assert arrays["samples"].max() <= 16
    steps = arrays["interpolations"]
    assert steps.shape == (3, 9, 8, 8, 1)
    known = {image.tobytes() for image in test.x}
    assert all(image.tobytes() in known for pair in steps for image in (pair[0], pair[-1]))
    path = arrays["trajectory/images"].astype(int)
    assert_allclose(path[-1], 16 - path[0])
    assert arrays["trajectory/amount"].tolist()[::6] == [0, 100]
    assert ((arrays["trajectory/p"] > 0) & (arrays["trajectory/p"] <= 1)).all()
    assert explore(run, test)["samples"].tobytes() == arrays["samples"].tobytes()


def test_class_conditional_false_alarms_are_those_of_each_class(run, evaluated):
    results, _ = evaluated
    test = read_test(run, DIGITS)
    out = run.pipeline.evidence(test.x)
    called, held = out.log_q_y.argmax(1), run.reference
    for k, name in enumerate(results.classes):
        scores = evaluated[1]["scores/test/combined"][called == k]
        theirs = held.calibration["combined"][held.calibration_class == k]
        p = [(1 + (theirs >= s).sum()) / (1 + len(theirs)) for s in scores]
        told = results.false_alarm_rate_by_class[name]
        assert told == (None if not p else pytest.approx(100 * np.mean(np.array(p) <= 0.05)))
