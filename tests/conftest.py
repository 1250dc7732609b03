"""Everything is tested in float64, set before anything is built; float32 where a test says so."""

import functools
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
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # which the command line replaces


@pytest.fixture(scope="session")
def digits_folder(tmp_path_factory):
    """A run on all digits, good enough to know strange ones, with what ibinn evaluate writes but the pictures."""
    from helpers.trainings import trained

    from ibinn.data.known import load
    from ibinn.evaluation import evaluate, read_test
    from ibinn.ood.sets import ood_set
    from ibinn.run.arrays import write_arrays
    from ibinn.run.results import write_results

    folder, digits = tmp_path_factory.mktemp("explored") / "digits", load("digits")
    run = trained(folder, digits, epochs=15)
    test = read_test(run, digits)
    sets = {name: ood_set(name, test.x, digits.levels) for name in ("inverted", "noise")}
    results, arrays = evaluate(run, digits, sets)
    write_arrays(folder, arrays)
    write_results(folder, results)
    return folder


@pytest.fixture(scope="session")
def digits(digits_folder):
    """An explorer of that run."""
    from ibinn.cli.explore import Explore

    return Explore(device="cpu").open_explorer(digits_folder)


@pytest.fixture(scope="session")
def moons(tmp_path_factory):
    """An explorer of a run on a table."""
    from helpers.explorers import explorer_of
    from helpers.trainings import trained, two_moons

    from ibinn.evaluation import read_test

    folder, dataset = tmp_path_factory.mktemp("moons") / "run", two_moons()
    run = trained(folder, dataset, epochs=5)
    return explorer_of(run, read_test(run, dataset), folder)


@pytest.fixture(scope="session")
def example_run(tmp_path_factory):
    """The runs of helpers.examples by name, each trained once."""
    from helpers.examples import train_example

    return functools.cache(lambda name: train_example(name, tmp_path_factory.mktemp("example") / name))
