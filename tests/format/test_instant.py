"""Instants: whole nanoseconds, one written form, the years 1 to 9999 and nothing else."""

from datetime import UTC, date, datetime, time, timedelta, timezone
from zoneinfo import ZoneInfo

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from format.made import instants
from thermocline.errors import Invalid
from thermocline.format.instant import (
    NS_PER_S,
    TIME_MAX,
    TIME_MIN,
    Nanoseconds,
    check_instant,
    format_instant,
    from_datetime,
    parse_exact,
    parse_instant,
    to_datetime,
    to_instant,
)

WRITTEN = [
    (0, "1970-01-01T00:00:00Z"),
    (1, "1970-01-01T00:00:00.000000001Z"),
    (-1, "1969-12-31T23:59:59.999999999Z"),
    (1_000, "1970-01-01T00:00:00.000001Z"),
    (-1_000, "1969-12-31T23:59:59.999999Z"),
    (500_000_000, "1970-01-01T00:00:00.500000Z"),
    (1_717_200_000 * NS_PER_S, "2024-06-01T00:00:00Z"),
    (TIME_MIN, "0001-01-01T00:00:00Z"),
    (TIME_MIN + 1, "0001-01-01T00:00:00.000000001Z"),
    (TIME_MAX, "9999-12-31T23:59:59.999999999Z"),
    (-12_219_292_800 * NS_PER_S, "1582-10-15T00:00:00Z"),
]


@pytest.mark.parametrize(("nanoseconds", "text"), WRITTEN)
def test_an_instant_has_one_written_form_that_reads_back(nanoseconds, text):
    assert format_instant(nanoseconds) == text
    assert parse_instant(text) == nanoseconds


@given(instants)
def test_every_instant_survives_being_written_and_read(nanoseconds):
    assert parse_instant(format_instant(nanoseconds)) == nanoseconds


@given(instants, instants)
def test_written_instants_of_whole_seconds_sort_as_the_instants_do(one, other):
    one, other = one // NS_PER_S * NS_PER_S, other // NS_PER_S * NS_PER_S
    assert (format_instant(one) < format_instant(other)) == (one < other)


@pytest.mark.parametrize(
    ("text", "same_as"),
    [
        ("2024-06-01", "2024-06-01T00:00:00Z"),
        ("2024-06-01 13:05", "2024-06-01T13:05:00Z"),
        ("2024-06-01T13:05:09", "2024-06-01T13:05:09Z"),
        ("  2024-06-01T13:05:09Z\n", "2024-06-01T13:05:09Z"),
        ("2024-06-01T13:05:09.5", "2024-06-01T13:05:09.500000Z"),
        ("2024-06-01T13:05:09.123456789+02:00", "2024-06-01T11:05:09.123456789Z"),
        ("2024-06-01T13:05:09-0530", "2024-06-01T18:35:09Z"),
        ("2024-02-29", "2024-02-29T00:00:00Z"),
        ("0001-01-01T01:00:00+01:00", "0001-01-01T00:00:00Z"),
        ("2024-06-01T13", "2024-06-01T13:00:00Z"),
        ("2024-06-01T13+02", "2024-06-01T11:00:00Z"),
        ("2024-06-01 13:05+02", "2024-06-01T11:05:00Z"),
    ],
)
def test_the_usual_ways_to_write_a_time_are_read(text, same_as):
    assert format_instant(parse_instant(text)) == same_as


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "1717200000",
        "2024-13-01",
        "2024-06-01T13:05.5",
        "2024-06-01T13.5",
        "2024-06-01+02",
        "2023-02-29",
        "2024-06-01T24:00:00Z",
        "2024-06-01T23:59:60Z",
        "2024-06-01T00:00:00.1234567890Z",
        "2024-06-01T00:00:00.Z",
        "2024-06-01Z",
        "2024-06-01T00:00:00z",
        "2024-06-01T00:00:00 Europe/Berlin",
        "0000-01-01",
        "10000-01-01",
        "-0001-01-01",
        "0001-01-01T00:00:00+01:00",
        "9999-12-31T23:30:00-01:00",
        "2024-06-01\n2024-06-02",
        "\u0662\u0660\u0662\u0664-06-01",
        "2024-06-01T00:00:00.\u0663Z",
    ],
)
def test_what_is_not_a_time_is_refused_with_its_text(text):
    with pytest.raises(Invalid):
        parse_instant(text)


@pytest.mark.parametrize("nanoseconds", [TIME_MIN - 1, TIME_MAX + 1, 2**70, -(2**80)])
def test_what_cannot_be_written_down_is_refused_never_wrapped(nanoseconds):
    for refuse in (check_instant, format_instant, to_datetime):
        with pytest.raises(Invalid) as caught:
            refuse(nanoseconds)
        assert caught.value.facts["nanoseconds"] == nanoseconds


def test_a_datetime_without_a_zone_is_utc_on_any_machine(monkeypatch):
    monkeypatch.setenv("TZ", "America/New_York")
    naive = datetime(2024, 6, 1, 12)
    assert from_datetime(naive) == from_datetime(naive.replace(tzinfo=UTC))


@given(
    st.datetimes(
        datetime(1, 1, 2),
        datetime(9999, 12, 30),
        timezones=st.timezones() | st.none(),
    )
)
def test_a_datetime_of_any_zone_is_its_instant_to_the_microsecond(moment):
    utc = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    assert to_datetime(from_datetime(moment)) == utc


def test_the_hour_that_daylight_saving_repeats_is_two_instants():
    berlin = ZoneInfo("Europe/Berlin")
    first = datetime(2024, 10, 27, 2, 30, tzinfo=berlin)
    assert format_instant(to_instant(first)) == "2024-10-27T00:30:00Z"
    assert format_instant(to_instant(first.replace(fold=1))) == "2024-10-27T01:30:00Z"


def test_a_pandas_timestamp_keeps_its_nanoseconds():
    assert to_instant(pd.Timestamp("1969-12-31T23:59:59.999999999Z")) == -1
    assert to_instant(pd.Timestamp("2024-06-01T00:00:00.123456789")) % NS_PER_S == 123_456_789


@pytest.mark.parametrize(
    "value",
    [
        pd.NaT,
        datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-14))),
        time(12),
        0,
        1.5,
        None,
        b"2024-06-01",
        ["2024-06-01"],
    ],
)
def test_what_names_no_instant_is_refused(value):
    with pytest.raises(Invalid):
        to_instant(value)


def test_a_date_is_its_midnight_in_utc():
    assert format_instant(to_instant(date(2024, 6, 1))) == "2024-06-01T00:00:00Z"


def test_nanoseconds_are_cut_off_towards_the_past():
    assert to_datetime(-1) == datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    assert to_datetime(1_999) == datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)


def test_a_whole_number_counts_nanoseconds_unless_it_is_too_small_to_be_plausible():
    assert format_instant(to_instant(1_717_200_000 * 10**9)) == "2024-06-01T00:00:00Z"
    assert format_instant(to_instant(-(10**17))) == "1966-10-31T14:13:20Z"
    for count in (0, 1_717_200_000, 1_717_200_000_000_000, True):
        with pytest.raises(Invalid):
            to_instant(count)
    with pytest.raises(Invalid, match="the time cannot be read"):
        to_instant(datetime)


def test_a_text_of_digits_is_a_whole_number():
    assert to_instant("1717200000000000000") == to_instant(1717200000000000000)
    with pytest.raises(Invalid) as raised:
        to_instant("1717200000")
    assert "1000000000" in raised.value.hint
    with pytest.raises(Invalid):
        to_instant("9" * 40)
    with pytest.raises(Invalid):
        to_instant("9" * 5_000)


def test_a_text_is_read_to_its_last_digit_and_keeps_whether_it_has_a_zone():
    assert parse_exact("2024-06-01T12:00:00.5") == datetime(2024, 6, 1, 12, 0, 0, 500_000)
    assert parse_exact("2024-06-01T14+02:00") == datetime(2024, 6, 1, 12, tzinfo=UTC)
    fine = 1_717_243_200_123_456_789
    assert parse_exact("2024-06-01T12:00:00.123456789") == Nanoseconds(fine, has_zone=False)
    assert parse_exact("2024-06-01T12:00:00.123456789Z") == Nanoseconds(fine, has_zone=True)
