"""The values of a query's parameters as JSON holds them.

In:   JSON values; an object `{"type": ..., "value": ...}` for what JSON has no word for
Out:  Python values, as `Lake.sql` takes them

| type | value |
|---|---|
| `timestamp` | ISO 8601, with a zone or without one, down to nanoseconds |
| `date`, `time` | ISO 8601; a time of day has six digits at most |
| `decimal` | its digits |
| `binary` | hexadecimal |
| `float` | `NaN`, `Infinity`, `-Infinity` or a number |
| `duration` | whole microseconds |
| `uuid` | the usual form |
"""

import re
import uuid
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

from thermocline.errors import Invalid
from thermocline.format.instant import parse
from thermocline.query.parameter import Nanoseconds

VALUES_MAX = 10_000
DEPTH_MAX = 32
_FRACTION = re.compile(r"[.,]\d{6}(\d+)")


def parameters(given: list[Any] | dict[str, Any] | None) -> list[Any] | dict[str, Any] | None:
    """Return the parameters as Python values; `Invalid` names the one that is none."""
    if given is None:
        return None
    if len(given) > VALUES_MAX:
        raise Invalid("too many parameters", hint="pass a list as one", parameters_max=VALUES_MAX)
    if isinstance(given, dict):
        return {name: _value(value, name) for name, value in given.items()}
    return [_value(value, str(place)) for place, value in enumerate(given, start=1)]


def _value(value: Any, name: str, depth: int = 0) -> Any:
    if depth > DEPTH_MAX:
        raise Invalid("a parameter is nested too deeply", hint="flatten it", parameter=name)
    if isinstance(value, list):
        return [_value(one, name, depth + 1) for one in value]
    if not isinstance(value, Mapping):
        return value
    if value.keys() != {"type", "value"} or value["type"] not in KINDS:
        raise Invalid(
            "an object as a parameter has a type and a value",
            hint=f"use one of {', '.join(KINDS)}",
            parameter=name,
        )
    try:
        return KINDS[value["type"]](value["value"])
    except (ValueError, TypeError, InvalidOperation, OverflowError) as error:
        raise Invalid(
            "a parameter is not of the type it says",
            hint="see the API's page for how values are written",
            parameter=name,
            type=value["type"],
        ) from error


def _float(value: Any) -> float:
    if isinstance(value, str) and value not in ("NaN", "Infinity", "-Infinity"):
        raise ValueError(value)
    return float(value)


def _duration(value: Any) -> timedelta:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(value)
    return timedelta(microseconds=value)


def _text(make: Callable[[str], Any]) -> Callable[[Any], Any]:
    def made(value: Any) -> Any:
        if not isinstance(value, str):
            raise TypeError(value)
        return make(value)

    return made


def _timestamp(text: str) -> datetime | Nanoseconds:
    """Return an instant; one with nanoseconds, which `datetime` would cut, keeps them."""
    found = datetime.fromisoformat(text)
    if not _has_nanoseconds(text):
        return found
    return Nanoseconds(parse(text), has_zone=found.tzinfo is not None)


def _time(text: str) -> time:
    if _has_nanoseconds(text):
        raise ValueError(text)
    return time.fromisoformat(text)


def _has_nanoseconds(text: str) -> bool:
    fraction = _FRACTION.search(text)
    return fraction is not None and fraction[1].strip("0") != ""


KINDS: Mapping[str, Callable[[Any], Any]] = {
    "timestamp": _text(_timestamp),
    "date": _text(date.fromisoformat),
    "time": _text(_time),
    "decimal": _text(Decimal),
    "binary": _text(bytes.fromhex),
    "float": _float,
    "duration": _duration,
    "uuid": _text(uuid.UUID),
}
