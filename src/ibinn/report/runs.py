"""From run folders to figures, tables and pages: what `ibinn evaluate` and `ibinn report` write."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ibinn.checkpoint import CONFIG, HISTORY, RunError
from ibinn.data.dataset import Array
from ibinn.evaluation import read_results
from ibinn.exploration import read_arrays
from ibinn.files import write_whole
from ibinn.report.figures import draw_calibration, draw_roc, draw_score_histograms, draw_training
from ibinn.report.page import render_page
from ibinn.report.pictures import draw_interpolations, draw_sample_sets, draw_samples, draw_trajectory
from ibinn.report.style import save_figure
from ibinn.report.sweeps import draw_gamma_full, draw_gamma_panels, draw_latents, draw_sigma
from ibinn.report.tables import make_table, to_csv, to_latex_document, to_markdown, with_printed

PAGE = "report.html"
MOST_PANELS = 6  # runs side by side in one figure
Results = dict[str, Any]  # results.json
Arrays = Mapping[str, Array]


def draw_run(folder: Path, progress: Callable[[int, int | None], None] | None = None) -> dict[str, bytes]:
    """Draw figures/*.png and *.pdf of an evaluated run, in place of those there; the PNGs by name."""
    results, arrays = read_results(folder), read_arrays(folder)
    for old in (folder / "figures").glob("*.p[nd][gf]"):
        old.unlink()
    drawn = {}
    for name, draw in run_figures(results, arrays, read_history(folder)):
        save_figure(draw(), folder / "figures" / name)
        drawn[name] = (folder / "figures" / f"{name}.png").read_bytes()
        if progress:
            progress(len(drawn), None)
    return drawn


def run_figures(
    results: Results, arrays: Arrays, history: list[dict[str, Any]]
) -> Iterator[tuple[str, Callable[[], Figure]]]:
    """The figures that a run has what it takes for."""
    classes, levels, score = results["classes"], results["levels"], results["score"]
    yield "calibration", lambda: draw_calibration(results)
    if results["ood"]:
        yield "histograms", lambda: draw_score_histograms(results, arrays, score)
        yield "roc", lambda: draw_roc(results, arrays, score)
    if "latent/points" in arrays:
        yield "latent", lambda: draw_latents({label_of(results): arrays}, classes)
    if "samples" in arrays:
        yield "samples", lambda: draw_samples(arrays["samples"], classes, levels)
    if "interpolations" in arrays:
        yield (
            "interpolations",
            lambda: draw_interpolations([("", i) for i in arrays["interpolations"]], levels),
        )
    if "trajectory/points" in arrays:
        yield "trajectory", lambda: draw_trajectory(arrays, classes, levels)
    if history:
        yield "training", lambda: draw_training(history)


def write_page(folder: Path, figures: Mapping[str, bytes]) -> None:
    """report.html of an evaluated run."""
    config = folder / CONFIG
    text = config.read_text(encoding="utf-8") if config.is_file() else ""
    write_whole(folder / PAGE, render_page(read_results(folder), figures, text))


def read_history(folder: Path) -> list[dict[str, Any]]:
    path = folder / HISTORY
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [json.loads(line) for line in lines]


def report(
    folders: Sequence[Path], out: Path, paper: bool, score: str, note: Callable[[str], None]
) -> Iterator[Path]:
    """Tables and figures over several runs, data set by data set; the files as they are written.

    A run that cannot be read is told of and left out.
    """
    by_data: dict[str, list[tuple[Results, Arrays]]] = {}
    for folder in folders:
        try:
            by_data.setdefault((results := read_results(folder))["dataset"], []).append(
                (results, read_arrays(folder))
            )
        except (RunError, OSError) as error:
            note(f"left out: {error}")
    if not by_data:
        raise RunError("none of these runs has results; make them with: ibinn evaluate RUN")
    if len(by_data) > 1:
        note(
            f"these runs are of several data sets ({', '.join(sorted(by_data))}): each gets its own tables"
        )
    for number, (data, runs) in enumerate(sorted(by_data.items())):
        where = out / f"{number + 1}-{Path(data).stem}" if len(by_data) > 1 else out
        try:
            yield from write_tables([results for results, _ in runs], where, paper, score, note)
        except ValueError as error:
            note(f"no table of {data}: {error}")
        yield from write_figures(runs, where)


def write_tables(
    runs: Sequence[Results], out: Path, paper: bool, score: str, note: Callable[[str], None]
) -> Iterator[Path]:
    """table.md, table.tex and table.csv."""
    table = make_table(runs, score)
    if paper:
        try:
            table = with_printed(table, runs[0]["dataset"])
        except ValueError as error:
            note(str(error))
    out.mkdir(parents=True, exist_ok=True)
    for suffix, text in (("md", to_markdown), ("tex", to_latex_document), ("csv", to_csv)):
        write_whole(out / f"table.{suffix}", text(table))
        yield out / f"table.{suffix}"


def write_figures(runs: Sequence[tuple[Results, Arrays]], out: Path) -> Iterator[Path]:
    for name, draw in sweep_figures(runs):
        save_figure(draw(), out / "figures" / name)
        yield out / "figures" / f"{name}.png"


def sweep_figures(
    runs: Sequence[tuple[Results, Arrays]],
) -> Iterator[tuple[str, Callable[[], Figure]]]:
    """The figures over several runs that these have what it takes for."""
    numbers = [results for results, _ in runs]
    swept = [r for r in numbers if r["method"] in ("ibinn", "vib")]
    if len({r["gamma"] for r in swept if r["method"] == "ibinn"}) > 1:
        yield "gamma", lambda: draw_gamma_panels(swept)
        yield "gamma_full", lambda: draw_gamma_full(swept)
    noisy = [r for r in numbers if r["sigma"] is not None and r["information"]["ci_xz"] is not None]
    if len({r["sigma"] for r in noisy}) > 1:
        yield "sigma", lambda: draw_sigma(noisy, noisy[0]["n_dims"])
    for name, key, draw in (
        ("latent", "latent/points", draw_latents_of),
        ("samples", "samples", draw_samples_of),
        ("interpolations", "interpolations", draw_interpolations_of),
    ):
        if chosen := [(r, a) for r, a in one_per_label(runs) if key in a]:
            yield name, lambda draw=draw, chosen=chosen: draw(chosen)  # type: ignore[misc]


def draw_latents_of(runs: Sequence[tuple[Results, Arrays]]) -> Figure:
    return draw_latents({label_of(r): a for r, a in runs[:MOST_PANELS]}, runs[0][0]["classes"])


def draw_samples_of(runs: Sequence[tuple[Results, Arrays]]) -> Figure:
    sets = {label_of(r): a["samples"] for r, a in runs[:MOST_PANELS]}
    return draw_sample_sets(sets, runs[0][0]["classes"], runs[0][0]["levels"])


def draw_interpolations_of(runs: Sequence[tuple[Results, Arrays]]) -> Figure:
    return draw_interpolations(
        [(label_of(r), a["interpolations"][0]) for r, a in runs], runs[0][0]["levels"]
    )


def one_per_label(runs: Sequence[tuple[Results, Arrays]]) -> list[tuple[Results, Arrays]]:
    """The first seed of each method and gamma; class-NLL first, then by gamma."""
    firsts: dict[str, tuple[Results, Arrays]] = {}
    for results, arrays in sorted(runs, key=lambda run: run[0]["seed"]):
        firsts.setdefault(label_of(results), (results, arrays))
    return sorted(
        firsts.values(), key=lambda run: (run[0]["method"] == "ibinn", float(run[0]["gamma"] or 0))
    )


def label_of(results: Results) -> str:
    """γ = 1, γ = ∞, class-nll, ..."""
    if results["method"] != "ibinn":
        return str(results["method"])
    gamma = float(results["gamma"])
    return "γ = ∞" if gamma == float("inf") else f"γ = {gamma:g}"
