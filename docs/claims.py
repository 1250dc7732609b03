"""The paper's claims against the runs in results/: by a rule whether each held, and the numbers.

Each claim, its rule and what follows from it are in results.md; here are only the tests and the tables.

Of the Fashion-MNIST runs, ResNet and IB-INNs whose gamma did not rise in training were known when the rules got
their present form. Not known were the IB-INNs whose gamma does rise, class-NLL, VIB, i-RevNet, gamma = 0 and
gamma = inf, the runs over sigma and CIFAR-10, except for the validation error of class-NLL, about 20 % half-way
through its first training.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import astuple
from functools import partial, wraps
from itertools import pairwise
from statistics import fmean

import numpy as np
import published
from comparisons import Generated, Generation, read_comparison
from fill import markdown
from published import (
    ENTROPY_INCREASE,
    MISSING,
    MODELS,
    Estimate,
    cell,
    estimate,
    floor_text,
    mean_auroc,
    of,
    reach_of,
    runs_of,
)

from ibinn.config import Method
from ibinn.formats import gamma_text
from ibinn.report.quantities import BITS, ERROR, GEO_MEAN, LOSS_X, Quantity
from ibinn.report.text import METHOD_NAMES
from ibinn.run.results import Results

HELD, PART, NOT, OPEN = "Held.", "Held in part.", "Did not hold.", "Undecided."
QUARTER = 1 / 1024  # of the step between two levels, in pixel units: sigma below it should not matter
IBINN, ONLY_X, ONLY_Y = "IB-INN, γ = 1", "IB-INN, only L_X (γ = 0)", "IB-INN, only L_Y (γ → ∞)"
NLL, NLL_FIXED, RESNET, IREVNET = (
    METHOD_NAMES[name] for name in ("class-nll", "class-nll-fixed", "resnet", "irevnet")
)
VIB = "VIB, γ = 1"
FEATURES = ("max_softmax", "entropy", "energy", "mahalanobis", "knn")  # scores of plain classifiers
Rows = list[list[str]]


class NoNumber(Exception):
    """A claim cannot be judged. `short`: why one model has no number, if others may still be judged."""

    def __init__(self, why: str, short: str | None = None) -> None:
        super().__init__(why)
        self.short = short


def judged(claim: Callable[[], tuple[str, Rows]]) -> Callable[[], str]:
    """The verdict and the table of a claim, or why it cannot be judged."""

    @wraps(claim)
    def text() -> str:
        try:
            outcome, rows = claim()
        except NoNumber as why:
            return f"**{why}**"
        return f"**{outcome}**\n\n{markdown(rows)}"

    return text


# Rules. A part of a claim is 1 where the numbers show it, -1 where they show the contrary, 0 where neither.


def verdict(*parts: int) -> str:
    if min(parts) == 1:
        return HELD
    if max(parts) == 1:
        return PART
    return NOT if min(parts) == -1 else OPEN


def within(value: Estimate, low: float, high: float) -> int:
    """Whether the interval lies between the bounds, or beyond one of them."""
    if low <= value.low and value.high <= high:
        return 1
    return -1 if value.high < low or value.low > high else 0


def is_lower(one: Estimate, other: Estimate) -> int:
    return within(difference(one, other), -math.inf, 0)


def difference(one: Estimate, other: Estimate) -> Estimate:
    """one - other, with independent errors."""
    return combined(astuple(one)[:3], astuple(other)[:3], one.n, other.n)


def ratio(top: Estimate, bottom: Estimate) -> Estimate:
    """100 (top / bottom - 1), with independent errors."""
    t, b = (np.log(np.maximum(astuple(e)[:3], 1e-9)).tolist() for e in (top, bottom))
    gap = combined(t, b, top.n, bottom.n)
    mean, low, high = (100 * math.expm1(x) for x in (gap.mean, gap.low, gap.high))
    return Estimate(mean, low, high, gap.n)


def combined(one: Sequence[float], other: Sequence[float], *n: int) -> Estimate:
    """The difference of two (mean, low, high)."""
    gap = one[0] - other[0]
    below = math.hypot(one[0] - one[1], other[2] - other[0])
    above = math.hypot(one[2] - one[0], other[0] - other[1])
    return Estimate(gap, gap - below, gap + above, min(n))


def rises(curve: Sequence[Estimate]) -> int:
    """1 for a curve that ends clearly higher, without a step that leads clearly down."""
    down = any(is_lower(after, before) == 1 for before, after in pairwise(curve))
    return -1 if down else is_lower(curve[0], curve[-1])


# Numbers


def need(runs: Sequence[Results], quantity: Quantity, reach: float = 0.0) -> Estimate:
    if not runs:
        raise NoNumber(MISSING)
    if not (learned := [run for run in runs if run.converged]):
        raise NoNumber("Cannot be judged: a method did not learn anything.", "did not learn")
    if (found := estimate(learned, quantity, reach)) is None:
        raise NoNumber("Cannot be judged: a number is not finite.", "no such number")
    return found


def table(model: str, quantity: Quantity) -> Estimate:
    """From the Fashion-MNIST table."""
    runs = runs_of("fashion-table")
    return need(of(runs, *MODELS[model]), quantity, reach_of(runs, quantity))


def others(quantity: Quantity, names: Sequence[str]) -> dict[str, Estimate | str]:
    """Estimates from the table, or why there is none, by model."""
    found: dict[str, Estimate | str] = {}
    for name in names:
        try:
            found[name] = table(name, quantity)
        except NoNumber as why:
            if why.short is None:
                raise
            found[name] = why.short
    if not any(isinstance(other, Estimate) for other in found.values()):
        raise NoNumber("Cannot be judged: nothing to compare with.")
    return found


def against(ours: Estimate, theirs: dict[str, Estimate | str], heading: str) -> Rows:
    """A row per model: its number, and how much more it is than ours."""
    rows = [["model", heading, f"minus that of {IBINN}"], [IBINN, str(ours), ""]]
    for name, other in theirs.items():
        gap = difference(other, ours).signed() if isinstance(other, Estimate) else ""
        rows.append([name, str(other), gap])
    return rows


def on_cifar(text: Callable[[list[Results]], list[str]]) -> Rows:
    """The same on CIFAR-10, one training each, for comparison: verdicts do not depend on it."""
    runs = runs_of("cifar10-base")
    models = {f"CIFAR-10: {name}": of(runs, *MODELS[name]) for name in (IBINN, RESNET)}
    return [[name, *text(some)] for name, some in models.items()] if all(models.values()) else []


def known(theirs: dict[str, Estimate | str]) -> list[Estimate]:
    return [other for other in theirs.values() if isinstance(other, Estimate)]


def along(method: Method, quantity: Quantity) -> dict[float, Estimate]:
    """A number of the gamma sweep by gamma, where the method learned."""
    runs = of(runs_of("fashion-gamma"), method)
    if len(runs) < 7:
        raise NoNumber(MISSING)
    reach = reach_of(runs_of("fashion-table"), quantity)
    by_gamma = sorted(runs, key=lambda run: run.gamma or 0.0)
    return {run.gamma or 0.0: need([run], quantity, reach) for run in by_gamma if run.converged}


# Claims


@judged
def claim_a() -> tuple[str, Rows]:
    errors, bits = along("ibinn", ERROR), along("ibinn", BITS)
    error = ratio(table(IBINN, ERROR), table(ONLY_Y, ERROR))
    density = ratio(table(IBINN, BITS), table(ONLY_X, BITS))
    rows = [["", "error, %", "bits/dim"]]
    rows += [
        [f"sweep, γ = {gamma_text(gamma)}", str(errors[gamma]), str(bits[gamma])]
        for gamma in (min(errors), max(errors))
    ]
    rows.append(["γ = 1 above the best extreme, in %", str(error), str(density)])
    parts = rises([*errors.values()][::-1]), rises([*bits.values()])
    return verdict(*parts, within(error, 0, 20), within(density, 0, 20)), rows


@judged
def claim_b() -> tuple[str, Rows]:
    runs, ours = runs_of("fashion-table"), table(IBINN, GEO_MEAN)
    theirs = others(GEO_MEAN, (RESNET, VIB, NLL, NLL_FIXED))
    head, *rows = against(ours, theirs, "calibration error, %")
    rows = [[*row, floor_text(of(runs, *MODELS[row[0]]))] for row in rows]
    if middle := of(runs, *MODELS[name := "IB-INN, γ = 3.7"]):
        rows.append([f"{name}, one training", cell(middle, GEO_MEAN), "", floor_text(middle)])
    rows += on_cifar(lambda some: [cell(some, GEO_MEAN), "", floor_text(some)])
    return verdict(*(is_lower(ours, other) for other in known(theirs))), [
        [*head, "floor: a perfect model"],
        *rows,
    ]


@judged
def claim_c() -> tuple[str, Rows]:
    ours, plain, fixed = (table(name, ERROR) for name in (IBINN, NLL, NLL_FIXED))
    density, classes = table(ONLY_X, BITS), table(NLL, BITS)
    times, apart = ratio(plain, ours), ratio(classes, density)
    rows = [
        ["model", "error, %", "bits/dim"],
        [IBINN, str(ours), ""],
        [ONLY_X, "", str(density)],
        [NLL, str(plain), str(classes)],
        [NLL_FIXED, str(fixed), ""],
        ["class-NLL above γ = 0, in %", "", str(apart)],
    ]
    return verdict(within(times, 300, math.inf), within(apart, -2, 2)), rows


@judged
def claim_d() -> tuple[str, Rows]:
    ours = table(IBINN, ENTROPY_INCREASE)
    theirs = others(ENTROPY_INCREASE, (RESNET, IREVNET, ONLY_Y, VIB))
    rows = against(ours, theirs, "entropy increase, nats")
    rows += on_cifar(lambda some: [cell(some, ENTROPY_INCREASE), ""])
    return verdict(*(-is_lower(ours, other) for other in known(theirs))), rows


@judged
def claim_e() -> tuple[str, Rows]:
    area = mean_auroc("typicality")
    ours, theirs = table(IBINN, area), others(area, (ONLY_X, NLL))
    parts = [within(difference(ours, other), -7, math.inf) for other in known(theirs)]
    return verdict(*parts), against(ours, theirs, "AUROC of typicality, %")


@judged
def claim_f() -> tuple[str, Rows]:
    runs = sorted(runs_of("sigma-8x8"), key=lambda run: run.sigma or 0.0)
    if len(runs) < 10:
        raise NoNumber(MISSING)
    small = [run for run in runs if run.sigma is not None and run.sigma < QUARTER]
    errors, losses = ([need([run], quantity) for run in small] for quantity in (ERROR, LOSS_X))
    least, most = (choose(errors, key=lambda e: e.mean) for choose in (min, max))
    gap = difference(most, least)
    spread = max(e.mean for e in losses) - min(e.mean for e in losses)
    rows = [["σ", "error, %", "L_X, nats/dim"]]
    rows += [
        [f"{run.sigma:g}", str(error), f"{loss.mean:.3f}"]
        for run, error, loss in zip(small, errors, losses, strict=True)
    ]
    rows.append(["largest difference", str(gap), f"{spread:.3f}"])
    return verdict(within(gap, -3, 3), 1 if spread < 0.05 else -1), rows


@judged
def claim_g() -> tuple[str, Rows]:
    parts, rows = [], [["", ONLY_Y, IREVNET]]
    for what, quantity, margin in (
        ("error, %", ERROR, 1.0),
        ("calibration error, %", GEO_MEAN, 1.0),
        ("entropy increase, nats", ENTROPY_INCREASE, 0.1),
    ):
        ours, theirs = table(ONLY_Y, quantity), table(IREVNET, quantity)
        parts.append(within(difference(ours, theirs), -margin, margin))
        rows.append([what, str(ours), str(theirs)])
    return verdict(*parts), rows


@judged
def claim_h() -> tuple[str, Rows]:
    parts, rows = [], [["VIB against the IB-INN", "lower at", "higher at", "open at", "learns nothing at"]]
    rows[0].append("mean difference, points")
    for what, quantity, sign in (("error", ERROR, 1), ("calibration error", GEO_MEAN, -1)):
        ours, theirs = along("ibinn", quantity), along("vib", quantity)
        lower = {gamma: is_lower(theirs[gamma], ours[gamma]) for gamma in ours if gamma in theirs}
        failed = len(ours) - len(lower)
        counts = [sum(part == side for part in lower.values()) for side in (1, -1, 0)]
        gaps = [theirs[gamma].mean - ours[gamma].mean for gamma in lower]
        rows.append([what, *map(str, [*counts, failed]), f"{fmean(gaps):+.2f}"])
        parts += [sign * part for part in lower.values()] + [-1] * failed
    return verdict(*parts), rows


@judged
def claim_i() -> tuple[str, Rows]:
    if not (file := published.RESULTS / "fashion-generation.json").is_file():
        raise NoNumber(MISSING)
    generation = read_comparison(Generation, file)
    models = sorted(generation.runs.values(), key=lambda model: model.gamma)
    heads = ["γ", "lifelike samples, %", "lifelike images half-way between two, %"]
    rows = [[*heads, "distance of a class's mean z from μ", "by chance", "distance of two μ"]]
    share = partial(lifelike, n=generation.n)
    for model in models:
        shares = [str(share(model, what)) for what in ("samples_lifelike", "middles_lifelike")]
        apart = [f"{model.offset:.2f}", f"{model.offset_by_chance:.2f}", f"{model.mu_apart:.1f}"]
        rows.append([gamma_text(model.gamma), *shares, *apart])
    rows.append(["test images", f"{generation.test_lifelike:.1f}", *[""] * 4])
    samples, middles = (
        ratio(share(models[-1], what), share(models[0], what))
        for what in ("samples_lifelike", "middles_lifelike")
    )
    off = all(model.offset > 2 * model.offset_by_chance for model in models if model.gamma >= 1)
    return verdict(is_lower(samples, middles), 1 if off else -1), rows


def lifelike(model: Generated, what: str, n: int) -> Estimate:
    """A share of n images. The bootstrap says nothing about none in n: that is below 3 / n in 95 % of cases."""
    low, high = model.intervals[what]
    assert low is not None
    assert high is not None
    return Estimate(getattr(model, what), low, max(high, 300 / n), 1)


CLAIMS = (claim_a, claim_b, claim_c, claim_d, claim_e, claim_f, claim_g, claim_h, claim_i)


# The IB-INN beside a ResNet


def best_score(runs: list[Results]) -> str:
    """Of the scores of plain classifiers, that with the highest mean AUROC, chosen afterwards."""
    return max(FEATURES, key=lambda score: need(runs, mean_auroc(score)).mean)


def choice(experiment: str) -> str:
    """Error and best mean AUROC of the IB-INN and the ResNet, with intervals."""
    runs = runs_of(experiment)
    ibinn, resnet = of(runs, *MODELS[IBINN]), of(runs, *MODELS[RESNET])
    if not ibinn or not resnet:
        return MISSING
    rows = [["model", "error, %", "score", "mean AUROC, %"]]
    for name, some, score in ((IBINN, ibinn, "combined"), (RESNET, resnet, best_score(resnet))):
        error, area = (need(some, q, reach_of(runs, q)) for q in (ERROR, mean_auroc(score)))
        rows.append([name, str(error), f"`{score}`", str(area)])
    return markdown(rows)


def fashion_choice() -> str:
    return choice("fashion-table")


def cifar_choice() -> str:
    return choice("cifar10-base")
