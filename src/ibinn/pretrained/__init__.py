"""Trained models that come with the package: run folders with checksums; results.json tells what each reaches."""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from ibinn.run import MODEL
from ibinn.run.trained import RunError

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
    sums = dict(line.split()[::-1] for line in (HERE / SUMS).read_text(encoding="utf-8").splitlines())
    if f"{name}/{MODEL}" not in sums:
        known = [file.removesuffix(f"/{MODEL}") for file in sums if file.endswith(MODEL)]
        raise RunError(f"there is no pretrained model {name!r}; there are {', '.join(known)}")
    for file, total in sums.items():
        path = HERE / file
        if file.startswith(f"{name}/") and (
            not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != total
        ):
            raise RunError(f"{path} is missing or damaged; install ibinn again")
    return HERE / name
