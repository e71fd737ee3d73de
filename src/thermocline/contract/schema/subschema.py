"""The positions of subschemas in a schema.

In:   a JSON Schema of draft 2020-12 as Python values
Out:  its subschemas with the steps that lead to them, or a copy with each of them changed

- A keyword that is not listed here holds no schema: its value is never read.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]
Node: TypeAlias = dict[str, Any] | bool
Steps: TypeAlias = tuple[str | int, ...]

ONE = frozenset(
    {
        *("items", "additionalProperties", "unevaluatedProperties", "unevaluatedItems"),
        *("contains", "propertyNames", "not", "if", "then", "else"),
    }
)
LISTED = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})


def subschemas(node: Node) -> Iterator[tuple[Steps, Node]]:
    """Yield the direct subschemas, with the steps to each."""
    if not isinstance(node, dict):
        return
    for keyword, value in node.items():
        if keyword in ONE:
            yield (keyword,), value
        elif keyword in LISTED and isinstance(value, list):
            for index, inner in enumerate(value):
                yield (keyword, index), inner
        elif keyword in NAMED and isinstance(value, dict):
            for name, inner in value.items():
                yield (keyword, name), inner


def with_subschemas(node: Json, change: Callable[[Steps, Node], Node]) -> Json:
    """Return a copy in which `change` replaced each direct subschema."""
    made: Json = {}
    for keyword, value in node.items():
        if keyword in ONE:
            made[keyword] = change((keyword,), value)
        elif keyword in LISTED and isinstance(value, list):
            made[keyword] = [change((keyword, i), inner) for i, inner in enumerate(value)]
        elif keyword in NAMED and isinstance(value, dict):
            made[keyword] = {name: change((keyword, name), inner) for name, inner in value.items()}
        else:
            made[keyword] = value
    return made
