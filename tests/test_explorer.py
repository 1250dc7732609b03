"""The explorer's replies against the modules that compute them."""

import base64
import dataclasses
import io
import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.explorers import by_index, explorer_of
from helpers.files import png
from helpers.trainings import few_digits, trained, two_moons
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image
from sklearn.datasets import load_iris

from ibinn import IBINNClassifier
from ibinn.cli.explore import Explore
from ibinn.config import ALPHA
from ibinn.data.dataset import Part
from ibinn.data.known import load
from ibinn.evaluation import read_test
from ibinn.explorer import schema
from ibinn.explorer.codec import InputCodec
from ibinn.explorer.service import MAX_INPUTS, Explorer, Inputs, overlay, own_samples
from ibinn.inference.attribution import evidence_map
from ibinn.inference.explain import explain
from ibinn.inference.judge import judge
from ibinn.inference.latent import encode, on_axes, out_of_range, sample, to_units
from ibinn.inference.sentences import rank_phrase, round_inverse
from ibinn.ood.conformal import conformal_p_values, smallest_p_value
from ibinn.ood.drift import DRIFTS, drifted, usual_drifts
from ibinn.pretrained import pretrained_folder
from ibinn.run.folder import load_run


@pytest.fixture(scope="module")
def resnet(tmp_path_factory):
    folder, dataset = tmp_path_factory.mktemp("resnet") / "run", few_digits()
    run = trained(folder, dataset, method="resnet", epochs=1)
    return explorer_of(run, read_test(run, dataset), folder)


@pytest.fixture(scope="module")
def coloured(tmp_path_factory):
    """Digits in three colours."""
    folder, grey = tmp_path_factory.mktemp("coloured") / "run", few_digits()
    x = np.concatenate([grey.train.x, grey.train.x[:, ::-1], 16 - grey.train.x], axis=3)
    dataset = dataclasses.replace(grey, train=Part(x, grey.train.y))
    run = trained(folder, dataset, epochs=1)
    return explorer_of(run, read_test(run, dataset), folder)


# --- replies -----------------------------------------------------------------------------------------


def test_about(digits, moons, resnet, coloured):
    about = digits.about
    assert (about.kind, about.shape, about.levels, about.n_inputs) == ("images", [8, 8, 1], 17, 360)
    assert about.classes == [*"0123456789"]
    assert (about.map_of, about.n_calibration) == ("test", 179)
    assert [d.name for d in about.drifts] == ["inverted", "noise"]
    assert [d.name for d in coloured.about.drifts] == ["colours", "noise"]
    mu = digits.model.mixture.mu.detach()
    assert_allclose(about.means, on_axes(mu, digits.axes))
    rows = moons.about
    assert (rows.kind, [f.name for f in rows.features], rows.drifts) == ("rows", ["u", "v"], [])
    train = two_moons().train.x
    assert rows.features[0].mean == pytest.approx(train[:, 0].mean(), abs=0.1)
    inside = (moons.inputs.part.x[:, 0] >= rows.features[0].low) & (
        moons.inputs.part.x[:, 0] <= rows.features[0].high
    )
    assert inside.mean() == pytest.approx(0.95, abs=0.04)
    plain = resnet.about
    assert (plain.map_of, plain.means, plain.uses_density) == (None, [], False)


def test_the_map_is_what_the_model_says_of_the_test_split(digits):
    dataset = load("digits")
    test = read_test(digits.run, dataset, MAX_INPUTS)
    parts = [digits.map_part(start, 100) for start in range(0, 360, 100)]
    assert [len(part.points) for part in parts] == [100, 100, 100, 60]
    points = np.concatenate([part.points for part in parts])
    assert_allclose(points, on_axes(encode(digits.pipeline, test.x), digits.axes), atol=1e-4)
    output = judge(digits.run, test.x)
    assert [y for part in parts for y in part.y] == test.y.tolist()
    assert [y for part in parts for y in part.predicted] == output.log_q_y.argmax(1).tolist()
    assert_allclose([p for part in parts for p in part.p_values], output.p_values["combined"], atol=0.02)
    assert {*test.y.tolist()[:100]} == {*range(10)}  # each piece is like the whole


def test_few_of_many_inputs_are_some_of_the_test_split(digits):
    dataset = load("digits")
    whole, some = read_test(digits.run, dataset), read_test(digits.run, dataset, 50)
    assert len(some) == 50
    for x, y in zip(some.x, some.y, strict=True):
        same = (whole.x == x).all((1, 2, 3))
        assert same.any()
        assert y in whole.y[same]


@pytest.mark.parametrize("i", [0, 17, 359])
def test_a_decision_is_what_ibinn_explain_says(digits, i):
    reply, raw = digits.decision(by_index(i)), digits.inputs.part.x[i]
    assert reply.explanation.model_dump() == explain(digits.run, raw).to_dict()
    assert reply.view.p_value == reply.explanation.p_value
    assert reply.explanation.posterior[reply.view.label] == max(reply.explanation.posterior.values())
    assert reply.true_class == str(digits.inputs.part.y[i])
    assert reply.verdict == ("atypical" if reply.view.p_value <= ALPHA else "typical")
    assert_allclose(
        reply.view.point, on_axes(encode(digits.pipeline, raw[None]), digits.axes)[0], atol=1e-4
    )
    again = digits.decision(schema.Input(png=reply.view.png))
    assert again.explanation == reply.explanation
    assert again.true_class is None


def test_a_row_is_decided_like_the_same_row_of_the_test_set(moons):
    row = moons.inputs.part.x[3].tolist()
    assert moons.decision(schema.Input(row=row)).explanation == moons.decision(by_index(3)).explanation
    assert moons.decision(by_index(3)).view.row == row


def test_without_a_density_there_is_a_decision_but_no_map(resnet):
    reply = resnet.decision(by_index(0))
    assert reply.view.point is None
    assert "decide" in reply.view.rank_text
    for question in (
        lambda: resnet.map_part(0, 10),
        lambda: resnet.samples(0, 1, 1.0, 0),
        lambda: resnet.interpolation(by_index(0), by_index(1), 5),
    ):
        with pytest.raises(ValueError, match="ResNet has no latent space"):
            question()


@given(
    st.integers(2, 256), st.integers(1, 6), st.integers(1, 6), st.sampled_from([1, 3]), st.integers(0, 9)
)
def test_an_image_comes_back_from_its_png_as_it_was(digits, levels, height, width, n_channels, seed):
    raw = np.random.default_rng(seed).integers(levels, size=(height, width, n_channels), dtype=np.uint8)
    form = dataclasses.replace(digits.form, shape=raw.shape, levels=levels, pixel_max=levels - 1.0)
    codec = InputCodec(form)
    text = base64.b64encode(codec.encode_png(raw)).decode()
    assert_array_equal(codec.decode_png(text), raw)
    assert codec.upload(codec.encode_png(raw)) == schema.UploadReply(png=text, notes=[])


def test_a_photo_becomes_an_image_of_the_model(digits):
    photo = np.zeros((300, 500, 3), np.uint8)
    photo[:, 100:400] = 255
    reply = digits.codec.upload(png(photo))
    assert reply.notes == ["converted to grey", "cropped to the middle and resized to 8 × 8 pixels"]
    assert_array_equal(digits.codec.decode_png(reply.png), np.full((8, 8, 1), 16))


def test_evidence_is_blue_where_pixels_speak_for_a(digits):
    reply = digits.evidence(by_index(4), 3, 8)
    found = evidence_map(digits.run, digits.inputs.part.x[4], 3, 8)
    values = found.values.sum(-1)
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(reply.png)))).astype(int)
    strong = np.abs(values) > 0.1 * np.abs(values).max()
    assert_array_equal((pixels[..., 2] > pixels[..., 0])[strong], (values > 0)[strong])
    assert_allclose(pixels[..., 3] / 255, np.abs(values) / np.abs(values).max(), atol=0.05)
    assert reply.strongest == pytest.approx(np.abs(values).max(), rel=0.05)
    assert reply.missing <= 0.05
    assert (reply.a, reply.b) == ("3", "8")


def test_evidence_of_a_row_is_by_column(moons):
    reply = moons.evidence(by_index(4), 0, 1)
    assert sum(reply.values) == pytest.approx(reply.difference, rel=0.06)
    assert reply.png is None


def test_nothing_speaks_for_either_class():
    from ibinn.inference.attribution import EvidenceMap

    assert_array_equal(overlay(EvidenceMap("a", "b", np.zeros((2, 2, 1)), 0.0, 0.0, 1))[..., 3], 0)


@pytest.mark.parametrize(
    ("which", "kind"), [("digits", "inverted"), ("digits", "noise"), ("coloured", "colours")]
)
def test_a_drift_begins_with_the_image_and_ends_elsewhere(request, which, kind):
    explorer = request.getfixturevalue(which)
    series = explorer.drift(by_index(2), kind, 9)
    images = [explorer.codec.decode_png(view.png) for view in series.inputs]
    assert_array_equal(images[0], explorer.inputs.part.x[2])
    assert (series.amounts[0], series.amounts[-1]) == (0, DRIFTS[kind].most)
    assert_array_equal(images, drifted(explorer.inputs.part.x[2], 17, kind, 9))
    p = judge(explorer.run, np.stack(images)).p_values["combined"]
    assert_allclose([view.p_value for view in series.inputs], p)
    if kind == "inverted":
        assert_array_equal(images[-1], 16 - explorer.inputs.part.x[2])
        assert series.inputs[-1].p_value == smallest_p_value(179)
    if kind == "noise":
        steps = [np.abs(np.subtract(image, images[0], dtype=float)).mean() for image in images]
        assert steps == sorted(steps)
        assert steps[-1] > 2


def test_every_kind_of_image_has_its_drifts():
    assert {name for n in (1, 3) for name in usual_drifts(n)} == {*DRIFTS}


def test_the_way_between_two_inputs(digits, moons):
    series = digits.interpolation(by_index(0), by_index(1), 5)
    images = [digits.codec.decode_png(view.png) for view in series.inputs]
    assert_array_equal(images[0], digits.inputs.part.x[0])
    assert_array_equal(images[-1], digits.inputs.part.x[1])
    rows = np.array([view.row for view in moons.interpolation(by_index(0), by_index(1), 5).inputs])
    z = encode(moons.pipeline, rows)
    assert_allclose((z[0] + z[-1]) / 2, z[2], atol=1e-6)


def test_samples_lie_about_the_mean_of_their_class(digits, moons):
    mean = moons.pipeline.reference("drawn").means[1]
    rows = np.array([view.row for view in moons.samples(1, 64, 0.0, 0).inputs])
    assert_allclose(encode(moons.pipeline, rows), mean.expand(64, 2), atol=1e-6)
    spread = [np.array([s.row for s in moons.samples(1, 64, t, 0).inputs]) for t in (0.5, 1.0)]
    radius = [(encode(moons.pipeline, rows) - mean).norm(dim=1) for rows in spread]
    assert_allclose(radius[1].detach(), 2 * radius[0].detach(), rtol=1e-6)
    assert digits.samples(3, 2, 1.0, 5) == digits.samples(3, 2, 1.0, 5) != digits.samples(3, 2, 1.0, 6)


def test_quality_shows_what_evaluate_wrote(digits, moons):
    found = digits.quality()
    results = json.loads((digits.folder / "results.json").read_text())
    assert found.missing is None
    assert f"{100 - results['error']:.1f}" in found.headline
    assert [b.share for b in found.bins] == [b["share"] for b in results["calibration"]["bins"]]
    assert [s.name for s in found.sets] == ["test", "inverted", "noise"]
    for bars in found.sets:
        assert sum(bars.shares) == pytest.approx(100)
    assert found.sets[1].flagged == results["ood"]["inverted"]["detected_at_alpha"]["combined"]
    calibration = digits.run.reference.calibration["combined"]
    scores = (
        np.random.default_rng(0).choice(calibration, 500) + np.random.default_rng(1).normal(size=500) / 10
    )
    assert_array_equal(scores > found.threshold, conformal_p_values(scores, calibration) <= ALPHA)
    assert re.search("ibinn evaluate", moons.quality().missing)


def test_two_classes_and_rows_that_overflow(moons):
    with pytest.raises(ValueError, match="NaN or infinite"):
        moons.decision(schema.Input(row=[1e308, -1e308]))
    assert moons.decision(schema.Input(row=[1e9, 1e9])).verdict == "atypical"


def test_a_model_without_its_data_shows_its_own_samples(tmp_path, capsys):
    x, y = load_iris(return_X_y=True)
    IBINNClassifier(epochs=2, random_state=0).fit(x, y).save(tmp_path / "model")
    explorer = Explore().open_explorer(tmp_path / "model")
    about = explorer.about
    assert about.map_of == "samples"
    assert "drawn from the model" in about.notes[0]
    assert "drawn from the model" in capsys.readouterr().err
    assert explorer.decision(by_index(0)).true_class is None
    assert len(explorer.map_part(0, 500).points) == 500
    with pytest.raises(ValueError, match="--data"):
        Explore(data="elsewhere.csv").open_explorer(tmp_path / "model")


def test_samples_that_leave_the_range_of_pixels_are_not_on_the_map():
    """Away from the data the inverse of the CIFAR-10 model grows without bound."""
    run = load_run(pretrained_folder("cifar10"))
    pipeline = run.pipeline
    drawn = sample(pipeline, 100, torch.Generator().manual_seed(0), batch_size=100)
    part = own_samples(run, n=100).part
    first = pipeline.reference("drawn").sample(torch.arange(100) % 10)
    assert out_of_range(to_units(pipeline, first), is_images=True).float().mean() > 0.1
    assert 90 < len(part) == (~drawn.is_out_of_range).sum()
    assert_array_equal(part.x, drawn.raw[~drawn.is_out_of_range])
    assert Explorer(run, pretrained_folder("cifar10"), Inputs(part, "samples")).about.n_inputs == len(part)
    reference = pipeline.reference("drawn")
    reference.means.fill_(1e9)  # nothing can be drawn from it
    assert len((none := own_samples(run, n=20)).part) == 0
    assert Explorer(run, pretrained_folder("cifar10"), none).about.n_inputs == 0


def test_a_resnet_without_its_data_has_no_inputs(resnet, capsys):
    assert len(own_samples(resnet.run).part) == 0
    explorer = Explore(device="cpu").open_explorer(resnet.folder)  # 400 digits are not the known set
    assert "no points" in capsys.readouterr().err
    with pytest.raises(ValueError, match="there are none"):
        explorer.decision(by_index(0))


# --- words -------------------------------------------------------------------------------------------


@given(st.integers(20, 100_000), st.data())
def test_ranks_in_words_are_near_the_p_value(n, data):
    rank = data.draw(st.integers(1, n))
    p = (1 + rank) / (n + 1)
    found = re.match(r"([\d,]+) in ([\d,]+) ", rank_phrase(p, n, "images", True))
    a, b = (int(text.replace(",", "")) for text in found.groups())
    assert a / b == pytest.approx(p, rel=0.16)
    assert (a / b <= ALPHA) == (p <= ALPHA)


@pytest.mark.parametrize(
    ("p", "n", "things", "uses_density", "expected"),
    [
        (0.002, 10_000, "images", True, "1 in 500 "),
        (0.41, 999, "rows", True, "41 in 100 "),
        (0.001, 999, "images", True, "none of 999 "),
        (0.05, 999, "images", False, "1 in 20 "),
        (0.5, 9, "rows", True, "4 of 9 "),
    ],
)
def test_ranks_in_words(p, n, things, uses_density, expected):
    sentence = rank_phrase(p, n, things, uses_density)
    assert sentence.startswith(expected)
    assert things in sentence
    assert ("decide" in sentence) != uses_density


def test_round_numbers_stay_on_their_side_of_alpha():
    assert [round_inverse(1 / v) for v in (1.0, 497.0, 99.0, 12_345.0)] == [1, 500, 100, 12_000]
    assert [round_inverse(p) for p in (0.05, 0.0501, 0.0556)] == [20, 18, 18]


def test_too_few_calibration_inputs_are_noted_beside_the_verdict(moons):
    run, reference = moons.run, moons.run.reference
    for n, can_flag in ((18, False), (19, True)):
        few = {name: values[:n] for name, values in reference.calibration.items()}
        few_reference = replace(
            reference, calibration=few, calibration_class=reference.calibration_class[:n]
        )
        explorer = Explorer(replace(run, reference=few_reference), moons.folder, moons.inputs)
        assert explorer.about.can_flag == can_flag
        strange = explorer.decision(schema.Input(row=[1e9, 1e9]))
        assert strange.verdict == ("atypical" if can_flag else "typical")
