"""Pages with places for what is measured: between <!-- NAME --> and <!-- end -->."""

from collections.abc import Iterable
from pathlib import Path

DOCS = Path(__file__).parent


def put(text: str, name: str, told: str) -> str:
    """The text of a page with `told` at the place of this name; no line ends within a number and its error."""
    before, start, rest = text.partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition("<!-- end -->")
    if not start or not end:
        raise ValueError(f"there is no place <!-- {name} --> ... <!-- end -->")
    unbroken = told.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")
    return f"{before}{start}{unbroken}\n{end}{after}"


def markdown(rows: Iterable[list[str]]) -> str:
    """A pipe table; the first row is its head."""
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
