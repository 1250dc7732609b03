"""Imports point down: a module knows only smaller rows, or its own folder."""

import re
from pathlib import Path

import ibinn

SRC = Path(ibinn.__file__).parent
ROW = {
    "allocator": -1,
    "precision": -1,
    "files": -1,
    "units": -1,
    "machine": -1,
    "config": 0,
    "data": 0,
    "metrics": 0,
    "flows": 0,
    "mixture": 0,
    "objectives": 0,
    "models": 1,
    "checkpoint": 2,
    "training": 3,
    "results": 3,
    "feature_scores": 3,
    "evaluation": 3.5,
    "exploration": 3.5,
    "explanation": 3.7,
    "report": 4,
    "card": 3.5,
    "saving": 4,
    "sweep": 4,
    "prediction": 4,
    "export": 4.5,
    "estimator": 5,
    "pretrained": 5.5,
    "explorer": 6,
    "cli": 7,
}


def test_imports_point_down():
    for path in SRC.rglob("*.py"):
        here = path.relative_to(SRC).parts[0].removesuffix(".py")
        for there in re.findall(r"^\s*from ibinn\.(\w+)", path.read_text(), re.M):
            assert here in (there, "__init__") or ROW[there] < ROW[here], f"{path}: {there}"


def test_only_report_imports_matplotlib():
    for path in SRC.rglob("*.py"):
        if "matplotlib" in path.read_text():
            assert path.relative_to(SRC).parts[0] == "report", path


def test_every_public_name_exists_and_is_documented():
    assert set(ibinn.HOME) == set(ibinn.__all__) == set(dir(ibinn)) - {"__version__"}
    for name in ibinn.__all__:
        assert getattr(ibinn, name).__doc__, name
    assert not hasattr(ibinn, "no_such_name")


def test_files_stay_readable():
    for path in SRC.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 500, path
