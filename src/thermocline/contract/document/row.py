"""Converts documents to rows of typed columns and back, exactly.

In:   documents in canonical form
Out:  values for Arrow or PostgreSQL, and the same documents from them

- A column stores null and absent alike. If a property may be both, the column `_nulls` has the
  pointers of the nulls; otherwise the schema tells which it is.
- JSON text stores null as the text `null`, so its column needs no entry in `_nulls`.
- The column `_extra` has all properties without a column.
"""

from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from thermocline.contract.document.canonical import (
    date_text,
    instant_text,
    json_form,
    number_form,
)
from thermocline.contract.document.kind import ColumnKind, KindField
from thermocline.contract.document.text import decode, encode_text
from thermocline.contract.schema.pointer import pointer_of
from thermocline.contract.schema.subschema import Json, Steps

_AS_IS = frozenset({"string", "uuid", "enum", "integer", "boolean"})


class Absent:
    """The value of a property that a document does not have."""


ABSENT = Absent()


def is_taken_as_is(kind: ColumnKind) -> bool:
    """Tell whether Arrow takes a document's values of the kind without conversion."""
    return kind.name in _AS_IS or (kind.name == "decimal" and not kind.is_text)


def may_be_either(part: KindField) -> bool:
    """Tell whether a property may be null or absent, and its column stores both alike."""
    return part.kind.nullable and not part.is_required and part.kind.name != "json"


def has_either(kind: ColumnKind) -> bool:
    """Tell whether a kind has such a property at any depth."""
    return any(may_be_either(part) for part in kind.fields) or any(map(has_either, kind.parts()))


def to_arrow(kind: ColumnKind, value: Any) -> Any:
    """Return the value from which Arrow builds the kind's type; `ABSENT` becomes null."""
    if value is ABSENT:
        return None
    if kind.name == "json":
        return encode_text(value)
    if value is None or kind.name not in _TO_ARROW:
        return value
    return _TO_ARROW[kind.name](kind, value)


def _struct_to_arrow(kind: ColumnKind, value: Json) -> Json:
    return {part.name: to_arrow(part.kind, value.get(part.name, ABSENT)) for part in kind.fields}


_TO_ARROW: dict[str, Callable[[ColumnKind, Any], Any]] = {
    "number": lambda kind, value: float(value),
    "decimal": lambda kind, value: Decimal(value),
    "date": lambda kind, value: date.fromisoformat(value),
    "timestamp": lambda kind, value: datetime.fromisoformat(value),
    "struct": _struct_to_arrow,
    "list": lambda kind, value: [to_arrow(kind.inner, item) for item in value],
    "map": lambda kind, value: [(key, to_arrow(kind.inner, v)) for key, v in value.items()],
}


def nulls_in(part: KindField, value: Any, at: Steps) -> list[str]:
    """Return the pointers of nulls that a column would store like absent properties."""
    if value is None:
        return [pointer_of(at)] if may_be_either(part) else []
    found: list[str] = []
    if value is ABSENT or not has_either(part.kind):
        return found
    kind = part.kind
    if kind.name == "struct":
        for inner in kind.fields:
            found += nulls_in(inner, value.get(inner.name, ABSENT), (*at, inner.name))
    elif kind.name in ("list", "map"):
        each = KindField("", kind.inner, is_required=True)
        items = enumerate(value) if kind.name == "list" else value.items()
        for key, item in items:
            found += nulls_in(each, item, (*at, key))
    return found


def from_arrow(part: KindField, value: Any, at: Steps, nulls: frozenset[str]) -> Any:
    """Return a property of a document from its column's value, or `ABSENT`."""
    kind = part.kind
    if value is None:
        if kind.name == "json" or not kind.nullable:
            return ABSENT
        return None if part.is_required or pointer_of(at) in nulls else ABSENT
    match kind.name:
        case "json":
            return json_form(decode(value.encode()))
        case "struct":
            parts = (
                (inner.name, from_arrow(inner, value[inner.name], (*at, inner.name), nulls))
                for inner in kind.fields
            )
            return {name: found for name, found in parts if found is not ABSENT}
        case "list" | "map":
            each = KindField("", kind.inner, is_required=True)
            if kind.name == "list":
                return [from_arrow(each, v, (*at, i), nulls) for i, v in enumerate(value)]
            pairs = value.items() if isinstance(value, Mapping) else value
            return {key: from_arrow(each, v, (*at, key), nulls) for key, v in pairs}
    return from_stored(kind, value)


def from_stored(kind: ColumnKind, value: Any) -> Any:
    """Return a scalar of a document from the value of Arrow or PostgreSQL."""
    match kind.name:
        case "timestamp":
            return instant_text(value)
        case "date":
            return date_text(value)
        case "uuid":
            return str(value)
        case "decimal":
            kept = Decimal(value)
            return format(kept, "f") if kind.is_text else kept
        case "number":
            return number_form(kind, value)
    return value


def to_postgres(kind: ColumnKind, value: Any) -> Any:
    """Return the value of a hot column for the PostgreSQL driver."""
    if value is not None and kind.name == "uuid":
        return UUID(value)
    return to_arrow(kind, value)
