"""evaluation.npz of a run folder: the arrays behind its figures."""

import io
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from shlex import quote

import numpy as np

from ibinn._system import write_atomically
from ibinn._types import Array
from ibinn.run.trained import RunError

ARRAYS = "evaluation.npz"


def write_arrays(folder: Path, arrays: Mapping[str, Array]) -> None:
    """evaluation.npz; numbers only, no pickle, floats in single precision."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, values in arrays.items():
            entry = io.BytesIO()
            if values.dtype == np.float64:
                with np.errstate(over="ignore"):  # what single precision cannot hold is infinite there
                    values = values.astype(np.float32)
            np.lib.format.write_array(entry, np.asarray(values), allow_pickle=False)
            archive.writestr(f"{name}.npy", entry.getvalue())
    write_atomically(folder / ARRAYS, file.getvalue())


def read_arrays(folder: Path) -> dict[str, Array]:
    """The arrays of a run; none where it has no evaluation.npz."""
    path = folder / ARRAYS
    if not path.is_file():
        return {}
    try:
        with np.load(path, allow_pickle=False) as stored:
            return dict(stored)
    except (
        ValueError,
        TypeError,
        EOFError,
        zipfile.BadZipFile,
        zlib.error,
        NotImplementedError,
        RuntimeError,
    ) as error:
        raise RunError(
            f"{path} is damaged; make it again with: ibinn evaluate {quote(str(folder))}"
        ) from error
