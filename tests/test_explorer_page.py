"""The page in a real browser: Debian's chromium and chromium-driver, headless, against ibinn explore."""

import io
import json
import os
import shutil
import time

import numpy as np
import pytest
import requests
from helpers.serving import serving
from PIL import Image
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select, WebDriverWait
from sklearn.datasets import load_wine

from ibinn import IBINNClassifier
from ibinn.data.known import load
from ibinn.formats import rounded_p

BROWSER, DRIVER = (shutil.which(name) for name in ("chromium", "chromedriver"))
THERE = BROWSER is not None and DRIVER is not None
HOW = "no chromium or chromedriver here: the page is NOT tested; apt-get install chromium chromium-driver"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not THERE and os.environ.get("IBINN_BROWSER") != "required", reason=HOW),
]
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    assert THERE, HOW
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    profile = tmp_path_factory.mktemp("chromium")
    for option in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(option)
    options.add_argument(f"--user-data-dir={profile}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def digits_address(digits_folder):
    with serving(digits_folder) as (address, _):
        yield address


@pytest.fixture(scope="module")
def wine_address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wine") / "model"
    frame = load_wine(as_frame=True)
    y = np.array(["Adige", "Barolo", "Chianti"])[frame.target]
    IBINNClassifier(epochs=10, random_state=0).fit(frame.data, y).save(folder)
    with serving(folder) as (address, _):
        yield address


class Page:
    """What a person does on the page, and sees there."""

    def __init__(self, driver, address, size="desktop", scheme="light"):
        self.driver, self.address = driver, address
        driver.get_log("browser"), driver.get_log("performance")
        self.resize(size)
        self.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        driver.get(address)
        self.until(lambda: driver.execute_script("return document.body.dataset.map === 'whole'"))
        self.until(lambda: self.there("#sentence"))

    def cdp(self, command, **arguments):
        return self.driver.execute_cdp_cmd(command, arguments)

    def resize(self, size):
        width, height = SIZES[size]
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == "phone"}
        self.cdp("Emulation.setDeviceMetricsOverride", **metrics)

    def until(self, condition):
        return WebDriverWait(self.driver, 20, 0.05).until(lambda _: condition())

    def there(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector):
        return self.driver.execute_script(
            "return document.querySelector(arguments[0])?.textContent ?? ''", selector
        )

    def sources(self, selector):
        return self.driver.execute_script(
            "return [...document.querySelectorAll(arguments[0])].map((image) => image.src)", selector
        )

    def looks(self):
        return self.driver.execute_script("return document.getElementById('map-canvas').toDataURL()")

    def show(self, selector):
        self.driver.execute_script(
            "document.querySelector(arguments[0]).scrollIntoView({block: 'center', behavior: 'instant'})",
            selector,
        )
        return self.one(selector)

    def click(self, selector):
        # The page may be drawn anew between finding and clicking.
        wait = WebDriverWait(self.driver, 20, 0.05, ignored_exceptions=[StaleElementReferenceException])
        wait.until(lambda _: self.show(selector).click() is None)

    def p_value(self, selector="#p-value"):
        return float(self.text(selector).removeprefix("p ").removeprefix("= ").removeprefix("< "))

    def upload(self, path):
        before = self.text("#decision-body")
        self.one("#upload").send_keys(str(path))
        self.until(lambda: self.text("#decision-body") != before or self.one("#message").is_displayed())

    def a_dot(self):
        """Where a point lies on the canvas, from its upper left: where a pixel is as see-through as points are."""
        return self.driver.execute_script("""
            const canvas = document.getElementById("map-canvas"), context = canvas.getContext("2d");
            const {width, height} = canvas, {data} = context.getImageData(0, 0, width, height);
            const dots = [];
            for (let y = 4; y < height - 4; y++) for (let x = 4; x < width - 4; x++) {
                const [r, g, b, a] = data.subarray(4 * (y * width + x), 4 * (y * width + x) + 4);
                if (a > 150 && a < 200 && Math.max(r, g, b) - Math.min(r, g, b) > 90) dots.push([x, y]);
            }
            const ratio = width / canvas.getBoundingClientRect().width;
            const [x, y] = dots[Math.floor(dots.length / 7)];
            return [x / ratio, y / ratio];
        """)

    def at(self, x, y):
        """The mouse, so far from the upper left corner of the map."""
        self.show("#map-canvas")
        left, top = self.driver.execute_script(
            "const box = document.getElementById('map-canvas').getBoundingClientRect(); return [box.left, box.top]"
        )
        chain = ActionChains(self.driver)
        chain.w3c_actions.pointer_action.move_to_location(round(left + x), round(top + y))
        return chain

    def check(self):
        """No error on the console, and nothing was asked of any other host."""
        assert [line for line in self.driver.get_log("browser") if line["level"] == "SEVERE"] == []
        for line in self.driver.get_log("performance"):
            message = json.loads(line["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                url = message["params"]["request"]["url"]
                assert url.startswith((self.address, "data:", "chrome:")), url


@pytest.fixture
def page(browser, digits_address):
    page = Page(browser, digits_address)
    yield page
    page.check()


@pytest.fixture(scope="module")
def pictures(digits_address, tmp_path_factory):
    """Files: a typical test image, the same inverted, and a photo that is no digit at all."""
    folder = tmp_path_factory.mktemp("pictures")
    p = requests.get(f"{digits_address}api/map", timeout=20).json()["p_values"]
    content = requests.get(f"{digits_address}api/inputs/{int(np.argmax(p))}.png", timeout=20).content
    (folder / "typical.png").write_bytes(content)
    pixels = np.asarray(Image.open(io.BytesIO(content)))
    Image.fromarray(255 - pixels).save(folder / "inverted.png")
    Image.fromarray(np.random.default_rng(0).integers(256, size=(90, 120, 3), dtype=np.uint8)).save(
        folder / "photo.jpg"
    )
    (folder / "broken.png").write_bytes(content[:50])
    return folder


def test_the_page_opens_on_a_decision(page):
    assert "digits" in page.driver.title
    assert page.text("#name") == "digits"
    assert "10 classes" in page.text("#facts")
    assert "Looks like" in page.text("#sentence") or "Could be" in page.text("#sentence")
    assert len(page.there("#legend button")) == 10
    assert [a.text for a in page.there("#panels a")] == [
        "Map",
        "Decision",
        "Drift",
        "From one to another",
        "Samples",
        "Quality",
    ]
    for panel in page.there("article"):
        assert len(panel.find_element(By.CSS_SELECTOR, ".say").text) > 40


def test_a_click_on_a_point_selects_it(page):
    x, y = page.a_dot()
    page.at(x, y).perform()
    page.until(lambda: page.one("#map-tip").is_displayed())
    picture = page.one("#map-tip img")
    page.until(lambda: page.driver.execute_script("return arguments[0].naturalWidth", picture) == 8)
    called = page.text("#map-tip b")
    page.at(x, y).click().perform()
    page.until(lambda: page.text("#pick-total") and page.one("#pick").get_attribute("value") != "1")
    page.until(lambda: page.text(".big").startswith(called))
    index = int(page.one("#pick").get_attribute("value")) - 1
    reply = requests.post(
        f"{page.address}api/decision", json={"input": {"index": index}}, timeout=20
    ).json()
    assert page.text("#sentence") == reply["explanation"]["text"]
    assert reply["view"]["rank_text"] in page.text("#rank-text")


def test_the_map_moves_and_zooms(page):
    def changed(action):
        before = page.looks()
        action()
        page.until(lambda: page.looks() != before)

    home = page.looks()
    changed(lambda: page.click("#zoom-in"))
    page.show("#map-canvas")
    changed(lambda: page.at(300, 200).click_and_hold().move_by_offset(60, 40).release().perform())
    page.driver.execute_script("document.getElementById('map-canvas').focus()")
    changed(lambda: page.one("#map-canvas").send_keys("-"))
    page.click("#zoom-all")
    page.until(lambda: page.looks() == home)
    changed(lambda: Select(page.one("#filter")).select_by_value("atypical"))
    n, total = page.text("#filter-count").split(" of ")
    flagged = requests.get(f"{page.address}api/map", timeout=20).json()["p_values"]
    assert (int(n), int(total)) == (sum(p <= 0.05 for p in flagged), 360)
    changed(lambda: page.click("#legend button:nth-child(3)"))


def test_keys_alone_are_enough(page):
    page.driver.execute_script("document.getElementById('map-canvas').focus()")
    seen = {page.text("#sentence")}
    for key in (Keys.ARROW_RIGHT, Keys.ARROW_UP, Keys.ARROW_LEFT):
        before = page.one("#pick").get_attribute("value")
        page.driver.switch_to.active_element.send_keys(key)
        page.until(lambda before=before: page.one("#pick").get_attribute("value") != before)
    page.until(lambda: page.text("#sentence") not in seen)
    reached = set()
    page.driver.execute_script("document.body.tabIndex = -1; document.body.focus()")  # Tab starts there
    for _ in range(60):
        ActionChains(page.driver).send_keys(Keys.TAB).perform()
        reached.add(page.driver.switch_to.active_element.get_attribute("id"))
    assert {
        "filter",
        "map-canvas",
        "pick",
        "upload",
        "evidence",
        "drift-amount",
        "samples-class",
    } <= reached


def test_a_typical_image_and_an_atypical_one_get_different_verdicts(page, pictures):
    page.upload(pictures / "typical.png")
    page.until(lambda: page.there(".verdict.typical#verdict"))
    assert page.p_value() > 0.05
    page.upload(pictures / "inverted.png")
    page.until(lambda: page.there(".verdict.atypical#verdict"))
    assert page.p_value() <= 0.05
    assert "do not trust" in page.text("#sentence")
    page.upload(pictures / "photo.jpg")
    page.until(lambda: "resized to 8 × 8" in page.text("#decision-body"))
    assert "converted to grey" in page.text("#decision-body")


def test_a_broken_image_shows_a_problem_and_the_page_goes_on(page, pictures):
    page.upload(pictures / "broken.png")
    page.until(lambda: page.one("#message").is_displayed())
    assert "cannot be read as an image" in page.text("#message")
    page.upload(pictures / "typical.png")
    page.until(lambda: not page.one("#message").is_displayed())
    page.driver.get_log("browser")  # the refused request stands there


def test_all_classes_and_back(page):
    assert len(page.there(".bars li")) == 5
    page.click("#all-classes")
    page.until(lambda: len(page.there(".bars li")) == 10)
    assert page.driver.switch_to.active_element.get_attribute("id") == "all-classes"
    page.click("#all-classes")
    page.until(lambda: len(page.there(".bars li")) == 5)


def test_the_number_is_that_of_the_input_on_the_page(page, pictures):
    page.click("#pick-after")
    page.until(lambda: page.one("#pick").get_attribute("value") == "2")
    page.upload(pictures / "typical.png")
    page.until(lambda: page.one("#pick").get_attribute("value") == "")
    page.click("#pick-after")
    page.until(lambda: page.one("#pick").get_attribute("value") == "3")
    number = page.one("#pick")
    number.clear()
    number.send_keys("9999", Keys.TAB)
    page.until(lambda: page.one("#pick").get_attribute("value") == "3")
    news = page.text("#decision-news")
    assert page.text("#verdict") in news
    assert page.text("#p-value") in news


def test_the_evidence_is_laid_over_the_image(page):
    page.click("#evidence")
    page.until(lambda: page.there(".look.shows .over"))
    assert "evidence for" in page.text("#evidence-body")
    page.click("#evidence")
    page.until(lambda: not page.there(".look .over"))


def test_samples_of_a_class_are_drawn(page):
    page.show("#samples")
    page.until(lambda: len(page.there("#samples-body img")) == 24)

    def shown():
        return page.sources("#samples-body img")

    first = shown()
    Select(page.one("#samples-class")).select_by_visible_text("7")
    page.until(lambda: shown() != first)
    second = shown()
    page.click("#samples-more")
    page.until(lambda: shown() != second)
    third = shown()
    page.show("#samples-temperature").send_keys(Keys.HOME)
    page.until(lambda: shown() != third)
    page.click("#samples-body .thing")
    page.until(lambda: page.sources("#decision .look img")[:1] == shown()[:1])
    top = "return document.getElementById('decision').getBoundingClientRect().top"
    page.until(lambda: 0 <= page.driver.execute_script(top) < 300)


def test_the_way_from_one_image_to_another(page):
    page.show("#between")
    page.until(lambda: len(page.there("#between-body img")) == 9)
    page.until(lambda: page.sources("#decision .look img"))
    before = page.sources("#decision .look img")
    page.click("#pick-after")
    selected = page.until(
        lambda: page.sources("#decision .look img") != before and page.sources("#decision .look img")
    )
    page.click("#between-end")
    page.until(lambda: page.sources("#between-body img")[-1:] == selected)
    assert len(page.there("#between-body img")) == 9
    before = page.looks()
    page.click("#between-bar input")
    page.until(lambda: page.looks() != before)


def test_the_drift_slider_makes_the_p_value_fall(page, pictures):
    page.upload(pictures / "typical.png")
    page.until(lambda: page.there(".verdict.typical#verdict"))
    page.show("#drift")
    page.until(lambda: page.text("#drift-p"))
    p = [page.p_value("#drift-p")]
    assert p[0] == page.p_value()
    canvas = page.looks()
    slider = page.one("#drift-amount")
    for key in (Keys.PAGE_UP, Keys.PAGE_UP, Keys.END):
        slider.send_keys(key)
        p.append(page.p_value("#drift-p"))
    assert page.text("#drift-output") == "100 %"
    assert p[-1] <= 0.05 < p[0]
    assert p[-1] < 0.2 * p[0]
    assert page.there("#drift .verdict.atypical")
    assert page.looks() != canvas
    page.click("#drift-kinds button:nth-child(2)")
    page.until(lambda: page.text("#drift-output") == "50 %")
    page.click("#pick-after")
    page.until(lambda: page.one("#pick").get_attribute("value") == "2")
    page.show("#drift")
    page.until(lambda: page.text("#drift-output") == "0 %")
    page.until(lambda: page.text("#drift-p") == page.text("#p-value"))


def test_quality_shows_curve_and_histograms(page):
    page.show("#quality")
    page.until(lambda: len(page.there("#quality svg")) == 3)
    quality = requests.get(f"{page.address}api/quality", timeout=20).json()
    assert page.text(".lead") == quality["headline"]
    assert f"{quality['sets'][1]['flagged']:.1f} %" in page.text("#quality")


def test_a_table_has_a_form(browser, wine_address):
    page = Page(browser, wine_address)
    assert "drawn from the model" in page.text("#notes")
    assert len(page.there("#features input")) == 13
    assert not page.one("#drift").is_displayed()
    assert not page.one("#upload-label").is_displayed()
    before, p = page.text("#sentence"), page.p_value()
    alcohol = page.show("#features input")
    assert alcohol.get_attribute("data-name") == "alcohol"
    alcohol.clear()
    alcohol.send_keys("90")
    page.until(lambda: page.text("#sentence") != before)
    assert page.p_value() < p
    assert alcohol.get_attribute("value") == "90"
    alcohol.send_keys(Keys.CONTROL, "a", Keys.NULL, Keys.DELETE)
    page.until(lambda: "missing" in page.text("#message"))
    assert alcohol.get_attribute("aria-invalid") == "true"
    alcohol.send_keys("90")
    page.until(lambda: not page.one("#message").is_displayed())
    page.click("#evidence")
    page.until(lambda: len(page.there("#evidence-body li")) == 10)
    assert page.text("#evidence-body .name") == "alcohol"
    page.show("#samples")
    page.until(lambda: len(page.there("#samples-body tbody tr")) == 10)
    page.click("#samples-body tbody button")
    page.until(lambda: page.one("#features input").get_attribute("value") != "90")
    page.check()


LUMINANCE = """
    const parse = (text) => text.match(/[\\d.]+/g).map(Number);
    const linear = (v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    const light = ([r, g, b]) => [r, g, b].map((v) => linear(v / 255))
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const ground = (element) => {
        for (let e = element; e; e = e.parentElement) {
            const colour = parse(getComputedStyle(e).backgroundColor);
            if (colour.length === 3 || colour[3] > 0) return colour;
        }
        return [255, 255, 255];
    };
    const kinds = "h1, h2, h3, p, a, button, label, dt, dd, b, .verdict, .value, .name, figcaption, summary";
    return [...document.querySelectorAll(kinds)]
        .filter((e) => e.offsetParent && e.textContent.trim() && !e.closest(".skip"))
        .map((e) => {
            const [a, b] = [light(parse(getComputedStyle(e).color)), light(ground(e))].sort((x, y) => y - x);
            return [(a + 0.05) / (b + 0.05), e.textContent.trim().slice(0, 40)];
        }).sort((x, y) => x[0] - y[0])[0];
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_it_is_legible_everywhere(browser, digits_address, size, scheme):
    """Nothing is wider than the screen, text stands out from its ground, controls have names and are large."""
    page = Page(browser, digits_address, size, scheme)
    for panel in ("drift", "between", "samples", "quality"):
        page.show(f"#{panel}")
        time.sleep(0.2)
    page.until(lambda: page.there("#quality svg"))
    page.until(lambda: page.there("#samples-body img"))
    wide, room = page.driver.execute_script(
        "const {scrollWidth, clientWidth} = document.documentElement; return [scrollWidth, clientWidth]"
    )
    assert wide == room
    contrast, where = page.driver.execute_script(LUMINANCE)
    assert contrast >= 4.5, where
    page.cdp("Accessibility.enable")
    nodes = page.cdp("Accessibility.getFullAXTree")["nodes"]
    controls = {"button", "link", "combobox", "slider", "spinbutton", "checkbox", "textbox", "image"}
    nameless = [
        node
        for node in nodes
        if not node["ignored"]
        and node.get("role", {}).get("value") in controls
        and not node.get("name", {}).get("value")
    ]
    assert nameless == []
    small = page.driver.execute_script(
        "return [...document.querySelectorAll('button')].filter((b) => b.offsetParent && b.offsetHeight < 24)"
    )
    assert small == []
    page.check()


def test_p_values_are_written_on_their_side_of_alpha(page):
    script = """
        const {roundedP} = await import('/static/dom.js');
        return arguments[0].map((p) => roundedP(p, arguments[1]));
    """
    p = [0.0501, 0.05, 0.04999, 0.997, 1.0, 0.31, 0.00012, 0.00001, 0.0555]
    texts = page.driver.execute_script(
        f"return (async (...arguments) => {{{script}}})(...arguments)", p, 0.05
    )
    assert texts == [rounded_p(value) for value in p]


def test_digits_have_eight_by_eight_pixels():
    """What the tests above take for granted."""
    assert load("digits").shape == (8, 8, 1)
