"""Values on their way into columns: each is stored exactly, or refused by name."""

from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from thermocline.errors import Invalid
from thermocline.format.bucket import parse_bucket
from thermocline.format.log.action import TableSpec
from thermocline.format.schema import Schema, create_schema
from thermocline.ingest.exact_values import column_from_texts, from_json
from thermocline.ingest.rows import fit_rows, rows_table

US = timedelta(microseconds=1)
NOON = datetime(2024, 6, 1, 12)
NOON_NS = 1_717_243_200 * 10**9
PLUS_TWO = timezone(timedelta(hours=2))


def spec_in(zone: str | None = None) -> TableSpec:
    return TableSpec("0" * 32, "ts", parse_bucket("1h"), timezone=zone)


def taken(values, kind=None, *, zone=None, name="v"):
    """Return a column as the table would store it; of a table with or without that column."""
    spec = spec_in(zone)
    time_kind = pa.timestamp("us", "UTC" if zone else None)
    columns = {"ts": time_kind} if name != "ts" else {}
    if kind is not None:
        columns[name] = kind
    schema = create_schema(pa.schema(columns), "ts") if kind is not None else Schema()
    rows = [{"ts": NOON, name: value} for value in values]
    given = rows_table(rows, schema, spec)
    if kind is None:
        schema = create_schema(given.schema, "ts")
    return fit_rows(given, schema, spec).column(name)


EXACT = [
    (pa.int64(), [1, 2.0, None], [1, 2, None]),
    (pa.int64(), [np.int8(1), np.float64(3.0)], [1, 3]),
    (pa.int8(), [Decimal("7")], [7]),
    (pa.float64(), [1, 2.5, Decimal("0.25")], [1.0, 2.5, 0.25]),
    (pa.float64(), [float("inf"), 2**53], [float("inf"), 2.0**53]),
    (
        pa.decimal128(10, 2),
        [1, 0.25, Decimal("1.5")],
        [Decimal("1.00"), Decimal("0.25"), Decimal("1.50")],
    ),
    (pa.date32(), [date(2024, 6, 1), "2024-06-01", datetime(2024, 6, 1)], [date(2024, 6, 1)] * 3),
    (pa.time32("s"), [time(13), "13:00", "13:00:00"], [time(13)] * 3),
    (pa.time64("us"), ["13:00:00.000001"], [time(13, 0, 0, 1)]),
    (pa.duration("s"), [timedelta(minutes=1), 60], [timedelta(minutes=1)] * 2),
    (pa.list_(pa.int64()), [[1, 2.0], (3,), np.array([4])], [[1, 2], [3], [4]]),
    (pa.struct([("a", pa.int64())]), [{"a": 1.0}, {}], [{"a": 1}, {"a": None}]),
    (pa.timestamp("us"), [NOON, "2024-06-01T12:00:00Z", NOON_NS], [NOON] * 3),
    (pa.timestamp("us"), ["2024-06-01 14:00:00+02:00", "2024-06-01 12:00"], [NOON] * 2),
    (pa.timestamp("us", "UTC"), [NOON, "2024-06-01T12:00:00"], [NOON.replace(tzinfo=UTC)] * 2),
    (pa.timestamp("ns"), [pd.Timestamp(NOON_NS), np.datetime64(NOON)], [pd.Timestamp(NOON_NS)] * 2),
    (pa.timestamp("us"), [pd.NaT, np.datetime64("NaT"), None], [None] * 3),
    (pa.list_(pa.timestamp("us")), [["2024-06-01T12:00:00Z", NOON, NOON_NS]], [[NOON] * 3]),
    (pa.string(), ["", "x", None], ["", "x", None]),
    (pa.binary(), [b"x", bytearray(b"y"), None], [b"x", b"y", None]),
    (pa.float32(), [0.5, 2**24, Decimal("0.25")], [0.5, 2.0**24, 0.25]),
    (pa.float16(), [2048, 65504], [2048.0, 65504.0]),
    (pa.int64(), [Decimal(2**60), 2.0**52], [2**60, 2**52]),
    (pa.duration("us"), [pd.Timedelta("1us"), np.timedelta64(2, "s")], [US, 2_000_000 * US]),
    (pa.duration("us"), [np.timedelta64(3_000, "ns"), pd.NaT], [3 * US, None]),
    (pa.duration("s"), [np.timedelta64(1, "W"), np.timedelta64("NaT")], [timedelta(7), None]),
]


@pytest.mark.parametrize(("kind", "values", "stored"), EXACT)
def test_a_value_that_a_column_holds_is_stored_as_it_is(kind, values, stored):
    assert taken(values, kind).to_pylist() == stored


REFUSED = [
    (pa.int64(), 2.7),
    (pa.int64(), True),
    (pa.int64(), "2"),
    (pa.int64(), Decimal("1.5")),
    (pa.int64(), float("nan")),
    (pa.int64(), 2**63),
    (pa.int8(), 128),
    (pa.uint8(), -1),
    (pa.float64(), 2**53 + 1),
    (pa.float64(), "0.5"),
    (pa.float32(), 1e39),
    (pa.bool_(), 1),
    (pa.string(), 5),
    (pa.string(), b"\xff"),
    (pa.decimal128(10, 2), Decimal("0.123")),
    (pa.date32(), datetime(2024, 6, 1, 5)),
    (pa.date32(), 19_000),
    (pa.date32(), "2024-6-1"),
    (pa.time32("s"), time(13, 0, 0, 1)),
    (pa.time64("us"), "13:00:00.0000001"),
    (pa.time64("us"), time(13, tzinfo=UTC)),
    (pa.duration("s"), timedelta(milliseconds=1)),
    (pa.list_(pa.int64()), [1, 2.7]),
    (pa.list_(pa.string()), "abc"),
    (pa.struct([("a", pa.int64())]), {"a": 2.7}),
    (pa.struct([("a", pa.int64())]), {"a": 1, "b": 2}),
    (pa.struct([("t", pa.timestamp("us"))]), {"t": 1_717_243_200}),
    (pa.timestamp("us"), 1_717_243_200),
    (pa.timestamp("us"), NOON_NS // 1_000),
    (pa.timestamp("us"), NOON_NS + 1),
    (pa.timestamp("us"), 1_717_243_200.5),
    (pa.timestamp("us"), True),
    (pa.timestamp("us"), "noon"),
    (pa.timestamp("us"), pd.Timestamp(NOON_NS + 1)),
    (pa.timestamp("us"), np.datetime64(NOON_NS + 1, "ns")),
    (pa.timestamp("s"), datetime(2024, 6, 1, 12, 0, 0, 1)),
    (pa.timestamp("us"), "0000-06-01"),
    (pa.timestamp("us"), "0001-01-01T00:00:00+02:00"),
    (pa.timestamp("us", "UTC"), "9999-12-31T23:59:59-05:00"),
    (pa.float64(), Decimal(2**53 + 1)),
    (pa.float64(), np.longdouble(0.5)),
    (pa.float32(), 2**24 + 1),
    (pa.float32(), Decimal(2**24 + 1)),
    (pa.float16(), 2049),
    (pa.float16(), 70_000),
    (pa.list_(pa.float16()), [70_000]),
    (pa.int64(), 2.0**53),
    (pa.decimal128(10, 2), "1_0"),
    (pa.string(), b"x"),
    (pa.list_(pa.string()), [b"x"]),
    (pa.binary(), "ff"),
    (pa.binary(2), "ff"),
    (pa.map_(pa.string(), pa.binary()), {"a": "ff"}),
    (pa.duration("us"), pd.Timedelta("1ns")),
    (pa.duration("us"), np.timedelta64(5, "ns")),
    (pa.duration("ns"), np.timedelta64(1, "M")),
    (pa.duration("s"), np.timedelta64(1_500, "ms")),
]


@pytest.mark.parametrize(("kind", "value"), REFUSED)
def test_a_value_that_would_change_is_refused_by_column_row_and_value(kind, value):
    with pytest.raises(Invalid) as raised:
        taken([None, value], kind)
    facts = raised.value.facts
    assert (facts["column"], facts["row"], facts["value"]) == ("v", 1, repr(value)[:80])
    assert facts["why"]
    assert raised.value.hint


def test_a_bare_number_that_is_likely_to_count_seconds_says_the_way_out():
    with pytest.raises(Invalid) as raised:
        taken([1_717_243_200], pa.timestamp("us"))
    assert "nanoseconds since 1970" in raised.value.facts["why"]
    assert "1000000000" in raised.value.facts["why"]


def test_a_boolean_among_doubles_is_refused_as_it_is_alone():
    with pytest.raises(Invalid) as raised:
        taken([1.5, True], pa.float64())
    assert raised.value.facts["row"] == 1


@pytest.mark.parametrize(
    ("values", "row"),
    [
        ([1, "x"], 1),
        ([b"x", "y"], 1),
        ([["x", b"y"]], 0),
        ([{"a": b"x"}, {"a": "y"}], 1),
        ([1.5, True], 1),
        ([[1.5, True]], 0),
        ([1, 2, 3, 4, "x", 6, b"y"], 4),
        ([date(2024, 6, 1), datetime(2024, 6, 1, 5)], 1),
        ([2**60 + 1, 0.5], 1),
        ([pd.Timestamp(NOON_NS + 1)], 0),
        ([pd.Timedelta("1ns")], 0),
        ([[pd.Timedelta("1ns")]], 0),
        ([2**64], 0),
    ],
)
def test_values_of_a_new_column_that_have_no_common_type_are_refused(values, row):
    with pytest.raises(Invalid) as raised:
        taken(values)
    facts = raised.value.facts
    assert (facts["column"], facts["row"]) == ("v", row)
    assert facts["value"] == repr(values[row])[:80]


def test_nulls_of_pandas_are_null_in_a_new_column():
    assert taken([pd.NA, 1]).to_pylist() == [None, 1]
    assert taken([pd.NaT, NOON]).to_pylist() == [None, NOON]


NESTED = pa.struct([("b", pa.list_(pa.binary())), ("f", pa.map_(pa.string(), pa.float64()))])


def test_json_writes_bytes_as_hexadecimal_and_nan_as_text_inside_of_columns_too():
    found = from_json("v", [{"b": ["00ff"], "f": {"a": "Infinity"}}, None], NESTED, spec_in())
    assert found.to_pylist() == [{"b": [b"\x00\xff"], "f": [("a", float("inf"))]}, None]


@pytest.mark.parametrize("value", [{"b": ["xyz"]}, {"f": {"a": "much"}}])
def test_a_text_of_json_that_is_no_such_value_is_refused_by_row_and_value(value):
    with pytest.raises(Invalid) as raised:
        from_json("v", [None, value], NESTED, spec_in())
    facts = raised.value.facts
    assert (facts["column"], facts["row"], facts["value"]) == ("v", 1, repr(value))


def test_bytes_are_hexadecimal_in_csv():
    texts = pa.array(["00ff", ""])
    assert column_from_texts("v", texts, pa.binary(), spec_in()).to_pylist() == [b"\x00\xff", None]
    with pytest.raises(Invalid):
        column_from_texts("v", pa.array(["x"]), pa.binary(), spec_in())


@pytest.mark.parametrize("value", [NOON, "2024-06-01T12:00:00", "2024-06-01 12:00"])
def test_a_time_without_a_zone_is_a_clock_time_of_the_tables_zone(value):
    known = taken([value], pa.timestamp("us", "UTC"), zone="Europe/Berlin", name="ts")
    first = taken([value], zone="Europe/Berlin", name="ts")
    assert known.to_pylist() == first.to_pylist() == [datetime(2024, 6, 1, 10, tzinfo=UTC)]


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
@pytest.mark.parametrize(
    "value", [NOON.replace(tzinfo=UTC), "2024-06-01T12:00:00Z", "2024-06-01 14:00+02:00", NOON_NS]
)
def test_a_time_that_says_its_instant_is_that_instant_in_every_table(value, zone):
    first = taken([value], zone=zone, name="ts").to_pylist()
    assert first == [NOON.replace(tzinfo=UTC)]
    kind = pa.timestamp("us", "UTC" if zone else None)
    known = taken([value], kind, zone=zone, name="ts").cast(pa.int64())
    assert known.to_pylist() == [NOON_NS // 1_000]


def test_times_with_and_without_a_zone_are_taken_in_one_write():
    values = [NOON, NOON.replace(tzinfo=PLUS_TWO), "2024-06-01T12:00:00Z", date(2024, 6, 1)]
    found = taken(values, pa.timestamp("us"), name="ts").to_pylist()
    assert found == [NOON, datetime(2024, 6, 1, 10), NOON, datetime(2024, 6, 1)]


@pytest.mark.parametrize("value", ["2024-03-31T02:30", datetime(2024, 10, 27, 2, 30)])
def test_a_clock_time_that_names_no_one_instant_is_refused(value):
    with pytest.raises(Invalid):
        taken([value], pa.timestamp("us", "UTC"), zone="Europe/Berlin", name="ts")


@pytest.mark.parametrize("kind", [None, pa.int64(), pa.string(), pa.list_(pa.int64())])
def test_a_list_that_holds_itself_is_refused_and_ends_nothing(kind):
    endless = []
    endless.append(endless)
    with pytest.raises(Invalid) as raised:
        taken([endless], kind)
    assert raised.value.facts["column"] == "v"


@pytest.mark.parametrize(
    "value", [float("nan"), {"a": [1, float("inf")]}, (float("-inf"),), np.float64("nan")]
)
def test_a_number_that_json_cannot_write_is_refused_and_never_stored_as_null(value):
    with pytest.raises(Invalid, match="JSON has no") as caught:
        taken([{"a": 1}, value], pa.json_())
    assert caught.value.facts["row"] == 1


JSON_TEXTS = [
    pa.array(['{"a": 1}', None, "[1"]),
    pa.array([['{"a": 1}'], None, ["", "2"]]),
    pa.array([{"a": "1"}, {"a": "[1"}]),
    pa.array([[("k", "1")], [("k", "nul")]], pa.map_(pa.string(), pa.string())),
]


@pytest.mark.parametrize("texts", JSON_TEXTS, ids=lambda one: str(one.type))
def test_a_text_in_a_column_of_json_that_is_not_json_is_refused(texts):
    kind = {
        "string": pa.json_(),
        "list<item: string>": pa.list_(pa.json_()),
        "struct<a: string>": pa.struct([("a", pa.json_())]),
    }.get(str(texts.type), pa.map_(pa.string(), pa.json_()))
    column = pa.ExtensionArray.from_storage(kind, texts) if kind == pa.json_() else texts.cast(kind)
    schema = create_schema(pa.schema({"ts": pa.timestamp("us"), "v": kind}), "ts")
    whole = pa.table({"ts": pa.array([NOON] * len(texts)), "v": column}, schema=schema.arrow)
    with pytest.raises(Invalid) as caught:
        fit_rows(whole, schema, spec_in())
    assert caught.value.facts["column"] == "v"
    assert fit_rows(whole.slice(0, 1), schema, spec_in()).num_rows == 1


@pytest.mark.parametrize("wrap", ["map", "list", "struct", "map in a map"])
def test_a_map_with_a_key_twice_is_refused_because_sql_could_not_read_it(wrap):
    kind = pa.map_(pa.string(), pa.int64())
    good, bad = [("a", 1), ("b", 1)], [("a", 1), ("a", 2)]
    if wrap == "list":
        kind, good, bad = pa.list_(kind), [good, good], [good, bad]
    elif wrap == "struct":
        kind, good, bad = pa.struct([("x", kind)]), {"x": good}, {"x": bad}
    elif wrap == "map in a map":
        kind, good, bad = pa.map_(pa.string(), kind), [("x", good)], [("x", good), ("y", bad)]
    assert len(taken([good, None, good], kind)) == 3
    with pytest.raises(Invalid, match="key twice") as caught:
        taken([good, None, bad], kind)
    assert caught.value.facts["column"] == "v"


def test_nanoseconds_are_not_cut_off_from_a_date():
    midnight = pd.Timestamp("2024-06-01")
    assert taken([midnight], pa.date32()).to_pylist() == [date(2024, 6, 1)]
    with pytest.raises(Invalid, match="does not fit"):
        taken([midnight + pd.Timedelta(1, "ns")], pa.date32())
