"""What a table accepts, it can go on with: no create, change or row makes it unusable."""

from datetime import datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from thermocline import TimeSeriesTable
from thermocline.errors import CoverageOverlapError, Invalid
from thermocline.query.session import Session

START = datetime(2024, 6, 1)
PAIR = pa.list_(pa.int64(), 2)


def rows(count=3, **columns):
    times = [START + timedelta(hours=place) for place in range(count)]
    return pa.table({"ts": pa.array(times, pa.timestamp("us")), **columns})


@pytest.fixture
def table(tmp_path):
    return TimeSeriesTable.create(tmp_path / "t", time_column="ts", bucket="1h")


def answered(table):
    with Session() as session:
        session.register_tstable("t", table)
        return session.sql("select * from t order by ts").to_pylist()


@pytest.mark.parametrize("overlap", ["reject", "replace"])
def test_files_of_one_append_are_checked_against_each_other(tmp_path, table, overlap):
    path = str(tmp_path / "a.parquet")
    pq.write_table(rows(), path)
    with pytest.raises(CoverageOverlapError) as caught:
        table.append_parquet([path, path], overlap=overlap)
    assert caught.value.facts["files"] == [path, path]
    assert caught.value.facts["overlapping"] == 3
    assert table.version() == 1
    table.append_parquet([path, path], overlap="allow")
    assert table.to_arrow().num_rows == 6


def test_files_of_other_buckets_go_in_together(tmp_path, table):
    paths = []
    for place in range(3):
        paths.append(str(tmp_path / f"{place}.parquet"))
        pq.write_table(rows().slice(place, 1), paths[-1])
    table.append_parquet(paths)
    assert table.to_arrow().num_rows == 3


def test_files_of_one_append_are_compared_entity_by_entity(tmp_path):
    table = TimeSeriesTable.create(
        tmp_path / "t", time_column="ts", bucket="1h", entity_columns="host"
    )
    paths = []
    for host in "ab":
        paths.append(str(tmp_path / f"{host}.parquet"))
        pq.write_table(rows(host=pa.array([host] * 3)), paths[-1])
    table.append_parquet(paths)
    with pytest.raises(CoverageOverlapError) as caught:
        table.append_parquet([*paths, paths[0]], overlap="replace")
    assert caught.value.facts["entity"] == {"host": "a"}
    assert table.to_arrow().num_rows == 6


def test_a_null_list_of_a_fixed_size_is_read_back(table):
    inside = pa.array([{"f": None}, None, {"f": [1, 2]}], pa.struct([("f", PAIR)]))
    given = rows(x=pa.array([[1, 2], None, [3, None]], PAIR), s=inside)
    table.append(given)
    assert table.to_arrow().to_pylist() == given.to_pylist()
    assert table.to_arrow().schema.field("x").type == PAIR
    assert answered(table) == given.to_pylist()


def test_a_file_with_a_null_list_of_a_fixed_size_is_read_back_too(tmp_path, table):
    given = rows(x=pa.array([[1, 2], None, [3, None]], PAIR))
    path = str(tmp_path / "a.parquet")
    pq.write_table(given, path)
    table.append_parquet(path)
    assert table.to_arrow().to_pylist() == given.to_pylist()
    assert answered(table) == given.to_pylist()


def test_a_column_of_fixed_lists_added_later_is_null_in_older_rows_and_in_new_ones(table):
    table.append(rows())
    table.add_column("x", PAIR)
    table.append(rows(), overlap="allow")
    assert table.to_arrow(columns=["x"]).column("x").null_count == 6


@pytest.mark.parametrize(
    "kind",
    [
        pa.month_day_nano_interval(),
        pa.struct([]),
        pa.decimal128(5, -2),
        pa.dense_union([pa.field("a", pa.int64())]),
        pa.run_end_encoded(pa.int32(), pa.int64()),
        pa.list_view(pa.int64()),
        pa.struct([("a", pa.int64()), ("A", pa.int64())]),
        pa.struct([("a", pa.int64()), ("a", pa.int64())]),
        pa.list_(pa.struct([("", pa.int64())])),
    ],
)
def test_a_column_is_added_only_in_a_type_with_which_appends_go_on(table, kind):
    table.append(rows())
    with pytest.raises(Invalid):
        table.add_column("x", kind)
    table.append(rows(), overlap="allow")
    assert table.to_arrow().num_rows == 6
    assert len(answered(table)) == 6


@pytest.mark.parametrize("name", ["x", "ts", "TS"])
@pytest.mark.parametrize("kind", [pa.int64(), pa.timestamp("us"), pa.timestamp("ns", "UTC")])
def test_a_column_is_not_added_before_the_first_append(table, name, kind):
    with pytest.raises(Invalid) as caught:
        table.add_column(name, kind)
    assert "append" in caught.value.hint
    assert table.schema().names == []
    table.append(rows())
    assert table.schema().names == ["ts"]
    assert not table.schema().field("ts").nullable
    table.append(rows(), overlap="allow")
    assert table.to_arrow().num_rows == 6


@pytest.mark.parametrize("name", ["ts", "TS", "", "a\0b", "\ud800", "n" * 256])
def test_a_column_is_not_added_under_a_name_that_breaks_appends(table, name):
    table.append(rows())
    with pytest.raises(Invalid):
        table.add_column(name, pa.int64())
    table.append(rows(), overlap="allow")


@pytest.mark.parametrize(
    "columns", [["a", "A"], ["a", "a"], ["TS"], ["a", ""], ["a\0"], ["n" * 256]]
)
def test_a_table_is_not_made_with_columns_that_no_rows_can_have(tmp_path, columns):
    with pytest.raises(Invalid):
        TimeSeriesTable.create(
            tmp_path / "t", time_column="ts", bucket="1h", entity_columns=columns
        )


def test_a_first_append_without_a_row_gives_the_table_its_columns(tmp_path, table):
    table.append(rows(x=pa.array([1, 2, 3])).slice(0, 0))
    assert table.schema().names == ["ts", "x"]
    table.append(rows(x=pa.array([1, 2, 3])))
    assert table.to_arrow(columns=["x"]).column("x").to_pylist() == [1, 2, 3]
    other = TimeSeriesTable.create(tmp_path / "o", time_column="ts", bucket="1h")
    path = str(tmp_path / "a.parquet")
    pq.write_table(rows(x=pa.array([1, 2, 3])).slice(0, 0), path)
    other.append_parquet(path)
    assert other.schema().names == ["ts", "x"]
