"""Query text with its tables and own table functions replaced by what the engine can read.

In:   a `Statement`
Out:  a `Template`: the user's text with slots for the relations of its tables

- Only the bytes of the references and calls change; the rest of the text is the user's own.
- It is proved, not hoped: with a name in each slot the text is parsed, and its tree must be the
  old tree with those places replaced and nothing else different.
- A reference that has no bytes of its own or is sampled gets no slot; it is read through a view
  of the table's own name.
- Parameters are numbered, so that one that went away with its reference shifts no other.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import duckdb

from thermocline.errors import Invalid
from thermocline.query.asof import Rewritten
from thermocline.query.gate import INTERNAL_PREFIX, Statement
from thermocline.query.shape import quoted
from thermocline.query.syntax import NOWHERE, Tree, named, parse, parts, without_places


class _Edit(NamedTuple):
    start: int
    end: int
    text: str
    slot: int | None = None


@dataclass(frozen=True, slots=True)
class Template:
    """Text in pieces, with a reference's place in each slot between them."""

    pieces: tuple[str, ...]
    slots: tuple[int, ...]
    parameters: frozenset[str]

    def filled(self, relations: Mapping[int, str]) -> str:
        """Return the text with the FROM item of each slot's reference."""
        found = [self.pieces[0]]
        for slot, piece in zip(self.slots, self.pieces[1:], strict=True):
            found += [relations[slot], piece]
        return "".join(found)


def view_of_call(place: int) -> str:
    """Return the name under which the rows of an own table function are registered."""
    return f"{INTERNAL_PREFIX}call_{place}"


def template(cursor: duckdb.DuckDBPyConnection, statement: Statement) -> Template:
    """Return the template of a statement; `Invalid` where something has no place for a slot."""
    if "template" not in statement.memory:
        statement.memory["template"] = _made(cursor, statement)
    made: Template = statement.memory["template"]
    return made


def _made(cursor: duckdb.DuckDBPyConnection, statement: Statement) -> Template:
    new_nodes: dict[int, Tree] = {}
    edits: list[_Edit] = []
    for place, reference in enumerate(statement.references):
        node = reference.node
        if not node["sample"] and node["query_location"] < NOWHERE:
            name = f"{INTERNAL_PREFIX}slot_{place}"
            edits.append(_replaced(node, name, reference.written, new_nodes, place))
        elif node["at_clause"]:
            raise _not_replaceable("TABLESAMPLE")
    for place, call in enumerate(statement.calls):
        if call.node["sample"] or call.node["with_ordinality"] != "WITHOUT_ORDINALITY":
            raise _not_replaceable("TABLESAMPLE or WITH ORDINALITY")
        edits.append(_replaced(call.node, view_of_call(place), call.function, new_nodes, None))
    if not edits:
        return Template((statement.text,), (), statement.parameters)
    data = statement.text.encode()
    edits = sorted(edits + _numbered(statement.tree["node"], data, edits))
    named_left = _proved(cursor, statement, _joined(data, edits), new_nodes)
    pieces, slots, done = [""], [], 0
    for edit in edits:
        pieces[-1] += data[done : edit.start].decode()
        if edit.slot is not None:
            slots.append(edit.slot)
            pieces.append(" " + edit.text.partition(" ")[2])  # the name itself has no space
        else:
            pieces[-1] += edit.text
        done = edit.end
    pieces[-1] += data[done:].decode()
    return Template(tuple(pieces), tuple(slots), named_left)


def _proved(
    cursor: duckdb.DuckDBPyConnection, statement: Statement, text: str, new_nodes: dict[int, Tree]
) -> frozenset[str]:
    """Raise `Invalid` unless the text means the statement with just those nodes replaced."""
    tree = parse(cursor, Rewritten(text))["node"]
    try:
        expected = without_places(_substituted(statement.tree["node"], new_nodes))
        is_proved = expected == without_places(tree)
    except RecursionError as error:
        raise Invalid("the query is nested too deep", hint="use fewer levels") from error
    if not is_proved:
        raise _not_replaceable("a table in this place")
    return frozenset(named(tree))


def _replaced(
    node: Tree, name: str, called: str, new_nodes: dict[int, Tree], slot: int | None
) -> _Edit:
    alias = node["alias"] or called
    columns = ", ".join(quoted(column) for column in node["column_name_alias"])
    text = f"{quoted(name)} AS {quoted(alias)}" + (f"({columns})" if columns else "")
    new_nodes[id(node)] = {
        "type": "BASE_TABLE",
        "alias": alias,
        "sample": None,
        "schema_name": "",
        "table_name": name,
        "column_name_alias": node["column_name_alias"],
        "catalog_name": "",
        "at_clause": None,
        "qualified_name": {"path": [name]},
    }
    start = node["query_location"]
    return _Edit(start, start + node["query_location_length"], text, slot)


def _numbered(tree: Tree, data: bytes, edits: list[_Edit]) -> list[_Edit]:
    """Return the edits that give every `?` outside the other edits its number."""
    found = {}
    for part in parts(tree):
        if part.get("class") == "PARAMETER":
            start = part["query_location"]
            end = start + part["query_location_length"]
            is_gone = any(edit.start <= start < edit.end for edit in edits)
            if not is_gone and data[start:end].startswith(b"?"):
                found[start] = _Edit(start, end, f"${part['identifier']}")
    return list(found.values())


def _joined(data: bytes, edits: list[_Edit]) -> str:
    pieces, done = [], 0
    for edit in edits:
        pieces += [data[done : edit.start], edit.text.encode()]
        done = edit.end
    return b"".join([*pieces, data[done:]]).decode()


def _substituted(value: Any, new_nodes: dict[int, Tree]) -> Any:
    if isinstance(value, list):
        return [_substituted(item, new_nodes) for item in value]
    if isinstance(value, dict):
        if id(value) in new_nodes:
            return new_nodes[id(value)]
        return {key: _substituted(item, new_nodes) for key, item in value.items()}
    return value


def _not_replaceable(what: str) -> Invalid:
    return Invalid(
        "this cannot be combined with AS OF or an own table function",
        hint="put the reference into a subquery: (SELECT * FROM t AS OF VERSION 3)",
        part=what,
    )
