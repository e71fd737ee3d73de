"""Arrow values as JSON and as text, the same in every format except Arrow.

In:   Arrow arrays of any type
Out:  values that JSON can hold, or texts; None for null

- Times are ISO 8601; times with a zone end in `Z`, times without a zone do not.
- Decimals keep every digit; float32 has its shortest form, not that of the same float64.
- Values that JSON cannot hold are text: `NaN`, `Infinity`, bytes in hexadecimal, durations as
  `PT5S`.
"""

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from thermocline.format.instant import NS_PER_S, NS_PER_UNIT, TIME_MAX, TIME_MIN, format_instant

_JSON_INTEGERS = range(-(1 << 63), 1 << 64)
"""Integers that the JSON writer takes as numbers; larger ones are written digit by digit."""


def json_values(array: pa.Array) -> list[Any]:
    """Return the values as JSON can hold them; `as_json` writes them."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _extension_values(array)
    for is_kind, convert in _CONVERSIONS:
        if is_kind(kind):
            return convert(array)
    return [value if isinstance(value, _PLAIN) else str(value) for value in array.to_pylist()]


def text_values(array: pa.Array) -> list[str | None]:
    """Return the values as texts."""
    kind = array.type
    if kinds.is_integer(kind) or kinds.is_boolean(kind):
        return list(array.cast(pa.string()).to_pylist())
    if kinds.is_string(kind) or kinds.is_large_string(kind):
        return list(array.to_pylist())
    return [_text(value) for value in json_values(array)]


def as_json(value: Any) -> bytes:
    """Return JSON without spaces; decimals and large numbers keep every digit."""
    return orjson.dumps(value, default=_encode_other, option=orjson.OPT_NON_STR_KEYS)


def duration_text(months: int, days: int, nanoseconds: int) -> str:
    """Return a duration in ISO 8601, such as `P1DT90S`; each part has its sign."""
    clock = _seconds_text(nanoseconds) if nanoseconds else ""
    parts = (f"{months}M" if months else "") + (f"{days}D" if days else "")
    return f"P{parts}{f'T{clock}' if clock else ''}" if parts or clock else "PT0S"


_PLAIN = (bool, int, str, type(None))


def _text(value: Any) -> str | None:
    match value:
        case None | str():
            return value
        case float():
            return repr(value)
        case Decimal():
            return format(value, "f")
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case _:
            return as_json(value).decode()


def _encode_other(value: Any) -> Any:
    return orjson.Fragment(format(value, "f")) if isinstance(value, Decimal) else str(value)


def _seconds_text(nanoseconds: int) -> str:
    sign = "-" if nanoseconds < 0 else ""
    whole, fraction = divmod(abs(nanoseconds), NS_PER_S)
    digits = f".{fraction:09d}".rstrip("0") if fraction else ""
    return f"{sign}{whole}{digits}S"


def _timestamps(array: pa.Array) -> list[Any]:
    unit, has_zone = NS_PER_UNIT[array.type.unit], bool(array.type.tz)
    numbers = array.cast(pa.int64())
    ends = pc.min_max(numbers).as_py()
    if ends["min"] is None:
        return [None] * len(array)
    if ends["min"] * unit >= TIME_MIN and ends["max"] * unit <= TIME_MAX:
        return _format_timestamps(array, has_zone=has_zone)
    return [
        None if value is None else _time_text(value * unit, has_zone=has_zone)
        for value in numbers.to_pylist()
    ]


def _format_timestamps(array: pa.Array, *, has_zone: bool) -> list[Any]:
    """Return times in the calendar's range as `written` does, a whole column at once."""
    unit = "ns" if array.type.unit == "ns" else "us"
    found = array.cast(pa.timestamp(unit, tz="UTC" if has_zone else None)).cast(pa.string())
    found = pc.replace_substring(found, pattern=" ", replacement="T")
    for pattern, kept in ((r"\.0+(Z?)$", r"\1"), (r"(\.\d{6})000(Z?)$", r"\1\2")):
        found = pc.replace_substring_regex(found, pattern=pattern, replacement=kept)
    return list(found.to_pylist())


def _time_text(instant: int, *, has_zone: bool) -> str:
    if not TIME_MIN <= instant <= TIME_MAX:
        # The engine's infinities, and years outside of the calendar's range.
        return "infinity" if instant > 0 else "-infinity"
    text = format_instant(instant)
    return text if has_zone else text[:-1]


def _durations(array: pa.Array) -> list[Any]:
    unit = NS_PER_UNIT[array.type.unit]
    return [
        None if value is None else duration_text(0, 0, value * unit)
        for value in array.cast(pa.int64()).to_pylist()
    ]


def _intervals(array: pa.Array) -> list[Any]:
    return [None if value is None else duration_text(*value) for value in array.to_pylist()]


def _floats(array: pa.Array) -> list[Any]:
    if array.type.bit_width == 64:
        return [_finite_or_text(value) for value in array.to_pylist()]
    narrow = np.float32 if array.type.bit_width == 32 else np.float16
    return [
        None if value is None else _finite_or_text(float(str(narrow(value))))
        for value in array.to_pylist()
    ]


def _finite_or_text(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _decimals(array: pa.Array) -> list[Any]:
    if array.type.scale > 0:
        return list(array.to_pylist())
    return [_whole_or_decimal(value) for value in array.to_pylist()]


def _whole_or_decimal(value: Decimal | None) -> Decimal | int | None:
    return int(value) if value is not None and int(value) in _JSON_INTEGERS else value


def _binaries(array: pa.Array) -> list[Any]:
    return [None if value is None else value.hex() for value in array.to_pylist()]


def _calendar(array: pa.Array) -> list[Any]:
    found = array.cast(pa.string()).to_pylist()
    if kinds.is_date(array.type):
        return list(found)
    return [text and (text.rstrip("0").rstrip(".") if "." in text else text) for text in found]


def _dictionaries(array: pa.Array) -> list[Any]:
    return json_values(array.dictionary_decode())


def _nested_values(array: pa.Array) -> list[Any]:
    return [_nested_value(scalar) for scalar in array]


def _nested_value(scalar: pa.Scalar) -> Any:
    if not scalar.is_valid:
        return None
    if isinstance(scalar, pa.StructScalar):
        names = [field.name for field in scalar.type]
        return {name: _single_value(scalar[place]) for place, name in enumerate(names)}
    if isinstance(scalar, pa.MapScalar):
        entries = scalar.values
        keys = [_text(key) or "" for key in json_values(entries.field(0))]
        return dict(zip(keys, json_values(entries.field(1)), strict=True))
    return json_values(scalar.values)


def _single_value(scalar: pa.Scalar) -> Any:
    return json_values(pa.array([scalar], type=scalar.type))[0]


def _extension_values(array: pa.Array) -> list[Any]:
    if str(array.type).startswith("extension<arrow.uuid"):
        return [None if value is None else str(value) for value in array.to_pylist()]
    return json_values(array.storage)


def _is_nested(kind: pa.DataType) -> bool:
    return bool(kinds.is_nested(kind) and not kinds.is_union(kind))


def _is_calendar(kind: pa.DataType) -> bool:
    return bool(kinds.is_date(kind) or kinds.is_time(kind))


def _is_binary(kind: pa.DataType) -> bool:
    views = kinds.is_binary_view(kind) or kinds.is_large_binary(kind)
    return bool(views or kinds.is_binary(kind) or kinds.is_fixed_size_binary(kind))


_CONVERSIONS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], list[Any]]], ...] = (
    (kinds.is_dictionary, _dictionaries),
    (kinds.is_timestamp, _timestamps),
    (kinds.is_duration, _durations),
    (kinds.is_interval, _intervals),
    (kinds.is_floating, _floats),
    (kinds.is_decimal, _decimals),
    (_is_calendar, _calendar),
    (_is_binary, _binaries),
    (_is_nested, _nested_values),
)
