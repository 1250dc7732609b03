"""README and docs: programs run as pasted, commands run with small budgets, docstrings become tables."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tyro
from docstrings import as_rst
from PIL import Image
from sklearn.datasets import load_iris

from ibinn.cli import COMMANDS, main

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\S*)\n(.*?)^```$", re.M | re.S)
ELSEWHERE = (
    "--ray",
    "--size paper",
    "fashion_mnist",
    "cifar10",
)  # needs a cluster, a GPU or data: read, not run


def blocks(language):
    return [
        pytest.param(code, id=f"{page.name}-{number}")
        for page in PAGES
        for number, (kind, code) in enumerate(BLOCK.findall(page.read_text()))
        if kind == language and page.name != "README.md"  # see test_readme
    ]


def commands():
    """Every line of a plain block that starts with ibinn, without its comment."""
    for page in PAGES:
        for kind, code in BLOCK.findall(page.read_text()):
            if not kind:
                lines = (line.split("  #")[0].split(" # ")[0].strip() for line in code.splitlines())
                yield from ((page.name, line) for line in lines if line.startswith("ibinn "))


@pytest.mark.parametrize("code", blocks("python"))
def test_a_program_runs_as_pasted(code):
    """X, y and X_new, where a page leaves them to the reader, are irises."""
    given = "from sklearn.datasets import load_iris\nX, y = load_iris(return_X_y=True)\nX_new = X[::10]\n"
    done = subprocess.run(
        [sys.executable, "-c", (given if "X_new" in code else "") + code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize(("page", "line"), [*commands()])
def test_a_command_has_the_options_that_it_is_shown_with(page, line):
    _, name, *words = shlex.split(line)
    tyro.cli(COMMANDS[name], args=words)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """What the pages' commands are about: photos of two classes, a table, a few files."""
    here = tmp_path_factory.mktemp("place")
    rng = np.random.default_rng(0)

    def photo(path, shade):
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = rng.normal(shade, 30, (8, 8, 3))
        Image.fromarray(noise.clip(0, 255).astype(np.uint8)).save(path)

    for number in range(150):
        photo(here / "photos" / "day" / f"{number}.png", 180)
        photo(here / "photos" / "night" / f"{number}.png", 70)
    for name in ("new/1.png", "more/1.png", "inbox/1.png", "photo.png", "odd.jpg", "a.png", "b.png"):
        photo(here / name, 120)
    np.savez(here / "batch.npz", x=rng.integers(0, 256, (3, 8, 8, 3)).astype(np.uint8))
    x, y = load_iris(return_X_y=True)
    rows = [",".join([*map(str, row), str(kind)]) for row, kind in zip(x, y, strict=True)] * 3
    (here / "table.csv").write_text("a,b,c,d,species\n" + "\n".join(rows) + "\n")
    (here / "new.csv").write_text("a,b,c,d\n5,3,1,0.2\n")
    return here


def concrete(line, here):
    """A shown command with its placeholders filled in, in as small as it goes; None where it cannot run here."""
    shown_elsewhere = (
        line.startswith("ibinn explore") or "report runs/digits" in line
    )  # test_explore, test_sweep
    if shown_elsewhere or any(word in line for word in ELSEWHERE):
        return None
    run = f"runs/{'table' if '.csv' in line else 'photos'}-ibinn-gamma1-tiny-seed0"
    line = line.replace("-base-", "-tiny-").replace("runs/photos-...", run).replace("RUN", run)
    words = []
    for word in shlex.split(line):
        found = sorted(here.glob(word)) if "*" in word else []
        words += [str(path.relative_to(here)) for path in found] or [word]
    return words


def exit_code(words):
    try:
        main(words)
    except SystemExit as end:
        return end.code or 0
    return 0


def test_the_commands_run_one_after_the_other(place, tmp_path, monkeypatch, own_places):
    monkeypatch.chdir(place)
    n_run = 0
    for page, line in commands():
        words = concrete(line, place)
        if words is None:
            continue
        if words[1] == "train":
            words += ["--epochs", "1"]
        if words[1] == "sweep":
            words = ["ibinn", "sweep", str(ROOT / words[2]), "--dry-run"]
        assert exit_code(words[1:]) in (0, 3 if "--fail" in words else 0), f"{page}: {line}"
        n_run += 1
    assert n_run > 12


DOCSTRING = """log q(y|x) of a batch; see `loss_y`.

    log q(y|x) = z . mu_y

Parameters
----------
z : (N, D)
    Latent vectors,
    in `float64`.
mu_y, phi : (K, D)

Returns
-------
(N, K)
    In nats.

Examples
--------
>>> f(**{"mu_y": 1})
1
"""

RST = """log q(y\\|x) of a batch; see ``loss_y``.

::

    log q(y|x) = z . mu_y


.. rubric:: Parameters

.. list-table::
   :class: docstring
   :widths: auto

   * - ``z``
     - (N, D)
     - Latent vectors,
       in ``float64``.
   * - ``mu_y, phi``
     - (K, D)
     -


.. rubric:: Returns

.. list-table::
   :class: docstring
   :widths: auto

   * - (N, K)
     - In nats.


.. rubric:: Examples

>>> f(**{"mu_y": 1})
1
"""


def test_docstrings_become_tables_code_and_escaped_text():
    assert "\n".join(as_rst(DOCSTRING.splitlines())).strip() == RST.strip()


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"], ids=lambda page: page.name
)
def test_links_lead_to_files_and_headings(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("http"):
            continue
        file, _, anchor = target.partition("#")
        there = page.parent / file if file else page
        assert there.exists(), target
        headings = re.findall(r"^#+ (.*)$", there.read_text(), re.M) if anchor else []
        slugs = [re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings]
        assert not anchor or anchor in slugs, target
