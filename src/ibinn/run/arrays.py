"""evaluation.npz of a run folder: the arrays behind its figures."""

import io
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from ibinn._system import write_atomically
from ibinn._types import Array
from ibinn.run import RunError

ARRAYS = "evaluation.npz"
# What NumPy raises for a damaged file, depending on where the damage is.
DAMAGE = (ValueError, TypeError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)


def write_arrays(folder: Path, arrays: Mapping[str, Array]) -> None:
    """Write evaluation.npz, with floats in single precision."""
    with np.errstate(over="ignore"):  # values too large for single precision become infinite
        single: dict[str, Any] = {
            name: values.astype(np.float32) if values.dtype == np.float64 else values
            for name, values in arrays.items()
        }
    file = io.BytesIO()
    np.savez_compressed(file, **single)
    write_atomically(folder / ARRAYS, file.getvalue())


def read_arrays(folder: Path) -> dict[str, Array]:
    """The arrays of a run; empty if it has no evaluation.npz."""
    path = folder / ARRAYS
    if not path.is_file():
        return {}
    try:
        with np.load(path, allow_pickle=False) as stored:
            return dict(stored)
    except DAMAGE as error:
        raise RunError(
            f"{path} is damaged; make it again with: ibinn evaluate {quote(str(folder))}"
        ) from error
