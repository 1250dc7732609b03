"""How numbers are written, for readers and as JSON: each format once."""

import math
from typing import Any

from ibinn.config import ALPHA


def rounded_p(p: float) -> str:
    """A p-value: 0.41, or "< 0.0001". Two digits, or as many as keep it on its side of alpha and of 1.

    >>> rounded_p(0.4123), rounded_p(0.0502), rounded_p(0.00003)
    ('0.41', '0.0502', '< 0.0001')
    """
    if p < 1e-4:
        return "< 0.0001"
    texts = (f"{p:.{digits}g}" for digits in range(2, 18))
    return next(t for t in texts if (float(t) <= ALPHA) == (p <= ALPHA) and (float(t) < 1) == (p < 1))


def p_equation(p: float) -> str:
    """A p-value with its name: "p = 0.41", or "p < 0.0001"."""
    number = rounded_p(p)
    return f"p {number}" if number.startswith("<") else f"p = {number}"


def whole_percent(share: float) -> str:
    """A share in whole percent: "93 %", but "under 1 %" and "over 99 %"."""
    text = f"{100 * share:.0f}"
    return {"0": "under 1", "100": "over 99"}.get(text, text) + "\u00a0%"


def fine_percent(share: float) -> str:
    """A share in hundredths of a percent: "93.18 %", but "< 0.01 %" and "> 99.99 %"."""
    text = f"{100 * share:.2f}"
    return {"0.00": "< 0.01", "100.00": "> 99.99"}.get(text, text) + " %"


def clock(seconds: float) -> str:
    """A duration: 4:06, or 1:04:06 from an hour on.

    >>> clock(246), clock(3846)
    ('4:06', '1:04:06')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def finite_or_none(value: float | None) -> float | None:
    """A number that JSON can hold: it has no NaN and no infinity.

    >>> finite_or_none(1.5), finite_or_none(math.nan), finite_or_none(None)
    (1.5, None, None)
    """
    return float(value) if value is not None and math.isfinite(value) else None


def to_json_types(value: Any) -> Any:
    """Dicts, lists and numbers as JSON allows them: tuples become lists, NaN and infinite numbers None.

    >>> to_json_types({"a": (1.0, float("nan"))})
    {'a': [1.0, None]}
    """
    if isinstance(value, dict):
        return {key: to_json_types(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_types(inner) for inner in value]
    return finite_or_none(value) if isinstance(value, float) else value


def parameter_to_json(value: Any) -> Any:
    """A parameter of an estimator: arrays become lists, infinite numbers stay. None if JSON has no such value.

    >>> parameter_to_json((float("inf"), "uniform", object()))
    [inf, 'uniform', None]
    """
    if hasattr(value, "tolist"):  # of NumPy
        return value.tolist()
    if isinstance(value, list | tuple):
        return [parameter_to_json(inner) for inner in value]
    return value if isinstance(value, str | int | float | bool) else None


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
