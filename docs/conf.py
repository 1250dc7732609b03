"""Sphinx settings: `make docs` builds build/docs/index.html, and any warning is an error."""

import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

import ibinn

sys.path.insert(0, str(Path(__file__).parent))

from docstrings import as_rst

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
maximum_signature_line_length = 88
smartquotes = False

html_theme = "furo"
html_title = "ibinn"
html_static_path = ["static"]
html_css_files = ["wide-tables.css"]
html_theme_options = {"source_edit_link": ""}


def setup(app: Sphinx) -> None:
    def on_docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
        lines[:] = as_rst(lines)

    app.connect("autodoc-process-docstring", on_docstring)
