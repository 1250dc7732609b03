"""Screenshots of the explorer: desktop and phone, light and dark, the whole page and each panel.

python docs/screenshots.py RUN FOLDER

Needs chromium and chromedriver. README and docs show explorer.png and explorer-phone-dark.png of the run of
`ibinn demo`.
"""

import base64
import re
import subprocess
import sys
import time
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

SIZES = {"": (1280, 900, 1), "-phone": (390, 844, 2)}
PANELS = ("map", "decision", "drift", "between", "samples", "quality")


def main(run: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "ibinn.cli", "explore", run, "--no-browser", "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    found = re.search(r"http://\S+/", server.stdout.readline())
    assert found is not None
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for option in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(option)
    page = webdriver.Chrome(options, webdriver.ChromeService("/usr/bin/chromedriver"))
    try:
        for size in SIZES:
            for scheme in ("light", "dark"):
                take(page, found[0], folder, size, scheme)
    finally:
        page.quit()
        server.terminate()


def take(page: webdriver.Chrome, address: str, folder: Path, size: str, scheme: str) -> None:
    """The first screen as explorer*.png, each panel as explorer*-PANEL.png."""
    width, height, scale = SIZES[size]
    metrics = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": bool(size)}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    page.get(address)
    whole = "return document.body.dataset.map === 'whole' || document.getElementById('map').hidden"
    WebDriverWait(page, 300).until(lambda _: page.execute_script(whole))
    name = f"explorer{size}{'' if scheme == 'light' else '-dark'}"
    page.execute_script("document.getElementById('evidence')?.click()")
    for panel in PANELS:  # panels load when they come into view
        page.execute_script(f"document.getElementById('{panel}').scrollIntoView()")
        time.sleep(0.6)
    slide = "const s = document.getElementById('drift-amount'); s.value = 8; s.dispatchEvent(new Event('input'))"
    page.execute_script(slide)
    page.execute_script("document.getElementById('between-body').scrollLeft = 0; window.scrollTo(0, 0)")
    time.sleep(1)
    shoot(page, folder / f"{name}.png", (0, 0, width, 1110))
    for panel in PANELS:
        box = page.execute_script(
            f"const b = document.getElementById('{panel}').getBoundingClientRect(); "
            "return [b.left - 8, b.top + scrollY - 8, b.width + 16, b.height + 16]"
        )
        if box[2] > 16:
            shoot(page, folder / f"{name}-{panel}.png", box)


def shoot(page: webdriver.Chrome, file: Path, box: tuple[float, ...]) -> None:
    clip = dict(zip(("x", "y", "width", "height"), box, strict=True)) | {"scale": 1}
    how = {"captureBeyondViewport": True, "clip": clip}
    taken = page.execute_cdp_cmd("Page.captureScreenshot", how)
    file.write_bytes(base64.b64decode(taken["data"]))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
