"""CSV and Parquet tables -> rows of numbers, with or without labels."""

import json
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from ibinn._types import Array
from ibinn.data.dataset import DataError, Dataset, Part

MOST_CATEGORIES = 1000


def load_table(path: Path, target: str | None) -> Dataset:
    """A Dataset with numbers as they are, categories one-hot, and the target column as classes."""
    table = read_table(path)
    if target is None or target not in table.column_names:
        problem = "no target column was given" if target is None else f"there is no column {target!r}"
        raise DataError(
            f"{path}: {problem}; name the column that holds the classes with --target, one of "
            f"{', '.join(table.column_names[:12])}{' …' if table.num_columns > 12 else ''}"
        )
    check_missing(table, path)
    class_names, y = class_column(table[target])
    columns = feature_columns(table, path, target)
    if not columns:
        raise DataError(f"{path} has no column but the target {target!r}; add columns to learn from")
    x = np.column_stack([*columns.values()])
    return Dataset(path.stem, Part(x, y), None, class_names, levels=None, feature_names=tuple(columns))


def feature_columns(table: pa.Table, path: Path, target: str | None) -> dict[str, Array]:
    """Every column but the target as numbers, by name; a category becomes several columns."""
    parts = [numeric_columns(table[name], name, path) for name in table.column_names if name != target]
    return {name: values for part in parts for name, values in part.items()}


def read_table(path: Path) -> pa.Table:
    """The table without pandas' index. Empty cells are missing values, in columns of text too."""
    try:
        if path.suffix.lower() == ".csv":
            options = pyarrow.csv.ConvertOptions(strings_can_be_null=True)
            table = pyarrow.csv.read_csv(path, convert_options=options)
        else:
            table = pq.read_table(path)
        table = table.drop_columns(index_columns(table))
        names = table.column_names
    except (pa.ArrowException, EOFError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} cannot be read as a table ({first_line(error)}); is it whole, and UTF-8?"
        ) from error
    if len(set(names)) < len(names):
        raise DataError(f"{path} has two columns of the same name; rename one of them")
    if table.num_rows == 0:
        raise DataError(f"{path} has no rows; add some examples")
    return table


def index_columns(table: pa.Table) -> list[str]:
    """Row labels stored by pandas: they are no features, and often in the order of the classes."""
    metadata = json.loads((table.schema.metadata or {}).get(b"pandas", b"{}"))
    return [name for name in metadata.get("index_columns", []) if name in table.column_names]


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def check_missing(table: pa.Table, path: Path) -> None:
    missing = [name for name in table.column_names if table[name].null_count]
    if missing:
        raise DataError(
            f"{path} has missing values in {', '.join(missing)}; fill them in or drop those rows or columns"
        )


def class_column(column: pa.ChunkedArray) -> tuple[tuple[str, ...], Array]:
    """Class names in order, and the number of each row's class."""
    values = np.asarray(column.to_pylist())
    if values.dtype.kind == "f" and not np.all(values == np.round(values)):
        raise DataError(
            "the target column holds fractions, but classes are whole numbers or names; choose another target"
        )
    classes, y = np.unique(values, return_inverse=True)
    return tuple(str(c) for c in classes.tolist()), y.astype(np.int64)


def numeric_columns(column: pa.ChunkedArray, name: str, path: Path) -> dict[str, Array]:
    """A column of numbers under its name, or one column of 0 and 1 per category."""
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        values = column.cast(pa.float64(), safe=False).to_numpy()
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
        check_categories(categories, name, path)
        values = np.asarray(column.to_pylist())
        return {f"{name}={category}": (values == category).astype(np.float64) for category in categories}
    raise DataError(
        f"{path}: column {name} holds {kind}, which is neither a number nor a category; drop it"
    )


def rows_by_name(table: pa.Table, columns: tuple[str, ...], path: Path) -> Array:
    """The named columns of a table in this order, (N, D)."""
    return np.column_stack([column_by_name(table, name, path) for name in columns])


def column_by_name(table: pa.Table, name: str, path: Path) -> Array:
    """A column of numbers; "kind=red" is 1 where the column kind is red. Unknown categories give zeros."""
    if name in table.column_names:
        check_missing(table.select([name]), path)
        found = numeric_columns(table[name], name, path)
        if name not in found:
            raise DataError(
                f"{path}: column {name} holds text but the model expects numbers; correct those cells"
            )
        return found[name]
    base = next((b for b in table.column_names if name.startswith(f"{b}=")), None)
    if base is None:
        raise DataError(
            f"{path} has no column {name!r}, which the training data has; give a table with the same columns"
        )
    check_missing(table.select([base]), path)
    same = pc.equal(string_column(table[base]), name.removeprefix(f"{base}="))
    return np.asarray(same.to_numpy(), dtype=np.float64)


def string_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column.cast(pa.string())


def check_categories(categories: list[str], name: str, path: Path) -> None:
    """Raise DataError for an identifier, and warn of numbers that a few odd cells turned into text."""
    if len(categories) > MOST_CATEGORIES:
        raise DataError(
            f"{path}: column {name} has {len(categories)} different texts, so it looks like an identifier; drop it"
        )
    n_numbers = sum(is_number(category) for category in categories)
    if n_numbers > len(categories) / 2:
        odd = next(category for category in categories if not is_number(category))
        warnings.warn(
            f"{path}: column {name} is treated as categories because of cells like {odd!r}", stacklevel=2
        )


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
