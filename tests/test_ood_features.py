"""Mahalanobis and nearest neighbours against scikit-learn, and in an evaluation."""

import numpy as np
import pytest
import torch
from helpers.trainings import few_digits, trained
from numpy.testing import assert_allclose
from scipy.spatial.distance import cdist
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import normalize
from torch.nn import functional as F

from ibinn.evaluation import evaluate, read_test, splits_of
from ibinn.ood.features import (
    N_NEAREST,
    embedded,
    feature_scores,
    fit_feature_scores,
    fit_gaussians,
    knn_distance,
    mahalanobis,
)
from ibinn.ood.sets import ood_set


def clouds(n=400, n_features=6, n_classes=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % n_classes
    f = torch.randn(n, n_features, generator=generator) @ torch.randn(
        n_features, n_features, generator=generator
    )
    return f + 3 * torch.randn(n_classes, n_features, generator=generator)[y], y


def test_mahalanobis_is_that_of_linear_discriminant_analysis():
    f, y = clouds()
    lda = LinearDiscriminantAnalysis(store_covariance=True).fit(f, y)
    strange = 5 * torch.randn(50, f.shape[1])
    theirs = cdist(strange, lda.means_, "mahalanobis", VI=np.linalg.inv(lda.covariance_)).min(1) ** 2
    assert_allclose(mahalanobis(strange, fit_gaussians(f, y, 3)), theirs, rtol=1e-4)


def test_features_without_variance_and_absent_classes_do_no_harm():
    f, y = clouds()
    flat = torch.cat([f, torch.ones(len(f), 2), f[:, :1]], dim=1)
    here = mahalanobis(flat, fit_gaussians(flat, y, 3))
    assert_allclose(here, mahalanobis(f, fit_gaussians(f, y, 3)), rtol=1e-4)
    assert mahalanobis(f, fit_gaussians(f, y, 4)).isfinite().all()


def test_knn_distance_is_that_of_scikit_learn():
    f, _ = clouds()
    strange = 5 * torch.randn(30, f.shape[1])
    theirs = NearestNeighbors(n_neighbors=7).fit(normalize(f)).kneighbors(normalize(strange))[0][:, -1]
    assert_allclose(knn_distance(strange, F.normalize(f), 7), theirs, atol=2e-3)
    few = knn_distance(strange, F.normalize(f[:3]), 7)  # fewer than 7: the farthest of them
    assert_allclose(few, cdist(normalize(strange), normalize(f[:3])).max(1), atol=2e-3)


@pytest.mark.parametrize("method", ["resnet", "irevnet", "vib"])
def test_an_evaluation_has_both_scores_fitted_on_the_training_split_alone(tmp_path, method):
    digits = few_digits(500)
    run = trained(tmp_path / "run", digits, method=method, gamma=100.0, epochs=2)
    splits, test = splits_of(run, digits), read_test(run, digits)
    strange = {"inverted": ood_set("inverted", test.x, digits.levels)}
    results, arrays = evaluate(run, digits, strange)
    training = digits.train.take(splits.train)
    f = {"training": embedded(run.pipeline, training.x), "test": embedded(run.pipeline, test.x)}
    theirs = NearestNeighbors(n_neighbors=N_NEAREST).fit(normalize(f["training"]))
    assert_allclose(
        arrays["scores/knn"], theirs.kneighbors(normalize(f["test"]))[0][:, -1], atol=2e-3, rtol=1e-3
    )
    if method != "vib":  # whose answers are averaged over codes
        answers = run.pipeline.model.readout(f["test"]).detach().log_softmax(1)
        assert_allclose(answers, run.pipeline.compute_output(test.x).log_q_y, rtol=1e-3, atol=1e-4)
    assert {"mahalanobis", "knn"} <= {*results.ood["inverted"].auroc}
    assert {"mahalanobis", "knn"} <= {*results.false_alarm_rate}
    held = fit_feature_scores(run.pipeline, digits, splits).calibration["mahalanobis"]
    flagged = [(1 + (held >= s).sum()) / (1 + len(held)) <= 0.05 for s in arrays["scores/mahalanobis"]]
    assert results.false_alarm_rate["mahalanobis"] == pytest.approx(100 * np.mean(flagged))


def test_scores_do_not_depend_on_the_batch(tmp_path):
    digits = few_digits(400)
    run = trained(tmp_path / "run", digits, method="resnet", epochs=1)
    fitted, x = fit_feature_scores(run.pipeline, digits, splits_of(run, digits)), digits.train.x[:23]
    whole, parts = (feature_scores(run.pipeline, x, fitted, size) for size in (500, 4))
    assert {*whole} == {"mahalanobis", "knn"}
    for name in whole:
        assert_allclose(whole[name], parts[name], rtol=1e-3, atol=2e-3)
