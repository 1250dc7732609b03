"""Explanations of single decisions: numbers against oracles, sentences for every case, evidence that adds up."""

import copy
import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from helpers.trainings import few_digits, trained
from numpy.testing import assert_allclose
from scipy import stats
from torch import nn
from torch.distributions import MultivariateNormal

from ibinn.data.dataset import Dataset, Part
from ibinn.data.preprocess import ImagePreprocess, TablePreprocess
from ibinn.formats import percent, rounded_p, told_p
from ibinn.inference import attribution, sentences
from ibinn.inference.attribution import EvidenceMap, Line, evidence_map, integrated_gradients
from ibinn.inference.explain import explain
from ibinn.inference.judge import Place, histogram, judge
from ibinn.inference.sentences import told
from ibinn.models.baselines import SoftmaxClassifier
from ibinn.models.pipeline import Pipeline
from ibinn.ood.scores import observe
from ibinn.report.decision import explanation_figure
from ibinn.report.style import plain, save_figure
from ibinn.run.trained import Run

DIGITS = few_digits(900)


def cropped(dataset):
    """Images of 7 x 6 pixels, which the network must pad."""
    return dataclasses.replace(dataset, train=Part(dataset.train.x[:, :7, 1:7], dataset.train.y))


def three_columns(n=400, seed=0):
    """Three classes along a bent line; the last column is the first, a thousand times larger, and some noise."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3
    x = np.stack([y + 0.3 * rng.normal(size=n), (y - 1.0) ** 2 + 0.3 * rng.normal(size=n)], 1)
    x = np.column_stack([x, 1000 * (x[:, 0] + 0.2 * rng.normal(size=n))])
    return Dataset("bent", Part(x, y), None, ("low", "mid", "high"), None, ("u", "v", "w"))


BENT = three_columns()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("explained")


@pytest.fixture(scope="module")
def digits(folder):
    return trained(folder / "digits", DIGITS, epochs=25)


@pytest.fixture(scope="module")
def padded(folder):
    return trained(folder / "padded", cropped(DIGITS), epochs=8)


@pytest.fixture(scope="module")
def bent(folder):
    return trained(folder / "bent", BENT, epochs=25)


@pytest.fixture(scope="module")
def resnet(folder):
    return trained(folder / "resnet", DIGITS, method="resnet", epochs=3)


@pytest.fixture(params=["digits", "padded", "bent"])
def case(request):
    """A run with a density, and data for it."""
    dataset = {"digits": DIGITS, "padded": cropped(DIGITS), "bent": BENT}[request.param]
    return request.getfixturevalue(request.param), dataset.train.x


# --- numbers -----------------------------------------------------------------------------------------


def latent(run, raw):
    """z (D,) and the log-det of all the way from raw units, by hand."""
    pipeline = run.pipeline
    with torch.no_grad():
        v, log_det = pipeline.prepared(raw[None])
        z, log_det_flow = pipeline.model.encode(v)
    scale = pipeline.preprocess.log_scale
    return z[0].double(), float(log_det_flow.double() + log_det.double() + scale)


def test_likelihoods_posterior_and_distances_agree_with_plain_formulas(case):
    run, x = case
    mixture = run.pipeline.model.mixture
    mu, weights = mixture.mu.detach().double(), mixture.log_w.detach().double().exp().numpy()
    for raw in x[:5]:
        told = explain(run, raw)
        z, log_det = latent(run, raw)
        oracle = [float(MultivariateNormal(m, torch.eye(len(z))).log_prob(z)) + log_det for m in mu]
        assert [*told.log_likelihoods] == [*told.posterior] == [*run.class_names]
        assert_allclose([*told.log_likelihoods.values()], oracle, rtol=1e-5)
        joint = np.exp(oracle - np.max(oracle)) * weights
        assert_allclose([*told.posterior.values()], joint / joint.sum(), atol=1e-4)
        assert told.log_q_x == pytest.approx(np.log(joint.sum()) + np.max(oracle), rel=1e-5)
        distances = np.sqrt(((z.numpy() - mu.numpy()) ** 2).sum(1))
        order = np.argsort(distances)
        assert [mean.label for mean in told.nearest] == [run.class_names[k] for k in order[:2]]
        assert_allclose([mean.distance for mean in told.nearest], distances[order[:2]], rtol=1e-5)


def test_log_likelihoods_are_densities_in_raw_units(bent):
    """The log-det of the whole way from a row to z, by autograd."""
    pipeline, raw = bent.pipeline, BENT.train.x[7]
    jacobian = torch.autograd.functional.jacobian(
        lambda x: pipeline.model.encode(pipeline.prepared(x[None])[0])[0][0], torch.tensor(raw)
    )
    z, mu = latent(bent, raw)[0].numpy(), pipeline.model.mixture.mu.detach().numpy()
    oracle = [stats.multivariate_normal(m).logpdf(z) + np.linalg.slogdet(jacobian)[1] for m in mu]
    assert_allclose([*explain(bent, raw).log_likelihoods.values()], oracle, rtol=1e-9)


def test_typical_distance_is_that_of_the_validation_split(case):
    run, x = case
    told = explain(run, x[0])
    assert told.typical_distance == pytest.approx(math.sqrt(run.reference.shell * run.reference.n_dims))
    distances = [explain(run, raw).nearest[0].distance for raw in x[:40]]
    assert np.median(distances) == pytest.approx(told.typical_distance, rel=0.3)


def test_p_values_are_shares_of_calibration_inputs(case):
    run, x = case
    strange = x[0] if x.dtype == np.uint8 else 50 * x[0]
    for raw in (x[3], x[9], strange[::-1].copy()):
        told, evidence = explain(run, raw), observe(run.pipeline, raw[None])
        assert {*told.p_values} == {*run.reference.calibration}
        for name, p in told.p_values.items():
            scores = judge(run, raw[None]).scores[name]
            held = run.reference.calibration[name]
            assert p == pytest.approx((1 + sum(s >= scores[0] for s in held)) / (1 + len(held)))
        place, held = told.place, run.reference.calibration["combined"]
        assert place.score == "combined" == run.reference.headline
        assert told.p_value == told.p_values["combined"] == (1 + place.n_stranger) / (1 + place.n)
        assert place.n == len(held) == sum(place.counts)
        assert place.n_stranger == sum(s >= place.value for s in held)
        assert told.smallest_p == 1 / (1 + len(held))
        assert told.log_q_x == pytest.approx(float(evidence.log_q_x[0]), rel=1e-5)


def test_a_histogram_holds_every_score():
    rng = np.random.default_rng(0)
    scores = np.concatenate([rng.normal(size=500), [np.inf, -np.inf, 1e30]])
    edges, counts = histogram(scores)
    assert sum(counts) == len(scores)
    assert -4 < edges[0] < edges[-1] < 4
    inside = scores[(scores > edges[1]) & (scores < edges[-2])]
    assert_allclose(counts[1:-1], np.histogram(inside, edges[1:-1])[0])
    for same in (
        np.zeros(5),
        np.full(3, 1e20),
        np.full(4, -2.0),
        np.full(3, np.inf),
        np.array([1, 1 + 1e-15]),
    ):
        assert sum(histogram(same)[1]) == len(same)


def test_an_input_may_come_as_a_batch_of_one(case):
    run, x = case
    assert explain(run, x[5]) == explain(run, x[5:6])
    assert_allclose(evidence_map(run, x[5], 0, 1).values, evidence_map(run, x[5:6], 0, 1).values)


def test_what_is_not_one_input_is_refused(digits, bent):
    image, row = DIGITS.train.x[0], BENT.train.x[0]
    for run, raw in (
        (digits, DIGITS.train.x[:2]),
        (digits, image[:7]),
        (bent, BENT.train.x[:2]),
        (bent, row[:2]),
    ):
        with pytest.raises(ValueError, match=r"raw has shape .* but one input of shape .* was expected"):
            explain(run, raw)
    for raw in (image / 16, image + 10, image.astype(int) - 1):
        with pytest.raises(ValueError, match=r"this model knows the levels 0 to 16; convert the image"):
            explain(digits, raw)
    with pytest.raises(ValueError, match="NaN or infinite"):
        explain(bent, row * np.nan)
    for a, b in ((1, 1), (0, 3), (-1, 0)):
        with pytest.raises(ValueError, match="two different classes, from 0 to 2"):
            evidence_map(bent, row, a, b)
    with pytest.raises(ValueError, match="at least 1"):
        evidence_map(bent, row, 0, 1, steps=0)


def test_an_explanation_survives_json(case):
    run, x = case
    told = explain(run, x[0])
    back = json.loads(json.dumps(told.to_dict(), allow_nan=False))
    assert back == told.to_dict()
    assert {*back} == {field.name for field in dataclasses.fields(told)}
    assert back["posterior"] == told.posterior
    assert back["place"]["counts"] == [*told.place.counts]
    assert back["nearest"][1] == {"label": told.nearest[1].label, "distance": told.nearest[1].distance}
    assert back["levels"] == (17 if x.dtype == np.uint8 else None)


def test_a_model_whose_numbers_overflow_says_so(digits, tmp_path):
    broken = copy.deepcopy(digits)
    broken.pipeline.model.mixture.mu.data[0] = math.inf
    told = explain(broken, DIGITS.train.x[0])
    assert told.text.startswith("No class can be named")
    back = json.loads(json.dumps(told.to_dict(), allow_nan=False))
    assert back["log_q_x"] is None
    assert {*back["posterior"].values()} == {None}
    assert told.p_value == told.smallest_p
    assert "nan" in str(told)
    evidence = evidence_map(broken, DIGITS.train.x[0], 0, 1)
    assert math.isnan(evidence.missing)
    save_figure(explanation_figure(told, DIGITS.train.x[0], evidence), tmp_path / "broken")


def test_a_softmax_classifier_tells_what_it_has(resnet, tmp_path):
    raw = DIGITS.train.x[0]
    told = explain(resnet, raw)
    assert (told.log_likelihoods, told.log_q_x, told.nearest, told.typical_distance) == (None,) * 4
    assert {*told.p_values} == {"entropy", "max_softmax", "energy"}
    assert told.place.score == "entropy"
    with torch.no_grad():
        log_q_y = resnet.pipeline(raw[None]).log_q_y[0]
    assert_allclose([*told.posterior.values()], log_q_y.exp(), rtol=1e-5)
    assert told.text.endswith(
        "Without a density this model cannot say whether an input is like the training data."
    )
    assert "log q" not in str(told)
    assert "nearest" not in str(told)
    evidence = evidence_map(resnet, raw, 3, 8)
    assert evidence.missing < 0.01
    save_figure(explanation_figure(told, raw, evidence), tmp_path / "resnet")


# --- sentences ---------------------------------------------------------------------------------------


def place(n_stranger, n=199, score="combined"):
    return Place(score, 1.0, n, n_stranger, (0.0, 1.0), (n,))


def sentence(posterior, n_stranger, **more):
    where = place(n_stranger, **more)
    return told(posterior, where, (1 + n_stranger) / (1 + where.n)).replace("\u00a0", " ")


SURE, TORN = {"3": 0.93, "5": 0.05, "8": 0.02}, {"3": 0.46, "5": 0.52, "8": 0.02}
LOST = {"3": 0.4, "5": 0.25, "8": 0.35}
AMONG = "Of 199 familiar inputs set aside, {} as strange or stranger."
CASES = {
    "typical": (
        (SURE, 81),
        "Looks like “3” (93 %), and typical of the training data (p = 0.41).",
        "81 are",
    ),
    "strange": (
        (SURE, 1),
        "Looks like “3” (93 %), but unlike the training data (p = 0.01): do not trust it.",
        "1 is",
    ),
    "strangest": (
        (SURE, 0),
        "Looks like “3” (93 %), but unlike the training data (p = 0.005, the smallest possible): "
        "do not trust it.",
        "none is",
    ),
    "torn": (
        (TORN, 139),
        "Could be “5” (52 %) or “3” (46 %); typical of the training data (p = 0.7), but the classes "
        "are hard to tell apart here: look again.",
        "139 are",
    ),
    "torn and strange": (
        (TORN, 9),
        "Could be “5” (52 %) or “3” (46 %), but unlike the training data (p = 0.05): do not trust it.",
        "9 are",
    ),
    "lost": (
        (LOST, 10),
        "Could be “3” (40 %), “8” (35 %) or another class; typical of the training data (p = 0.055), "
        "but the classes are hard to tell apart here: look again.",
        "10 are",
    ),
}
UNDECIDED = {
    "decided": ((SURE, 81), "Looks like “3” (93 %), and no less decided than usual (p = 0.41)."),
    "torn": (
        (TORN, 81),
        "Could be “5” (52 %) or “3” (46 %); no less decided than usual (p = 0.41), but the classes are "
        "hard to tell apart here: look again.",
    ),
    "less decided": (
        (SURE, 3),
        "Looks like “3” (93 %), but less decided than usual (p = 0.02): look again.",
    ),
    "least decided": (
        (TORN, 0),
        "Could be “5” (52 %) or “3” (46 %), less decided than usual (p = 0.005, the smallest possible): "
        "do not trust it.",
    ),
}


@pytest.mark.parametrize(("given", "wanted", "stranger"), CASES.values(), ids=CASES)
def test_sentences_with_a_density(given, wanted, stranger):
    assert sentence(*given) == f"{wanted} {AMONG.format(stranger)}"


@pytest.mark.parametrize(("given", "wanted"), UNDECIDED.values(), ids=UNDECIDED)
def test_sentences_without_a_density(given, wanted):
    assert sentence(*given, score="entropy") == f"{wanted} {sentences.NO_DENSITY}"


def test_a_coarse_calibration_is_said_to_be_one():
    coarse = (
        "With only 18 inputs to compare with, p-values cannot fall below 0.053 (here p = {}): nothing can"
    )
    assert sentence(SURE, 0, n=18).startswith("Looks like “3” (93 %). " + coarse.format("0.053"))
    assert sentence(TORN, 9, n=18).startswith(
        "Could be “5” (52 %) or “3” (46 %), hard to tell apart. " + coarse.format("0.53")
    )
    assert "unlike the training data (p = 0.05, the smallest possible)" in sentence(SURE, 0, n=19)


@pytest.mark.parametrize("score", ["combined", "entropy"])
@pytest.mark.parametrize("posterior", [SURE, TORN, LOST])
def test_sentences_are_one_or_two(posterior, score):
    for n in (5, 40, 1000, 30_000):
        for n_stranger in (0, 1, n // 2, n):
            text = sentence(posterior, n_stranger, n=n, score=score)
            assert 1 <= text.count(". ") + 1 <= 2
            assert text.endswith(".")
            assert "p = 0.000" not in text.replace("p = 0.0001", "")


def test_p_values_are_rounded_honestly():
    for p, text in ((0.4123, "0.41"), (1.0, "1"), (0.9996, "0.9996"), (0.0502, "0.0502"), (0.05, "0.05")):
        assert rounded_p(p) == text
    assert [told_p(p) for p in (0.00123, 0.00014, 0.00009)] == ["p = 0.0012", "p = 0.00014", "p < 0.0001"]
    for n in range(1, 3000):  # no p-value changes sides
        p = 1 / (n + 1)
        assert (float(rounded_p(p)) <= 0.05) == (p <= 0.05)
        assert float(rounded_p(p)) > 0
        assert float(rounded_p(1 - p)) < 1


def test_shares_are_neither_nothing_nor_all():
    shares = (0.0, 0.004, 0.006, 0.5, 0.994, 0.997, 1.0)
    wanted = ["under 1", "under 1", "1", "50", "99", "over 99", "over 99"]
    assert [percent(share) for share in shares] == [f"{text}\u00a0%" for text in wanted]


def test_the_printed_block_holds_the_numbers(digits):
    told = explain(digits, DIGITS.train.x[0])
    lines = str(told).splitlines()
    assert lines[0] == told.text
    best = max(told.posterior, key=told.posterior.get)
    row = next(line for line in lines if line.startswith(f"{best} "))
    assert row.split()[-1] == f"{told.log_likelihoods[best]:.1f}"
    assert f"log q(x)       {told.log_q_x:.1f} nats" in lines
    assert f"{told.place.n_stranger} of {told.place.n} calibration inputs" in str(told)
    assert f"{told.nearest[0].label} at {told.nearest[0].distance:.2f}" in str(told)
    assert all(name in str(told) for name in told.p_values)


# --- evidence ----------------------------------------------------------------------------------------


def ratio(run, raw, a, b):
    """log q(a|x) - log q(b|x) of raw (1, ...)."""
    with torch.no_grad():
        log_q_y = run.pipeline(raw).log_q_y[0].double()
    return float(log_q_y[a] - log_q_y[b])


def mean_raw(run):
    """The mean of the training data as one input of a batch, in raw units."""
    preprocess = run.pipeline.preprocess
    if isinstance(preprocess, TablePreprocess):
        return preprocess.mean[None]
    return (preprocess.mean[:, 0, 0] * preprocess.levels).expand(1, *preprocess.image_shape)


def test_evidence_adds_up(case):
    run, x = case
    rng = np.random.default_rng(0)
    for raw in x[rng.permutation(len(x))[:12]]:
        a, b = (int(k) for k in rng.permutation(len(run.class_names))[:2])
        evidence = evidence_map(run, raw, a, b)
        difference = ratio(run, raw[None], a, b) - ratio(run, mean_raw(run), a, b)
        assert evidence.values.shape == raw.shape
        assert (evidence.a, evidence.b) == (run.class_names[a], run.class_names[b])
        assert evidence.difference == pytest.approx(difference, rel=1e-4, abs=1e-4)
        assert abs(evidence.values.sum() - difference) < 0.01 * abs(difference)
        assert evidence.missing < 0.01
        against = evidence_map(run, raw, b, a)
        assert_allclose(against.values, -evidence.values, atol=0.01 * np.abs(evidence.values).max())


def test_evidence_for_inputs_unlike_all_others_adds_up_or_says_by_how_much_not(digits, bent):
    rng = np.random.default_rng(0)
    black = np.zeros((8, 8, 1), np.uint8)
    for raw in (black, black + 16, rng.integers(0, 17, (8, 8, 1)).astype(np.uint8)):
        evidence = evidence_map(digits, raw, 3, 5)
        missed = abs(evidence.values.sum() - evidence.difference)
        assert evidence.missing == pytest.approx(missed / abs(evidence.difference))
        assert evidence.missing < 0.01
    for factor in (-10, 100, 1e4):
        assert evidence_map(bent, factor * BENT.train.x[0], 0, 2).missing < 0.01


def test_evidence_is_that_of_a_fine_path(case):
    """The same path in very small steps, in x: the chain rule by autograd, as for any path."""
    run, x = case
    pipeline, raw, n = run.pipeline, x[11], 2000
    ends = [
        pipeline.preprocess.to_units(r) + pipeline.preprocess.fixed_noise().to(pipeline.device)
        for r in (mean_raw(run), raw[None])
    ]
    shares = torch.arange(n + 1).to(ends[0]) / n
    shape = (-1, *[1] * (ends[0].ndim - 1))
    v0, v1 = (pipeline.normalised(end)[0] for end in ends)
    path = pipeline.preprocess.inverse(torch.lerp(v0, v1, shares.reshape(shape)))
    middle = ((path[1:] + path[:-1]) / 2).requires_grad_()
    log_q_y = pipeline.model.output(pipeline.normalised(middle)[0]).log_q_y
    (gradient,) = torch.autograd.grad((log_q_y[:, 1] - log_q_y[:, 2]).sum(), middle)
    added = (gradient * (path[1:] - path[:-1])).double().sum(0)
    if added.ndim == 3:
        top, left = ((full - own) // 2 for full, own in zip(added.shape[1:], raw.shape[:2], strict=True))
        added = added[:, top : top + raw.shape[0], left : left + raw.shape[1]].permute(1, 2, 0)
    evidence = evidence_map(run, raw, 1, 2)
    assert_allclose(evidence.values, added, atol=0.02 * float(added.abs().max()))


def linear_run(preprocess, n_classes=3, seed=0, columns=None):
    """A model whose log-ratios are linear in v; its weights (K, n) and the run."""
    torch.manual_seed(seed)
    model = SoftmaxClassifier(nn.Flatten(), preprocess.n_dims, n_classes)
    names = tuple("abcdef"[:n_classes])
    return model.readout.weight.detach(), Run(None, Pipeline(preprocess, model), names, None, {}, columns)


def test_evidence_of_a_linear_model_is_weight_times_deviation_for_images():
    """Colours, sides that differ, and padding: every pixel keeps its place."""
    rng = np.random.default_rng(0)
    mean, std = np.array([0.2, 0.5, 0.7]), np.array([0.1, 0.3, 0.2])
    preprocess = ImagePreprocess((3, 5, 3), 16, mean, std, multiple=4)
    weight, run = linear_run(preprocess)
    raw = rng.integers(0, 16, (3, 5, 3)).astype(np.uint8)
    evidence = evidence_map(run, raw, 2, 0)
    w = (
        (weight[2] - weight[0]).reshape(3, 4, 8).numpy()[:, 0:3, 1:6]
    )  # one row below, one column left, two right
    oracle = w.transpose(1, 2, 0) / std * (raw / 16 - mean)
    assert_allclose(evidence.values, oracle, rtol=1e-9, atol=1e-12)
    assert evidence.difference == pytest.approx(oracle.sum())
    assert evidence.missing < 1e-9


def test_evidence_of_a_linear_model_is_weight_times_deviation_for_columns():
    """Also where whitening mixes the columns: what counts are the columns themselves."""
    rng = np.random.default_rng(0)
    mean, std, mix = rng.normal(size=4), rng.uniform(1, 5, 4), rng.normal(size=(4, 4))
    for whiten in (None, mix):
        preprocess = TablePreprocess(mean, std) if whiten is None else TablePreprocess(mean, std, whiten)
        weight, run = linear_run(preprocess, columns=("p", "q", "r", "s"))
        raw = 10 * rng.normal(size=4)
        w = (weight[0] - weight[1]).numpy() @ (np.eye(4) if whiten is None else whiten) / std
        evidence = evidence_map(run, raw, 0, 1)
        assert_allclose(evidence.values, w * (raw - mean), rtol=1e-9)
        assert evidence.columns == ("p", "q", "r", "s")


def test_evidence_leaves_the_model_alone(padded):
    pipeline, raw = padded.pipeline, DIGITS.train.x[0, :7, 1:7]
    before = evidence_map(padded, raw, 0, 1)
    for parameter in pipeline.parameters():
        parameter.grad = torch.ones_like(parameter)
    pipeline.train()
    pipeline.preprocess.eval()
    modes = [module.training for module in pipeline.modules()]
    with torch.no_grad():
        again = evidence_map(padded, raw, 0, 1)
    assert [module.training for module in pipeline.modules()] == modes
    assert all((parameter.grad == 1).all() for parameter in pipeline.parameters())
    pipeline.eval()
    pipeline.requires_grad_(False)
    frozen = evidence_map(padded, raw, 0, 1)
    pipeline.requires_grad_(True)
    pipeline.zero_grad()
    assert_allclose(again.values, before.values)
    assert_allclose(frozen.values, before.values)
    explain(padded, raw)
    assert all(parameter.grad is None for parameter in pipeline.parameters())


def line(function, n=1):
    return Line(torch.zeros(1, n), torch.ones(1, n), lambda points: function(points).sum(1))


def test_steps_are_halved_where_they_are_too_long():
    """A cliff at the end of the way, a kink, and something smooth."""
    steep = [lambda t: torch.expm1(60 * t), lambda t: (t - 0.3456).relu() * 7, lambda t: (9 * t).sin()]
    for function in steep:
        values, difference, n_points = integrated_gradients(line(function), 16)
        assert difference == pytest.approx(float(function(torch.tensor(1.0)) - function(torch.tensor(0.0))))
        assert float(values.sum()) == pytest.approx(difference, rel=0.005)
        assert n_points < 1500
    many = integrated_gradients(line(lambda t: (t - 1e-3).sign() * 1e-9 + t.sin() * 100, 3), 8)
    assert_allclose(many[0], np.full((1, 3), 100 * math.sin(1)), rtol=0.005)


def test_misses_that_cancel_are_found_all_the_same():
    """Two kinks of opposite signs at the same place of their steps: the sum is right at once, not its parts."""
    knees = torch.tensor([0.34, 0.34 + 4 / 16])
    signs = torch.tensor([100.0, -100.0])
    values = integrated_gradients(line(lambda t: signs * (t - knees).relu(), 2), 16)[0]
    assert_allclose(values[0], signs * (1 - knees), rtol=0.01)


def test_there_is_an_end_to_halving():
    wild = line(lambda t: torch.sin(1e6 * t) + t * 1e-3)
    values, difference, n_points = integrated_gradients(wild, 64)
    assert n_points <= attribution.MOST_POINTS
    jump = line(lambda t: (t > 0.3).double() + 0 * t)  # no gradient tells of it
    values, difference, n_points = integrated_gradients(jump, 64)
    assert (float(values.sum()), difference) == (0.0, 1.0)
    assert n_points < 200
    flat = integrated_gradients(line(lambda t: 0 * t), 64)
    assert (float(flat[0].sum()), *flat[1:]) == (0.0, 0.0, 64)


# --- the figure --------------------------------------------------------------------------------------


def texts(figure):
    figure.draw_without_rendering()
    found = [text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text"))]
    return [text for text in found if text]


def test_the_figure_of_an_image(digits, tmp_path):
    raw = DIGITS.train.x[0]
    told, evidence = explain(digits, raw), evidence_map(digits, raw, 0, 7)
    figure = explanation_figure(told, raw, evidence)
    save_figure(figure, tmp_path / "image")
    assert {"the input", "which class is it?", "how typical is it?", "nats for 0 against 7"} <= {
        *texts(figure)
    }
    picture, shown = (
        next(a for a in figure.axes if a.get_title() == t).images[0]
        for t in ("the input", "which pixels speak for it?")
    )
    assert_allclose(picture.get_array()[..., 0], raw[..., 0] / 16)
    assert_allclose(shown.get_array(), evidence.values[..., 0])
    assert shown.norm.vmin == -shown.norm.vmax
    bars = next(a for a in figure.axes if a.get_title() == "which class is it?").patches
    assert_allclose(
        [bar.get_width() for bar in bars], sorted((100 * p for p in told.posterior.values()), reverse=True)
    )
    axis = next(a for a in figure.axes if a.get_title() == "how typical is it?")
    assert axis.lines[0].get_xdata()[0] == told.place.value


def test_the_figure_of_a_row(bent, tmp_path):
    raw = BENT.train.x[0]
    told, evidence = explain(bent, raw), evidence_map(bent, raw, 0, 1)
    figure = explanation_figure(told, raw, evidence)
    save_figure(figure, tmp_path / "row")
    assert f"w = {raw[2]:.4g}" in texts(figure)
    widths = [bar.get_width() for bar in figure.axes[0].patches]
    assert_allclose(widths, sorted(evidence.values, key=lambda value: -abs(value)))
    nameless = dataclasses.replace(evidence, columns=None)
    assert f"column 3 = {raw[2]:.4g}" in texts(explanation_figure(told, raw, nameless))
    assert len(explanation_figure(told, raw).axes) == 2


def test_a_figure_marks_inputs_far_beyond(digits):
    raw = DIGITS.train.x[0]
    told = explain(digits, raw)
    for value in (1e9, math.inf, -1e9):
        far = dataclasses.replace(told, place=dataclasses.replace(told.place, value=value))
        arrows = [text for text in texts(explanation_figure(far, raw)) if text.startswith("this input →")]
        assert len(arrows) == (value > 0)
    names = {"a $very$ long name of a class of things": 0.9, "b": 0.1}
    evidence = EvidenceMap(*names, np.zeros((8, 8, 1)), 0.0, 0.0, 64)
    odd = dataclasses.replace(told, posterior=names, text="“a $very$ long name of a class of things”")
    long = plain(next(iter(names)), 14)
    assert f"nats for {long}\nagainst b" in texts(explanation_figure(odd, raw, evidence))
