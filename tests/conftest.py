"""Everything is tested in float64, set before anything is built; float32 where a test says so."""

import os

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
