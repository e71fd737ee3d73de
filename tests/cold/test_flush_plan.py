"""Rows that are carried into the lake: what their files hold, and what they read as."""

from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fixtures.wal import opened
from thermocline.format import null_columns

HOURS = [datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in range(3)]
TAGS = pa.list_(pa.struct([("name", pa.string()), ("weight", pa.int64())]))
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("n", pa.int64()), ("tags", TAGS)])


def rows(*given):
    """Return rows of (hour, n, tags)."""
    columns = zip(*given, strict=True)
    names = zip(columns, SCHEMA, strict=True)
    return pa.table([pa.array(column, field.type) for column, field in names], schema=SCHEMA)


WITH = rows((HOURS[0], 1, [{"name": "a", "weight": 2}]), (HOURS[0], None, []))
WITHOUT = rows((HOURS[1], None, None), (HOURS[2], 3, None))


@pytest.fixture(autouse=True)
def many(monkeypatch):
    """Let a few rows be many."""
    monkeypatch.setattr(null_columns, "BLANK_ROWS_MIN", 1)


@pytest.fixture(params=["with first", "without first"])
def lake(request, tmp_path):
    """A lake whose table has files with a column, and files without it."""
    parts = [WITH, WITHOUT] if request.param == "with first" else [WITHOUT, WITH]
    with opened(tmp_path / "lake") as lake:
        table = lake.create_table("t", time_column="ts", bucket="1h")
        for part in parts:
            table.write(part)
            table.flush()
        yield lake


def file_names(table):
    """Return the columns of each segment's file, by the hour it begins with."""
    segments = sorted(table.cold.state().segments, key=lambda segment: segment.ts_min)
    return [pq.read_schema(f"{table.root()}/{segment.path}").names for segment in segments]


def test_a_column_that_is_null_throughout_is_not_in_the_file(lake):
    assert file_names(lake.table("t")) == [["ts", "n", "tags"], ["ts", "n"], ["ts", "n"]]


def test_an_entity_column_is_in_the_file_and_so_is_every_column_of_few_rows(tmp_path, monkeypatch):
    given = WITHOUT.slice(0, 1)
    with opened(tmp_path / "lake") as lake:
        table = lake.create_table("t", time_column="ts", bucket="1h", entity_columns=["n"])
        table.write(given)
        table.flush()
        assert file_names(table) == [["ts", "n"]]
        monkeypatch.setattr(null_columns, "BLANK_ROWS_MIN", 2)
        table.write(given)
        table.flush()
        assert [*map(len, file_names(table))] == [2, 3]
        assert table.cold.state().schema.arrow.names == SCHEMA.names
        assert table.to_arrow().cast(SCHEMA).equals(pa.concat_tables([given, given]))


def test_what_is_not_in_the_file_reads_as_null(lake):
    table = lake.table("t")
    wanted = pa.concat_tables([WITH, WITHOUT])
    found = table.to_arrow().cast(SCHEMA)
    assert sorted(map(str, found.to_pylist())) == sorted(map(str, wanted.to_pylist()))
    assert lake.sql("select * from t order by ts, n").cast(SCHEMA).equals(wanted)
    assert lake.sql("select n from t where tags is null order by n")["n"].to_pylist() == [3, None]
    names = lake.sql("select unnest(tags).name as name from t")["name"].to_pylist()
    assert names == ["a"]


def test_rows_are_deleted_by_what_is_not_in_their_file(lake):
    table = lake.table("t")
    table.delete("tags is null")
    assert table.to_arrow().cast(SCHEMA).equals(WITH)


def test_nothing_is_wrong_with_such_files(lake):
    assert lake.table("t").fsck().findings == ()
