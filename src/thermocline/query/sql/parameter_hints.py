"""What a query says about its parameters: the column that each is compared with, or its cast.

In:   the nodes of an admitted statement
Out:  a `ParameterHint` for each parameter whose place tells its type

- The engine does not infer types of parameters, but clients of JDBC convert values to the type that
  the node announces, so a place that shows the type is worth reading.
- A hint is only about what to announce: the engine compares the value by its own rules.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from thermocline.query.sql.syntax import Tree

_COMPARED = frozenset({"COMPARISON", "BETWEEN"})
_IN = frozenset({"COMPARE_IN", "COMPARE_NOT_IN"})


@dataclass(frozen=True, slots=True)
class ParameterHint:
    """A parameter, and the lower-case name of its column, or the engine's type of its cast."""

    parameter: str
    column: str = ""
    type: str = ""


def find_hints(nodes: Sequence[Tree]) -> list[ParameterHint]:
    """Return the hints of a statement's nodes; of two for one parameter the first counts."""
    found: dict[str, ParameterHint] = {}
    for node in nodes:
        for hint in _hints_of(node):
            found.setdefault(hint.parameter, hint)
    return list(found.values())


def _hints_of(node: Tree) -> Iterator[ParameterHint]:
    kind = node.get("class")
    if kind == "CAST":
        child, expression = node.get("child"), node.get("type_expr")
        name = expression.get("type_name") if isinstance(expression, dict) else None
        if isinstance(child, dict) and child.get("class") == "PARAMETER" and name:
            yield ParameterHint(child["identifier"], type=str(name).upper())
    elif node.get("type") == "LIMIT_MODIFIER":
        for part in _children(node):
            if part.get("class") == "PARAMETER":
                yield ParameterHint(part["identifier"], type="BIGINT")
    elif kind in _COMPARED or node.get("type") in _IN:
        parts = _children(node)
        columns = [part["column_names"][-1] for part in parts if part.get("class") == "COLUMN_REF"]
        if len(set(columns)) == 1:
            for part in parts:
                if part.get("class") == "PARAMETER":
                    yield ParameterHint(part["identifier"], column=columns[0].lower())


def _children(node: Tree) -> list[Tree]:
    """Return the expressions directly below a node."""
    found = []
    for value in node.values():
        listed = value if isinstance(value, list) else [value]
        found += [one for one in listed if isinstance(one, dict)]
    return found
