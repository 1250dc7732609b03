"""Numbers as a person reads them. Imports nothing of ours."""

import math
from typing import Any

from ibinn.config import ALPHA


def told_p(p: float) -> str:
    number = rounded_p(p)
    return f"p {number}" if number.startswith("<") else f"p = {number}"


def rounded_p(p: float) -> str:
    """0.41: two digits, or so many that it stays on its side of alpha and of 1."""
    if p < 1e-4:
        return "< 0.0001"
    texts = (f"{p:.{digits}g}" for digits in range(2, 18))
    return next(t for t in texts if (float(t) <= ALPHA) == (p <= ALPHA) and (float(t) < 1) == (p < 1))


def percent(share: float) -> str:
    """93 %; neither nothing nor all."""
    whole = f"{100 * share:.0f}"
    return {"0": "under 1", "100": "over 99"}.get(whole, whole) + "\u00a0%"


def percent_of(share: float) -> str:
    """93.18 %; neither nothing nor all."""
    text = f"{100 * share:.2f}"
    return {"0.00": "< 0.01", "100.00": "> 99.99"}.get(text, text) + " %"


def plain_types(value: Any) -> Any:
    """Nested dicts and lists of what JSON knows."""
    if isinstance(value, dict):
        return {key: plain_types(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain_types(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def clock(seconds: float) -> str:
    """4:06, or 1:04:06 from an hour on."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def percentage(value: float) -> str:
    """97.8 % of a value in percent. Only 0 and 100 are shown as 0 and 100: 99.97 stays 99.97."""
    value = round(value, 6)
    if value in (0, 100):
        return f"{value:g}\u00a0%"
    digits = next((d for d in (1, 2, 3) if 0 < float(f"{value:.{d}f}") < 100), 6)
    return f"{value:.{digits}f}\u00a0%"


def gamma_text(gamma: float) -> str:
    """0.00128, or ∞."""
    return "∞" if gamma == math.inf else f"{gamma:.3g}"


def duration(seconds: float) -> str:
    """39 s; 20 min 34 s; 3 h 5 min."""
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"
