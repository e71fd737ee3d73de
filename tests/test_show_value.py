"""Arrow values as JSON and as text."""

import json
from datetime import date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thermocline.format.instant import NS_PER_UNIT, TIME_MAX, TIME_MIN, format_instant
from thermocline.show.value import as_json, duration_text, json_values, text_values

NOON = datetime(2024, 6, 1, 12)


@pytest.mark.parametrize(
    ("array", "shown"),
    [
        (pa.array([True, None]), ["true", None]),
        (pa.array([-5, None], pa.int8()), ["-5", None]),
        (pa.array([1 << 63], pa.uint64()), ["9223372036854775808"]),
        (pa.array([1.0, 1e300, None]), ["1.0", "1e+300", None]),
        (pa.array([float("nan"), float("-inf")]), ["NaN", "-Infinity"]),
        (pa.array([0.1], pa.float32()), ["0.1"]),
        (pa.array([Decimal("1.50")]), ["1.50"]),
        (pa.array([Decimal(10**37)], pa.decimal128(38, 0)), [str(10**37)]),
        (pa.array(["", "x"]), ["", "x"]),
        (pa.array(["x"], pa.large_string()), ["x"]),
        (pa.array(["x"], pa.string_view()), ["x"]),
        (pa.array(["x", None]).dictionary_encode(), ["x", None]),
        (pa.array([b"\x00\xff"]), ["00ff"]),
        (pa.array([date(2024, 6, 1)]), ["2024-06-01"]),
        (pa.array([NOON.time()], pa.time64("us")), ["12:00:00"]),
        (pa.array([NOON], pa.timestamp("s")), ["2024-06-01T12:00:00"]),
        (pa.array([NOON], pa.timestamp("ms", tz="UTC")), ["2024-06-01T12:00:00Z"]),
        (pa.array([NOON], pa.timestamp("us", tz="Europe/Berlin")), ["2024-06-01T12:00:00Z"]),
        (pa.array([1], pa.timestamp("ns")), ["1970-01-01T00:00:00.000000001"]),
        (pa.array([2**62], pa.timestamp("us")), ["infinity"]),
        (pa.array([timedelta(minutes=1, milliseconds=5)]), ["PT60.005S"]),
        (pa.array([(1, 2, 0)], pa.month_day_nano_interval()), ["P1M2D"]),
        (pa.array([[1, None], None]), ["[1,null]", None]),
        (pa.array([{"a": NOON}]), ['{"a":"2024-06-01T12:00:00"}']),
        (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int8())), ['{"k":1}']),
        (pa.nulls(1), [None]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_every_type_has_one_text(array, shown):
    assert text_values(array) == shown


def test_json_keeps_every_digit_of_a_decimal():
    exact = "12345678901234567890.123456789"
    array = pa.array([Decimal(exact), Decimal("0.10"), None])
    found = as_json(json_values(array)).decode()
    assert json.loads(found, parse_float=str) == [exact, "0.100000000", None]


def test_json_keeps_every_digit_of_a_large_number():
    array = pa.array([Decimal(2**100), Decimal(7)], pa.decimal128(38, 0))
    assert json.loads(as_json(json_values(array))) == [2**100, 7]


def test_json_has_no_bare_nan():
    assert json.loads(as_json(json_values(pa.array([[float("nan")], [float("inf")]])))) == [
        ["NaN"],
        ["Infinity"],
    ]


@given(st.lists(st.none() | st.integers(TIME_MIN, TIME_MAX), max_size=5), st.sampled_from("sun"))
def test_a_column_of_times_is_written_as_each_of_them_is(instants, letter):
    unit = {"s": "s", "u": "us", "n": "ns"}[letter]
    each = NS_PER_UNIT[unit]
    numbers = [None if n is None else n // each for n in instants]
    if unit == "ns":
        numbers = [None if n is None else max(-(2**63), min(n, 2**63 - 1)) for n in numbers]
    array = pa.array(numbers, pa.int64()).cast(pa.timestamp(unit, tz="UTC"))
    assert json_values(array) == [None if n is None else format_instant(n * each) for n in numbers]


def test_a_duration_of_nothing_is_written():
    assert duration_text(0, 0, 0) == "PT0S"
    assert duration_text(0, -1, -1_500_000_000) == "P-1DT-1.5S"
