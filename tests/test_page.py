"""The page of a run: complete in itself, harmless, and in agreement with its numbers."""

import base64
import copy
import itertools
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from helpers.files import png

import ibinn
from ibinn.report.captions import CAPTIONS
from ibinn.report.page import render_page
from ibinn.report.text import (
    calibration,
    cautions,
    density,
    detection,
    duration,
    false_alarms,
    findings,
    headline,
    percent,
    told_gamma,
)

VOID = {"meta", "img", "br", "hr", "link", "input", "wbr"}
EDGES = [0, 1, 2, 3, 4, 5, *range(15, 96, 10), 96, 97, 98, 99, 100]
EVIL = "<script>alert('x')</script>\" onload=\"y"


def one_bin(low, high):
    centre = (low + high) / 200
    ends = {"share_low": centre - 0.004, "share_high": centre + 0.004, "floor_low": 0.0, "floor_high": 1.0}
    return {"low": low / 100, "high": high / 100, "n": 100, "share": centre, **ends}


def one_set(auroc, flagged):
    return {
        "n": 360,
        "entropy_increase": 0.5,
        "auroc": {"combined": auroc, "entropy": 77.7},
        "fpr95": {"combined": 12.3, "entropy": 44.4},
        "detected_at_alpha": {"combined": flagged, "entropy": 33.3},
        "bh": {"fdr": 10.0, "found": 80.1, "false": 9.2},
    }


RESULTS = {
    "method": "ibinn",
    "gamma": 1.0,
    "dataset": "digits",
    "size": "tiny",
    "seed": 0,
    "classes": [str(i) for i in range(10)],
    "levels": 17,
    "n_parameters": 182_176,
    "n_train": 10_078,
    "n_validation": 1800,
    "n_calibration": 1799,
    "n_test": 3600,
    "train_seconds": 38.7,
    "converged": True,
    "noise": "uniform",
    "sigma": None,
    "error": 2.25,
    "nll_y": 0.141,
    "brier": 0.051,
    "entropy": 0.24,
    "loss_x": -1.234,
    "bits_per_dim": 2.0818,
    "bits_per_dim_paper_convention": 1.43,
    "n_draws": 4,
    "calibration": {
        "ece": 0.5,
        "mce": 5.0,
        "ice": 2.0,
        "geo_mean": 1.7,
        "top_label_ece": 1.2,
        "floor": {
            name: {"mean": 1.1, "p95": 2.1} for name in ("ece", "mce", "ice", "geo_mean", "top_label_ece")
        },
        "bins": [one_bin(low, high) for low, high in itertools.pairwise(EDGES)],
        "min_count": 20,
        "n_left_out": 0,
    },
    "score": "combined",
    "alpha": 0.05,
    "false_alarm_rate": {"combined": 5.3, "entropy": 4.9},
    "false_alarm_rate_by_class": {"0": 2.5, "1": None, "2": 7.5},
    "ood": {"noise": one_set(71.5, 23.4), "inverted": one_set(99.6, 98.2), "rotation": one_set(90.0, 60.0)},
    "ood_left_out": {},
    "information": {"ci_xz": 212.3, "ci_yz": 2.16},
    "throughput": 5123.4,
    "intervals": {
        "error": [1.1, 4.0],
        "ood.noise.auroc.combined": [70.1, 72.9],
        "bits_per_dim": [None, None],
    },
}
NEEDED = ("method", "dataset", "n_test", "error")
FIGURE = png(np.zeros((4, 1440, 3), np.uint8))


def changed(**changes):
    """RESULTS with other values; a__b=v stands for results["a"]["b"] = v."""
    results = copy.deepcopy(RESULTS)
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = results
        for key in parents:
            place = place[key]
        place[last] = value
    return results


class Reader(HTMLParser):
    """Every tag with its attributes, and the text; fails where a tag is left open or closed twice."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.open, self.text = [], [], ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        assert len(attrs) == len(dict(attrs)), f"{tag} has an attribute twice"
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.text += data


def read(results=RESULTS, figures=None, config="", title=None):
    page = Reader(render_page(results, figures or {}, config, title))
    page.text = page.text.replace("\u00a0", " ")
    return page


def plain(text):
    return text.replace("\u00a0", " ")


def test_nothing_is_loaded_from_elsewhere():
    page = render_page(RESULTS, dict.fromkeys([*CAPTIONS, "other"], FIGURE), "format = 1\n")
    reader = Reader(page)
    for tag, attributes in reader.tags:
        assert tag not in ("script", "link", "iframe", "object", "embed", "base", "form"), tag
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in ("src", "href", "srcset", "action", "data", "poster"):
                assert value.startswith(("data:image/png;base64,", "#"))
            assert "url(" not in (value or "")
    assert "url(" not in page
    assert "@import" not in page
    assert "//" not in re.sub(r"base64,[^\"]*", "", page)
    policies = [a["content"] for _, a in reader.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policies == ["default-src 'none'; img-src data:; style-src 'unsafe-inline'"]


def test_page_is_semantic_and_fits_a_phone():
    reader = read(figures={"roc": FIGURE})
    names = [tag for tag, _ in reader.tags]
    assert names.count("h1") == names.count("main") == names.count("title") == 1
    assert ("html", {"lang": "en"}) in reader.tags
    assert any(a.get("name") == "viewport" and "width=device-width" in a["content"] for _, a in reader.tags)
    boxes = [a for tag, a in reader.tags if tag == "div" and "scroll" in a.get("class", "")]
    assert len(boxes) == names.count("table")
    assert all(a["tabindex"] == "0" and a["aria-label"] for a in boxes)
    assert all("scope" in a for tag, a in reader.tags if tag == "th")


def test_whatever_comes_from_data_is_escaped():
    results = changed(
        dataset=EVIL,
        method=EVIL,
        size=EVIL,
        noise=EVIL,
        score=EVIL,
        classes=[EVIL, "b"],
        false_alarm_rate={EVIL: 5.0},
        false_alarm_rate_by_class={EVIL: 5.0},
        ood={EVIL: {"n": 3, "auroc": {EVIL: 50.0}, "detected_at_alpha": {EVIL: 3.0}}},
        ood_left_out={EVIL: EVIL},
    )
    for title in (None, EVIL):
        reader = read(results, {EVIL: FIGURE}, EVIL, title)
        assert "script" not in [tag for tag, _ in reader.tags]
        assert not any("onload" in attributes for _, attributes in reader.tags)
        assert reader.text.count(EVIL) > 10


@pytest.mark.parametrize("missing", [*(key for key in RESULTS if key not in NEEDED), "all"])
@pytest.mark.parametrize("how", ["no key", "null"])
def test_whatever_is_optional_may_be_missing(missing, how):
    gone = [key for key in RESULTS if key not in NEEDED] if missing == "all" else [missing]
    results = {key: None if key in gone else value for key, value in RESULTS.items()}
    if how == "no key":
        results = {key: value for key, value in results.items() if key not in gone}
    text = read(results).text
    assert "97.8 %" in text
    assert "did not converge" not in text
    assert "None" not in text
    assert "nan" not in text


def test_every_null_within_may_be_there():
    results = changed(calibration__bins=[], calibration__ece=None, calibration__top_label_ece=None)
    results["calibration"]["floor"]["ece"] = {"mean": None, "p95": None}
    for found in results["ood"].values():
        found.update(entropy_increase=None, bh={"fdr": 10.0, "found": 0.0, "false": None})
    results["intervals"] = dict.fromkeys(RESULTS["intervals"], None)
    results["information"] = {"ci_xz": None, "ci_yz": None}
    assert "None" not in read(results).text


class TestHeadline:
    def test_share_and_interval_of_right_answers(self):
        assert plain(headline(RESULTS)) == (
            "On 3,600 test images it never saw, it names the right class for 97.8 % "
            "(95 % interval 96.0 to 98.9 %)."
        )
        assert "97.8 % (95 % interval 96.0 to 98.9 %)" in read().text

    def test_without_interval(self):
        assert plain(headline(changed(intervals={}))).endswith("for 97.8 %.")

    def test_no_mistake_is_not_certainty(self):
        text = plain(headline(changed(error=0.0, n_test=360, intervals={"error": [0.0, 0.0]})))
        assert text.endswith("for 100 % (of all such images at least 99.2 %, with 95 % confidence).")

    def test_one_test_row_of_a_table(self):
        assert headline(changed(levels=None, n_test=1)).startswith("On 1 test row it never saw")

    @pytest.mark.parametrize(
        ("share", "told"),
        [
            (97.75, "97.8 %"),
            (100.0, "100 %"),
            (0.0, "0 %"),
            (99.97, "99.97 %"),
            (0.004, "0.004 %"),
            (5, "5.0 %"),
        ],
    )
    def test_nearly_all_is_not_all(self, share, told):
        assert plain(percent(share)) == told


class TestCalibration:
    def test_example_is_the_bin_of_ninety_percent(self):
        results = changed()
        results["calibration"]["bins"][13].update(share=0.881, share_low=0.8, share_high=0.94, n=118)
        assert plain(calibration(results)).startswith(
            "When it says 90 % (between 85 and 95 %), it is right in 88.1 % of 118 cases "
            "(95 % interval 80.0 to 94.0 %)."
        )

    def test_next_bin_where_that_one_is_too_thin(self):
        results = changed()
        results["calibration"]["bins"][13].update(n=20)
        assert plain(calibration(results)).startswith("When it says 95.5 % (between 95 and 96 %)")

    def test_resampling_a_constant_gives_no_interval(self):
        results = changed()
        results["calibration"]["bins"][13].update(share=1.0, share_low=1.0, share_high=1.0)
        assert "it is right in 100 % of 100 cases. On average" in plain(calibration(results))

    def test_no_example_without_bins_above_one_half(self):
        assert calibration(changed(calibration__bins=[one_bin(0, 1)])).startswith("On average")

    def test_below_the_floor_is_as_good_as_perfect(self):
        text = calibration(RESULTS)
        assert "off by 1.2 percentage points (top-label ECE)" in text
        assert "1.1 on average, and at most 2.1 in 95 of 100" in text
        assert text.endswith("indistinguishable from perfect calibration.")

    def test_above_the_floor_is_worse_by_so_much(self):
        text = calibration(changed(calibration__top_label_ece=4.6, calibration__ece=2.2))
        assert text.endswith("this one is worse, by 3.5 points over that average.")
        assert "indistinguishable" not in text

    @pytest.mark.parametrize(("share", "told"), [(0.7, "too sure of itself"), (0.99, "too cautious")])
    def test_it_says_to_which_side(self, share, told):
        results = changed(calibration__top_label_ece=4.6, calibration__ece=2.2)
        results["calibration"]["bins"][13].update(share=share, floor_low=0.8, floor_high=0.95)
        assert told in calibration(results)

    @pytest.mark.parametrize(
        ("top", "every", "told"), [(1.2, 2.5, "an error does show: ECE 2.50"), (4.6, 0.5, "no error shows")]
    )
    def test_both_kinds_of_error_where_they_disagree(self, top, every, told):
        assert told in calibration(changed(calibration__top_label_ece=top, calibration__ece=every))
        assert told not in calibration(RESULTS)


class TestStrangeInputs:
    def test_false_alarms_against_what_was_asked_for(self):
        text = plain(false_alarms(changed(alpha=0.1)))
        assert text.startswith(
            "Of inputs like its training data it flags 5.3 % as strange, where 10 % were asked"
        )
        assert "“combined”" in text

    def test_easiest_and_hardest_by_the_headline_score(self):
        text = plain(detection(RESULTS))
        assert (
            "Easiest to notice: images with bright and dark swapped (inverted), 98.2 % flagged, AUROC 99.6 %"
            in text
        )
        assert "Hardest: images with a little noise added (noise), 23.4 % flagged, AUROC 71.5 %" in text
        assert "rotation" not in text

    def test_a_single_set_is_neither(self):
        text = detection(changed(ood={"my <set>": one_set(80.0, 40.0)}))
        assert text.startswith("It was tried on “my <set>”, 40.0")
        assert "Hardest" not in text

    def test_a_control_is_no_failure(self):
        results = changed(ood__jpeg=one_set(51.0, 5.0))
        assert "A control, with little to notice: images saved as JPEG (jpeg)" in detection(results)
        assert "Hardest: images with a little noise" in detection(results)
        assert titles(results) == []

    def test_none(self):
        assert detection(changed(ood={})).startswith("No strange inputs were put to it")
        assert "strange" not in [attributes.get("id") for _, attributes in read(changed(ood={})).tags]

    def test_tables_agree_with_the_numbers(self):
        page = render_page(RESULTS, {}, "")
        rows = [re.sub(r"<[^>]*>", " ", row).split() for row in re.findall(r"<tr.*?</tr>", page, re.S)]
        noise = next(row for row in rows if "noise" in row and "23.4" in row)
        for value in ("71.5", "70.1", "72.9", "12.3", "+0.50", "80.1", "9.2", "360"):
            assert value in noise
        first, second, third = (
            next(i for i, row in enumerate(rows) if name in row) for name in ("98.2", "60.0", "23.4")
        )
        assert first < second < third
        main = re.findall(r'<tr class="main">.*?</tr>', page, re.S)
        assert len(main) == 3
        assert all("Combined" in row for row in main)


class TestDensity:
    def test_bits_against_plain_storage(self):
        text = density(RESULTS)
        assert "2.08 bits per pixel value (bits/dim, an upper bound)" in text
        assert "plainly takes 4.09" in text

    def test_gaussian_noise_gives_no_bound(self):
        text = density(changed(noise="gaussian", sigma=0.01))
        assert "no bound" in text
        assert "upper" not in text

    @pytest.mark.parametrize(
        ("method", "name"), [("resnet", "ResNet"), ("irevnet", "i-RevNet"), ("vib", "VIB")]
    )
    def test_models_without_one_say_what_is_missing(self, method, name):
        results = changed(method=method, gamma=None, score="entropy", loss_x=None, bits_per_dim=None)
        text = density(results)
        assert f"{name}, has no density" in text
        assert "no samples" in text
        shown = read(results).text
        assert text in shown
        assert "2.08" not in shown

    def test_tables_have_no_bits(self):
        text = density(changed(levels=None, bits_per_dim=None))
        assert "1.234 nats per column" in text

    def test_a_table_is_never_called_images(self):
        results = changed(levels=None, bits_per_dim=None, bits_per_dim_paper_convention=None, noise=None)
        results.update(n_test=80, n_calibration=9, ood={"permuted": one_set(55.0, 5.0)})
        text = read(results, {"latent": FIGURE, "histograms": FIGURE}).text
        assert "image" not in text.replace("for images, complexity", "")
        assert "80 test rows" in text


def titles(results):
    return [note.title for note in cautions(results)]


WARNINGS = {
    "The training did not converge": {"converged": False},
    "Some inputs got no answer": {"n_without_answer": 3},
    "Trained with γ = 0": {"gamma": 0.0},
    "Trained with γ = ∞": {"gamma": "inf"},
    "More false alarms than asked for": {"false_alarm_rate__combined": 8.1},
    "It hardly notices some strange inputs": {"ood__noise__auroc__combined": 59.9},
    "Only 999 test images": {"n_test": 999},
    "Coarse p-values": {"n_calibration": 999},
    "Not tested": {"ood_left_out": {"quickdraw": "no such file"}},
}


class TestWarnings:
    def test_none_without_reason(self):
        assert cautions(RESULTS) == []
        assert "Read with care" not in read().text

    @pytest.mark.parametrize(("title", "change"), WARNINGS.items(), ids=WARNINGS)
    def test_each_for_its_own_reason_alone(self, title, change):
        results = changed(**change)
        (note,) = cautions(results)
        assert note.title == title
        shown = read(results).text
        assert "Read with care" in shown
        assert plain(f"{note.title}. {note.text}") in shown

    def test_limits_belong_to_the_good_side(self):
        edge = changed(n_test=1000, n_calibration=1000, ood__noise__auroc__combined=60.0)
        assert titles(edge) == []

    def test_all_at_once(self):
        changes = {path: value for change in WARNINGS.values() for path, value in change.items()}
        changes |= {"gamma": 0.0, "n_test": 999, "false_alarm_rate__combined": 40.0}
        assert titles(changed(**changes)) == [title for title in WARNINGS if title != "Trained with γ = ∞"]

    def test_gamma_of_models_without_density(self):
        assert (
            titles(changed(method="vib", gamma="inf")) == titles(changed(method="resnet", gamma=None)) == []
        )
        assert "density" not in cautions(changed(method="vib", gamma=0.0))[0].text

    def test_mistakes_are_counted(self):
        assert "rests on 8 mistakes" in cautions(changed(n_test=360, error=100 * 8 / 360))[0].text
        assert "rests on 1 mistake:" in cautions(changed(n_test=50, error=2.0))[0].text

    def test_smallest_p_value(self):
        (note,) = cautions(changed(n_calibration=179))
        assert "none is below 1/180 = 0.0056" in note.text
        assert "from 2 to 8\u00a0%" in note.text  # 0.05 ± 1.96 sqrt(0.05 * 0.95 / 181)

    def test_too_few_to_flag_anything(self):
        (note,) = cautions(changed(n_calibration=10, false_alarm_rate={"combined": 0.0}))
        assert "1/11 = 0.091, and nothing can be flagged at 5\u00a0%" in note.text

    def test_inputs_that_look_more_familiar_than_the_data(self):
        (note,) = cautions(changed(ood__noise__auroc__combined=31.0, ood__rotation__auroc__combined=55.0))
        assert "AUROC 31.0\u00a0%, so that they look more familiar" in note.text
        assert note.text.count("more familiar") == 1
        assert note.text.startswith("Images turned by 90° (rotation)")

    def test_sets_that_were_left_out_with_the_reason(self):
        (note,) = cautions(changed(ood_left_out={"quickdraw": "no file of that name."}))
        assert note.text == "Drawings by hand (quickdraw): no file of that name."


class TestFigures:
    def test_known_ones_in_order_then_the_others(self):
        names = ["zebra", *reversed(CAPTIONS), "all_the_rest"]
        reader = read(figures=dict.fromkeys(names, FIGURE))
        known = [caption.alt.replace("{things}", "images") for caption in CAPTIONS.values()]
        alts = [attributes["alt"] for tag, attributes in reader.tags if tag == "img"]
        assert alts == [*known, "Figure: zebra", "Figure: all the rest"]
        for caption in CAPTIONS.values():
            assert caption.title in reader.text
            assert caption.text.replace("{things}", "images") in reader.text
            assert 2 <= caption.text.count(". ") + 1 <= 4

    def test_bytes_arrive_whole(self):
        (source,) = (
            attributes["src"] for tag, attributes in read(figures={"roc": FIGURE}).tags if tag == "img"
        )
        assert base64.b64decode(source.removeprefix("data:image/png;base64,"), validate=True) == FIGURE

    def test_one_scale_for_all(self):
        widths = {"roc": 864, "training": 1440}
        figures = {name: png(np.zeros((4, dots, 3), np.uint8)) for name, dots in widths.items()}
        reader = read(figures=figures)
        shown = [int(attributes["width"]) for tag, attributes in reader.tags if tag == "img"]
        assert shown == [544, 907]
        assert [attributes for tag, attributes in reader.tags if tag == "figure"] == [
            {"class": "narrow"},
            {},
        ]

    def test_none(self):
        assert "img" not in [tag for tag, _ in read().tags]


class TestRun:
    def test_facts(self):
        text = re.sub(r"\s+", " ", read().text)
        for fact in (
            "10,078 images to learn from",
            "1,800 images to choose the best epoch",
            "1,799 images for p-values alone",
            "3,600 images for this report alone",
            "Parameters182,176",
            "Seed0",
            "Training time39 s",
            "10: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9",
            f"ibinn{ibinn.__version__}",
            "IB-INN with γ = 1",
        ):
            assert fact in text

    def test_many_classes_are_cut_short(self):
        text = read(changed(classes=[f"c{i}" for i in range(100)])).text
        assert "100: c0, c1" in text
        assert "c11 and 88 more" in text
        assert "c12" not in text

    def test_configuration_is_there_as_written(self):
        config = 'data = "a & b"\n[network]\nblocks = [4, 4]\n'
        reader = read(config=config)
        assert config in reader.text
        assert "details" in [tag for tag, _ in reader.tags]

    def test_title(self):
        assert "<title>Classifier for digits</title>" in render_page(RESULTS, {}, "")
        assert "<title>Mine</title>" in render_page(RESULTS, {}, "", "Mine")

    def test_long_paths_can_break(self):
        page = render_page(changed(dataset="a/long_path"), {}, "")
        assert "<h1>Classifier for a/<wbr>long_<wbr>path</h1>" in page
        assert "<title>Classifier for a/long_path</title>" in page

    @pytest.mark.parametrize(
        ("seconds", "told"),
        [(0.2, "0 s"), (38.7, "39 s"), (59.6, "1 min 0 s"), (1234, "20 min 34 s"), (11_100, "3 h 5 min")],
    )
    def test_duration(self, seconds, told):
        assert duration(seconds) == told

    def test_gamma(self):
        assert [told_gamma(g) for g in (1.0, 0.0, 1 / 784, "inf", None)] == ["1", "0", "0.00128", "∞", ""]


def test_findings_have_an_answer_each():
    assert len(findings(RESULTS)) == 4
    assert all(note.title.endswith("?") and note.text.endswith(".") for note in findings(RESULTS))
