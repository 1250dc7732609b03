"""From run folders to figures, tables and pages: the files of `ibinn evaluate` and `ibinn report`."""

import dataclasses
import json
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from ibinn._system import write_atomically
from ibinn._types import Array, Progress
from ibinn.config import GAMMA_METHODS
from ibinn.data.known import KNOWN
from ibinn.report.figures import draw_calibration, draw_roc, draw_score_histograms, draw_training
from ibinn.report.page import render_page
from ibinn.report.pictures import draw_interpolations, draw_sample_sets, draw_samples, draw_trajectory
from ibinn.report.style import STYLE, png_and_pdf
from ibinn.report.sweeps import draw_front, draw_gamma_full, draw_gamma_panels, draw_latents, draw_sigma
from ibinn.report.tables import (
    Setup,
    TableRun,
    caption,
    label_of,
    labels_of,
    make_table,
    setup_of,
    to_csv,
    to_latex_document,
    to_markdown,
    with_printed,
)
from ibinn.run import CONFIG, RESULTS, RunError
from ibinn.run.arrays import read_arrays, write_arrays
from ibinn.run.facts import EpochLine, read_history
from ibinn.run.results import Results, read_results, write_results
from ibinn.run.settings import read_config

PAGE, FIGURES = "report.html", "figures"
RUN_FIGURES = (
    *("calibration", "histograms", "roc", "latent"),
    *("samples", "interpolations", "trajectory", "training"),
)
SWEEP_FIGURES = ("gamma", "gamma_full", "front", "sigma", "latent", "samples", "interpolations")
# Settings of config.toml that are also in results.json.
IN_RESULTS = {"format", "data", "method", "gamma", "size", "seed", "recipe.noise", "recipe.sigma"}
MOST_PANELS = 8  # runs side by side in one figure
Notify = Callable[[str], None]
Drawing = tuple[str, Callable[[], Figure]]
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Evaluated:
    """A run as `ibinn evaluate` left it.

    settings: its other settings by name, such as recipe.epochs; variant: those that tell it from runs of the same
    setup.
    """

    folder: Path
    results: Results
    arrays: Mapping[str, Array]
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    variant: str = ""

    @property
    def setup(self) -> Setup:
        return setup_of(TableRun(self.results, self.variant))


def write_run(
    folder: Path, results: Results, arrays: Mapping[str, Array], progress: Progress | None = None
) -> None:
    """Draw everything first, then write it, results.json last: a run is never half evaluated."""
    files: dict[str, bytes] = {}
    for name, draw in run_figures(results, arrays, read_history(folder)):
        files |= rendered(name, draw)
        if progress:
            progress(len(files) // 2, None)
    config = folder / CONFIG
    text = config.read_text(encoding="utf-8") if config.is_file() else ""
    pictures = {name.removesuffix(".png"): png for name, png in files.items() if name.endswith(".png")}
    page = render_page(results, pictures, text)
    write_arrays(folder, arrays)
    write_figures(folder / FIGURES, RUN_FIGURES, files)
    write_atomically(folder / PAGE, page)
    write_results(folder, results)


def rendered(name: str, draw: Callable[[], Figure]) -> dict[str, bytes]:
    """name.png and name.pdf."""
    with rc_context(STYLE), warnings.catch_warnings():
        # A class name in a script that the font lacks is drawn as boxes.
        warnings.filterwarnings("ignore", "Glyph .* missing")
        return {f"{name}.{suffix}": content for suffix, content in png_and_pdf(draw()).items()}


def write_figures(folder: Path, names: Sequence[str], files: Mapping[str, bytes]) -> None:
    """Write the files, and remove figures of these names from an earlier evaluation."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (f"{name}.{suffix}" for name in names for suffix in ("png", "pdf")):
        if name in files:
            write_atomically(folder / name, files[name])
        else:
            (folder / name).unlink(missing_ok=True)


def run_figures(
    results: Results, arrays: Mapping[str, Array], history: Sequence[EpochLine]
) -> Iterator[Drawing]:
    """The figures that the numbers and arrays of a run allow."""
    classes, levels, score = results.classes, results.levels or 0, results.score
    if results.scaled.calibration.bins:
        yield "calibration", lambda: draw_calibration(results)
    if results.ood:
        yield "histograms", lambda: draw_score_histograms(results, arrays, score)
        yield "roc", lambda: draw_roc(results, arrays, score)
    if "latent/points" in arrays:
        yield "latent", lambda: draw_latents({label_of(results.method, results.gamma): arrays}, classes)
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


def report(folders: Sequence[Path], out: Path, paper: bool, score: str, notify: Notify) -> Iterator[Path]:
    """Write tables and figures over several runs, by data set; yields the files as they are written.

    The folder of a sweep stands for its runs. A run that cannot be read is left out, with a note.
    """
    if not folders:
        raise RunError("no run folders are given; give them as in: ibinn report runs/*")
    runs = read_runs([run for folder in folders for run in runs_in(folder, notify)], notify)
    by_data = grouped(runs, lambda run: run.results.dataset)
    if not by_data:
        raise RunError("none of these runs has results; make them with: ibinn evaluate RUN")
    if len(by_data) > 1:
        notify(
            f"these runs are of several data sets ({', '.join(sorted(by_data))}): each gets its own tables"
        )
    for number, (data, runs) in enumerate(sorted(by_data.items())):
        where = out / f"{number + 1}-{Path(data).stem}" if len(by_data) > 1 else out
        yield from write_tables(runs, where, paper, score, notify)
        yield from write_sweep(runs, where, score, notify)


def is_sweep(folder: Path) -> bool:
    """Whether a folder holds runs and is not a run itself."""
    return folder.is_dir() and not is_run(folder) and any(map(is_run, folder.iterdir()))


def is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (CONFIG, RESULTS))


def runs_in(folder: Path, notify: Notify) -> list[Path]:
    """The folder itself, or the evaluated runs of a sweep, with one note about the others."""
    if not is_sweep(folder):
        return [folder]
    runs = sorted(filter(is_run, folder.iterdir()))
    finished = [run for run in runs if (run / RESULTS).is_file()]
    if n := len(runs) - len(finished):
        notify(f"{n} of {len(runs)} runs in {folder} {'is' if n == 1 else 'are'} not finished yet")
    return finished


def read_runs(folders: Sequence[Path], notify: Notify) -> list[Evaluated]:
    """The runs that can be read, each once, with their settings and variants.

    A data set that was given by several paths gets one name.
    """
    runs: dict[Hashable, Evaluated] = {}
    for folder in folders:
        try:
            results, arrays = read_results(folder), read_arrays(folder)
        except (RunError, OSError) as error:
            notify(f"left out: {error}")
            continue
        data = Path(results.dataset)
        if str(data) not in KNOWN and data.exists():
            results = replace(results, dataset=str(data.resolve()))
        run = Evaluated(folder, results, arrays, settings_of(folder, notify))
        key = (*setup_key(run), results.seed, *run.settings.items())
        if key in runs:
            notify(f"left out: {folder} is the same training as {runs[key].folder}")
        else:
            runs[key] = run
    return with_variants(runs.values())


def settings_of(folder: Path, notify: Notify) -> dict[str, str]:
    """The settings in config.toml that are not in results.json, as text, by name: recipe.epochs and so on.

    Empty without a config.toml, and with a note if it cannot be read.
    """
    path = folder / CONFIG
    if not path.is_file():
        return {}
    try:
        config = dataclasses.asdict(read_config(path))
    except (OSError, ValueError) as error:
        notify(f"the settings of {folder} are unknown: {error}")
        return {}
    parts = {"recipe.": config.pop("recipe"), "network.": config.pop("network"), "": config}
    found = {f"{part}{key}": value for part, values in parts.items() for key, value in values.items()}
    return {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in found.items()
        if key not in IN_RESULTS
    }


def setup_key(run: Evaluated) -> tuple[str, Setup]:
    """Equal for runs that a table would average as seeds of one setup."""
    return run.results.dataset, run.setup._replace(variant="")


def with_variants(runs: Iterable[Evaluated]) -> list[Evaluated]:
    """Runs that are alike except for their settings are not averaged: `variant` names what each has of its own."""
    runs = [*runs]
    keys = {key: varied(group) for key, group in grouped(runs, setup_key).items()}
    return [
        replace(run, variant=", ".join(f"{key} {setting(run, key)}" for key in keys[setup_key(run)]))
        for run in runs
    ]


def varied(runs: Sequence[Evaluated]) -> list[str]:
    """The settings in which they differ."""
    keys = dict.fromkeys(key for run in runs for key in run.settings)
    return [key for key in keys if len({setting(run, key) for run in runs}) > 1]


def setting(run: Evaluated, name: str) -> Any:
    """A part of the setup such as gamma, or another setting."""
    return getattr(run.setup, name) if name in Setup._fields else run.settings.get(name, "unknown")


def grouped(runs: Iterable[Evaluated], key: Callable[[Evaluated], Key]) -> dict[Key, list[Evaluated]]:
    groups: dict[Key, list[Evaluated]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return groups


def write_tables(
    runs: Sequence[Evaluated], out: Path, paper: bool, score: str, notify: Notify
) -> Iterator[Path]:
    """table.md, table.tex and table.csv."""
    try:
        table = make_table([TableRun(run.results, run.variant) for run in runs], score)
    except ValueError as error:
        notify(f"no table: {error}")
        return
    if paper:
        try:
            table = with_printed(table, table.dataset)
        except ValueError as error:
            notify(str(error))
    out.mkdir(parents=True, exist_ok=True)
    texts = {
        "md": f"{to_markdown(table)}\n{caption(table)}\n",
        "tex": to_latex_document(table),
        "csv": to_csv(table),
    }
    for suffix, text in texts.items():
        write_atomically(out / f"table.{suffix}", text)
        yield out / f"table.{suffix}"


def write_sweep(runs: Sequence[Evaluated], out: Path, score: str, notify: Notify) -> Iterator[Path]:
    """Write the figures that the runs allow."""
    files: dict[str, bytes] = {}
    for name, draw in sweep_figures(runs, score, notify):
        try:
            files |= rendered(name, draw)
        except ValueError as error:
            notify(f"no figure {name}: {error}")
    write_figures(out / FIGURES, SWEEP_FIGURES, files)
    yield from (out / FIGURES / name for name in files if name.endswith(".png"))


def sweep_figures(runs: Sequence[Evaluated], score: str, notify: Notify) -> Iterator[Drawing]:
    swept = [run for run in runs if run.results.method in GAMMA_METHODS]
    swept = alike(swept, ("size", "noise", "sigma"), "gamma", notify)
    by_method = grouped(swept, lambda run: run.results.method).values()
    swept = [run for some in by_method for run in alike(some, varied_within_setups(some), "gamma", notify)]
    if len({run.results.gamma for run in swept if run.results.method == "ibinn"}) > 1:
        results = [run.results for run in swept]
        yield "gamma", lambda: draw_gamma_panels(results, score)
        yield "gamma_full", lambda: draw_gamma_full(results, score)
        yield "front", lambda: draw_front(results)
    noisy = [run for run in runs if run.results.sigma and run.results.information.ci_xz is not None]
    noisy = alike(noisy, ("method", "size", "gamma", *varied_within_setups(noisy)), "sigma", notify)
    if len({run.results.sigma for run in noisy}) > 1:
        yield "sigma", lambda: draw_sigma([run.results for run in noisy])
    for name, key, draw in (
        ("latent", "latent/points", draw_latents_of),
        ("samples", "samples", draw_samples_of),
        ("interpolations", "interpolations", draw_interpolations_of),
    ):
        if some := evenly_spaced([run for run in side_by_side(runs) if key in run.arrays], name, notify):
            yield name, lambda draw=draw, some=some: draw(some)  # type: ignore[misc]


def alike(
    runs: Sequence[Evaluated], names: Sequence[str], knob: Literal["gamma", "sigma"], notify: Notify
) -> list[Evaluated]:
    """Of runs that differ in more than the knob and the seed, the group with most values of the knob."""
    groups = grouped(runs, lambda run: tuple(setting(run, name) for name in names))
    if not groups:
        return []
    n_values = {key: len({setting(run, knob) for run in group}) for key, group in groups.items()}
    key = max(groups, key=lambda key: n_values[key])
    if len(groups) > 1 and n_values[key] > 1:
        shared = ", ".join(f"{name} {value}" for name, value in zip(names, key, strict=True))
        notify(
            f"the {knob} figure shows only the runs with {shared}: the others differ in more than {knob}"
        )
    return groups[key]


def varied_within_setups(runs: Sequence[Evaluated]) -> list[str]:
    """The settings in which runs of the same setup differ."""
    return [*dict.fromkeys(key for group in grouped(runs, setup_key).values() for key in varied(group))]


def side_by_side(runs: Sequence[Evaluated]) -> list[Evaluated]:
    """The first seed of each setup; IB-INNs last, by gamma."""
    firsts: dict[Setup, Evaluated] = {}
    for run in sorted(runs, key=lambda run: run.results.seed):
        firsts.setdefault(run.setup, run)
    return sorted(
        firsts.values(), key=lambda run: (run.results.method == "ibinn", run.results.gamma or 0.0)
    )


def evenly_spaced(runs: list[Evaluated], name: str, notify: Notify) -> list[Evaluated]:
    """At most MOST_PANELS of them, evenly spaced, with the first and the last."""
    if len(runs) <= MOST_PANELS:
        return runs
    notify(f"the figure {name} shows {MOST_PANELS} of {len(runs)} runs")
    return [runs[i] for i in np.linspace(0, len(runs) - 1, MOST_PANELS).round().astype(int)]


def labelled(runs: Sequence[Evaluated]) -> dict[str, Evaluated]:
    labels = labels_of(run.setup for run in runs)
    return {labels[run.setup]: run for run in runs}


def draw_latents_of(runs: Sequence[Evaluated]) -> Figure:
    panels = {label: run.arrays for label, run in labelled(runs).items()}
    return draw_latents(panels, runs[0].results.classes)


def draw_samples_of(runs: Sequence[Evaluated]) -> Figure:
    sets = {label: run.arrays["samples"] for label, run in labelled(runs).items()}
    return draw_sample_sets(sets, runs[0].results.classes, runs[0].results.levels or 0)


def draw_interpolations_of(runs: Sequence[Evaluated]) -> Figure:
    rows = [(label, run.arrays["interpolations"][0]) for label, run in labelled(runs).items()]
    return draw_interpolations(rows, runs[0].results.levels or 0)
