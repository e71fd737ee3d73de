"""Texts and JSON values as columns of a table's types, exactly or not at all.

In:   columns of texts (of CSV), or lists of values (of JSON); the type a column has
Out:  Arrow arrays; `Invalid` with the column and the reason when a value does not fit

- An empty text is null, except in JSON, which has a null of its own.
- A time says its zone or has none: one without is a clock time of the table's zone, or UTC.
- A time is a text in ISO 8601. A number is not a time: nobody says of what unit it would be.
- No value is rounded, cut or wrapped to make it fit.
"""

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


def fitted(batch: pa.RecordBatch, schema: Schema, spec: TableSpec) -> pa.RecordBatch:
    """Return rows with the table's columns and types, checked to the last value."""
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
        is_number = kinds.is_integer(kind) or kinds.is_floating(kind)
        if is_number and any(isinstance(value, bool) for value in values):
            raise ValueError("a boolean is not a number")
        if kinds.is_integer(kind) and any(_is_broken(value) for value in values):
            raise ValueError("a whole number is expected")
        if kinds.is_temporal(kind) and not kinds.is_duration(kind):
            return _read(name, pa.array(values, pa.string()), kind, spec)
        return pa.array(values, kind)
    except (pa.ArrowException, ValueError, TypeError, OverflowError, InvalidOperation) as error:
        raise _does_not_fit(name, kind, error) from error


def _read(name: str, texts: pa.Array, kind: pa.DataType, spec: TableSpec) -> pa.Array:
    if kinds.is_timestamp(kind):
        return _times(texts, kind, spec if name == spec.time_column else None)
    if kinds.is_duration(kind):
        return texts.cast(pa.int64()).cast(kind)
    if kinds.is_nested(kind):
        raise ValueError("a text cannot be this")
    return texts.cast(kind)


def _times(texts: pa.Array, kind: pa.DataType, spec: TableSpec | None) -> pa.Array:
    """Return instants of texts, some of which may say a zone."""
    zoned = pc.and_(
        pc.match_substring_regex(texts, _ZONED), pc.match_substring_regex(texts, _CLOCK)
    )
    utc = pa.timestamp(kind.unit, tz="UTC")
    nothing = pa.nulls(len(texts), pa.string())
    with_zone = pc.if_else(zoned, texts, nothing).cast(utc)
    without = pc.if_else(zoned, nothing, texts).cast(pa.timestamp(kind.unit))
    if spec is not None:
        without = in_utc(without, utc, spec)
    found = pc.coalesce(with_zone, without.cast(pa.int64()).cast(utc))
    return found if kind.tz else found.cast(pa.int64()).cast(kind)


def _is_broken(value: Any) -> bool:
    return isinstance(value, float) and not value.is_integer()


def _decimal(value: Any) -> Decimal | None:
    if isinstance(value, bool):
        raise ValueError("a boolean is not a number")
    return None if value is None else Decimal(str(value))


def _is_text(kind: pa.DataType) -> bool:
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind))


def _does_not_fit(name: str, kind: pa.DataType, error: Exception) -> Invalid:
    why = str(error).splitlines()[0] if str(error) else type(error).__name__
    return Invalid(
        "a value does not fit its column", column=f"{name} ({kind})", why=why, expected=str(kind)
    )
