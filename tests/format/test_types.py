"""Types: every one a table can hold reads back, and `holds` never promises too much."""

import math
from datetime import date, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from format.made import arrow_types
from thermocline.errors import Corruption, Invalid
from thermocline.format.types import (
    NESTING_MAX,
    decode_type,
    encode_type,
    holds,
    is_alike,
    is_finer_timestamp,
    plain_type,
)

WRITTEN = [
    (pa.int8(), "int8"),
    (pa.uint64(), "uint64"),
    (pa.float16(), "float16"),
    (pa.string_view(), "string_view"),
    (pa.date64(), "date64"),
    (pa.timestamp("ns"), "timestamp[ns]"),
    (pa.timestamp("us", tz="Europe/Berlin"), "timestamp[us, tz=Europe/Berlin]"),
    (pa.time32("ms"), "time32[ms]"),
    (pa.time64("ns"), "time64[ns]"),
    (pa.duration("s"), "duration[s]"),
    (pa.decimal32(5, 2), "decimal32(5, 2)"),
    (pa.decimal128(38, -3), "decimal128(38, -3)"),
    (pa.binary(16), "fixed_binary[16]"),
    (
        pa.dictionary(pa.int8(), pa.string(), ordered=True),
        {"dictionary": "string", "index": "int8", "ordered": True},
    ),
    (
        pa.list_(pa.field("item", pa.int8(), nullable=False)),
        {"list": {"name": "item", "type": "int8", "nullable": False}},
    ),
    (
        pa.list_(pa.int8(), 3),
        {"fixed_list": {"name": "item", "type": "int8", "nullable": True}, "size": 3},
    ),
    (
        pa.map_(pa.string(), pa.bool_()),
        {
            "map": [
                {"name": "key", "type": "string", "nullable": False},
                {"name": "value", "type": "bool", "nullable": True},
            ],
            "sorted": False,
        },
    ),
    (
        pa.struct([("a", pa.null())]),
        {"struct": [{"name": "a", "type": "null", "nullable": True}]},
    ),
]


@pytest.mark.parametrize(("kind", "json"), WRITTEN, ids=lambda value: str(value)[:30])
def test_a_type_has_the_written_form_that_the_format_names(kind, json):
    assert encode_type(kind) == json
    assert decode_type(json) == kind


@given(arrow_types)
def test_every_type_reads_back_as_itself(kind):
    assert decode_type(encode_type(kind)).equals(kind)


@pytest.mark.parametrize(
    "kind",
    [
        pa.struct([]),
        pa.sparse_union([pa.field("a", pa.int8())]),
        pa.run_end_encoded(pa.int32(), pa.string()),
        pa.list_view(pa.int8()),
        pa.month_day_nano_interval(),
        pa.list_(pa.struct([])),
        pa.bool8(),
    ],
    ids=str,
)
def test_a_type_that_a_table_cannot_hold_is_refused_before_it_is_written(kind):
    with pytest.raises(Invalid) as caught:
        encode_type(kind)
    assert caught.value.hint


def _nested(levels):
    kind, json = pa.int8(), "int8"
    for _ in range(levels):
        kind = pa.list_(kind)
        json = {"list": {"name": "item", "type": json, "nullable": True}}
    return kind, json


def test_the_limit_of_nesting_is_the_same_for_writer_and_reader():
    kind, json = _nested(NESTING_MAX)
    assert encode_type(kind) == json
    assert decode_type(json) == kind
    kind, json = _nested(NESTING_MAX + 1)
    with pytest.raises(Invalid):
        encode_type(kind)
    with pytest.raises(Corruption):
        decode_type(json)


NOT_TYPES = [
    "",
    "int7",
    "int128",
    "Int8",
    "timestamp[m]",
    "time32[us]",
    "time64[s]",
    "decimal128(39, 0)",
    "decimal128(0, 0)",
    "fixed_binary[-1]",
    "list",
    {},
    {"lists": "int8"},
    {"list": "int8"},
    {"list": {"name": "item", "type": "int8"}},
    {"fixed_list": {"name": "item", "type": "int8", "nullable": True}},
    {"map": [{"name": "k", "type": "string", "nullable": False}], "sorted": False},
    {"map": [], "sorted": True},
    {"struct": {"name": "a"}},
    {"dictionary": "string", "index": "float32", "ordered": False},
    {"dictionary": "string", "index": "int8"},
    None,
    7,
    ["int8"],
]


@pytest.mark.parametrize("json", NOT_TYPES, ids=str)
def test_json_that_is_no_type_is_corruption(json):
    with pytest.raises(Corruption):
        decode_type(json)


TYPE_KEYS = [
    *("list", "large_list", "fixed_list", "struct", "map", "dictionary"),
    *("name", "type", "nullable", "size", "index", "ordered", "sorted"),
]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 200) | st.text(max_size=5) | st.just("int8"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(TYPE_KEYS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(json_values)
def test_any_json_is_a_type_or_corruption_and_nothing_else(json):
    try:
        kind = decode_type(json)
    except Corruption:
        return
    assert isinstance(kind, pa.DataType)


ALIKE = [
    (pa.string(), pa.large_string()),
    (pa.string(), pa.string_view()),
    (pa.string(), pa.dictionary(pa.int8(), pa.large_string())),
    (pa.binary(), pa.binary_view()),
    (pa.decimal32(5, 2), pa.decimal256(5, 2)),
    (pa.timestamp("us", tz="UTC"), pa.timestamp("us", tz="Asia/Tokyo")),
    (pa.list_(pa.string()), pa.large_list(pa.field("element", pa.string_view()))),
    (pa.struct([("a", pa.string())]), pa.struct([("a", pa.large_string())])),
    (pa.map_(pa.string(), pa.string()), pa.map_(pa.large_string(), pa.string(), keys_sorted=True)),
]
NOT_ALIKE = [
    (pa.int32(), pa.int64()),
    (pa.string(), pa.binary()),
    (pa.binary(), pa.binary(4)),
    (pa.timestamp("us"), pa.timestamp("us", tz="UTC")),
    (pa.timestamp("us"), pa.timestamp("ms")),
    (pa.decimal128(5, 2), pa.decimal128(5, 3)),
    (pa.list_(pa.int8()), pa.list_(pa.int8(), 3)),
    (pa.list_(pa.int8(), 2), pa.list_(pa.int8(), 3)),
    (pa.list_(pa.int8()), pa.list_(pa.field("item", pa.int8(), nullable=False))),
    (pa.struct([("a", pa.int8())]), pa.struct([("b", pa.int8())])),
    (pa.struct([("a", pa.int8())]), pa.struct([pa.field("a", pa.int8(), nullable=False)])),
]


@pytest.mark.parametrize(("one", "other"), ALIKE, ids=str)
def test_types_that_differ_only_in_packing_are_alike(one, other):
    assert is_alike(one, other)
    assert is_alike(other, one)
    assert holds(one, other)
    assert holds(other, one)


@pytest.mark.parametrize(("one", "other"), NOT_ALIKE, ids=str)
def test_types_whose_values_differ_are_not_alike(one, other):
    assert not is_alike(one, other)
    assert not is_alike(other, one)


@given(arrow_types)
def test_the_plain_type_of_a_plain_type_is_itself(kind):
    assert plain_type(plain_type(kind)).equals(plain_type(kind))
    assert is_alike(kind, plain_type(kind))


def test_a_dictionary_of_nulls_may_stand_where_no_null_is_allowed():
    odd = pa.struct([pa.field("a", pa.dictionary(pa.int8(), pa.null()), nullable=False)])
    assert plain_type(odd) == pa.struct([("a", pa.null())])


HELD = [
    (pa.int64(), pa.int8()),
    (pa.int16(), pa.uint8()),
    (pa.float64(), pa.int32()),
    (pa.float32(), pa.uint16()),
    (pa.float64(), pa.float16()),
    (pa.decimal128(12, 4), pa.decimal128(8, 2)),
    (pa.date64(), pa.date32()),
    (pa.timestamp("us"), pa.timestamp("s")),
    (pa.time64("ns"), pa.time32("ms")),
    (pa.string(), pa.null()),
    (pa.struct([("a", pa.int8())]), pa.null()),
    (pa.list_(pa.int8()), pa.list_(pa.int8(), 3)),
    (pa.list_(pa.int8()), pa.list_(pa.field("item", pa.int8(), nullable=False))),
    (
        pa.list_(pa.struct([("a", pa.int8())])),
        pa.list_(pa.struct([pa.field("a", pa.int8(), nullable=False)])),
    ),
    (
        pa.map_(pa.string(), pa.int8()),
        pa.map_(pa.string(), pa.field("value", pa.int8(), nullable=False)),
    ),
]
NOT_HELD = [
    (pa.int8(), pa.int16()),
    (pa.uint64(), pa.int8()),
    (pa.int8(), pa.uint8()),
    (pa.int64(), pa.uint64()),
    (pa.float32(), pa.int32()),
    (pa.float64(), pa.int64()),
    (pa.int64(), pa.float32()),
    (pa.float32(), pa.float64()),
    (pa.decimal128(8, 4), pa.decimal128(8, 2)),
    (pa.date32(), pa.date64()),
    (pa.timestamp("ns"), pa.timestamp("us")),
    (pa.timestamp("s"), pa.timestamp("us")),
    (pa.timestamp("us", tz="UTC"), pa.timestamp("us")),
    (pa.time32("s"), pa.time32("ms")),
    (pa.null(), pa.int8()),
    (pa.string(), pa.int8()),
    (pa.string(), pa.binary()),
    (pa.bool_(), pa.int8()),
    (pa.list_(pa.int8(), 3), pa.list_(pa.int8())),
    (pa.list_(pa.int8(), 3), pa.list_(pa.int8(), 2)),
    (pa.list_(pa.int16()), pa.list_(pa.int8())),
    (pa.struct([pa.field("a", pa.int8(), nullable=False)]), pa.struct([("a", pa.int8())])),
    (pa.struct([("a", pa.int8())]), pa.struct([("a", pa.int8()), ("b", pa.int8())])),
    (pa.map_(pa.large_binary(), pa.int8()), pa.map_(pa.string(), pa.int8())),
    (pa.duration("ms"), pa.duration("s")),
]


@pytest.mark.parametrize(("wide", "narrow"), HELD, ids=str)
def test_a_wider_type_holds_the_narrower_and_not_the_other_way(wide, narrow):
    assert holds(wide, narrow)
    assert not holds(narrow, wide)


@pytest.mark.parametrize(("wide", "narrow"), NOT_HELD, ids=str)
def test_a_type_does_not_hold_what_would_lose_values(wide, narrow):
    assert not holds(wide, narrow)


def test_nanoseconds_are_finer_than_microseconds_though_they_do_not_hold_them():
    assert is_finer_timestamp(pa.timestamp("ns"), pa.timestamp("us"))
    assert not is_finer_timestamp(pa.timestamp("us"), pa.timestamp("ns"))
    assert not is_finer_timestamp(pa.timestamp("ns", tz="UTC"), pa.timestamp("us"))
    assert not is_finer_timestamp(pa.timestamp("ns"), pa.date32())


def _bits(kind):
    return kind.bit_width


def _integers(kind):
    signed = pa.types.is_signed_integer(kind)
    low = -(2 ** (_bits(kind) - 1)) if signed else 0
    high = 2 ** (_bits(kind) - signed) - 1
    return st.integers(low, high) | st.sampled_from([low, high])


def _decimals(kind):
    limit = 10**kind.precision - 1
    return st.integers(-limit, limit).map(lambda digits: Decimal(digits).scaleb(-kind.scale))


def _moments(kind):
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[kind.unit]
    low = max(-62_135_596_800 * per_second, -(2**63))
    high = min(253_402_300_800 * per_second - 1, 2**63 - 1)
    return st.integers(low, high) | st.sampled_from([low, high])


NARROW = {
    **{
        kind: _integers(kind)
        for kind in (getattr(pa, f"{s}int{b}")() for s in ("", "u") for b in (8, 16, 32, 64))
    },
    pa.float16(): st.floats(width=16, allow_nan=False),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    **{
        kind: _decimals(kind)
        for kind in (pa.decimal32(5, 2), pa.decimal64(12, 0), pa.decimal128(20, 6))
    },
    pa.date32(): st.dates(),
    pa.time32("s"): st.integers(0, 86_399),
    pa.time32("ms"): st.integers(0, 86_399_999),
    pa.time64("us"): st.integers(0, 86_399_999_999),
    pa.time64("ns"): st.integers(0, 86_399_999_999_999),
    **{
        kind: _moments(kind)
        for unit in ("s", "ms", "us", "ns")
        for kind in (pa.timestamp(unit), pa.timestamp(unit, tz="UTC"))
    },
    pa.list_(pa.int8(), 2): st.lists(st.integers(-128, 127), min_size=2, max_size=2),
    pa.list_(pa.field("item", pa.string(), nullable=False)): st.lists(st.text(max_size=3)),
    pa.struct([pa.field("a", pa.int8(), nullable=False)]): st.fixed_dictionaries(
        {"a": st.integers(-128, 127)}
    ),
    pa.null(): st.none(),
}
WIDE = [
    *NARROW,
    pa.decimal128(38, 10),
    pa.decimal256(50, 6),
    pa.date64(),
    pa.list_(pa.int8()),
    pa.list_(pa.string()),
    pa.struct([("a", pa.int8())]),
    pa.string(),
    pa.bool_(),
]
PAIRS = [(wide, narrow) for wide in WIDE for narrow in NARROW if holds(wide, narrow)]


@given(st.sampled_from(PAIRS), st.data())
def test_every_value_of_a_held_type_survives_the_way_there_and_back(pair, data):
    wide, narrow = pair
    values = data.draw(st.lists(NARROW[narrow] | st.none(), max_size=5))
    column = pc.cast(pa.array(values, narrow), plain_type(narrow))
    there = pc.cast(column, plain_type(wide))
    there.validate(full=True)
    if pa.types.is_null(narrow):
        assert there.null_count == len(values)
    else:
        assert pc.cast(there, column.type).equals(column)


NUMBERS = [kind for kind in NARROW if pa.types.is_integer(kind) or pa.types.is_floating(kind)]


def _edges(kind):
    if pa.types.is_integer(kind):
        signed = pa.types.is_signed_integer(kind)
        top = 2 ** (_bits(kind) - signed) - 1
        return [-top - 1 if signed else 0, top]
    precision = {16: 11, 32: 24, 64: 53}[_bits(kind)]
    largest = {16: 65_504.0, 32: 3.4028234663852886e38, 64: 1.7976931348623157e308}[_bits(kind)]
    return [largest, 1 + math.ldexp(1.0, 1 - precision)]


def _survives(value, narrow, wide):
    column = pa.array([value], narrow)
    try:
        return pc.cast(pc.cast(column, wide), narrow).equals(column)
    except pa.ArrowException:
        return False


@pytest.mark.parametrize("narrow", NUMBERS, ids=str)
@pytest.mark.parametrize("wide", NUMBERS, ids=str)
def test_a_number_type_holds_another_exactly_when_its_edges_survive(wide, narrow):
    survives = all(_survives(value, narrow, wide) for value in _edges(narrow))
    if holds(wide, narrow):
        assert survives
    # Powers of two are exact in floats far beyond what every whole number is.
    elif not (pa.types.is_integer(narrow) and pa.types.is_floating(wide)):
        assert not survives


@pytest.mark.parametrize("value", [date(1, 1, 1), date(9999, 12, 31)])
def test_dates_of_the_first_and_last_year_widen(value):
    assert pc.cast(pa.array([value], pa.date32()), pa.date64()).to_pylist() == [value]


@pytest.mark.parametrize("value", [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59)])
def test_seconds_of_the_first_and_last_year_are_held_by_microseconds(value):
    assert holds(pa.timestamp("us"), pa.timestamp("s"))
    column = pa.array([value], pa.timestamp("s"))
    assert pc.cast(column, pa.timestamp("us")).to_pylist() == [value]


def test_lists_of_no_elements_are_refused_because_parquet_cannot_be_read_back():
    with pytest.raises(Invalid, match="cannot hold this type"):
        encode_type(pa.list_(pa.int8(), 0))
