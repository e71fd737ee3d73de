"""A filter of entities: a small expression, as Python values or as JSON.

In:   comparisons of a field with a value, joined by and, or, not; or the same as JSON
Out:  a `Filter`

    {"field": "status", "op": "eq", "value": "open"}
    {"and": [...]}   {"or": [...]}   {"not": ...}

- A field is a property (`status`), a pointer into one (`/address/city`), or `_id`, `_ver`,
  `_schema_version`, `_written_at`.
- A comparison is true or false, never unknown: if the property is absent or null it is false, and
  its `not` is true. `ne` is the `not` of `eq`; `is_null` is true for absent or null.
- Only values, so that a client can import them without the driver. `condition.py` translates them
  to SQL.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from thermocline.errors import Invalid

DEPTH_MAX = 20


@dataclass(frozen=True, slots=True)
class Comparison:
    """A field compared with a value."""

    field: str
    op: str
    value: Any = None


@dataclass(frozen=True, slots=True)
class AllOf:
    """True when every part is."""

    parts: tuple["Filter", ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """True when one part is."""

    parts: tuple["Filter", ...]


@dataclass(frozen=True, slots=True)
class Not:
    """True when the part is not."""

    part: "Filter"


Filter = Comparison | AllOf | AnyOf | Not


def as_filter(given: "Filter | Mapping[str, Any] | None") -> Filter | None:
    """Return the caller's filter, parsed if it is JSON."""
    return given if given is None or isinstance(given, Filter) else parse_filter(given)


def parse_filter(document: Any, *, depth: int = 0) -> Filter:
    """Return the filter in a JSON document; `Invalid` when it has another form."""
    if depth > DEPTH_MAX:
        raise Invalid("the filter is nested too deep", hint="flatten it", depth_max=DEPTH_MAX)
    match document:
        case {"and": list(parts), **rest} if not rest:
            return AllOf(_parts(parts, depth))
        case {"or": list(parts), **rest} if not rest:
            return AnyOf(_parts(parts, depth))
        case {"not": part, **rest} if not rest:
            return Not(parse_filter(part, depth=depth + 1))
        case {"field": str(name), "op": str(op), **rest} if rest.keys() <= {"value"}:
            return Comparison(name, op, rest.get("value"))
    hint = 'use {"field", "op", "value"}, {"and": [...]}, {"or": [...]} or {"not": ...}'
    raise Invalid("unknown form of a filter", hint=hint)


def _parts(parts: list[Any], depth: int) -> tuple[Filter, ...]:
    return tuple(parse_filter(part, depth=depth + 1) for part in parts)
