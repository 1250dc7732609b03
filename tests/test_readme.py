"""What the README shows, runs as pasted."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def examples():
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)


def test_there_are_two_examples_that_run():  # a third needs a test here
    assert len(examples()) == 2


def test_first_example_flags_a_wine_of_another_grower():
    done = subprocess.run([sys.executable, "-c", examples()[0]], capture_output=True, text=True, check=True)
    assert "do not trust it" in done.stdout


def test_second_example_prints_posterior_and_density():
    code = examples()[1]
    assert len([line for line in code.splitlines() if line]) == 10
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    numbers = [float(value) for value in re.findall(r"\d[\d.]*(?:e[+-]\d+)?", done.stdout)]
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
