"""CSV and Parquet tables -> rows of numbers and labels."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from ibinn.data.dataset import Array, DataError, Dataset, Part


def load_table(path: Path, target: str | None) -> Dataset:
    """Numbers as they are, categories one-hot, the target column as classes."""
    table = read_table(path)
    if target is None or target not in table.column_names:
        asked = "no target column was named" if target is None else f"there is no column {target!r}"
        raise DataError(
            f"{path}: {asked}; say which column holds the classes with --target, one of "
            f"{', '.join(table.column_names[:12])}{' …' if table.num_columns > 12 else ''}"
        )
    check_missing(table, path)
    class_names, y = labels(table[target])
    columns = {name: numbers(table[name], name, path) for name in table.column_names if name != target}
    if not columns:
        raise DataError(f"{path} has no column but the target {target!r}; add columns to learn from")
    names = tuple(name for part in columns.values() for name in part)
    x = np.column_stack([values for part in columns.values() for values in part.values()])
    return Dataset(path.stem, Part(x, y), None, class_names, levels=None, feature_names=names)


def read_table(path: Path) -> pa.Table:
    try:
        return pyarrow.csv.read_csv(path) if path.suffix == ".csv" else pq.read_table(path)
    except (pa.ArrowException, EOFError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(
            f"{path} cannot be read as a table ({reason}); check that the file is whole"
        ) from error


def check_missing(table: pa.Table, path: Path) -> None:
    missing = [name for name in table.column_names if table[name].null_count]
    if missing:
        raise DataError(
            f"{path} has missing values in {', '.join(missing)}; fill them in or drop those rows or columns"
        )


def labels(column: pa.ChunkedArray) -> tuple[tuple[str, ...], Array]:
    """Class names in order, and the number of each row's class."""
    values = np.asarray(column.to_pylist())
    if values.dtype.kind == "f" and not np.all(values == np.round(values)):
        raise DataError(
            "the target column holds fractions, but classes are whole numbers or names; choose another target"
        )
    classes, y = np.unique(values, return_inverse=True)
    return tuple(str(c) for c in classes.tolist()), y.astype(np.int64)


def numbers(column: pa.ChunkedArray, name: str, path: Path) -> dict[str, Array]:
    """A column of numbers under its name, or one column of 0 and 1 per category."""
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        values = column.cast(pa.float64()).to_numpy()
        if not np.isfinite(values).all():
            raise DataError(f"{path} has NaN or infinite values in {name}; replace them or drop those rows")
        return {name: values}
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if pa.types.is_boolean(kind):
        return {name: column.cast(pa.int8()).to_numpy().astype(np.float64)}
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        categories = sorted(pc.unique(column).to_pylist())
        values = np.asarray(column.to_pylist())
        return {f"{name}={category}": (values == category).astype(np.float64) for category in categories}
    raise DataError(
        f"{path}: column {name} holds {kind}, which is neither a number nor a category; drop it"
    )
