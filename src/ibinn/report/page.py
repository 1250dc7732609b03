"""One run as one self-contained HTML file: no script, nothing loaded from anywhere.

The page and its captions are in page.html.jinja, its styles in page.css.
"""

import base64
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from ibinn import __version__
from ibinn.formats import decimal, duration, gamma_text, percentage
from ibinn.report import text
from ibinn.run.results import Interval, Results

DOTS_TO_PIXELS = 0.63  # figures have 200 dots per inch; the widest, 7.2 inches, fill the page
BESIDE = 580  # a figure with fewer CSS pixels has its caption beside it


@dataclass(frozen=True)
class Card:
    """A number to remember."""

    title: str
    value: str
    note: str


@dataclass(frozen=True)
class Picture:
    """A PNG as a data URL, with its width in CSS pixels."""

    source: str
    width: int

    @property
    def is_narrow(self) -> bool:
        return self.width < BESIDE


def render_page(
    results: Results, figures: Mapping[str, bytes], config: str, title: str | None = None
) -> str:
    """The page as HTML.

    Parameters
    ----------
    results
        The numbers of the evaluation.
    figures
        PNG files by name. Figures without a caption of their own come last.
    config
        The text of config.toml.
    title
        Heading of the page. By default it names the data set.
    """
    return (
        environment()
        .get_template("page.html.jinja")
        .render(
            css=Markup(files("ibinn.report").joinpath("page.css").read_text(encoding="utf-8")),
            version=__version__,
            title=title or f"Classifier for {results.dataset}",
            results=results,
            lead=lead(results),
            cards=cards(results),
            names=easiest_first(results),
            scores=scores_of(results),
            class_alarms=class_alarms(results),
            pictures={name: as_picture(png) for name, png in figures.items()},
            config=config,
            text=text,
        )
    )


def environment() -> Environment:
    env = Environment(
        loader=PackageLoader("ibinn", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    env.filters |= {
        "breakable": breakable,
        "capital": text.capital,
        "decimal": decimal,
        "duration": duration,
        "gamma": gamma_text,
        "interval": interval_ends,
        "percentage": percentage,
    }
    return env


def lead(results: Results) -> Markup:
    """The headline with the share of right answers emphasised."""
    share = percentage(100 - results.error)
    return escape(text.headline(results)).replace(share, Markup("<strong>{}</strong>").format(share), 1)


def cards(results: Results) -> list[Card]:
    """The numbers to remember, each with what to compare it with."""
    calibration, found, right = results.scaled.calibration, [], text.right_range(results)
    floor = calibration.floor.get("top_label_ece")
    note = "" if right is None else f"{right[0]:.1f} to {right[1]:.1f}\u00a0%"
    found.append(Card("Right class", percentage(100 - results.error), note))
    if calibration.top_label_ece is not None:
        note = f"if perfect: up to {floor.p95:.1f}\u00a0%" if floor and floor.p95 is not None else ""
        found.append(Card("Calibration error", f"{calibration.top_label_ece:.1f}\u00a0%", note))
    if (rate := text.alarm_rate(results)) is not None:
        found.append(
            Card("False alarms", f"{rate:.1f}\u00a0%", f"alarm level: {100 * results.alpha:g}\u00a0%")
        )
    if detections := text.detections(results):
        ends = dict.fromkeys(f"{detections[i].auroc:.0f}" for i in (-1, 0))
        note = f"AUROC on {len(detections)} set{'s' * (len(detections) > 1)}; guessing: 50\u00a0%"
        found.append(Card("Detection", f"{'–'.join(ends)}\u00a0%", note))
    if results.bits_per_dim is not None:
        note = "" if results.levels is None else f"stored plainly: {math.log2(results.levels):.2f}"
        found.append(Card("Bits/dim", f"{results.bits_per_dim:.2f}", note))
    return found


def easiest_first(results: Results) -> list[str]:
    """The OoD sets by the AUROC of the headline score, those without it last."""
    names = [detection.name for detection in text.detections(results)]
    return [*names, *(name for name in results.ood if name not in names)]


def scores_of(results: Results) -> list[str]:
    """The scores of all OoD sets, known ones first."""
    found = {score for ood in results.ood.values() for score in ood.auroc}
    return [*(s for s in text.SCORE_MEANINGS if s in found), *sorted(found - set(text.SCORE_MEANINGS))]


def class_alarms(results: Results) -> list[tuple[str, float]]:
    """The false alarm rates by class, the lowest first."""
    rates = results.false_alarm_rate_by_class.items()
    return sorted(((name, rate) for name, rate in rates if rate is not None), key=lambda pair: pair[1])


def as_picture(png: bytes) -> Picture:
    width = int.from_bytes(png[16:20])  # where the header of a PNG has it
    source = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    return Picture(source, round(DOTS_TO_PIXELS * width))


def breakable(name: str) -> Markup:
    """A name that may break after / and _."""
    return Markup(re.sub("([/_])", r"\1<wbr>", str(escape(name))))


def interval_ends(ends: Interval | None, digits: int) -> str:
    """The two ends of an interval; empty where there is none."""
    known = text.as_range(ends)
    return "" if known is None else " to ".join(decimal(end, digits) for end in known)
