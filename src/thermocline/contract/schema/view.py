"""Merges the parts of one schema into a single description of a value's type.

In:   a schema with its references written out
Out:  a `SchemaView`: one type or none, and the values, format, properties and items

- `allOf` is merged; `anyOf` or `oneOf` of a schema and null is that schema, nullable.
- A view never allows less than the schema: if the parts cannot be merged, the view has no type and
  is mixed.
"""

from dataclasses import dataclass, field
from typing import Any

from thermocline.contract.schema.subschema import Json, Node

_NULL = {"type": "null"}


@dataclass(slots=True)
class SchemaView:
    """The type of a value by a schema.

    `others` is the schema of properties that it does not name, or whether they are allowed.
    """

    types: frozenset[str] | None = None
    values: list[Any] | None = None
    format: str = ""
    x_type: str = ""
    properties: dict[str, Node] = field(default_factory=dict)
    required: set[str] = field(default_factory=set)
    others: Node = True
    items: Node | None = None
    is_mixed: bool = False
    is_mixed_object: bool = False
    is_mixed_array: bool = False
    names_are_limited: bool = False
    allows_null: bool = True

    @property
    def type(self) -> str:
        """The only type of the values besides null; empty when there are several or none."""
        if self.is_mixed:
            return ""
        stated = _single_type(self.types) if self.types is not None else ""
        if stated or self.values is None:
            return stated
        of_values = frozenset(type_of(value) for value in self.values)
        return _single_type(
            of_values if self.types is None else of_values & _with_integers(self.types)
        )

    @property
    def is_nullable(self) -> bool:
        """Whether null is allowed."""
        in_values = self.values is None or None in self.values
        in_types = self.types is None or "null" in self.types
        return in_values and in_types and self.allows_null


def view_of(node: Node) -> SchemaView:
    """Return the view of a schema."""
    if not isinstance(node, dict):
        return SchemaView(is_mixed=not node, allows_null=node)
    view = _own_view(node)
    for word in ("anyOf", "oneOf"):
        branches = node.get(word)
        if branches is None:
            continue
        other = _nullable_branch(branches)
        if other is None:
            _note_branches(view, branches)
        else:
            _merge_view(view, _make_nullable(view_of(other)))
    for part in node.get("allOf", []):
        _merge_view(view, view_of(part))
    return view


def _own_view(node: Json) -> SchemaView:
    given = node.get("type")
    types = None if given is None else frozenset([given] if isinstance(given, str) else given)
    values = [node["const"]] if "const" in node else node.get("enum")
    conditions = ("patternProperties", "dependentSchemas", "then", "else")
    return SchemaView(
        types=types,
        values=values,
        format=node.get("format", ""),
        x_type=str(node.get("x-type", "")),
        properties=dict(node.get("properties", {})),
        required=set(node.get("required", [])),
        others=others_of(node),
        items=node.get("items"),
        is_mixed="$ref" in node,
        is_mixed_object=any(word in node for word in conditions),
        is_mixed_array=any(word in node for word in ("prefixItems", "unevaluatedItems")),
        names_are_limited="propertyNames" in node,
    )


def others_of(node: Json) -> Node:
    """Return the schema of properties that a schema does not name, or whether they are allowed."""
    for word in ("additionalProperties", "unevaluatedProperties"):
        if word in node:
            said: Node = node[word]
            return said
    return True


def _nullable_branch(branches: list[Node]) -> Node | None:
    """Return the other branch when there are two and one of them is only null."""
    if len(branches) != 2:
        return None
    first, second = (
        isinstance(branch, dict) and {k: v for k, v in branch.items() if k == "type"} == _NULL
        for branch in branches
    )
    if first == second:
        return None
    return branches[1] if first else branches[0]


def _make_nullable(view: SchemaView) -> SchemaView:
    if view.types is not None:
        view.types |= {"null"}
    if view.values is not None and None not in view.values:
        view.values = [*view.values, None]
    view.allows_null = True
    return view


def _note_branches(view: SchemaView, branches: list[Node]) -> None:
    """Mark a view that has alternatives: they keep a stated type, but may add properties."""
    view.is_mixed_object = True
    if view.types is None and view.values is None:
        view.is_mixed = True
    nulls = [view_of(branch).is_nullable for branch in branches]
    if not any(nulls):
        view.allows_null = False


def _merge_view(view: SchemaView, part: SchemaView) -> None:
    """Merge a part into the view: both apply."""
    if part.types is not None:
        both = (
            part.types
            if view.types is None
            else _with_integers(view.types) & _with_integers(part.types)
        )
        view.types = frozenset(both)
    if part.values is not None:
        kept = part.values if view.values is None else view.values
        view.values = [value for value in kept if value in part.values]
    for word in ("format", "x_type"):
        mine, its = getattr(view, word), getattr(part, word)
        if mine and its and mine != its:
            view.is_mixed = True
        setattr(view, word, mine or its)
    for name, inner in part.properties.items():
        mine = view.properties.get(name)
        view.properties[name] = inner if mine is None else {"allOf": [mine, inner]}
    view.required |= part.required
    if part.others is not True:
        is_same = view.others is True or view.others == part.others
        view.is_mixed_object |= not is_same
        view.others = part.others
    if part.items is not None:
        view.items = part.items if view.items is None else {"allOf": [view.items, part.items]}
    view.is_mixed |= part.is_mixed
    view.is_mixed_object |= part.is_mixed_object
    view.is_mixed_array |= part.is_mixed_array
    view.names_are_limited |= part.names_are_limited
    view.allows_null &= part.allows_null or part.is_nullable


def _with_integers(types: frozenset[str]) -> frozenset[str]:
    """Return the types with `integer` added to `number`, because an integer is a number too."""
    return types | {"integer"} if "number" in types else types


def _single_type(types: frozenset[str]) -> str:
    rest = types - {"null"}
    if "number" in rest:
        rest -= {"integer"}
    return next(iter(rest)) if len(rest) == 1 else ""


def type_of(value: Any) -> str:
    """Return the JSON type of a value: `integer` for a number without a fraction."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "string"
        case list():
            return "array"
        case dict():
            return "object"
    return "integer" if value == int(value) else "number"
