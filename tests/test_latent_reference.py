"""Where latent codes lie: the fit against the truth, scores against torch.distributions, what stays untouched."""

import copy
import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from helpers.trainings import few_digits, trained, two_moons
from numpy.testing import assert_allclose
from scipy.linalg import hadamard
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

from ibinn.data.dataset import Part
from ibinn.data.splits import split
from ibinn.evaluation import evaluate, read_test
from ibinn.inference.judge import judge
from ibinn.inference.latent import decoded, sample
from ibinn.mixture import GaussianMixture
from ibinn.models import latent_reference
from ibinn.models.classifier import evaluation_mode
from ibinn.models.latent_reference import (
    RANKS,
    SHRINKAGES,
    FullCovariance,
    LatentReference,
    LowRankCovariance,
    Moments,
    best_covariance,
    fit_latent_reference,
    shrunk,
)
from ibinn.ood.scores import observe
from ibinn.run.folder import load_run, save_run
from ibinn.training.finishing import fit_after_training

D, K = 6, 3


def truth(seed=0, n_dims=D):
    """Class means, weights and a covariance whose variances span two orders of magnitude."""
    rng = np.random.default_rng(seed)
    factor = np.linalg.qr(rng.normal(size=(n_dims, n_dims)))[0] * np.geomspace(0.3, 3, n_dims)
    means = 2 * rng.normal(size=(K, n_dims))
    return torch.tensor(means), torch.tensor([0.5, 0.3, 0.2]), torch.tensor(factor @ factor.T)


def drawn(n, means, weights, covariance, seed=0):
    """z (n, D) and y (n,)."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.multinomial(weights, n, replacement=True, generator=generator)
    noise = torch.randn(n, means.shape[1], generator=generator)
    return means[y] + noise @ torch.linalg.cholesky(covariance).T, y


def mixture_of(weights, n_dims=D):
    return GaussianMixture(len(weights), n_dims, priors=weights.tolist())


def fitted(train, validation, weights, size=1000):
    def batches(z, y):
        return lambda: zip(z.split(size), y.split(size), strict=True)

    return fit_latent_reference(
        batches(*train), batches(*validation), mixture_of(weights, train[0].shape[1])
    )


def sigma_of(reference):
    """Sigma (D, D): what `colour` makes of the unit vectors."""
    factor = reference.covariance.colour(torch.eye(reference.means.shape[1]).to(reference.means))
    return (factor.T @ factor).double()


def log_det(reference):
    return float(torch.logdet(sigma_of(reference)))


def low_rank_of(covariance, rank=None):
    """The same covariance by its principal axes, or by the `rank` largest."""
    scale = covariance.diagonal().sqrt()
    values, basis = torch.linalg.eigh(covariance / scale / scale[:, None])
    kept = slice(len(scale) - (len(scale) if rank is None else rank), None)
    rest = values[: kept.start].mean() if kept.start else torch.ones(())
    return LowRankCovariance(scale, basis[:, kept], values[kept], rest)


# --- the fit -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_full", [1024, 0], ids=["full", "low rank"])
def test_the_fit_agrees_with_the_truth_within_its_error(max_full, monkeypatch):
    monkeypatch.setattr(latent_reference, "MAX_FULL", max_full)
    means, weights, covariance = truth()
    n = 40_000
    train, validation = (
        drawn(n, means, weights, covariance, 1),
        drawn(10_000, means, weights, covariance, 2),
    )
    reference = fitted(train, validation, weights)
    counts = torch.bincount(train[1])[:, None]
    error = (covariance.diagonal() / counts).sqrt()
    assert ((reference.means - means).abs() < 5 * error).all()
    variance = covariance.diagonal()
    spread = (
        (variance[:, None] * variance + covariance.square()) / n
    ).sqrt()  # of an entry of a sample covariance
    # The overall scale is that of the validation codes, which has an error of its own.
    slack = 5 * spread + 5 * covariance.abs() * (2 / (D * 10_000)) ** 0.5
    assert ((sigma_of(reference) - covariance).abs() < slack).all()
    assert_close(reference.log_w, weights.log())


def test_sums_in_batches_are_those_of_all_codes_at_once():
    """Far from 0, where single precision would lose the variances."""
    means, weights, covariance = truth()
    z, y = drawn(3000, means + 1e5, weights, covariance)
    for size, order in itertools.product((1, 7, 3000), (slice(None), torch.randperm(3000))):
        moments = Moments(means + 1e5)
        for batch in zip(z[order].split(size), y[order].split(size), strict=True):
            moments.add(*batch)
        within = np.concatenate([z[y == k] - z[y == k].mean(0) for k in range(K)])
        axes = moments.principal_axes()
        covariance_of_all = within.T @ within / (3000 - K)
        found = (axes.basis * axes.variances) @ axes.basis.T * axes.scale * axes.scale[:, None]
        assert_allclose(found, covariance_of_all, rtol=1e-8, atol=1e-8)
        assert_allclose(moments.means, [z[y == k].mean(0) for k in range(K)], rtol=1e-12)


def test_axes_of_a_sample_are_those_of_the_sums(monkeypatch):
    """Beyond MAX_MOMENTS dimensions the products are not summed up: here the sample is everything."""
    means, weights, covariance = truth()
    z, y = drawn(2000, means, weights, covariance)

    def axes():
        moments = Moments(means)
        for batch in zip(z.split(300), y.split(300), strict=True):
            moments.add(*batch)
        return moments.principal_axes()

    whole = axes()
    monkeypatch.setattr(latent_reference, "MAX_MOMENTS", 1)
    some = axes()
    assert_close(some.scale, whole.scale)
    assert_close(some.variances.flip(0), whole.variances, rtol=2e-3, atol=0)  # divided by n, and by n - K
    assert_close((some.basis.T @ whole.basis.flip(1)).abs(), torch.eye(D), rtol=0, atol=1e-3)


def test_shrinkage_and_scale_have_the_highest_likelihood_of_the_validation_codes():
    """Against a search over all shrinkages by torch.distributions, with few training codes."""
    means, weights, covariance = truth()
    train, validation = (
        drawn(25, means, weights, covariance, 1),
        drawn(200, means, weights, 2 * covariance, 2),
    )
    reference = fitted(train, validation, weights)
    moments = Moments(means)
    moments.add(*train)
    axes = moments.principal_axes()
    d = validation[0] - reference.means[validation[1]]
    best = -np.inf
    for share in SHRINKAGES:
        variances = (1 - share) * axes.variances.clamp_min(0) + share
        shape = (axes.basis * variances) @ axes.basis.T * axes.scale * axes.scale[:, None]
        for scale in np.geomspace(0.2, 10, 400):
            best = max(best, float(MultivariateNormal(torch.zeros(D), scale * shape).log_prob(d).mean()))
    mine = float(MultivariateNormal(torch.zeros(D), sigma_of(reference)).log_prob(d).mean())
    assert best - 1e-9 <= mine < best + 1e-3


def test_rank_is_chosen_by_the_likelihood_of_the_validation_codes(monkeypatch):
    """Few directions with much variance, few training codes: neither no axis nor all of them."""
    monkeypatch.setattr(latent_reference, "MAX_FULL", 0)
    monkeypatch.setattr(latent_reference, "RANKS", (0, 4, 30))
    n_dims = 32
    directions = torch.tensor(
        hadamard(n_dims)[:, 1:5] / n_dims**0.5
    )  # all dimensions have the same variance
    covariance = torch.eye(n_dims) + 50 * directions @ directions.T
    means, weights = torch.zeros(K, n_dims), torch.ones(K) / K
    train, validation = drawn(120, means, weights, covariance, 1), drawn(500, means, weights, covariance, 2)
    reference = fitted(train, validation, weights)
    assert reference.covariance.basis.shape == (n_dims, 4)
    moments = Moments(means)
    moments.add(*train)
    d = validation[0] - reference.means[validation[1]]
    axes = moments.principal_axes()
    along, total = (
        (d / axes.scale @ axes.basis).square().mean(0),
        float((d / axes.scale).square().sum(1).mean()),
    )
    best = best_covariance(axes, along, total)
    assert_close(best.variances, reference.covariance.variances)
    choice = max((shrunk(axes, along, total, 4, s) for s in SHRINKAGES), key=lambda c: c.log_likelihood)
    log_q = MultivariateNormal(torch.zeros(n_dims), sigma_of(reference)).log_prob(d).mean()
    constant = -n_dims * (1 + np.log(2 * np.pi)) / 2 - axes.scale.log().sum()
    assert_close(log_q, n_dims * choice.log_likelihood + constant)


def test_few_and_missing_codes_are_enough_and_overflow_is_not():
    means, weights, covariance = truth()
    train, validation = drawn(4, means, weights, covariance, 1), drawn(3, means, weights, covariance, 2)
    reference = fitted(train, validation, weights)
    assert torch.linalg.eigvalsh(sigma_of(reference)).min() > 0
    missing = [k for k in range(K) if k not in train[1]]
    assert missing
    assert_close(reference.means[missing], mixture_of(weights).mu[missing].detach())
    train[0][2, 1] = torch.inf
    assert fitted(train, validation, weights) is None
    empty = torch.zeros(0, D), torch.zeros(0, dtype=torch.long)
    assert fitted(empty, validation, weights) is None
    assert fitted(validation, empty, weights) is None


def test_a_constant_dimension_does_not_divide_by_zero():
    means, weights, covariance = truth()
    (z, y), validation = drawn(200, means, weights, covariance), drawn(100, means, weights, covariance, 2)
    z[:, 2], validation[0][:, 2] = 7.0, 7.0
    reference = fitted((z, y), validation, weights)
    assert all(torch.isfinite(values).all() for values in reference(z))


# --- scores and samples ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [FullCovariance.of, low_rank_of], ids=["full", "low rank"])
def test_evidence_is_that_of_torch_distributions(kind):
    means, weights, covariance = truth()
    reference = LatentReference(means, weights.log(), kind(covariance))
    z = torch.cat([drawn(50, means, weights, covariance)[0], 30 * torch.randn(50, D)])
    blind_mean = weights @ means
    offset = means - blind_mean
    blind = MultivariateNormal(blind_mean, covariance + offset.T @ (weights[:, None] * offset))
    log_q_z_y = torch.stack([MultivariateNormal(m, covariance).log_prob(z) for m in means], 1)
    log_q_z = torch.logsumexp(log_q_z_y + weights.log(), 1)
    found = reference(z)
    assert_close(found.class_information, blind.log_prob(z) - log_q_z, rtol=1e-9, atol=1e-9)
    inverse = torch.linalg.inv(covariance)
    d = z[:, None] - means
    distance = torch.einsum("nki,ij,nkj->nk", d, inverse, d)
    assert_close(found.class_distance, distance.amin(1), rtol=1e-9, atol=1e-9)
    # Within the span: what is left of d after the best fit of combinations of the class means, in Sigma.
    span = offset.T[:, :-1]
    weighted = inverse @ span
    projection = span @ torch.linalg.solve(span.T @ weighted, weighted.T)
    within = d @ projection.T
    squares = torch.einsum("nki,ij,nkj->nk", within, inverse, within)
    assert_close(found.span_distance, squares.amin(1), rtol=1e-8, atol=1e-8)


def test_low_rank_converges_to_full():
    means, weights, covariance = truth(1, n_dims=20)
    z = drawn(500, means, weights, covariance)[0]
    full = LatentReference(means, weights.log(), FullCovariance.of(covariance))(z)
    gaps = []
    for rank in (0, 5, 10, 15, 20):
        found = LatentReference(means, weights.log(), low_rank_of(covariance, rank))(z)
        gaps.append(float((found.class_information - full.class_information).abs().mean()))
    assert gaps[-1] < 1e-9
    assert gaps[-1] < gaps[-2] < gaps[0]


@pytest.mark.parametrize("kind", [FullCovariance.of, low_rank_of], ids=["full", "low rank"])
def test_samples_have_the_fitted_means_and_covariance(kind):
    means, weights, covariance = truth()
    reference = LatentReference(means, weights.log(), kind(covariance))
    n, generator = 200_000, torch.Generator().manual_seed(0)
    z = reference.sample(torch.full((n,), 1), 0.5, generator)
    error = (covariance.diagonal() / n).sqrt() / 2
    assert ((z.mean(0) - means[1]).abs() < 5 * error).all()
    assert_close(z.T.cov(), covariance / 4, rtol=0.05, atol=0.01)
    assert torch.equal(reference.sample(torch.tensor([2, 0]), 0.0), means[[2, 0]])
    u = torch.randn(5, D)
    assert_close(reference.covariance.whiten(reference.covariance.colour(u)), u)
    with pytest.raises(ValueError, match="temperature is -1"):
        reference.sample(torch.tensor([0]), -1.0)


@pytest.mark.parametrize("kind", [FullCovariance.of, low_rank_of], ids=["full", "low rank"])
def test_a_stored_reference_is_the_same(kind):
    means, weights, covariance = truth()
    reference, z = LatentReference(means, weights.log(), kind(covariance)), torch.randn(9, D)
    stored = reference.state_dict()
    again = LatentReference.stored(stored)
    assert all(torch.equal(a, b) for a, b in zip(again(z), reference(z), strict=True))
    assert {*reference.state_dict()} == {*stored}  # what is derived is not stored


def test_one_class_explains_as_much_as_none():
    reference = LatentReference(torch.ones(1, D), torch.zeros(1), FullCovariance.of(torch.eye(D)))
    found = reference(torch.randn(20, D))
    assert_close(found.class_information, torch.zeros(20))
    assert_close(found.span_distance, torch.zeros(20))


# --- as a part of a trained model --------------------------------------------------------------------


@pytest.fixture(scope="module", params=[few_digits, two_moons], ids=["images", "rows"])
def case(request, tmp_path_factory):
    dataset = request.param()
    return trained(tmp_path_factory.mktemp("case") / "run", dataset, epochs=6), dataset


def test_a_trained_model_has_a_reference_for_each_noise(case):
    run, _ = case
    is_images = run.pipeline.preprocess.levels is not None
    assert [*run.pipeline.references] == (["bank", "drawn"] if is_images else ["bank"])
    bank, drawn_ = run.pipeline.reference("bank"), run.pipeline.reference("drawn")
    assert (bank is drawn_) == (not is_images)
    if is_images:  # codes that share their noise are narrower
        assert log_det(bank) < log_det(drawn_)


def test_the_reference_is_that_of_the_training_codes(case):
    """Means against the codes of the training split, encoded by hand."""
    run, dataset = case
    rows = split(dataset, run.config.seed).train
    with torch.no_grad():
        z = run.pipeline.codes(dataset.train.x[rows]).double()
    y = torch.from_numpy(dataset.train.y[rows])
    means = torch.stack([z[y == k].mean(0) for k in range(len(run.class_names))])
    assert_close(run.pipeline.reference("bank").means.double(), means, rtol=1e-5, atol=1e-5)


def test_nothing_is_fitted_to_calibration_and_test_inputs(case):
    run, dataset = case
    splits = split(dataset, run.config.seed)
    x, y = dataset.train.x.copy(), dataset.train.y.copy()
    for rows in (splits.calibration, splits.test):
        x[rows], y[rows] = x[rows][::-1], 0
    pipeline, before = run.pipeline, run.pipeline.temperature
    state = {name: value.clone() for name, value in pipeline.references.state_dict().items()}
    reference, _ = fit_after_training(pipeline, dataclasses.replace(dataset, train=Part(x, y)), splits)
    assert pipeline.temperature == before
    assert all(torch.equal(value, state[name]) for name, value in pipeline.references.state_dict().items())
    assert reference.h == run.reference.h
    for name, values in reference.parts.items():
        assert_allclose(values, run.reference.parts[name])
    fit_after_training(pipeline, dataset, splits)  # for the other tests


def test_bits_per_dim_and_posterior_never_use_the_fitted_reference(case):
    """The trap: codes of inputs that share their noise are narrower than those of new noise.

    A density fitted to them promises more bits/dim than there are, so nothing that is reported as a density may
    change with the reference.
    """
    run, dataset = case
    test = read_test(run, dataset)
    results, _ = evaluate(run, dataset)
    other = copy.deepcopy(run)
    other.pipeline.compute_output(test.x[:1])  # derives what is changed here
    other.pipeline.reference("bank").origin += 1
    moved, _ = evaluate(other, dataset)
    for name in ("bits_per_dim", "loss_x", "nll_y", "error", "scaled"):
        assert getattr(moved, name) == getattr(results, name)
    pipeline = run.pipeline
    output = pipeline.compute_output(test.x, with_z=True)
    there = other.pipeline.compute_output(test.x)
    assert np.array_equal(output.log_q_x, there.log_q_x)
    assert np.array_equal(output.log_p_y, there.log_p_y)
    assert not np.allclose(output.class_distance, there.class_distance)
    if pipeline.preprocess.levels is not None:
        z, n_dims = torch.from_numpy(output.z), pipeline.preprocess.n_dims
        bank = pipeline.reference("bank")
        each = [MultivariateNormal(m.double(), sigma_of(bank)).log_prob(z) for m in bank.means]
        flattered = torch.logsumexp(torch.stack(each, 1) + bank.log_w, 1).numpy()
        mixture = pipeline.model.mixture
        honest = torch.logsumexp(mixture.log_q_z_given_y(z.to(mixture.mu)) + mixture.log_w, 1)
        # The test can fail: the fitted density would have told a better number.
        gain = (flattered - honest.detach().double().numpy()).mean() / (n_dims * np.log(2))
        assert gain > 0.05


def test_scores_do_not_depend_on_batch_or_order(case):
    run, dataset = case
    x = dataset.train.x[:60]
    whole = judge(run, x).scores
    order = np.random.default_rng(0).permutation(len(x))
    for size, rows in ((1, np.arange(60)), (7, order)):
        for name, values in judge(run, x[rows], batch_size=size).scores.items():
            if name != "combined":  # a sum of ranks, which rounding may change by one
                assert_allclose(values, whole[name][rows], rtol=1e-4, atol=1e-4)


def test_scores_and_samples_survive_saving(case, tmp_path):
    run, dataset = case
    save_run(tmp_path / "copy", run)
    again = load_run(tmp_path / "copy")
    for name in ("temperature", "farthest"):
        assert getattr(again.pipeline, name) == getattr(run.pipeline, name)
    assert math.isfinite(again.pipeline.farthest)
    mine, theirs = (
        observe(run.pipeline, dataset.train.x[:20]),
        observe(again.pipeline, dataset.train.x[:20]),
    )
    for name in ("class_information", "class_distance", "span_distance", "log_p_y"):
        assert np.array_equal(getattr(mine, name), getattr(theirs, name))
    one, other = (sample(r.pipeline, 5, torch.Generator().manual_seed(0)).raw for r in (run, again))
    assert np.array_equal(one, other)


def test_samples_are_drawn_from_where_the_codes_lie_or_from_the_mixture(case):
    run, _ = case
    pipeline, y = run.pipeline, torch.arange(40) % len(run.class_names)
    latent = {}
    for source in ("fitted", "mixture"):
        raw = sample(pipeline, 40, torch.Generator().manual_seed(0), y, latent=source).raw
        latent[source] = raw.astype(float)
    assert not np.allclose(latent["fitted"], latent["mixture"])
    centres = sample(pipeline, 40, torch.Generator().manual_seed(0), y, temperature=0.0).raw
    with torch.no_grad():
        means = pipeline.reference("drawn").means[y]
        wanted = pipeline.preprocess.to_raw(pipeline.preprocess.inverse(pipeline.model.decode(means)))
    assert_allclose(centres, wanted)


def test_a_plain_classifier_has_a_temperature_and_no_reference(tmp_path):
    dataset = few_digits()
    run = trained(tmp_path / "run", dataset, method="resnet", epochs=2)
    assert not run.pipeline.references
    output = run.pipeline.compute_output(dataset.train.x[:9])
    scaled = output.log_q_y / run.pipeline.temperature
    assert_allclose(output.log_p_y, scaled - np.logaddexp.reduce(scaled, 1, keepdims=True), atol=1e-6)
    assert run.pipeline.temperature != 1


def test_ranks_and_shrinkages_are_in_order():
    assert list(RANKS) == sorted(RANKS)
    assert list(SHRINKAGES) == sorted(SHRINKAGES)


@pytest.mark.slow
def test_samples_that_a_summary_calls_another_class_are_drawn_again(tmp_path, monkeypatch):
    network = {
        "blocks": (1, 1),
        "widths": (8, 8),
        "dropouts": (0.0, 0.0),
        "summary": (4, 8),
        "n_summary": 3,
    }
    run = trained(tmp_path / "run", few_digits(), network=network, optimizer="muon", epochs=30)
    y, shares = torch.arange(300) % 10, []
    for n_redraws in (0, 5):
        monkeypatch.setattr("ibinn.inference.latent.REDRAWS", n_redraws)
        samples = sample(run.pipeline, 300, torch.Generator().manual_seed(0), y)
        shares.append(np.mean(run.pipeline.compute_output(samples.raw).predicted == y.numpy()))
    assert shares[1] > shares[0] + 0.02  # rounding to levels and the noise change some answers again
    z = run.pipeline.reference("drawn").sample(y, 1.0, torch.Generator().manual_seed(1))
    x, is_of_class = decoded(run.pipeline, z, y, is_local=True)
    with evaluation_mode(run.pipeline), torch.no_grad():
        said = run.pipeline.model(run.pipeline.normalised(x)[0])[0].argmax(1)
    assert torch.equal(is_of_class, said == y)
    assert 0 < is_of_class.double().mean() < 1
