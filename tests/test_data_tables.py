"""Tables: numbers, categories, the target column, pandas' index."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.files import written

from ibinn.data.known import load

pytestmark = pytest.mark.usefixtures("own_places")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_tables(tmp_path, kind):
    columns = {
        "age": [30, 40, 50, 60],
        "colour": ["red", "blue", "red", "green"],
        "fit": [True, False, True, True],
        "size": [1.5, 2.5, 3.5, 4.5],
        "kind": ["yes", "no", "no", "yes"],
    }
    table = pa.table(columns)
    path = tmp_path / f"t.{kind}"
    pa.csv.write_csv(table, path) if kind == "csv" else pq.write_table(table, path)
    data = load(path, target="kind")
    assert data.feature_names == ("age", "colour=blue", "colour=green", "colour=red", "fit", "size")
    assert data.train.x[0].tolist() == [30, 0, 0, 1, 1, 1.5]
    assert data.class_names == ("no", "yes")
    assert data.train.y.tolist() == [1, 0, 0, 1]
    assert data.levels is None


def test_pandas_index_is_no_feature(tmp_path):
    """It comes in the order of the rows, which is often that of the classes."""
    table = pa.table({"a": [1.0, 2.0], "y": [0, 1], "__index_level_0__": [17, 25]})
    table = table.replace_schema_metadata({"pandas": json.dumps({"index_columns": ["__index_level_0__"]})})
    pq.write_table(table, tmp_path / "t.parquet")
    assert load(tmp_path / "t.parquet", target="y").feature_names == ("a",)


def test_a_column_of_numbers_with_an_odd_cell_is_noticed(tmp_path):
    with pytest.warns(UserWarning, match=r"column a .* categories .*'\?'"):
        load(written(tmp_path, "t.csv", "a,y\n1,0\n2,1\n?,0\n4,1\n"), target="y")
