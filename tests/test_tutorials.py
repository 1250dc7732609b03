"""The tutorials run, and write what they say."""

import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

EXAMPLES = Path(__file__).parent.parent / "examples"
TUTORIALS = {
    "table": (["--epochs", "2"], ["wines.png"], ["told right", "third grower"]),
    "embeddings": (
        ["--epochs", "1"],
        ["embeddings.png", "model/README.md"],
        ["told right", "strange ones"],
    ),
    "images": (
        ["--epochs", "1", "--n", "200"],
        ["hardest.png", "samples.png", "model/model.safetensors"],
        ["told right", "lying on their side", "hold the true one"],
    ),
}


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_tutorial_runs(tmp_path, name):
    arguments, files, told = TUTORIALS[name]
    command = [sys.executable, str(EXAMPLES / f"tutorial_{name}.py"), "--out", str(tmp_path), *arguments]
    environment = {"IBINN_CACHE": str(tmp_path / "cache"), "MPLBACKEND": "agg", "HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    for text in told:
        assert text in done.stdout
    for file in files:
        assert (tmp_path / file).stat().st_size > 100
        if file.endswith(".png"):
            with Image.open(tmp_path / file) as image:
                assert image.width > 300
