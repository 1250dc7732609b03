"""p-values as a person says them."""

from typing import Literal

from ibinn.metrics.conformal import smallest_p_value

ROUND = (
    1,
    2,
    3,
    4,
    5,
    6,
    8,
    10,
    12,
    15,
    20,
    25,
    30,
    40,
    50,
    60,
    80,
)  # of "1 in so many", times powers of ten


def verdict(p: float, n: int, alpha: float) -> Literal["ordinary", "unusual", "unknown"]:
    """unknown: among n inputs, so few that none could be flagged."""
    if smallest_p_value(n) > alpha:
        return "unknown"
    return "unusual" if p <= alpha else "ordinary"


def chance(p: float, n: int, things: str, has_density: bool) -> str:
    """1 in 500 ordinary images looks this unusual; p is a rank among n of them."""
    one, many = ("looks this unusual", "look this unusual") if has_density else ("is", "are")
    more = "" if has_density else " this hard to decide"
    if p < 1.5 * smallest_p_value(n):
        return f"none of {n:,} ordinary {things} {one}{more}"
    if p > 0.3:
        return f"{100 * p:.0f} in 100 ordinary {things} {many}{more}"
    return f"1 in {in_so_many(1 / p):,} ordinary {things} {one}{more}"


def in_so_many(value: float) -> int:
    """The nearest round number: 497 is 500."""
    power = 1
    while value >= 100 * power:
        power *= 10
    return min((step * power for step in (*ROUND, 100)), key=lambda number: abs(number - value))
