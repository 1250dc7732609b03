"""Sphinx settings: `make docs` builds build/docs/index.html, and any warning is an error."""

import re
from typing import Any

from sphinx.application import Sphinx

import ibinn

project = "ibinn"
author = "The ibinn developers"
copyright = "The ibinn developers"
release = version = ibinn.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
source_suffix = {".md": "markdown"}

myst_enable_extensions = ["dollarmath", "html_image"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = "ibinn"
html_static_path = ["static"]
html_css_files = ["wide-tables.css"]
html_theme_options = {"source_edit_link": ""}


def as_rst(lines: list[str]) -> list[str]:
    """Docstrings here are plain text with `code`; what reStructuredText would take for markup is escaped.

    Indented paragraphs are code.
    """
    told: list[str] = []
    for line in lines:
        is_code = line.startswith("    ")
        if is_code and (not told or not told[-1].strip()):
            told += ["::", ""]
        told.append(line if is_code else escaped(line))
    return told


def escaped(line: str) -> str:
    """Every second piece between backticks is code."""
    pieces = line.split("`")
    if len(pieces) % 2 == 0:
        return re.sub(r"([\\*|`_])", r"\\\1", line)
    return "".join(f"``{p}``" if i % 2 else re.sub(r"([\\*|_])", r"\\\1", p) for i, p in enumerate(pieces))


def setup(app: Sphinx) -> None:
    def on_docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
        lines[:] = as_rst(lines)

    app.connect("autodoc-process-docstring", on_docstring)
