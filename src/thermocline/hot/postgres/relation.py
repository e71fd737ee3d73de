"""Which properties refer to entities of other types, and how their rows come with a page.

In:   `"x-relation": "customer"` at a property that holds a key, or a list of keys
Out:  the other type's name; a column of a page's query that holds the rows referred to

One query gives the page and everything it refers to: the rows come as JSON beside each row.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

import msgspec

from thermocline.errors import Invalid
from thermocline.hot.postgres.filter import Binds, place_of
from thermocline.hot.postgres.layout import Layout
from thermocline.hot.postgres.operation import Entity

_exact = msgspec.json.Decoder(float_hook=Decimal)
REFERENCES_MAX = 10


@dataclass(frozen=True, slots=True)
class Relation:
    """A property that holds keys of another type; `is_list` when it holds many."""

    name: str
    target: str
    is_list: bool


def relation_of(layout: Layout, name: str) -> Relation:
    """Return what a property refers to; `Invalid` when it refers to nothing."""
    node = layout.contract.schema.get("properties", {}).get(name)
    target = _said(node)
    if target is None:
        known = [
            found
            for found, inner in layout.contract.schema.get("properties", {}).items()
            if _said(inner) is not None
        ]
        hint = f"properties with x-relation are {', '.join(known)}" if known else "there are none"
        raise Invalid("the property refers to nothing", hint=hint, property=name)
    kind = next(part.kind for part in layout.contract.kind.fields if part.name == name)
    return Relation(name, target, kind.name == "list")


def referred(layout: Layout, relation: Relation, target: Layout, binds: Binds) -> str:
    """Return the rows that a property of a row refers to, as a JSON array of arrays."""
    place, pg_type = place_of(layout, relation.name, binds)
    columns = "".join(f", other.{column.sql_name}" for column in target.columns)
    if relation.is_list:
        keys = f"case when jsonb_typeof({place}) = 'array' then {place} else '[]' end"
        chosen = f"other.id in (select jsonb_array_elements_text({keys}))"
    else:
        key = f"{place} #>> '{{}}'" if pg_type == "jsonb" else f"{place}::text"
        chosen = f"other.id = {key}"
    return (
        "(select jsonb_agg(jsonb_build_array(other.id, other.ver, other.schema_version, "  # noqa: S608
        f"other.written_at, other.rest{columns}) order by other.id) from {target.table} as other "
        f"where {chosen})::text"
    )


def _said(node: Any) -> str | None:
    if not isinstance(node, dict):
        return None
    found = node.get("x-relation")
    if found is None and isinstance(node.get("items"), dict):
        found = node["items"].get("x-relation")
    if isinstance(found, Mapping):
        found = found.get("type")
    return found if isinstance(found, str) else None


def entities_in(target: Layout, text: str | None) -> list[Entity]:
    """Return the entities of the rows that `referred` gave."""
    if text is None:
        return []
    rows = _exact.decode(text)
    return [
        Entity(
            key,
            ver,
            version,
            datetime.fromisoformat(written_at),
            target.document_in_json(version, values, rest),
        )
        for key, ver, version, written_at, rest, *values in rows
    ]
