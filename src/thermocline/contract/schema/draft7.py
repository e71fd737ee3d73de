"""Converts a draft-07 document to draft 2020-12.

In:   a document whose `$schema` is draft-07
Out:  a document with the keywords of 2020-12 and the same valid values

- Keywords beside a `$ref` are dropped: draft-07 ignores them, 2020-12 does not.
- `definitions` are not moved, so that pointers to them stay valid.
"""

from typing import Any

from thermocline.contract.schema.subschema import Json, Node, with_subschemas

URIS = frozenset(
    {
        "http://json-schema.org/draft-07/schema",
        "http://json-schema.org/draft-07/schema#",
        "https://json-schema.org/draft-07/schema",
        "https://json-schema.org/draft-07/schema#",
    }
)
URI_NOW = "https://json-schema.org/draft/2020-12/schema"
URIS_NOW = frozenset({URI_NOW, URI_NOW + "#"})


def modernize(document: Json) -> Json:
    """Return the document in draft 2020-12."""
    made = _modernize_node(document)
    assert isinstance(made, dict)
    return {**made, "$schema": URI_NOW}


def _modernize_node(node: Node) -> Node:
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        kept = {"$ref", "$schema", "$id", "definitions", "$defs", "description", "title"}
        node = {keyword: value for keyword, value in node.items() if keyword in kept}
    made = dict(node)
    if isinstance(made.get("items"), list):
        made["prefixItems"] = made.pop("items")
        if "additionalItems" in made:
            made["items"] = made["additionalItems"]
    made.pop("additionalItems", None)
    if isinstance(identity := made.get("$id"), str) and identity.startswith("#"):
        made["$anchor"] = made.pop("$id")[1:]
    if isinstance(made.get("dependencies"), dict):
        made |= _split_dependencies(made.pop("dependencies"))
    return with_subschemas(made, lambda _, inner: _modernize_node(inner))


def _split_dependencies(given: dict[str, Any]) -> Json:
    lists = {name: value for name, value in given.items() if isinstance(value, list)}
    schemas = {name: value for name, value in given.items() if not isinstance(value, list)}
    words = {"dependentRequired": lists, "dependentSchemas": schemas}
    return {word: value for word, value in words.items() if value}
