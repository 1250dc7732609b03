"""What the README shows, runs as pasted."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_first_example_prints_posterior_and_density():
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S).group(1)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    posterior, density = re.findall(r"tensor\((.*?)\)", done.stdout, re.S)
    rows = [
        [float(p) for p in re.findall(r"[\d.e+-]+", row)]
        for row in re.findall(r"\[([^\[\]]+)\]", posterior)
    ]
    log_q = [float(v) for v in re.findall(r"-?[\d.]+", density)]
    assert rows[0][0] > 0.95
    assert 0.1 < rows[1][0] < 0.9
    assert all(abs(sum(row) - 1) < 1e-3 for row in rows)
    assert log_q[2] < min(log_q[:2]) - 10


def test_every_file_the_readme_names_exists():
    for target in re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text()):
        if not target.startswith("http"):
            assert (ROOT / target).exists(), target
