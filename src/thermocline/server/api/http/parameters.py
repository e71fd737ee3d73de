"""Decodes a query's parameters from JSON.

In:   JSON values; an object `{"type": ..., "value": ...}` for types that JSON lacks
Out:  Python values for `Lake.sql`

| type | value |
|---|---|
| `timestamp` | ISO 8601, with a zone or without one, up to nine digits of a second |
| `date`, `time` | ISO 8601 |
| `decimal` | its digits |
| `binary` | hexadecimal |
| `float` | `NaN`, `Infinity`, `-Infinity` or a number |
| `duration` | whole microseconds |
| `uuid` | the usual form |
"""

import re
import uuid
from collections.abc import Callable, Mapping
from datetime import date, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

from thermocline.errors import Invalid
from thermocline.format.argument import PARAMETER_DEPTH_MAX
from thermocline.format.instant import parse_exact

VALUES_MAX = 10_000


def parse_parameters(given: list[Any] | dict[str, Any] | None) -> list[Any] | dict[str, Any] | None:
    """Return the parameters as Python values; `Invalid` names the wrong parameter."""
    if given is None:
        return None
    if len(given) > VALUES_MAX:
        hint = "pass many values as one list"
        raise Invalid("too many parameters", hint=hint, parameters_max=VALUES_MAX)
    if isinstance(given, dict):
        return {name: _parse_value(value, name) for name, value in given.items()}
    return [_parse_value(value, str(place)) for place, value in enumerate(given, start=1)]


def _parse_value(value: Any, name: str, depth: int = 0) -> Any:
    if depth > PARAMETER_DEPTH_MAX:
        raise Invalid("a parameter is nested too deeply", hint="flatten it", parameter=name)
    if isinstance(value, list):
        return [_parse_value(one, name, depth + 1) for one in value]
    if not isinstance(value, Mapping):
        return value
    if value.keys() != {"type", "value"} or value["type"] not in KINDS:
        raise Invalid(
            "a parameter's object must have a type and a value",
            hint=f"use one of {', '.join(KINDS)}",
            parameter=name,
        )
    try:
        return KINDS[value["type"]](value["value"])
    except (Invalid, ValueError, TypeError, InvalidOperation, OverflowError) as error:
        raise Invalid(
            "a parameter's value does not fit its type",
            hint="see docs/api.md for how values are written",
            parameter=name,
            type=value["type"],
        ) from error


def _parse_float(value: Any) -> float:
    if isinstance(value, str) and value not in ("NaN", "Infinity", "-Infinity"):
        raise ValueError(value)
    return float(value)


def _parse_duration(value: Any) -> timedelta:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(value)
    return timedelta(microseconds=value)


def _time(text: str) -> time:
    if re.search(r"[.,]\d{6}\d*[1-9]", text):
        raise ValueError("the engine's times have microseconds")
    return time.fromisoformat(text)


def _decimal(text: str) -> Decimal:
    if "_" in text or not text.isascii():
        raise ValueError(text)
    return Decimal(text)


def _text_parser(make: Callable[[str], Any]) -> Callable[[Any], Any]:
    def parse_text(value: Any) -> Any:
        if not isinstance(value, str):
            raise TypeError(value)
        return make(value)

    return parse_text


KINDS: Mapping[str, Callable[[Any], Any]] = {
    "timestamp": _text_parser(parse_exact),
    "date": _text_parser(date.fromisoformat),
    "time": _text_parser(_time),
    "decimal": _text_parser(_decimal),
    "binary": _text_parser(bytes.fromhex),
    "float": _parse_float,
    "duration": _parse_duration,
    "uuid": _text_parser(uuid.UUID),
}
