"""Other engines read a published table: every value is ours, or the table is refused by name."""

import decimal
from datetime import UTC, date, datetime, time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import thermocline as tc
from fixtures.lake import HOUR_US, JUNE_US
from interop.readers import READERS, comparable, open_static
from thermocline.errors import Unsupported
from thermocline.iceberg.publish import publish

UTC_US = pa.timestamp("us", tz="UTC")
POINT = pa.struct([("x", pa.int32()), ("tags", pa.list_(pa.string()))])


@pytest.fixture(params=READERS)
def read(request):
    """Read the published metadata with one engine."""
    return READERS[request.param]


def rows(hour, count=4, **columns):
    """Return a row a second, with more columns."""
    times = [JUNE_US + hour * HOUR_US + n * 1_000_000 for n in range(count)]
    hosts = ["a", "b"] * (count // 2)
    return pa.table({"ts": pa.array(times, UTC_US), "host": hosts, **columns})


def ints(*values, kind=None):
    return pa.array(values, kind or pa.int32())


def check(table, read):
    """Every snapshot of the published table has the rows of its version."""
    done = publish(table)
    opened = open_static(done.location)
    versions = [one["snapshot-id"] for one in done.metadata["snapshots"]]
    assert versions[-1] == table.version()
    for version in versions:
        theirs, ours = read(opened, version), table.to_arrow(at=version)
        assert comparable(theirs) == comparable(ours), version
    return versions


def change(table):
    """Append, rename, use the old name again, widen, delete and drop."""
    table.append(rows(0, v=ints(1, 2, 3, None)))
    table.append(rows(1, v=ints(5, 6, 7, 8)))
    table.rename_column("v", "w")
    table.append(rows(2, w=ints(9, 10, 11, 12), v=pa.array(["x", None, "", "é"])), evolve=True)
    table.widen_column("w", pa.int64())
    table.append(rows(3, w=ints(1 << 40, -1, 0, None, kind=pa.int64())))
    table.delete(start="2024-06-01T00:00:01Z", end="2024-06-01T01:00:02Z")
    table.drop_column("v")
    return table


def copy_files(table, folder):
    """Append files without ids under two names of one column, and rows with ids."""
    copied(table, rows(0, v=ints(1, 2, 3, 4)), folder)
    table.rename_column("v", "w")
    copied(table, rows(1, w=ints(5, 6, 7, 8)), folder)
    table.append(rows(2, w=ints(9, 9, 9, 9)))
    return table


@pytest.fixture
def changed(make):
    """A table with appends, a rename, the old name again, a wider type and deletes."""
    return change(make(entity_columns=["host"], overlap="allow"))


def test_every_version_of_a_changed_table_is_read_with_our_values(changed, read):
    assert len(check(changed, read)) == 8


def test_a_table_is_read_after_compaction_and_restore(changed, read):
    changed.append(rows(4, w=ints(1, 2, 3, 4)))
    changed.restore(4)
    changed.append(rows(5, w=ints(5, 6, 7, 8)))
    for hour in range(6, 14):
        changed.append(rows(hour, w=ints(1, 2, 3, 4)))
    changed.compact()
    check(changed, read)


def test_nested_columns_are_read_after_a_field_was_added_inside(make, read):
    table = make(entity_columns=["host"], overlap="allow")
    labels = pa.map_(pa.string(), pa.int64())
    made = {"x": 1, "tags": ["t", None]}
    old = pa.array([made, None, {"x": None, "tags": None}, {"x": 2, "tags": []}], POINT)
    maps = pa.array([[("k", 1), ("l", None)], [], None, [("k", 2)]], labels)
    lists = pa.array([[[1], None], [], None, [[]]], pa.list_(pa.list_(pa.int64())))
    table.append(rows(0, at=old, labels=maps, deep=lists))
    wide = pa.struct([*POINT, ("y", pa.float64())])
    new = pa.array([{"x": 1, "tags": ["u"], "y": 0.5}, None, None, None], wide)
    table.append(rows(1, at=new, labels=maps, deep=lists), evolve=True)
    check(table, read)


SHOWN = {
    "bool": pa.array([True, False, None, True]),
    "int8": ints(-128, 127, 0, None, kind=pa.int8()),
    "int16": ints(-(1 << 15), (1 << 15) - 1, 0, None, kind=pa.int16()),
    "int32": ints(-(1 << 31), (1 << 31) - 1, 0, None),
    "int64": ints(-(1 << 63), (1 << 63) - 1, 0, None, kind=pa.int64()),
    "float32": pa.array([1.5, float("inf"), -0.0, None], pa.float32()),
    "float64": pa.array([1e300, float("nan"), -0.0, None]),
    "string": pa.array(["", "é", "a" * 300, None]),
    "large_string": pa.array(["", "é", "b", None], pa.large_string()),
    "dictionary": pa.array(["", "é", "b", None]).dictionary_encode(),
    "binary": pa.array([b"", b"\x00\xff", b"b", None]),
    "large_binary": pa.array([b"", b"\x00\xff", b"b", None], pa.large_binary()),
    "fixed": pa.array([b"ab", b"\x00\xff", b"cd", None], pa.binary(2)),
    "date": pa.array([date(1, 1, 1), date(9999, 12, 31), date(1969, 12, 31), None]),
    "time": pa.array([time(0), time(23, 59, 59, 999_999), time(12), None], pa.time64("us")),
    "timestamp": pa.array(
        [datetime(1, 1, 1), datetime(1969, 1, 1), None, None], pa.timestamp("us")
    ),
    "timestamptz": pa.array([datetime(1, 1, 1, tzinfo=UTC), None, None, None], UTC_US),
    "decimal": pa.array([decimal.Decimal("-1.50"), None, None, None], pa.decimal128(38, 2)),
}


def test_every_type_that_is_shown_is_read_with_our_values(make, read):
    table = make(entity_columns=["host"])
    table.append(rows(0, **SHOWN))
    check(table, read)


REFUSED = {
    "uint8": pa.uint8(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float16": pa.float16(),
    "time32": pa.time32("s"),
    "time of nanoseconds": pa.time64("ns"),
    "seconds": pa.timestamp("s"),
    "milliseconds": pa.timestamp("ms", "UTC"),
    "nanoseconds": pa.timestamp("ns", "UTC"),
    "another zone": pa.timestamp("us", "Asia/Tokyo"),
    "duration": pa.duration("us"),
    "wide decimal": pa.decimal256(50, 2),
    "date of milliseconds": pa.date64(),
    "view": pa.string_view(),
    "uuid": pa.uuid(),
    "json": pa.json_(),
    "list of a size": pa.list_(pa.int8(), 2),
    "inside a struct": pa.struct([("x", pa.struct([("y", pa.uint64())]))]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_type_that_engines_misread_is_refused_by_name(make, name):
    table = make(entity_columns=["host"])
    table.append(rows(0, odd=pa.nulls(4, REFUSED[name])))
    with pytest.raises(Unsupported) as refused:
        publish(table)
    assert refused.value.facts["column"].startswith("odd")
    table.drop_column("odd")
    # pyiceberg refuses a table if such a column is in a file alone.
    assert publish(table, rewrite=True).version == table.version()


def copied(table, data, folder):
    """Append rows as a file that another program wrote, byte for byte."""
    path = folder / f"{table.version()}.parquet"
    pq.write_table(data, path)
    table.append_parquet(path)


def test_files_without_ids_are_read_by_the_names_that_they_had(make, read, tmp_path):
    table = make(entity_columns=["host"], overlap="allow")
    assert len(check(copy_files(table, tmp_path), read)) == 4


def test_a_name_that_stood_for_two_columns_is_refused_until_the_files_are_rewritten(
    make, read, tmp_path
):
    table = make(entity_columns=["host"], overlap="allow")
    copied(table, rows(0, v=ints(1, 2, 3, 4)), tmp_path)
    table.rename_column("v", "w")
    assert publish(table).version == 3
    table.append(rows(1, w=ints(5, 6, 7, 8), v=ints(0, 0, 0, 1)), evolve=True)
    with pytest.raises(Unsupported) as refused:
        publish(table)
    assert refused.value.facts["column"] == "v"
    assert "--rewrite" in refused.value.hint
    publish(table, rewrite=True)
    assert check(table, read) == [table.version()]


def test_a_nested_column_in_a_file_without_ids_is_refused_until_it_is_rewritten(
    make, read, tmp_path
):
    table = make(entity_columns=["host"])
    copied(table, rows(0, at=pa.array([{"x": 1, "tags": ["t"]}] * 4, POINT)), tmp_path)
    with pytest.raises(Unsupported, match="nested"):
        publish(table)
    publish(table, rewrite=True)
    check(table, read)


def test_a_file_with_ids_of_another_writer_is_refused_until_it_is_rewritten(make, read, tmp_path):
    table = make(entity_columns=["host"], overlap="allow")
    data = rows(0, a=ints(1, 2, 3, 4), b=ints(5, 6, 7, 8))
    swapped = [
        field.with_metadata({"PARQUET:field_id": str(number)})
        for field, number in zip(data.schema, (1, 2, 4, 3), strict=True)
    ]
    copied(table, data.cast(pa.schema(swapped)), tmp_path)
    with pytest.raises(Unsupported, match="ids"):
        publish(table)
    publish(table, rewrite=True)
    check(table, read)


def test_a_widening_that_iceberg_does_not_know_is_refused_until_files_are_rewritten(make, read):
    table = make(entity_columns=["host"], overlap="allow")
    table.append(rows(0, v=ints(1, 2, 3, 4)))
    table.widen_column("v", pa.float64())
    with pytest.raises(Unsupported) as refused:
        publish(table)
    assert refused.value.facts["column"] == "v"
    publish(table, rewrite=True)
    check(table, read)


def test_a_table_of_entities_and_of_whole_numbers_is_read(tmp_path, read):
    table = tc.TimeSeriesTable.create(
        tmp_path / "blocks", time_column="height", bucket="1000", index_type="int64"
    )
    table.append(pa.table({"height": pa.array(range(5000)), "v": pa.array(range(5000))}))
    table.delete(start=1000, end=2000)
    check(table, read)
