"""Fills the tables of results/ into the README and the pages that have a place for them.

python docs/result_tables.py

Every number comes from a results.json, or from a file beside them that compares several runs.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import published
from claims import (
    CLAIMS,
    FEATURES,
    IBINN,
    NLL,
    ONLY_X,
    RESNET,
    VIB,
    best_score,
    cifar_choice,
    fashion_choice,
)
from comparisons import Ensemble, read_comparison
from fill import DOCS, markdown, put
from latent_tables import (
    latent_samples,
    left_out_of_images,
    left_out_of_rows,
    pretrained_mean,
    pretrained_ood,
    pretrained_probabilities,
    votes_on_images,
    votes_on_rows,
    votes_with_drawn_noise,
)
from published import (
    ENTROPY_INCREASE,
    EXPERIMENTS,
    FLOOR,
    MISSING,
    MODELS,
    Runs,
    cell,
    false_alarms,
    flagged,
    mean_auroc,
    minutes,
    of,
    rescaled,
    runs_of,
    with_floor,
)
from trial_tables import trials_on_cifar10, trials_on_fashion_mnist

from ibinn.formats import decimal, gamma_text, shortest
from ibinn.report.quantities import (
    BITS,
    CI_XZ,
    ERROR,
    GEO_MEAN,
    LOSS_X,
    NLL_Y,
    ood_auroc,
)
from ibinn.report.tables import TableRun, caption, make_table, to_markdown
from ibinn.run.results import Results, from_json, read_results

CELLS = (
    *("error, %", "bits/dim", "calibration (floor), %", "entropy increase, nats"),
    *("AUROC typicality, %", "AUROC combined, %", "AUROC entropy, %", "min"),
)


def overview(experiment: str) -> str:
    """A row per method, with means over the OoD sets."""
    table = [["model", "seeds", "parameters, M", *CELLS]]
    for name, (method, gamma) in MODELS.items():
        runs = of(runs_of(experiment), method, gamma)
        learned = [run for run in runs if run.converged or gamma == 0.0]
        if learned:
            n = (
                f"{len(learned)} of {len(runs)} that learned"
                if len(learned) < len(runs)
                else str(len(runs))
            )
            size = f"{learned[0].n_parameters / 1e6:.2f}"
            table.append([name, n, size, *cells(learned, has_classes=gamma != 0.0)])
        elif runs:
            table.append([name, f"none of {len(runs)} learned", *["–"] * 9])
    return markdown(table) if len(table) > 1 else MISSING


def cells(runs: list[Results], has_classes: bool) -> list[str]:
    classes = [cell(runs, ERROR), with_floor(runs), cell(runs, ENTROPY_INCREASE)]
    error, calibration, increase = classes if has_classes else ["–"] * 3
    detection = [cell(runs, mean_auroc(score), 1) for score in ("typicality", "combined")]
    detection.append(cell(runs, mean_auroc("entropy"), 1) if has_classes else "–")
    bits = cell(runs, BITS)
    if bits == "–" and runs[0].method in ("ibinn", "class-nll", "class-nll-fixed"):
        bits = "not finite"
    return [error, bits, calibration, increase, *detection, minutes(runs)]


def fashion_overview() -> str:
    return overview("fashion-table")


def fashion_ramp() -> str:
    """With gamma constant in training, and rising."""
    table = [["γ = 1", *CELLS]]
    for name, experiment in {"from the first step on": "fashion-no-ramp", "rises": "fashion-table"}.items():
        if runs := of(runs_of(experiment), *MODELS[IBINN]):
            table.append([name, *cells(runs, has_classes=True)])
    return markdown(table)


SHORT = ["model", "error, %", "bits/dim", "calibration (floor), %", "strange inputs, AUROC, % (score)"]


def short(experiment: str, names: Sequence[str]) -> str:
    """For the README: each model with one score."""
    runs, table = runs_of(experiment), [SHORT]
    for name in names:
        if learned := [run for run in of(runs, *MODELS[name]) if run.converged]:
            score = "combined" if "combined" in scores_in(learned) else best_score(learned)
            area = f"{cell(learned, mean_auroc(score), 1)} (`{score}`)"
            table.append([name, cell(learned, ERROR), cell(learned, BITS), with_floor(learned), area])
    return markdown(table) if len(table) > 1 else MISSING


def fashion_short() -> str:
    return short("fashion-table", (IBINN, NLL, VIB, RESNET))


def cifar_short() -> str:
    return short("cifar10-base", (IBINN, RESNET))


def scores_in(runs: list[Results]) -> list[str]:
    return list(next(iter(runs[0].ood.values())).auroc)


def fashion_full() -> str:
    """The paper's layout, with every set."""
    runs = runs_of("fashion-table")
    return f"{to_markdown(table := make_table(map(TableRun, runs)))}\n{caption(table)}" if runs else MISSING


def fashion_scores() -> str:
    """AUROC of every score on every set, for the IB-INN at gamma = 1."""
    return scores_of(of(runs_of("fashion-table"), *MODELS[IBINN]))


def fashion_flagged() -> str:
    return flagged_table("fashion-table")


def cifar_flagged() -> str:
    return flagged_table("cifar10-base")


def flagged_table(experiment: str) -> str:
    """The shares with p <= alpha: false alarms, and every OoD set."""
    runs = runs_of(experiment)
    table: list[list[str]] = []
    for name, scores in {
        IBINN: ("combined", "typicality"),
        ONLY_X: ("combined",),
        NLL: ("combined",),
        RESNET: ("mahalanobis", "entropy"),
    }.items():
        some = of(runs, *MODELS[name])
        sets = [*some[0].ood] if some else []
        table = table or [["model", "score", "test set (false alarms)", *sets]]
        for score in scores if some else ():
            hits = [cell(some, flagged(one, score), 1) for one in sets]
            table.append([name, f"`{score}`", cell(some, false_alarms(score), 1), *hits])
    return markdown(table) if runs else MISSING


def scores_of(runs: list[Results]) -> str:
    if not runs:
        return MISSING
    sets = [*runs[0].ood]
    table = [["score", *sets]]
    for score in scores_in(runs):
        table.append([f"`{score}`", *(cell(runs, ood_auroc(name, score), 1) for name in sets)])
    return markdown(table)


def fashion_gamma() -> str:
    runs = runs_of("fashion-gamma")
    heads = ["γ", "IB-INN: error, %", "bits/dim", "calibration (floor), %", "entropy increase, nats"]
    table = [
        [*heads, "AUROC typicality, %", "VIB: error, %", "calibration (floor), %", "entropy increase, nats"]
    ]
    for gamma in sorted({run.gamma or 0.0 for run in runs}):
        ours, vib = of(runs, "ibinn", gamma), of(runs, "vib", gamma)
        row = [cell(ours, ERROR), cell(ours, BITS), with_floor(ours)]
        row += [cell(ours, ENTROPY_INCREASE), cell(ours, mean_auroc("typicality"), 1)]
        theirs = [cell(vib, ERROR), with_floor(vib), cell(vib, ENTROPY_INCREASE)]
        failed = vib and not vib[0].converged
        table.append([gamma_text(gamma), *row, *(["does not converge", "–", "–"] if failed else theirs)])
    return markdown(table) if runs else MISSING


def fashion_rivals() -> str:
    return rivals("fashion-table", published.RESULTS / "fashion-ensemble.json")


def cifar_rivals() -> str:
    return rivals("cifar10-base")


def rivals(experiment: str, ensemble: Path | None = None) -> str:
    """The IB-INN and what a practitioner would use: a plain classifier, scaled, with the scores on top of it."""
    runs = runs_of(experiment)
    ibinn, resnet = of(runs, *MODELS[IBINN]), of(runs, *MODELS[RESNET])
    if not ibinn or not resnet:
        return MISSING
    sets = [*ibinn[0].ood]
    heads = ["model", "min", "error, %", "−log q(y\\|x)", "calibration (floor), %", "score"]
    table = [[*heads, *(f"AUROC {name}" for name in sets), "mean"]]
    for name, some, scores in (
        (IBINN, ibinn, ("typicality", "combined", "entropy")),
        (RESNET, resnet, FEATURES),
    ):
        table += score_rows(about(name, some), some, scores)
        table.append([*about("the same, scaled", some, scaled=True), *[""] * (2 + len(sets))])
    if ensemble and ensemble.is_file():
        many = read_comparison(Ensemble, ensemble)
        table += score_rows(about(f"{many.n_members} ResNets, scaled", [many]), [many], FEATURES)
    return markdown(table)


def about(name: str, runs: Runs, scaled: bool = False) -> list[str]:
    """The cells of a model that do not depend on the score."""
    nll_y, error, floor = (rescaled(q) if scaled else q for q in (NLL_Y, GEO_MEAN, FLOOR))
    return [name, minutes(runs), cell(runs, ERROR), cell(runs, nll_y, 3), with_floor(runs, error, floor)]


def score_rows(first: list[str], runs: Runs, scores: Sequence[str]) -> list[list[str]]:
    """A row per score; the first begins with the cells `first`."""
    rows: list[list[str]] = []
    for score in scores:
        areas = [ood_auroc(name, score) for name in runs[0].ood] + [mean_auroc(score)]
        start = [""] * len(first) if rows else first
        rows.append([*start, f"`{score}`", *(cell(runs, area, 1) for area in areas)])
    return rows


def cifar_overview() -> str:
    return overview("cifar10-base")


def cifar_scores() -> str:
    return scores_of(of(runs_of("cifar10-base"), *MODELS[IBINN]))


def sigma() -> str:
    runs = sorted(runs_of("sigma-8x8"), key=lambda run: run.sigma or 0.0)
    heads = ["σ", "σ/ΔX", "error, %", "calibration (floor), %", "L_X, nats/dim"]
    table = [[*heads, "bits/dim, plug-in", "CI(X, Z), nats/dim"]]
    for run in runs:
        about_run = [cell([run], ERROR), with_floor([run]), cell([run], LOSS_X, 3), cell([run], BITS, 3)]
        ci, s = CI_XZ.value(run), run.sigma or 0.0
        per_dim = None if ci is None else ci / run.n_dims
        table.append([shortest(s), f"{256 * s:.3g}", *about_run, decimal(per_dim)])
    return markdown(table) if runs else MISSING


def digits() -> str:
    """The numbers of the demo that everyone gets, with all digits."""
    folder, file = published.RESULTS / "digits", published.RESULTS / "digits-elsewhere.json"
    if not folder.is_dir():
        return MISSING
    demo = read_results(folder)
    numbers: dict[str, Callable[[Results], float | None]] = {
        "error": lambda run: run.error,
        "bits_per_dim": lambda run: run.bits_per_dim,
        "nll_y": lambda run: run.nll_y,
        "brier": lambda run: run.brier,
        "entropy": lambda run: run.entropy,
        "calibration.geo_mean": lambda run: run.calibration.geo_mean,
        "scaled.temperature": lambda run: run.scaled.temperature,
    }
    numbers |= {area.name: area.value for area in (ood_auroc(name, "combined") for name in demo.ood)}
    stored = json.loads(file.read_text()) if file.is_file() else {}
    elsewhere = {name: from_json(values, name) for name, values in stored.items()}
    table = [["in `results.json`", "value", *elsewhere]]
    for name, number in numbers.items():
        others = [f"{number(run):.5g}" for run in elsewhere.values()]
        table.append([f"`{name}`", repr(number(demo)), *others])
    return markdown(table)


def effort() -> str:
    """Number and hours of the trainings."""
    hours = {name: [run.train_seconds / 3600 for run in runs_of(name)] for name in EXPERIMENTS}
    hours = {f"`{name}`": each for name, each in hours.items() if each}
    if not hours:
        return MISSING
    everything = {**hours, "all": [hour for each in hours.values() for hour in each]}
    rows = [[name, str(len(each)), f"{sum(each):.1f}"] for name, each in everything.items()]
    return markdown([["experiment", "trainings", "hours"], *rows])


def machine() -> str:
    """Where they ran, within a sentence."""
    if not (file := published.RESULTS / "machine.json").is_file():
        return MISSING
    facts = json.loads(file.read_text())
    return f"{facts['processor']}, {facts['cores']} cores; Python {facts['python']}, torch {facts['torch']}"


PAGES: dict[str, tuple[Callable[[], str], ...]] = {
    "../README.md": (fashion_short, cifar_short, pretrained_mean),
    "results.md": (
        *(fashion_overview, fashion_full, fashion_scores, fashion_flagged, fashion_ramp, fashion_gamma),
        *(fashion_rivals, cifar_overview, cifar_scores, cifar_flagged, cifar_rivals, sigma),
        *(*CLAIMS, fashion_choice, cifar_choice, effort, machine),
    ),
    "reproduction.md": (digits,),
    "method.md": (latent_samples,),
    "recipes.md": (
        *(votes_on_images, votes_on_rows, votes_with_drawn_noise, left_out_of_images, left_out_of_rows),
        *(pretrained_ood, pretrained_probabilities, trials_on_cifar10, trials_on_fashion_mnist),
    ),
}


def filled(page: Path) -> str:
    text = page.read_text()
    name = page.relative_to(DOCS).as_posix() if page.is_relative_to(DOCS) else f"../{page.name}"
    for table in PAGES[name]:
        text = put(text, table.__name__, table())
    return text


def main() -> None:
    for name in PAGES:
        page = (DOCS / name).resolve()
        page.write_text(filled(page))


if __name__ == "__main__":
    main()
