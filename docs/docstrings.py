"""Converts docstrings to reStructuredText: numpydoc sections become tables, everything else stays plain text.

The docstrings are plain text with `code` between backticks. Formulas such as q(y|x) or mu_y contain characters
that reStructuredText reads as markup, so they are escaped. Napoleon and the numpydoc package do not escape them,
and both render parameters as lists.
"""

import re
from dataclasses import dataclass, field

TABLES = ("Parameters", "Other Parameters", "Attributes", "Returns", "Yields", "Raises", "See Also")
SECTIONS = (*TABLES, "Examples", "Notes", "References")


@dataclass
class Entry:
    """One row of a table: `name : type` and the indented lines below it."""

    name: str
    type: str
    description: list[str] = field(default_factory=list)


def as_rst(lines: list[str]) -> list[str]:
    """The lines of a docstring as reStructuredText."""
    rst: list[str] = []
    for title, body in sections(lines):
        if title:
            rst += ["", f".. rubric:: {title}", ""]
        rst += table(title, body) if title in TABLES else text(body)
    return rst


def sections(lines: list[str]) -> list[tuple[str, list[str]]]:
    """(title, lines) of each section; the first one is the summary, without a title."""
    found: list[tuple[str, list[str]]] = [("", [])]
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if line in SECTIONS and set(below) == {"-"}:
            found.append((line, []))
        else:
            found[-1][1].append(line)
    return [found[0], *((title, body[1:]) for title, body in found[1:])]


def text(lines: list[str]) -> list[str]:
    """Paragraphs. Indented paragraphs are code, and paragraphs that start with >>> are doctests."""
    rst: list[str] = []
    in_doctest = False
    for line in lines:
        in_doctest = bool(line.strip()) and (in_doctest or line.startswith(">>>"))
        is_code = line.startswith("    ") and not in_doctest
        if is_code and not (rst and rst[-1].strip()):
            rst += ["::", ""]
        rst.append(line if is_code or in_doctest else escaped(line))
    return rst


def table(title: str, lines: list[str]) -> list[str]:
    """A list-table with the columns name, type and description; empty columns are left out."""
    rows = [
        [
            [f"``{row.name}``" if row.name else ""],
            [escaped(row.type)],
            [*map(escaped, row.description)] or [""],
        ]
        for row in entries(title, lines)
    ]
    columns = [i for i in range(3) if any(row[i] != [""] for row in rows)]
    rst = [".. list-table::", "   :class: docstring", "   :widths: auto", ""]
    for row in rows:
        for i in columns:
            first, *rest = row[i]
            rst.append(f"   {'*' if i == columns[0] else ' '} - {first}".rstrip())
            rst += [f"       {line}".rstrip() for line in rest]
    return [*rst, ""] if rows else []


def entries(title: str, lines: list[str]) -> list[Entry]:
    """The entries of a section. In Returns, Yields and Raises, an entry without a colon is a type."""
    found: list[Entry] = []
    for line in lines:
        if line and not line.startswith(" "):
            name, colon, kind = line.partition(" : ")
            is_type = not colon and title in ("Returns", "Yields", "Raises")
            found.append(Entry("", line) if is_type else Entry(name.strip(), kind.strip()))
        elif found and (line.strip() or found[-1].description):
            found[-1].description.append(line.strip())
    for entry in found:
        while entry.description and not entry.description[-1]:
            entry.description.pop()
    return found


def escaped(line: str) -> str:
    """Plain text with `code`: every second piece between backticks is code."""
    pieces = line.split("`")
    if len(pieces) % 2 == 0:
        return re.sub(r"([\\*|`_])", r"\\\1", line)
    return "".join(f"``{p}``" if i % 2 else re.sub(r"([\\*|_])", r"\\\1", p) for i, p in enumerate(pieces))
