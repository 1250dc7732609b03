"""The explorer's server: bad requests, hosts and origins, limits, the schema under random requests."""

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
from helpers.explorers import by_index, client
from helpers.files import png
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance

from ibinn.cli.explore import Explore, allowed_hosts, host_in_url
from ibinn.data.inputs import InputForm
from ibinn.explorer import guard, schema
from ibinn.explorer.codec import InputCodec
from ibinn.explorer.guard import Guard
from ibinn.explorer.server import body_limit, listen, make_app
from ibinn.explorer.service import Explorer, plain_text
from ibinn.run.arrays import write_arrays

JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def api(digits):
    return client(digits)


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
    "icon": (icon(), 422, "format"),
    "eps": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n", 422, "cannot be read"),
}


def is_sentence(response, status, words):
    assert response.status_code == status, response.text
    detail = response.json()["detail"]
    assert "\n" not in detail
    assert words in detail


@pytest.mark.parametrize("name", UPLOADS)
def test_bad_uploads_get_a_sentence(api, name):
    content, status, words = UPLOADS[name]
    is_sentence(api.post("/api/upload", content=content), status, words)


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
def test_bad_requests_get_a_sentence(api, name):
    path, body, status, words = BAD[name]
    is_sentence(api.post(f"/api/{path}", json=body), status, words)


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
def test_bad_paths_get_a_sentence(api, path, status, words):
    is_sentence(api.get(path), status, words)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[" * 100_000, b"\xff\xfe", b"null", b"[]", b'{"input": 1' + b"0" * 5000 + b"}"]
)
def test_bodies_that_are_no_json_get_a_sentence(api, content):
    response = api.post("/api/decision", content=content, headers=JSON)
    assert 400 <= response.status_code < 500
    assert response.json()["detail"]


def test_a_request_longer_than_its_kind_allows(api, digits):
    for size in (200_000, 5_000_000):
        body = {"input": {"png": "A" * size}}
        is_sentence(api.post("/api/decision", json=body), 413, "send something smaller")
    many = {str(i): 0 for i in range(9000)}  # of which each is a mistake
    is_sentence(api.post("/api/decision", json=many), 422, "input")
    long = api.post("/api/decision", json={"input": {"index": 1}, "x" * 50_000: 1})
    is_sentence(long, 422, "xxx")
    assert len(long.text) < 1000
    room = body_limit(digits.form)
    assert room > 2 * len(digits.decision(by_index(0)).view.png)
    large = dataclasses.replace(digits.form, shape=(300, 300, 3))
    noise = np.random.default_rng(0).integers(256, size=(300, 300, 3), dtype=np.uint8)
    assert body_limit(large) > 2 * len(base64.b64encode(png(noise)))


def test_a_body_without_a_length(api):
    def parts(n):
        for _ in range(n):
            yield b" " * 100_000

    is_sentence(api.post("/api/upload", content=parts(3)), 422, "cannot be read")
    is_sentence(api.post("/api/upload", content=parts(210)), 413, "20 MB")


def test_a_body_that_does_not_come(digits, monkeypatch):
    monkeypatch.setattr(guard, "BODY_TIMEOUT", 0.05)
    messages = []

    async def never():
        await asyncio.sleep(5)

    async def send(message):
        messages.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/api/upload",
        "headers": [(b"host", b"127.0.0.1"), (b"content-length", b"100")],
    }
    asyncio.run(make_app(digits)(scope, never, send))
    assert messages[0]["status"] == 408
    assert "took more than" in json.loads(messages[1]["body"])["detail"]


def test_only_four_uploads_at_once(digits, monkeypatch):
    app, statuses, release = make_app(digits), [], threading.Event()
    empty = schema.UploadReply(png="", notes=[])
    monkeypatch.setattr(InputCodec, "upload", lambda codec, content: release.wait(20) and empty)

    async def one(i):
        parts = iter([{"type": "http.request", "body": b"x"}])
        scope = {"type": "http", "method": "POST", "path": "/api/upload", "query_string": b""}
        scope |= {"headers": [(b"host", b"127.0.0.1")]}

        async def receive():
            part = next(parts, None)
            return part if part is not None else await asyncio.Event().wait()

        async def send(message):
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
            if len(statuses) == 3:  # those that were refused
                release.set()

        await app(scope, receive, send)

    async def all_of_them():
        await asyncio.wait_for(asyncio.gather(*(one(i) for i in range(7))), 20)

    asyncio.run(all_of_them())
    assert statuses == [503, 503, 503, 200, 200, 200, 200]


def test_every_response_has_the_headers_of_a_careful_server(api):
    for response in (
        api.get("/"),
        api.get("/api/about"),
        api.get("/no"),
        api.get("/api/inputs/0.png"),
    ):
        policy = dict(
            part.strip().split(" ", 1) for part in response.headers["content-security-policy"].split(";")
        )
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == "'none'"
        assert "unsafe" not in response.headers["content-security-policy"]
        assert response.headers["x-content-type-options"] == "nosniff"
        assert "server" not in response.headers
    assert api.get("/api/about").headers["cache-control"] == "no-store"


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
def test_only_pages_of_this_server_may_send_requests(api, headers, status):
    response = api.get("/api/about", headers=headers)
    assert response.status_code == status
    if status == 403:
        assert "ibinn explore" in response.json()["detail"]


def test_a_link_from_elsewhere_opens_the_page(api):
    assert api.get("/", headers={"sec-fetch-site": "cross-site"}).status_code == 200


def test_host_names_of_a_machine():
    assert allowed_hosts("127.0.0.1") == frozenset()
    app = Guard(None, allowed_hosts("box.example"), 0)
    assert app.is_own("BOX.example:80")
    assert not app.is_own("other.example")
    assert [host_in_url(host) for host in ("0.0.0.0", "::", "::1", "box")] == [
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
    ask = client(Explore(device="cpu").open_explorer(digits_folder))
    assert ask.get("/api/quality").json()["missing"] is None
    assert ask.post("/api/decision", json={"input": {"index": 0}}).status_code == 200


def test_the_page_is_whole_and_names_no_other_host(api):
    page = api.get("/").text
    names = set(re.findall(r'(?:src|href)="(static/[^"]+)"', page))
    assert len(names) == 3
    seen = set()
    while names - seen:
        name = (names - seen).pop()
        seen.add(name)
        response = api.get(f"/{name}")
        assert response.status_code == 200, name
        names |= {f"static/{other}" for other in re.findall(r'from "\./([^"]+)"', response.text)}
        text = response.text.replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//[a-z]+\.", text), name
        assert ".innerHTML" not in text
        assert "eval(" not in text
    assert not re.search(r"https?://|<style|style=| on[a-z]+=", page)
    assert {"static/app.js", "static/map.js", "static/icon.svg"} <= seen


def test_the_colours_are_those_of_the_figures(api):
    from ibinn.report.style import COLOURS, MARKERS, MOST_COLOURED

    text = api.get("/static/colours.js").text
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


def test_a_jpeg_of_many_scans_is_refused(api):
    assert api.post("/api/upload", content=progressive(1)).status_code == 200
    is_sentence(api.post("/api/upload", content=progressive(500)), 422, "scans")


def test_names_that_json_cannot_hold(digits_folder, tmp_path, digits):
    odd = tmp_path / "r\udce9n"
    shutil.copytree(digits_folder, odd)
    run = dataclasses.replace(digits.run, classes=np.array(["\udce9", "\udce8", *"23456789"]))
    explorer = Explorer(run, odd, digits.inputs)
    ask = client(explorer)
    about = ask.get("/api/about").json()
    assert about["name"] == "r\\udce9n"
    assert about["classes"][:2] == ["\\udce9", "\\udce8"]
    assert (
        ask.post("/api/decision", json={"input": {"index": 0}}).json()["view"]["label"] in about["classes"]
    )
    assert plain_text("Größe") == "Größe"


DAMAGES = {
    "no calibration": {"calibration": None},
    "no error": {"error": None},
    "bins of numbers": {"calibration": {"bins": [1]}},
    "bins of another version": {"calibration": {"bins": [{"low": 0, "high": 1, "n": 3}]}},
}


@pytest.mark.parametrize("name", DAMAGES)
def test_an_evaluation_of_another_version_is_reported(digits, tmp_path, name):
    results = json.loads((digits.folder / "results.json").read_text()) | DAMAGES[name]
    (tmp_path / "results.json").write_text(json.dumps(results))
    shutil.copy(digits.folder / "evaluation.npz", tmp_path)
    response = client(Explorer(digits.run, tmp_path, digits.inputs)).get("/api/quality")
    assert response.status_code == 200
    assert "ibinn evaluate" in response.json()["missing"]


@given(st.data())
def test_damaged_scores_are_no_server_error(digits, tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("damaged")
    content = bytearray((digits.folder / "evaluation.npz").read_bytes())
    for _ in range(3):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    (folder / "evaluation.npz").write_bytes(content)
    shutil.copy(digits.folder / "results.json", folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert client(Explorer(digits.run, folder, digits.inputs)).get("/api/quality").status_code == 200


def test_scores_of_another_kind_are_left_out(digits, tmp_path):
    shutil.copy(digits.folder / "results.json", tmp_path)
    arrays = {"scores/combined": np.array(["a"]), "scores/noise/combined": np.zeros((2, 2))}
    write_arrays(tmp_path, arrays | {"scores/inverted/combined": np.array([0.0, 1.0, np.inf, np.nan])})
    quality = client(Explorer(digits.run, tmp_path, digits.inputs)).get("/api/quality").json()
    assert [(found["name"], found["n"]) for found in quality["sets"]] == [("inverted", 4)]


OPERATIONS = [
    (method, path)
    for path, methods in make_app(SimpleNamespace(form=InputForm("rows", (2,), "float64")))
    .app.openapi()["paths"]
    .items()
    for method in methods
]
CANNOT_BE_BAD = {"/api/about", "/api/quality", "/api/upload"}  # for them any request fits the schema
KINDS_OF_REQUESTS = [
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


@pytest.mark.parametrize(("method", "path", "mode"), KINDS_OF_REQUESTS)
@given(data=st.data())
def test_random_requests(schemas, method, path, mode, data):
    """No 5xx, and responses fit the schema; for images and for rows, good data and bad."""
    for operations in schemas:
        case = data.draw(operations[path][method].as_strategy(generation_mode=mode))
        case.validate_response(case.call(), checks=CHECKS)
