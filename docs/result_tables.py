"""Puts the tables and claims of results/ into the README and the pages that have a place for them.

python docs/result_tables.py

Every number comes from a results.json, or from a file beside them that compares several runs.
"""

from collections.abc import Callable
from pathlib import Path

from claims import FEATURES, best_score, claims, practitioner
from fill import DOCS, markdown, put
from kept import EXPERIMENTS, KEPT, MISSING, MODELS, Run, at, minutes, of, read, runs_of, told, with_floor

from ibinn.report.tables import caption, make_table, to_markdown

LABELS = {  # of rows, where a claim's word for a model would not do
    "IB-INN": "IB-INN, γ = 1",
    "only L_X": "IB-INN, only L_X (γ = 0)",
    "only L_Y": "IB-INN, only L_Y (γ → ∞)",
    "VIB": "VIB, γ = 1",
}
TABLE = {LABELS.get(name, name): setup for name, setup in MODELS.items()}
SHORT = ("IB-INN, γ = 1", "class-NLL", "VIB, γ = 1", "ResNet")  # rows of the README's table
AUROC = "ood.*.auroc."


CELLS = ("error, %", "bits/dim", "calibration (floor), %", "entropy rise, nats")
CELLS += ("AUROC typicality, %", "AUROC combined, %", "AUROC entropy, %", "min")


def overview(experiment: str) -> str:
    """A row per method: what it reaches, on average over the sets of strange inputs."""
    table = [["model", "seeds", "parameters, M", *CELLS]]
    for name, (method, gamma) in TABLE.items():
        runs = of(runs_of(experiment), method, gamma)
        learned = [run for run in runs if run["converged"] or gamma == 0.0]
        if learned:
            n = (
                f"{len(learned)} of {len(runs)} that learned"
                if len(learned) < len(runs)
                else str(len(runs))
            )
            size = f"{learned[0]['n_parameters'] / 1e6:.2f}"
            table.append([name, n, size, *cells(learned, has_classes=gamma != 0.0)])
        elif runs:
            table.append([name, f"none of {len(runs)} learned", *["–"] * 9])
    return markdown(table) if len(table) > 1 else MISSING


def cells(runs: list[Run], has_classes: bool) -> list[str]:
    classes = [told(runs, "error"), with_floor(runs), told(runs, "ood.*.entropy_increase")]
    error, calibration, rise = classes if has_classes else ["–"] * 3
    detection = [told(runs, f"{AUROC}{score}", 1) for score in ("typicality", "combined")]
    detection.append(told(runs, f"{AUROC}entropy", 1) if has_classes else "–")
    bits = told(runs, "bits_per_dim")
    if bits == "–" and runs[0]["method"] in ("ibinn", "class-nll", "class-nll-fixed"):
        bits = "not finite"
    return [error, bits, calibration, rise, *detection, minutes(runs)]


def fashion_overview() -> str:
    return overview("fashion-table")


def fashion_ramp() -> str:
    """What it changes that gamma rises in training."""
    table = [["γ = 1", *CELLS]]
    for name, experiment in {"from the first step on": "fashion-no-ramp", "rises": "fashion-table"}.items():
        if runs := of(runs_of(experiment), "ibinn", 1.0):
            table.append([name, *cells(runs, has_classes=True)])
    return markdown(table)


def fashion_short() -> str:
    """For the README: what a newcomer compares, each with one score."""
    runs = runs_of("fashion-table")
    table = [
        ["model", "error, %", "bits/dim", "calibration (floor), %", "strange inputs, AUROC, % (score)"]
    ]
    for name in SHORT:
        if learned := [run for run in of(runs, *TABLE[name]) if run["converged"]]:
            score = its_score(learned)
            area = f"{told(learned, f'{AUROC}{score}', 1)} (`{score}`)"
            table.append(
                [name, told(learned, "error"), told(learned, "bits_per_dim"), with_floor(learned), area]
            )
    return markdown(table) if len(table) > 1 else MISSING


def its_score(runs: list[Run]) -> str:
    """combined where there is a density, otherwise the best of the others."""
    return best_score(runs) if at(runs[0], f"{AUROC}combined") is None else "combined"


def cifar_short() -> str:
    """For the README, in a sentence."""
    runs, parts = runs_of("cifar10-base"), []
    for name in ("IB-INN, γ = 1", "ResNet"):
        if some := of(runs, *TABLE[name]):
            score = its_score(some)
            numbers = (
                f"{told(some, 'error')} %, {with_floor(some)} % and {told(some, f'{AUROC}{score}', 1)} %"
            )
            parts.append(
                f"{numbers} (`{score}`) for the {name.split(',')[0]} after {minutes(some)} minutes"
            )
    told_of = "error, calibration and AUROC over four kinds of strange inputs"
    return f"On CIFAR-10, one training each, {told_of} are {'; '.join(parts)}." if parts else MISSING


def fashion_full() -> str:
    """The paper's layout, with every set."""
    runs = runs_of("fashion-table")
    return f"{to_markdown(table := make_table(runs))}\n{caption(table)}" if runs else MISSING


def fashion_scores() -> str:
    """AUROC of every score on every set, for the IB-INN at gamma = 1."""
    return scores_of(of(runs_of("fashion-table"), "ibinn", 1.0))


def fashion_flagged() -> str:
    return flagged("fashion-table")


def cifar_flagged() -> str:
    return flagged("cifar10-base")


def flagged(experiment: str) -> str:
    """What the p-values flag: false alarms, and hits on every set."""
    runs = runs_of(experiment)
    table: list[list[str]] = []
    for name, scores in {
        "IB-INN, γ = 1": ("combined", "typicality"),
        "IB-INN, only L_X (γ = 0)": ("combined",),
        "class-NLL": ("combined",),
        "ResNet": ("mahalanobis", "entropy"),
    }.items():
        some = of(runs, *TABLE[name])
        sets = [*some[0]["ood"]] if some else []
        table = table or [["model", "score", "test set (false alarms)", *sets]]
        for score in scores if some else ():
            hits = [told(some, f"ood.{one}.detected_at_alpha.{score}", 1) for one in sets]
            table.append([name, f"`{score}`", told(some, f"false_alarm_rate.{score}", 1), *hits])
    return markdown(table) if runs else MISSING


def scores_of(runs: list[Run]) -> str:
    if not runs:
        return MISSING
    sets = [*runs[0]["ood"]]
    table = [["score", *sets]]
    for score in runs[0]["ood"][sets[0]]["auroc"]:
        table.append([f"`{score}`", *(told(runs, f"ood.{name}.auroc.{score}", 1) for name in sets)])
    return markdown(table)


def fashion_gamma() -> str:
    runs = runs_of("fashion-gamma")
    heads = ["γ", "IB-INN: error, %", "bits/dim", "calibration (floor), %", "entropy rise, nats"]
    table = [
        [*heads, "AUROC typicality, %", "VIB: error, %", "calibration (floor), %", "entropy rise, nats"]
    ]
    for gamma in sorted({run["gamma"] for run in runs}):
        ours, vib = of(runs, "ibinn", gamma), of(runs, "vib", gamma)
        row = [told(ours, "error"), told(ours, "bits_per_dim"), with_floor(ours)] if ours else ["–"] * 3
        row += [told(ours, "ood.*.entropy_increase"), told(ours, f"{AUROC}typicality", 1)]
        theirs = [told(vib, "error"), with_floor(vib), told(vib, "ood.*.entropy_increase")]
        failed = vib and not vib[0]["converged"]
        table.append([f"{gamma:g}", *row, *(["does not converge", "–", "–"] if failed else theirs)])
    return markdown(table) if runs else MISSING


def fashion_rivals() -> str:
    return rivals("fashion-table", KEPT / "fashion-ensemble.json")


def cifar_rivals() -> str:
    return rivals("cifar10-base")


def rivals(experiment: str, ensemble: Path | None = None) -> str:
    """What a practitioner would take: a plain classifier, scaled, with the scores that go with it."""
    runs = runs_of(experiment)
    ibinn, resnet = of(runs, "ibinn", 1.0), of(runs, "resnet")
    if not ibinn or not resnet:
        return MISSING
    sets = [*ibinn[0]["ood"]]
    heads = ["model", "min", "error, %", "−log q(y\\|x)", "calibration (floor), %", "score"]
    table = [[*heads, *(f"AUROC {name}" for name in sets), "mean"]]
    table += rival("IB-INN, γ = 1", ibinn, ("typicality", "combined", "entropy"), sets, "")
    table += rival("the same, scaled", ibinn, (), sets, "scaled.")
    table += rival("ResNet", resnet, FEATURES, sets, "")
    table += rival("the same, scaled", resnet, (), sets, "scaled.")
    if ensemble and ensemble.is_file():
        many = read(ensemble)
        table += rival(f"{many['n_members']} ResNets, scaled", [many], FEATURES, sets, "")
    return markdown(table)


def rival(
    name: str, runs: list[Run], scores: tuple[str, ...], sets: list[str], where: str
) -> list[list[str]]:
    """A row per score; the first has the numbers of the classes too."""
    path = f"{where}calibration"
    first = [
        name,
        minutes(runs),
        told(runs, "error"),
        told(runs, f"{where}nll_y", 3),
        with_floor(runs, path),
    ]
    rows = []
    for number, score in enumerate(scores or ("",)):
        areas = [told(runs, f"ood.{one}.auroc.{score}", 1) if score else "" for one in (*sets, "*")]
        rows.append([*(first if not number else [""] * 5), f"`{score}`" if score else "", *areas])
    return rows


def cifar_overview() -> str:
    return overview("cifar10-base")


def cifar_scores() -> str:
    return scores_of(of(runs_of("cifar10-base"), "ibinn", 1.0))


def sigma() -> str:
    runs = sorted(runs_of("sigma-8x8"), key=lambda run: run["sigma"])
    table = [
        [
            "σ",
            "σ/ΔX",
            "error, %",
            "calibration (floor), %",
            "L_X, nats/dim",
            "bits/dim, plug-in",
            "CI(X, Z), nats/dim",
        ]
    ]
    for run in runs:
        rest = [
            told([run], "error"),
            with_floor([run]),
            told([run], "loss_x", 3),
            told([run], "bits_per_dim", 3),
        ]
        per_dim = at(run, "information.ci_xz")
        ci = "–" if per_dim is None else f"{per_dim / run['n_dims']:.2f}"
        table.append([f"{run['sigma']:g}", f"{256 * run['sigma']:.3g}", *rest, ci])
    return markdown(table) if runs else MISSING


def digits() -> str:
    """The numbers that everybody gets, all digits."""
    file = KEPT / "digits" / "results.json"
    if not file.is_file():
        return MISSING
    run = read(file)
    names = (
        "error",
        "bits_per_dim",
        "nll_y",
        "brier",
        "entropy",
        "calibration.geo_mean",
        "scaled.temperature",
    )
    names += tuple(f"ood.{name}.auroc.combined" for name in run["ood"])
    others = read(file) if (file := KEPT / "digits-elsewhere.json").is_file() else {}
    table = [["in `results.json`", "value", *others]]
    for name in names:
        table.append(
            [f"`{name}`", repr(at(run, name)), *(f"{at(other, name):.5g}" for other in others.values())]
        )
    return markdown(table)


def effort() -> str:
    """Hours of training and where they were spent."""
    hours = {
        name: (len(runs), sum(run["train_seconds"] for run in runs) / 3600)
        for name in EXPERIMENTS
        if (runs := runs_of(name))
    }
    if not hours:
        return MISSING
    machine = read(KEPT / "machine.json")
    parts = ", ".join(f"`{name}` {n} in {time:.1f}" for name, (n, time) in hours.items())
    return (
        f"{sum(n for n, _ in hours.values())} trainings in {sum(time for _, time in hours.values()):.1f} hours: "
        f"{parts}. Machine: {machine['processor']}, {machine['cores']} cores, no GPU; Python {machine['python']}, "
        f"torch {machine['torch']}; bfloat16 in the subnets."
    )


PAGES: dict[str, tuple[Callable[[], str], ...]] = {
    "../README.md": (fashion_short, cifar_short),
    "results.md": (
        *(fashion_overview, fashion_full, fashion_scores, fashion_flagged, fashion_ramp, fashion_gamma),
        *(fashion_rivals, cifar_overview, cifar_scores, cifar_flagged, cifar_rivals, sigma),
        *(claims, practitioner, effort),
    ),
    "reproduction.md": (digits,),
}


def filled(page: Path) -> str:
    text = page.read_text()
    for table in PAGES[
        page.relative_to(DOCS).as_posix() if page.is_relative_to(DOCS) else f"../{page.name}"
    ]:
        text = put(text, table.__name__, table())
    return text


def main() -> None:
    for name in PAGES:
        page = (DOCS / name).resolve()
        page.write_text(filled(page))


if __name__ == "__main__":
    main()
