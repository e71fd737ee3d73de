"""Buckets: half-open intervals of the index that every row belongs to exactly one of.

    unit     index       bucket `b` of `count` units
    s        time        `count` seconds, from `b * count` seconds after 1970-01-01T00:00:00Z
    week     time        `count` weeks from Monday to Sunday; week 0 begins on 1969-12-29
    month    time        `count` calendar months; month 0 is January 1970
    int64    integer     `count` steps of the index; 0 begins a bucket
    uint64   integer     the same for an unsigned index

A *position* is a value of the index: nanoseconds since 1970 in UTC, or the whole number itself.
Every position is in exactly one bucket: UTC, as computers count it, has no daylight saving and no
leap seconds. Positions before 1970 or below zero have buckets like any other.

- The number of an integer's bucket is shifted, so that a coverage bitmap can hold every bucket of
  the index's type. Only buckets of one or two steps cannot reach every value; such a value is
  refused.
"""

import operator
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from thermocline.errors import Invalid
from thermocline.format.argument import plain_scalar
from thermocline.format.instant import (
    NS_PER_S,
    NS_PER_UNIT,
    TimeNs,
    check_instant,
    format_instant,
    to_instant,
)

WIDTH_S_MAX = (1 << 31) - 1
PLAIN_WIDTH_S_MAX = 86_400
"""Widths up to here are understood by every release; all others need a feature."""
CALENDAR_COUNT_MAX = 1_200
STEP_MAX = (1 << 64) - 1
SECONDS_PER_LETTER = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}

TIME, INT64, UINT64 = "timestamp", "int64", "uint64"
INDEX_TYPES = (TIME, INT64, UINT64)
INTEGER_FEATURE = "integer_index"
"""The feature of a table whose rows are ordered by whole numbers."""
LONG_FEATURE = "long_buckets"
"""The feature of a table whose buckets are longer than a day."""

COUNT_MAX = 999_999

_COVERAGE_BIAS = 1 << 40
_SHIFT = {INT64: (1 << 62) - _COVERAGE_BIAS, UINT64: -_COVERAGE_BIAS}
_DOMAIN = {INT64: (-(1 << 63), (1 << 63) - 1), UINT64: (0, (1 << 64) - 1)}
_NUMBER_MAX = (1 << 63) - 2 - _COVERAGE_BIAS
_DAYS_PER_WEEK = 7
_MONDAY_DAYS = 3
"""How many days before 1970-01-01, a Thursday, week 0 begins."""

_PLAIN = re.compile(r"^(\d{1,6})\s*(s|m|h|d|w)$", re.ASCII)
_WRITTEN = re.compile(r"^(\d{1,10})\s*([a-z]+)$", re.ASCII | re.IGNORECASE)
_DIGITS = re.compile(r"[+-]?\d{1,20}", re.ASCII)
_WORDS = {
    "s": ("s", "sec", "secs", "second", "seconds"),
    "m": ("m", "min", "mins", "minute", "minutes"),
    "h": ("h", "hr", "hrs", "hour", "hours"),
    "d": ("d", "day", "days"),
    "w": ("w", "week", "weeks"),
    "mo": ("mo", "mon", "month", "months"),
    "q": ("q", "quarter", "quarters"),
    "y": ("y", "year", "years"),
}
_UNIT_OF_WORD = {word: unit for unit, words in _WORDS.items() for word in words}
_MONTHS = {"mo": 1, "q": 3, "y": 12}


@dataclass(frozen=True, slots=True)
class Bucket:
    """Buckets of one size: a number of seconds, weeks, months or steps of an integer index."""

    count: int
    unit: str = "s"

    def __post_init__(self) -> None:
        limit = {"s": WIDTH_S_MAX, INT64: STEP_MAX, UINT64: STEP_MAX}
        if not 1 <= self.count <= limit.get(self.unit, CALENDAR_COUNT_MAX):
            raise Invalid(
                "bucket width is out of range",
                hint="use a width such as 1s, 15m, 1h, 1d, 1w or 1mo; steps for an integer index",
                count=self.count,
                unit=self.unit,
            )

    @property
    def domain(self) -> tuple[int, int]:
        """The least and the greatest value of an integer index."""
        return _DOMAIN[self.unit]

    def __str__(self) -> str:
        """Return the shortest written form, such as `15m`, `1w`, `3mo`, or `1000` for integers."""
        if self.unit == "s":
            letter, width_s = _longest_unit(self.count)
            return f"{self.count // width_s}{letter}"
        return f"{self.count}{ {'week': 'w', 'month': 'mo'}.get(self.unit, '') }"

    @property
    def index_type(self) -> str:
        """The type of the index: `timestamp`, `int64` or `uint64`."""
        return self.unit if self.unit in _DOMAIN else TIME

    @property
    def is_time(self) -> bool:
        """Whether the index is a time."""
        return self.unit not in _DOMAIN

    @property
    def features(self) -> tuple[str, ...]:
        """The features that a reader of such a table must know."""
        if not self.is_time:
            return (INTEGER_FEATURE,)
        is_plain = self.unit == "s" and self.count <= PLAIN_WIDTH_S_MAX
        return () if is_plain else (LONG_FEATURE,)

    @property
    def width_s(self) -> int | None:
        """The width in seconds; None for months, which differ, and for integers."""
        if self.unit == "week":
            return self.count * _DAYS_PER_WEEK * SECONDS_PER_LETTER["d"]
        return self.count if self.unit == "s" else None

    @property
    def code(self) -> int:
        """The 32 bits by which a coverage sidecar names these buckets.

        The width in seconds; for other units 2**31 plus the low 31 bits of the CRC32C of the text.
        """
        if self.unit == "s":
            return self.count
        text = f"{self.count} {self.unit}".encode()
        return 1 << 31 | google_crc32c.value(text) & (1 << 31) - 1

    def number_of(self, position: int) -> int:
        """Return the bucket that holds a position."""
        if self.unit in _SHIFT:
            return position // self.count + _SHIFT[self.unit]
        if self.unit == "month":
            return int(_months_of(np.array([position // NS_PER_S]), "s")[0]) // self.count
        return (position + self._offset_s * NS_PER_S) // (self._fixed_s * NS_PER_S)

    def start(self, bucket: int) -> TimeNs:
        """Return the first position of a bucket, which is the end of the previous bucket."""
        if self.unit in _SHIFT:
            return TimeNs((bucket - _SHIFT[self.unit]) * self.count)
        if self.unit == "month":
            days = int(_days_of_months(np.array([bucket * self.count]))[0])
            return TimeNs(days * SECONDS_PER_LETTER["d"] * NS_PER_S)
        return TimeNs((bucket * self._fixed_s - self._offset_s) * NS_PER_S)

    def starts_s(self, buckets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the first second of each bucket of a time index."""
        if self.unit == "month":
            return _days_of_months(buckets * self.count) * SECONDS_PER_LETTER["d"]
        return buckets * self._fixed_s - self._offset_s

    def clamp(self, bucket: int) -> int:
        """Return a bucket's number, or the nearest one that coverage can hold."""
        return bucket if self.is_time else min(max(bucket, -_COVERAGE_BIAS), _NUMBER_MAX + 1)

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Return the half-open range of buckets that touch the half-open range of positions."""
        if end <= start:
            raise Invalid(
                "the end is not after the start",
                hint="give a half-open range: the end itself is not part of it",
                start=start,
                end=end,
            )
        return self.number_of(start), self.number_of(end - 1) + 1

    def numbers_of(self, values: npt.NDArray[Any], unit: str) -> npt.NDArray[np.int64]:
        """Return the bucket of each value: integers of an Arrow timestamp unit, or positions."""
        if self.unit in _SHIFT:
            return self._integer_numbers(values)
        if self.unit == "month":
            return np.floor_divide(_months_of(values, unit), self.count)
        per_s = NS_PER_S // NS_PER_UNIT[unit]
        if self._offset_s:
            days = np.floor_divide(values, SECONDS_PER_LETTER["d"] * per_s)
            return np.floor_divide(days + _MONDAY_DAYS, _DAYS_PER_WEEK * self.count)
        width = self._fixed_s * per_s
        if width > np.iinfo(np.int64).max:  # wider than what the unit can count
            return np.where(values < 0, -1, 0)
        return np.floor_divide(values, width)

    def _integer_numbers(self, values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        if self.count > np.iinfo(values.dtype).max:
            zero = self.number_of(0)
            return np.where(values < 0, zero - 1, zero).astype(np.int64)
        numbers = np.floor_divide(values, values.dtype.type(self.count))
        return numbers.astype(np.int64) + _SHIFT[self.unit]

    def first_of_window(self, end: int, length: "Bucket") -> int:
        """Return the bucket where the shortest window of at least a length begins that ends at
        the start of bucket `end`; `Invalid` for a length that these buckets cannot measure."""
        if length.index_type != self.index_type and not self.is_time:
            length = Bucket(length.count, self.unit)
        if length.unit == self.unit:
            return end - -(-length.count // self.count)
        if length.width_s is None:
            raise Invalid(
                "a month has no fixed length",
                hint="give the length in days or weeks, or use a table with monthly buckets",
                bucket=str(self),
            )
        return self.number_of(self.start(end) - length.width_s * NS_PER_S)

    @property
    def _fixed_s(self) -> int:
        width_s = self.width_s
        assert width_s is not None
        return width_s

    @property
    def _offset_s(self) -> int:
        return _MONDAY_DAYS * SECONDS_PER_LETTER["d"] if self.unit == "week" else 0

    # Positions

    def bounds_of(self, values: npt.NDArray[Any], unit: str) -> tuple[int, int]:
        """Return the least and the greatest position of some values, given in a unit."""
        size = NS_PER_UNIT.get(unit, 1)
        low, high = int(values.min()) * size, int(values.max()) * size
        return self.check_position(low), self.check_position(high)

    def check_position(self, position: int) -> int:
        """Return a position if a row can have it; `Invalid` otherwise."""
        if self.is_time:
            return check_instant(position)
        low, high = self.domain
        if not low <= position <= high:
            raise Invalid(
                "the value is outside the type of the index",
                hint=f"use a value from {low} to {high}",
                value=position,
                index_type=self.unit,
            )
        if not -_COVERAGE_BIAS <= self.number_of(position) <= _NUMBER_MAX:
            raise Invalid(
                "the value is too far from zero for buckets this small",
                hint="create the table with a bucket of 3 steps or more",
                value=position,
                bucket=str(self),
            )
        return position

    def parse_position(self, value: object) -> TimeNs:
        """Return the position that a caller names: a time, or a whole number for integers."""
        if self.is_time:
            return to_instant(value)
        number = _whole_number(value)
        if number is None:
            raise Invalid(
                "not a value of the index",
                hint="this table is ordered by whole numbers: pass one",
                value=repr(value),
            )
        return TimeNs(number)

    def format_position(self, position: int) -> str:
        """Return a position as text: ISO 8601, or the digits of a whole number."""
        return format_instant(position) if self.is_time else str(position)


def _longest_unit(seconds: int) -> tuple[str, int]:
    """Return the longest unit of which a number of seconds is a whole number."""
    units = reversed(SECONDS_PER_LETTER.items())
    return next((letter, width_s) for letter, width_s in units if seconds % width_s == 0)


def _months_of(values: npt.NDArray[np.int64], unit: str) -> npt.NDArray[np.int64]:
    """Return the months since January 1970 of times, given as integers of a unit."""
    return values.astype(f"datetime64[{unit}]").astype("datetime64[M]").astype(np.int64)


def _days_of_months(months: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the days since 1970-01-01 of the first day of each month."""
    return months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)


def parse_bucket(width: object, argument: str = "bucket", index_type: str | None = None) -> Bucket:
    """Return the buckets of a width.

    A text such as `15m`, `15min`, `2 hours`, `1w` or `1month`, or a `timedelta`; for an integer
    index a whole number of its steps. `index_type` defaults to that of the width.
    """
    if index_type is None:
        is_number = hasattr(width, "__index__") and not isinstance(width, bool)
        index_type = INT64 if is_number else TIME
    if not isinstance(index_type, str) or index_type not in INDEX_TYPES:
        raise Invalid(
            "not the type of an index", hint=f"use {', '.join(INDEX_TYPES)}", got=index_type
        )
    if index_type != TIME:
        return Bucket(_parse_step(width, argument), index_type)
    if isinstance(width, str):
        count, unit = _parse_words(width, argument)
        if unit == "w":
            return Bucket(count, "week")
        if unit in _MONTHS:
            return Bucket(count * _MONTHS[unit], "month")
    return Bucket(parse_duration_s(width, argument))


def decode_bucket(text: str, index_type: str) -> Bucket:
    """Return the buckets of their written form in a commit."""
    return parse_bucket(text, index_type=index_type)


def _parse_step(width: object, argument: str) -> int:
    step = _whole_number(width)
    if step is None:
        raise Invalid(
            "the bucket of an integer index is a whole number",
            hint="pass an int: how many steps of the index one bucket has",
            argument=argument,
            type=type(width).__name__,
        )
    return step


def _whole_number(value: object) -> int | None:
    """Return a whole number, given as one or as a text of its digits; None for anything else."""
    if isinstance(value, str) and _DIGITS.fullmatch(value.strip()):
        return int(value)
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return None
    try:
        return operator.index(value)
    except TypeError:  # an array has it too
        return None


def _parse_words(text: str, argument: str) -> tuple[int, str]:
    """Return the count and the unit of a text such as `15min`."""
    found = _WRITTEN.match(text.strip())
    if found and found[2] == "M":
        raise Invalid(
            "M may mean minutes or months",
            hint="write 15min or 1mo",
            argument=argument,
            value=text,
        )
    unit = _UNIT_OF_WORD.get(found[2].lower()) if found else None
    if found is None or unit is None:
        raise Invalid(
            "the duration cannot be read",
            hint="write a whole number and a unit: 30s, 15min, 6h, 90d, 2w",
            argument=argument,
            value=text,
        )
    return int(found[1]), unit


def parse_duration_s(duration: object, argument: str = "duration") -> int:
    """Return the seconds of a duration: a text such as `30s`, `6 hours` or `2w`, or a `timedelta`.

    A month has no fixed number of seconds, so it is not a duration.
    """
    duration = plain_scalar(duration)
    if isinstance(duration, timedelta):
        return _count_seconds(duration, argument)
    if not isinstance(duration, str):
        is_number = isinstance(duration, int | float) and not isinstance(duration, bool)
        message = "a duration needs a unit" if is_number else "the duration cannot be read"
        hint = "give a unit: '30d', or a timedelta"
        raise Invalid(message, hint=hint, argument=argument, type=type(duration).__name__)
    count, unit = _parse_words(duration, argument)
    if unit in _MONTHS:
        raise Invalid(
            "a month has no fixed length",
            hint="give a duration in days or weeks",
            argument=argument,
            value=duration,
        )
    return count * (7 * 86_400 if unit == "w" else SECONDS_PER_LETTER[unit])


def write_duration(duration: object, argument: str = "duration") -> str:
    """Return a duration in the form that commits have; such a text is returned unchanged."""
    seconds = parse_duration_s(duration, argument)
    if isinstance(duration, str) and _PLAIN.match(duration.strip()):
        return duration
    for letter, width_s in reversed(SECONDS_PER_LETTER.items()):
        if seconds % width_s == 0 and seconds // width_s <= COUNT_MAX:
            return f"{seconds // width_s}{letter}"
    hint = "round it to minutes, hours or days"
    raise Invalid(
        "the duration cannot be written down exactly", hint=hint, argument=argument, value=duration
    )


def _count_seconds(duration: timedelta, argument: str) -> int:
    if duration < timedelta(0) or duration % timedelta(seconds=1):
        raise Invalid(
            "a duration must be whole seconds, 0 or more",
            hint="round the timedelta to seconds",
            argument=argument,
            value=duration,
        )
    return duration // timedelta(seconds=1)
