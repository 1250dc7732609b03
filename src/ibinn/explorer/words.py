"""p-values as a person says them."""

from typing import Literal

from ibinn.metrics.conformal import smallest_p_value

# Of "1 in so many", times powers of ten.
ROUND: tuple[int, ...] = (*range(1, 11), 12, 15, 18, 20, 25, 30, 35, 40, 50, 60, 70, 80, 90, 100)


def verdict(p: float, n: int, alpha: float) -> Literal["ordinary", "unusual", "unknown"]:
    """unknown: among n inputs, so few that none could be flagged."""
    if smallest_p_value(n) > alpha:
        return "unknown"
    return "unusual" if p <= alpha else "ordinary"


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
