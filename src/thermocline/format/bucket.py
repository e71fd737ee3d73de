"""Buckets: half-open UTC intervals of one width, numbered from 1970.

Bucket `b` of width `w` seconds holds the instants from `b*w` up to, not including, `(b+1)*w`
seconds after 1970-01-01T00:00:00Z. Instants before 1970 have negative buckets. Every instant is
in exactly one bucket: UTC, as computers count it, has no daylight saving and no leap seconds.
"""

import re
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import numpy.typing as npt

from thermocline.errors import Invalid
from thermocline.format.instant import NS_PER_S, NS_PER_UNIT, TimeNs

WIDTH_S_MIN = 1
WIDTH_S_MAX = 86_400
SECONDS_PER_LETTER = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}

COUNT_MAX = 999_999

_WRITTEN = re.compile(r"^(\d{1,6})\s*(s|m|h|d|w)$", re.ASCII)


@dataclass(frozen=True, slots=True)
class Bucket:
    """A width of buckets, from one second to one day."""

    width_s: int

    def __post_init__(self) -> None:
        if not WIDTH_S_MIN <= self.width_s <= WIDTH_S_MAX:
            raise Invalid(
                "bucket width is out of range",
                hint="use a width from 1s to 1d, such as 1s, 15m, 1h, 1d",
                seconds=self.width_s,
            )

    def __str__(self) -> str:
        """Return the shortest written form, such as `15m`."""
        for letter in ("d", "h", "m"):
            if self.width_s % SECONDS_PER_LETTER[letter] == 0:
                return f"{self.width_s // SECONDS_PER_LETTER[letter]}{letter}"
        return f"{self.width_s}s"

    def number_of(self, instant: int) -> int:
        """Return the bucket that holds an instant."""
        return instant // (self.width_s * NS_PER_S)

    def start(self, bucket: int) -> TimeNs:
        """Return the first instant of a bucket, which is the end of the previous bucket."""
        return TimeNs(bucket * self.width_s * NS_PER_S)

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Return the half-open range of buckets that touch the half-open range of instants."""
        if end <= start:
            raise Invalid(
                "the end is not after the start",
                hint="give a half-open range: the end itself is not part of it",
                start=start,
                end=end,
            )
        return self.number_of(start), self.number_of(end - 1) + 1

    def numbers_of(self, values: npt.NDArray[np.int64], unit: str) -> npt.NDArray[np.int64]:
        """Return the bucket of each time, given as integers of an Arrow timestamp unit."""
        width = self.width_s * (NS_PER_S // NS_PER_UNIT[unit])
        return np.floor_divide(values, width)


def parse_bucket(width: str | timedelta, argument: str = "bucket") -> Bucket:
    """Return the bucket of a width: a text such as `1s`, `15m`, `1h` or `1d`, or a `timedelta`."""
    return Bucket(parse_duration_s(width, argument))


def parse_duration_s(duration: str | timedelta, argument: str = "duration") -> int:
    """Return the seconds of a duration: a text such as `30s`, `6h` or `2w`, or a `timedelta`."""
    if isinstance(duration, timedelta):
        return _count_seconds(duration, argument)
    if not isinstance(duration, str):
        is_number = isinstance(duration, int | float) and not isinstance(duration, bool)
        message = "a duration needs a unit" if is_number else "the duration cannot be read"
        hint = "give a unit: '30d', or a timedelta"
        raise Invalid(message, hint=hint, argument=argument, type=type(duration).__name__)
    found = _WRITTEN.match(duration.strip())
    if not found:
        raise Invalid(
            "the duration cannot be read",
            hint="write a whole number and a unit: 30s, 15m, 6h, 90d, 2w",
            argument=argument,
            value=duration,
        )
    count, letter = found.groups()
    return int(count) * (7 * 86_400 if letter == "w" else SECONDS_PER_LETTER[letter])


def write_duration(duration: str | timedelta, argument: str = "duration") -> str:
    """Return a duration as text; a valid text is returned unchanged."""
    seconds = parse_duration_s(duration, argument)
    if isinstance(duration, str):
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
