"""Adds the limits of columns to a schema.

In:   a closed schema and its kind
Out:  the schema that validates documents

- The result accepts a document only if every value fits its column: 64 bits, the digits of a
  decimal that is text.
- The strict form accepts only documents that are already in canonical form, except for the form of
  their numbers: the texts of an accepted document need no second check.
"""

from typing import Any

from thermocline.contract.document.kind import ColumnKind
from thermocline.contract.schema.subschema import Json, Node

# Measured: a bound that is a double costs 1.3 microseconds, a pattern with counts 0.2; these cost
# almost nothing. Conversion to canonical form therefore checks that a number is finite and that a
# decimal is not too long.
DATE_STRICT = {"not": {"pattern": "^0000"}}
UUID_STRICT = {"not": {"pattern": "[A-F]"}}
TIMESTAMP_STRICT = {
    "pattern": r"^0{0,3}[1-9][0-9-]*T[0-9][0-9]:[0-9][0-9]:[0-5][0-9](\.[0-9]{0,5}[1-9])?Z$",
}
COLONS_IN_TIMESTAMP = 2
"""How many colons every timestamp that matches the pattern has."""


def narrow_schema(node: Node, kind: ColumnKind, *, is_strict: bool) -> Node:
    """Return the schema with the limits of its kind; `is_strict` also requires canonical form."""
    if not isinstance(node, dict):
        return node if node is False else _limits(kind, is_strict) or True
    match kind.name:
        case "struct":
            return _narrow_struct(node, kind, is_strict)
        case "list":
            return _narrow_inner(node, "items", kind, is_strict)
        case "map":
            word = "additionalProperties"
            return _narrow_inner(node, word, kind, is_strict)
    return _add_limits(node, _limits(kind, is_strict))


def _narrow_struct(node: Json, kind: ColumnKind, is_strict: bool) -> Json:
    own = dict(node.get("properties", {}))
    elsewhere: Json = {}
    for part in kind.fields:
        if part.name in own:
            own[part.name] = narrow_schema(own[part.name], part.kind, is_strict=is_strict)
        elif extra := narrow_schema({}, part.kind, is_strict=is_strict):
            elsewhere[part.name] = extra
    made = {**node, "properties": own} if own else dict(node)
    return _add_all_of(made, {"properties": elsewhere}) if elsewhere else made


def _narrow_inner(node: Json, word: str, kind: ColumnKind, is_strict: bool) -> Json:
    if isinstance(node.get(word), dict):
        return {**node, word: narrow_schema(node[word], kind.inner, is_strict=is_strict)}
    extra = narrow_schema({}, kind.inner, is_strict=is_strict)
    return _add_all_of(node, {word: extra}) if extra else node


def _add_limits(node: Json, limits: Json) -> Json:
    made = dict(node)
    for word, limit in limits.items():
        if word not in made:
            made[word] = limit
        elif word == "minimum":
            made[word] = max(made[word], limit)
        elif word == "maximum":
            made[word] = min(made[word], limit)
        else:
            made = _add_all_of(made, {word: limit})
    return made


def _add_all_of(node: Json, also: Json) -> Json:
    return {**node, "allOf": [*node.get("allOf", []), also]}


def _limits(kind: ColumnKind, is_strict: bool) -> dict[str, Any]:
    match kind.name:
        case "integer":
            reach = 2 ** (kind.bits - 1)
            return {"minimum": -reach, "maximum": reach - 1}
        case "decimal" if kind.is_text:
            return {"pattern": _decimal_pattern(kind, is_strict)}
        case "date" if is_strict:
            return DATE_STRICT
        case "timestamp" if is_strict:
            return TIMESTAMP_STRICT
        case "uuid" if is_strict:
            return UUID_STRICT
    return {}


def _decimal_pattern(kind: ColumnKind, is_strict: bool) -> str:
    before = kind.digits - kind.scale
    whole = f"(0|[1-9][0-9]{{0,{before - 1}}})" if before else "0"
    if is_strict:
        return f"^{whole}" + (rf"\.[0-9]{{{kind.scale}}}$" if kind.scale else "$")
    return f"^-?{whole}" + (rf"(\.[0-9]{{1,{kind.scale}}})?$" if kind.scale else "$")
