"""Saved models and single inputs, as commands name them."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ibinn._types import Array
    from ibinn.estimator import IBINNClassifier
    from ibinn.run.folder import Saved


def loaded(folder: Path, device: str) -> "Saved":
    from ibinn._system import choose_device
    from ibinn.run.folder import load_model

    saved = load_model(folder)
    saved.run.pipeline.to(choose_device(device, saved.form.is_images))
    return saved


def estimator_of(saved: "Saved", folder: Path) -> "IBINNClassifier":
    from ibinn.estimator import IBINNClassifier

    return IBINNClassifier.of(saved, str(folder))


def read_one(name: str, saved: "Saved") -> "Array":
    """One input: a file that holds just one, or FILE:ROW."""
    from ibinn.data.unlabelled import read_inputs

    path, row = Path(name), 0
    stem, colon, number = name.rpartition(":")
    if not path.exists() and colon and number.isdigit():
        path, row = Path(stem), int(number)
    _, raw = read_inputs(path, saved.form, saved.run.feature_names)
    if row >= len(raw):
        raise ValueError(f"{path} has {len(raw)} inputs, so the last row is {path}:{len(raw) - 1}")
    if len(raw) > 1 and not (colon and number.isdigit()):
        raise ValueError(f"{path} has {len(raw)} inputs; say which one, as in {path}:0")
    one: Array = raw[row]
    return one
