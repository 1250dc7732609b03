"""Evaluation of trained models: numbers against oracles, batches of any size, files that hold what they say."""

import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.trainings import few_digits, trained, two_moons
from numpy.testing import assert_allclose
from scipy import stats
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

from ibinn.data.dataset import Dataset, Part
from ibinn.evaluation import alarms_by_class, evaluate, on_ood_set, read_test
from ibinn.inference.judge import judge
from ibinn.inference.latent import latent_arrays
from ibinn.metrics.calibration import calibration_errors, calibration_floor, pairs_per_bin, true_per_bin
from ibinn.metrics.likelihood import paper_convention_offset
from ibinn.models.output import Output
from ibinn.ood.scores import SCORES, Reference
from ibinn.ood.sets import ood_set, permuted, usual_sets
from ibinn.report.runs import write_run
from ibinn.run.arrays import read_arrays, write_arrays
from ibinn.run.results import read_results, write_results

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
    out = run.pipeline.compute_output(test.x)
    p, shown = np.exp(out.log_q_y), np.exp(out.log_p_y)
    assert results.error == pytest.approx(100 * (shown.argmax(1) != test.y).mean())
    shown /= shown.sum(1, keepdims=True)
    assert results.scaled.nll_y == pytest.approx(log_loss(test.y, shown, labels=range(10)))
    assert results.nll_y == pytest.approx(log_loss(test.y, p / p.sum(1, keepdims=True), labels=range(10)))
    one_hot = np.eye(10)[test.y]
    assert results.brier == pytest.approx(
        sum(brier_score_loss(one_hot[:, k], p[:, k].clip(0, 1)) for k in range(10))
    )
    assert {*results.ood["noise"].auroc} == {*SCORES}
    for name, outliers in results.ood.items():
        for score, area in outliers.auroc.items():
            inside, outside = arrays[f"scores/{score}"], arrays[f"scores/{name}/{score}"]
            y = np.r_[np.zeros(len(inside)), np.ones(len(outside))]
            assert area == pytest.approx(100 * roc_auc_score(y, np.r_[inside, outside]))
            held = run.reference.calibration[score]
            p_value = [(1 + (held >= s).sum()) / (1 + len(held)) for s in outside]
            assert outliers.detected_at_alpha[score] == pytest.approx(
                100 * np.mean(np.array(p_value) <= 0.05)
            )
    strange_y = run.pipeline.compute_output(strange(run)["noise"]).log_q_y
    mean_entropy = [-(np.exp(v) * v).sum(1).mean() for v in (strange_y, out.log_q_y)]
    assert results.ood["noise"].entropy_increase == pytest.approx(mean_entropy[0] - mean_entropy[1])
    shares = np.bincount(test.y) / len(test)
    assert results.information.ci_yz == pytest.approx(-(shares * np.log(shares)).sum() - results.nll_y)
    assert results.information.ci_xz == pytest.approx(results.bits_per_dim * 64 * math.log(2))


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
    ends = dict(numbers(results["intervals"]))
    paths = {path.removesuffix(".0") for path in ends if path.endswith(".0")}
    assert {".error", ".bits_per_dim", ".calibration.ece", ".ood.noise.auroc.combined"} <= paths
    values = dict(numbers(results))
    for path in paths:
        low, value, high = ends[f"{path}.0"], values[path], ends[f"{path}.1"]
        assert low <= high, path
        slack = 1e-9 + 0.1 * (high - low)
        assert low - slack <= value <= high + slack, path


def test_results_come_back_from_the_folder(evaluated, tmp_path):
    results, arrays = evaluated
    write_results(tmp_path, results)
    assert read_results(tmp_path) == results
    write_arrays(tmp_path, arrays)
    for name, values in read_arrays(tmp_path).items():
        assert_allclose(values, arrays[name], rtol=1e-6)
    (tmp_path / "results.json").write_text('{"error": 3}')
    with pytest.raises(ValueError, match=r"another version \(.*\); make it again with: ibinn evaluate"):
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
    assert results.bits_per_dim_paper_convention == pytest.approx(exact + paper_convention_offset(std))
    # The authors' arithmetic: the flow's log-det alone, minus half a log 2 pi, and 8 bits for the levels.
    with torch.no_grad():
        v, _ = run.pipeline.prepared(read_test(run, data).x)
        z, log_det = run.pipeline.model.encode(v)
        log_q_z = run.pipeline.model.mixture.log_q_z(z) + 96 * math.log(2 * math.pi)
    theirs = 8 - 0.5 * math.log2(2 * math.pi) - (log_q_z + log_det).mean().item() / 192 / math.log(2)
    assert results.bits_per_dim_paper_convention == pytest.approx(theirs, rel=1e-5)
    assert results.sigma == sigma
    assert results.noise == "gaussian"


def test_cross_information_of_gaussian_noise(tmp_path):
    """CI(X, Z_E) = E[-log q(x + E)] - h(E), by noise drawn here."""
    data, sigma = cifar_like(), 0.05
    run = trained(tmp_path / "run", data, epochs=1, noise="gaussian", sigma=sigma, normalise="standard")
    results, _ = evaluate(run, data)
    ci_xz = results.information.ci_xz
    x = run.pipeline.preprocess.to_units(read_test(run, data).x)
    values = []
    for seed in range(20):
        eps = np.random.default_rng(100 + seed).normal(size=tuple(x.shape))
        v, log_det = run.pipeline.normalised(x + sigma * x.new_tensor(eps))
        values.append(-(run.pipeline.model.log_q_x(v) + log_det).mean().item())
    h_noise = 192 * (math.log(sigma) + 0.5 * math.log(2 * math.pi * math.e))
    spread = np.std(values)
    assert ci_xz == pytest.approx(np.mean(values) - h_noise, abs=5 * spread)
    assert ci_xz == pytest.approx(192 * results.loss_x - h_noise)
    assert results.n_draws == 1


@pytest.mark.parametrize("method", ["resnet", "vib", "irevnet", "class-nll"])
def test_methods_without_a_density_have_no_such_numbers(method, tmp_path):
    run = trained(tmp_path / "run", DIGITS, method=method, epochs=1)
    results, _ = evaluate(run, DIGITS, strange(run))
    has_density = method == "class-nll"
    assert (results.bits_per_dim is None) != has_density
    assert (results.information.ci_xz is None) != has_density
    assert results.score == ("combined" if has_density else "entropy")
    assert ("typicality" in results.ood["noise"].auroc) == has_density
    assert bool(latent_arrays(run, read_test(run, DIGITS))) == has_density
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
    assert {*latent_arrays(run, test)} == {"latent/points", "latent/y", "latent/mu"}


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


def test_a_set_made_from_the_test_inputs_is_resampled_together_with_them(run):
    """Inputs that were not changed at all: paired, no resample sees a difference; as a set of others, all do."""
    seen = judge(run, read_test(run, DIGITS).x)
    _, together = on_ood_set(run, seen, seen, paired=True)
    assert together.entropy_increase == (0, 0)
    assert together.auroc["typicality"] == (50, 50)
    _, apart = on_ood_set(run, seen, seen, paired=False)
    assert apart.entropy_increase[0] < 0 < apart.entropy_increase[1]
    assert apart.auroc["typicality"][0] < 50 < apart.auroc["typicality"][1]


def test_exploration_has_the_models_own_geometry(run):
    test = read_test(run, DIGITS)
    arrays = latent_arrays(run, test)
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
    assert latent_arrays(run, test)["samples"].tobytes() == arrays["samples"].tobytes()


def test_class_conditional_false_alarms_are_those_of_each_class():
    """Two classes called; the third never, and a fourth with too few calibration inputs to flag anything."""
    rng = np.random.default_rng(0)
    called, theirs = rng.integers(2, size=400), np.r_[rng.integers(2, size=300), 3, 3]
    called[:5] = 3
    scores, held = rng.exponential(1 + called), rng.exponential(1 + theirs)
    reference = Reference(64, None, None, {}, {"entropy": held}, theirs, held)
    run = SimpleNamespace(reference=reference, class_names=("a", "b", "c", "d"))
    log_q_y = np.log(0.1 + 0.7 * np.eye(4)[called])
    rates = alarms_by_class(run, Output(log_q_y, scores, scores={"entropy": scores}))
    for k, name in ((0, "a"), (1, "b")):
        p = [(1 + (held[theirs == k] >= s).sum()) / (1 + (theirs == k).sum()) for s in scores[called == k]]
        value, (low, high) = rates[name]
        assert value == pytest.approx(100 * np.mean(np.array(p) <= 0.05))
        assert 0 < value < 15
        assert low <= value <= high
    assert rates["c"].value is rates["d"].value is None


def test_every_number_of_a_set_by_hand(run, evaluated):
    """FPR95, alarms and Benjamini-Hochberg, from the scores alone."""
    results, arrays = evaluated
    for score in ("typicality", "combined"):
        held, inside = run.reference.calibration[score], arrays[f"scores/{score}"]
        p_inside = np.array([(1 + (held >= s).sum()) / (1 + len(held)) for s in inside])
        assert results.false_alarm_rate[score] == pytest.approx(100 * (p_inside <= 0.05).mean())
        for name, ood in results.ood.items():
            outside = np.sort(arrays[f"scores/{name}/{score}"])
            threshold = outside[::-1][math.ceil(0.95 * len(outside)) - 1]
            assert ood.fpr95[score] == pytest.approx(100 * (inside >= threshold).mean())
    for name, ood in results.ood.items():
        p = np.r_[
            p_inside, [(1 + (held >= s).sum()) / (1 + len(held)) for s in arrays[f"scores/{name}/combined"]]
        ]
        flags = stats.false_discovery_control(p) <= 0.1 + 1e-12
        assert ood.bh.found == pytest.approx(100 * flags[len(inside) :].mean())
        if flags.any():
            assert ood.bh.false == pytest.approx(100 * flags[: len(inside)].sum() / flags.sum())


def test_calibration_figures_are_those_of_the_metrics(run, evaluated):
    calibration = evaluated[0].calibration
    test = read_test(run, DIGITS)
    p = np.exp(run.pipeline.compute_output(test.x).log_q_y)
    n, n_true = pairs_per_bin(p).sum(0), true_per_bin(p, test.y).sum(0)
    ece, mce, ice, geo_mean = calibration_errors(n, n_true)
    assert_allclose(
        [calibration.ece, calibration.mce, calibration.ice, calibration.geo_mean],
        100 * np.array([ece, mce, ice, geo_mean]),
    )
    floor = calibration_floor(p)
    assert calibration.floor["ece"].mean == pytest.approx(100 * floor.errors.ece.mean())
    assert calibration.floor["top_label_ece"].p95 == pytest.approx(
        100 * np.quantile(floor.top_label_ece, 0.95)
    )
    assert [b.n for b in calibration.bins] == n.tolist()
    assert calibration.n_left_out == sum(b.share is None for b in calibration.bins) == (n <= 20).sum()
    for b, count, true in zip(calibration.bins, n, n_true, strict=True):
        if b.share is not None:
            assert b.share == pytest.approx(true / count)
            assert b.share_low <= b.share <= b.share_high
            assert b.floor_low <= b.floor_high


def test_views_are_all_draws_and_mirrored_images_if_training_had_them(run, evaluated):
    test, draws = read_test(run, DIGITS), range(run.pipeline.preprocess.n_draws)
    recipe = dataclasses.replace(run.config.recipe, flip=True)
    flipping = dataclasses.replace(run, config=dataclasses.replace(run.config, recipe=recipe))
    for seen, sides in ((evaluated[0], (1,)), (evaluate(flipping, DIGITS)[0], (1, -1))):
        views = [run.pipeline.compute_output(test.x[:, :, ::s], d).log_p_y for s in sides for d in draws]
        mean = np.exp(views).mean(0)
        assert seen.averaged.n_views == len(views)
        assert seen.averaged.error == pytest.approx(100 * (mean.argmax(1) != test.y).mean())
        assert seen.averaged.nll_y == pytest.approx(-np.log(mean[np.arange(len(test)), test.y]).mean())


@pytest.mark.slow
def test_a_model_without_numbers_is_wrong_and_says_so(tmp_path):
    """As gamma = inf may end: some z are so far off that nothing can be said."""
    broken = trained(tmp_path / "run", DIGITS, gamma=math.inf, epochs=1)
    with torch.no_grad():
        broken.pipeline.model.flow.layers[-1].log_scale.fill_(88.0)
    test = read_test(broken, DIGITS)
    assert np.isnan(broken.pipeline.compute_output(test.x).log_q_y).any()
    results, arrays = evaluate(broken, DIGITS, strange(broken))
    assert results.n_without_answer > 0
    assert results.error >= 100 * results.n_without_answer / len(test)
    write_run(tmp_path / "run", results, arrays | latent_arrays(broken, test))
    assert read_results(tmp_path / "run").n_without_answer == results.n_without_answer
