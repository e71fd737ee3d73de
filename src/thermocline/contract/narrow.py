"""A schema with what its columns can hold added to it.

In:   a closed schema and its kind
Out:  the schema that documents are checked with

- It accepts a document only if every value fits its column: 64 bits, the
  digits of a decimal that is text.
- The strict one accepts only documents that are in canonical form already, but for the form of
  their numbers: what passes it needs no second look at its text.
"""

from typing import Any

from thermocline.contract.kind import Kind
from thermocline.contract.subschema import Json, Node

# Measured: a bound that is a double costs 1.3 microseconds, a pattern with counts 0.2; these cost
# next to nothing. Whether a number is finite, and a decimal not too long, is therefore asked
# where they get their canonical form.
DATE_STRICT = {"not": {"pattern": "^0000"}}
UUID_STRICT = {"not": {"pattern": "[A-F]"}}
TIMESTAMP_STRICT = {
    "pattern": r"^0{0,3}[1-9][0-9-]*T[0-9][0-9]:[0-9][0-9]:[0-5][0-9](\.[0-9]{0,5}[1-9])?Z$",
}
COLONS_IN_TIMESTAMP = 2
"""How many colons the pattern lets a timestamp have: no more, and no fewer."""


def narrowed(node: Node, kind: Kind, *, is_strict: bool) -> Node:
    """Return the schema with the limits of its kind; the strict one has the canonical form too."""
    if not isinstance(node, dict):
        return node if node is False else _limits(kind, is_strict) or True
    match kind.name:
        case "struct":
            return _struct(node, kind, is_strict)
        case "list":
            return _inside(node, "items", kind, is_strict)
        case "map":
            word = "additionalProperties"
            return _inside(node, word, kind, is_strict)
    return _with(node, _limits(kind, is_strict))


def _struct(node: Json, kind: Kind, is_strict: bool) -> Json:
    own = dict(node.get("properties", {}))
    elsewhere: Json = {}
    for part in kind.fields:
        if part.name in own:
            own[part.name] = narrowed(own[part.name], part.kind, is_strict=is_strict)
        elif extra := narrowed({}, part.kind, is_strict=is_strict):
            elsewhere[part.name] = extra
    made = {**node, "properties": own} if own else dict(node)
    return _and(made, {"properties": elsewhere}) if elsewhere else made


def _inside(node: Json, word: str, kind: Kind, is_strict: bool) -> Json:
    if isinstance(node.get(word), dict):
        return {**node, word: narrowed(node[word], kind.inner, is_strict=is_strict)}
    extra = narrowed({}, kind.inner, is_strict=is_strict)
    return _and(node, {word: extra}) if extra else node


def _with(node: Json, limits: Json) -> Json:
    made = dict(node)
    for word, limit in limits.items():
        if word not in made:
            made[word] = limit
        elif word == "minimum":
            made[word] = max(made[word], limit)
        elif word == "maximum":
            made[word] = min(made[word], limit)
        else:
            made = _and(made, {word: limit})
    return made


def _and(node: Json, also: Json) -> Json:
    return {**node, "allOf": [*node.get("allOf", []), also]}


def _limits(kind: Kind, is_strict: bool) -> dict[str, Any]:
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


def _decimal_pattern(kind: Kind, is_strict: bool) -> str:
    before = kind.digits - kind.scale
    whole = f"(0|[1-9][0-9]{{0,{before - 1}}})" if before else "0"
    if is_strict:
        return f"^{whole}" + (rf"\.[0-9]{{{kind.scale}}}$" if kind.scale else "$")
    return f"^-?{whole}" + (rf"(\.[0-9]{{1,{kind.scale}}})?$" if kind.scale else "$")
