"""ibinn explore as a process: who can reach it, many at once, how it ends, which runs it offers."""

import contextlib
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import requests
from helpers.serving import serving
from PIL import Image

from ibinn.cli import explore as explore_command
from ibinn.cli import main
from ibinn.cli.explore import choose_run, has_display

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_places")]
ON_LINUX = pytest.mark.skipif(
    not Path("/proc/net/tcp").exists(), reason="reads /proc, which only Linux has"
)


@pytest.fixture(scope="module")
def server(digits_folder):
    with serving(digits_folder) as (address, process):
        yield address, process


def listening(process):
    """Local addresses that a process listens on, IPv4 as four numbers."""
    own = {path.readlink().name for path in Path(f"/proc/{process.pid}/fd").iterdir() if path.is_symlink()}
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    lines += [line.split() for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]]
    there = [line[1].split(":")[0] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in own]
    return [tuple(bytes.fromhex(address)[::-1]) for address in there]


@ON_LINUX
def test_it_listens_on_this_machine_only(server):
    address, process = server
    assert listening(process) == [(127, 0, 0, 1)]
    assert requests.get(address, timeout=20).status_code == 200


@ON_LINUX
def test_another_host_is_a_wish_and_gets_a_warning(digits_folder):
    with serving(digits_folder, "--host", "0.0.0.0") as (address, process):
        assert listening(process) == [(0, 0, 0, 0)]
        assert any("no password" in line for line in process.lines)
        assert requests.get(address, headers={"host": socket.gethostname()}, timeout=20).status_code == 200
        assert requests.get(address, headers={"host": "evil.example"}, timeout=20).status_code == 403


def peak_memory(process):
    """In MB."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1000


@ON_LINUX
def test_two_hundred_at_once_are_served_or_sent_away(server):
    address, process = server
    pictures = []
    for pixels in (
        np.zeros((4000, 6000, 4), np.uint8),
        np.zeros((4000, 6000), np.uint16),
    ):  # the costliest kinds
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        pictures.append(file.getvalue())
    asks = [
        lambda i: requests.post(f"{address}api/decision", json={"input": {"index": i}}, timeout=120),
        lambda i: requests.get(f"{address}api/samples?label={i % 10}&n=64", timeout=120),
        lambda i: requests.get(f"{address}api/inputs/{i}.png", timeout=120),
        lambda i: requests.post(f"{address}api/upload", data=pictures[i // 4 % 2], timeout=120),
    ]
    assert asks[0](0).status_code == 200
    before = peak_memory(process)
    with ThreadPoolExecutor(200) as pool:
        answers = list(pool.map(lambda i: asks[i % len(asks)](i), range(200)))
    counts = Counter(answer.status_code for answer in answers)
    assert {*counts} <= {200, 429, 503}
    assert counts[200] > 60
    assert all(answer.headers["retry-after"] for answer in answers if answer.status_code == 503)
    assert asks[0](0).status_code == 200
    assert peak_memory(process) - before < 600


def test_ctrl_c_is_how_it_ends(digits_folder):
    with serving(digits_folder) as (address, process), requests.Session() as held:
        held.get(address, timeout=20)  # a connection that stays open
        with half_a_request(address):  # and one that the server waits for in vain
            time.sleep(0.2)
            process.send_signal(signal.SIGINT)
            assert process.wait(15) == 0
        assert process.stdout.read() == ""


@contextlib.contextmanager
def half_a_request(address):
    with socket.create_connection(("127.0.0.1", int(address.rsplit(":", 1)[1].strip("/")))) as slow:
        slow.sendall(b"POST /api/upload HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\nabc")
        yield


def test_half_a_request_does_not_stop_the_others(server):
    address, _ = server
    port = int(address.rsplit(":", 1)[1].strip("/"))
    with half_a_request(address):
        assert requests.get(f"{address}api/about", timeout=20).status_code == 200
    with socket.create_connection(("127.0.0.1", port)) as raw:
        raw.sendall(
            b"GET /static/../../__init__.py HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        )
        assert b" 404 " in raw.makefile("rb").readline()
    assert requests.get(f"{address}api/about", timeout=20).status_code == 200


def test_mistakes_are_told_in_a_line(tmp_path, digits_folder, capsys, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        cases = [
            ([str(tmp_path / "nothing")], "is not a run folder"),
            ([str(digits_folder), "--port", str(port)], "or --port"),
            ([str(digits_folder), "--port", "99999"], "or --port"),
            ([str(digits_folder), "--host", "no.such.host.invalid"], "cannot listen on"),
            ([str(digits_folder), "--data", "elsewhere"], "there is no file, folder or known set"),
        ]
        for arguments, words in cases:
            with pytest.raises(SystemExit) as end:
                main(["explore", *arguments])
            assert end.value.code == 2
            output = capsys.readouterr().err.strip()
            assert words in output
            assert "\n" not in output


def test_without_the_extra_it_says_how_to_get_it(digits_folder):
    code = "import sys; sys.modules['fastapi'] = None; from ibinn.cli import main; main(['explore', sys.argv[1]])"
    done = subprocess.run([sys.executable, "-c", code, str(digits_folder)], capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "pip install fastapi uvicorn" in done.stderr


def make_runs(root, *names):
    for name in names:
        (root / name).mkdir(parents=True)
        (root / name / "model.safetensors").touch()


@pytest.fixture
def at_a_terminal(monkeypatch, tmp_path):
    """answer(text) is what the person types."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(explore_command, "is_interactive", lambda: True)
    return lambda text: monkeypatch.setattr("builtins.input", lambda question: text)


def test_runs_below_the_folder_are_offered(at_a_terminal, tmp_path, capsys):
    make_runs(tmp_path, "runs/b", "runs/a", "runs/sweep/one/two")
    os.utime(tmp_path / "runs/b/model.safetensors", (10**9, 10**9))
    for typed, run in (("", "runs/a"), ("2", "runs/b")):
        at_a_terminal(typed)
        assert choose_run(Path()) == Path(run)
    assert "  1  runs/a\n  2  runs/b\n" in capsys.readouterr().out
    make_runs(tmp_path, *(f"more/{i}" for i in range(25)))
    at_a_terminal("20")
    assert choose_run(Path()).parent == Path("more")
    assert "and 7 older ones" in capsys.readouterr().out
    for typed in ("21", "0", "x"):
        at_a_terminal(typed)
        with pytest.raises(ValueError, match="numbers above"):
            choose_run(Path())


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_run_is_chosen_at_a_terminal(digits_folder, tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mine").symlink_to(digits_folder)
    here, there = os.openpty()
    command = [sys.executable, "-m", "ibinn.cli", "explore", "--port", "0", "--no-browser"]
    process = subprocess.Popen(command, cwd=tmp_path, stdin=there, stdout=there, stderr=there)
    os.close(there)
    output = b""
    while b"Which run? [1]" not in output:
        output += os.read(here, 1000)
    os.write(here, b"\n")
    while b"(Ctrl-C ends)" not in output:
        output += os.read(here, 1000)
    address = re.search(rb"http://\S+/", output)[0].decode()
    assert requests.get(address, timeout=20).status_code == 200
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 0
    os.close(here)
    assert b"1  runs/mine" in output
    assert b"runs/mine: open http://127.0.0.1:" in output


def test_where_there_is_no_run_the_demo_is_offered(at_a_terminal, monkeypatch):
    trained = []
    monkeypatch.setattr(explore_command.Demo, "run", lambda self: trained.append(self.out))
    at_a_terminal("n")
    with pytest.raises(ValueError, match="ibinn train"):
        choose_run(Path())
    assert trained == []
    at_a_terminal("")
    assert choose_run(Path()) == Path("runs/demo")
    assert trained == [Path("runs/demo")]


def test_without_a_terminal_the_runs_are_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="ibinn demo"):
        choose_run(Path())
    make_runs(tmp_path, "runs/a")
    with pytest.raises(ValueError, match="runs/a"):
        choose_run(Path())


def test_a_browser_is_opened_only_where_it_is_a_window(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert not has_display()
    monkeypatch.setenv("DISPLAY", ":0")
    assert has_display()


def test_the_schema_is_there_for_other_programs(server):
    address, _ = server
    schema = json.loads(requests.get(f"{address}openapi.json", timeout=20).text)
    assert "/api/decision" in schema["paths"]
