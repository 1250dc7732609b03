"""Tables over runs: rows, averages, bold, the three formats, and the paper's printed numbers."""

import csv
import io
import math
import random
import re
import shutil
import subprocess

import numpy as np
import pytest
from helpers.results import calibration, ood_result, results
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from ibinn.report.paper import GROUPS, PRINTED, SETS
from ibinn.report.tables import (
    TableRun,
    best,
    caption,
    is_best,
    latex,
    make_table,
    markdown,
    to_csv,
    to_latex,
    to_latex_document,
    to_markdown,
    with_printed,
)
from ibinn.run.results import Averaged

ONLY_IN_PAPER = [
    ("IB-INN", "γ = 0.1"),
    *(("Standard generative", f"Class-NLL{end}") for end in ("", " + regul.")),
]
WITHOUT_DENSITY = ("vib", "resnet", "irevnet")
CALIBRATION = ("geo_mean", "ece", "mce", "ice")
UGLY = r"_a_b & 50% #1 {x} ~ ^ \ $ | < > * ` [é] «中» L_X"
EVERY_METHOD = [
    ("resnet", None),
    ("vib", 10.0),
    ("vib", 1.0),
    ("irevnet", None),
    ("class-nll-fixed", 1 / 64),
    ("class-nll", 1 / 64),
    ("ibinn", math.inf),
    ("ibinn", 1.0),
    ("ibinn", 0),
    ("ibinn", 0.02),
]
ROWS = [
    ("IB-INN", "only L_X (γ = 0)"),
    ("IB-INN", "γ = 0.02"),
    ("IB-INN", "γ = 1"),
    ("IB-INN", "only L_Y (γ → ∞)"),
    ("Standard generative", "class-NLL"),
    ("Standard generative", "class-NLL with fixed means"),
    ("Discriminative", "VIB (γ = 1)"),
    ("Discriminative", "VIB (γ = 10)"),
    ("Discriminative", "ResNet"),
    ("Discriminative", "i-RevNet"),
]


def run(method="ibinn", gamma=1.0, seed=0, sets=("noise", "inverted"), **changes):
    """A run whose numbers depend on all of these."""
    dice = random.Random(f"{method} {gamma} {seed}")
    density = method not in WITHOUT_DENSITY
    scores = ["entropy", *(["typicality", "combined"] if density else [])]
    bits = dice.uniform(2, 8)
    values = {
        "dataset": "digits",
        "size": "tiny",
        "error": dice.uniform(1, 50),
        "bits_per_dim": bits if density else None,
        "bits_per_dim_paper_convention": bits - 0.6 if density else None,
        "calibration": calibration(**{name: dice.uniform(0, 20) for name in CALIBRATION}),
        "ood": {
            name: ood_result(
                entropy_increase=dice.uniform(-0.1, 1),
                auroc={score: dice.uniform(40, 100) for score in scores},
            )
            for name in sets
        },
    }
    return TableRun(results(method=method, gamma=gamma, seed=seed, **(values | changes)))


def means(table, key):
    return {row.label: row.cells[key].mean if key in row.cells else None for row in table.rows}


def keys(table):
    return [column.key for column in table.columns]


def cells_of(line):
    """Of a pipe table's line; an escaped pipe does not end a cell."""
    return [cell.strip() for cell in re.findall(r"((?:\\.|[^|\\])*)\|", line)[1:]]


def read_csv(table):
    return list(csv.DictReader(io.StringIO(to_csv(table))))


class TestRows:
    def test_groups_and_order_are_the_papers(self):
        table = make_table([run(method, gamma) for method, gamma in EVERY_METHOD])
        assert [(row.group, row.label) for row in table.rows] == ROWS
        assert list(dict.fromkeys(row.group for row in table.rows)) == list(GROUPS)

    @given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=6), st.randoms())
    def test_seeds_become_mean_and_standard_error(self, errors, dice):
        runs = [run(seed=seed, error=error) for seed, error in enumerate(errors)]
        dice.shuffle(runs)
        (row,) = make_table(runs).rows
        mean, standard_error, n = row.cells["error"]
        assert n == row.n_seeds == len(errors)
        assert_allclose(mean, np.mean(errors), atol=1e-9)
        assert_allclose(standard_error, np.std(errors, ddof=1) / np.sqrt(n), atol=1e-9)

    def test_averages_over_views_have_a_row_of_their_own_that_does_not_compete(self):
        runs = [run(seed=seed, error=9.0, averaged=Averaged(8, 3.0 + seed, 0.1)) for seed in (0, 1)]
        table = make_table([*runs, run("resnet", seed=0, error=7.0)])
        plain, averaged, _ = table.rows
        assert averaged.label == f"{plain.label}, averaged over 8 views"
        assert averaged.cells["error"] == (3.5, 0.5, 2)
        assert {*averaged.cells} == {"error", "bits_per_dim"}
        assert "**7.00**" in to_markdown(table)
        assert "**3.50**" not in to_markdown(table)
        some = [runs[0], run(seed=1, error=9.0)]
        assert len(make_table(some).rows) == 1

    def test_one_seed_has_no_standard_error(self):
        (row,) = make_table([run(error=3.14159)]).rows
        assert row.cells["error"] == (3.14159, None, 1)
        assert "| 3.14 |" in to_markdown(make_table([run(error=3.14159)]))

    def test_two_seeds_show_their_error(self):
        table = make_table([run(seed=0, error=3.0), run(seed=1, error=5.0)])
        assert "| 4.00 ± 1.00 |" in to_markdown(table)

    def test_gammas_alike_in_six_digits_stay_apart(self):
        table = make_table([run(gamma=1.0), run(gamma=1.0000001)])
        assert [row.label for row in table.rows] == ["γ = 1", "γ = 1.0000001"]

    def test_sizes_split_rows_and_are_named_where_there_are_several(self):
        runs = [run(size="small"), run("resnet", None), run(size="tiny")]
        assert [row.label for row in make_table(runs).rows] == [
            "γ = 1, tiny",
            "γ = 1, small",
            "ResNet, tiny",
        ]
        assert [row.label for row in make_table(runs[1:]).rows] == ["γ = 1", "ResNet"]

    def test_noises_split_rows_and_are_named_where_the_size_does_not_tell(self):
        quiet, loud = (run(noise="gaussian", sigma=sigma) for sigma in (0.001, 0.01))
        both = run(noise="both", sigma=0.01)
        labels = [row.label for row in make_table([loud, run(), quiet, both]).rows]
        assert labels == [
            "γ = 1, uniform noise",
            "γ = 1, σ = 0.001",
            "γ = 1, uniform noise and σ = 0.01",
            "γ = 1, σ = 0.01",
        ]
        by_size = make_table([run(noise="gaussian", sigma=0.001, size="paper"), run()])
        assert [row.label for row in by_size.rows] == ["γ = 1, tiny", "γ = 1, paper"]

    @pytest.mark.parametrize(
        ("runs", "options", "sentence"),
        [
            ([], {}, "runs is empty"),
            ([run(), run(dataset="mnist")], {}, "digits, mnist"),
            ([run(), run()], {}, "'γ = 1' has two runs of seed 0"),
            ([run()], {"score": "typicallity"}, "'typicallity'; they have combined, entropy, typicality"),
            ([run()], {"sets": ["nose"]}, "'nose'; they have inverted, noise"),
        ],
    )
    def test_what_makes_no_table_is_told_in_a_sentence(self, runs, options, sentence):
        with pytest.raises(ValueError, match=re.escape(sentence)) as error:
            make_table(runs, **options)
        assert "\n" not in str(error.value)


class TestMissingNumbers:
    def test_the_labels_are_not_in_the_loss_at_gamma_zero(self):
        (row,) = make_table([run(gamma=0)]).rows
        shown = {key for key in keys(make_table([run(gamma=0)])) if key in row.cells}
        auroc = {f"ood.{name}.auroc.typicality" for name in ("noise", "inverted")}
        assert shown == {"bits_per_dim", "average.auroc.typicality"} | auroc

    @pytest.mark.parametrize("method", WITHOUT_DENSITY)
    def test_models_without_density_have_neither_bits_nor_typicality(self, method):
        table = make_table([run(method, 1.0)])
        hidden = {key for key in keys(table) if key not in table.rows[0].cells}
        assert hidden == {"bits_per_dim", *(key for key in keys(table) if "auroc" in key)}
        every = make_table([run(method, 1.0)], score="entropy")
        assert set(keys(every)) - every.rows[0].cells.keys() == {"bits_per_dim"}

    def test_a_number_that_one_seed_lacks_is_missing_from_the_row(self):
        runs = [run(seed=0), run(seed=1, bits_per_dim=None), run(gamma=2.0, bits_per_dim=math.nan)]
        assert means(make_table(runs), "bits_per_dim") == {"γ = 1": None, "γ = 2": None}

    def test_dashes_in_every_format(self):
        table = make_table([run(gamma=0)])
        assert cells_of(to_markdown(table).splitlines()[2])[2] == "--"
        assert " & only $\\mathcal{L}_X$ ($\\gamma$ = 0) & -- & " in to_latex(table)
        assert read_csv(table)[0]["error"] == ""


class TestOodColumns:
    def test_the_papers_sets_first_then_by_name_whatever_the_order_of_runs(self):
        runs = [run(sets=("zebra", "noise", "imagenet")), run(gamma=2.0, sets=("apple", "rgb_rotation"))]
        expected = ["rgb_rotation", "noise", "imagenet", "apple", "zebra"]
        for some in (runs, runs[::-1]):
            found = [key.split(".")[1] for key in keys(make_table(some)) if re.match(r"ood.*auroc", key)]
            assert found == expected

    @given(st.integers(1, 3), st.lists(st.text(max_size=8), min_size=1, max_size=5, unique=True))
    def test_the_average_is_over_the_sets_of_each_run(self, n_seeds, sets):
        runs = [run(seed=seed, sets=sets) for seed in range(n_seeds)]
        (row,) = make_table(runs).rows
        averages = [np.mean([one.results.ood[name].auroc["typicality"] for name in sets]) for one in runs]
        cell = row.cells["average.auroc.typicality"]
        assert_allclose(cell.mean, np.mean(averages))
        if n_seeds > 1:
            assert_allclose(cell.standard_error, np.std(averages, ddof=1) / np.sqrt(n_seeds), atol=1e-12)

    def test_a_row_that_lacks_a_set_lacks_the_average(self):
        table = make_table([run(sets=("noise",)), run(gamma=2.0)])
        for measure in ("entropy_increase", "auroc.typicality"):
            for key in (f"ood.inverted.{measure}", f"average.{measure}"):
                assert [value is None for value in means(table, key).values()] == [True, False]
            assert None not in means(table, f"ood.noise.{measure}").values()

    def test_the_score_is_chosen(self):
        one = run()
        table = make_table([one], score="combined")
        expected = one.results.ood["noise"].auroc["combined"]
        assert means(table, "ood.noise.auroc.combined") == {"γ = 1": expected}
        assert "combined" in caption(table)

    def test_sets_can_be_chosen(self):
        table = make_table([run()], sets=["noise"])
        assert means(table, "average.entropy_increase") == means(table, "ood.noise.entropy_increase")
        assert "ood.inverted.entropy_increase" not in keys(table)

    def test_without_sets_there_are_no_ood_columns(self):
        table = make_table([run(ood={})])
        assert keys(table) == ["error", "bits_per_dim", *(f"calibration.{name}" for name in CALIBRATION)]
        assert "multicolumn{0}" not in to_latex(table)


class TestBold:
    def test_low_is_best_or_high_by_column(self):
        runs = [
            run(
                gamma=gamma,
                error=value,
                bits_per_dim=value,
                calibration=calibration(**dict.fromkeys(CALIBRATION, value)),
                ood={"noise": ood_result(entropy_increase=value, auroc={"typicality": value})},
            )
            for gamma, value in ((1.0, 5.0), (2.0, 7.0))
        ]
        table = make_table(runs)
        low, high = (
            {column.key for column in table.columns if is_best(table, row, column)} for row in table.rows
        )
        assert high == {key for key in keys(table) if "entropy_increase" in key or "auroc" in key}
        assert low == set(keys(table)) - high

    def test_ties_are_judged_as_printed(self):
        errors = (1.004, 0.9951, 1.0051, 2.0)  # shown as 1.00, 1.00, 1.01, 2.00
        runs = [run(gamma=1.0 + i, error=error) for i, error in enumerate(errors)]
        column = [cells_of(line)[2] for line in to_markdown(make_table(runs)).splitlines()[2:]]
        assert column == ["**1.00**", "**1.00**", "1.01", "2.00"]

    def test_nothing_below_zero_is_shown_as_zero(self):
        values = (-0.001, 0.001)
        runs = [
            run(gamma=1.0 + i, ood={"noise": ood_result(entropy_increase=value)})
            for i, value in enumerate(values)
        ]
        table = make_table(runs)
        assert [cells_of(line)[8] for line in to_markdown(table).splitlines()[2:]] == ["**0.00**"] * 2

    def test_no_competition_of_one(self):
        assert "**" not in to_markdown(make_table([run()]))
        table = make_table([run(), run("resnet", None)])
        bits = next(column for column in table.columns if column.key == "bits_per_dim")
        assert best(table, bits) is None

    @given(st.lists(st.floats(0, 100), min_size=2, max_size=6))
    def test_the_best_of_a_column_is_bold_in_both_formats(self, errors):
        table = make_table([run(gamma=1.0 + i, error=error) for i, error in enumerate(errors)])
        bold = [f"{error:.2f}" == f"{min(errors):.2f}" for error in errors]
        lines = to_markdown(table).splitlines()[2:]
        assert [cells_of(line)[2].startswith("**") for line in lines] == bold
        lines = [line for line in to_latex(table).splitlines() if " & $\\gamma$" in line]
        assert [line.split(" & ")[2].startswith(r"\textbf{") for line in lines] == bold

    def test_the_error_is_not_bold(self):
        runs = [run(gamma=g, seed=seed, error=g + seed) for g in (1.0, 9.0) for seed in (0, 1)]
        assert "| **1.50** ± 0.50 |" in to_markdown(make_table(runs))
        assert r"\textbf{1.50}\,{\scriptsize$\pm$\,0.50}" in to_latex(make_table(runs))


class TestMarkdown:
    @given(st.lists(st.text(max_size=12), max_size=4, unique=True), st.booleans())
    def test_all_lines_have_the_same_number_of_cells(self, sets, printed):
        table = make_table([run(sets=sets), run("resnet", None, sets=sets), run(gamma=0, sets=sets)])
        table = with_printed(table, "cifar100") if printed else table
        lines = to_markdown(table).split("\n")
        assert lines.pop() == ""
        assert len(lines) == 2 + len(table.rows)
        assert {len(cells_of(line)) for line in lines} == {2 + len(table.columns)}

    def test_head(self):
        head, ruler, *rows = to_markdown(make_table([run(), run(gamma=2.0)])).splitlines()
        assert cells_of(head)[:5] == [
            *("group", "model", "error (%) ↓", "bits/dim ↓"),
            "calibration geo. mean (%) ↓",
        ]
        assert cells_of(head)[-3:] == ["AUROC: average ↑", "AUROC: noise ↑", "AUROC: inverted ↑"]
        assert set(cells_of(ruler)) == {"---", "---:"}
        assert [cells_of(row)[:2] for row in rows] == [["IB-INN", "γ = 1"], ["", "γ = 2"]]

    @pytest.mark.parametrize(
        ("text", "safe"),
        [
            ("rgb_rotation", "rgb_rotation"),
            ("_x_", r"\_x\_"),
            ("a|b\\", r"a\|b\\"),
            ("two\nlines", "two lines"),
            ("*b* `c` <d>", r"\*b\* \`c\` \<d\>"),
        ],
    )
    def test_names_are_no_markup(self, text, safe):
        assert markdown(text) == safe


class TestCsv:
    @given(
        st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=4),
        st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"])), max_size=3, unique=True),
    )
    def test_round_trip(self, errors, sets):
        runs = [run(seed=seed, error=error / 1e3, sets=sets) for seed, error in enumerate(errors)]
        table = make_table([*runs, run("resnet", None, sets=sets)])
        for row, line in zip(table.rows, read_csv(table), strict=True):
            assert (line["group"], line["model"], line["n_seeds"]) == (
                row.group,
                row.label,
                str(row.n_seeds),
            )
            for key in keys(table):
                cell = row.cells.get(key)
                expected = (cell.mean, cell.standard_error) if cell else (None, None)
                found = tuple(float(line[name]) if line[name] else None for name in (key, f"{key}_se"))
                assert found == expected

    def test_what_the_runs_are(self):
        runs = [run(gamma=math.inf, noise="gaussian", sigma=0.001), run("resnet", None)]
        lines = read_csv(with_printed(make_table(runs), "cifar10"))
        names = ("dataset", "source", "method", "gamma", "size", "noise", "sigma", "n_seeds")
        assert [lines[0][name] for name in names] == [
            *("digits", "runs", "ibinn", "inf", "tiny", "gaussian", "0.001", "1"),
        ]
        assert lines[1]["gamma"] == lines[1]["sigma"] == ""
        assert [lines[-1][name] for name in names] == ["digits", "paper", *[""] * 6]
        assert "**" not in to_csv(make_table(runs))


class TestLatex:
    @pytest.mark.parametrize(
        ("text", "safe"),
        [
            ("a_b&c%d#e", r"a\_b\&c\%d\#e"),
            (r"{\}", r"\{\textbackslash{}\}"),
            ("$^~", r"$\mathdollar$\textasciicircum{}$\sim$"),
            ("γ → ∞, 1 ± 2", r"$\gamma$ $\to$ $\infty$, 1 $\pm$ 2"),
            ("only L_X", r"only $\mathcal{L}_X$"),
            ("XL_X", r"XL\_X"),
            ("nai\u0308ve 中\n", "naïve U+4E2D"),
        ],
    )
    def test_special_characters(self, text, safe):
        assert latex(text) == safe

    @given(st.permutations(UGLY), st.text())
    def test_no_text_breaks_a_row(self, ugly, text):
        bare = re.sub(r"\\(textbackslash|textasciicircum)\{\}|\\[_&%#{}]", "", latex("".join(ugly) + text))
        assert not re.search(r"[&%#~^\n]", bare)
        outside = re.sub(r"\$[^$]*\$", "", bare)
        assert not re.search(r"[\\$_{}]", outside)

    def test_heads_span_all_columns(self):
        table = with_printed(make_table([run(sets=SETS), run(gamma=2.0, sets=SETS)]), "cifar10")
        upper, *rules, lower = (
            re.search(r"\\toprule\n(.*?)\n\s*\\midrule", to_latex(table), re.S).group(1).split("\n")
        )
        spans = [re.match(r"\\multicolumn\{(\d+)\}", cell.strip()) for cell in upper.split("&")]
        width = len(table.columns) + 2
        assert sum(int(span.group(1)) if span else 1 for span in spans) == len(lower.split("&")) == width
        assert [rule.strip() for rule in rules] == [
            f"\\cmidrule(lr){{{x}}}" for x in ("6-9", "10-14", "15-19")
        ]
        assert upper.count(r"$\downarrow$") == 1
        assert upper.count(r"$\uparrow$") == 2

    def test_all_rows_have_the_same_number_of_cells(self):
        table = make_table([run(method, gamma, dataset=UGLY) for method, gamma in EVERY_METHOD])
        lines = [line for line in to_latex(table).splitlines() if line.endswith(r"\\")]
        assert {len(re.findall(r"(?<!\\)&", line)) for line in lines[1:]} == {len(table.columns) + 1}

    def test_means_stand_below_each_other(self):
        runs = [run(gamma=1.0, seed=seed, error=40.0 * seed) for seed in (0, 1)]
        runs += [run(gamma=2.0, seed=seed, error=4.0 * seed) for seed in (0, 1)]
        text = to_latex(make_table([*runs, run("resnet", None, error=3.0)]))
        assert r"& 20.00\,{\scriptsize$\pm$\,20.00} &" in text
        assert r"& \textbf{2.00}\,{\scriptsize$\pm$\,2.00\phantom{0}} &" in text
        assert r"& 3.00\phantom{\,{\scriptsize$\pm$\,20.00}} &" in text

    def test_minus_is_no_hyphen(self):
        table = make_table([run(ood={"noise": ood_result(entropy_increase=-0.5, auroc={})})])
        assert "& $-$0.50 & $-$0.50 & -- & --" in to_latex(table)

    @pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
    def test_document_compiles(self, tmp_path):
        letters = " ".join(map(chr, [*range(32, 127), *range(0xA0, 0x180)]))
        runs = [run(method, gamma, sets=[*SETS, UGLY], dataset=letters) for method, gamma in EVERY_METHOD]
        table = make_table([*runs, run(seed=1, sets=[*SETS, UGLY], dataset=letters)])
        for name, document in (
            ("ours", to_latex_document(table)),
            ("both", to_latex_document(with_printed(table, "cifar10"))),
            ("bare", to_latex_document(make_table([run(sets=())]))),
        ):
            (tmp_path / f"{name}.tex").write_text(document, encoding="utf-8")
            done = subprocess.run(
                ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", f"{name}.tex"],
                cwd=tmp_path,
                capture_output=True,
                timeout=120,
            )
            assert done.returncode == 0, done.stdout[-1000:]
            assert b"Overfull" not in done.stdout
            assert b"tcrm" not in done.stdout + done.stderr  # a font that not every installation has
            assert (tmp_path / f"{name}.pdf").stat().st_size > 1000


class TestCaption:
    def test_seeds(self):
        assert "(tiny), one seed." in caption(make_table([run()]))
        two = [run(seed=0), run(seed=1)]
        assert "mean ± standard error over 2 seeds." in caption(make_table(two))
        three = [run(gamma=2.0, seed=seed) for seed in range(3)]
        assert "over 2 to 3 seeds." in caption(make_table(two + three))
        assert "over 1 to 3 seeds (plain numbers: one seed)." in caption(make_table([run(), *three]))

    def test_score_and_floor(self):
        assert "AUROC of the score typicality" in caption(make_table([run()]))
        assert "AUROC" not in caption(make_table([run(sets=())]))
        assert "floor" in caption(make_table([run()]))

    def test_runs_that_learned_nothing(self):
        assert "did not learn" not in caption(make_table([run()]))
        lost = make_table([run("vib", 0.01, seed=seed, converged=seed > 1) for seed in range(3)])
        assert "VIB (γ = 0.01) (2)" in caption(lost)


ALL_PRINTED = [
    pytest.param(row, id=f"{name}: {row.label}") for name, rows in PRINTED.items() for row in rows
]


class TestPrinted:
    """The paper's numbers against each other."""

    @staticmethod
    def sets_of(row, measure):
        return [row.cells[f"ood.{name}.{measure}"] for name in SETS if f"ood.{name}.{measure}" in row.cells]

    def test_rows(self):
        assert [len(rows) for rows in PRINTED.values()] == [8, 7]
        for rows in PRINTED.values():
            places = [GROUPS.index(row.group) for row in rows]
            assert places == sorted(places)
            for row in rows:
                assert (row.group, row.label) in [*ROWS, *ONLY_IN_PAPER]
                dashes = 10 if row.label == "only L_X (γ = 0)" else 6 if row.group == GROUPS[2] else 0
                assert len(row.cells) == 16 - dashes

    @pytest.mark.parametrize("row", ALL_PRINTED)
    def test_geometric_means_of_calibration_errors(self, row):
        if "error" not in row.cells:
            return
        geo_mean, *errors = (row.cells[f"calibration.{name}"] for name in CALIBRATION)
        low, high = (np.prod(np.array(errors) + shift) ** (1 / 3) for shift in (-0.005, 0.005))
        assert low - 0.005 <= geo_mean <= high + 0.005

    @pytest.mark.parametrize("row", ALL_PRINTED)
    def test_averages_of_entropy_are_arithmetic(self, row):
        if values := self.sets_of(row, "entropy_increase"):
            assert abs(np.mean(values) - row.cells["average.entropy_increase"]) < 0.011

    @pytest.mark.parametrize("row", ALL_PRINTED)
    def test_averages_of_detection_are_geometric(self, row):
        if values := self.sets_of(row, "auroc.typicality"):
            average = row.cells["average.auroc.typicality"]
            assert abs(np.exp(np.mean(np.log(values))) - average) < 0.011
            assert np.mean(values) - average > 0.7


class TestWithPrinted:
    @staticmethod
    def table(sets=SETS, **options):
        return make_table([run(sets=sets), run("resnet", None, sets=sets)], **options)

    def test_the_papers_rows_stand_beneath_ours(self):
        ours = self.table()
        both = with_printed(ours, "cifar100")
        assert both.rows[:2] == ours.rows
        assert [(row.group, row.label) for row in both.rows[2:]] == [
            (row.group, row.label) for row in PRINTED["cifar100"]
        ]
        groups = [cells_of(line)[0] for line in to_markdown(both).splitlines()[2:]]
        assert groups[:3] == ["IB-INN", "Discriminative", "IB-INN (paper)"]
        assert "Discriminative (paper)" in groups
        assert "IB-INN (paper) &" in to_latex(both)

    def test_numbers_are_as_printed_but_for_averages_of_detection(self):
        both = with_printed(self.table(), "cifar10")
        for row, expected in zip(both.rows[2:], PRINTED["cifar10"], strict=True):
            found = {key: cell.mean for key, cell in row.cells.items()}
            average = found.pop("average.auroc.typicality", None)
            if average is not None:
                assert_allclose(average, np.mean([found[f"ood.{s}.auroc.typicality"] for s in SETS]))
            assert found == {k: x for k, x in expected.cells.items() if k != "average.auroc.typicality"}
        assert "geometric" in caption(both)

    def test_bits_compare_under_the_papers_convention(self):
        both = with_printed(self.table(), "cifar10")
        assert keys(both)[1:3] == ["bits_per_dim", "bits_per_dim_paper_convention"]
        assert "bits_per_dim_paper_convention" not in keys(self.table())
        exact, convention = (means(both, key) for key in keys(both)[1:3])
        assert exact.pop("γ = 1") is None  # the last of that name is the paper's
        assert convention["γ = 1"] == 5.25
        assert not any(exact.values())
        ours = both.rows[0].cells
        assert_allclose(ours["bits_per_dim"].mean - ours["bits_per_dim_paper_convention"].mean, 0.6)
        assert "bits/dim (paper's convention) ↓" in to_markdown(both)

    @pytest.mark.parametrize("error", [8.0, 6.51, 6.0])  # the paper's best is 6.51
    def test_printed_rows_do_not_compete(self, error):
        both = with_printed(make_table([run(error=error), run(gamma=2.0, error=9.0)]), "cifar10")
        winners = [row for row in both.rows if is_best(both, row, both.columns[0])]
        assert winners == [both.rows[0]]

    def test_only_sets_that_both_have(self):
        both = with_printed(self.table(["zebra", "noise", "quickdraw"]), "cifar10")
        assert [key for key in keys(both) if "entropy" in key] == [
            *("average.entropy_increase", "ood.quickdraw.entropy_increase", "ood.noise.entropy_increase"),
        ]
        for row in both.rows:
            pair = [row.cells.get(f"ood.{name}.entropy_increase") for name in ("quickdraw", "noise")]
            average = row.cells.get("average.entropy_increase")
            assert (average is None) == (None in pair)
            if average is not None:
                assert_allclose(average.mean, np.mean([cell.mean for cell in pair]))

    def test_another_score_is_not_compared(self):
        both = with_printed(self.table(score="entropy"), "cifar10")
        assert set(list(means(both, "average.auroc.entropy").values())[2:]) == {None}
        assert "not shown" in caption(both)

    def test_no_sets_at_all(self):
        both = with_printed(self.table([]), "cifar10")
        assert len(both.columns) == 7
        assert "geometric" not in caption(both)

    def test_nothing_is_printed_for_other_data(self):
        with pytest.raises(ValueError, match="no table for 'digits', only for cifar10, cifar100"):
            with_printed(self.table(), "digits")
