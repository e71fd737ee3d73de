"""Buckets: half-open, in UTC, one for each instant, at every edge and before 1970."""

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from format.made import instants
from thermocline.errors import Invalid
from thermocline.format.bucket import Bucket, parse_bucket, parse_duration_s
from thermocline.format.coverage import Buckets
from thermocline.format.instant import (
    NS_PER_S,
    NS_PER_UNIT,
    TIME_MAX,
    TIME_MIN,
    format_instant,
    from_datetime,
    parse_instant,
    to_datetime,
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


@pytest.mark.parametrize("width", ["0s", "0mo", "99999d", "1201mo", "1201w"])
def test_a_width_under_a_second_or_of_too_many_years_is_refused(width):
    with pytest.raises(Invalid, match="bucket width is out of range"):
        parse_bucket(width)


@pytest.mark.parametrize(
    ("words", "same"),
    [
        (("15min", "15 minutes", "15MIN", "900s", timedelta(minutes=15)), "15m"),
        (("2hours", "2 hr", "2H", "120m", timedelta(hours=2)), "2h"),
        (("6H", "6 hours"), "6h"),
        (("3 days", "3D", "72h"), "3d"),
        (("1w", "1 week", "1Week"), "1w"),
        (("1mo", "1month", "1 months"), "1mo"),
        (("1 quarter", "3months"), "3mo"),
        (("1y", "12 months"), "12mo"),
        (("90s", "90 sec", "90seconds"), "90s"),
    ],
)
def test_the_words_that_people_write_mean_one_width(words, same):
    assert {str(parse_bucket(word)) for word in words} == {same}


def test_seven_days_and_a_week_are_other_buckets():
    assert parse_bucket("7d") != parse_bucket("1w")
    assert parse_bucket("7d").code != parse_bucket("1w").code
    assert parse_bucket("7d").width_s == parse_bucket("1w").width_s


@pytest.mark.parametrize("text", ["1M", "15 M"])
def test_a_letter_that_may_mean_minutes_or_months_is_refused(text):
    with pytest.raises(Invalid, match="minutes or months"):
        parse_bucket(text)


def test_a_month_is_no_duration():
    with pytest.raises(Invalid, match="no fixed length"):
        parse_duration_s("1mo")


calendar = st.builds(
    Bucket, st.sampled_from([1, 2, 3, 4, 6, 12, 13]), st.sampled_from(["week", "month"])
)


@given(calendar, instants)
def test_a_calendar_bucket_is_that_of_the_calendar(bucket, instant):
    moment = to_datetime(instant)
    if bucket.unit == "month":
        number = (moment.year * 12 + moment.month - 1 - 1970 * 12) // bucket.count
    else:
        number = (moment.date().toordinal() - date(1969, 12, 29).toordinal()) // 7 // bucket.count
    assert bucket.number_of(instant) == number
    assert bucket.start(number) <= instant < bucket.start(number + 1)
    assert bucket.starts_s(np.array([number])).tolist() == [bucket.start(number) // NS_PER_S]


@given(calendar, instants, st.sampled_from(["s", "ms", "us", "ns"]))
def test_columns_fall_into_the_calendar_buckets_of_their_instants(bucket, instant, unit):
    count = instant // NS_PER_UNIT[unit]
    if not -(2**63) <= count < 2**63:
        count = count % 2**62
    found = bucket.numbers_of(np.array([count], dtype=np.int64), unit)
    assert found.tolist() == [bucket.number_of(count * NS_PER_UNIT[unit])]


def test_a_week_begins_on_monday():
    start = parse_bucket("1w").start(parse_bucket("1w").number_of(parse_instant("2024-06-06")))
    assert format_instant(start) == "2024-06-03T00:00:00Z"


steps = st.one_of(
    st.sampled_from([3, 10, 1_000, 2**32, 2**63, 2**64 - 1]), st.integers(3, 2**64 - 1)
)
integers = st.sampled_from(["int64", "uint64"]).flatmap(
    lambda kind: st.tuples(
        steps.map(lambda count: Bucket(count, kind)),
        st.integers(-(2**63), 2**63 - 1) if kind == "int64" else st.integers(0, 2**64 - 1),
        st.just(np.int64 if kind == "int64" else np.uint64),
    )
)


@given(integers)
def test_every_whole_number_is_in_the_bucket_of_its_step(given_one):
    bucket, value, kind = given_one
    bucket.check_position(value)
    number = bucket.number_of(value)
    assert bucket.start(number) == value // bucket.count * bucket.count
    assert bucket.start(number + 1) == bucket.start(number) + bucket.count
    assert bucket.numbers_of(np.array([value], dtype=kind), "position").tolist() == [number]
    held = Buckets.from_numbers(np.array([number], dtype=np.int64))
    assert (held.first(), held.last(), number in held) == (number, number, True)


@pytest.mark.parametrize(
    ("bucket", "value"),
    [
        (Bucket(1, "int64"), 2**62),
        (Bucket(1, "int64"), -(2**62) - 1),
        (Bucket(1, "uint64"), 2**63),
        (Bucket(10, "uint64"), -1),
        (Bucket(10, "int64"), 2**63),
    ],
)
def test_a_whole_number_that_no_bucket_can_count_is_refused(bucket, value):
    with pytest.raises(Invalid):
        bucket.check_position(value)


@pytest.mark.parametrize("width", [0, -1, 2**64, True, 1.5, "1h", None])
def test_the_bucket_of_an_integer_index_is_a_whole_number_of_steps(width):
    with pytest.raises(Invalid):
        parse_bucket(width, index_type="int64")


@pytest.mark.parametrize(
    "text", ["", "1", "h", "1.5h", "-1h", "1 fortnight", "1ms", "1h1m", "99999999999s", "\u0661h"]
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
