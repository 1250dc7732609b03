"""How numbers are written, for readers and as JSON. Each format is here once."""

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
    """A p-value with its name, in sentences and figures: "p = 0.41", or "p < 0.0001"."""
    number = rounded_p(p)
    return f"p {number}" if number.startswith("<") else f"p = {number}"


def probability_text(q: float, digits: int = 0) -> str:
    """A probability in percent: 93 %, never 0 % or 100 %, which no model can know.

    With digits it is for text tables, where the space before the sign is a plain one.

    >>> [probability_text(q).replace("\u00a0", " ") for q in (0.004, 0.93, 0.997)]
    ['< 1 %', '93 %', '> 99 %']
    >>> probability_text(0.93181, 2)
    '93.18 %'
    """
    text, step = f"{100 * q:.{digits}f}", 10**-digits
    ends = {f"{0:.{digits}f}": f"< {step:g}", f"{100:.{digits}f}": f"> {100 - step:g}"}
    return ends.get(text, text) + (" %" if digits else "\u00a0%")


def percentage(value: float) -> str:
    """A measured rate in percent: 97.8 %. Only exactly 0 and 100 are shown as 0 and 100: 99.97 stays 99.97."""
    value = round(value, 6)
    if value in (0, 100):
        return f"{value:g}\u00a0%"
    digits = next((d for d in (1, 2, 3) if 0 < float(f"{value:.{d}f}") < 100), 6)
    return f"{value:.{digits}f}\u00a0%"


def decimal(value: float | None, digits: int = 2, sign: str = "") -> str:
    """A number in a table: with fixed decimals, never -0.00; a dash if it is missing. sign "+" shows a plus.

    >>> decimal(2.345, 1), decimal(-0.001), decimal(0.5, sign="+"), decimal(None)
    ('2.3', '0.00', '+0.50', '–')
    """
    return "–" if value is None or not math.isfinite(value) else f"{value:{sign}z.{digits}f}"


def shortest(value: float) -> str:
    """A setting in a label that identifies it: at most six digits if they are exact, otherwise all.

    >>> shortest(1.0), shortest(0.1), shortest(1.0000001)
    ('1', '0.1', '1.0000001')
    """
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def gamma_text(gamma: float) -> str:
    """gamma for readers: at most six digits, or ∞.

    >>> gamma_text(1.0), gamma_text(1 / 784), gamma_text(math.inf)
    ('1', '0.00127551', '∞')
    """
    return "∞" if gamma == math.inf else f"{gamma:g}"


def clock(seconds: float) -> str:
    """A duration in progress displays: 4:06, or 1:04:06 from an hour on.

    >>> clock(246), clock(3846)
    ('4:06', '1:04:06')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def duration(seconds: float) -> str:
    """A duration in a sentence: 39 s; 20 min 34 s; 3 h 5 min."""
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"


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
