"""The files that commands write: figures and arrays."""

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ibinn._types import Array
    from ibinn.run.folder import Saved


def is_picture(out: Path, saved: "Saved") -> bool:
    """Whether a file is to be a picture; ValueError for a kind that does not fit the data."""
    kinds = (".png", ".pdf", ".npz") if saved.form.is_images else (".csv", ".npz")
    if out.suffix.lower() not in kinds:
        raise ValueError(f"{out} is of no kind that fits the data; use {', '.join(kinds)}")
    return out.suffix.lower() in (".png", ".pdf")


def write_arrays(out: Path, x: "Array", saved: "Saved", y: "Array | None") -> None:
    """.npz, or .csv with the columns' names."""
    from ibinn._system import write_atomically

    if out.suffix.lower() == ".npz":
        write_atomically(out, npz(x, y))
        return
    names = [*(saved.run.feature_names or [f"x{i}" for i in range(x.shape[1])])]
    rows = [[repr(float(v)) for v in row] for row in x]
    if y is not None:
        names, rows = [*names, "class"], [[*row, str(label)] for row, label in zip(rows, y, strict=True)]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([names, *rows])
    write_atomically(out, text.getvalue())


def npz(x: "Array", y: "Array | None") -> bytes:
    import numpy as np

    arrays: dict[str, Any] = {"x": x}
    if y is not None:
        arrays["y"] = y.astype(str) if y.dtype.kind == "O" else y
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def write_figure(out: Path, draw: Callable[[], Any]) -> None:
    from ibinn._system import write_atomically
    from ibinn.report.runs import rendered

    suffix = out.suffix.lower()
    if suffix not in (".png", ".pdf"):
        raise ValueError(f"{out} must end in .png or .pdf")
    write_atomically(out, rendered("figure", draw)[f"figure{suffix}"])
