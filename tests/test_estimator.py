"""The estimator: scikit-learn's own checks and tools, arrays of all forms, coverage, files that are refused."""

import copy
import math
import pickle
import subprocess
import sys
import warnings
from dataclasses import replace

import joblib
import numpy as np
import pandas
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from scipy.special import softmax
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits, load_iris, load_wine
from sklearn.exceptions import NotFittedError
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from ibinn import IBINNClassifier, IBINNOutlierDetector
from ibinn.data.dataset import DataError
from ibinn.data.inputs import InputForm
from ibinn.ood.conformal import prediction_sets
from ibinn.run import RunError
from ibinn.run.folder import read_tensors, save_run, write_tensors

pytestmark = pytest.mark.filterwarnings(
    "ignore:With .* calibration samples",
    "ignore:X.* pixel values are taken",
    "ignore:the model is hardly better",
)
FEW = {"epochs": 2, "random_state": 0}
TINY = ("network.blocks=[1,1]", "network.widths=[8,8]", "network.dense_width=16")


@parametrize_with_checks([IBINNClassifier(**FEW)])
@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def iris():
    return load_iris(return_X_y=True)


@pytest.fixture(scope="module")
def on_iris(iris):
    return IBINNClassifier(epochs=4, random_state=0).fit(*iris)


@pytest.fixture(scope="module")
def digit_arrays():
    x, y = load_digits(return_X_y=True)
    return x.reshape(-1, 8, 8), y


@pytest.fixture(scope="module")
def on_digits(digit_arrays):
    x, y = digit_arrays
    model = IBINNClassifier(epochs=6, random_state=0, levels=17, pixel_max=16, settings=TINY)
    return model.fit(x[:900], y[:900])


def test_it_learns(iris, on_iris):
    assert on_iris.score(*iris) > 0.93


def test_it_starts_as_linear_discriminant_analysis():
    """One step at no learning rate: what is left is the start, a flow close to a rotation."""
    x, y = load_wine(return_X_y=True)
    model = IBINNClassifier(epochs=1, random_state=0, settings=("recipe.learning_rate=1e-9",)).fit(x, y)
    assert model.score(x, y) > 0.95


# scikit-learn's tools


def test_pipeline_search_and_validation(iris):
    x, y = iris
    search = GridSearchCV(IBINNClassifier(**FEW), {"gamma": [0.5, 5.0]}, cv=2).fit(x, y)
    assert search.best_score_ > 0.85
    assert cross_val_score(make_pipeline(StandardScaler(), IBINNClassifier(**FEW)), x, y, cv=2).min() > 0.8
    assert clone(IBINNClassifier(gamma=3.0)).get_params()["gamma"] == 3.0
    calibrated = CalibratedClassifierCV(IBINNClassifier(**FEW), cv=2).fit(x, y)
    assert_allclose(calibrated.predict_proba(x).sum(1), 1)


@pytest.mark.parametrize("through", ["pickle", "joblib"])
def test_copies_answer_alike(tmp_path, iris, on_iris, through):
    if through == "pickle":
        copy = pickle.loads(pickle.dumps(on_iris))
    else:
        joblib.dump(on_iris, tmp_path / "model")
        copy = joblib.load(tmp_path / "model")
    assert_array_equal(copy.predict_proba(iris[0]), on_iris.predict_proba(iris[0]))
    assert_array_equal(copy.p_values(iris[0]), on_iris.p_values(iris[0]))


def test_the_detector_has_scikit_learns_signs(iris):
    x, y = iris
    detector = IBINNOutlierDetector(IBINNClassifier(**FEW), alpha=0.1).fit(x, y)
    far = x + 50 * np.eye(4)[0]
    assert {*detector.predict(far)} == {-1}
    assert_array_equal(detector.predict(x) == 1, detector.classifier_.is_typical(x, 0.1))
    assert_array_equal(detector.decision_function(x) > 0, detector.predict(x) == 1)
    assert_array_equal(clone(detector).fit_predict(x, y), detector.predict(x))
    with pytest.raises(ValueError, match="requires y"):
        IBINNOutlierDetector().fit(x)
    with pytest.raises(NotFittedError):
        IBINNOutlierDetector().predict(x)


# Predictions


def test_answers_do_not_depend_on_company(iris, on_iris):
    x = iris[0]
    order = np.random.default_rng(0).permutation(len(x))
    for ask in (on_iris.predict_proba, on_iris.score_samples, on_iris.p_values):
        whole = ask(x)
        assert_allclose(ask(x[order]), whole[order], atol=1e-7, rtol=1e-7)
        assert_allclose(np.concatenate([ask(row[None]) for row in x[:9]]), whole[:9], atol=1e-7, rtol=1e-7)


def test_answers_about_images_do_not_depend_on_company(digit_arrays, on_digits):
    x = digit_arrays[0][900:960]
    order = np.random.default_rng(0).permutation(len(x))
    whole, density = on_digits.predict_proba(x), on_digits.score_samples(x)
    alone = np.concatenate([on_digits.predict_proba(row[None]) for row in x])
    assert_allclose(alone, whole, atol=1e-5, rtol=0)
    assert_allclose(on_digits.predict_proba(x[order]), whole[order], atol=1e-5, rtol=0)
    assert_allclose(np.concatenate([on_digits.score_samples(r[None]) for r in x]), density, rtol=1e-5)


def test_densities_are_in_the_units_of_the_caller(digit_arrays):
    """The same images with pixels up to 16 and up to 1: each pixel's density is 16 times as high."""
    x, y = digit_arrays
    asked = {"epochs": 1, "random_state": 0, "levels": 17, "settings": TINY}
    coarse = IBINNClassifier(pixel_max=16, **asked).fit(x[:300], y[:300])
    fine = IBINNClassifier(pixel_max=1, **asked).fit(x[:300] / 16, y[:300])
    assert_allclose(
        fine.score_samples(x[:5] / 16) - coarse.score_samples(x[:5]), 64 * np.log(16), rtol=1e-6
    )
    explanation = fine.explain(x[0] / 16)
    assert explanation.log_q_x == pytest.approx(fine.score_samples(x[:1] / 16)[0], rel=1e-6)
    log_w = fine.run_.pipeline.model.mixture.log_w.detach().numpy()
    assert np.logaddexp.reduce(
        [log_w[k] + v for k, v in enumerate(explanation.log_likelihoods.values())]
    ) == pytest.approx(explanation.log_q_x, rel=1e-5)


def test_densities_of_rows_integrate_to_one():
    rng = np.random.default_rng(0)
    y = np.arange(200) % 2
    x = rng.normal(size=(200, 2)) * [3.0, 0.1] + 4 * y[:, None]
    model = IBINNClassifier(epochs=3, random_state=0).fit(x, y)
    u, v = np.meshgrid(np.linspace(-25, 35, 400), np.linspace(-2, 7, 1200), indexing="ij")
    density = np.exp(model.score_samples(np.column_stack([u.ravel(), v.ravel()])))
    assert density.sum() * (60 / 399) * (9 / 1199) == pytest.approx(1, abs=0.01)


def test_other_priors_are_bayes_rule(iris, on_iris):
    new = np.array([0.7, 0.2, 0.1])
    old = np.exp(on_iris.run_.pipeline.model.mixture.log_w.detach().numpy())
    expected = on_iris.predict_proba(iris[0]) * new / old
    found = on_iris.predict_proba(iris[0], priors=new)
    assert_allclose(found, expected / expected.sum(1, keepdims=True), atol=1e-12)
    even = on_iris.predict_proba(iris[0]) / old
    assert_allclose(
        on_iris.predict_proba(iris[0], priors="uniform"), even / even.sum(1, keepdims=True), atol=1e-12
    )


def test_probabilities_are_tempered_likelihoods_times_weights(iris, on_iris):
    x, weights = iris[0], [0.7, 0.2, 0.1]
    model = copy.deepcopy(on_iris)
    mixture = model.run_.pipeline.model.mixture
    mixture.phi.data = torch.tensor(weights).log()
    model.run_.pipeline.temperature, model.run_.pipeline.farthest = 2.5, math.inf
    z = torch.from_numpy(model.encode(x))
    log_q_z = np.stack([stats.multivariate_normal(m).logpdf(z) for m in mixture.mu.detach()], 1)
    for calibrated, temperature in ((True, 2.5), (False, 1.0)):
        expected = softmax(np.log(weights) + log_q_z / temperature, axis=1)
        assert_allclose(model.predict_proba(x, calibrated=calibrated), expected, atol=1e-9)
    assert_allclose(model.predict_log_proba(x), np.log(model.predict_proba(x)), atol=1e-9)
    assert_array_equal(model.predict(x), model.predict_proba(x).argmax(1))
    sets = model.predict_set(x, alpha=0.1)
    scores = model.run_.reference.label_scores
    assert_array_equal(sets, prediction_sets(model.predict_log_proba(x), scores, 0.1))
    even = softmax(log_q_z / 2.5, axis=1)
    assert_allclose(model.predict_proba(x, priors="uniform"), even, atol=1e-9)
    raw = [model.ood_scores(x)[name] for name in ("entropy", "max_softmax", "energy")]
    model.run_.pipeline.temperature = 1.0
    for values, name in zip(raw, ("entropy", "max_softmax", "energy"), strict=True):
        assert_array_equal(values, model.ood_scores(x)[name])  # scores use the raw posterior


def test_far_from_all_validation_rows_the_class_weights_remain(iris, on_iris):
    model = copy.deepcopy(on_iris)
    pipeline, mixture = model.run_.pipeline, model.run_.pipeline.model.mixture
    mixture.phi.data = torch.tensor([0.7, 0.2, 0.1]).log()
    pipeline.temperature = 1.3
    factors = np.array([1.0, 2.0, 8.0, 1e3, 1e7])[:, None, None]
    x = (iris[0].mean(0) + factors * (iris[0] - iris[0].mean(0))).reshape(-1, 4)
    log_q_z, z = np.zeros((len(x), 3)), model.encode(x)
    for k, m in enumerate(mixture.mu.detach().numpy()):
        log_q_z[:, k] = stats.norm(m).logpdf(z).sum(1)
    log_w = np.log([0.7, 0.2, 0.1])
    nearest = (log_q_z + log_w).argmax(1)
    distance = ((z - mixture.mu.detach().numpy()[nearest]) ** 2).sum(1)
    assert (distance < pipeline.farthest).sum() > 100 < (distance > pipeline.farthest).sum()
    temperature = 1.3 * np.maximum(1, distance / pipeline.farthest)
    expected = softmax(log_w + log_q_z / temperature[:, None], axis=1)
    proba = model.predict_proba(x)
    assert_allclose(proba, expected, atol=1e-6)
    assert_allclose(proba[-len(iris[0]) :], np.tile([0.7, 0.2, 0.1], (len(iris[0]), 1)), atol=1e-3)
    raw = model.predict_proba(x, calibrated=False)
    assert raw[-len(iris[0]) :].max(1).min() > 0.99  # without it, far rows get certain answers


@pytest.mark.parametrize(
    ("priors", "expected"), [(None, [0.8, 0.2]), ("uniform", [0.5, 0.5]), ([3, 1], [0.75, 0.25])]
)
def test_priors(priors, expected):
    rng = np.random.default_rng(0)
    y = np.repeat(["b", "a"], [40, 160])
    model = IBINNClassifier(priors=priors, **FEW).fit(rng.normal(size=(200, 2)) + (y == "a")[:, None], y)
    assert_allclose(model.run_.pipeline.model.mixture.log_w.exp().detach(), expected, atol=0.01)


def test_wrong_priors_are_refused(iris):
    for priors in ("even", [1, 2], [1, 2, -3]):
        with pytest.raises(ValueError, match="priors"):
            IBINNClassifier(priors=priors, **FEW).fit(*iris)


LABELS = {
    "texts": np.array(["setosa", "versicolor", "virginica"]),
    "objects": np.array(["a", "b", "c"], dtype=object),
    "negative": np.array([-5, 0, 12]),
    "floats": np.array([0.0, 1.0, 2.0]),
}


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_labels_of_any_kind(tmp_path, iris, labels):
    x, y = iris
    model = IBINNClassifier(**FEW).fit(x, labels[y])
    model.save(tmp_path / "model")
    again = IBINNClassifier.load(tmp_path / "model")
    for one in (model, again):
        assert_array_equal(one.classes_, labels)
        assert one.classes_.dtype == labels.dtype
        assert (one.predict(x) == labels[y]).mean() > 0.8


# Images


@pytest.mark.parametrize("layout", ["HW", "HWC", "CHW"])
@pytest.mark.parametrize("kind", ["uint8", "float"])
def test_images_of_all_layouts(layout, kind):
    rng = np.random.default_rng(0)
    n_channels = 1 if layout == "HW" else 3
    levels = rng.integers(0, 256, size=(60, 8, 8, n_channels), dtype=np.uint8)
    y = np.arange(60) % 2
    levels[y == 1, :4] //= 3
    x = {"HW": levels[..., 0], "HWC": levels, "CHW": np.moveaxis(levels, -1, 1)}[layout]
    x = x if kind == "uint8" else x / 255
    model = IBINNClassifier(epochs=1, random_state=0, size="tiny", settings=TINY).fit(x, y)
    assert_array_equal(model.form_.raw(x), levels)
    assert_allclose(model.form_.back(levels), x)
    samples, labels = model.sample(5, 1)
    assert samples.shape == (5, *x.shape[1:])
    assert samples.dtype == x.dtype
    assert_array_equal(labels, 1)
    way = model.interpolate(x[0], x[1], steps=4)
    assert_allclose(way[[0, -1]], x[:2])
    assert_allclose(model.decode(model.encode(x[:4])), x[:4], atol=1e-6)


def test_an_inferred_range_is_told_and_another_one_refused(digit_arrays):
    x, y = digit_arrays[0][:200] / 16, digit_arrays[1][:200]
    with pytest.warns(UserWarning, match="pixel values are taken to be 0–1"):
        model = IBINNClassifier(epochs=1, random_state=0, settings=TINY).fit(x, y)
    with pytest.raises(DataError, match="do not fit"):
        model.predict(255 * x)
    with pytest.raises(DataError, match="trained on"):
        model.predict(x[:, :4])
    with pytest.raises(DataError, match="empty"):
        model.predict(x[:0])


def test_floats_up_to_1_are_no_images_of_0_to_255():
    x, y = np.random.default_rng(0).integers(0, 256, size=(40, 8, 8), dtype=np.uint8), np.arange(40) % 2
    model = IBINNClassifier(epochs=1, random_state=0, settings=TINY).fit(x, y)
    with pytest.raises(DataError, match="look like 0–1"):
        model.predict(x / 255)
    assert_array_equal(model.predict(x.astype(float)), model.predict(x))


def test_grey_images_come_with_a_channel_or_without(digit_arrays, on_digits):
    x = digit_arrays[0][:5].reshape(5, 8, 8)
    expected = on_digits.predict_proba(x)
    assert_array_equal(on_digits.predict_proba(x[..., None]), expected)
    assert_array_equal(on_digits.predict_proba(x[:, None]), expected)
    assert on_digits.explain(x[0, ..., None]).text == on_digits.explain(x[0]).text
    with pytest.raises(DataError, match="trained on"):
        on_digits.predict(np.repeat(x[..., None], 3, axis=3))


def test_samples_are_like_their_class(iris, on_iris):
    x, y = iris
    for k in range(3):
        samples, labels = on_iris.sample(400, k)
        assert {*labels} == {k}
        assert_allclose(samples.mean(0), x[y == k].mean(0), atol=0.5)
        assert (on_iris.predict(samples) == k).mean() > 0.9
    assert_array_equal(on_iris.sample(3)[0], on_iris.sample(3)[0])
    assert not np.array_equal(on_iris.sample(3, random_state=1)[0], on_iris.sample(3)[0])
    assert len({*on_iris.sample(2, [0, 2], temperature=0.0)[1]}) == 2
    assert not np.array_equal(on_iris.sample(3, latent="mixture")[0], on_iris.sample(3)[0])
    centres = on_iris.encode(on_iris.sample(3, [0, 1, 2], temperature=0.0, latent="mixture")[0])
    assert_allclose(centres, on_iris.run_.pipeline.model.mixture.mu.detach(), atol=1e-6)
    with pytest.raises(ValueError, match=r"latent is 'paper' but must be one of 'fitted'"):
        on_iris.sample(3, latent="paper")
    with pytest.raises(ValueError, match="there is no class 7"):
        on_iris.sample(2, 7)
    with pytest.raises(ValueError, match="y has shape"):
        on_iris.sample(y=[0, 1])
    explanation = on_iris.explain(x[0])
    first, second = sorted(explanation.posterior, key=lambda name: -explanation.posterior[name])[:2]
    assert on_iris.evidence(x[0], first, second).values.shape == (4,)  # names of integer classes will do
    with pytest.raises(ValueError, match="takes one input"):
        on_iris.explain(x[:2])


# Guarantees


def test_prediction_sets_cover(digit_arrays, on_digits):
    """Held-out digits re-split 50 times into calibration and test; coverage is beta-binomial."""
    x, y = digit_arrays[0][900:], digit_arrays[1][900:]
    log_q_y = on_digits.predict_log_proba(x)
    rng, n, alpha = np.random.default_rng(0), len(y) // 2, 0.1
    covered = []
    for _ in range(50):
        order = rng.permutation(len(y))
        held, new = order[:n], order[n:]
        scores = 1 - np.exp(log_q_y[held, y[held]])
        covered.append(prediction_sets(log_q_y[new], scores, alpha)[np.arange(len(new)), y[new]].mean())
    m, k = len(y) - n, int(np.floor(alpha * (n + 1)))
    law = stats.betabinom(m, n + 1 - k, k)
    assert law.mean() / m >= 1 - alpha
    # The splits share their inputs, so that their mean scatters hardly less than one of them.
    assert abs(np.mean(covered) - law.mean() / m) < 2 * law.std() / m
    assert np.mean(np.array(covered) < law.ppf(0.001) / m) < 0.05


def test_prediction_sets_of_the_model_hold_its_best_class(digit_arrays, on_digits):
    sets = on_digits.predict_set(digit_arrays[0][900:1000], alpha=0.05)
    best = on_digits.predict_proba(digit_arrays[0][900:1000]).argmax(1)
    assert sets.shape == (100, 10)
    assert sets[np.arange(100), best].mean() > 0.9
    with pytest.raises(ValueError, match="alpha"):
        on_digits.predict_set(digit_arrays[0][:2], alpha=1.5)


def test_a_class_of_wine_that_was_left_out_is_flagged():
    x, y = load_wine(return_X_y=True)
    known, numbers = y < 2, []
    for seed in range(5):
        train, test = train_test_split(
            np.flatnonzero(known), test_size=0.3, random_state=seed, stratify=y[known]
        )
        model = IBINNClassifier(epochs=10, random_state=seed).fit(x[train], y[train])
        p, p_new = model.p_values(x[test]), model.p_values(x[y == 2])
        auroc = roc_auc_score(np.r_[p > 2, p_new < 2], -np.r_[p, p_new])
        numbers.append((auroc, (p_new <= 0.05).mean(), (p <= 0.05).mean()))
    auroc, flagged, false_alarms = np.mean(numbers, axis=0)
    assert auroc > 0.9
    assert flagged > 0.5
    assert false_alarms < 0.1


def test_p_values_by_class(digit_arrays, on_digits):
    x = digit_arrays[0][900:1000]
    p = on_digits.p_values(x, per_class=True)
    called = on_digits.run_.reference.calibration_class
    for value, k in zip(p, on_digits.predict(x), strict=True):
        assert value * ((called == k).sum() + 1) == pytest.approx(round(value * ((called == k).sum() + 1)))


def test_scores_are_higher_for_stranger_inputs_and_their_ranks_are_the_p_values(digit_arrays, on_digits):
    x = digit_arrays[0][900:940]
    x = np.concatenate([x, 16 - x])
    scores, p = on_digits.ood_scores(x), on_digits.p_values(x)
    reference = on_digits.run_.reference
    assert {*scores} == {*reference.calibration}
    for name, values in scores.items():
        assert values.shape == (80,), name
    headline = scores[reference.headline]
    assert np.median(headline[40:]) > np.median(headline[:40])
    calibration = reference.calibration[reference.headline]
    n_as_strange = (calibration >= headline[:, None] - 1e-6).sum(1)
    assert_allclose(p, (1 + n_as_strange) / (1 + len(calibration)))


def test_few_samples_make_p_values_coarse(iris):
    x, y = iris
    model = IBINNClassifier(**FEW).fit(x[::3], y[::3])
    with pytest.warns(UserWarning, match="calibration samples"):
        model.is_typical(x, alpha=0.01)


# Mistakes


def test_too_few_and_unfitted(iris):
    x, y = iris
    for method in (
        "predict",
        "predict_proba",
        "score_samples",
        "p_values",
        "ood_scores",
        "is_typical",
        "encode",
    ):
        with pytest.raises(NotFittedError):
            getattr(IBINNClassifier(), method)(x)
    with pytest.raises(ValueError, match="too few"):
        IBINNClassifier(**FEW).fit(x[48:52], y[48:52])
    with pytest.raises(ValueError, match="1 class"):
        IBINNClassifier(**FEW).fit(x[:20], y[:20])
    for wrong in ({"gamma": -1.0}, {"settings": ("recipe.epoch=1",)}, {"epochs": -1}):
        with pytest.raises(ValueError):  # noqa: PT011
            IBINNClassifier(**FEW | wrong).fit(x, y)


def test_data_frames_keep_their_columns(tmp_path, iris):
    x, y = iris
    frame = pandas.DataFrame(x, columns=["a", "b", "c", "d"])
    model = IBINNClassifier(**FEW).fit(frame, pandas.Series(y))
    model.save(tmp_path / "model")
    for one in (model, IBINNClassifier.load(tmp_path / "model")):
        assert list(one.feature_names_in_) == ["a", "b", "c", "d"]
        assert one.run_.feature_names == ("a", "b", "c", "d")
        assert_array_equal(one.predict(frame), model.predict(frame))
        with pytest.raises(ValueError, match="feature names"):
            one.predict(frame[["b", "a", "c", "d"]])
        assert one.explain(frame[:1]).p_value == model.p_values(frame[:1])[0]
        assert one.explain(frame.iloc[0]).p_value == model.p_values(frame[:1])[0]
        assert one.interpolate(frame.iloc[0], frame.iloc[1]).shape == (9, 4)


def test_arrays_of_any_strides(iris, on_iris):
    x = iris[0]
    assert_allclose(on_iris.predict_proba(x[::-1]), on_iris.predict_proba(x)[::-1])
    frozen = x.copy()
    frozen.setflags(write=False)
    assert_allclose(on_iris.predict_proba(frozen), on_iris.predict_proba(x))


def test_numbers_and_words_of_the_constructor(tmp_path, iris):
    x, y = iris
    model = IBINNClassifier(epochs=np.int64(2), batch_size=np.int32(16), random_state=0).fit(x, y)
    model.save(tmp_path / "model")
    IBINNClassifier.load(tmp_path / "model")
    wrong = {"epochs": 2.5, "batch_size": "all", "size": "huge", "precision": "float64", "device": "cuda:0"}
    for name, value in wrong.items():
        with pytest.raises(ValueError, match=name):
            IBINNClassifier(**FEW | {name: value}).fit(x, y)
    with pytest.raises(ValueError, match="epochs"):
        IBINNClassifier(epochs=0, random_state=0).fit(x, y)


def test_two_fits_with_one_seed_are_the_same_bytes(tmp_path, iris):
    for name in "ab":
        IBINNClassifier(**FEW).fit(*iris).save(tmp_path / name)
    assert (tmp_path / "a/model.safetensors").read_bytes() == (
        tmp_path / "b/model.safetensors"
    ).read_bytes()


def test_many_small_classes():
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(40), 6)
    x = 10 * rng.normal(size=(40, 5))[y] + rng.normal(size=(240, 5))
    assert IBINNClassifier(**FEW).fit(x, y).score(x, y) > 0.8


def test_a_class_that_has_no_training_rows_does_no_harm(iris):
    """All of its rows equal rows of another class, with which they stay."""
    x, y = iris
    x, y = np.concatenate([x, x[:2]]), np.concatenate([y, [3, 3]])
    model = IBINNClassifier(**FEW).fit(x, y)
    assert np.isfinite(model.predict_proba(x)).all()
    assert model.score(x, y) > 0.85


def test_verbose_tells_of_progress(iris, capsys):
    IBINNClassifier(verbose=1, **FEW).fit(*iris)
    assert "epoch 2/2" in capsys.readouterr().err
    IBINNClassifier(**FEW).fit(*iris)
    assert capsys.readouterr() == ("", "")


# Files


def test_a_saved_model_answers_alike_and_is_the_same_bytes(tmp_path, digit_arrays, on_digits):
    on_digits.save(tmp_path / "a")
    again = IBINNClassifier.load(tmp_path / "a")
    again.save(tmp_path / "b")
    names = sorted(p.name for p in (tmp_path / "a").iterdir())
    assert names == ["README.md", "config.toml", "model.safetensors"]
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    x = digit_arrays[0][900:950]
    assert_array_equal(again.predict_proba(x), on_digits.predict_proba(x))
    assert_array_equal(again.p_values(x), on_digits.p_values(x))
    assert again.get_params() == on_digits.get_params() | {"settings": list(TINY)}
    card = (tmp_path / "a" / "README.md").read_text()
    facts = on_digits.run_.facts
    for number in (facts.n_train, facts.n_calibration, f"{facts.held_out.error:.2f}"):
        assert str(number) in card
    assert "10 classes: 0, 1, 2" in card


@pytest.fixture
def folder(tmp_path, on_iris):
    on_iris.save(tmp_path / "model")
    return tmp_path / "model"


def test_a_model_may_be_saved_again_but_not_over_something_else(tmp_path, folder, on_iris):
    on_iris.save(folder)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("all of it")
    save_run(tmp_path / "trained", replace(on_iris.run_, parameters={}))  # as ibinn train writes it
    for name in ("other", "trained"):
        before = sorted(path.read_bytes() for path in (tmp_path / name).iterdir())
        with pytest.raises(RunError, match="another folder"):
            on_iris.save(tmp_path / name)
        assert sorted(path.read_bytes() for path in (tmp_path / name).iterdir()) == before


def tampered(path):
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)


def rewritten(**changes):
    """A model file with other metadata and the checksum that belongs to them."""

    def harm(path):
        tensors, about = read_tensors(path)
        write_tensors(path, tensors, about | changes)

    return harm


def without_classes(path):
    tensors, about = read_tensors(path)
    del about["classes"]
    write_tensors(path, tensors, about)


class Bomb:
    def __reduce__(self):
        return (print, ("code ran",))


REFUSED = {
    "tampered": tampered,
    "missing": lambda path: path.unlink(),
    "newer": rewritten(format=99),
    "without classes": without_classes,
    "fewer classes": rewritten(classes=[1, 2]),
    "unknown parameter": rewritten(parameters={"no_such_parameter": 1}),
    "pickle": lambda path: path.write_bytes(pickle.dumps(Bomb())),
    "torch's pickle": lambda path: torch.save({"a": Bomb()}, path),
    "plain JSON": lambda path: path.write_text("[1]"),
}


@pytest.mark.parametrize("harm", REFUSED.values(), ids=REFUSED)
def test_what_is_damaged_or_foreign_is_refused_and_no_code_runs(folder, capfd, harm):
    harm(folder / "model.safetensors")
    with pytest.raises(RunError) as error:
        IBINNClassifier.load(folder)
    assert "\n" not in str(error.value)
    assert "code ran" not in "".join(capfd.readouterr())


def test_importing_the_package_does_not_import_scikit_learn():
    program = "import sys, ibinn; sys.exit(any(m in sys.modules for m in ('sklearn', 'torch')))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_forms_know_their_scale():
    assert InputForm("rows", (3,), "float64").log_scale == 0
    assert InputForm("HW", (2, 2), "float64", 256, 1.0).log_scale == pytest.approx(4 * np.log(255))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert InputForm.of(np.zeros((1, 2, 2), np.uint8)).pixel_max == 255
