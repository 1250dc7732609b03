"""Trained models that come with the package: run folders with checksums. docs/results.md tells what they reach."""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from ibinn.checkpoint import RunError
from ibinn.files import MODEL

if TYPE_CHECKING:
    from ibinn.estimator import IBINNClassifier

HERE = Path(__file__).parent
SUMS = "SHA256SUMS"  # a line for each file, as sha256sum writes it


def load_pretrained(name: str, device: str = "auto") -> "IBINNClassifier":
    """The classifier that was trained with gamma = 1 on "digits", "fashion_mnist" or "cifar10"."""
    from ibinn.estimator import IBINNClassifier

    return IBINNClassifier.load(pretrained_folder(name), device)


def pretrained_folder(name: str) -> Path:
    """The run folder of a model that comes with the package; RunError if it is unknown or damaged."""
    lines = (line.split() for line in (HERE / SUMS).read_text(encoding="utf-8").splitlines())
    known = {file.removesuffix(f"/{MODEL}"): total for total, file in lines}
    if name not in known:
        raise RunError(f"there is no pretrained model {name!r}; there are {', '.join(known)}")
    path = HERE / name / MODEL
    if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != known[name]:
        raise RunError(f"{path} is missing or damaged; install ibinn again")
    return path.parent
