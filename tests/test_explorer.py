"""The explorer's answers against the modules that they come from, and its server against bad requests."""

import asyncio
import base64
import dataclasses
import io
import json
import pickle
import re
import shutil
import struct
import threading
import warnings
import zlib
from types import SimpleNamespace

import numpy as np
import pytest
import schemathesis
from files import png
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance
from sklearn.datasets import load_iris
from starlette.testclient import TestClient
from trainings import few_digits, trained, two_moons

from ibinn import IBINNClassifier
from ibinn.cli.explore import Explore, names_of, opened, shown
from ibinn.data.dataset import Part
from ibinn.data.inputs import InputForm
from ibinn.data.sources import load
from ibinn.evaluation import ALPHA, judge, read_test
from ibinn.explanation import evidence_map, explain
from ibinn.exploration import DRIFTS, drifted, encoded, on_axes, projected, usual_drifts
from ibinn.explorer import guard, schema
from ibinn.explorer.answers import MOST_INPUTS, Explorer, Inputs, overlay, own_samples, plain_text
from ibinn.explorer.guard import Guard
from ibinn.explorer.server import listen, make_app, room_for
from ibinn.explorer.words import chance, in_so_many, verdict
from ibinn.metrics.conformal import conformal_p_values, smallest_p_value
from ibinn.saving import Saved, form_of

JSON = {"content-type": "application/json"}
HOME = "http://127.0.0.1:8765"


def explorer_of(run, part, folder):
    saved = Saved(run, form_of(run), np.array(run.class_names), {})
    return Explorer(saved, folder, Inputs(part, "test"))


@pytest.fixture(scope="module")
def digits(digits_folder):
    return opened(digits_folder, Explore(digits_folder, device="cpu"))


@pytest.fixture(scope="module")
def moons(tmp_path_factory):
    folder, dataset = tmp_path_factory.mktemp("moons") / "run", two_moons()
    run = trained(folder, dataset, epochs=5)
    return explorer_of(run, read_test(run, dataset), folder)


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


def client(explorer, **headers):
    return TestClient(make_app(explorer), base_url=HOME, headers=headers)


@pytest.fixture(scope="module")
def asked(digits):
    return client(digits)


def by_index(i):
    return schema.Input(index=i)


# --- answers -----------------------------------------------------------------------------------------


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
    assert rows.features[0].middle == pytest.approx(train[:, 0].mean(), abs=0.1)
    inside = (moons.inputs.part.x[:, 0] >= rows.features[0].low) & (
        moons.inputs.part.x[:, 0] <= rows.features[0].high
    )
    assert inside.mean() == pytest.approx(0.95, abs=0.04)
    plain = resnet.about
    assert (plain.map_of, plain.means, plain.has_density) == (None, [], False)


def test_the_map_is_what_the_model_says_of_the_test_split(digits):
    dataset = load("digits")
    test = read_test(digits.run, dataset, MOST_INPUTS)
    parts = [digits.map_part(start, 100) for start in range(0, 360, 100)]
    assert [len(part.points) for part in parts] == [100, 100, 100, 60]
    points = np.concatenate([part.points for part in parts])
    assert_allclose(points, projected(digits.pipeline, test.x, digits.axes), atol=1e-4)
    seen = judge(digits.run, test.x)
    assert [y for part in parts for y in part.y] == test.y.tolist()
    assert [y for part in parts for y in part.called] == seen.evidence.log_q_y.argmax(1).tolist()
    assert_allclose([p for part in parts for p in part.p], seen.p["combined"], atol=0.02)
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
    answer, raw = digits.decision(by_index(i)), digits.inputs.part.x[i]
    assert answer.explanation == explain(digits.run, raw).to_dict()
    assert answer.shown.p == answer.explanation["p_value"]
    assert answer.explanation["posterior"][answer.shown.label] == max(
        answer.explanation["posterior"].values()
    )
    assert answer.true_class == str(digits.inputs.part.y[i])
    assert answer.verdict == ("unusual" if answer.shown.p <= ALPHA else "ordinary")
    assert_allclose(
        answer.shown.point, on_axes(encoded(digits.pipeline, raw[None]), digits.axes)[0], atol=1e-4
    )
    again = digits.decision(schema.Input(png=answer.shown.png))
    assert again.explanation == answer.explanation
    assert again.true_class is None


def test_a_row_is_decided_like_the_same_row_of_the_test_set(moons):
    row = moons.inputs.part.x[3].tolist()
    assert moons.decision(schema.Input(row=row)).explanation == moons.decision(by_index(3)).explanation
    assert moons.decision(by_index(3)).shown.row == row


def test_without_a_density_there_is_a_decision_but_no_map(resnet):
    answer = resnet.decision(by_index(0))
    assert answer.shown.point is None
    assert "decide" in answer.shown.chance
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
    like = object.__new__(Explorer)
    like.form = form
    text = base64.b64encode(like.png(raw)).decode()
    assert_array_equal(like.from_png(text), raw)
    assert like.upload(like.png(raw)) == schema.Upload(png=text, notes=[])


def test_a_photo_becomes_an_image_of_the_model(digits):
    photo = np.zeros((300, 500, 3), np.uint8)
    photo[:, 100:400] = 255
    answer = digits.upload(png(photo))
    assert answer.notes == ["turned into grey", "cropped to the middle and resized to 8 × 8 pixels"]
    assert_array_equal(digits.from_png(answer.png), np.full((8, 8, 1), 16))


def test_evidence_is_blue_where_pixels_speak_for_a(digits):
    answer = digits.evidence(by_index(4), 3, 8)
    found = evidence_map(digits.run, digits.inputs.part.x[4], 3, 8)
    values = found.values.sum(-1)
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(answer.png)))).astype(int)
    strong = np.abs(values) > 0.1 * np.abs(values).max()
    assert_array_equal((pixels[..., 2] > pixels[..., 0])[strong], (values > 0)[strong])
    assert_allclose(pixels[..., 3] / 255, np.abs(values) / np.abs(values).max(), atol=0.05)
    assert answer.strongest == pytest.approx(np.abs(values).max(), rel=0.05)
    assert answer.missing <= 0.05
    assert (answer.a, answer.b) == ("3", "8")


def test_evidence_of_a_row_is_by_column(moons):
    answer = moons.evidence(by_index(4), 0, 1)
    assert sum(answer.values) == pytest.approx(answer.difference, rel=0.06)
    assert answer.png is None


def test_nothing_speaks_for_either_class():
    from ibinn.explanation import EvidenceMap

    assert_array_equal(overlay(EvidenceMap("a", "b", np.zeros((2, 2, 1)), 0.0, 0.0, 1))[..., 3], 0)


@pytest.mark.parametrize(
    ("which", "kind"), [("digits", "inverted"), ("digits", "noise"), ("coloured", "colours")]
)
def test_a_drift_begins_with_the_image_and_ends_elsewhere(request, which, kind):
    explorer = request.getfixturevalue(which)
    way = explorer.drift(by_index(2), kind, 9)
    images = [explorer.from_png(shown.png) for shown in way.inputs]
    assert_array_equal(images[0], explorer.inputs.part.x[2])
    assert (way.amounts[0], way.amounts[-1]) == (0, DRIFTS[kind].most)
    assert_array_equal(images, drifted(explorer.inputs.part.x[2], 17, kind, 9))
    p = judge(explorer.run, np.stack(images)).p["combined"]
    assert_allclose([shown.p for shown in way.inputs], p)
    if kind == "inverted":
        assert_array_equal(images[-1], 16 - explorer.inputs.part.x[2])
        assert way.inputs[-1].p == smallest_p_value(179)
    if kind == "noise":
        steps = [np.abs(np.subtract(image, images[0], dtype=float)).mean() for image in images]
        assert steps == sorted(steps)
        assert steps[-1] > 2


def test_every_kind_of_image_has_its_drifts():
    assert {name for n in (1, 3) for name in usual_drifts(n)} == {*DRIFTS}


def test_the_way_between_two_inputs(digits, moons):
    way = digits.interpolation(by_index(0), by_index(1), 5)
    images = [digits.from_png(shown.png) for shown in way.inputs]
    assert_array_equal(images[0], digits.inputs.part.x[0])
    assert_array_equal(images[-1], digits.inputs.part.x[1])
    rows = np.array([shown.row for shown in moons.interpolation(by_index(0), by_index(1), 5).inputs])
    z = encoded(moons.pipeline, rows)
    assert_allclose((z[0] + z[-1]) / 2, z[2], atol=1e-6)


def test_samples_lie_about_the_mean_of_their_class(digits, moons):
    rows = np.array([shown.row for shown in moons.samples(1, 64, 0.0, 0).inputs])
    assert_allclose(
        encoded(moons.pipeline, rows), moons.model.mixture.mu[1:].detach().expand(64, 2), atol=1e-6
    )
    spread = [np.array([s.row for s in moons.samples(1, 64, t, 0).inputs]) for t in (0.5, 1.0)]
    radius = [(encoded(moons.pipeline, rows) - moons.model.mixture.mu[1]).norm(dim=1) for rows in spread]
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
    assert moons.decision(schema.Input(row=[1e9, 1e9])).verdict == "unusual"


def test_a_model_without_its_data_shows_its_own_samples(tmp_path, capsys):
    x, y = load_iris(return_X_y=True)
    IBINNClassifier(epochs=2, random_state=0).fit(x, y).save(tmp_path / "model")
    explorer = opened(tmp_path / "model", Explore(tmp_path / "model"))
    about = explorer.about
    assert about.map_of == "samples"
    assert "drawn from the model" in about.notes[0]
    assert "drawn from the model" in capsys.readouterr().err
    assert explorer.decision(by_index(0)).true_class is None
    assert len(explorer.map_part(0, 500).points) == 500
    with pytest.raises(ValueError, match="leave --data out"):
        opened(tmp_path / "model", Explore(tmp_path / "model", data="elsewhere.csv"))


def test_a_resnet_without_its_data_has_no_inputs(resnet, capsys):
    assert len(own_samples(resnet.saved).part) == 0
    explorer = opened(
        resnet.folder, Explore(resnet.folder, device="cpu")
    )  # 400 digits are not the known set
    assert "so there is none to show" in capsys.readouterr().err
    with pytest.raises(ValueError, match="there are none"):
        explorer.decision(by_index(0))


# --- words -------------------------------------------------------------------------------------------


@given(st.integers(20, 100_000), st.data())
def test_chances_in_words_are_near_the_p_value(n, data):
    rank = data.draw(st.integers(1, n))
    p = (1 + rank) / (n + 1)
    told = chance(p, n, ALPHA, "images", True)
    found = re.match(r"([\d,]+) in ([\d,]+) ordinary images looks? this unusual", told)
    a, b = (int(text.replace(",", "")) for text in found.groups())
    assert a / b == pytest.approx(p, rel=0.16)
    assert (a / b <= ALPHA) == (p <= ALPHA)


def test_chances_in_words():
    assert chance(0.002, 10_000, ALPHA, "images", True) == "1 in 500 ordinary images looks this unusual"
    assert chance(0.41, 999, ALPHA, "rows", True) == "41 in 100 ordinary rows look this unusual or more so"
    assert chance(0.001, 999, ALPHA, "images", True) == "none of 999 ordinary images looks this unusual"
    assert chance(0.05, 999, ALPHA, "images", False) == "1 in 20 ordinary images is this hard to decide"
    assert chance(0.5, 9, ALPHA, "rows", True) == "4 of 9 ordinary rows look this unusual or more so"
    assert [in_so_many(1 / v, ALPHA) for v in (1.0, 497.0, 99.0, 12_345.0)] == [1, 500, 100, 12_000]
    assert [in_so_many(p, ALPHA) for p in (0.05, 0.0501, 0.0556)] == [20, 18, 18]


def test_few_calibration_inputs_give_no_verdict():
    assert [verdict(0.06, 18, 0.05), verdict(0.05, 19, 0.05), verdict(0.06, 19, 0.05)] == [
        "unknown",
        "unusual",
        "ordinary",
    ]


# --- the server --------------------------------------------------------------------------------------


def huge_png(width, height):
    """A valid PNG of one colour, whose pixels nobody has room for."""
    rows = zlib.compress(b"\0" * (height * (width // 8 + 1)), 1) if height * width < 2e9 else b""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def icon():
    """A good image of a kind that nobody needs here."""
    file = io.BytesIO()
    Image.new("RGB", (16, 16)).save(file, "ICO", sizes=[(16, 16)])
    return file.getvalue()


SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
GOOD = png(np.zeros((8, 8), np.uint8))
UPLOADS = {
    "text": (b"not an image", 422, "cannot be read as an image"),
    "nothing": (b"", 422, "empty"),
    "50 MB": (b"\0" * 50_000_000, 413, "20 MB"),
    "a bomb": (huge_png(30_000, 30_000), 422, "pixels"),
    "truncated": (GOOD[:40], 422, "cannot be read"),
    "svg": (SVG, 422, "cannot be read"),
    "pickle": (pickle.dumps({"a": 1}), 422, "cannot be read"),
    "icon": (icon(), 422, "of no known format"),
    "eps": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n", 422, "cannot be read"),
}


def is_sentence(answer, status, words):
    assert answer.status_code == status, answer.text
    detail = answer.json()["detail"]
    assert "\n" not in detail
    assert words in detail


@pytest.mark.parametrize("name", UPLOADS)
def test_bad_uploads_get_a_sentence(asked, name):
    content, status, words = UPLOADS[name]
    is_sentence(asked.post("/api/upload", content=content), status, words)


ROW, PICTURE = {"row": [0.0, 1.0]}, {"png": base64.b64encode(GOOD).decode()}
BAD = {
    "no input": ("decision", {}, 422, "input"),
    "empty input": ("decision", {"input": {}}, 422, "give one"),
    "two inputs": ("decision", {"input": {"index": 1, "row": [1.0]}}, 422, "give one"),
    "unknown key": ("decision", {"input": {"index": 1}, "x": 1}, 422, "x: "),
    "index too high": ("decision", {"input": {"index": 360}}, 404, "the last is 359"),
    "index negative": ("decision", {"input": {"index": -1}}, 422, "greater"),
    "index huge": ("decision", {"input": {"index": 10**30}}, 422, "index"),
    "a row for images": ("decision", {"input": ROW}, 422, "images"),
    "no base64": ("decision", {"input": {"png": "päng!"}}, 422, "base64"),
    "base64 of text": ("decision", {"input": {"png": "aGFsbG8="}}, 422, "cannot be read"),
    "wrong size": (
        "decision",
        {"input": {"png": base64.b64encode(png(np.zeros((9, 8), np.uint8))).decode()}},
        422,
        "8 x 9",
    ),
    "wrong colours": (
        "decision",
        {"input": {"png": base64.b64encode(png(np.zeros((8, 8, 3), np.uint8))).decode()}},
        422,
        "3 channel",
    ),
    "unknown class": ("evidence", {"input": PICTURE, "a": 3, "b": 10}, 422, "from 0 to 9"),
    "the same class": ("evidence", {"input": PICTURE, "a": 3, "b": 3}, 422, "two different"),
    "unknown drift": ("drift", {"input": PICTURE, "kind": "../etc"}, 422, "inverted, noise"),
    "too many steps": ("drift", {"input": PICTURE, "kind": "noise", "steps": 10**6}, 422, "steps"),
    "one step": ("interpolation", {"start": PICTURE, "end": PICTURE, "steps": 1}, 422, "steps"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_questions_get_a_sentence(asked, name):
    path, body, status, words = BAD[name]
    is_sentence(asked.post(f"/api/{path}", json=body), status, words)


def test_bad_rows_get_a_sentence(moons):
    ask = client(moons)
    for text, words in (("NaN", "finite"), ("Infinity", "finite"), ("1e999", "finite"), ('"a"', "number")):
        body = f'{{"input": {{"row": [0, {text}]}}}}'
        is_sentence(ask.post("/api/decision", content=body, headers=JSON), 422, words)
    is_sentence(ask.post("/api/decision", content=body), 422, "application/json")
    is_sentence(ask.post("/api/decision", json={"input": {"row": [1.0] * 3}}), 422, "trained on 2")
    is_sentence(ask.post("/api/decision", json={"input": PICTURE}), 422, "not images")
    is_sentence(ask.post("/api/upload", content=GOOD), 422, "not images")
    is_sentence(ask.get("/api/inputs/0.png"), 404, "not images")
    is_sentence(ask.post("/api/decision", json={"input": {"row": [0.0] * 200_000}}), 413, "smaller")


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/api/samples?label=10", 404, "the last is 9"),
        ("/api/samples?label=1&n=1000000", 422, "n: "),
        ("/api/samples?label=1&temperature=nan", 422, "temperature"),
        ("/api/samples?label=1&temperature=-1", 422, "temperature"),
        ("/api/samples?label=1&seed=99999999999999999999999", 422, "seed"),
        ("/api/map?start=360", 404, "360 inputs"),
        ("/api/map?count=100000", 422, "count"),
        ("/api/inputs/360.png", 404, "the last is 359"),
        ("/api/inputs/-1.png", 422, "index"),
        ("/api/inputs/x.png", 422, "index"),
        ("/api/nothing", 404, "Not Found"),
        ("/static/nothing.js", 404, "Not Found"),
        ("/static/../server.py", 404, "Not Found"),
        ("/static/..%2fserver.py", 404, "Not Found"),
        ("/static/%2e%2e/%2e%2e/__init__.py", 404, "Not Found"),
        ("/api/inputs/..%2f..%2fetc%2fpasswd.png", 404, "Not Found"),
        ("//etc/passwd", 404, "Not Found"),
    ],
)
def test_bad_paths_get_a_sentence(asked, path, status, words):
    is_sentence(asked.get(path), status, words)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[" * 100_000, b"\xff\xfe", b"null", b"[]", b'{"input": 1' + b"0" * 5000 + b"}"]
)
def test_bodies_that_are_no_json_get_a_sentence(asked, content):
    answer = asked.post("/api/decision", content=content, headers=JSON)
    assert 400 <= answer.status_code < 500
    assert answer.json()["detail"]


def test_a_request_longer_than_its_kind_allows(asked, digits):
    for size in (200_000, 5_000_000):
        body = {"input": {"png": "A" * size}}
        is_sentence(asked.post("/api/decision", json=body), 413, "send something smaller")
    many = {str(i): 0 for i in range(9000)}  # of which each is a mistake
    is_sentence(asked.post("/api/decision", json=many), 422, "input")
    long = asked.post("/api/decision", json={"input": {"index": 1}, "x" * 50_000: 1})
    is_sentence(long, 422, "xxx")
    assert len(long.text) < 1000
    room = room_for(digits.form)
    assert room > 2 * len(digits.decision(by_index(0)).shown.png)
    large = dataclasses.replace(digits.form, shape=(300, 300, 3))
    noise = np.random.default_rng(0).integers(256, size=(300, 300, 3), dtype=np.uint8)
    assert room_for(large) > 2 * len(base64.b64encode(png(noise)))


def test_a_body_without_a_length(asked):
    def parts(n):
        for _ in range(n):
            yield b" " * 100_000

    is_sentence(asked.post("/api/upload", content=parts(3)), 422, "cannot be read")
    is_sentence(asked.post("/api/upload", content=parts(210)), 413, "20 MB")


def test_a_body_that_does_not_come(digits, monkeypatch):
    monkeypatch.setattr(guard, "PATIENCE", 0.05)
    told = []

    async def never():
        await asyncio.sleep(5)

    async def send(message):
        told.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/api/upload",
        "headers": [(b"host", b"127.0.0.1"), (b"content-length", b"100")],
    }
    asyncio.run(make_app(digits)(scope, never, send))
    assert told[0]["status"] == 408
    assert "took more than" in json.loads(told[1]["body"])["detail"]


def test_only_four_uploads_at_once(digits, monkeypatch):
    app, told, release = make_app(digits), [], threading.Event()
    monkeypatch.setattr(
        digits, "upload", lambda content: release.wait(20) and schema.Upload(png="", notes=[])
    )

    async def one(i):
        parts = iter([{"type": "http.request", "body": b"x"}])
        scope = {"type": "http", "method": "POST", "path": "/api/upload", "query_string": b""}
        scope |= {"headers": [(b"host", b"127.0.0.1")]}

        async def receive():
            part = next(parts, None)
            return part if part is not None else await asyncio.Event().wait()

        async def send(message):
            if message["type"] == "http.response.start":
                told.append(message["status"])
            if len(told) == 3:  # those who were sent away
                release.set()

        await app(scope, receive, send)

    async def all_of_them():
        await asyncio.wait_for(asyncio.gather(*(one(i) for i in range(7))), 20)

    asyncio.run(all_of_them())
    assert told == [503, 503, 503, 200, 200, 200, 200]


def test_every_answer_has_the_headers_of_a_careful_server(asked):
    for answer in (
        asked.get("/"),
        asked.get("/api/about"),
        asked.get("/no"),
        asked.get("/api/inputs/0.png"),
    ):
        policy = dict(
            part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";")
        )
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == "'none'"
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "server" not in answer.headers
    assert asked.get("/api/about").headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "127.0.0.1:8765"}, 200),
        ({"host": "localhost:9000"}, 200),
        ({"host": "LOCALHOST"}, 200),
        ({"host": "[::1]:8765"}, 200),
        ({"host": "192.168.1.5:8765"}, 200),
        ({"host": "evil.example"}, 403),
        ({"host": "evil.example:8765"}, 403),
        ({"host": "127.0.0.1.evil.example"}, 403),
        ({"host": "localhost.evil.example"}, 403),
        ({"host": ""}, 403),
        ({"host": "127.0.0.1:8765", "origin": "http://127.0.0.1:8765"}, 200),
        ({"host": "127.0.0.1:8765", "origin": "http://evil.example"}, 403),
        ({"host": "127.0.0.1:8765", "origin": "http://127.0.0.1:9999"}, 403),
        ({"host": "127.0.0.1:8765", "origin": "null"}, 403),
        ({"host": "127.0.0.1:8765", "origin": ""}, 403),
        ({"host": "127.0.0.1:8765", "sec-fetch-site": "same-origin"}, 200),
        ({"host": "127.0.0.1:8765", "sec-fetch-site": "none"}, 200),
        ({"host": "127.0.0.1:8765", "sec-fetch-site": "cross-site"}, 403),
        ({"host": "127.0.0.1:8765", "sec-fetch-site": "same-site"}, 403),
    ],
)
def test_only_pages_of_this_server_may_ask(asked, headers, status):
    answer = asked.get("/api/about", headers=headers)
    assert answer.status_code == status
    if status == 403:
        assert "ibinn explore" in answer.json()["detail"]


def test_a_link_from_elsewhere_opens_the_page(asked):
    assert asked.get("/", headers={"sec-fetch-site": "cross-site"}).status_code == 200


def test_names_under_which_a_machine_may_be_asked():
    assert names_of("127.0.0.1") == frozenset()
    app = Guard(None, names_of("box.example"), 0)
    assert app.knows("BOX.example:80")
    assert not app.knows("other.example")
    assert [shown(host) for host in ("0.0.0.0", "::", "::1", "box")] == [
        "127.0.0.1",
        "[::1]",
        "[::1]",
        "box",
    ]


def test_a_taken_port_is_a_mistake_only_if_it_was_asked_for():
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(ValueError, match=f"port {port}.*or --port"):
            listen("127.0.0.1", port)
    with pytest.raises(ValueError, match="another --host or --port"):
        listen("127.0.0.1", 99_999)
    with pytest.raises(ValueError, match="--host is empty"):
        listen("", None)
    with listen("127.0.0.1", None) as one, listen("127.0.0.1", None) as other:
        assert one.getsockname()[1] != other.getsockname()[1]


def test_nothing_is_unpickled(digits_folder, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    ask = client(opened(digits_folder, Explore(digits_folder, device="cpu")))
    assert ask.get("/api/quality").json()["missing"] is None
    assert ask.post("/api/decision", json={"input": {"index": 0}}).status_code == 200


def test_the_page_is_whole_and_names_no_other_host(asked):
    page = asked.get("/").text
    names = set(re.findall(r'(?:src|href)="(static/[^"]+)"', page))
    assert len(names) == 3
    seen = set()
    while names - seen:
        name = (names - seen).pop()
        seen.add(name)
        answer = asked.get(f"/{name}")
        assert answer.status_code == 200, name
        names |= {f"static/{other}" for other in re.findall(r'from "\./([^"]+)"', answer.text)}
        text = answer.text.replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//[a-z]+\.", text), name
        assert ".innerHTML" not in text
        assert "eval(" not in text
    assert not re.search(r"https?://|<style|style=| on[a-z]+=", page)
    assert {"static/app.js", "static/map.js", "static/icon.svg"} <= seen


def test_the_colours_are_those_of_the_figures(asked):
    from ibinn.report.style import COLOURS, MARKERS, MOST_COLOURED

    text = asked.get("/static/colours.js").text
    assert tuple(json.loads(re.search(r"COLOURS = (\[.*\])", text)[1])) == COLOURS
    assert len(json.loads(re.search(r"MARKS = (\[.*\])", text)[1])) == len(MARKERS)
    assert f"MOST_COLOURED = {MOST_COLOURED}" in text


def progressive(n_scans, size=(16, 16)):
    """A JPEG whose last scan comes again and again."""
    file = io.BytesIO()
    Image.new("L", size).save(file, "JPEG", progressive=True)
    content = file.getvalue()
    last = content.rindex(b"\xff\xda")
    return content[:last] + content[last:-2] * n_scans + content[-2:]


def test_a_jpeg_of_many_scans_is_refused(asked):
    assert asked.post("/api/upload", content=progressive(1)).status_code == 200
    is_sentence(asked.post("/api/upload", content=progressive(500)), 422, "scans")


def test_names_that_json_cannot_hold(digits_folder, tmp_path, digits):
    odd = tmp_path / "r\udce9n"
    shutil.copytree(digits_folder, odd)
    run = dataclasses.replace(digits.run, class_names=("\udce9", "\udce8", *"23456789"))
    explorer = Explorer(digits.saved._replace(run=run), odd, digits.inputs)
    ask = client(explorer)
    about = ask.get("/api/about").json()
    assert about["name"] == "r\\udce9n"
    assert about["classes"][:2] == ["\\udce9", "\\udce8"]
    assert (
        ask.post("/api/decision", json={"input": {"index": 0}}).json()["shown"]["label"] in about["classes"]
    )
    assert plain_text("Größe") == "Größe"


DAMAGES = {
    "no bins": {"calibration": {}},
    "no error": {"error": None},
    "bins of numbers": {"calibration": {"bins": [1]}},
    "bins of another version": {"calibration": {"bins": [{"low": 0, "high": 1, "n": 3}]}},
}


@pytest.mark.parametrize("name", DAMAGES)
def test_an_evaluation_of_another_version_is_told_of(digits, tmp_path, name):
    results = json.loads((digits.folder / "results.json").read_text()) | DAMAGES[name]
    (tmp_path / "results.json").write_text(json.dumps(results))
    shutil.copy(digits.folder / "evaluation.npz", tmp_path)
    answer = client(Explorer(digits.saved, tmp_path, digits.inputs)).get("/api/quality")
    assert answer.status_code == 200
    assert "ibinn evaluate" in answer.json()["missing"]


@given(st.data())
def test_damaged_scores_are_told_of(digits, tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("damaged")
    content = bytearray((digits.folder / "evaluation.npz").read_bytes())
    for _ in range(3):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    (folder / "evaluation.npz").write_bytes(content)
    shutil.copy(digits.folder / "results.json", folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert client(Explorer(digits.saved, folder, digits.inputs)).get("/api/quality").status_code == 200


OPERATIONS = [
    (method, path)
    for path, methods in make_app(SimpleNamespace(form=InputForm("rows", (2,), "float64")))
    .app.openapi()["paths"]
    .items()
    for method in methods
]
CANNOT_BE_BAD = {"/api/about", "/api/quality", "/api/upload"}  # for them any request fits the schema
KINDS_OF_QUESTIONS = [
    (*operation, mode)
    for operation in OPERATIONS
    for mode in GenerationMode
    if mode == GenerationMode.POSITIVE or operation[1] not in CANNOT_BE_BAD
]
CHECKS = [not_a_server_error, response_schema_conformance, content_type_conformance]


@pytest.fixture(scope="module")
def schemas(digits, moons):
    names = frozenset({"testserver"})
    return [schemathesis.openapi.from_asgi("/openapi.json", make_app(e, names)) for e in (digits, moons)]


@pytest.mark.parametrize(("method", "path", "mode"), KINDS_OF_QUESTIONS)
@given(data=st.data())
def test_random_questions(schemas, method, path, mode, data):
    """No 5xx, and what is answered is what the schema says; for images and for rows, good data and bad."""
    for api in schemas:
        case = data.draw(api[path][method].as_strategy(generation_mode=mode))
        case.validate_response(case.call(), checks=CHECKS)
