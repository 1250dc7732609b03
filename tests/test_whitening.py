"""The whitened start of training: flows on images start as the best linear model of them."""

import dataclasses

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from ibinn.data.dataset import Dataset, Part
from ibinn.data.known import load
from ibinn.data.splits import split
from ibinn.flows.base import Chain
from ibinn.flows.subnets import SummarySubnet
from ibinn.inference.latent import encode
from ibinn.training.data import build_pipeline
from ibinn.training.recipes import configure


def gaussian_images(n=3000, side=8):
    """Patches of 2 x 2 pixels, each a draw from one Gaussian, and the entropy of that in bits/dim."""
    rng, d, half = np.random.default_rng(0), 12, side // 2
    components, _ = np.linalg.qr(rng.normal(size=(d, d)))
    cov = (components * np.geomspace(2, 30, d) ** 2) @ components.T
    patches = rng.multivariate_normal(np.full(d, 128), cov, size=(n, half, half)).round().clip(0, 255)
    x = patches.reshape(n, half, half, 2, 2, 3).transpose(0, 1, 3, 2, 4, 5).reshape(n, side, side, 3)
    part = Part(x.astype(np.uint8), np.arange(n) % 2)
    entropy = 0.5 * np.linalg.slogdet(2 * np.pi * np.e * cov)[1] / d / np.log(2)
    return Dataset("gaussian", part, None, ("a", "b"), 256), entropy


def at_the_start(dataset, normalise, method="ibinn", **network):
    splits = split(dataset, 0)
    config = configure(
        dataset, len(splits.train), method=method, gamma=1.0, seed=0, priors="data", precision="float32"
    )
    config = dataclasses.replace(
        config,
        recipe=dataclasses.replace(config.recipe, normalise=normalise),
        network=dataclasses.replace(config.network, **network),
    )
    return build_pipeline(config, dataset, splits.train), splits


def bits_at_the_start(dataset, normalise):
    pipeline, splits = at_the_start(dataset, normalise)
    with torch.no_grad():
        pipeline.model.mixture.mu.zero_()
    return pipeline.bits_per_dim(pipeline.compute_output(dataset.train.x[splits.validation]).log_q_x).mean()


def test_a_whitened_flow_starts_as_the_gaussian_that_the_images_are_from():
    dataset, entropy = gaussian_images()
    assert bits_at_the_start(dataset, "whiten") == pytest.approx(entropy, abs=0.05)
    assert bits_at_the_start(dataset, "standard") > entropy + 0.3


def test_on_digits_too_it_starts_ahead():
    digits = load("digits")
    assert bits_at_the_start(digits, "whiten") < bits_at_the_start(digits, "standard") - 0.5


def test_the_means_start_at_their_classes():
    digits = load("digits")
    pipeline, splits = at_the_start(digits, "whiten")
    rows, model = splits.train, pipeline.model
    z = encode(pipeline, digits.train.x[rows], torch.Generator().manual_seed(1))
    for k in range(10):  # as near as the noise allows, which is another one; were it shared, it would show
        members = z[digits.train.y[rows] == k]
        by_chance = (members.var(0).sum() / len(members)).sqrt()
        assert (model.mixture.mu[k] - members.mean(0)).norm() < 1.2 * by_chance
    x, y = (v[splits.validation] for v in (digits.train.x, digits.train.y))
    linear = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.1)
    linear.fit(digits.train.x[rows].reshape(len(rows), -1), digits.train.y[rows])
    wrong = np.mean(pipeline.compute_output(x).log_q_y.argmax(1) != y)
    assert wrong < 2 * np.mean(linear.predict(x.reshape(len(x), -1)) != y) + 0.05  # about a linear model


@pytest.mark.parametrize("method", ["resnet", "irevnet", "vib", "class-nll"])
def test_every_method_can_start_so(method):
    digits = load("digits")
    pipeline, splits = at_the_start(digits, "whiten", method)
    assert np.isfinite(pipeline.compute_output(digits.train.x[splits.validation]).log_q_y).all()


def grey(dataset):
    return dataclasses.replace(
        dataset, train=Part(dataset.train.x[..., :1], dataset.train.y), name="grey gaussian"
    )


@pytest.mark.parametrize("normalise", ["whiten", "equalise"])
@pytest.mark.parametrize("of", [lambda dataset: dataset, grey], ids=["colour", "grey"])
def test_a_summary_starts_from_the_image_and_alone(normalise, of):
    dataset = of(gaussian_images(n=600)[0])
    pipeline, splits = at_the_start(dataset, normalise, blocks=(2, 1), summary=(4, 8), n_summary=2)
    mu = pipeline.model.mixture.mu
    differs = (mu[0] - mu[1]).abs() > 0
    n_summary, n_values = (
        2,
        16 if dataset.shape[2] == 3 else 4,
    )  # of the channel that is factored out; they come last
    assert differs[-n_values : n_summary - n_values].all()
    assert not differs[:-n_values].any()
    assert not differs[n_summary - n_values :].any()
    assert torch.dist(mu[0], mu[1]).item() == pytest.approx(3, rel=1e-5)
    seen = {}
    *before, summary, _ = pipeline.model.flow.layers
    summary.subnet.features[0].register_forward_hook(lambda module, x, image: seen.update(image=image))
    v, _ = pipeline.prepared(dataset.train.x[splits.validation][:5])
    with torch.no_grad():
        z, _ = Chain(*before)(v)
        summary(z)
        z[:, summary.n_passive :] = 0
        without = Chain(*before).inverse(z)
    # Up to a constant at each place: the mixes shift their channels.
    torch.testing.assert_close(
        seen["image"] - seen["image"].mean(0), without - without.mean(0), rtol=0, atol=1e-3
    )


@pytest.mark.parametrize("method", ["resnet", "vib", "irevnet"])
def test_the_summaries_of_other_methods_see_the_image_too(method):
    dataset = grey(gaussian_images(n=600)[0])
    pipeline, _ = at_the_start(dataset, "equalise", method, blocks=(1, 1), summary=(4, 8), n_summary=2)
    (subnet,) = [m for m in pipeline.model.modules() if isinstance(m, SummarySubnet)]
    seen = {}
    subnet.features[0].register_forward_hook(lambda module, x, image: seen.update(image=image))
    v, _ = pipeline.prepared(dataset.train.x[:200])
    pipeline.compute_output(dataset.train.x[:200])
    image = seen["image"].flatten()  # but for the channel that it does not see
    assert torch.corrcoef(torch.stack([image, v.flatten()]))[0, 1] > 0.9
