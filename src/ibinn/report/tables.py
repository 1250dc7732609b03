"""Results of several runs on one data set -> the paper's table -> Markdown, LaTeX, CSV. Nothing is written here.

make_table(results)             rows of runs that differ only in seed: mean and standard error
with_printed(table, "cifar10")  the paper's own rows beneath them
to_markdown, to_latex, to_csv   the best of each column bold, except in CSV
"""

import csv
import io
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from statistics import fmean, stdev
from typing import Any, NamedTuple

from ibinn.report import paper as printed
from ibinn.report.paper import DISCRIMINATIVE, GENERATIVE, IB_INN, NLL, NLL_FIXED, ONLY_X, ONLY_Y, PRINTED
from ibinn.report.text import CONTROLS

Run = Mapping[str, Any]  # a results.json

NONE = "--"
DIGITS = 2
SIZES = ("tiny", "small", "base", "paper")
METHODS = {  # in the order of the rows: group, label; {} becomes gamma
    "ibinn": (IB_INN, "{}"),
    "class-nll": (GENERATIVE, NLL),
    "class-nll-fixed": (GENERATIVE, NLL_FIXED),
    "vib": (DISCRIMINATIVE, "VIB ({})"),
    "resnet": (DISCRIMINATIVE, "ResNet"),
    "irevnet": (DISCRIMINATIVE, "i-RevNet"),
}


@dataclass(frozen=True)
class Column:
    """A measure: `name` is its heading, or `short` beneath the heading of a block of columns."""

    key: str
    name: str
    path: tuple[str, ...] = ()  # where results.json has it
    mean_of: tuple["Column", ...] = ()  # or else the mean of which columns it is
    block: str = ""
    short: str = ""
    higher_is_better: bool = False
    of_classes: bool = True  # means nothing if the labels are not in the loss

    @property
    def arrow(self) -> str:
        return "↑" if self.higher_is_better else "↓"


class Cell(NamedTuple):
    """The mean over n seeds, and its standard error: sample standard deviation / sqrt(n), none for one seed."""

    mean: float
    standard_error: float | None
    n: int


class Setup(NamedTuple):
    """What the runs of a row share. No gamma for methods without that knob, no sigma without Gaussian noise."""

    method: str
    gamma: float | None
    size: str
    noise: str | None
    sigma: float | None
    variant: str  # other settings, where runs that are alike in all the rest differ in them


@dataclass(frozen=True)
class Row:
    """Cells by column key; a key is missing where one of the runs lacks the number. Printed rows have no setup."""

    group: str
    label: str
    cells: Mapping[str, Cell]
    n_seeds: int
    n_not_converged: int = 0
    setup: Setup | None = None
    printed: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of one data set in the paper's order; `score` is the OoD score whose AUROC they show."""

    dataset: str
    score: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    runs: tuple[Run, ...]  # those of the rows


BITS, PAPER_BITS = "bits_per_dim", "bits_per_dim_paper_convention"
PAPER_BITS_COLUMN = Column(PAPER_BITS, "bits/dim (paper's convention)", (PAPER_BITS,), of_classes=False)
TITLES = {"geo_mean": "calibration geo. mean", "ece": "ECE", "mce": "MCE", "ice": "ICE"}


def make_table(
    results: Iterable[Run], score: str = "typicality", sets: Sequence[str] | None = None
) -> Table:
    """The paper's table over runs of one data set, with the OoD sets given or all that there are."""
    runs = tuple(results)
    found = check_runs(runs, score)
    sets = sorted(found, key=paper_first) if sets is None else sets
    if unknown := [name for name in sets if name not in found]:
        raise ValueError(f"no run has the OoD set {unknown[0]!r}; they have {listed(sorted(found))}")
    columns = make_columns(sets, score)
    labels = labels_of({setup_of(run) for run in runs})
    ordered = sorted(runs, key=lambda run: (in_order(setup_of(run)), run["seed"]))
    rows = [
        make_row(setup, labels[setup], [*group], columns) for setup, group in groupby(ordered, setup_of)
    ]
    return Table(str(runs[0]["dataset"]), score, columns, tuple(rows), runs)


def check_runs(runs: Sequence[Run], score: str) -> set[str]:
    """The names of their OoD sets; ValueError for runs that make no table."""
    if not runs:
        raise ValueError("results is empty; give at least one run to make a table of")
    if len(datasets := {str(run["dataset"]) for run in runs}) > 1:
        raise ValueError(f"results are of the data sets {listed(sorted(datasets))}; make a table of each")
    if unknown := {str(run["method"]) for run in runs} - METHODS.keys():
        raise ValueError(f"method is {min(unknown)!r} but must be one of {listed(METHODS)}")
    sets = [(name, ood) for run in runs for name, ood in (run.get("ood") or {}).items()]
    scores = {name for _, ood in sets for name in ood.get("auroc") or {}}
    if score not in scores | {"typicality"}:  # that one a table of discriminative models lacks
        raise ValueError(f"no run has the OoD score {score!r}; they have {listed(sorted(scores))}")
    return {name for name, _ in sets}


def listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def position(name: str, names: Sequence[str]) -> int:
    """What is not among the names comes last."""
    return names.index(name) if name in names else len(names)


def paper_first(name: str) -> tuple[int, str]:
    """The order of OoD sets: the paper's as in its tables, then all others by name."""
    return position(name, printed.SETS), name


def make_columns(sets: Sequence[str], score: str) -> tuple[Column, ...]:
    calibration = [
        Column(
            f"calibration.{key}",
            f"{title} (%)",
            ("calibration", key),
            block="calibration error (%)",
            short=title.removeprefix("calibration "),
        )
        for key, title in TITLES.items()
    ]
    return (
        Column("error", "error (%)", ("error",)),
        Column(BITS, "bits/dim", (BITS,), of_classes=False),
        *calibration,
        *ood_columns(sets, ("entropy_increase",), "entropy increase", "OoD entropy increase (nats)", True),
        *ood_columns(sets, ("auroc", score), "AUROC", f"OoD AUROC of {score} (%)", False),
    )


def ood_columns(
    sets: Sequence[str], measure: tuple[str, ...], name: str, block: str, of_classes: bool
) -> list[Column]:
    """The average over the sets, then a column for each; nothing where there is no set."""

    def column(place: str, short: str, **source: Any) -> Column:
        key = ".".join((place, *measure))
        return Column(key, f"{name}: {short}", **source, **shared, short=short)

    shared: dict[str, Any] = {"block": block, "higher_is_better": True, "of_classes": of_classes}
    each = [column(f"ood.{one}", one, path=("ood", one, *measure)) for one in sets]
    tried = tuple(c for c in each if c.short not in CONTROLS)
    return [column("average", "average", mean_of=tried or tuple(each)), *each] if each else []


def setup_of(run: Run) -> Setup:
    """Runs of one setup differ only in seed."""
    has_gamma = "{}" in METHODS[run["method"]][1]
    gamma = float(run["gamma"]) if has_gamma else None
    variant = run.get("variant", "")
    return Setup(run["method"], gamma, run["size"], run.get("noise"), run.get("sigma"), variant)


def in_order(setup: Setup) -> tuple[Any, ...]:
    """The order of the rows: method, gamma, size, noise, other settings."""
    method, gamma, size, noise, sigma, variant = setup
    return (
        [*METHODS].index(method),
        gamma or 0,
        position(size, SIZES),
        size,
        sigma or 0,
        noise or "",
        variant,
    )


def labels_of(setups: set[Setup]) -> dict[Setup, str]:
    """The size is named in a table of several sizes, the noise where one size has several, and any variant."""
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
    """As in the paper: gamma, or the one term of the loss that is left."""
    if method == "ibinn" and gamma in (0, math.inf):
        return ONLY_X if gamma == 0 else ONLY_Y
    return METHODS[method][1].format("γ → ∞" if gamma == math.inf else f"γ = {plain(gamma or 0.0)}")


def noise_name(setup: Setup) -> str:
    sigma = [] if setup.sigma is None else [f"σ = {plain(setup.sigma)}"]
    return " and ".join(["uniform noise"] * (setup.noise != "gaussian") + sigma)


def plain(number: float) -> str:
    """1 and 0.1 rather than 1.0 and 0.1; all digits where six do not suffice."""
    return f"{number:g}" if float(f"{number:g}") == number else repr(number)


def make_row(setup: Setup, label: str, runs: Sequence[Run], columns: Sequence[Column]) -> Row:
    """Runs in the order of their seeds, no seed twice: two runs alike would feign a small error."""
    seeds = [run["seed"] for run in runs]
    if twice := [one for one, other in pairwise(seeds) if one == other]:
        raise ValueError(f"the row {label!r} has two runs of seed {twice[0]}; leave out all but one")
    columns = [*columns, PAPER_BITS_COLUMN]
    values = {column.key: [number(run, column, setup.gamma) for run in runs] for column in columns}
    cells = {key: cell_of([x for x in xs if x is not None]) for key, xs in values.items() if None not in xs}
    failed = sum(not run.get("converged", True) for run in runs)
    return Row(METHODS[setup.method][0], label, cells, len(runs), failed, setup)


def number(run: Run, column: Column, gamma: float | None) -> float | None:
    """What a run has in a column, if finite. At gamma = 0 the labels are not in the loss: no number of classes."""
    if column.of_classes and gamma == 0:
        return None
    if column.mean_of:
        return mean_if_all([number(run, each, gamma) for each in column.mean_of])
    value: Any = run
    for name in column.path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return float(value) if value is not None and math.isfinite(value) else None


def mean_if_all(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


def cell_of(values: Sequence[float]) -> Cell:
    n = len(values)
    return Cell(fmean(values), stdev(values) / math.sqrt(n) if n > 1 else None, n)


def with_printed(table: Table, dataset: str) -> Table:
    """The paper's rows for cifar10 or cifar100 beneath ours, over the OoD sets that both have.

    bits/dim compare in a column of their own, under the paper's convention.
    """
    if dataset not in PRINTED:
        raise ValueError(f"the paper has no table for {dataset!r}, only for {listed(PRINTED)}")
    names = {column.path[1] for column in table.columns if column.path[:1] == ("ood",)}
    ours = make_table(table.runs, table.score, [name for name in printed.SETS if name in names])
    at = 1 + [column.key for column in ours.columns].index(BITS)
    columns = (*ours.columns[:at], PAPER_BITS_COLUMN, *ours.columns[at:])
    theirs = tuple(printed_row(row, columns) for row in PRINTED[dataset])
    return replace(ours, columns=columns, rows=ours.rows + theirs)


def printed_row(row: printed.PrintedRow, columns: Sequence[Column]) -> Row:
    """An average that is not the mean of the sets shown, up to rounding, gives way to that mean."""
    cells: dict[str, float | None] = dict(row.cells)
    for column in columns:
        if column.mean_of:
            mean = mean_if_all([cells.get(each.key) for each in column.mean_of])
            cells[column.key] = mean if mean is None else as_told(mean, column, row)
    known = {key: Cell(x, None, 1) for key, x in cells.items() if x is not None}
    return Row(row.group, row.label, known, n_seeds=1, printed=True)


def as_told(mean: float, column: Column, row: printed.PrintedRow) -> float:
    """The printed average of all the paper's sets, if it says the same: half a unit each for it and for them."""
    told = row.cells.get(column.key, math.inf)
    return told if len(column.mean_of) == len(printed.SETS) and abs(told - mean) < 0.011 else mean


def rounded(mean: float) -> str:
    """As printed; never -0.00, which would be no tie with 0.00."""
    return f"{mean:z.{DIGITS}f}"


def best(table: Table, column: Column) -> str | None:
    """The best number of our rows as printed; None where fewer than two compete."""
    rows = [row for row in table.rows if column.key in row.cells and competes(row)]
    means = sorted(row.cells[column.key].mean for row in rows)
    return rounded(means[-1 if column.higher_is_better else 0]) if len(means) > 1 else None


def is_best(table: Table, row: Row, column: Column) -> bool:
    """Ties, judged as printed, are all best."""
    cell = row.cells.get(column.key)
    return cell is not None and competes(row) and rounded(cell.mean) == best(table, column)


def competes(row: Row) -> bool:
    """The paper's rows do not, nor does a model that always says the same and is perfectly calibrated so."""
    return not row.printed and not row.n_not_converged


def caption(table: Table) -> str:
    """What a reader needs to know beside the numbers, in plain text."""
    ours = [row for row in table.rows if not row.printed]
    sizes = listed(sorted({run["size"] for run in table.runs}, key=lambda size: position(size, SIZES)))
    told = [f"Results on {table.dataset} ({sizes}), {seeds_told(ours)}. Bold: the best of each column."]
    told.append("Calibration errors have a floor that even a perfect model shows: see results.json.")
    shown = {column.short for column in table.columns} & {*CONTROLS}
    controls = f" but the control {listed(sorted(shown))}" if shown else ""
    if any(column.mean_of for column in table.columns):
        told.append(
            f"OoD detection: AUROC of the score {table.score}; averages are over the sets shown{controls}."
        )
    if len({run["noise"] for run in table.runs} & {"uniform", "gaussian"}) == 2:
        told.append("With Gaussian noise bits/dim is a plug-in value, with uniform noise an upper bound.")
    if failed := [f"{row.label} ({row.n_not_converged})" for row in ours if row.n_not_converged]:
        told.append(f"Runs that did not learn to classify: {listed(failed)}.")
    if len(ours) < len(table.rows):
        told.append(printed_told(table))
    return " ".join(told)


def seeds_told(rows: Sequence[Row]) -> str:
    counts = sorted({row.n_seeds for row in rows})
    if counts == [1]:
        return "one seed"
    seeds = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
    alone = " (plain numbers: one seed)" if counts[0] == 1 else ""
    return f"mean ± standard error over {seeds} seeds{alone}"


def printed_told(table: Table) -> str:
    told = "The paper's rows are as printed and do not compete"
    if not any(column.mean_of for column in table.columns):
        return f"{told}."
    if table.score != "typicality":
        return f"{told}; its detection scores are those of typicality and not shown."
    return f"{told}, but for the averages of detection, whose printed values are geometric means."


def to_markdown(table: Table) -> str:
    """A pipe table with one header row; a group is named in its first row."""
    heads = ["group", "model", *(f"{column.name} {column.arrow}" for column in table.columns)]
    lines = [[markdown(head) for head in heads], ["---", "---", *("---:" for _ in table.columns)]]
    for group, row in grouped(table.rows):
        pairs = [shown(table, row, column, "**{}**") for column in table.columns]
        cells = [f"{mean} ± {error}" if error else mean for mean, error in pairs]
        lines.append([markdown(group), markdown(row.label), *cells])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def grouped(rows: Iterable[Row]) -> list[tuple[str, Row]]:
    """Each row with the name of its group, or with nothing where the row above has the same."""
    groups = groupby(rows, key=lambda row: f"{row.group} (paper)" if row.printed else row.group)
    return [("" if i else name, row) for name, members in groups for i, row in enumerate(members)]


def shown(table: Table, row: Row, column: Column, bold: str) -> tuple[str, str]:
    """A mean as text, in the frame `bold` if it is best, and its standard error, empty if there is none."""
    cell = row.cells.get(column.key)
    if cell is None:
        return NONE, ""
    mean = bold.format(rounded(cell.mean)) if is_best(table, row, column) else rounded(cell.mean)
    return mean, "" if cell.standard_error is None else rounded(cell.standard_error)


def markdown(text: str) -> str:
    """Text that no Markdown reader takes for markup: one line, no bare pipe, no emphasis."""
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
        head = [table.dataset, "paper" if row.printed else "runs", row.group, row.label]
        setup = row.setup or (None,) * len(Setup._fields)
        seeds = None if row.printed else row.n_seeds
        writer.writerow([*head, *setup, seeds, *(x for pair in pairs for x in pair)])
    return file.getvalue()


def to_latex(table: Table) -> str:
    """A table environment, no wider than the text. Its document needs booktabs and graphicx."""
    lines = latex_heads(table.columns)
    for group, row in grouped(table.rows):
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
            upper.append(rf"\multicolumn{{{len(members)}}}{{c}}{{{latex(f'{block} {members[0].arrow}')}}}")
            rules.append(rf"\cmidrule(lr){{{first}-{last}}}")
            lower += [column.short for column in members]
        else:
            parts = [f"{column.name} {column.arrow}".split(" ", 1) for column in members]
            upper += [latex(head) for head, _ in parts]
            lower += [rest for _, rest in parts]
    return [" & ".join(upper) + r" \\", *rules, " & ".join(map(latex, lower)) + r" \\"]


def latex_cell(table: Table, row: Row, column: Column) -> str:
    """Means stand below each other: a short error, or none, leaves the room of the longest in its column."""
    mean, error = shown(table, row, column, r"\textbf{{{}}}")
    longest = max((shown(table, other, column, "")[1] for other in table.rows), key=len)
    filled = (error or longest) + r"\phantom{0}" * (len(longest) - len(error or longest))
    tail = rf"\,{{\scriptsize$\pm$\,{filled}}}" if longest else ""
    if tail and not error:
        tail = rf"\phantom{{{tail}}}"
    return (mean if mean == NONE else mean.replace("-", "$-$")) + tail


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
    """Text that pdfLaTeX sets as it stands; L_X as the loss, characters that its fonts lack as U+ and a number."""
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
