"""The paper's claims against what is kept in results/: numbers with intervals, and by a rule whether each held.

The rules were written down before the numbers were known; the reasons below them were added after.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

from kept import KEPT, Estimate, Run, at, estimate, of, read, runs_of

HELD, PART, NOT = "Held here.", "Held in part.", "Did not hold here."
MISSING = "Not trained yet."
QUARTER = 1 / 1024  # of the step between two levels, in pixel units: sigma below it should not matter
REASONS: dict[str, str] = {}  # by letter: why a claim may not have held


def claims() -> str:
    return "\n\n".join(f"{claim()}{reason(claim.__name__)}" for claim in CLAIMS)


def reason(letter: str) -> str:
    return f" {REASONS[letter]}" if letter in REASONS else ""


def verdict(*parts: bool) -> str:
    return HELD if all(parts) else PART if any(parts) else NOT


def item(letter: str, claim: str, judged: str, numbers: str) -> str:
    return f"**({letter}) {claim}** *{judged}* {numbers}"


def ratio(top: Estimate, bottom: Estimate) -> Estimate:
    """100 (top / bottom - 1) with an interval from both of theirs, as if they were independent."""
    errors = [(math.log(e.high) - math.log(max(e.low, 1e-9))) / 2 for e in (top, bottom)]
    centre, half = math.log(top.mean / bottom.mean), math.hypot(*errors)
    low, middle, high = (100 * math.expm1(x) for x in (centre - half, centre, centre + half))
    return Estimate(middle, low, high, min(top.n, bottom.n))


def apart(lower: Estimate, higher: Estimate) -> bool:
    """Whether the intervals do not even touch."""
    return lower.high < higher.low


def overlap(one: Estimate, other: Estimate) -> bool:
    return one.low <= other.high and other.low <= one.high


def table(method: str, path: str, gamma: float | str | None = None) -> Estimate | None:
    """From the Fashion-MNIST table."""
    return estimate(of(runs_of("fashion-table"), method, gamma), path)


def swept(method: str) -> list[Run]:
    """The runs of the gamma sweep that learned something, by gamma."""
    runs = [run for run in of(runs_of("fashion-gamma"), method) if run["converged"]]
    return sorted(runs, key=lambda run: float(run["gamma"]))


def listed(estimates: dict[str, Estimate]) -> str:
    return ", ".join(f"{name} {value}" for name, value in estimates.items())


def known(values: dict[str, Estimate | None]) -> dict[str, Estimate] | None:
    """The estimates, or None while one is missing."""
    found = {name: value for name, value in values.items() if value is not None}
    return found if len(found) == len(values) else None


def against(steps: Sequence[tuple[Estimate, Estimate]]) -> int:
    """Of steps that should lead down, how many lead up by more than the intervals allow."""
    return sum(apart(before, after) for before, after in steps)


def a() -> str:
    name = "γ trades error against bits/dim monotonically; γ = 1 costs about 10 % of each against the extremes."
    runs = swept("ibinn")
    told = known(
        {
            "error, γ = 1": table("ibinn", "error", 1.0),
            "error, γ → ∞": table("ibinn", "error", "inf"),
            "bits/dim, γ = 1": table("ibinn", "bits_per_dim", 1.0),
            "bits/dim, γ = 0": table("ibinn", "bits_per_dim", 0.0),
        }
    )
    if told is None or len(runs) < 7:
        return item("a", name, MISSING, "")
    errors = [e for run in runs if (e := estimate([run], "error"))]
    bits = [e for run in runs if (e := estimate([run], "bits_per_dim"))]
    wrong_way = against([*pairwise(errors)]), against([(after, before) for before, after in pairwise(bits)])
    here = [*told.values()]
    costs = ratio(here[0], here[1]), ratio(here[2], here[3])
    numbers = (
        f"From γ = {runs[0]['gamma']:g} to {runs[-1]['gamma']:g} the error goes from {errors[0]} "
        f"% to {errors[-1]} %, "
        f"bits/dim from {bits[0]} to {bits[-1]}; of {len(runs) - 1} steps each, {wrong_way[0]} "
        f"and {wrong_way[1]} go "
        f"the wrong way by more than their intervals. At γ = 1 the error is {costs[0].mean:.0f} % "
        f"({costs[0].low:.0f} to {costs[0].high:.0f}) above that of γ → ∞, bits/dim are {costs[1].mean:.1f} % "
        f"({costs[1].low:.1f} to {costs[1].high:.1f}) above those of γ = 0."
    )
    return item("a", name, verdict(wrong_way == (0, 0), costs[0].mean < 15, costs[1].mean < 15), numbers)


def b() -> str:
    name = "At a middle γ the IB-INN is better calibrated than ResNet, VIB and both class-NLLs."
    path = "calibration.geo_mean"
    told = known(
        {
            "IB-INN, γ = 1": table("ibinn", path, 1.0),
            "ResNet": table("resnet", path),
            "VIB": table("vib", path, 1.0),
            "class-NLL": table("class-nll", path),
            "class-NLL + regul.": table("class-nll-fixed", path),
        }
    )
    if told is None:
        return item("b", name, MISSING, "")
    ours, *theirs = told.values()
    least = of(runs_of("fashion-table"), "ibinn", 1.0)
    perfect = sum(at(run, "calibration.floor.geo_mean.mean") or 0 for run in least) / len(least)
    numbers = (
        f"Geometric mean of the three calibration errors, %: {listed(told)}; the IB-INN's floor is "
        f"{perfect:.2f}."
    )
    return item("b", name, verdict(*(ours.mean < other.mean for other in theirs)), numbers)


def c() -> str:
    name = "Class-NLL collapses in accuracy; its bits/dim equal those of γ = 0."
    told = known(
        {
            "IB-INN, γ = 1": table("ibinn", "error", 1.0),
            "class-NLL": table("class-nll", "error"),
            "class-NLL + regul.": table("class-nll-fixed", "error"),
        }
    )
    bits = known(
        {"γ = 0": table("ibinn", "bits_per_dim", 0.0), "class-NLL": table("class-nll", "bits_per_dim")}
    )
    if told is None or bits is None:
        return item("c", name, MISSING, "")
    difference = ratio(bits["class-NLL"], bits["γ = 0"])
    numbers = (
        f"Error, %: {listed(told)}. Bits/dim: {listed(bits)}, a difference of {difference.mean:.1f} %."
    )
    collapsed = told["class-NLL"].mean > 1.5 * told["IB-INN, γ = 1"].mean
    return item("c", name, verdict(collapsed, abs(difference.mean) < 2), numbers)


def d() -> str:
    name = "On strange inputs the entropy rises more than for pure classifiers."
    path = "ood.*.entropy_increase"
    told = known(
        {
            "IB-INN, γ = 1": table("ibinn", path, 1.0),
            "ResNet": table("resnet", path),
            "i-RevNet": table("irevnet", path),
            "only L_Y": table("ibinn", path, "inf"),
            "VIB": table("vib", path, 1.0),
        }
    )
    if told is None:
        return item("d", name, MISSING, "")
    ours, *theirs = told.values()
    numbers = f"Rise of the mean entropy, nats, over the five sets: {listed(told)}."
    return item("d", name, verdict(*(ours.mean > other.mean for other in theirs)), numbers)


def e() -> str:
    name = "Detection by typicality is on a par with pure density models."
    path = "ood.*.auroc.typicality"
    told = known(
        {
            "IB-INN, γ = 1": table("ibinn", path, 1.0),
            "only L_X": table("ibinn", path, 0.0),
            "class-NLL": table("class-nll", path),
        }
    )
    if told is None:
        return item("e", name, MISSING, "")
    ours, *theirs = told.values()
    numbers = f"AUROC of typicality, %, over the five sets: {listed(told)}."
    return item("e", name, verdict(*(ours.mean > other.mean - 3 for other in theirs)), numbers)


def f() -> str:
    name = "σ below ΔX/4 does not matter."
    runs = sorted(runs_of("sigma-8x8"), key=lambda run: run["sigma"])
    small = [run for run in runs if run["sigma"] < QUARTER]
    if len(runs) < 10:
        return item("f", name, MISSING, "")
    errors = [e for run in small if (e := estimate([run], "error"))]
    losses = [at(run, "loss_x") or math.nan for run in runs]
    spread = max(losses[: len(small)]) - min(losses[: len(small)])
    most, least = max(errors, key=lambda e: e.mean), min(errors, key=lambda e: e.mean)
    numbers = (
        f"CIFAR-10 at 8 × 8, {len(small)} values of σ from {small[0]['sigma']:g} to "
        f"{small[-1]['sigma']:g}: error from "
        f"{least} % to {most} %, L_X within {spread:.3f} nats per dimension; over all ten σ, up "
        f"to 1, L_X differs by "
        f"{max(losses) - min(losses):.2f} and the error reaches "
        f"{max(at(run, 'error') or 0 for run in runs):.1f} %."
    )
    return item("f", name, verdict(overlap(most, least), spread < 0.05), numbers)


def g() -> str:
    name = "γ → ∞ behaves like the i-RevNet."
    parts, told = [], []
    for what, path in {
        "error, %": "error",
        "calibration, %": "calibration.geo_mean",
        "entropy rise, nats": "ood.*.entropy_increase",
    }.items():
        pair = known({"only L_Y": table("ibinn", path, "inf"), "i-RevNet": table("irevnet", path)})
        if pair is None:
            return item("g", name, MISSING, "")
        parts.append(overlap(*pair.values()))
        told.append(f"{what}: {listed(pair)}")
    return item("g", name, verdict(*parts), f"{'; '.join(told)}.".capitalize())


def h() -> str:
    name = "VIB has lower error but worse calibration at every γ."
    ours, theirs = swept("ibinn"), {run["gamma"]: run for run in swept("vib")}
    pairs = [(run, theirs[run["gamma"]]) for run in ours if run["gamma"] in theirs]
    if len(of(runs_of("fashion-gamma"), "vib")) < 7 or not pairs:
        return item("h", name, MISSING, "")
    lower = sum((at(vib, "error") or 0) < (at(run, "error") or 0) for run, vib in pairs)
    worse = sum(
        (at(vib, "calibration.geo_mean") or 0) > (at(run, "calibration.geo_mean") or 0)
        for run, vib in pairs
    )
    numbers = (
        f"Of the {len(pairs)} values of γ at which both converge, VIB has the lower error at "
        f"{lower} and the higher "
        f"calibration error at {worse}."
    )
    return item("h", name, verdict(lower == len(pairs), worse == len(pairs)), numbers)


def i() -> str:
    name = "Samples degrade faster with γ than interpolations, and the mass of z lies off the learned μ."
    file = KEPT / "fashion-generation.json"
    if not file.is_file():
        return item("i", name, MISSING, "")
    kept = read(file)
    rows = sorted(kept["runs"].values(), key=lambda row: row["gamma"])
    first, last = rows[0], rows[-1]

    def share(row: Run, what: str) -> str:
        low, high = row["intervals"][what]
        return f"{row[what]:.1f} ({low:.1f} to {high:.1f})"

    kept_of = [last[what] / max(first[what], 1e-9) for what in ("samples_lifelike", "middles_lifelike")]
    middle = min(rows, key=lambda row: abs(math.log(row["gamma"])))
    numbers = (
        f"A ResNet finds {share(first, 'samples_lifelike')} % of the samples lifelike at γ = "
        f"{first['gamma']:g}, "
        f"{share(middle, 'samples_lifelike')} % at γ = {middle['gamma']:g} and "
        f"{share(last, 'samples_lifelike')} % at "
        f"γ = {last['gamma']:g}; of the images half-way between two test images "
        f"{share(first, 'middles_lifelike')} %, "
        f"{share(middle, 'middles_lifelike')} % and {share(last, 'middles_lifelike')} % (of test images "
        f"{kept['test_lifelike']:.1f} %). The mean of a class's z lies {middle['offset']:.2f} from its μ at "
        f"γ = {middle['gamma']:g} and {last['offset']:.2f} at γ = {last['gamma']:g}, where chance would give "
        f"{middle['offset_by_chance']:.2f}; two μ are {middle['mu_apart']:.1f} and "
        f"{last['mu_apart']:.1f} apart."
    )
    off = all(row["offset"] > 2 * row["offset_by_chance"] for row in rows if row["gamma"] >= 1)
    return item("i", name, verdict(kept_of[0] < kept_of[1], off), numbers)


CLAIMS = (a, b, c, d, e, f, g, h, i)


def practitioner() -> str:
    """When to take the IB-INN rather than a scaled ResNet with a score on its features."""
    return MISSING
