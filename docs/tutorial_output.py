"""Fills the output and figures of the tutorials into docs/tutorials.md: python docs/tutorial_output.py

Takes a minute or two on two cores.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from fill import DOCS, put

FIGURES = {"table": ("wines",), "images": ("hardest", "samples"), "embeddings": ("embeddings",)}


def main() -> None:
    page, root = DOCS / "tutorials.md", DOCS.parent
    for name, figures in FIGURES.items():
        out = Path("runs", f"tutorial_{name}")
        command = [sys.executable, f"examples/tutorial_{name}.py", "--out", str(out)]
        done = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, text=True, check=True)
        page.write_text(put(page.read_text(), name, f"```text\n{done.stdout.strip()}\n```"))
        for figure in figures:
            shutil.copyfile(root / out / f"{figure}.png", DOCS / "figures" / f"tutorial-{figure}.png")


if __name__ == "__main__":
    main()
