"""The tutorials run, write their files, and print the sentences of their page."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
TUTORIALS = {
    "table": (["--epochs", "2"], ["wines.png"], ["classified correctly", "third grower"]),
    "embeddings": (
        ["--epochs", "1"],
        ["embeddings.png", "model/README.md"],
        ["classified correctly", "OoD embeddings"],
    ),
    "images": (
        ["--epochs", "1", "--n", "200"],
        ["hardest.png", "samples.png", "model/model.safetensors"],
        ["classified correctly", "rotated", "contain the true one"],
    ),
}


def page_output(name):
    """The output of a tutorial, as its page shows it."""
    page = (ROOT / "docs" / "tutorials.md").read_text()
    return page.split(f"<!-- {name} -->")[1].split("<!-- end -->")[0]


def sentences(text):
    """The lines with shares, without their numbers."""
    return [
        re.sub(r"[\d.]+", "0", line)
        for line in text.splitlines()
        if re.search(r"\d % (of|contain|are)", line)
    ]


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_tutorial_runs(tmp_path, name):
    arguments, files, texts = TUTORIALS[name]
    command = [sys.executable, str(EXAMPLES / f"tutorial_{name}.py"), "--out", str(tmp_path), *arguments]
    environment = {"IBINN_CACHE": str(tmp_path / "cache"), "MPLBACKEND": "agg", "HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    for text in texts:
        assert text in done.stdout
    assert sentences(done.stdout) == sentences(page_output(name)), "run python docs/tutorial_output.py"
    for file in files:
        assert (tmp_path / file).stat().st_size > 100
        if file.endswith(".png"):
            with Image.open(tmp_path / file) as image:
                assert image.width > 300
