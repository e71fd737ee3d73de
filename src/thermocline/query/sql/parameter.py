"""Converts query parameters to values that the engine reads exactly.

In:   a Python value of any kind, and the name of its parameter
Out:  a value that the engine reads as exactly that value; `Invalid` names the parameter otherwise

- The engine would round a decimal of more than 38 digits, cut nanoseconds off, and turn a
  `datetime64` into a number. Here each is passed on exactly or refused.
- The values of a list have one kind, at every depth: the engine would turn mixed ones into texts
  or doubles, and cut digits of decimals that one decimal type does not hold together.
"""

from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import duckdb

from thermocline.errors import Invalid
from thermocline.format.argument import PARAMETER_DEPTH_MAX
from thermocline.format.instant import NS_PER_S, Nanoseconds

DIGITS_MAX = 38
_EXACT_DOUBLE = 2**53
_PASSED_AS_IS = (str, bytes, bytearray, memoryview, date, time, timedelta, UUID)


def convert_parameter(value: Any, name: str, depth: int = 0) -> Any:
    """Return a parameter's value in a form that the engine does not change."""
    if depth > PARAMETER_DEPTH_MAX:
        raise Invalid("a parameter is nested too deeply", hint="flatten it", parameter=name)
    if value is None or type(value) in (bool, float, str, bytes):
        return value
    if type(value).__module__.partition(".")[0] in ("numpy", "pandas"):
        value = of_library(value, name)
    if isinstance(value, Mapping):
        return {key: convert_parameter(one, name, depth + 1) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return _check_one_kind([convert_parameter(one, name, depth + 1) for one in value], name)
    return _convert_scalar(value, name)


def _convert_scalar(value: Any, name: str) -> Any:
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return _check_number(value, name)
    if isinstance(value, Decimal):
        return _convert_decimal(value, name)
    if isinstance(value, Nanoseconds):
        return _convert_nanoseconds(value)
    if isinstance(value, time) and value.tzinfo is not None:
        raise _refusal(name, value, "drop the zone of the time, or pass a datetime")
    if isinstance(value, _PASSED_AS_IS):
        return value
    raise _refusal(name, value, "use numbers, texts, times and lists of them")


def of_library(value: Any, name: str) -> Any:
    """Return a value of numpy or pandas as one of Python, or as `Nanoseconds`."""
    kind = type(value).__name__
    if getattr(value, "ndim", 0):  # an array, a series
        return list(value)
    if kind == "ndarray":
        return convert_parameter(value[()], name)
    if kind in ("NaTType", "NAType") or str(value) == "NaT":
        return None
    if kind == "Timestamp":
        if not value.nanosecond:
            return value.to_pydatetime()
        return Nanoseconds(int(value.as_unit("ns").value), value.tzinfo is not None)
    if kind == "datetime64":
        return _convert_datetime64(value, name)
    if kind in ("Timedelta", "timedelta64"):
        return _convert_timedelta(value, name)
    found = value.item() if hasattr(value, "item") else value
    if not isinstance(found, bool | int | float | str | bytes):
        raise _refusal(name, value, "use numbers, texts, times and lists of them")
    return found


def _convert_timedelta(value: Any, name: str) -> timedelta:
    if hasattr(value, "to_timedelta64"):  # of pandas
        value = value.to_timedelta64()
    try:
        found = value.astype("timedelta64[us]")
        is_same = bool(found == value)
    except TypeError:  # months and years have no one length
        is_same = False
    if not is_same:
        raise _refusal(name, value, "the engine's intervals count microseconds")
    made: timedelta = found.item()
    return made


def _convert_datetime64(value: Any, name: str) -> Any:
    found = value.astype("datetime64[ns]")
    if found.astype(value.dtype) != value or found.astype("datetime64[s]") != value.astype(
        "datetime64[s]"
    ):
        raise _refusal(name, value, "pass a datetime")
    count = int(found.astype("int64"))
    if count % 1000:
        return Nanoseconds(count, has_zone=False)
    return datetime(1970, 1, 1) + timedelta(microseconds=count // 1000)  # noqa: DTZ001


def _convert_nanoseconds(value: Nanoseconds) -> Any:
    whole, fraction = divmod(value.time_ns, NS_PER_S)
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=whole)
    text = f"{moment:%Y-%m-%d %H:%M:%S}.{fraction:09}"
    if value.has_zone:
        return duckdb.Value(f"{text}+00", duckdb.sqltype("TIMESTAMPTZ_NS"))
    return duckdb.Value(text, duckdb.sqltype("TIMESTAMP_NS"))


def _check_number(value: int, name: str) -> int:
    if abs(value) >= 10**DIGITS_MAX:
        raise _refusal(name, value, f"a whole number has at most {DIGITS_MAX} digits")
    return int(value)


def _convert_decimal(value: Decimal, name: str) -> Any:
    _, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return float("nan") if value.is_nan() else float(value)  # a signaling NaN has no float
    whole, broken = _widths(value)
    # The engine counts the nought of 0.01 as a digit, but not that of 0.12.
    is_padded = -exponent > len(digits) or not any(digits)
    if whole + broken + is_padded > DIGITS_MAX:
        raise _refusal(name, value, f"a decimal has at most {DIGITS_MAX} digits")
    return value


def _widths(value: int | Decimal) -> tuple[int, int]:
    """Return how many digits a number has before its point and after it."""
    if isinstance(value, int):
        return len(str(abs(value))), 0
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    return max(0, len(digits) + exponent), max(0, -exponent)


def _check_one_kind(values: list[Any], name: str) -> list[Any]:
    """Return the values of a list, whole numbers among decimals as decimals."""
    if {_kind(one) for one in values if one is not None} == {"int", "Decimal"}:
        values = [Decimal(one) if isinstance(one, int) else one for one in values]
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for one in values:
        _gather(one, (), groups)
    if not all(_is_one_kind(group) for group in groups.values()):
        raise _refusal(name, values, "give the values of a list one type")
    return values


def _gather(value: Any, path: tuple[Any, ...], groups: dict[tuple[Any, ...], list[Any]]) -> None:
    """Group a value, and those inside of it, by the place that will have one type."""
    if value is None:
        return
    groups.setdefault(path, []).append(value)
    if isinstance(value, list):
        for one in value:
            _gather(one, (*path, None), groups)
    elif isinstance(value, dict):
        for key, one in value.items():
            _gather(one, (*path, key), groups)


def _is_one_kind(values: list[Any]) -> bool:
    kinds = {_kind(one) for one in values}
    if kinds == {"int", "float"}:
        return all(abs(one) <= _EXACT_DOUBLE for one in values if isinstance(one, int))
    if kinds == {"Decimal"}:
        widths = [_widths(one) for one in values]
        return max(one[0] for one in widths) + max(one[1] for one in widths) <= DIGITS_MAX
    return len(kinds) <= 1


def _kind(value: Any) -> str:
    if isinstance(value, datetime):
        return "datetime" if value.tzinfo is None else "datetime with a zone"
    if isinstance(value, bytes | bytearray | memoryview):
        return "bytes"
    return type(value).__name__


def _refusal(name: str, value: Any, hint: str) -> Invalid:
    return Invalid(
        "a parameter cannot be passed to the engine exactly",
        hint=hint,
        parameter=name,
        type=type(value).__name__,
    )
