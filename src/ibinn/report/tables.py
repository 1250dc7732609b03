"""Results of several runs on one data set -> the paper's table -> Markdown, LaTeX, CSV. Nothing is written here.

make_table(runs)                rows of runs that differ only in seed: mean and standard error
with_printed(table, "cifar10")  the paper's own rows beneath them
to_markdown, to_latex, to_csv   the best of each column bold, except in CSV
"""

import csv
import io
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from statistics import fmean, stdev
from typing import Any, NamedTuple, get_args

from ibinn.config import Size
from ibinn.formats import decimal, shortest
from ibinn.report import paper as printed
from ibinn.report.paper import DISCRIMINATIVE, GENERATIVE, IB_INN, ONLY_X, ONLY_Y, PRINTED
from ibinn.report.quantities import (
    AVERAGED_ERROR,
    BITS,
    ECE,
    ERROR,
    GEO_MEAN,
    ICE,
    MCE,
    PAPER_BITS,
    Quantity,
    average,
    entropy_increase,
    mean_if_all,
    ood_auroc,
)
from ibinn.report.text import CONTROLS, METHOD_NAMES
from ibinn.run.results import Results

MISSING = "--"
SIZES = get_args(Size)
ROWS = {  # in the order of the rows: group, label; {} becomes gamma
    "ibinn": (IB_INN, "{}"),
    "class-nll": (GENERATIVE, METHOD_NAMES["class-nll"]),
    "class-nll-fixed": (GENERATIVE, METHOD_NAMES["class-nll-fixed"]),
    "vib": (DISCRIMINATIVE, METHOD_NAMES["vib"] + " ({})"),
    "resnet": (DISCRIMINATIVE, METHOD_NAMES["resnet"]),
    "irevnet": (DISCRIMINATIVE, METHOD_NAMES["irevnet"]),
    "rival": (DISCRIMINATIVE, METHOD_NAMES["rival"]),
}


@dataclass(frozen=True)
class TableRun:
    """Results, and the other settings that tell a run from those that are otherwise alike."""

    results: Results
    variant: str = ""


@dataclass(frozen=True)
class Column:
    """A quantity with its heading; `short` is the heading beneath that of a block of columns.

    mean_of: for an average, the keys of the columns that it is over.
    """

    quantity: Quantity
    name: str
    block: str = ""
    short: str = ""
    mean_of: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return self.quantity.name

    @property
    def heading(self) -> str:
        return f"{self.name}{self.quantity.arrow}"


class Cell(NamedTuple):
    """The mean over n seeds, and its standard error: sample standard deviation / sqrt(n), None for one seed."""

    mean: float
    standard_error: float | None
    n: int


class Setup(NamedTuple):
    """What the runs of a row share. gamma is None for methods without that knob, sigma without Gaussian noise."""

    method: str
    gamma: float | None
    size: str
    noise: str | None
    sigma: float | None
    variant: str


@dataclass(frozen=True)
class TableRow:
    """Cells by column key; a key is missing where one of the runs lacks the number. Printed rows have no setup."""

    group: str
    label: str
    cells: Mapping[str, Cell]
    n_seeds: int
    n_not_converged: int = 0
    setup: Setup | None = None
    printed: bool = False
    is_averaged: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of one data set in the paper's order; `score` is the OoD score whose AUROC they show."""

    dataset: str
    score: str
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    runs: tuple[TableRun, ...]  # those of the rows


def make_table(
    runs: Iterable[TableRun], score: str = "typicality", sets: Sequence[str] | None = None
) -> Table:
    """The paper's table over runs of one data set, with the given OoD sets or all that the runs have."""
    runs = tuple(runs)
    found = check_runs(runs, score)
    sets = sorted(found, key=paper_first) if sets is None else sets
    if unknown := [name for name in sets if name not in found]:
        raise ValueError(f"no run has the OoD set {unknown[0]!r}; they have {listed(sorted(found))}")
    columns = make_columns(sets, score)
    labels = labels_of(map(setup_of, runs))
    ordered = sorted(runs, key=lambda run: (in_order(setup_of(run)), run.results.seed))
    rows = []
    for setup, group in groupby(ordered, setup_of):
        rows.append(make_row(setup, labels[setup], same := [*group], columns))
        rows += averaged_rows(rows[-1], same)
    return Table(runs[0].results.dataset, score, columns, tuple(rows), runs)


def check_runs(runs: Sequence[TableRun], score: str) -> set[str]:
    """The names of their OoD sets; ValueError for runs that make no table."""
    if not runs:
        raise ValueError("runs is empty; give at least one run to make a table of")
    if len(datasets := {run.results.dataset for run in runs}) > 1:
        raise ValueError(f"runs are of the data sets {listed(sorted(datasets))}; make a table of each")
    sets = [(name, ood) for run in runs for name, ood in run.results.ood.items()]
    scores = {name for _, ood in sets for name in ood.auroc}
    if score not in scores | {"typicality"}:  # a table of discriminative models lacks that one
        raise ValueError(f"no run has the OoD score {score!r}; they have {listed(sorted(scores))}")
    return {name for name, _ in sets}


def listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def position(name: str, names: Sequence[str]) -> int:
    """The index of a name; other names come last."""
    return names.index(name) if name in names else len(names)


def paper_first(name: str) -> tuple[int, str]:
    """The order of OoD sets: the paper's as in its tables, then all others by name."""
    return position(name, printed.SETS), name


def make_columns(sets: Sequence[str], score: str) -> tuple[Column, ...]:
    calibration = [
        Column(q, q.heading, "calibration error (%)", q.label.removeprefix("calibration "))
        for q in (GEO_MEAN, ECE, MCE, ICE)
    ]
    return (
        Column(ERROR, ERROR.heading),
        Column(BITS, BITS.heading),
        *calibration,
        *ood_columns(sets, entropy_increase, "OoD entropy increase (nats)"),
        *ood_columns(sets, lambda name: ood_auroc(name, score), f"OoD AUROC of {score} (%)"),
    )


def ood_columns(sets: Sequence[str], of: Callable[[str], Quantity], block: str) -> list[Column]:
    """The average over the sets except controls, then a column for each; nothing without sets."""
    if not sets:
        return []
    tried = [name for name in sets if name not in CONTROLS] or sets
    keys = tuple(of(name).name for name in tried)
    each = [Column(of(name), of(name).label, block, name) for name in sets]
    return [Column(mean := average(of, tried), mean.label, block, "average", keys), *each]


def setup_of(run: TableRun) -> Setup:
    """Runs of one setup differ only in seed."""
    r = run.results
    gamma = r.gamma if "{}" in ROWS[r.method][1] else None
    return Setup(r.method, gamma, r.size, r.noise, r.sigma, run.variant)


def in_order(setup: Setup) -> tuple[Any, ...]:
    """The order of the rows: method, gamma, size, noise, other settings."""
    method, gamma, size, noise, sigma, variant = setup
    size_first = position(size, SIZES), size
    return [*ROWS].index(method), gamma or 0, *size_first, sigma or 0, noise or "", variant


def labels_of(setups: Iterable[Setup]) -> dict[Setup, str]:
    """Labels with the size where there are several, the noise where one size has several, and any variant."""
    setups = set(setups)
    sizes = {setup.size for setup in setups}
    noises = {(setup.size, setup.noise, setup.sigma) for setup in setups}
    return {
        setup: label_of(setup.method, setup.gamma)
        + (f", {setup.size}" if len(sizes) > 1 else "")
        + (f", {noise_name(setup)}" if len(noises) > len(sizes) else "")
        + (f", {setup.variant}" if setup.variant else "")
        for setup in setups
    }


def label_of(method: str, gamma: float | None) -> str:
    """The label of a row: the method and its gamma; for the IB-INN gamma, or the only term of its loss.

    Examples
    --------
    >>> label_of("ibinn", 1.0), label_of("ibinn", math.inf), label_of("resnet", None)
    ('γ = 1', 'only L_Y (γ → ∞)', 'ResNet')
    """
    if method == "ibinn" and gamma in (0, math.inf):
        return ONLY_X if gamma == 0 else ONLY_Y
    return ROWS[method][1].format("γ → ∞" if gamma == math.inf else f"γ = {shortest(gamma or 0.0)}")


def noise_name(setup: Setup) -> str:
    sigma = [] if setup.sigma is None else [f"σ = {shortest(setup.sigma)}"]
    return " and ".join(["uniform noise"] * (setup.noise != "gaussian") + sigma)


def make_row(setup: Setup, label: str, runs: Sequence[TableRun], columns: Sequence[Column]) -> TableRow:
    """Runs in the order of their seeds, no seed twice: two equal runs would make the standard error too small."""
    seeds = [run.results.seed for run in runs]
    if twice := [one for one, other in pairwise(seeds) if one == other]:
        raise ValueError(f"the row {label!r} has two runs of seed {twice[0]}; leave out all but one")
    cells = {}
    for quantity in (*(column.quantity for column in columns), PAPER_BITS):
        values = [value for run in runs if (value := quantity.finite(run.results)) is not None]
        if len(values) == len(runs):
            cells[quantity.name] = cell_of(values)
    failed = sum(not run.results.converged for run in runs)
    return TableRow(ROWS[setup.method][0], label, cells, len(runs), failed, setup)


def averaged_rows(row: TableRow, runs: Sequence[TableRun]) -> list[TableRow]:
    """A row of the same runs with probabilities averaged over several views of each input, if all have them."""
    cells = {BITS.name: row.cells[BITS.name]} if BITS.name in row.cells else {}
    counts = {run.results.averaged.n_views for run in runs if run.results.averaged is not None}
    errors = [AVERAGED_ERROR.finite(run.results) for run in runs]
    known = [error for error in errors if error is not None]
    if len(counts) != 1 or len(known) < len(runs):
        return []
    label = f"{row.label}, averaged over {counts.pop()} views"
    return [replace(row, label=label, cells={ERROR.name: cell_of(known), **cells}, is_averaged=True)]


def cell_of(values: Sequence[float]) -> Cell:
    n = len(values)
    return Cell(fmean(values), stdev(values) / math.sqrt(n) if n > 1 else None, n)


def with_printed(table: Table, dataset: str) -> Table:
    """The paper's rows for cifar10 or cifar100 beneath ours, over the OoD sets that both have.

    bits/dim compare in a column of their own, under the paper's convention.
    """
    if dataset not in PRINTED:
        raise ValueError(f"the paper has no table for {dataset!r}, only for {listed(PRINTED)}")
    names = {column.short for column in table.columns}
    ours = make_table(table.runs, table.score, [name for name in printed.SETS if name in names])
    at = 1 + [column.quantity for column in ours.columns].index(BITS)
    columns = (*ours.columns[:at], Column(PAPER_BITS, PAPER_BITS.heading), *ours.columns[at:])
    paper = tuple(printed_row(row, columns) for row in PRINTED[dataset])
    return replace(ours, columns=columns, rows=ours.rows + paper)


def printed_row(row: printed.PrintedRow, columns: Sequence[Column]) -> TableRow:
    """A printed average that is not the mean of the sets shown, up to rounding, is replaced by that mean."""
    cells: dict[str, float | None] = dict(row.cells)
    for column in columns:
        if column.mean_of:
            mean = mean_if_all([cells.get(key) for key in column.mean_of])
            cells[column.key] = mean if mean is None else printed_or(mean, column, row)
    known = {key: Cell(x, None, 1) for key, x in cells.items() if x is not None}
    return TableRow(row.group, row.label, known, n_seeds=1, printed=True)


def printed_or(mean: float, column: Column, row: printed.PrintedRow) -> float:
    """The printed average of all the paper's sets if it agrees with the mean: half a unit each for both."""
    value = row.cells.get(column.key, math.inf)
    return value if len(column.mean_of) == len(printed.SETS) and abs(value - mean) < 0.011 else mean


def best(table: Table, column: Column) -> str | None:
    """The best number of our rows as printed; None where fewer than two compete."""
    rows = [row for row in table.rows if column.key in row.cells and competes(row)]
    means = sorted(row.cells[column.key].mean for row in rows)
    return decimal(means[-1 if column.quantity.higher_is_better else 0]) if len(means) > 1 else None


def is_best(table: Table, row: TableRow, column: Column) -> bool:
    """Ties, judged as printed, are all best."""
    cell = row.cells.get(column.key)
    return cell is not None and competes(row) and decimal(cell.mean) == best(table, column)


def competes(row: TableRow) -> bool:
    """Not the paper's rows, nor averages over views, nor models that did not converge.

    A constant answer may be perfectly calibrated.
    """
    return not (row.printed or row.is_averaged or row.n_not_converged)


def caption(table: Table) -> str:
    """What a reader needs to know beside the numbers, in plain text."""
    ours = [row for row in table.rows if not (row.printed or row.is_averaged)]
    sizes = sorted({run.results.size for run in table.runs}, key=lambda size: position(size, SIZES))
    sentences = [
        f"Results on {table.dataset} ({listed(sizes)}), {seeds_text(ours)}. Bold: the best of each column.",
        "Calibration errors are above zero even for a perfect model: see the floor in results.json.",
    ]
    shown = {column.short for column in table.columns} & {*CONTROLS}
    controls = f" except the control {listed(sorted(shown))}" if shown else ""
    if any(column.mean_of for column in table.columns):
        sentences.append(
            f"OoD detection: AUROC of the score {table.score}; averages are over the sets shown{controls}."
        )
    if len({run.results.noise for run in table.runs} & {"uniform", "gaussian"}) == 2:
        sentences.append(
            "With Gaussian noise bits/dim is a plug-in value, with uniform noise an upper bound."
        )
    if failed := [f"{row.label} ({row.n_not_converged})" for row in ours if row.n_not_converged]:
        sentences.append(f"Runs that did not learn to classify: {listed(failed)}.")
    if any(row.is_averaged for row in table.rows):
        sentences.append(
            "Averaged over views: the mean probabilities of several draws of the noise, and of mirrored images."
        )
    if any(row.printed for row in table.rows):
        sentences.append(printed_text(table))
    return " ".join(sentences)


def seeds_text(rows: Sequence[TableRow]) -> str:
    counts = sorted({row.n_seeds for row in rows})
    if counts == [1]:
        return "one seed"
    seeds = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
    alone = " (plain numbers: one seed)" if counts[0] == 1 else ""
    return f"mean ± standard error over {seeds} seeds{alone}"


def printed_text(table: Table) -> str:
    text = "The paper's rows are as printed and do not compete for the best"
    if not any(column.mean_of for column in table.columns):
        return f"{text}."
    if table.score != "typicality":
        return f"{text}; its AUROCs are those of typicality and not shown."
    return f"{text}, except the averages of AUROC, whose printed values are geometric means."


def to_markdown(table: Table) -> str:
    """A pipe table with one header row; a group is named in its first row."""
    heads = ["group", "model", *(column.heading for column in table.columns)]
    lines = [[markdown(head) for head in heads], ["---", "---", *("---:" for _ in table.columns)]]
    for group, row in with_group_names(table.rows):
        pairs = [cell_text(table, row, column, "**{}**") for column in table.columns]
        cells = [f"{mean} ± {error}" if error else mean for mean, error in pairs]
        lines.append([markdown(group), markdown(row.label), *cells])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def with_group_names(rows: Iterable[TableRow]) -> list[tuple[str, TableRow]]:
    """Each row with the name of its group, or with nothing where the row above has the same."""
    groups = groupby(rows, key=lambda row: f"{row.group} (paper)" if row.printed else row.group)
    return [("" if i else name, row) for name, members in groups for i, row in enumerate(members)]


def cell_text(table: Table, row: TableRow, column: Column, bold: str) -> tuple[str, str]:
    """A mean as text, in the frame `bold` if it is best, and its standard error, empty if there is none."""
    cell = row.cells.get(column.key)
    if cell is None:
        return MISSING, ""
    mean = bold.format(decimal(cell.mean)) if is_best(table, row, column) else decimal(cell.mean)
    return mean, "" if cell.standard_error is None else decimal(cell.standard_error)


def markdown(text: str) -> str:
    r"""Text escaped for Markdown: one line, no bare pipe, no emphasis.

    Examples
    --------
    >>> print(markdown("a|b *c*"))
    a\|b \*c\*
    """
    text = re.sub(r"([\\|*`<>\[\]&~$])", r"\\\1", " ".join(text.split()))
    return re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", text)  # between letters it is none


def to_csv(table: Table) -> str:
    """Full precision, an empty field where there is no number, standard errors in columns that end in _se."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    keys = [column.key for column in table.columns]
    measures = [name for key in keys for name in (key, f"{key}_se")]
    writer.writerow(["dataset", "source", "group", "model", *Setup._fields, "n_seeds", *measures])
    for row in table.rows:
        cells = [row.cells.get(key) for key in keys]
        pairs = [(cell.mean, cell.standard_error) if cell else (None, None) for cell in cells]
        source = "paper" if row.printed else "averaged" if row.is_averaged else "runs"
        head = [table.dataset, source, row.group, row.label]
        setup = row.setup or (None,) * len(Setup._fields)
        seeds = None if row.printed else row.n_seeds
        writer.writerow([*head, *setup, seeds, *(x for pair in pairs for x in pair)])
    return file.getvalue()


def to_latex(table: Table) -> str:
    """A table environment, no wider than the text. Its document needs booktabs and graphicx."""
    lines = latex_heads(table.columns)
    for group, row in with_group_names(table.rows):
        lines += [r"\midrule"] if group else []
        cells = [latex_cell(table, row, column) for column in table.columns]
        lines.append(" & ".join([latex(group), latex(row.label), *cells]) + r" \\")
    body = "\n".join(f"    {line}" for line in lines)
    return (
        "\\begin{table}\n  \\centering\n"
        f"  \\caption{{{latex(caption(table))}}}\n  \\medskip\n"
        "  \\resizebox{\\ifdim\\width>\\textwidth \\textwidth\\else \\width\\fi}{!}{%\n"
        f"  \\begin{{tabular}}{{@{{}}ll{'r' * len(table.columns)}@{{}}}}\n    \\toprule\n"
        f"{body}\n    \\bottomrule\n  \\end{{tabular}}}}\n\\end{{table}}\n"
    )


def latex_heads(columns: Sequence[Column]) -> list[str]:
    """Two lines of headings with rules between: blocks above their columns; a lone heading is broken in two."""
    upper, lower = ["", ""], ["", "model"]
    rules: list[str] = []
    for block, group in groupby(columns, key=lambda column: column.block):
        members = list(group)
        if block:
            first, last = len(lower) + 1, len(lower) + len(members)
            upper.append(
                rf"\multicolumn{{{len(members)}}}{{c}}{{{latex(f'{block}{members[0].quantity.arrow}')}}}"
            )
            rules.append(rf"\cmidrule(lr){{{first}-{last}}}")
            lower += [column.short for column in members]
        else:
            parts = [column.heading.split(" ", 1) for column in members]
            upper += [latex(head) for head, _ in parts]
            lower += [rest for _, rest in parts]
    return [" & ".join(upper) + r" \\", *rules, " & ".join(map(latex, lower)) + r" \\"]


def latex_cell(table: Table, row: TableRow, column: Column) -> str:
    """Means stand below each other: a short error, or none, leaves the room of the longest in its column."""
    mean, error = cell_text(table, row, column, r"\textbf{{{}}}")
    longest = max((cell_text(table, other, column, "")[1] for other in table.rows), key=len)
    filled = (error or longest) + r"\phantom{0}" * (len(longest) - len(error or longest))
    tail = rf"\,{{\scriptsize$\pm$\,{filled}}}" if longest else ""
    if tail and not error:
        tail = rf"\phantom{{{tail}}}"
    return (mean if mean == MISSING else mean.replace("-", "$-$")) + tail


SPECIAL = {character: f"\\{character}" for character in "_&%#{}"} | {
    "$": r"$\mathdollar$",  # in text it may come from fonts that few have
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"$\sim$",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    "γ": r"$\gamma$",
    "σ": r"$\sigma$",
    "∞": r"$\infty$",
    "→": r"$\to$",
    "±": r"$\pm$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
}


def latex(text: str) -> str:
    r"""Text escaped for pdfLaTeX; L_X as the loss, characters that its fonts lack as U+ and a number.

    Examples
    --------
    >>> print(latex("only L_X (γ = 0), 5 %"))
    only $\mathcal{L}_X$ ($\gamma$ = 0), 5 \%
    """
    text = " ".join(unicodedata.normalize("NFC", text).split())
    return re.sub(r"\bL\\_([XY])\b", r"$\\mathcal{L}_\1$", "".join(map(latex_character, text)))


def latex_character(character: str) -> str:
    accented = "À" <= character <= "ÿ" and character not in "×÷ÐðÞþ"
    known = accented or " " <= character <= "~"
    return SPECIAL.get(character) or (character if known else f"U+{ord(character):04X}")


def to_latex_document(table: Table) -> str:
    """The table on a page of its own, for pdflatex."""
    return (
        "\\documentclass{article}\n"
        "\\usepackage[a4paper,landscape,margin=1cm]{geometry}\n"
        "\\usepackage{booktabs,graphicx}\n"
        "\\pagestyle{empty}\n"
        f"\\begin{{document}}\n{to_latex(table)}\\end{{document}}\n"
    )
