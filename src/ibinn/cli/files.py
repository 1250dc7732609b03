"""Files that several commands read and write: data, single inputs, pictures and arrays."""

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ibinn._system import write_atomically
from ibinn.cli.terminal import progress

if TYPE_CHECKING:
    from ibinn._types import Array
    from ibinn.data.dataset import Dataset
    from ibinn.data.inputs import InputForm
    from ibinn.estimator import IBINNClassifier

PICTURES = (".png", ".pdf")


def read_data(data: str, data_dir: Path | None, target: str | None) -> "Dataset":
    """A data set by name or path, with progress."""
    from ibinn.data.known import load

    with progress(f"reading {data}") as on_progress:
        return load(data, data_dir, target, on_progress)


def read_one(name: str, form: "InputForm", feature_names: tuple[str, ...] | None) -> "Array":
    """One input, raw: FILE:ROW, or a file that holds just one."""
    from ibinn.data.inputs import read_inputs

    path, row = Path(name), None
    stem, colon, number = name.rpartition(":")
    if colon and number.isdigit() and not path.exists():
        path, row = Path(stem), int(number)
    _, raw = read_inputs(path, form, feature_names)
    if row is None and len(raw) > 1:
        raise ValueError(f"{path} has {len(raw)} inputs; name one of them, as in {path}:0")
    if row is not None and row >= len(raw):
        raise ValueError(f"{path} has {len(raw)} inputs, so the last row is {path}:{len(raw) - 1}")
    one: Array = raw[row or 0]
    return one


def write_inputs(
    out: Path, x: "Array", y: "Array | None", model: "IBINNClassifier", draw: "Callable[[Array, int], Any]"
) -> None:
    """Write inputs in the form of the model as a picture, .npz or .csv; `draw` takes raw images and levels."""
    suffix = out.suffix.lower()
    suffixes = (*PICTURES, ".npz") if model.form_.is_images else (".csv", ".npz")
    if suffix not in suffixes:
        raise ValueError(f"{out} has a suffix that does not fit the data; use {', '.join(suffixes)}")
    if suffix in PICTURES:
        write_figure(out, lambda: draw(model.form_.raw(x), model.form_.levels or 256))
    elif suffix == ".npz":
        write_atomically(out, npz_content(x, y))
    else:
        write_atomically(out, csv_content(x, y, model.run_.feature_names))
    print(f"written to {out}")


def npz_content(x: "Array", y: "Array | None") -> bytes:
    """x and, if there are labels, y."""
    import numpy as np

    arrays: dict[str, Any] = {"x": x}
    if y is not None:
        arrays["y"] = y.astype(str) if y.dtype.kind == "O" else y
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def csv_content(x: "Array", y: "Array | None", feature_names: tuple[str, ...] | None) -> str:
    """A header and a line per row; the class, if there are labels, is the last column."""
    names = [*(feature_names or [f"x{i}" for i in range(x.shape[1])])]
    rows = [[repr(float(value)) for value in row] for row in x]
    if y is not None:
        names, rows = [*names, "class"], [[*row, str(label)] for row, label in zip(rows, y, strict=True)]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([names, *rows])
    return text.getvalue()


def write_figure(out: Path, draw: Callable[[], Any]) -> None:
    from ibinn.report.runs import rendered

    suffix = out.suffix.lower()
    if suffix not in PICTURES:
        raise ValueError(f"{out} must end in .png or .pdf")
    write_atomically(out, rendered("figure", draw)[f"figure{suffix}"])
