"""The programs in experiments/: data sets, ensembles, generated images."""

import dataclasses
import io
import shutil

import cifar10_8x8
import ensemble
import generation
import headline
import latents
import numpy as np
import ood_files
import pyarrow.parquet as pq
import pytest
import torch
from comparisons import read_comparison, write_comparison
from helpers.trainings import few_digits, trained
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image
from sklearn.metrics import roc_auc_score

from ibinn.evaluation import read_test
from ibinn.metrics.roc import auroc_of, ranks
from ibinn.ood.sets import ood_set


def test_ood_files_are_made_of_clones(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    cats, eyes = (
        rng.integers(0, 256, (n, *shape), np.uint8) for n, shape in ((2003, (1, 784)), (2, (784,)))
    )
    (clone := tmp_path / "data").mkdir()
    np.save(clone / "cat.npy", cats)
    np.save(clone / "eye.npy", eyes)
    (photos := tmp_path / "images").mkdir()
    Image.fromarray(rng.integers(0, 256, (32, 32, 3), np.uint8)).save(photos / "val_0.JPEG", "JPEG")
    shutil.copy(photos / "val_0.JPEG", photos / "val_1.JPEG")
    monkeypatch.setenv("IBINN_DATA", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["ood_files.py", str(clone), str(photos)])
    ood_files.main()
    rows = pq.read_table(tmp_path / "ood" / "quickdraw.parquet")["img"].to_pylist()
    drawn = np.stack([np.asarray(Image.open(io.BytesIO(row["bytes"]))) for row in rows])
    wanted = np.concatenate([cats[:2000, 0], eyes])
    assert np.array_equal(drawn, wanted.reshape(-1, 28, 28))
    assert ood_set("quickdraw", np.zeros((3, 28, 28, 1), np.uint8), 256).shape == (2002, 28, 28, 1)
    photo = np.asarray(Image.open(photos / "val_0.JPEG"))
    assert np.array_equal(ood_set("imagenet", np.zeros((3, 32, 32, 3), np.uint8), 256), [photo, photo])
    monkeypatch.setattr("sys.argv", ["ood_files.py", str(photos), str(photos)])
    with pytest.raises(SystemExit, match="no images for quickdraw"):
        ood_files.main()


def test_small_cifar_is_the_mean_of_squares():
    x = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3)).astype(np.uint8)
    small = cifar10_8x8.reduced(x)
    assert small.shape == (3, 8, 8, 3)
    assert small.dtype == np.uint8
    assert small[1, 2, 5, 0] == round(x[1, 8:12, 20:24, 0].mean())


@pytest.fixture(scope="module")
def digits():
    """With a test part of its own, which is the same for all seeds."""
    some = few_digits(700)
    return dataclasses.replace(
        some, train=some.train.take(np.arange(500)), test=some.train.take(np.arange(500, 700))
    )


@pytest.fixture(scope="module")
def resnets(digits, tmp_path_factory):
    folder = tmp_path_factory.mktemp("resnets")
    return [trained(folder / str(seed), digits, method="resnet", seed=seed, epochs=3) for seed in (0, 1)]


def test_an_ensemble_averages_scaled_probabilities(digits, resnets, tmp_path):
    both = ensemble.evaluate(resnets, digits, ["noise", "inverted"])
    test = read_test(resnets[0], digits)
    noisy = ood_set("noise", test.x, digits.levels)
    members = [ensemble.member(run, digits, {"test": test.x, "noise": noisy}) for run in resnets]
    p = np.mean([np.exp(m["test"][0]) for m in members], axis=0)
    assert both.error == pytest.approx(100 * np.mean(p.argmax(1) != test.y))
    assert both.nll_y == pytest.approx(-np.log(p[np.arange(len(p)), test.y]).mean())
    inside, outside = (np.mean([m[name][1]["knn"] for m in members], axis=0) for name in ("test", "noise"))
    truth = np.repeat([0, 1], [len(inside), len(outside)])
    assert both.ood["noise"].auroc["knn"] == pytest.approx(
        100 * roc_auc_score(truth, np.concatenate([inside, outside]))
    )
    write_comparison(tmp_path / "ensemble.json", both)
    assert read_comparison(ensemble.Ensemble, tmp_path / "ensemble.json") == both
    alone = ensemble.evaluate(resnets[:1], digits, ["noise"])
    raw = resnets[0].pipeline.compute_output(test.x).log_q_y
    assert alone.error == pytest.approx(100 * np.mean(raw.argmax(1) != test.y))
    assert alone.train_seconds == resnets[0].facts.train_seconds


def test_generation_is_judged_by_the_resnet_and_offsets_are_those_of_the_mixture(digits, resnets, tmp_path):
    judge, test = generation.Judge(resnets[0], digits), read_test(resnets[0], digits)
    assert judge.lifelike(test.x).mean() > 0.8
    assert (
        judge.lifelike(np.random.default_rng(0).integers(0, 17, test.x.shape).astype(np.uint8)).mean() < 0.8
    )
    run = trained(tmp_path / "run", digits, epochs=2)
    row = generation.generation(run, test, judge)
    assert 0 <= row.samples_lifelike <= 100
    z = generation.latents(run, test.x).numpy()
    mu = run.pipeline.model.mixture.mu.detach().numpy()
    gaps = [np.linalg.norm(z[test.y == k].mean(0) - mu[k]) for k in range(10)]
    assert row.offset == pytest.approx(np.mean(gaps), rel=1e-5)
    drawn = generation.offsets(
        run.pipeline.model, run.pipeline.model.mixture.sample(few := torch.arange(5000) % 10), few.numpy()
    )
    assert drawn["offset"] == pytest.approx(drawn["offset_by_chance"], rel=0.1)
    twice = generation.latents(run, np.repeat(digits.test.x[:1], 2, axis=0))
    assert not torch.isclose(twice[0], twice[1]).all()  # shared noise would look like an offset


def test_pairs_are_of_different_classes():
    y = np.arange(300) % 3
    first, second = generation.pairs(y, 100)
    assert len(first) == 100
    assert (y[first] != y[second]).all()


# --- the choice of the headline ----------------------------------------------------------------------


def test_strange_images_keep_shape_and_levels_and_are_strange():
    x = np.random.default_rng(0).integers(0, 17, (30, 8, 8, 3)).astype(np.uint8)
    kinds = headline.image_kinds(x, 17)
    assert {*headline.VOTERS["images"]} < {*kinds}
    for changed in (image for kind in kinds.values() for image in kind):
        assert (changed.shape, changed.dtype) == (x.shape, x.dtype)
        assert changed.max() <= 16
        assert not np.array_equal(changed, x)


def test_patches_and_phases_keep_what_they_should():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (5, 28, 28, 1)).astype(np.uint8)
    shuffled = headline.shuffled_patches(x, rng, 4)
    assert_array_equal(np.sort(shuffled.reshape(5, -1)), np.sort(x.reshape(5, -1)))
    blocks = {x[0, i : i + 7, j : j + 7].tobytes() for i in range(0, 28, 7) for j in range(0, 28, 7)}
    assert shuffled[0, 7:14, 21:28].tobytes() in blocks
    unit = x / 255
    spectra = [np.abs(np.fft.fft2(v, axes=(1, 2))) for v in (unit, headline.random_phases(unit, rng))]
    assert_allclose(spectra[1], spectra[0], atol=1e-9)


def test_a_vote_is_the_mean_over_models_of_the_mean_over_the_kinds_that_vote():
    """Two scores: one sees only mixes, the other only noise, which has no vote."""
    rng = np.random.default_rng(0)
    plain = {name: rng.normal(size=100) for name in ("a", "b")}

    def shifted(**by):
        return {name: rng.normal(size=100) + by.get(name, 0.0) for name in ("a", "b")}

    models = [
        headline.Model("one", plain, {"mixes": [shifted(a=3), shifted(a=1)], "noise": [shifted(b=5)]}),
        headline.Model("two", plain, {"mixes": [shifted(a=2)]}),
    ]
    chosen = headline.choice(models, ("mixes",))
    assert chosen.order(("mixes",))[0] == ("a",)
    areas = [
        [100 * auroc_of(ranks(plain["a"], terms["a"]).counts()) for terms in model.strange["mixes"]]
        for model in models
    ]
    assert chosen.value(("a",), ("mixes",)) == pytest.approx(np.mean([np.mean(areas[0]), areas[1][0]]))
    assert chosen.order(("noise",))[0] == ("b",)
    found = headline.summary(headline.choice(models, ("mixes", "noise")))
    assert {tuple(row["parts"]) for row in found["table"]} == {("a",), ("b",), ("a", "b")}
    assert found["without"]["noise"]["parts"] == ("a",)
    assert found["without"]["mixes"]["parts"] == ("b",)


def test_samples_are_judged_like_those_of_generation(digits, resnets, tmp_path, monkeypatch):
    monkeypatch.setattr(latents, "N", 60)
    run, judge = trained(tmp_path / "run", digits, epochs=2), generation.Judge(resnets[0], digits)
    samples = latents.drawn(run, "fitted")
    found = latents.shares(samples, judge)
    assert found["lifelike"] == pytest.approx(100 * judge.lifelike(samples.raw).mean())
    assert found["of_their_class"] == pytest.approx(
        100 * (judge.predicted(samples.raw) == samples.y).mean()
    )
    assert found["out_of_range"] == 0
    assert {*latents.shares(samples, None)} == {"out_of_range"}
    assert latents.first_draws_out_of_range(run) == 0
    assert latents.by_class(samples, 10).shape == (10, 6, 8, 8, 1)
