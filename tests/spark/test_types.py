"""Arrow's types in Spark and back: every value comes back as it went, or is refused by name."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import LongType, ShortType, StructType, TimestampType

import thermocline as tc
from thermocline.errors import Invalid, NotFound, Unsupported
from thermocline.format.schema import Schema, create_schema
from thermocline.pipeline.spark.types import (
    NANOSECONDS_OF,
    canonical_schema,
    from_spark,
    select_columns,
    spark_schema,
    table_schema,
    to_spark,
)

NS = 1_717_200_000_123_456_789
WORDS = ["a", None, "ö"]
EVERY_KIND = {
    "ts": pa.array([NS, -1, NS + 1_000], pa.timestamp("ns", tz="UTC")),
    "ts_naive": pa.array([NS, None, -NS], pa.timestamp("ns")),
    "at_us": pa.array([1, None, -1], pa.timestamp("us", tz="Europe/Berlin")),
    "at_ms": pa.array([1, None, -1], pa.timestamp("ms")),
    "at_s": pa.array([1, None, -1], pa.timestamp("s", tz="UTC")),
    "flag": pa.array([True, None, False]),
    **{
        f"i{bits}": pa.array([1 - 2 ** (bits - 1), None, 7], f"int{bits}")
        for bits in (8, 16, 32, 64)
    },
    **{f"u{bits}": pa.array([2**bits - 1, None, 0], f"uint{bits}") for bits in (8, 16, 32, 64)},
    "f16": pa.array([1.5, None, -2.0], pa.float16()),
    "f32": pa.array([1.25, None, float("inf")], pa.float32()),
    "f64": pa.array([0.1, None, -0.0], pa.float64()),
    "word": pa.array(WORDS),
    "word_large": pa.array(WORDS, pa.large_string()),
    "word_view": pa.array(WORDS, pa.string_view()),
    "word_dictionary": pa.array(WORDS).dictionary_encode(),
    "bytes": pa.array([b"\x00\xff", None, b""]),
    "bytes_fixed": pa.array([b"ab", None, b"cd"], pa.binary(2)),
    "day": pa.array([dt.date(2024, 6, 1), None, dt.date(1, 1, 1)], pa.date32()),
    "day64": pa.array([dt.date(2024, 6, 1), None, dt.date(1969, 1, 1)], pa.date64()),
    "clock": pa.array([dt.time(1, 2, 3, 4), None, dt.time(23, 59)], pa.time64("us")),
    "clock_ms": pa.array([dt.time(1, 2, 3, 4_000), None, dt.time(0)], pa.time32("ms")),
    "length": pa.array([dt.timedelta(days=1, microseconds=1), None, dt.timedelta(-1)]),
    "money": pa.array([Decimal("1.50"), None, Decimal("-0.01")], pa.decimal128(9, 2)),
    "wide": pa.array([Decimal(10**37), None, Decimal(-1)], pa.decimal128(38, 0)),
    "list": pa.array([[1, None], None, []], pa.list_(pa.int32())),
    "list_fixed": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.uint8(), 2)),
    "list_words": pa.array([["a", None], None, []], pa.large_list(pa.large_string())),
    "map": pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.uint16())),
    "struct": pa.array(
        [{"x": 1, "y": ["a"]}, None, {"x": None, "y": None}],
        pa.struct([("x", pa.uint32()), ("y", pa.list_(pa.string()))]),
    ),
    "nothing": pa.nulls(3),
}
ROWS = pa.table(EVERY_KIND)


@pytest.fixture(scope="module")
def every(tmp_path_factory):
    """A table with a column of every type."""
    root = tmp_path_factory.mktemp("every") / "table"
    table = tc.TimeSeriesTable.create(root, time_column="ts", bucket="1h")
    table.append(ROWS)
    return table


def test_every_type_comes_back_through_spark_as_it_went(spark, every, tmp_path):
    copy = tc.TimeSeriesTable.create(tmp_path / "copy", time_column="ts", bucket="1h")
    copy.cold.adopt_columns(every.schema(), evolve=False)
    frame = spark.read.format("thermocline").load(every.root())
    frame.write.format("thermocline").mode("append").save(copy.root())
    assert copy.schema() == every.schema()
    # One small segment is one task's: its rows keep their order.
    assert copy.to_arrow().equals(every.to_arrow())


def test_the_fast_read_has_the_same_columns_and_values(spark, every):
    slow = spark.read.format("thermocline").load(every.root())
    native_read = tc.spark.read(spark, every)
    assert native_read.columns == slow.columns
    assert [f.dataType for f in native_read.schema] == [f.dataType for f in slow.schema]
    found = native_read.sort("ts", "ts_ns").toArrow()
    wanted = slow.sort("ts", "ts_ns").toArrow()
    assert found.cast(wanted.schema).equals(wanted)


def test_the_fast_read_takes_native_types_from_the_files_alone(spark, every, monkeypatch):
    from thermocline.pipeline.spark import native_read

    native = ["ts", "ts_naive", "at_us", "at_ms", "u64", "word_dictionary", "bytes_fixed", "day64"]
    native += ["money", "list_fixed", "list_words", "map", "struct"]
    monkeypatch.setattr(native_read, "_read_with_python", None)
    slow = spark.read.format("thermocline").option("columns", ", ".join(native)).load(every.root())
    found = native_read.read(spark, every, columns=native).sort("ts", "ts_ns").toArrow()
    wanted = slow.sort("ts", "ts_ns").toArrow()
    assert found.cast(wanted.schema).equals(wanted)


@given(st.lists(st.none() | st.integers(-(2**63) + 1_000, 2**63 - 1), max_size=20))
def test_nanoseconds_are_microseconds_and_a_rest_and_whole_again(values):
    rows = pa.RecordBatch.from_pydict({"at": pa.array(values, pa.timestamp("ns", tz="UTC"))})
    frame = spark_schema(rows.schema)
    shown = to_spark(rows, canonical_schema(frame))
    assert all(0 <= rest <= 999 for rest in shown.column("at_ns").to_pylist() if rest is not None)
    assert from_spark(shown, frame, Schema().add_columns(rows.schema)).equals(rows)


def test_a_rest_that_is_no_rest_is_refused():
    rows = pa.RecordBatch.from_pydict({"at": pa.array([NS], pa.timestamp("ns", tz="UTC"))})
    frame = spark_schema(rows.schema)
    wrong = pa.RecordBatch.from_pydict(
        {
            "at": pa.array([1], pa.timestamp("us", tz="UTC")),
            "at_ns": pa.array([1_000], pa.int16()),
        }
    )
    with pytest.raises(Invalid, match="not from 0 to 999"):
        from_spark(wrong, frame, Schema().add_columns(rows.schema))


def test_a_time_past_the_reach_of_nanoseconds_is_refused():
    far = int(dt.datetime(9999, 1, 1, tzinfo=dt.UTC).timestamp()) * 1_000_000
    frame = spark_schema(pa.schema([("at", pa.timestamp("ns", tz="UTC"))]))
    rows = pa.RecordBatch.from_pydict(
        {"at": pa.array([far], pa.timestamp("us", tz="UTC")), "at_ns": pa.array([0], pa.int16())}
    )
    with pytest.raises(Invalid, match="does not fit into nanoseconds"):
        from_spark(
            rows, frame, Schema().add_columns([pa.field("at", pa.timestamp("ns", tz="UTC"))])
        )


def test_a_new_table_of_a_read_frame_has_its_nanoseconds():
    table = pa.schema([pa.field("ts", pa.timestamp("ns", tz="UTC")), pa.field("v", pa.int64())])
    assert table_schema(spark_schema(table), Schema()) == table


def test_a_column_that_only_looks_like_a_rest_stays_a_column():
    frame = StructType().add("ts", TimestampType()).add("ts_ns", LongType())
    assert table_schema(frame, Schema()).names == ["ts", "ts_ns"]
    known = create_schema(pa.schema([("ts", pa.timestamp("us", tz="UTC"))]), "ts")
    assert table_schema(frame, known).names == ["ts", "ts_ns"]


def test_the_rest_tells_whose_it_is():
    frame = spark_schema(pa.schema([("ts", pa.timestamp("ns"))]))
    assert frame["ts_ns"].metadata == {NANOSECONDS_OF: "ts"}


@pytest.mark.parametrize(
    "kind",
    [
        pa.decimal256(40, 2),
        pa.time64("ns"),
        pa.duration("ns"),
        pa.list_(pa.timestamp("ns")),
        pa.struct([("x", pa.timestamp("ns", tz="UTC"))]),
    ],
    ids=str,
)
def test_what_spark_cannot_hold_is_refused_by_name(kind):
    with pytest.raises(Unsupported, match="cannot hold this column") as error:
        spark_schema(pa.schema([("price", kind)]))
    assert error.value.facts["column"].startswith("price")


def test_a_column_in_the_way_of_a_rest_is_named():
    with pytest.raises(Unsupported, match="nanoseconds is taken") as error:
        spark_schema(pa.schema([("ts", pa.timestamp("ns")), ("TS_NS", pa.int64())]))
    assert error.value.facts["taken"] == "ts_ns"


def test_a_number_too_large_for_the_table_is_refused():
    known = Schema().add_columns([pa.field("n", pa.uint8())])
    frame = StructType().add("n", ShortType())
    with pytest.raises(Invalid, match="does not fit"):
        from_spark(pa.RecordBatch.from_pydict({"n": pa.array([256], pa.int16())}), frame, known)


def test_a_table_without_columns_is_not_a_frame():
    with pytest.raises(NotFound, match="no columns yet"):
        select_columns(Schema(), None)
