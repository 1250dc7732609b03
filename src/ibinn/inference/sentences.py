"""Every sentence about one input, for readers who need no formulas."""

import math

from ibinn.config import ALPHA
from ibinn.formats import p_equation, probability_text, rounded_p
from ibinn.inference.judge import CalibrationRank
from ibinn.ood.conformal import smallest_p_value

SURE = 0.8  # a class of this probability is named alone
HARD = "but the classes are hard to tell apart here: look again."
SENTENCES = {  # by whether the score uses a density, the input is atypical, one class stands out
    (True, False, True): "{guess}, and typical of the training data ({p}).",
    (True, False, False): "{guess}; typical of the training data ({p}), " + HARD,
    (True, True, True): "{guess}, but atypical of the training data ({p}): do not trust it.",
    (True, True, False): "{guess}, but atypical of the training data ({p}): do not trust it.",
    (False, False, True): "{guess}, and no less decided than usual ({p}).",
    (False, False, False): "{guess}; no less decided than usual ({p}), " + HARD,
    (False, True, True): "{guess}, but less decided than usual ({p}): look again.",
    (False, True, False): "{guess}, less decided than usual ({p}): do not trust it.",
}
NO_DENSITY = "Without a density this model cannot say whether an input is typical of the training data."
# Of "1 in 500", times powers of ten.
ROUND_NUMBERS: tuple[int, ...] = (*range(1, 11), 12, 15, 18, 20, 25, 30, 35, 40, 50, 60, 70, 80, 90, 100)


def decision_sentence(
    posterior: dict[str, float], rank: CalibrationRank, p: float, uses_density: bool
) -> str:
    """The class, and whether to trust it, in one or two sentences; uses_density is that of the reference."""
    if any(map(math.isnan, posterior.values())):
        return "No class can be named: the numbers of this model overflow on this input. Do not trust it."
    guess, is_sure = class_phrase(posterior), max(posterior.values()) >= SURE
    if smallest_p_value(rank.n) > ALPHA:
        return f"{guess}{'' if is_sure else ', hard to tell apart'}. {coarse_sentence(rank, p)}"
    p_text = p_equation(p) + (", the smallest possible" if rank.n_stranger == 0 else "")
    sentence = SENTENCES[uses_density, p <= ALPHA, is_sure].format(guess=guess, p=p_text)
    return f"{sentence} {rank_sentence(rank) if uses_density else NO_DENSITY}"


def class_phrase(posterior: dict[str, float]) -> str:
    """Looks like “3” (93 %)."""
    (first, p), (second, q) = sorted(posterior.items(), key=lambda item: -item[1])[:2]
    if p >= SURE:
        return f"Looks like “{first}” ({probability_text(p)})"
    start = f"Could be “{first}” ({probability_text(p)})"
    other = f"“{second}” ({probability_text(q)})"
    return f"{start} or {other}" if p + q >= SURE else f"{start}, {other} or another class"


def rank_sentence(rank: CalibrationRank) -> str:
    """Of 199 held-out inputs, 81 are as strange or stranger."""
    n = rank.n_stranger
    count = "none is" if n == 0 else "1 is" if n == 1 else f"{n:,} are"
    return f"Of {rank.n:,} held-out inputs, {count} as strange or stranger."


def coarse_sentence(rank: CalibrationRank, p: float) -> str:
    """For too few calibration inputs."""
    return (
        f"With only {rank.n} inputs to compare with, p-values cannot fall below "
        f"{rounded_p(smallest_p_value(rank.n))} (here {p_equation(p)}): no input can be called atypical."
    )


def rank_phrase(p: float, n: int, things: str, uses_density: bool) -> str:
    """1 in 500 held-out images is as strange. p is a rank among n of them, and stays on its side of alpha."""
    quality, more = ("as strange", "stranger") if uses_density else ("as hard to decide", "harder")
    if p < 1.5 * smallest_p_value(n):
        return f"none of {n:,} held-out {things} is {quality}"
    if smallest_p_value(n) > ALPHA:
        return f"{round(p * (n + 1)) - 1} of {n} held-out {things} are {quality} or {more}"
    if p > 0.2:
        return f"{100 * p:.0f} in 100 held-out {things} are {quality} or {more}"
    return f"1 in {round_inverse(p):,} held-out {things} is {quality}"


def round_inverse(p: float) -> int:
    """The round number nearest to 1 / p, on the same side of alpha: 500 for 1/497."""
    power = 1
    while 1 / p >= 100 * power:
        power *= 10
    numbers = [step * power for step in ROUND_NUMBERS]
    same_side = [n for n in numbers if (1 / n <= ALPHA) == (p <= ALPHA)]
    return min(same_side, key=lambda n: abs(n - 1 / p))
