"""Marked places in pages: between <!-- NAME --> and <!-- end -->, on lines of their own or within a sentence."""

import re
from collections.abc import Iterable
from pathlib import Path

DOCS = Path(__file__).parent


def put(text: str, name: str, content: str) -> str:
    """A page with the content at the place of this name; numbers and their errors stay on one line."""
    place = re.compile(rf"(<!-- {re.escape(name)} -->)(\n?).*?(<!-- end -->)", re.S)
    if not place.search(text):
        raise ValueError(f"there is no place <!-- {name} --> ... <!-- end -->")
    unbroken = content.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")
    return place.sub(lambda found: f"{found[1]}{found[2]}{unbroken}{found[2]}{found[3]}", text, count=1)


def markdown(rows: Iterable[list[str]]) -> str:
    """A pipe table; the first row is its head."""
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
