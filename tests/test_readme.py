"""The code in the README runs as pasted."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent


def examples():
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)


def test_there_are_two_examples_that_run():  # a third needs a test here
    assert len(examples()) == 2


def output_of(code, *options):
    done = subprocess.run(
        [sys.executable, *options, "-c", code], capture_output=True, text=True, check=True
    )
    return done.stdout


def test_first_example_fits_on_a_screen_and_flags_a_wine_of_another_grower():
    code = examples()[0]
    assert len(code.splitlines()) <= 10
    *_, explanation = output_of(code).splitlines()
    assert float(re.search(r"p = ([\d.]+\d)", explanation)[1]) <= 0.05


def test_second_example_prints_posterior_and_density():
    output = output_of(examples()[1], "-W", "error")
    numbers = [float(value) for value in re.findall(r"\d[\d.]*(?:e[+-]\d+)?", output)]
    posterior, density = [numbers[0:2], numbers[2:4], numbers[4:6]], numbers[6:]
    assert all(abs(sum(row) - 1) < 1e-3 for row in posterior)
    assert posterior[0][0] > 0.95
    assert 0.1 < posterior[1][0] < 0.9
    assert len(density) == 3
    assert 0.04 < density[0] < 0.12  # the truth is 1 / (4 pi) = 0.08
    assert density[2] < 1e-6


def test_every_file_the_readme_names_exists():
    for target in re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text()):
        if not target.startswith("http"):
            assert (ROOT / target).exists(), target
