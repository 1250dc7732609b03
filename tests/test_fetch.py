"""Downloads from a local server that misbehaves are resumed, or fail with one sentence and no file."""

import errno
import hashlib
import io
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ibinn.data import fetch as module
from ibinn.data.fetch import ARCHIVES, CHUNK, RETRIES, Archive, FetchError, fetch, fetch_set

BODY = random.Random(0).randbytes(300_000)
WRONG = bytes(len(BODY))
NAME = "toy.tar.gz"
N = len(BODY)
HALF = N // 2


def archive(n_bytes=N, algorithm="md5", url=f"http://127.0.0.1:9/{NAME}"):
    return Archive(url, f"{algorithm}:{hashlib.new(algorithm, BODY).hexdigest()}", n_bytes)


# What the server does with one request.


def serve(ask, body=BODY, cut=N, stall=False, ranges=True, place=None, lie=None, length=True, pace=0.0):
    """Sends body from the place asked for (if ranges) up to byte `cut`, announcing all of it (if length).

    stall: keeps the connection open and silent afterwards; place: where a range starts, whatever was asked
    for; lie: a false Content-Range; pace: seconds of rest after every 5,000 bytes.
    """
    asked = re.fullmatch(r"bytes=(\d+)-", ask.headers.get("Range", ""))
    start = int(asked[1]) if asked and ranges else 0
    start = start if place is None else place
    ask.send_response(206 if start else 200)
    if start:
        ask.send_header("Content-Range", lie or f"bytes {start}-{len(body) - 1}/{len(body)}")
    if length:
        ask.send_header("Content-Length", str(len(body) - start))
    ask.end_headers()
    for at in range(start, cut, 5000):
        ask.send(body[at : min(at + 5000, cut)])
        time.sleep(pace)
    if stall:
        ask.server.stop.wait(10)


def refuse(ask, code=404):
    ask.send_error(code)


def unsatisfiable(ask):
    serve(ask) if ask.headers.get("Range") is None else refuse(ask, 416)


def redirect(ask, to):
    if ask.path == to:
        return serve(ask)
    ask.send_response(302)
    ask.send_header("Location", to)
    ask.end_headers()
    return None


def endless(ask):
    ask.send_response(200)
    ask.end_headers()
    while True:
        ask.send(BODY)


def hang_up(ask):
    """Closes without a word."""


truncated = partial(serve, cut=HALF)
stalled = partial(serve, cut=HALF, stall=True)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        plan = self.server.plan
        self.server.asked.append(self.headers.get("Range"))
        (plan.pop(0) if len(plan) > 1 else plan[0])(self)

    def send(self, data):
        self.wfile.write(data)
        self.server.sent += len(data)

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    """plan: what to do with each request, the last for all further ones; asked: their Range headers."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.plan, self.asked, self.sent, self.stop = [serve], [], 0, threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}/{NAME}"

    def handle_error(self, request, client_address):
        assert isinstance(sys.exception(), ConnectionError)  # the client may leave at any time


@pytest.fixture
def web(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.stop.set()
        server.shutdown()
        thread.join()


def get(web, folder, n_bytes=N, timeout=5.0, progress=None):
    return fetch(archive(n_bytes, url=web.url), folder, progress, timeout, pause=0.0)


def leave_part(folder, data):
    (folder / f"{NAME}.part").write_bytes(data)


def fails(act, folder, pattern):
    """act raises one clear sentence and puts nothing under the good name."""
    with pytest.raises(FetchError, match=pattern) as caught:
        act()
    assert "\n" not in str(caught.value)
    assert not (folder / NAME).exists()
    return str(caught.value)


# what goes wrong: (the server's plan, bytes there before, ranges asked for, bytes sent)
REST = f"bytes={HALF}-"
RECOVERIES = {
    "nothing": ([serve], 0, [None], N),
    "a .part from before": ([serve], HALF, [REST], N - HALF),
    "a .part that lacks one byte": ([serve], N - 1, [f"bytes={N - 1}-"], 1),
    "the server ignores ranges": ([partial(serve, ranges=False)], HALF, [REST], N),
    "another place than asked for": (
        [partial(serve, place=7), serve],
        HALF,
        [REST, None],
        None,
    ),
    "a part nobody asked for, then all": (
        [truncated, partial(serve, place=7), serve],
        0,
        [None, REST, None],
        None,
    ),
    "a range without its place": ([partial(serve, lie="nonsense"), serve], HALF, [REST, None], None),
    "range not satisfiable": ([unsatisfiable], HALF, [REST, None], N),
    "truncated once": ([truncated, serve], 0, [None, REST], N),
    "truncated, resumed, ranges ignored": (
        [truncated, partial(serve, ranges=False)],
        0,
        [None, REST],
        HALF + N,
    ),
    "truncated three times": (
        [partial(serve, cut=N // 4), partial(serve, cut=HALF), partial(serve, cut=3 * N // 4), serve],
        0,
        [None, f"bytes={N // 4}-", REST, f"bytes={3 * N // 4}-"],
        N,
    ),
    "hung up on": ([hang_up, serve], HALF, [REST, REST], N - HALF),
    "stalled once": ([stalled, serve], 0, [None, REST], N),
    "no length announced": ([partial(serve, length=False)], 0, [None], N),
    "redirected": ([partial(redirect, to="/elsewhere")], HALF, [REST, REST], N - HALF),
}


@pytest.mark.parametrize("n_bytes", [N, None], ids=["length known", "length unknown"])
@pytest.mark.parametrize("case", RECOVERIES)
def test_a_download_recovers(web, tmp_path, case, n_bytes):
    web.plan, before, ranges, sent = RECOVERIES[case]
    web.plan = list(web.plan)
    if before:
        leave_part(tmp_path, BODY[:before])
    path = get(web, tmp_path, n_bytes, timeout=0.5 if "stalled" in case else 5.0)
    assert path == tmp_path / NAME
    assert path.read_bytes() == BODY
    assert os.listdir(tmp_path) == [NAME]
    assert web.asked == ranges
    assert sent in (None, web.sent)


# what goes wrong: (the server's plan, what the sentence says, requests made, bytes that are kept)
FAILURES = {
    "truncated for ever": ([truncated], "broke off 4 times.*run the command again to resume", 4, HALF),
    "stalled for ever": ([stalled], "0.3 s; run the command again to resume", 4, HALF),
    "hung up for ever": ([hang_up], "broke off 4 times.*run the command again to resume", 4, None),
    "wrong bytes": ([partial(serve, body=WRONG)], "checksum is not md5:.*deleted", 1, None),
    "wrong rest": ([truncated, partial(serve, body=WRONG)], "checksum is not md5:.*deleted", 2, None),
    "a login page": ([partial(serve, body=b"<html>")], "offers 6 bytes.*official file has 300000", 1, None),
    "bytes without end": ([endless], "checksum is not md5:.*deleted", 1, None),
    "a part nobody asked for": ([partial(serve, place=7)], "sends a part of the file", 1, None),
    "not found": ([refuse], "answers 404 Not Found", 1, None),
    "server error": ([partial(refuse, code=500)], "answers 500", 1, None),
    "416 to a plain request": ([partial(refuse, code=416)], "answers 416", 1, None),
    "not found on resuming": ([truncated, refuse], "answers 404", 2, HALF),
    "redirect to a file": ([partial(redirect, to="file:///etc/hostname")], "302.*file:///", 1, None),
    "redirect to ftp": ([partial(redirect, to="ftp://127.0.0.1/x")], "302.* ftp://", 1, None),
    "redirect without end": ([lambda ask: redirect(ask, ask.path + "a")], "answers 302", 11, None),
}


@pytest.mark.parametrize("case", FAILURES)
def test_a_failure_is_one_clear_sentence(web, tmp_path, case):
    plan, pattern, n_requests, kept = FAILURES[case]
    web.plan = list(plan)
    seen, timeout = [], 0.3 if "stalled" in case else 5.0
    act = partial(get, web, tmp_path, timeout=timeout, progress=lambda done, _: seen.append(done))
    assert web.url in fails(act, tmp_path, pattern)
    assert len(web.asked) == n_requests
    assert max(seen, default=0) <= N + CHUNK
    part = tmp_path / f"{NAME}.part"
    assert (part.stat().st_size if part.exists() else None) == kept

    web.plan = [serve]  # and whatever was left behind, the next call puts it right
    assert get(web, tmp_path).read_bytes() == BODY


def test_retries_are_those_of_the_table():
    assert RETRIES == 3


@pytest.mark.parametrize("plan", [[partial(serve, body=WRONG)], [partial(serve, body=b"<html>")]])
def test_wrong_bytes_of_unknown_length_are_deleted(web, tmp_path, plan):
    web.plan = plan
    fails(lambda: get(web, tmp_path, n_bytes=None), tmp_path, "checksum")
    assert os.listdir(tmp_path) == []


def test_a_damaged_part_is_found_out_and_the_next_call_starts_afresh(web, tmp_path):
    leave_part(tmp_path, WRONG[:HALF])
    fails(lambda: get(web, tmp_path), tmp_path, "deleted; run the command again")
    assert get(web, tmp_path).read_bytes() == BODY
    assert web.asked == [REST, None]


@pytest.mark.parametrize("n_bytes", [N, None])
@pytest.mark.parametrize(("data", "n_requests"), [(BODY, 0), (WRONG, 1), (BODY + b"more", 1)])
def test_a_part_of_full_length_is_used_if_it_is_right(web, tmp_path, data, n_requests, n_bytes):
    web.plan = [unsatisfiable]
    leave_part(tmp_path, data)
    assert get(web, tmp_path, n_bytes).read_bytes() == BODY
    assert len(web.asked) == (2 * n_requests if n_bytes is None else n_requests)


def test_a_good_file_is_not_fetched_again(web, tmp_path):
    (tmp_path / NAME).write_bytes(BODY)
    assert get(web, tmp_path) == tmp_path / NAME
    assert fetch(archive(algorithm="sha256"), tmp_path) == tmp_path / NAME
    assert web.asked == []


def test_another_file_under_the_good_name_is_left_alone(web, tmp_path):
    (tmp_path / NAME).write_bytes(b"mine")
    with pytest.raises(FetchError, match=r"not the official file.*move it away"):
        get(web, tmp_path)
    assert (tmp_path / NAME).read_bytes() == b"mine"
    assert web.asked == []


def test_progress_starts_at_what_is_there_and_ends_at_the_length(web, tmp_path):
    leave_part(tmp_path, BODY[:HALF])
    seen = []
    get(web, tmp_path, progress=lambda done, total: seen.append((done, total)))
    assert seen[0] == (HALF, N)
    assert seen[-1] == (N, N)
    assert seen == sorted(seen)


def test_progress_without_a_known_length(web, tmp_path):
    web.plan = [partial(serve, length=False)]
    seen = []
    get(web, tmp_path, n_bytes=None, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (N, None)


def test_a_killed_download_is_resumed(web, tmp_path):
    web.plan = [partial(serve, pace=0.02), serve]
    a = archive(url=web.url)
    code = (
        "import sys; from pathlib import Path; from ibinn.data.fetch import Archive, fetch;"
        "fetch(Archive(*sys.argv[1:3], int(sys.argv[3])), Path(sys.argv[4]))"
    )
    arguments = [a.url, a.checksum, str(N), str(tmp_path)]
    part = tmp_path / f"{NAME}.part"
    with subprocess.Popen([sys.executable, "-c", code, *arguments]) as process:
        while not (part.exists() and part.stat().st_size > N // 4):
            assert process.poll() is None
            time.sleep(0.005)
        fails(lambda: get(web, tmp_path), tmp_path, "another process is downloading into")
        process.send_signal(signal.SIGKILL)
    assert not (tmp_path / NAME).exists()
    there = part.stat().st_size
    assert N // 4 < there < N
    assert get(web, tmp_path).read_bytes() == BODY
    assert web.asked == [None, f"bytes={there}-"]


def test_a_full_disk_is_named_and_the_download_resumes_when_there_is_room(web, tmp_path, monkeypatch):
    class Full(io.FileIO):
        def write(self, data):
            if self.tell() + len(data) > HALF:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data)

    monkeypatch.setattr(module, "open", Full, raising=False)
    fails(lambda: get(web, tmp_path), tmp_path, f"{tmp_path}: the disk is full; free some space")
    there = (tmp_path / f"{NAME}.part").stat().st_size
    assert 0 < there <= HALF
    monkeypatch.undo()
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert get(web, tmp_path).read_bytes() == BODY
    assert web.asked == [None, f"bytes={there}-"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_device_that_is_really_full(web, tmp_path):
    (tmp_path / f"{NAME}.part").symlink_to("/dev/full")
    fails(lambda: get(web, tmp_path), tmp_path, "the disk is full")


@pytest.fixture
def locked_folder():
    """A folder that may be read but not written, also if root runs the tests."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o555)
        root = os.geteuid() == 0
        if root:
            os.seteuid(65534)
        yield Path(name)
        if root:
            os.seteuid(0)
        os.chmod(name, 0o755)


@pytest.mark.parametrize("below", ["", "new"])
def test_no_permission(web, locked_folder, below):
    folder = locked_folder / below
    fails(lambda: get(web, folder), folder, "Permission denied; choose another folder")


def test_a_folder_that_is_a_file(web, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    fails(lambda: get(web, tmp_path / "file"), tmp_path, "cannot store")
    assert web.asked == []


def test_nobody_answers(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as server:
        url = server.url
    fails(lambda: fetch(archive(url=url), tmp_path), tmp_path, "cannot reach .*refused.*by hand into")


@pytest.mark.parametrize("url", ["file:///etc/hostname", "ftp://127.0.0.1/x", "/etc/hostname", "data:,x"])
def test_only_the_web(tmp_path, url):
    fails(lambda: fetch(archive(url=url), tmp_path), tmp_path, "begins with http:// or https://")


def test_a_set_goes_into_a_folder_of_its_own(web, tmp_path, monkeypatch):
    monkeypatch.setitem(ARCHIVES, "toy", (archive(url=web.url),))
    assert fetch_set("toy", tmp_path) == [tmp_path / "toy" / NAME]
    assert (tmp_path / "toy" / NAME).read_bytes() == BODY


@pytest.mark.parametrize(
    ("name", "hint"), [("cifar", "cifar10"), ("CIFAR-100", "cifar100"), ("fashion-mnist", "fashion_mnist")]
)
def test_an_unknown_set_names_the_nearest(tmp_path, name, hint):
    fails(lambda: fetch_set(name, tmp_path), tmp_path, f"did you mean {hint}\\?.* mnist, fashion_mnist$")
    assert os.listdir(tmp_path) == []


def test_an_unknown_set_far_from_all_names_the_known(tmp_path):
    message = fails(
        lambda: fetch_set("zebra", tmp_path), tmp_path, "cifar10, cifar100, mnist, fashion_mnist"
    )
    assert "did you mean" not in message


def test_the_table_is_well_formed():
    for archives in ARCHIVES.values():
        for a in archives:
            assert re.fullmatch("md5:[0-9a-f]{32}", a.checksum)
            assert a.n_bytes > 0
    everything = [a for archives in ARCHIVES.values() for a in archives]
    assert (
        len({a.checksum for a in everything}) == len({a.url for a in everything}) == len(everything) == 10
    )
