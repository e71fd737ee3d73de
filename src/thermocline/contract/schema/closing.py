"""Closes the objects of a schema: an object has only named properties, unless the schema opens it.

In:   a document with its references written out
Out:  the same document, its objects closed

- An object that names properties, and has no keyword for others, accepts no others. Otherwise a
  property added later could already exist, with another type, in earlier documents.
- `additionalProperties` or `unevaluatedProperties`, with any value, in the object or in a schema
  combined with it, overrides this for the object; `"x-content": "open"` at the root does for all.
- Parts of one object (`allOf`, `oneOf`, `then`) are closed together, not separately.
- Conditions (`if`, `not`, `contains`) select values and do not limit properties: they stay as is.
"""

from collections.abc import Callable, Iterator

from thermocline.contract.schema.subschema import Json, Node, Steps, with_subschemas

PARTS_LISTED = ("allOf", "anyOf", "oneOf")
PARTS_ONE = ("then", "else")
_CONDITIONS = frozenset({"if", "not", "contains", "propertyNames"})


def close_objects(document: Json) -> Json:
    """Return the document with its objects closed."""
    if document.get("x-content") == "open":
        return document
    made = _close_node(document, is_part=False, definitions=document.get("$defs", {}))
    assert isinstance(made, dict)
    return made


def _close_node(node: Node, *, is_part: bool, definitions: dict[str, Node]) -> Node:
    if not isinstance(node, dict):
        return node

    def change(steps: Steps, inner: Node) -> Node:
        if steps[0] in _CONDITIONS:
            return inner
        belongs = steps[0] in (*PARTS_LISTED, *PARTS_ONE, "dependentSchemas", "$defs")
        return _close_node(inner, is_part=belongs, definitions=definitions)

    made = with_subschemas(node, change)
    if is_part or _says_others(node, definitions) or not _names_properties(node, definitions):
        return made
    has_parts = "$ref" in node or any(
        _names_properties(part, definitions) for part in _parts(node, {})
    )
    return {**made, "unevaluatedProperties" if has_parts else "additionalProperties": False}


def _parts(node: Json, definitions: dict[str, Node]) -> Iterator[Node]:
    """Yield the schemas that apply to the same value as the node."""
    for word in PARTS_LISTED:
        yield from node.get(word, [])
    for word in PARTS_ONE:
        if word in node:
            yield node[word]
    yield from node.get("dependentSchemas", {}).values()
    reference = node.get("$ref", "")
    if reference.startswith("#/$defs/"):
        yield definitions.get(reference.removeprefix("#/$defs/"), True)


def _says_others(node: Node, definitions: dict[str, Node]) -> bool:
    words = ("additionalProperties", "unevaluatedProperties")
    return _any_part(node, definitions, lambda part: any(word in part for word in words))


def _names_properties(node: Node, definitions: dict[str, Node]) -> bool:
    words = ("properties", "patternProperties")
    return _any_part(node, definitions, lambda part: any(word in part for word in words))


def _any_part(node: Node, definitions: dict[str, Node], is_so: Callable[[Json], bool]) -> bool:
    """Tell whether `is_so` holds for the node or one of its parts; visit each definition once."""
    waiting, seen = [node], set[int]()
    while waiting:
        part = waiting.pop()
        if not isinstance(part, dict) or id(part) in seen:
            continue
        seen.add(id(part))
        if is_so(part):
            return True
        waiting += _parts(part, definitions)
    return False
