"""Everything is tested in float64, set before anything is built; float32 where a test says so."""

import os
import warnings

import pytest
import torch
from hypothesis import settings

torch.set_default_dtype(torch.float64)

settings.register_profile("test", max_examples=15, deadline=None, derandomize=True)
settings.register_profile("soak", max_examples=300, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "test"))


@pytest.fixture(autouse=True)
def _same_start_for_every_test():
    torch.manual_seed(0)


@pytest.fixture
def own_places(tmp_path, monkeypatch):
    """A home, a cache and a way to show warnings of a test's own."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("IBINN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("IBINN_DATA", raising=False)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # which the command line replaces
