"""The page of a run: self-contained, harmless, and in agreement with its results."""

import base64
import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from helpers.files import png
from helpers.results import CLASSES, calibration, intervals, ood_result, results

import ibinn
from ibinn.formats import duration, gamma_text, percentage
from ibinn.report import text
from ibinn.report.page import render_page
from ibinn.run.results import Calibration, FalseDiscoveries, Floor, Information, Intervals

VOID = {"meta", "img", "br", "hr", "link", "input", "wbr"}
EVIL = "<script>alert('x')</script>\" onload=\"y"
FIGURE = png(np.zeros((4, 1440, 3), np.uint8))
FIGURES = (
    *("calibration", "histograms", "roc", "latent"),
    *("samples", "interpolations", "trajectory", "training"),
)
NOISE, INVERTED = ood_result(71.5, 23.4), ood_result(99.6, 98.2)
TABLE = {"levels": None, "noise": None, "bits_per_dim": None, "bits_per_dim_paper_convention": None}
WITHOUT_DENSITY = {"score": "entropy", "noise": None, "loss_x": None, "bits_per_dim": None, "n_draws": 0}


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


def read(run=None, figures=None, config="", title=None):
    page = Reader(render_page(run or results(), figures or {}, config, title))
    page.text = plain(page.text)
    return page


def plain(sentence):
    return re.sub(r"\s+", " ", sentence)


def numbers(sentence):
    """All numbers of a sentence, as text."""
    return re.findall(r"\d+(?:[.,]\d+)*", sentence)


def with_bin(i, **changes):
    """The calibration of the factory with one changed bin; 13 is the bin from 85 to 95 %."""
    bins = list(calibration().bins)
    bins[i] = replace(bins[i], **changes)
    return calibration(bins=tuple(bins))


# --- the file ----------------------------------------------------------------------------------------


def test_nothing_is_loaded_from_elsewhere():
    page = render_page(results(), dict.fromkeys([*FIGURES, "other"], FIGURE), "format = 1\n")
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


def test_text_from_the_data_is_escaped():
    scores = {EVIL: 50.0}
    run = results(
        dataset=EVIL,
        size=EVIL,
        noise=EVIL,
        score=EVIL,
        classes=(EVIL, "b"),
        false_alarm_rate=scores,
        false_alarm_rate_by_class=scores,
        ood={EVIL: replace(ood_result(), auroc=scores, fpr95=scores, detected_at_alpha=scores)},
        ood_left_out={EVIL: EVIL},
    )
    for title in (None, EVIL):
        reader = read(run, {EVIL: FIGURE}, EVIL, title)
        assert "script" not in [tag for tag, _ in reader.tags]
        assert not any("onload" in attributes for _, attributes in reader.tags)
        assert reader.text.count(EVIL) > 10


MISSING = {
    "intervals": {"intervals": Intervals()},
    "limits": {"intervals": Intervals(error=(None, None), bits_per_dim=(4.2, 4.2))},
    "calibration": {"calibration": Calibration()},
    "floors": {"calibration": calibration(floor={"ece": Floor(None, None)})},
    "labels": {"nll_y": None, "brier": None, "entropy": None, "information": Information()},
    "density": {"loss_x": None, "bits_per_dim": None, "bits_per_dim_paper_convention": None},
    "a table": TABLE,
    "gamma": {"gamma": None},
    "alarms": {"false_alarm_rate": {"combined": None}, "false_alarm_rate_by_class": {"0": None}},
    "OoD sets": {"ood": {}},
    "the score": {"score": "unknown"},
    "numbers of an OoD set": {
        "ood": {
            "noise": ood_result(
                entropy_increase=None, detected_at_alpha={}, bh=FalseDiscoveries(10.0, 0.0, None)
            )
        }
    },
}


@pytest.mark.parametrize(
    "changes", [*MISSING.values(), {k: v for c in MISSING.values() for k, v in c.items()}]
)
def test_optional_numbers_may_be_missing(changes):
    shown = read(results(**changes)).text
    assert "90.0 %" in shown
    assert "None" not in shown
    assert "nan" not in shown


def test_a_table_is_never_called_images():
    run = results(**TABLE, n_test=80, n_calibration=9, ood={"permuted": ood_result(55.0, 5.0)})
    shown = read(run, {"latent": FIGURE, "histograms": FIGURE}).text
    assert "image" not in shown.replace("for images, complexity", "")
    assert "80 test rows" in shown


def test_title_and_long_paths():
    assert "<title>Classifier for cifar10</title>" in render_page(results(), {}, "")
    assert "<title>Mine</title>" in render_page(results(), {}, "", "Mine")
    page = render_page(results(dataset="a/long_path"), {}, "")
    assert "<h1>Classifier for a/<wbr>long_<wbr>path</h1>" in page
    assert "<title>Classifier for a/long_path</title>" in page


def test_tables_agree_with_the_numbers():
    run = results(ood={"noise": NOISE, "rotation": ood_result(90.0, 60.0), "inverted": INVERTED})
    page = render_page(run, {}, "")
    rows = [re.sub(r"<[^>]*>", " ", row).split() for row in re.findall(r"<tr.*?</tr>", page, re.S)]
    noise = next(row for row in rows if "noise" in row and "23.4" in row)
    for value in ("71.5", "70.5", "72.5", "30.0", "+0.50", "35.0", "9.2", "360"):
        assert value in noise
    order = [next(i for i, row in enumerate(rows) if name in row) for name in ("98.2", "60.0", "23.4")]
    assert order == sorted(order)
    main = re.findall(r'<tr class="main">.*?</tr>', page, re.S)
    assert len(main) == 3
    assert all("Combined" in row for row in main)
    error = next(row for row in rows if row[:1] == ["Error,"])
    assert error[2:6] == ["10.00", "9.40", "to", "10.60"]


def test_facts_of_the_run():
    shown = read().text
    facts = (
        "40,000 images",
        "5,000 images",
        "10,000 images",
        "1,945,760",
        "1 h 23 min",
        ", ".join(CLASSES),
    )
    for fact in (*facts, ibinn.__version__, "IB-INN with γ = 1"):
        assert fact in shown


def test_many_classes_are_cut_short():
    shown = read(results(classes=tuple(f"c{i}" for i in range(100)))).text
    assert "100: c0, c1" in shown
    assert "c11 and 88 more" in shown
    assert "c12" not in shown


def test_configuration_is_there_as_written():
    config = 'data = "a & b"\n[network]\nblocks = [4, 4]\n'
    reader = Reader(render_page(results(), {}, config))
    assert config in reader.text
    assert "details" in [tag for tag, _ in reader.tags]


class TestFigures:
    def test_known_ones_in_order_then_the_others(self):
        def shown(names):
            reader = read(figures=dict.fromkeys(names, FIGURE))
            return [attributes["alt"] for tag, attributes in reader.tags if tag == "img"]

        known = [shown([name])[0] for name in FIGURES]
        assert len({*known}) == len(FIGURES)
        assert not any(alt.startswith("Figure") for alt in known)
        alts = shown(["zebra", *reversed(FIGURES), "all_the_rest"])
        assert alts == [*known, "Figure: zebra", "Figure: all the rest"]

    @pytest.mark.parametrize("name", FIGURES)
    def test_each_has_a_caption(self, name):
        (caption,) = re.findall(
            r"<figcaption>(.*?)</figcaption>", render_page(results(), {name: FIGURE}, ""), re.S
        )
        assert 2 <= plain(caption).count(". ") + 1 <= 4

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


# --- sentences ---------------------------------------------------------------------------------------


def test_every_finding_is_on_the_page():
    shown = read().text
    assert plain(text.headline(results())) in shown
    assert len(text.findings(results())) == 4
    for finding in text.findings(results()):
        assert finding.title.endswith("?")
        assert finding.text.endswith(".")
        assert plain(finding.text) in shown


class TestHeadline:
    def test_share_and_interval_of_right_answers(self):
        assert numbers(text.headline(results())) == ["10,000", "90.0", "95", "89.4", "90.6"]
        assert numbers(text.headline(results(intervals=Intervals()))) == ["10,000", "90.0"]

    def test_no_mistake_is_not_certainty(self):
        run = results(error=0.0, n_test=360, intervals=intervals(error=(0.0, 0.0)))
        assert numbers(text.headline(run)) == ["360", "100", "99.2", "95"]  # 0.05 ** (1 / 360) = 0.992

    def test_one_test_row_of_a_table(self):
        assert "1 test row " in text.headline(results(**TABLE, n_test=1))

    @pytest.mark.parametrize(
        ("share", "expected"),
        [(97.75, "97.8"), (100.0, "100"), (0.0, "0"), (99.97, "99.97"), (0.004, "0.004"), (5, "5.0")],
    )
    def test_nearly_all_is_not_all(self, share, expected):
        assert percentage(share) == f"{expected}\u00a0%"


class TestCalibration:
    def test_example_is_the_bin_of_ninety_percent(self):
        found = with_bin(13, share=0.881, share_low=0.8, share_high=0.94, n=118)
        assert numbers(text.calibration_example(found)) == [
            "90",
            "85",
            "95",
            "88.1",
            "118",
            "95",
            "80.0",
            "94.0",
        ]

    def test_next_bin_where_that_one_is_too_thin(self):
        assert numbers(text.calibration_example(with_bin(13, n=20)))[:3] == ["95.5", "95", "96"]

    def test_the_bootstrap_of_a_constant_gives_no_interval(self):
        found = with_bin(13, share=1.0, share_low=1.0, share_high=1.0)
        assert numbers(text.calibration_example(found)) == ["90", "85", "95", "100", "100"]

    def test_no_example_without_bins_above_one_half(self):
        assert text.calibration_example(calibration(bins=calibration().bins[:1])) == ""

    def test_below_the_floor_is_as_good_as_perfect(self):
        verdict = text.calibration_verdict(calibration())
        assert numbers(verdict)[:3] == [
            "1.2",
            "1.1",
            "1.4",
        ]  # the error, mean and 95th percentile of the floor
        assert "indistinguishable" in verdict

    def test_above_the_floor_is_worse_than_perfect(self):
        verdict = text.calibration_verdict(calibration(top_label_ece=4.6, ece=2.2))
        assert numbers(verdict)[-1] == "3.5"  # 4.6 - 1.08
        assert "indistinguishable" not in verdict

    @pytest.mark.parametrize(
        ("shares", "side"),
        [((0.7, 0.955), "sure"), ((0.99, 0.955), "cautious"), ((0.7, 0.99), ""), ((0.9, 0.955), "")],
    )
    def test_the_side_of_the_error(self, shares, side):
        bins = list(calibration().bins)
        for i, share in zip((13, 14), shares, strict=True):
            bins[i] = replace(bins[i], share=share)
        found = text.bias_text(calibration(bins=tuple(bins)))
        assert (side in found) if side else found == ""

    @pytest.mark.parametrize(("top", "every"), [(1.2, 2.5), (4.6, 0.5)])
    def test_both_kinds_of_error_where_they_disagree(self, top, every):
        verdict = text.calibration_verdict(calibration(top_label_ece=top, ece=every))
        assert numbers(verdict)[-2:] == [f"{every:.2f}", "0.60"]
        assert "0.60" not in text.calibration_verdict(calibration())


class TestStrangeInputs:
    def test_false_alarms_beside_the_alarm_level(self):
        run = results(alpha=0.1, false_alarm_rate={"combined": 5.3}, intervals=Intervals())
        assert numbers(text.false_alarm_text(run)) == ["5.3", "10"]
        assert "“combined”" in text.false_alarm_text(run)
        assert "atypical" in text.false_alarm_text(run)

    def test_easiest_and_hardest_by_the_headline_score(self):
        run = results(ood={"noise": NOISE, "rotation": ood_result(90.0, 60.0), "inverted": INVERTED})
        found = text.detection_text(run)
        assert numbers(found)[:4] == ["98.2", "99.6", "23.4", "71.5"]
        assert found.index("(inverted)") < found.index("(noise)")
        assert "rotation" not in found

    def test_a_single_set_is_neither(self):
        found = text.detection_text(results(ood={"my <set>": ood_result(80.0, 40.0)}))
        assert "“my <set>”" in found
        assert numbers(found)[:2] == ["40.0", "80.0"]
        assert "Hardest" not in found

    def test_a_control_is_no_failure(self):
        run = results(ood={"noise": NOISE, "inverted": INVERTED, "jpeg": ood_result(51.0, 5.0)})
        found = text.detection_text(run)
        assert found.index("(noise)") < found.index("ontrol") < found.index("(jpeg)")
        assert text.cautions(run) == []

    def test_none(self):
        assert numbers(text.detection_text(results(ood={}))) == []
        assert "ood" not in [attributes.get("id") for _, attributes in read(results(ood={})).tags]


class TestDensity:
    def test_bits_against_plain_storage(self):
        found = text.density_text(results(levels=17, bits_per_dim=2.0818))
        assert numbers(found) == ["2.08", "4.09"]
        assert "upper bound" in found

    def test_gaussian_noise_gives_no_bound(self):
        found = text.density_text(results(noise="gaussian", sigma=0.01))
        assert "no bound" in found
        assert "upper" not in found

    @pytest.mark.parametrize("method", ["resnet", "irevnet", "vib"])
    def test_models_without_one(self, method):
        run = results(method=method, gamma=None, **WITHOUT_DENSITY)
        assert f"{text.METHOD_NAMES[method]}, has no density" in text.density_text(run)
        assert "4.25" not in read(run).text

    def test_tables_have_no_bits(self):
        assert numbers(text.density_text(results(**TABLE))) == ["2.600"]


CAUTIONS = {
    text.not_converged: {"converged": False},
    text.not_finite: {"n_without_answer": 3},
    text.one_sided_loss: {"gamma": 0.0},
    text.many_false_alarms: {"false_alarm_rate": {"combined": 8.1}},
    text.near_guessing: {"ood": {"noise": ood_result(59.9)}},
    text.few_tests: {"n_test": 999},
    text.few_calibration: {"n_calibration": 999},
}


def raised(run):
    """The cautions that apply, by function."""
    return [caution for caution in CAUTIONS if caution(run) is not None]


class TestCautions:
    def test_none_without_reason(self):
        assert text.cautions(results()) == []
        assert "aside" not in [tag for tag, _ in read().tags]

    @pytest.mark.parametrize(("caution", "change"), CAUTIONS.items())
    def test_each_for_its_own_reason_alone(self, caution, change):
        run = results(**change)
        assert text.cautions(run) == [caution(run)]
        assert plain(f"{caution(run).title}. {caution(run).text}") in read(run).text

    def test_limits_belong_to_the_good_side(self):
        run = results(n_test=1000, n_calibration=1000, ood={"noise": ood_result(text.NEAR_GUESSING)})
        assert text.cautions(run) == []

    def test_all_at_once(self):
        changes = {field: value for change in CAUTIONS.values() for field, value in change.items()}
        changes |= {"false_alarm_rate": {"combined": 40.0}, "ood_left_out": {"quickdraw": "no such file"}}
        run = results(**changes)
        assert raised(run) == [*CAUTIONS]
        assert len(text.cautions(run)) == len(CAUTIONS) + 1

    def test_gamma(self):
        assert raised(results(gamma=math.inf)) == [text.one_sided_loss]
        assert (
            raised(results(method="vib", gamma=math.inf, n_draws=0))
            == raised(results(method="resnet", gamma=None, n_draws=0))
            == []
        )
        assert "density" not in text.one_sided_loss(results(method="vib", gamma=0.0, n_draws=0)).text

    def test_mistakes_are_counted(self):
        assert numbers(text.few_tests(results(n_test=360, error=100 * 8 / 360)).text) == ["8"]
        assert numbers(text.few_tests(results(n_test=50, error=2.0)).text) == ["1"]

    def test_smallest_p_value(self):
        found = numbers(text.few_calibration(results(n_calibration=179)).text)
        assert found[:4] == ["179", "1", "180", "0.0056"]
        assert found[-2:] == ["2", "8"]  # 0.05 ± 1.96 sqrt(0.05 * 0.95 / 181)

    def test_too_few_to_flag_anything(self):
        found = text.few_calibration(results(n_calibration=10)).text
        assert numbers(found) == ["10", "1", "11", "0.091", "5"]
        assert "nothing can be flagged" in found

    def test_inputs_that_score_lower_than_the_test_data(self):
        found = text.near_guessing(
            results(ood={"noise": ood_result(31.0), "rotation": ood_result(55.0)})
        ).text
        assert found.index("(rotation)") < found.index("(noise)")
        assert re.search(r"31.0\s%, so they score lower", found)
        assert found.count("lower") == 1

    def test_sets_that_were_left_out_with_the_reason(self):
        (found,) = text.cautions(results(ood_left_out={"quickdraw": "no file of that name."}))
        assert "(quickdraw): no file of that name." in found.text


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.2, "0 s"), (38.7, "39 s"), (59.6, "1 min 0 s"), (1234, "20 min 34 s"), (11_100, "3 h 5 min")],
)
def test_duration(seconds, expected):
    assert duration(seconds) == expected


def test_gamma_text():
    assert [gamma_text(g) for g in (1.0, 0.0, 1 / 784, math.inf)] == ["1", "0", "0.00127551", "∞"]
