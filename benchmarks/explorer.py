"""The explorer: seconds to the first picture, milliseconds per request, frame times of a map of 10,000 points.

    python benchmarks/explorer.py

Two models: `tiny` on the digits, which `ibinn demo` trains, and `small` on synthetic 28 x 28 images, trained
for one epoch, because speed does not depend on training. The frame times need chromium and chromedriver.
"""

import contextlib
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from turns import save

ROUNDS = 9
IBINN = [sys.executable, "-W", "ignore", "-m", "ibinn.cli"]
INPUT = {"input": {"index": 3}}
REQUESTS: dict[str, tuple[str, dict[str, Any] | None]] = {
    "an image of the map": ("inputs/3.png", None),
    "decision": ("decision", INPUT),
    "evidence map": ("evidence", INPUT | {"a": 0, "b": 1}),
    "drift, 21 images": ("drift", INPUT | {"kind": "noise"}),
    "interpolation, 9 images": ("interpolation", {"start": {"index": 3}, "end": {"index": 4}}),
    "24 samples": ("samples?label=1", None),
    "200 points of the map": ("map?count=200", None),
    "quality": ("quality", None),
}
DRAG = """
    const done = arguments[0], canvas = document.getElementById("map-canvas");
    const box = canvas.getBoundingClientRect();
    const send = (type, x, y) => canvas.dispatchEvent(new PointerEvent(type, {pointerId: 1, pointerType: "mouse",
        clientX: box.left + x, clientY: box.top + y, bubbles: true}));
    canvas.setPointerCapture = () => {};
    const times = [];
    send("pointerdown", 300, 300);
    const step = (now) => {
        times.push(now);
        const i = times.length;
        if (i < 150) send("pointermove", 300 + 80 * Math.sin(i / 9), 300 + 60 * Math.cos(i / 7));
        if (i > 150) canvas.dispatchEvent(new WheelEvent("wheel", {deltaY: 12 * Math.cos(i / 20), ctrlKey: true,
            cancelable: true, clientX: box.left + 300, clientY: box.top + 300}));
        if (i === 150) send("pointerup", 0, 0);
        if (i < 400) requestAnimationFrame(step);
        else { done(times.slice(1).map((t, k) => t - times[k])); }
    };
    requestAnimationFrame(step);
"""


@contextlib.contextmanager
def explored(run: Path) -> Iterator[tuple[str, float]]:
    """The address of a server, and the seconds from its start to the first picture."""
    start = time.perf_counter()
    command = [*IBINN, "explore", str(run), "--no-browser", "--port", "0", "--device", "cpu"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    found = re.search(r"http://\S+/", process.stdout.readline())
    assert found is not None
    get(f"{found[0]}api/inputs/0.png")
    try:
        yield found[0], time.perf_counter() - start
    finally:
        process.terminate()
        process.wait()


def get(address: str, body: dict[str, Any] | None = None) -> bytes:
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, content, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as response:
        reply: bytes = response.read()
        return reply


def median_ms(address: str, body: dict[str, Any] | None) -> float:
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        get(address, body)
        seconds.append(time.perf_counter() - start)
    return 1000 * statistics.median(seconds)


def frames(address: str) -> list[float] | None:
    """Milliseconds between the frames of a map that is dragged, then zoomed in and out; None without a browser."""
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver is None:
        return None
    from selenium import webdriver
    from selenium.webdriver.support.ui import WebDriverWait

    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for option in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,900"):
        options.add_argument(option)
    page = webdriver.Chrome(options, webdriver.ChromeService(driver))
    try:
        page.set_script_timeout(120)
        page.get(address)
        whole = "return document.body.dataset.map === 'whole'"
        WebDriverWait(page, 300).until(lambda _: page.execute_script(whole))
        time.sleep(2)
        between: list[float] = page.execute_async_script(DRAG)
        return between
    finally:
        page.quit()


def synthetic_run(folder: Path) -> Path:
    """A run of `small` on blurred noise of 28 x 28, with 10,000 test images."""
    rng = np.random.default_rng(0)
    y = np.arange(10_500) % 10
    coarse = rng.integers(256, size=(len(y), 7, 7)).repeat(4, axis=1).repeat(4, axis=2)
    x = (0.8 * coarse + 5 * y[:, None, None]).astype(np.uint8)
    np.savez(folder / "images.npz", x=x[:500], y=y[:500], x_test=x[500:], y_test=y[500:])
    train = [
        "train",
        str(folder / "images.npz"),
        "--size",
        "small",
        "--epochs",
        "1",
        "--out",
        str(folder / "small"),
    ]
    subprocess.run([*IBINN, *train], check=True, capture_output=True)
    return folder / "small"


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run([*IBINN, "demo", "--out", str(folder / "tiny")], check=True, capture_output=True)
        rows = [measured("tiny", folder / "tiny"), measured("small", synthetic_run(folder))]
    save("explorer", rows, rounds=ROUNDS)


def measured(name: str, run: Path) -> dict[str, Any]:
    starts = []
    for _ in range(3):
        with explored(run) as (_, seconds):
            starts.append(seconds)
    with explored(run) as (address, _):
        ms = {what: median_ms(f"{address}api/{path}", body) for what, (path, body) in REQUESTS.items()}
        n_points = json.loads(get(f"{address}api/about"))["n_inputs"]
        between = frames(address)
    row = {"name": name, "first_picture_s": min(starts), "ms": ms, "n_points": n_points}
    if between is not None:
        row |= {"frame_ms": statistics.median(between), "frame_p95_ms": float(np.quantile(between, 0.95))}
    print(json.dumps(row, indent=1))
    return row


if __name__ == "__main__":
    main()
