"""Converts Python, JSON and CSV values to columns of a table's types, exactly or not at all.

In:   columns of texts (of CSV), or lists of values (of Python and JSON); the type of each column
Out:  Arrow arrays; `Invalid` with column, row, value and reason when a value does not fit

- An empty text of CSV is null.
- Bytes are hexadecimal text in CSV and JSON, as answers write them; NaN and the infinities are
  texts in JSON.
- A time with a zone is an instant. One without a zone is a clock time of the table's zone in the
  time column, and UTC elsewhere. A whole number counts nanoseconds since 1970; one that is too
  small to be plausible is refused, because it is likely to count another unit.
- No value is cut, wrapped or rounded to make it fit. A double, or a number with a fraction, is the
  nearest number of its column's width; a whole number must be held exactly, and a finite one never
  becomes infinite. Arrow itself cuts 2.7 to 2 in a column of whole numbers.
- A text is never taken for bytes, and bytes never for a text. Booleans are not numbers.
"""

import math
import re
import reprlib
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from types import NoneType
from typing import Any
from uuid import UUID

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from thermocline.cold.segment.parquet import coerce_batch, to_utc, validate_batch
from thermocline.errors import Invalid
from thermocline.format import instant
from thermocline.format.index_column import default_index_type
from thermocline.format.instant import NS_PER_S, NS_PER_UNIT, from_count
from thermocline.format.log.action import TableSpec
from thermocline.format.schema import Schema
from thermocline.format.types import EXTENSIONS

_ZONED = r"(?:Z|[+-]\d\d(?::?\d\d)?)$"
_CLOCK = r"^\d{4}-\d\d-\d\d[T ]"
_WHOLE = r"^[+-]?\d+$"
_INFINITE = r"(?i)^[+-]?inf(?:inity)?$"
_EXACT_BITS = {16: 11, 32: 24, 64: 53}
_FLOATS: dict[int, Any] = {16: np.float16, 32: np.float32, 64: np.float64}
_LARGEST = {16: 65_504.0, 32: 3.4028234663852886e38, 64: sys.float_info.max}
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_DIGITS = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_FLOATS_OF_JSON = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_NULLS = ("NaT", "<NA>")
_MISSING = frozenset({"NaTType", "NAType", "datetime64", "timedelta64"})
_BOOLEANS = ("bool", "bool_")
_NS_PER_STEP = {
    **NS_PER_UNIT,
    "W": 7 * 86_400 * NS_PER_S,
    "D": 86_400 * NS_PER_S,
    "h": 3_600 * NS_PER_S,
    "m": 60 * NS_PER_S,
}
_TIME_OF_DAY = re.compile(r"(\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?", re.ASCII)
VALUE_LENGTH_MAX = 80
DEPTH_MAX = 64
_CONTAINERS = (list, tuple, set, frozenset, Mapping)
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = VALUE_LENGTH_MAX
_HINT = "correct the value, widen the column with evolve, or write it under another name"

# Types that Arrow infers from Python values without changing any of them.
_INFERRED_EXACTLY = frozenset({pa.int64(), pa.float64(), pa.string(), pa.bool_()})
_MISFIT = (pa.ArrowException, ValueError, TypeError, OverflowError, InvalidOperation, Invalid)


def fit_batch(batch: pa.RecordBatch, schema: Schema, spec: TableSpec) -> pa.RecordBatch:
    """Return rows with the table's columns and types; every value is checked."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name in schema.by_name:
            _check_width(name, column, schema.column(name).type)
    rows = validate_batch(coerce_batch(batch, schema, spec))
    times = rows.column(spec.time_column)
    if times.null_count:
        raise Invalid("the row has no time", column=spec.time_column)
    if spec.bucket.is_time:
        _check_years(times)
    return rows


def column_from_texts(name: str, texts: pa.Array, kind: pa.DataType, spec: TableSpec) -> pa.Array:
    """Return a column of a table's type from the texts of CSV."""
    kind = kind.value_type if kinds.is_dictionary(kind) else kind
    try:
        if not _is_text(kind):
            texts = pc.utf8_trim_whitespace(texts)
        texts = pc.if_else(pc.equal(texts, ""), None, texts)
        return _parse_texts(name, texts, kind, spec)
    except _MISFIT as error:
        raise _misfit_error(name, str(kind), error) from error


def column_from_values(
    name: str, values: Sequence[Any], kind: pa.DataType, spec: TableSpec
) -> pa.Array:
    """Return a column of a table's type from Python or JSON values."""
    kind = kind.value_type if kinds.is_dictionary(kind) else kind
    if kind in _INFERRED_EXACTLY:
        inferred = _infer_with_arrow(values)
        if inferred is not None and inferred.type == kind:
            return inferred
    try:
        return _convert_values(name, values, kind, spec)
    except _MISFIT as error:
        raise _first_misfit(name, values, kind, spec, error) from error


def from_json(name: str, values: Sequence[Any], kind: pa.DataType, spec: TableSpec) -> pa.Array:
    """Return a column of values that JSON was parsed to."""
    convert = json_conversion(kind)
    if convert is None:
        return column_from_values(name, values, kind, spec)
    converted = []
    for row, value in enumerate(values):
        try:
            converted.append(convert(value))
        except ValueError as error:
            raise _misfit_error(name, str(kind), error, row=row, value=short_text(value)) from error
    return column_from_values(name, converted, kind, spec)


def json_conversion(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Return how what JSON writes as text becomes a value of a type, or None where it is one.

    It raises `ValueError` for a text that is no such value.
    """
    if kinds.is_dictionary(kind):
        return json_conversion(kind.value_type)
    if kinds.is_floating(kind):
        return _float_of_json
    if _is_bytes(kind):
        return _bytes_of_json
    if kinds.is_map(kind):
        item = json_conversion(kind.item_type)
        return None if item is None else lambda value: _with_members(value, lambda key: item)
    inner = [json_conversion(kind.field(place).type) for place in range(kind.num_fields)]
    if not any(inner):
        return None
    if kinds.is_struct(kind):
        fields = {field.name: convert for field, convert in zip(kind, inner, strict=True)}
        return lambda value: _with_members(value, fields.get)
    return lambda value: _with_elements(value, inner[0])


def _with_elements(value: Any, convert: Callable[[Any], Any] | None) -> Any:
    if not isinstance(value, list) or convert is None:
        return value
    return [convert(one) for one in value]


def _with_members(value: Any, conversion: Callable[[str], Callable[[Any], Any] | None]) -> Any:
    if not isinstance(value, dict):
        return value
    found = {}
    for key, one in value.items():
        convert = conversion(key)
        found[key] = one if convert is None else convert(one)
    return found


def _float_of_json(value: Any) -> Any:
    if isinstance(value, str) and value not in _FLOATS_OF_JSON:
        raise ValueError("a number is expected, or NaN, Infinity or -Infinity as text")
    return _FLOATS_OF_JSON[value] if isinstance(value, str) else value


def _bytes_of_json(value: Any) -> Any:
    return bytes.fromhex(value) if isinstance(value, str) else value


def has_decimals(kind: pa.DataType) -> bool:
    """Tell whether a type is decimal, or has decimals inside."""
    if kinds.is_dictionary(kind):
        kind = kind.value_type
    inner = [kind.field(place).type for place in range(kind.num_fields)]
    return bool(kinds.is_decimal(kind)) or any(has_decimals(one) for one in inner)


def infer_column(name: str, values: Sequence[Any], spec: TableSpec) -> pa.Array:
    """Return a column of values for which the table has no type yet; the type is inferred."""
    if name == spec.time_column:
        has_zone = spec.timezone is not None or any(map(_names_an_instant, values))
        return column_from_values(
            name, values, default_index_type(spec.bucket, has_zone=has_zone), spec
        )
    values = [None if _is_missing(value) else value for value in values]
    try:
        _check_depth(values)
        found = pa.array(values)
    except _MISFIT as error:
        raise _first_stranger(name, values, error) from error
    return (
        found if kinds.is_null(found.type) else column_from_values(name, values, found.type, spec)
    )


def _infer_with_arrow(values: Sequence[Any]) -> pa.Array | None:
    """Return values as Arrow takes them by itself, or None where it cannot or they are nested."""
    types = set(map(type, values)) - {NoneType}
    if any(issubclass(kind, _CONTAINERS) for kind in types):
        return None
    if len(types) > 1 and any(kind.__name__ in _BOOLEANS for kind in types):
        return None  # Arrow takes True for 1.0 where another value is a double
    try:
        return pa.array(values)
    except _MISFIT:
        return None


def _first_stranger(name: str, values: Sequence[Any], error: Exception) -> Invalid:
    """Return the error for the first value that has no common type with those before it."""
    expected = "one type for all rows"
    if not _are_alike(values[:1]):
        return _misfit_error(name, expected, error, row=0, value=short_text(values[0]))
    fit, stranger = 1, len(values)
    while fit < stranger:
        middle = (fit + stranger) // 2
        fit, stranger = (
            (middle + 1, stranger) if _are_alike(values[: middle + 1]) else (fit, middle)
        )
    if stranger == len(values):
        return _misfit_error(name, expected, error)
    return _misfit_error(name, expected, error, row=stranger, value=short_text(values[stranger]))


def _are_alike(values: Sequence[Any]) -> bool:
    """Tell whether Arrow finds one type for these values."""
    try:
        _check_depth(values)
        pa.array(values)
    except _MISFIT:
        return False
    return True


def short_text(value: Any) -> str:
    """Return a value as a text for an error, cut at the limit."""
    return _SHORT.repr(value)[:VALUE_LENGTH_MAX].encode("utf-8", "replace").decode()


def _check_depth(values: Sequence[Any]) -> None:
    """Raise `ValueError` for values nested past the limit: Arrow would crash the process."""
    waiting: list[tuple[Any, int]] = [(values, 0)]
    while waiting:
        value, depth = waiting.pop()
        if depth > DEPTH_MAX:
            raise ValueError(f"it is nested deeper than {DEPTH_MAX} levels")
        inside = value.values() if isinstance(value, Mapping) else value
        waiting += [(one, depth + 1) for one in inside if isinstance(one, _CONTAINERS)]


def _convert_values(
    name: str, values: Sequence[Any], kind: pa.DataType, spec: TableSpec
) -> pa.Array:
    if kinds.is_timestamp(kind):
        return _convert_times(values, kind, spec if name == spec.time_column else None)
    return pa.array([_exact_value(value, kind) for value in values], kind)


def _first_misfit(
    name: str, values: Sequence[Any], kind: pa.DataType, spec: TableSpec, error: Exception
) -> Invalid:
    """Return the error for the first value that does not fit when it is converted alone."""
    for row, value in enumerate(values):
        try:
            _convert_values(name, [value], kind, spec)
        except _MISFIT as found:
            return _misfit_error(name, str(kind), found, row=row, value=short_text(value))
    return _misfit_error(name, str(kind), error)


def _names_an_instant(value: Any) -> bool:
    """Tell whether a time is an instant by itself, without the table's zone."""
    if isinstance(value, datetime):
        return value.tzinfo is not None
    if isinstance(value, str):
        return re.search(_ZONED, value.strip()) is not None and len(value) > len("2024-06-01")
    return isinstance(value, int)


def _convert_times(values: Sequence[Any], kind: pa.DataType, spec: TableSpec | None) -> pa.Array:
    """Return a column of times from values of any supported type; `spec` for the time column."""
    types = set(map(type, values)) - {NoneType}
    if types == {datetime}:
        is_naive = {value.tzinfo is None for value in values if value is not None}
        in_zone = spec if is_naive == {True} else None
        if len(is_naive) == 1 and (in_zone is None or in_zone.timezone is None):
            # Arrow takes a datetime without a zone as UTC, and converts one that has a zone.
            found = pa.array(values, pa.timestamp("us", tz=kind.tz)).cast(kind)
            _check_years(found)
            return found
    texts = values if types == {str} else [_time_text(value) for value in values]
    return _parse_times(pa.array(texts, pa.string()), kind, spec)


def _check_years(times: pa.Array) -> None:
    """Raise `Invalid` for an instant outside the years 1 to 9999."""
    bounds = pc.min_max(times.cast(pa.int64()))
    for bound in ("min", "max"):
        if bounds[bound].is_valid:
            instant.check_instant(bounds[bound].as_py() * NS_PER_UNIT[times.type.unit])


def _as_utc(times: pa.Array, utc: pa.DataType, spec: TableSpec | None) -> pa.Array:
    """Return times without a zone as instants: clock times of a table's zone, or UTC."""
    return times.cast(pa.int64()).cast(utc) if spec is None else to_utc(times, utc, spec)


def _cast_from_utc(times: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return instants in UTC as a column of this unit, with or without a zone."""
    _check_years(times)
    return times.cast(kind) if kind.tz else times.cast(pa.int64()).cast(kind)


def _time_text(value: Any) -> str | None:
    """Return a time as ISO 8601 text, or as the digits of its nanoseconds since 1970."""
    if _is_missing(value):
        return None
    if isinstance(value, str):
        return value
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).isoformat()
    if isinstance(value, date):  # includes datetime
        return value.isoformat()
    if type(value).__name__ == "datetime64":
        return str(value)
    if hasattr(value, "__index__") and not isinstance(value, bool):
        return str(int(value))
    raise ValueError(f"{type(value).__name__} is not a time")


def _is_missing(value: Any) -> bool:
    """Tell whether a value is null: None, or what pandas and numpy have for it."""
    return value is None or (type(value).__name__ in _MISSING and str(value) in _NULLS)


def _parse_texts(name: str, texts: pa.Array, kind: pa.DataType, spec: TableSpec) -> pa.Array:
    if kinds.is_timestamp(kind):
        return _parse_times(texts, kind, spec if name == spec.time_column else None)
    if kinds.is_duration(kind):
        return texts.cast(pa.int64()).cast(kind)
    if kinds.is_time(kind) or kind in EXTENSIONS:
        return pa.array([_exact_value(text, kind) for text in texts.to_pylist()], kind)
    if kinds.is_nested(kind):
        raise ValueError("a text cannot be read as this type")
    if _is_bytes(kind):
        return pa.array([_bytes_of_json(text) for text in texts.to_pylist()], kind)
    return _parse_numbers(texts, kind) if kinds.is_floating(kind) else texts.cast(kind)


def _parse_numbers(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return floating numbers of texts; `ValueError` for one that does not fit this width."""
    found = texts.cast(pa.float64()).cast(kind)
    too_large = pc.and_(pc.is_inf(found), pc.invert(pc.match_substring_regex(texts, _INFINITE)))
    if pc.any(too_large).as_py():
        raise ValueError(f"{texts.filter(too_large)[0]} is too large for {kind}")
    is_long = pc.greater_equal(pc.abs(found.cast(pa.float64())), 2.0 ** _EXACT_BITS[kind.bit_width])
    inexact = pc.and_(is_long, pc.match_substring_regex(texts, _WHOLE))
    for text, value in zip(texts.filter(inexact), found.filter(inexact), strict=True):
        if int(text.as_py()) != int(value.as_py()):
            raise ValueError(f"{text} is a whole number that {kind} does not hold exactly")
    return found


def _parse_times(texts: pa.Array, kind: pa.DataType, spec: TableSpec | None) -> pa.Array:
    """Return instants of texts; some texts may have a zone."""
    utc = pa.timestamp(kind.unit, tz="UTC")
    # In most columns all times have the form of the first, and one cast reads them all. A failed
    # cast costs as much as thirty successful ones, so only one is tried.
    with suppress(pa.ArrowInvalid):
        if len(texts) and _names_an_instant(texts[0].as_py()):
            return _cast_from_utc(texts.cast(utc), kind)
        return _cast_from_utc(_as_utc(texts.cast(pa.timestamp(kind.unit)), utc, spec), kind)
    texts = pc.utf8_trim_whitespace(texts)
    zoned = pc.and_(
        pc.match_substring_regex(texts, _ZONED), pc.match_substring_regex(texts, _CLOCK)
    )
    counted = pc.match_substring_regex(texts, _WHOLE)
    nothing = pa.nulls(len(texts), pa.string())
    with_zone = pc.if_else(zoned, texts, nothing).cast(utc)
    without = pc.if_else(pc.or_(zoned, counted), nothing, texts).cast(pa.timestamp(kind.unit))
    found = pc.coalesce(with_zone, _as_utc(without, utc, spec))
    if pc.any(counted).as_py():
        found = pc.coalesce(found, _times_from_counts(pc.if_else(counted, texts, nothing), utc))
    return _cast_from_utc(found, kind)


def _times_from_counts(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the instants of whole numbers, which count nanoseconds since 1970."""
    counts = [None if text is None else from_count(int(text)) for text in texts.to_pylist()]
    # This cast is checked: digits that the column cannot hold are an error.
    return pa.array(counts, pa.int64()).cast(pa.timestamp("ns", tz="UTC")).cast(kind)


def _check_width(name: str, column: pa.Array, kind: pa.DataType) -> None:
    """Raise `Invalid` for a floating number that a narrower column would round."""
    if not (kinds.is_floating(kind) and kinds.is_floating(column.type)):
        return
    if kind.bit_width >= column.type.bit_width:
        return
    back = column.cast(kind).cast(column.type)
    is_same = pc.or_(pc.equal(back, column), pc.and_(pc.is_nan(back), pc.is_nan(column)))
    if not pc.all(is_same).as_py():
        why = ValueError(f"a number of {column.type} would be rounded")
        raise _misfit_error(name, str(kind), why)


def _exact_value(value: Any, kind: pa.DataType) -> Any:
    """Return a value if a column of this type holds it exactly; `ValueError` otherwise.

    Arrow itself truncates a fraction in a column of whole numbers, omits a key that a struct does
    not have, turns a number that is too large into infinity, and truncates a time to its date.
    """
    if _is_missing(value):
        return None
    if type(value).__module__ == "numpy" and hasattr(value, "item") and not value.shape:
        value = value if type(value).__name__ in _MISSING else value.item()
    if kind in EXTENSIONS:
        return _exact_uuid(value) if kind == pa.uuid() else _exact_json(value)
    if kinds.is_temporal(kind):
        return _exact_time(value, kind)
    if kinds.is_integer(kind) or kinds.is_floating(kind):
        return _exact_number(value, kind)
    if kinds.is_decimal(kind):
        return _exact_decimal(value)
    if kinds.is_nested(kind):
        return _exact_nested(value, kind)
    if _is_text(kind) != isinstance(value, str) and not kinds.is_boolean(kind):
        raise ValueError(f"{type(value).__name__} is not {kind}")
    return value


def _exact_uuid(value: Any) -> UUID:
    if isinstance(value, str):
        return UUID(value)
    if isinstance(value, bytes):
        return UUID(bytes=value)
    if not isinstance(value, UUID):
        raise ValueError(f"a UUID is expected, not {type(value).__name__}")
    return value


def _exact_json(value: Any) -> str:
    """Return JSON as text: a text as it is, if it is JSON, and any other value encoded."""
    if not isinstance(value, str):
        _check_finite(value)
        return orjson.dumps(value, option=orjson.OPT_PASSTHROUGH_DATACLASS).decode()
    orjson.loads(value)
    return value


def _check_finite(value: Any) -> None:
    """Raise `ValueError` for a number that JSON cannot write: the encoder would write null."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, float) and not math.isfinite(one):
            raise ValueError(f"JSON has no {one}: pass a finite number, a text or None")
        if isinstance(one, Mapping):
            waiting += one.values()
        elif isinstance(one, list | tuple):
            waiting += one


def _exact_nested(value: Any, kind: pa.DataType) -> Any:
    if kinds.is_map(kind):
        pairs = value.items() if isinstance(value, dict) else value
        return [
            (_exact_value(key, kind.key_type), _exact_value(item, kind.item_type))
            for key, item in pairs
        ]
    if kinds.is_struct(kind) and isinstance(value, dict):
        fields = {field.name: field.type for field in kind}
        unknown = [name for name in value if name not in fields]
        if unknown:
            raise ValueError(f"the column has no field {unknown[0]!r}")
        return {name: _exact_value(one, fields[name]) for name, one in value.items()}
    if kinds.is_struct(kind) or isinstance(value, str | bytes | dict):
        raise ValueError(f"{type(value).__name__} is not {kind}")
    return [_exact_value(one, kind.value_type) for one in value]


def _exact_time(value: Any, kind: pa.DataType) -> Any:
    """Return a time, date, time of day or duration in a form that Arrow does not truncate."""
    if kinds.is_timestamp(kind):
        return _count_in_unit(instant.to_instant(value), kind)
    if kinds.is_date(kind):
        return _exact_date(value)
    if kinds.is_time(kind):
        return _count_in_unit(_ns_of_day(value), kind)
    if isinstance(value, timedelta):
        nanoseconds = getattr(value, "nanoseconds", 0)  # of pandas
        return _count_in_unit(value // timedelta(microseconds=1) * 1_000 + nanoseconds, kind)
    if type(value).__name__ == "timedelta64":
        return _count_in_unit(_ns_of_timedelta64(value), kind)
    return _exact_number(value, kind)  # a duration may be a number of its column's unit


def _ns_of_timedelta64(value: Any) -> int:
    unit, steps = np.datetime_data(value.dtype)
    if unit not in _NS_PER_STEP:
        raise ValueError(f"a duration in units of {unit!r} has no exact length in nanoseconds")
    return int(value.astype("int64")) * steps * _NS_PER_STEP[unit]


def _count_in_unit(count_ns: int, kind: pa.DataType) -> int:
    count, rest = divmod(count_ns, NS_PER_UNIT[kind.unit])
    if rest:
        raise ValueError(f"{kind} does not hold all its digits")
    return count


def _exact_date(value: Any) -> date:
    if isinstance(value, str) and _DAY.fullmatch(value.strip()):
        return date.fromisoformat(value.strip())
    if isinstance(value, datetime) and value.tzinfo is None and value.time() == time():
        if getattr(value, "nanosecond", 0):  # of pandas
            raise ValueError("a date does not hold nanoseconds")
        return value.date()
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    raise ValueError("a date is expected, such as 2024-06-01")


def _ns_of_day(value: Any) -> int:
    text = value.isoformat() if isinstance(value, time) else value
    found = _TIME_OF_DAY.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None:
        raise ValueError("a time of day without a zone is expected, such as 13:00:00")
    hour, minute, second = (int(part or 0) for part in found.groups()[:3])
    time(hour, minute, second)  # refuses 25:00
    return ((hour * 60 + minute) * 60 + second) * NS_PER_S + int((found[4] or "0").ljust(9, "0"))


def _exact_number(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, bool):
        raise ValueError("a boolean is not a number")
    if kinds.is_floating(kind):
        return _exact_float(value, kind)
    if isinstance(value, float) and 2 ** _EXACT_BITS[64] <= abs(value) < float("inf"):
        raise ValueError(f"{value} is a double, which may stand for several whole numbers")
    if isinstance(value, float | Decimal):
        if value != int(value):
            raise ValueError(f"a whole number is expected, not {value}")
        return int(value)
    if not isinstance(value, int):
        raise ValueError(f"a number is expected, not {type(value).__name__}")
    return value


def _exact_float(value: Any, kind: pa.DataType) -> Any:
    if not isinstance(value, int | float | Decimal):
        raise ValueError(f"a number is expected, not {type(value).__name__}")
    found = float(value)
    is_finite = isinstance(value, int) or Decimal(value).is_finite()
    if is_finite and abs(found) > _LARGEST[kind.bit_width]:
        raise ValueError(f"{value} is too large for {kind}")
    is_whole = isinstance(value, int) or (
        isinstance(value, Decimal) and is_finite and value == value.to_integral_value()
    )
    if is_whole and int(_FLOATS[kind.bit_width](found)) != value:
        raise ValueError(f"{value} is a whole number that {kind} does not hold exactly")
    return found


def _exact_decimal(value: Any) -> Decimal:
    if isinstance(value, bool):
        raise ValueError("a boolean is not a number")
    text = str(value).strip()
    if isinstance(value, str) and _DIGITS.fullmatch(text) is None:
        raise ValueError("it is not a number")
    return Decimal(text)


def _is_text(kind: pa.DataType) -> bool:
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    tests = (kinds.is_binary, kinds.is_large_binary, kinds.is_binary_view)
    return any(test(kind) for test in tests) or bool(kinds.is_fixed_size_binary(kind))


def _misfit_error(name: str, expected: str, error: Exception, **place: Any) -> Invalid:
    if isinstance(error, Invalid):
        why = f"{error.message}: {error.hint}" if error.hint else error.message
    else:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
    return Invalid(
        "a value does not fit its column",
        hint=_HINT,
        column=name,
        expected=expected,
        why=why,
        **place,
    )
