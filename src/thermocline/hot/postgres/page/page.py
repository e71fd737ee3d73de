"""The request and the answer of a page of entities.

In:   a filter, an order, fields, the cursor of the previous page; a filter as values or as JSON
Out:  a `Page`: entities in order, the cursor of the next page, the referenced entities

    {"field": "status", "op": "eq", "value": "open"}
    {"and": [...]}   {"or": [...]}   {"not": ...}

- A field is a property (`status`), a pointer into one (`/address/city`), or `_id`, `_ver`,
  `_schema_version`, `_written_at`.
- A comparison is true or false, never unknown: if the property is absent or null it is false, and
  its `not` is true. `ne` is the `not` of `eq`; `is_null` is true for absent or null.
- Only values, so that a client can import them without the driver. `page_query.py` reads pages,
  `condition.py` translates filters to SQL.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from thermocline.errors import Invalid
from thermocline.hot.postgres.store.operation import StoredEntity

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


@dataclass(frozen=True, slots=True)
class PageRequest:
    """The request of a page. `sort` names fields, `-` before one for descending."""

    filter: Filter | None = None
    sort: tuple[str, ...] = ()
    fields: Sequence[str] | None = None
    after: str | None = None
    limit: int = 100
    refs: tuple[str, ...] = ()
    with_total: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """Entities in order; `after` is the cursor of the next page, None for the last page.

    `refs` has the referenced entities by type and key; one that is also on the page may be the
    same object. `total` is None unless requested.
    """

    entities: list[StoredEntity]
    after: str | None = None
    total: int | None = None
    refs: dict[str, dict[str, StoredEntity]] = field(default_factory=dict)
