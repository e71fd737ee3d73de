"""Buckets: half-open, in UTC, one for each instant, at every edge and before 1970."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from format.made import instants
from thermocline.errors import Invalid
from thermocline.format.bucket import Bucket, parse_bucket, parse_duration_s
from thermocline.format.instant import (
    NS_PER_S,
    NS_PER_UNIT,
    TIME_MAX,
    TIME_MIN,
    format_instant,
    from_datetime,
    parse_instant,
)

widths = st.one_of(st.sampled_from([1, 60, 900, 3_600, 86_400]), st.integers(1, 86_400)).map(Bucket)


@given(widths, instants)
def test_every_instant_is_in_exactly_one_bucket(bucket, instant):
    number = bucket.number_of(instant)
    assert bucket.start(number) <= instant < bucket.start(number + 1)


@given(widths, st.integers(-(10**9), 10**9))
def test_a_bucket_begins_at_its_edge_and_ends_before_the_next(bucket, number):
    edge = bucket.start(number)
    assert bucket.number_of(edge) == number
    assert bucket.number_of(edge - 1) == number - 1
    assert bucket.number_of(edge + bucket.width_s * NS_PER_S - 1) == number


@pytest.mark.parametrize(
    ("width", "text", "start"),
    [
        ("1h", "2024-06-01T00:00:00Z", "2024-06-01T00:00:00Z"),
        ("1h", "2024-06-01T00:59:59.999999999Z", "2024-06-01T00:00:00Z"),
        ("1h", "1969-12-31T23:59:59.999999999Z", "1969-12-31T23:00:00Z"),
        ("1s", "1969-12-31T23:59:59.999999999Z", "1969-12-31T23:59:59Z"),
        ("1d", "0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z"),
        ("1d", "9999-12-31T23:59:59.999999999Z", "9999-12-31T00:00:00Z"),
        ("15m", "2016-12-31T23:59:59.999Z", "2016-12-31T23:45:00Z"),
        ("7s", "1970-01-01T00:00:06.999999999Z", "1970-01-01T00:00:00Z"),
    ],
)
def test_an_instant_falls_into_the_bucket_that_starts_at(width, text, start):
    bucket = parse_bucket(width)
    assert format_instant(bucket.start(bucket.number_of(parse_instant(text)))) == start


@given(widths, instants, st.sampled_from(["s", "ms", "us", "ns"]))
def test_columns_of_any_unit_fall_into_the_buckets_of_their_instants(bucket, instant, unit):
    count = instant // NS_PER_UNIT[unit]
    if not -(2**63) <= count < 2**63:
        count = count % 2**62
    found = bucket.numbers_of(np.array([count], dtype=np.int64), unit)
    assert found.tolist() == [bucket.number_of(count * NS_PER_UNIT[unit])]


@pytest.mark.parametrize("day", ["2024-03-31", "2024-10-27"])
def test_hours_do_not_stumble_over_daylight_saving(day):
    berlin, bucket = ZoneInfo("Europe/Berlin"), Bucket(3_600)
    midnight = datetime.fromisoformat(day).replace(tzinfo=berlin).astimezone(UTC)
    local = [(midnight + timedelta(hours=hour)).astimezone(berlin) for hour in range(26)]
    numbers = [bucket.number_of(from_datetime(moment)) for moment in local]
    assert numbers == list(range(numbers[0], numbers[0] + 26))
    clock_times = {moment.strftime("%d %H") for moment in local}
    assert len(clock_times) == (26 if day == "2024-03-31" else 25)


@given(widths, instants, instants)
def test_a_span_is_exactly_the_buckets_that_the_stretch_touches(bucket, one, other):
    start, end = min(one, other), max(one, other) + 1
    first, after = bucket.span(start, end)
    assert bucket.start(first) <= start < bucket.start(first + 1)
    assert bucket.start(after - 1) <= end - 1 < bucket.start(after)


@pytest.mark.parametrize(("start", "end"), [(0, 0), (5, 4), (TIME_MAX, TIME_MIN)])
def test_a_span_that_ends_before_it_starts_is_refused(start, end):
    with pytest.raises(Invalid) as caught:
        Bucket(60).span(start, end)
    assert caught.value.facts == {"start": start, "end": end}


def test_an_end_on_an_edge_does_not_touch_the_next_bucket():
    bucket = Bucket(60)
    assert bucket.span(0, 60 * NS_PER_S) == (0, 1)
    assert bucket.span(0, 60 * NS_PER_S + 1) == (0, 2)
    assert bucket.span(-1, 0) == (-1, 0)


@given(widths)
def test_a_width_is_written_and_read_back(bucket):
    assert parse_bucket(str(bucket)) == bucket


@pytest.mark.parametrize(
    ("text", "shortest"),
    [("60s", "1m"), ("3600s", "1h"), ("24h", "1d"), ("90m", "90m"), ("7s", "7s")],
)
def test_a_width_is_written_as_short_as_it_can_be(text, shortest):
    assert str(parse_bucket(text)) == shortest


@pytest.mark.parametrize("text", ["0s", "2d", "1w", "86401s", "25h"])
def test_a_width_under_a_second_or_over_a_day_is_refused(text):
    with pytest.raises(Invalid, match="bucket width is out of range"):
        parse_bucket(text)


@pytest.mark.parametrize(
    "text", ["", "1", "h", "1.5h", "-1h", "1 hour", "1H", "1ms", "1h1m", "9999999s", "\u0661h"]
)
def test_what_is_not_a_duration_is_refused(text):
    with pytest.raises(Invalid, match="the duration cannot be read"):
        parse_duration_s(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), (" 15 m ", 900), ("6h", 21_600), ("90d", 7_776_000), ("2w", 1_209_600)],
)
def test_durations_are_whole_seconds(text, seconds):
    assert parse_duration_s(text) == seconds
