"""Texts and JSON values as columns of a table's types, exactly or not at all.

In:   columns of texts (of CSV), or lists of values (of JSON); the type a column has
Out:  Arrow arrays; `Invalid` with the column and the reason when a value does not fit

- An empty text is null, except in JSON, which has a null of its own.
- A time says its zone or has none: one without is a clock time of the table's zone, or UTC.
- A time is a text in ISO 8601, or a whole number of nanoseconds since 1970. A whole number that is
  not plausible as nanoseconds is refused: it is likely to count another unit.
- No value is cut, wrapped or rounded to make it fit. A broken number is the nearest number of its
  column's width; a whole number must be held exactly, and a finite one never becomes infinite.
"""

import sys
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from thermocline.errors import Invalid
from thermocline.format import instant
from thermocline.format.action import TableSpec
from thermocline.format.instant import NS_PER_UNIT
from thermocline.format.schema import Schema
from thermocline.lake.segment import coerce, in_utc, validated

_ZONED = r"(?:Z|[+-]\d\d(?::?\d\d)?)$"
_CLOCK = r"^\d{4}-\d\d-\d\d[T ]"
_WHOLE = r"^[+-]?\d+$"
_INFINITE = r"(?i)^[+-]?inf(?:inity)?$"
_EXACT_BITS = {16: 11, 32: 24, 64: 53}
_LARGEST = {16: 65_504.0, 32: 3.4028234663852886e38, 64: sys.float_info.max}
PLAUSIBLE_NS_MIN = 10**17
"""The first whole number that is taken as a time: 1973 in nanoseconds.

In microseconds it would be the year 5138, so that no time of our days is taken in another unit."""


def fitted(batch: pa.RecordBatch, schema: Schema, spec: TableSpec) -> pa.RecordBatch:
    """Return rows with the table's columns and types, checked to the last value."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name in schema.by_name:
            _check_width(name, column, schema.column(name).type)
    rows = validated(coerce(batch, schema, spec))
    times = rows.column(spec.time_column)
    if times.null_count:
        raise Invalid("the row has no time", column=spec.time_column)
    if len(times):
        unit_ns = NS_PER_UNIT[times.type.unit]
        bounds = pc.min_max(times.cast(pa.int64()))
        instant.checked(bounds["min"].as_py() * unit_ns)
        instant.checked(bounds["max"].as_py() * unit_ns)
    return rows


def from_texts(name: str, texts: pa.Array, kind: pa.DataType, spec: TableSpec) -> pa.Array:
    """Return the values of a column of CSV."""
    kind = kind.value_type if kinds.is_dictionary(kind) else kind
    try:
        if not (_is_text(kind) or kinds.is_binary(kind) or kinds.is_large_binary(kind)):
            texts = pc.utf8_trim_whitespace(texts)
        texts = pc.if_else(pc.equal(texts, ""), None, texts)
        return _read(name, texts, kind, spec)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise _does_not_fit(name, kind, error) from error


def from_values(name: str, values: Sequence[Any], kind: pa.DataType, spec: TableSpec) -> pa.Array:
    """Return the values of a column of JSON."""
    kind = kind.value_type if kinds.is_dictionary(kind) else kind
    try:
        if kinds.is_decimal(kind):
            return pa.array([_decimal(value) for value in values], kind)
        if kinds.is_timestamp(kind):
            values = [_digits(value) for value in values]
        if kinds.is_temporal(kind) and not kinds.is_duration(kind):
            return _read(name, pa.array(values, pa.string()), kind, spec)
        return pa.array([_exact(value, kind) for value in values], kind)
    except (pa.ArrowException, ValueError, TypeError, OverflowError, InvalidOperation) as error:
        raise _does_not_fit(name, kind, error) from error


def _read(name: str, texts: pa.Array, kind: pa.DataType, spec: TableSpec) -> pa.Array:
    if kinds.is_timestamp(kind):
        return _times(texts, kind, spec if name == spec.time_column else None)
    if kinds.is_duration(kind):
        return texts.cast(pa.int64()).cast(kind)
    if kinds.is_nested(kind):
        raise ValueError("a text cannot be this")
    return _numbers(texts, kind) if kinds.is_floating(kind) else texts.cast(kind)


def _numbers(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return floating numbers of texts; `ValueError` for one that this width does not hold."""
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


def _times(texts: pa.Array, kind: pa.DataType, spec: TableSpec | None) -> pa.Array:
    """Return instants of texts, some of which may say a zone."""
    zoned = pc.and_(
        pc.match_substring_regex(texts, _ZONED), pc.match_substring_regex(texts, _CLOCK)
    )
    counted = pc.match_substring_regex(texts, _WHOLE)
    utc = pa.timestamp(kind.unit, tz="UTC")
    nothing = pa.nulls(len(texts), pa.string())
    with_zone = pc.if_else(zoned, texts, nothing).cast(utc)
    without = pc.if_else(pc.or_(zoned, counted), nothing, texts).cast(pa.timestamp(kind.unit))
    if spec is not None:
        without = in_utc(without, utc, spec)
    found = pc.coalesce(with_zone, without.cast(pa.int64()).cast(utc))
    if pc.any(counted).as_py():
        found = pc.coalesce(found, _counted(pc.if_else(counted, texts, nothing), utc))
    return found if kind.tz else found.cast(pa.int64()).cast(kind)


def _counted(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the instants of whole numbers, which count nanoseconds since 1970."""
    for text in texts.drop_null().to_pylist():
        if abs(int(text)) < PLAUSIBLE_NS_MIN:
            raise ValueError(
                f"a whole number counts nanoseconds since 1970, and {text} is too small to be one: "
                "multiply it (by 1000000000 if it counts seconds), or write 2024-06-01T13:00:00Z"
            )
    # Not cast from nanoseconds in silence: digits that the column does not keep are an error.
    return texts.cast(pa.int64()).cast(pa.timestamp("ns", tz="UTC")).cast(kind)


def _digits(value: Any) -> Any:
    """Return a whole number as its text; every other value as it is."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


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
        raise _does_not_fit(name, kind, why)


def _exact(value: Any, kind: pa.DataType) -> Any:
    """Return a value of JSON if a column of this type holds it as it is; `ValueError` otherwise.

    Arrow itself cuts a broken number to a whole one, passes over a key that a struct does not
    have, and makes infinity of a number that is too large.
    """
    if value is None:
        return None
    if kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_duration(kind):
        return _exact_number(value, kind)
    if kinds.is_decimal(kind):
        return _decimal(value)
    if kinds.is_map(kind):
        pairs = value.items() if isinstance(value, dict) else value
        return [(_exact(key, kind.key_type), _exact(item, kind.item_type)) for key, item in pairs]
    if kinds.is_nested(kind) and isinstance(value, list):
        return [_exact(one, kind.value_type) for one in value]
    if kinds.is_struct(kind) and isinstance(value, dict):
        fields = {field.name: field.type for field in kind}
        unknown = [name for name in value if name not in fields]
        if unknown:
            raise ValueError(f"the column has no field {unknown[0]!r}")
        return {name: _exact(one, fields[name]) for name, one in value.items()}
    return value


def _exact_number(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, bool):
        raise ValueError("a boolean is not a number")
    if kinds.is_floating(kind):
        found = float(value) if isinstance(value, Decimal) else value
        if isinstance(found, float) and abs(found) > _LARGEST[kind.bit_width]:
            raise ValueError(f"{value} is too large for {kind}")
        return found
    if isinstance(value, float | Decimal):
        if value != int(value):
            raise ValueError(f"a whole number is expected, not {value}")
        return int(value)
    return value


def _decimal(value: Any) -> Decimal | None:
    if isinstance(value, bool):
        raise ValueError("a boolean is not a number")
    return None if value is None else Decimal(str(value))


def _is_text(kind: pa.DataType) -> bool:
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind))


def _does_not_fit(name: str, kind: pa.DataType, error: Exception) -> Invalid:
    why = str(error).splitlines()[0] if str(error) else type(error).__name__
    return Invalid("a value does not fit its column", column=name, why=why, expected=str(kind))
