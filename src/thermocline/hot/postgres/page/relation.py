"""Properties that refer to entities of other types.

In:   `"x-relation": "customer"` in the schema of a property that holds a key, or a list of keys
Out:  the other type's name; the SQL expression of the keys in a row
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from thermocline.errors import Invalid
from thermocline.hot.postgres.page.condition import ROW, Binds, field_expression
from thermocline.hot.postgres.schema.layout import Layout

REFERENCES_MAX = 10


@dataclass(frozen=True, slots=True)
class EntityRelation:
    """A property that holds keys of another type; `is_list` when it holds many."""

    name: str
    target: str
    is_list: bool


def relation_of(layout: Layout, name: str) -> EntityRelation:
    """Return the relation of a property; `Invalid` when it has no x-relation."""
    node = layout.contract.schema.get("properties", {}).get(name)
    target = _relation_target(node)
    if target is None:
        known = [
            found
            for found, inner in layout.contract.schema.get("properties", {}).items()
            if _relation_target(inner) is not None
        ]
        hint = f"use one of {', '.join(known)}" if known else "mark a property with x-relation"
        raise Invalid("the property has no x-relation", hint=hint, property=name)
    kind = next(part.kind for part in layout.contract.kind.fields if part.name == name)
    return EntityRelation(name, target, kind.name == "list")


def reference_expression(layout: Layout, relation: EntityRelation, binds: Binds) -> str:
    """Return the SQL expression of a row's reference: a key as text, or a jsonb list of keys."""
    place, pg_type = field_expression(layout, relation.name, binds)
    if relation.is_list:
        return f"case when jsonb_typeof({place}) = 'array' then {place} else '[]' end"
    if pg_type == "jsonb":
        return f"({ROW}.rest ->> {binds.add(relation.name)}::text)"
    return f"{place}::text"


def _relation_target(node: Any) -> str | None:
    if not isinstance(node, dict):
        return None
    found = node.get("x-relation")
    if found is None and isinstance(node.get("items"), dict):
        found = node["items"].get("x-relation")
    if isinstance(found, Mapping):
        found = found.get("type")
    return found if isinstance(found, str) else None
