"""Imports point down: a module knows only smaller rows, or its own folder."""

import re
from pathlib import Path

import ibinn

SRC = Path(ibinn.__file__).parent
ROW = {
    "_types": 0,
    "_system": 0,
    "config": 0,
    "formats": 1,
    "flows": 1,
    "objectives": 1,
    "metrics": 1,
    "data": 1,
    "mixture": 2,
    "models": 3,
    "ood": 4,
    "run": 5,
    "training": 6,
    "inference": 6,
    "evaluation": 7,
    "export": 7,
    "sweep": 7,
    "report": 8,
    "estimator": 9,
    "pretrained": 10,
    "explorer": 11,
    "cli": 12,
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
