"""One run as one self-contained HTML file: no script, nothing loaded from anywhere."""

import base64
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from ibinn import __version__
from ibinn.report.captions import CAPTIONS, Caption
from ibinn.report.css import CSS
from ibinn.report.text import (
    METHOD_NAMES,
    OOD_SETS,
    SCORES,
    Note,
    Range,
    Results,
    alarm_rate,
    capital,
    cautions,
    detections,
    duration,
    findings,
    headline,
    interval,
    label,
    look,
    percent,
    right_range,
    things,
    told_gamma,
)

NONE = "–"
SCALE = 0.63  # CSS pixels to a dot of a figure: 7.2 inches at 200 dots, the widest, fill the page
BESIDE = 580  # CSS pixels: a figure that is narrower has its caption beside it
SET_COLUMNS = (
    *("Inputs", "Flagged", "AUROC, %", "FPR95, %", "Entropy increase, nats"),
    *("In a batch, %", "Number"),
)
CALIBRATION = {
    "top_label_ece": ("Calibration error, top label (ECE)", "of the highest probability"),
    "ece": ("Calibration error, all classes (ECE)", "the average bin"),
    "mce": ("Largest calibration error (MCE)", "the worst bin"),
    "ice": ("Integrated calibration error (ICE)", "bins by their width"),
    "geo_mean": ("Geometric mean of ECE, MCE, ICE", "the three in one"),
}


def render_page(
    results: Results, figures: Mapping[str, bytes], config: str, title: str | None = None
) -> str:
    """results as in results.json, figures as PNG by name, config the text of config.toml -> HTML."""
    name = title or f"Classifier for {results['dataset']}"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{escape(name)}</title>
<style>{CSS}</style>
</head>
<body>
<header>
<p class="eyebrow">ibinn report</p>
<h1>{breakable(name)}</h1>
<p class="facts">{escape(in_short(results))}</p>
</header>
<main>
{lead(results)}
{cards(results)}
{definitions("findings", findings(results))}
{caution_box(cautions(results))}
{strange_inputs(results)}
{all_figures(results, figures)}
{all_numbers(results)}
{about_run(results, config)}
</main>
<footer>Made by ibinn {escape(__version__)}. This file is complete in itself and loads nothing.</footer>
</body>
</html>
"""


# --- at a glance -------------------------------------------------------------------------------------


def in_short(results: Results) -> str:
    gamma, n, seconds = (results.get(key) for key in ("gamma", "n_train", "train_seconds"))
    text = METHOD_NAMES.get(results["method"]) or str(results["method"])
    text += "" if gamma is None else f" with γ = {told_gamma(gamma)}"
    text += "" if n is None else f", learned from {n:,} {things(results, n)}"
    return text + ("" if seconds is None else f" in {duration(seconds)}")


def lead(results: Results) -> str:
    share = percent(100 - results["error"])
    return f'<p class="lead">{escape(headline(results)).replace(share, f"<strong>{share}</strong>", 1)}</p>'


def cards(results: Results) -> str:
    each = (
        f'<div><dt>{name}</dt><dd class="value">{value}</dd><dd class="under">{under}</dd></div>\n'
        for name, value, under in key_numbers(results)
        if value != NONE
    )
    return f'<dl class="cards">\n{"".join(each)}</dl>'


def key_numbers(results: Results) -> list[tuple[str, str, str]]:
    """The numbers to remember, and what to hold each against."""
    right, rate = right_range(results), alarm_rate(results)
    alpha, levels = results.get("alpha"), results.get("levels")
    error = look(results, "calibration", "top_label_ece")
    p95 = look(results, "calibration", "floor", "top_label_ece", "p95")
    aurocs = [d.auroc for d in detections(results)]
    ends = sorted({f"{auroc:.0f}" for auroc in aurocs[:1] + aurocs[-1:]}, key=int)
    return [
        (
            "Right class",
            percent(100 - results["error"]),
            told(right, "{0[0]:.1f} to {0[1]:.1f}\u00a0%", ""),
        ),
        (
            "Calibration error",
            told(error, "{:.1f}\u00a0%"),
            told(p95, "if perfect: up to {:.1f}\u00a0%", ""),
        ),
        (
            "False alarms",
            told(rate, "{:.1f}\u00a0%"),
            told(alpha and 100 * alpha, "asked for: {:g}\u00a0%", ""),
        ),
        (
            "Strange told apart",
            f"{'–'.join(ends)}\u00a0%" if ends else NONE,
            f"AUROC on {len(aurocs)} {'set' if len(aurocs) == 1 else 'sets'}; guessing: 50\u00a0%",
        ),
        (
            "Bits/dim",
            told(results.get("bits_per_dim"), "{:.2f}"),
            "" if levels is None else f"stored plainly: {math.log2(levels):.2f}",
        ),
    ]


def definitions(kind: str, notes: Iterable[Note]) -> str:
    each = (f"<dt>{escape(note.title)}</dt><dd>{escape(note.text)}</dd>\n" for note in notes)
    return f'<dl class="{kind}">\n{"".join(each)}</dl>'


def caution_box(notes: Sequence[Note]) -> str:
    each = (f"<li><strong>{escape(note.title)}.</strong> {escape(note.text)}</li>\n" for note in notes)
    box = f'<aside class="cautions"><h2>Read with care</h2>\n<ul>\n{"".join(each)}</ul></aside>'
    return box if notes else ""


# --- strange inputs ----------------------------------------------------------------------------------


def strange_inputs(results: Results) -> str:
    if not results.get("ood"):
        return ""
    return f"""<section id="strange"><h2>Strange inputs</h2>
<p>What it makes of inputs unlike its training data, the easiest to notice first.</p>
{set_table(results)}
{score_table(results, "auroc", "AUROC of each score, %: higher is better, 50 is guessing")}
<details><summary>False alarms and flagged shares of each score</summary>
{score_table(results, "fpr95", "FPR95, %: false alarms when 95 % of a set are flagged; lower is better")}
{score_table(results, "detected_at_alpha", "Flagged at the alarm level, %: higher is better")}
</details></section>"""


def set_table(results: Results) -> str:
    """A row for each OoD set, by the headline score, below that of the test set itself."""
    score, words = results.get("score") or "", things(results)
    own = [f"Its own test {words}<small>false alarms</small>", bar(alarm_rate(results), "own")]
    rows = [[*own, *[NONE] * 4, f"{results['n_test']:,}"]]
    rows += [set_row(results, name, score) for name in easiest_first(results)]
    fdr = next((look(found, "bh", "fdr") for found in results["ood"].values()), None)
    batch = f""" In a batch: share found when test {words} and strange inputs are searched together and
{told(fdr, "{:g}")} % of the finds may be false; below it, how many were."""
    title = f"By the score “{label(score)}”, chosen before looking" if score else "Each set"
    return f"""{table(title, SET_COLUMNS, rows)}
<p class="facts fine">FPR95: false alarms when 95 % of the set are flagged. Entropy increase: how much more
undecided the class probabilities are than on test {words}.{batch if fdr is not None else ""}</p>"""


def set_row(results: Results, name: str, score: str) -> list[str]:
    found = results["ood"][name]
    return [
        capital(escape(OOD_SETS[name])) + f"<small>{name}</small>" if name in OOD_SETS else breakable(name),
        bar(look(found, "detected_at_alpha", score)),
        told(look(found, "auroc", score)) + small(interval(results, "ood", name, "auroc", score)),
        told(look(found, "fpr95", score)),
        told(found.get("entropy_increase"), "{:+.2f}"),
        told(look(found, "bh", "found"))
        + told(look(found, "bh", "false"), "<small>{:.1f} % false</small>", ""),
        told(found.get("n"), "{:,}"),
    ]


def easiest_first(results: Results) -> list[str]:
    """The OoD sets by the headline score's AUROC, those without it last."""
    names = [d.name for d in detections(results)]
    return [*names, *(name for name in results["ood"] if name not in names)]


def score_table(results: Results, kind: str, title: str) -> str:
    """auroc, fpr95 or detected_at_alpha: a row for each score, a column for each OoD set."""
    names = easiest_first(results)
    there = {score for name in names for score in results["ood"][name].get(kind) or {}}
    scores = [*(score for score in SCORES if score in there), *sorted(there - set(SCORES))]
    rows = [
        [
            f"{escape(capital(label(score)))}<small>{SCORES.get(score, '')}</small>",
            *(told(look(results, "ood", name, kind, score)) for name in names),
        ]
        for score in scores
    ]
    main = scores.index(results["score"]) if results.get("score") in there else None
    return table(title, ["Score", *map(breakable, names)], rows, main) if rows else ""


# --- figures -----------------------------------------------------------------------------------------


def all_figures(results: Results, figures: Mapping[str, bytes]) -> str:
    """Known figures in their order, then the others."""
    names = [*(name for name in CAPTIONS if name in figures), *(n for n in figures if n not in CAPTIONS)]
    each = "\n".join(one_figure(results, name, figures[name]) for name in names)
    return f'<section id="figures"><h2>Figures</h2>\n{each}</section>' if names else ""


def one_figure(results: Results, name: str, png: bytes) -> str:
    plain = name.replace("_", " ")
    other = Caption(capital(plain), "", f"Figure: {plain}")
    title, text, alt = (words.replace("{things}", things(results)) for words in CAPTIONS.get(name, other))
    width = round(SCALE * png_width(png))
    source = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    return f"""<figure{' class="narrow"' if width < BESIDE else ""}><h3>{escape(title)}</h3>
<div class="paper"><img width="{width}" alt="{escape(alt)}" src="{source}"></div>
<figcaption>{escape(text)}</figcaption></figure>"""


def png_width(png: bytes) -> int:
    """In dots; bytes 16 to 20 hold it."""
    return int.from_bytes(png[16:20])


# --- all numbers -------------------------------------------------------------------------------------


def all_numbers(results: Results) -> str:
    """Each with its 95 % interval, and what it means or what would be perfect."""
    paper = "bits_per_dim_paper_convention"
    rows = [
        number(results, "Error, %", "test {things} that get the wrong class", 2, "error"),
        number(results, "Negative log-likelihood of the labels, nats", "0 is perfect", 3, "nll_y"),
        number(results, "Brier score", "0 is perfect, 2 the worst", 3, "brier"),
        number(results, "Entropy of the class probabilities, nats", "0: always certain", 3, "entropy"),
        *(
            number(results, f"{name}, %", f"{note}{floor(results, key)}", 2, "calibration", key)
            for key, (name, note) in CALIBRATION.items()
        ),
        number(results, "Bits/dim", "fewer is better", 3, "bits_per_dim"),
        number(results, "Bits/dim as the paper counts", "only to compare with its tables", 3, paper),
        number(results, "Negative log-density, nats per dimension", "lower is better", 3, "loss_x"),
        number(results, "CI(X, Z), nats", "what the code keeps of the input", 1, "information", "ci_xz"),
        number(results, "CI(Y, Z), nats", "what the code tells of the class", 3, "information", "ci_yz"),
        number(results, "Throughput, {things} per second", "where it was evaluated", 0, "throughput"),
        class_alarms(results),
    ]
    head = ["On the test set", "Value", "95 % interval", "What it means"]
    there = [row for row in rows if row]
    return f'<section id="numbers"><h2>All numbers</h2>\n{table("", head, there, kind="notes")}</section>'


def number(results: Results, name: str, note: str, digits: int, *path: str) -> list[str]:
    """A row of the table; empty where there is no such number."""
    value, ends = look(results, *path), interval(results, *path)
    if value is None:
        return []
    cells = (name, f"{value:,.{digits}f}", NONE if ends is None else between(ends, digits), note)
    return [escape(cell.replace("{things}", things(results))) for cell in cells]


def floor(results: Results, key: str) -> str:
    mean, p95 = (look(results, "calibration", "floor", key, part) for part in ("mean", "p95"))
    if mean is None or p95 is None:
        return ""
    return f"; if perfect {mean:.2f} on average, up to {p95:.2f}"


def class_alarms(results: Results) -> list[str]:
    rates = {k: v for k, v in (results.get("false_alarm_rate_by_class") or {}).items() if v is not None}
    if not rates:
        return []
    low, high = min(rates, key=lambda k: rates[k]), max(rates, key=lambda k: rates[k])
    note = f"the fewest for class {low}, the most for class {high}, each with an alarm level of its own"
    return ["False alarms by class, %", between((rates[low], rates[high]), 1), NONE, escape(note)]


# --- the run -----------------------------------------------------------------------------------------


def about_run(results: Results, config: str) -> str:
    shown = f"<pre><code>{escape(config)}</code></pre>"
    return f"""<section id="run"><h2>The run</h2>
{definitions("run", run_facts(results))}
<details><summary>Configuration (config.toml)</summary>{shown}</details></section>"""


def run_facts(results: Results) -> list[Note]:
    classes, seconds = list(map(str, results.get("classes") or [])), results.get("train_seconds")
    more = f" and {len(classes) - 12} more" if len(classes) > 12 else ""
    facts = [
        Note("Method", METHOD_NAMES.get(results["method"]) or str(results["method"])),
        Note("γ", told_gamma(results.get("gamma"))),
        Note("Data", str(results["dataset"])),
        Note("Classes", f"{len(classes)}: {', '.join(classes[:12])}{more}" if classes else ""),
        Note("Training", split_size(results, "n_train", "to learn from")),
        Note("Validation", split_size(results, "n_validation", "to choose the best epoch")),
        Note("Calibration", split_size(results, "n_calibration", "for p-values alone")),
        Note("Test", split_size(results, "n_test", "for this report alone")),
        Note("Size", str(results.get("size") or "")),
        Note("Parameters", told(results.get("n_parameters"), "{:,}", "")),
        Note("Noise", f"{results.get('noise') or ''}{told(results.get('sigma'), ', σ = {:g}', '')}"),
        Note("Seed", told(results.get("seed"), "{}", "")),
        Note("Training time", "" if seconds is None else duration(seconds)),
        Note("ibinn", __version__),
    ]
    return [fact for fact in facts if fact.text]


def split_size(results: Results, key: str, purpose: str) -> str:
    n = results.get(key)
    return "" if n is None else f"{n:,} {things(results, n)} {purpose}"


# --- pieces of HTML ----------------------------------------------------------------------------------


def table(
    title: str, head: Sequence[str], rows: Iterable[Sequence[str]], main: int | None = None, kind: str = ""
) -> str:
    """Cells are HTML, the first of a row is its heading; row `main` stands out. It scrolls in its own box."""
    body = "".join(
        f'<tr class="{"main" if i == main else ""}"><th scope="row">{first}</th>'
        + "".join(f"<td>{cell}</td>" for cell in rest)
        + "</tr>\n"
        for i, (first, *rest) in enumerate(rows)
    )
    columns = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    heading = f"<h3>{escape(title)}</h3>\n" if title else ""
    name = escape(title or head[0])
    return f"""{heading}<div class="scroll {kind}" tabindex="0" role="region" aria-label="{name}">
<table><thead><tr>{columns}</tr></thead>
<tbody>
{body}</tbody></table></div>"""


def breakable(name: str) -> str:
    """A name, escaped; long paths may break where they have a joint."""
    return re.sub("([/_])", r"\1<wbr>", escape(name))


def bar(share: float | None, kind: str = "") -> str:
    """A share in percent, as number and as length."""
    if share is None:
        return NONE
    return f'<div class="bar {kind}">{percent(share)}<span><i style="width:{share:.1f}%"></i></span></div>'


def told(value: float | Range | None, form: str = "{:.1f}", missing: str = NONE) -> str:
    return missing if value is None else form.format(value)


def small(ends: Range | None) -> str:
    return "" if ends is None else f"<small>{between(ends, 1)}</small>"


def between(ends: Range, digits: int) -> str:
    return f"{ends[0]:.{digits}f} to {ends[1]:.{digits}f}"
