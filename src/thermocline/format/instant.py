"""Instants as whole nanoseconds since 1970 in UTC, and their one text form.

- An instant is a Python integer, so that no year and no unit overflows.
- A time without a zone is UTC.
- A whole number counts nanoseconds, and so does a text of its digits. One that is too small to be
  plausible is refused, because it is likely to count seconds, milliseconds or microseconds.
- The written form is ISO 8601 with `Z`, with no, six or nine digits of a second's fraction.
- Years 1 to 9999 only: what cannot be written down is refused, never wrapped.
"""

import operator
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NewType

from thermocline.errors import Invalid

TimeNs = NewType("TimeNs", int)

NS_PER_US = 1_000
NS_PER_S = 1_000_000_000
NS_PER_UNIT = {"s": NS_PER_S, "ms": 1_000_000, "us": NS_PER_US, "ns": 1}

PLAUSIBLE_NS_MIN = 10**17
"""The smallest count accepted as nanoseconds since 1970: it is in 1973.

The same count of microseconds is in the year 5138, so no present time is read in a wrong unit."""


@dataclass(frozen=True, slots=True)
class Nanoseconds:
    """An instant with nanoseconds, which no `datetime` has; `has_zone` as a `datetime` may."""

    time_ns: int
    has_zone: bool


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIME_MIN = TimeNs(-62_135_596_800 * NS_PER_S)
TIME_MAX = TimeNs(253_402_300_800 * NS_PER_S - 1)
_WRITTEN = re.compile(
    r"^(\d{4}-\d\d-\d\d)(?:[T ](\d\d(?::\d\d(?::\d\d(?:\.(\d{1,9}))?)?)?)"
    r"(Z|[+-]\d\d(?::?\d\d)?)?)?$",
    re.ASCII,
)
_COUNT = re.compile(r"[+-]?\d{1,40}", re.ASCII)


def from_datetime(moment: datetime) -> TimeNs:
    """Return the instant of a datetime; one without a zone is UTC."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    exact = (aware - _EPOCH) // timedelta(microseconds=1) * NS_PER_US
    # Checked: a zone offset can move an instant out of the years 1 to 9999, and NaT is a datetime.
    return TimeNs(check_instant(exact + getattr(moment, "nanosecond", 0)))


def to_datetime(instant: int) -> datetime:
    """Return the datetime in UTC, truncated to microseconds."""
    return _EPOCH + timedelta(microseconds=check_instant(instant) // NS_PER_US)


def format_instant(instant: int) -> str:
    """Return the ISO form: `2024-06-01T00:00:00Z`, with a fraction where there is one."""
    whole_s, fraction_ns = divmod(check_instant(instant), NS_PER_S)
    text = (_EPOCH + timedelta(seconds=whole_s)).strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0")
    if not fraction_ns:
        return text + "Z"
    digits = f"{fraction_ns:09d}"
    return f"{text}.{digits[:6] if digits.endswith('000') else digits}Z"


def parse_instant(text: str) -> TimeNs:
    """Return the instant of an ISO 8601 text; one without a zone is UTC."""
    found = _WRITTEN.match(text.strip())
    if not found:
        raise _instant_error(text)
    day, clock, fraction, zone = found.groups()
    zone = "+00:00" if zone in (None, "Z") else zone
    try:
        moment = datetime.fromisoformat(f"{day}T{(clock or '00').partition('.')[0]}{zone}")
        return TimeNs(check_instant(from_datetime(moment) + int((fraction or "0").ljust(9, "0"))))
    except (ValueError, OverflowError) as error:
        raise _instant_error(text) from error


def parse_exact(text: str) -> datetime | Nanoseconds:
    """Return the time of an ISO 8601 text to its last digit, with a zone if the text has one."""
    time_ns = parse_instant(text)
    found = _WRITTEN.match(text.strip())
    has_zone = found is not None and found[4] is not None
    if time_ns % NS_PER_US:
        return Nanoseconds(time_ns, has_zone)
    moment = to_datetime(time_ns)
    return moment if has_zone else moment.replace(tzinfo=None)


def from_count(count: int) -> TimeNs:
    """Return the instant of a whole number of nanoseconds since 1970; `Invalid` if implausible."""
    if abs(count) < PLAUSIBLE_NS_MIN:
        raise Invalid(
            "a whole number counts nanoseconds since 1970, and this one is too small to be one",
            hint="multiply it (by 1000000000 if it counts seconds), or write 2024-06-01T13:00:00Z",
            value=count,
        )
    return TimeNs(check_instant(count))


def to_instant(value: object) -> TimeNs:
    """Return the instant of a datetime, date, ISO text or whole number of nanoseconds."""
    if isinstance(value, datetime):
        return from_datetime(value)
    if isinstance(value, str):
        return from_count(int(value)) if _COUNT.fullmatch(value.strip()) else parse_instant(value)
    if isinstance(value, type):
        raise _instant_error(repr(value))
    if hasattr(value, "isoformat"):
        return parse_instant(str(value.isoformat()))
    if type(value).__name__ == "datetime64":
        return parse_instant(str(value))
    if hasattr(value, "__index__") and not isinstance(value, bool):
        try:
            return from_count(operator.index(value))
        except TypeError as error:  # an array has it too, and only some are a number
            raise _instant_error(repr(value)) from error
    raise _instant_error(repr(value))


def check_instant(value: int) -> int:
    """Return `value` if it is an instant of the years 1 to 9999; raise `Invalid` otherwise."""
    if not TIME_MIN <= value <= TIME_MAX:
        raise Invalid(
            "time is outside the years 1 to 9999",
            hint="check the unit of the time column",
            nanoseconds=value,
        )
    return value


def _instant_error(text: str) -> Invalid:
    return Invalid(
        "the time cannot be read",
        hint="write it like 2024-06-01T13:00:00Z, 2024-06-01 13:00 or 2024-06-01",
        value=text,
    )
