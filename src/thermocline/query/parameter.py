"""Converts query parameters to values that the engine reads exactly.

In:   a Python value of any kind, and the name of its parameter
Out:  a value that the engine reads as exactly that value; `Invalid` names the parameter otherwise

- The engine would round a decimal of more than 38 digits, truncate nanoseconds, and turn a
  `datetime64` into a number. Here each is passed exactly or refused.
- The values of a list have one kind: the engine would turn mixed ones into texts or doubles.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import duckdb

from thermocline.errors import Invalid
from thermocline.format.instant import NS_PER_S

DIGITS_MAX = 38
DEPTH_MAX = 32
_EXACT_DOUBLE = 2**53
_AS_THEY_ARE = (str, bytes, bytearray, memoryview, date, time, timedelta, UUID)


@dataclass(frozen=True, slots=True)
class Nanoseconds:
    """An instant with nanoseconds, which a `datetime` cannot hold, with or without a zone."""

    time_ns: int
    has_zone: bool


def exact(value: Any, name: str, depth: int = 0) -> Any:
    """Return a parameter's value in a form that the engine does not change."""
    if depth > DEPTH_MAX:
        raise Invalid("a parameter is nested too deeply", hint="flatten it", parameter=name)
    if value is None or type(value) in (bool, float, str, bytes):
        return value
    if type(value).__module__.partition(".")[0] in ("numpy", "pandas"):
        value = _of_library(value, name)
    if isinstance(value, Mapping):
        return {key: exact(one, name, depth + 1) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return _of_one_kind([exact(one, name, depth + 1) for one in value], name)
    return _single(value, name)


def _single(value: Any, name: str) -> Any:
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return _number(value, name)
    if isinstance(value, Decimal):
        return _decimal(value, name)
    if isinstance(value, Nanoseconds):
        return _nanoseconds(value)
    if isinstance(value, time) and value.tzinfo is not None:
        raise _refused(name, value, "drop the zone of the time, or pass a datetime")
    if isinstance(value, _AS_THEY_ARE):
        return value
    raise _refused(name, value, "use numbers, texts, times and lists of them")


def _of_library(value: Any, name: str) -> Any:
    """Return a numpy or pandas value as a Python value."""
    kind = type(value).__name__
    if kind in ("NaTType", "NAType"):
        return None
    if kind == "Timestamp":
        if not value.nanosecond:
            return value.to_pydatetime()
        return Nanoseconds(int(value.as_unit("ns").value), value.tzinfo is not None)
    if kind == "datetime64":
        return _datetime64(value, name)
    if kind in ("Timedelta", "timedelta64"):
        return _timedelta(value, name)
    if kind == "ndarray":
        return list(value)
    found = value.item() if hasattr(value, "item") else value
    if not isinstance(found, bool | int | float | str | bytes):
        raise _refused(name, value, "use numbers, texts, times and lists of them")
    return found


def _timedelta(value: Any, name: str) -> timedelta:
    if hasattr(value, "to_timedelta64"):  # of pandas
        value = value.to_timedelta64()
    found = value.astype("timedelta64[us]")
    if found != value:
        raise _refused(name, value, "the engine's intervals count microseconds")
    made: timedelta = found.item()
    return made


def _datetime64(value: Any, name: str) -> Any:
    found = value.astype("datetime64[ns]")
    if str(value) == "NaT":
        return None
    if found.astype(value.dtype) != value or found.astype("datetime64[s]") != value.astype(
        "datetime64[s]"
    ):
        raise _refused(name, value, "pass a datetime")
    count = int(found.astype("int64"))
    if count % 1000:
        return Nanoseconds(count, has_zone=False)
    return datetime(1970, 1, 1) + timedelta(microseconds=count // 1000)  # noqa: DTZ001


def _nanoseconds(value: Nanoseconds) -> Any:
    whole, fraction = divmod(value.time_ns, NS_PER_S)
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=whole)
    text = f"{moment:%Y-%m-%d %H:%M:%S}.{fraction:09}"
    if value.has_zone:
        return duckdb.Value(f"{text}+00", duckdb.sqltype("TIMESTAMPTZ_NS"))
    return duckdb.Value(text, duckdb.sqltype("TIMESTAMP_NS"))


def _number(value: int, name: str) -> int:
    if abs(value) >= 10**DIGITS_MAX:
        raise _refused(name, value, f"a whole number has at most {DIGITS_MAX} digits")
    return int(value)


def _decimal(value: Decimal, name: str) -> Any:
    _, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return float("nan") if value.is_nan() else float(value)  # a signaling NaN has no float
    width = len(digits) + exponent if exponent >= 0 else max(len(digits), -exponent)
    if width > DIGITS_MAX:
        raise _refused(name, value, f"a decimal has at most {DIGITS_MAX} digits")
    return value


def _of_one_kind(values: list[Any], name: str) -> list[Any]:
    kinds = {_kind(one) for one in values if one is not None}
    if kinds == {"int", "float"}:
        if all(abs(one) <= _EXACT_DOUBLE for one in values if isinstance(one, int)):
            return values
    elif len(kinds) <= 1 or kinds == {"int", "Decimal"}:
        return values
    raise _refused(name, values, "give the values of a list one type")


def _kind(value: Any) -> str:
    if isinstance(value, datetime):
        return "datetime" if value.tzinfo is None else "datetime with a zone"
    if isinstance(value, bytes | bytearray | memoryview):
        return "bytes"
    return type(value).__name__


def _refused(name: str, value: Any, hint: str) -> Invalid:
    return Invalid(
        "a parameter cannot be passed to the engine exactly",
        hint=hint,
        parameter=name,
        type=type(value).__name__,
    )
