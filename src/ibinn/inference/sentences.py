"""A decision in a sentence or two, for readers who need no formulas."""

import math
from typing import Literal

from ibinn.config import ALPHA
from ibinn.formats import percent, rounded_p, told_p
from ibinn.inference.judge import Place
from ibinn.ood.conformal import smallest_p_value

SURE = 0.8  # a class of this probability is named alone


# --- in words ----------------------------------------------------------------------------------------


HARD = "but the classes are hard to tell apart here: look again."


SENTENCES = {  # by whether the score knows a density, the input is strange, one class stands out
    (True, False, True): "{guess}, and typical of the training data ({p}).",
    (True, False, False): "{guess}; typical of the training data ({p}), " + HARD,
    (True, True, True): "{guess}, but unlike the training data ({p}): do not trust it.",
    (True, True, False): "{guess}, but unlike the training data ({p}): do not trust it.",
    (False, False, True): "{guess}, and no less decided than usual ({p}).",
    (False, False, False): "{guess}; no less decided than usual ({p}), " + HARD,
    (False, True, True): "{guess}, but less decided than usual ({p}): look again.",
    (False, True, False): "{guess}, less decided than usual ({p}): do not trust it.",
}


NO_DENSITY = "Without a density this model cannot say whether an input is like the training data."


def told(posterior: dict[str, float], place: Place, p: float) -> str:
    """What it is, and whether to trust that, for somebody who needs no formulas."""
    if any(map(math.isnan, posterior.values())):
        return "No class can be named: the numbers of this model overflow on this input. Do not trust it."
    guess, sure = told_classes(posterior), max(posterior.values()) >= SURE
    if smallest_p_value(place.n) > ALPHA:
        return f"{guess}{'' if sure else ', hard to tell apart'}. {told_coarse(place, p)}"
    has_density = place.score != "entropy"
    chance = told_p(p) + (", the smallest possible" if place.n_stranger == 0 else "")
    sentence = SENTENCES[has_density, p <= ALPHA, sure].format(guess=guess, p=chance)
    return f"{sentence} {told_place(place) if has_density else NO_DENSITY}"


def told_classes(posterior: dict[str, float]) -> str:
    (first, p), (second, q) = sorted(posterior.items(), key=lambda item: -item[1])[:2]
    if p >= SURE:
        return f"Looks like “{first}” ({percent(p)})"
    if p + q >= SURE:
        return f"Could be “{first}” ({percent(p)}) or “{second}” ({percent(q)})"
    return f"Could be “{first}” ({percent(p)}), “{second}” ({percent(q)}) or another class"


def told_place(place: Place) -> str:
    n = place.n_stranger
    stranger = "none is" if n == 0 else "1 is" if n == 1 else f"{n:,} are"
    return f"Of {place.n:,} familiar inputs set aside, {stranger} as strange or stranger."


def told_coarse(place: Place, p: float) -> str:
    smallest = rounded_p(smallest_p_value(place.n))
    return (
        f"With only {place.n} inputs to compare with, p-values cannot fall below {smallest} (here {told_p(p)}): "
        f"nothing can show up as strange."
    )


# Of "1 in so many", times powers of ten.
ROUND: tuple[int, ...] = (*range(1, 11), 12, 15, 18, 20, 25, 30, 35, 40, 50, 60, 70, 80, 90, 100)


def verdict(p: float, n: int, alpha: float) -> Literal["typical", "atypical", "unknown"]:
    """unknown: among n inputs, so few that none could be flagged."""
    if smallest_p_value(n) > alpha:
        return "unknown"
    return "atypical" if p <= alpha else "typical"


def chance(p: float, n: int, alpha: float, things: str, has_density: bool) -> str:
    """1 in 500 ordinary images looks this unusual. p is a rank among n of them, and stays on its side of alpha."""
    one, many = ("looks this unusual", "look this unusual") if has_density else ("is", "are")
    more = "" if has_density else " this hard to decide"
    if p < 1.5 * smallest_p_value(n):
        return f"none of {n:,} ordinary {things} {one}{more}"
    if smallest_p_value(n) > alpha:
        return f"{round(p * (n + 1)) - 1} of {n} ordinary {things} {many}{more} or more so"
    if p > 0.2:
        return f"{100 * p:.0f} in 100 ordinary {things} {many}{more} or more so"
    return f"1 in {in_so_many(p, alpha):,} ordinary {things} {one}{more}"


def in_so_many(p: float, alpha: float) -> int:
    """The round number next to 1 / p: 497 is 500."""
    power = 1
    while 1 / p >= 100 * power:
        power *= 10
    numbers = [step * power for step in ROUND]
    same_side = [n for n in numbers if (1 / n <= alpha) == (p <= alpha)]
    return min(same_side, key=lambda n: abs(n - 1 / p))
