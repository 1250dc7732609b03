"""From run folders to figures, tables and pages: what `ibinn evaluate` and `ibinn report` write."""

import dataclasses
import io
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from ibinn._system import write_atomically
from ibinn._types import Array
from ibinn.config import GAMMA_METHODS, ConfigError
from ibinn.data.known import KNOWN
from ibinn.report.figures import draw_calibration, draw_roc, draw_score_histograms, draw_training
from ibinn.report.page import render_page
from ibinn.report.pictures import draw_interpolations, draw_sample_sets, draw_samples, draw_trajectory
from ibinn.report.style import STYLE
from ibinn.report.sweeps import draw_gamma_full, draw_gamma_panels, draw_latents, draw_sigma
from ibinn.report.tables import (
    caption,
    make_table,
    setup_of,
    to_csv,
    to_latex_document,
    to_markdown,
    with_printed,
)
from ibinn.run import CONFIG, HISTORY, RESULTS
from ibinn.run.arrays import read_arrays, write_arrays
from ibinn.run.folder import read_config
from ibinn.run.results import Results, read_results, write_results
from ibinn.run.trained import RunError

PAGE, FIGURES = "report.html", "figures"
RUN_FIGURES = (
    *("calibration", "histograms", "roc", "latent"),
    *("samples", "interpolations", "trajectory", "training"),
)
SWEEP_FIGURES = ("gamma", "gamma_full", "sigma", "latent", "samples", "interpolations")
# Settings of config.toml that results.json tells of too.
TOLD = {"format", "data", "method", "gamma", "size", "seed", "recipe.noise", "recipe.sigma"}
MOST_PANELS = 8  # runs side by side in one figure
Numbers = dict[str, Any]  # results.json as read
Note = Callable[[str], None]
Drawing = tuple[str, Callable[[], Figure]]


class Evaluated(NamedTuple):
    """A run as `ibinn evaluate` left it."""

    folder: Path
    results: Numbers
    arrays: Mapping[str, Array]


def write_run(
    folder: Path,
    results: Results,
    arrays: Mapping[str, Array],
    progress: Callable[[int, int | None], None] | None = None,
) -> None:
    """Draw everything first, then write it, results.json last: a run is never half evaluated."""
    numbers = json.loads(json.dumps(dataclasses.asdict(results)))
    drawn: dict[str, bytes] = {}
    for name, draw in run_figures(numbers, arrays, read_history(folder)):
        drawn |= rendered(name, draw)
        if progress:
            progress(len(drawn) // 2, None)
    config = folder / CONFIG
    text = config.read_text(encoding="utf-8") if config.is_file() else ""
    pictures = {name.removesuffix(".png"): png for name, png in drawn.items() if name.endswith(".png")}
    page = render_page(numbers, pictures, text)
    write_arrays(folder, arrays)
    write_figures(folder / FIGURES, RUN_FIGURES, drawn)
    write_atomically(folder / PAGE, page)
    write_results(folder, results)


def rendered(name: str, draw: Callable[[], Figure]) -> dict[str, bytes]:
    """name.png and name.pdf."""
    files = {}
    with rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "Glyph .* missing"
        )  # a class name in a script the font lacks: boxes
        figure = draw()
        for suffix in ("png", "pdf"):
            file = io.BytesIO()
            figure.savefig(file, format=suffix)
            files[f"{name}.{suffix}"] = file.getvalue()
    return files


def write_figures(folder: Path, names: Sequence[str], drawn: Mapping[str, bytes]) -> None:
    """The files drawn, in place of those of an earlier time."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (f"{name}.{suffix}" for name in names for suffix in ("png", "pdf")):
        if name in drawn:
            write_atomically(folder / name, drawn[name])
        else:
            (folder / name).unlink(missing_ok=True)


def run_figures(
    results: Numbers, arrays: Mapping[str, Array], history: list[dict[str, Any]]
) -> Iterator[Drawing]:
    """The figures that a run has what it takes for."""
    classes, levels, score = results["classes"], results["levels"], results["score"]
    if results["calibration"]["bins"]:
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


def read_history(folder: Path) -> list[dict[str, Any]]:
    """The lines of history.jsonl; none where it is not there or not whole."""
    path = folder / HISTORY
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    try:
        return [json.loads(line) for line in lines]
    except ValueError:
        return []


def report(folders: Sequence[Path], out: Path, paper: bool, score: str, note: Note) -> Iterator[Path]:
    """Tables and figures over several runs, data set by data set; the files as they are written.

    A folder of runs, as a sweep makes it, stands for them. A run that cannot be read is told of and left out.
    """
    if not folders:
        raise RunError("which runs? give their folders, as in: ibinn report runs/*")
    runs = read_runs([run for folder in folders for run in runs_in(folder, note)], note)
    by_data = grouped(runs, lambda run: run.results["dataset"])
    if not by_data:
        raise RunError("none of these runs has results; make them with: ibinn evaluate RUN")
    if len(by_data) > 1:
        note(
            f"these runs are of several data sets ({', '.join(sorted(by_data))}): each gets its own tables"
        )
    for number, (data, runs) in enumerate(sorted(by_data.items())):
        where = out / f"{number + 1}-{Path(data).stem}" if len(by_data) > 1 else out
        yield from write_tables(runs, where, paper, score, note)
        yield from write_sweep(runs, where, score, note)


def is_sweep(folder: Path) -> bool:
    """Whether a folder is no run itself, but holds some."""
    return folder.is_dir() and not is_run(folder) and any(map(is_run, folder.iterdir()))


def is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (CONFIG, RESULTS))


def runs_in(folder: Path, note: Note) -> list[Path]:
    """The folder itself, or the evaluated runs of a sweep; one note tells of the others."""
    if not is_sweep(folder):
        return [folder]
    runs = sorted(filter(is_run, folder.iterdir()))
    finished = [run for run in runs if (run / RESULTS).is_file()]
    if n := len(runs) - len(finished):
        note(f"{n} of {len(runs)} runs in {folder} {'is' if n == 1 else 'are'} not finished yet")
    return finished


def read_runs(folders: Sequence[Path], note: Note) -> list[Evaluated]:
    """Those that can be read, each once; the same data told in two ways has one name.

    Their results get the `settings` that they were trained with and the `variant` that these make of their setup.
    """
    runs: dict[tuple[Any, ...], Evaluated] = {}
    for folder in folders:
        try:
            run = Evaluated(folder, read_results(folder), read_arrays(folder))
        except (RunError, OSError) as error:
            note(f"left out: {error}")
            continue
        data = Path(run.results["dataset"])
        if str(data) not in KNOWN and data.exists():
            run.results["dataset"] = str(data.resolve())
        settings = run.results["settings"] = settings_of(folder)
        key = (*twins(run), run.results["seed"], *settings.items())
        if key in runs:
            note(f"left out: {folder} is the same training as {runs[key].folder}")
        else:
            runs[key] = run
    tell_variants([*runs.values()])
    return [*runs.values()]


def settings_of(folder: Path) -> dict[str, str]:
    """What config.toml holds beyond what results.json tells, as text, by name: recipe.epochs and so on.

    Empty where there is none that can be read.
    """
    try:
        config = dataclasses.asdict(read_config(folder / CONFIG))
    except (OSError, ConfigError, RunError):
        return {}
    parts = {"recipe.": config.pop("recipe"), "network.": config.pop("network"), "": config}
    found = {f"{part}{key}": value for part, values in parts.items() for key, value in values.items()}
    return {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in found.items()
        if key not in TOLD
    }


def twins(run: Evaluated) -> tuple[Any, ...]:
    """The same for runs that a table would take for seeds of one setup."""
    return run.results["dataset"], setup_of(run.results)._replace(variant="")


def tell_variants(runs: Sequence[Evaluated]) -> None:
    """Runs that are alike but for their settings are not averaged: `variant` says what each has of its own."""
    for group in grouped(runs, twins).values():
        keys = varied(group)
        for run in group:
            run.results["variant"] = ", ".join(f"{key} {value_of(run, key)}" for key in keys)


def varied(runs: Sequence[Evaluated]) -> list[str]:
    """The settings in which they differ."""
    keys = dict.fromkeys(key for run in runs for key in run.results["settings"])
    return [key for key in keys if len({value_of(run, key) for run in runs}) > 1]


def value_of(run: Evaluated, field: str) -> Any:
    """Of a field of results.json, or of a setting."""
    return run.results[field] if field in run.results else run.results["settings"].get(field, "unknown")


def grouped(runs: Sequence[Evaluated], key: Callable[[Evaluated], Any]) -> dict[Any, list[Evaluated]]:
    groups: dict[Any, list[Evaluated]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return groups


def write_tables(
    runs: Sequence[Evaluated], out: Path, paper: bool, score: str, note: Note
) -> Iterator[Path]:
    """table.md, table.tex and table.csv."""
    try:
        table = make_table([run.results for run in runs], score)
    except ValueError as error:
        note(f"no table: {error}")
        return
    if paper:
        try:
            table = with_printed(table, runs[0].results["dataset"])
        except ValueError as error:
            note(str(error))
    out.mkdir(parents=True, exist_ok=True)
    texts = {
        "md": f"{to_markdown(table)}\n{caption(table)}\n",
        "tex": to_latex_document(table),
        "csv": to_csv(table),
    }
    for suffix, text in texts.items():
        write_atomically(out / f"table.{suffix}", text)
        yield out / f"table.{suffix}"


def write_sweep(runs: Sequence[Evaluated], out: Path, score: str, note: Note) -> Iterator[Path]:
    """The figures over several runs, as far as these have what it takes."""
    drawn: dict[str, bytes] = {}
    for name, draw in sweep_figures(runs, score, note):
        try:
            drawn |= rendered(name, draw)
        except ValueError as error:
            note(f"no figure {name}: {error}")
    write_figures(out / FIGURES, SWEEP_FIGURES, drawn)
    yield from (out / FIGURES / name for name in drawn if name.endswith(".png"))


def sweep_figures(runs: Sequence[Evaluated], score: str, note: Note) -> Iterator[Drawing]:
    swept = [run for run in runs if run.results["method"] in GAMMA_METHODS]
    swept = alike(swept, ("size", "noise", "sigma"), "gamma", note)
    by_method = grouped(swept, lambda run: run.results["method"]).values()
    swept = [run for some in by_method for run in alike(some, varied_twins(some), "gamma", note)]
    if len({run.results["gamma"] for run in swept if run.results["method"] == "ibinn"}) > 1:
        numbers = [run.results for run in swept]
        yield "gamma", lambda: draw_gamma_panels(numbers, score)
        yield "gamma_full", lambda: draw_gamma_full(numbers, score)
    noisy = [r for r in runs if r.results["sigma"] and r.results["information"]["ci_xz"] is not None]
    noisy = alike(noisy, ("method", "size", "gamma", *varied_twins(noisy)), "sigma", note)
    if len({run.results["sigma"] for run in noisy}) > 1:
        yield "sigma", lambda: draw_sigma([r.results for r in noisy], noisy[0].results["n_dims"])
    for name, key, draw in (
        ("latent", "latent/points", draw_latents_of),
        ("samples", "samples", draw_samples_of),
        ("interpolations", "interpolations", draw_interpolations_of),
    ):
        if chosen := a_few([run for run in side_by_side(runs) if key in run.arrays], name, note):
            yield name, lambda draw=draw, chosen=chosen: draw(chosen)  # type: ignore[misc]


def alike(runs: Sequence[Evaluated], fields: Sequence[str], knob: str, note: Note) -> list[Evaluated]:
    """Of runs that differ in more than the knob and the seed, those that show most values of the knob."""
    groups = grouped(runs, lambda run: tuple(value_of(run, field) for field in fields))
    if not groups:
        return []
    key, chosen = max(groups.items(), key=lambda item: len({run.results[knob] for run in item[1]}))
    values = len({run.results[knob] for run in chosen})
    if len(groups) > 1 and values > 1:
        told = ", ".join(f"{field} {value}" for field, value in zip(fields, key, strict=True))
        note(f"the {knob} figure shows the runs with {told} alone: the others differ in more than {knob}")
    return chosen


def varied_twins(runs: Sequence[Evaluated]) -> list[str]:
    """The settings in which runs differ that share all that results.json tells of."""
    return [*dict.fromkeys(key for group in grouped(runs, twins).values() for key in varied(group))]


def side_by_side(runs: Sequence[Evaluated]) -> list[Evaluated]:
    """The first seed of each setup that has a density; class-NLL first, then by gamma."""
    firsts: dict[str, Evaluated] = {}
    sizes = len({(r.results["size"], r.results["sigma"]) for r in runs}) > 1
    for run in sorted(runs, key=lambda run: run.results["seed"]):
        firsts.setdefault(label_of(run.results, sizes), run)
    return sorted(
        firsts.values(),
        key=lambda run: (run.results["method"] == "ibinn", float(run.results["gamma"] or 0)),
    )


def a_few(runs: list[Evaluated], name: str, note: Note) -> list[Evaluated]:
    """At most MOST_PANELS of them, evenly chosen, the first and the last included."""
    if len(runs) <= MOST_PANELS:
        return runs
    note(f"the figure {name} shows {MOST_PANELS} of {len(runs)} runs")
    return [runs[i] for i in np.linspace(0, len(runs) - 1, MOST_PANELS).round().astype(int)]


def labelled(runs: Sequence[Evaluated]) -> dict[str, Evaluated]:
    sizes = len({(r.results["size"], r.results["sigma"]) for r in runs}) > 1
    return {label_of(run.results, sizes): run for run in runs}


def draw_latents_of(runs: Sequence[Evaluated]) -> Figure:
    panels = {label: run.arrays for label, run in labelled(runs).items()}
    return draw_latents(panels, runs[0].results["classes"])


def draw_samples_of(runs: Sequence[Evaluated]) -> Figure:
    sets = {label: run.arrays["samples"] for label, run in labelled(runs).items()}
    return draw_sample_sets(sets, runs[0].results["classes"], runs[0].results["levels"])


def draw_interpolations_of(runs: Sequence[Evaluated]) -> Figure:
    rows = [(label, run.arrays["interpolations"][0]) for label, run in labelled(runs).items()]
    return draw_interpolations(rows, runs[0].results["levels"])


def label_of(results: Numbers, with_size: bool = False) -> str:
    """γ = 1, γ = ∞, class-nll, ...; with size, σ and other settings where runs differ in them."""
    gamma = float(results["gamma"] or 0)
    method = str(results["method"])
    text = {"class-nll": "class-NLL", "class-nll-fixed": "class-NLL reg."}.get(method, method)
    if text == "ibinn":
        text = "γ = ∞" if gamma == float("inf") else f"γ = {gamma:g}"
    parts = [text]
    if with_size:
        parts.append(results["size"])
        parts += [] if results["sigma"] is None else [f"σ = {results['sigma']:g}"]
    parts += filter(None, [results.get("variant")])
    return ", ".join(parts)
