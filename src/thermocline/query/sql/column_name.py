"""Names for result columns that are subqueries without an alias.

In:   the parser's output for a query
Out:  the same query with an alias for each such column, or None when it has none

The engine names a column without an alias by its text. The tables of a subquery are replaced
before the query runs, so that text would contain file paths. The alias is the text that the user
wrote, in the engine's spelling: `(SELECT max(v) FROM t)`.

The query text is generated from its tree only when the query has such a column. The new text is
parsed, and is used only if its tree equals the old one except for those aliases.
"""

from typing import Any

import duckdb

from thermocline.errors import Invalid
from thermocline.query.sql.asof import RewrittenText
from thermocline.query.sql.syntax import (
    ParserOutput,
    Tree,
    expression_text,
    is_same_tree,
    parse,
    statement_text,
    tree_nodes,
    tree_of,
)

NAME_LENGTH_MAX = 1_000
_SUBQUERY = "SUBQUERY"
_SOURCES = ("BASE_TABLE", "TABLE_FUNCTION")


def name_subqueries(
    cursor: duckdb.DuckDBPyConnection, reading: ParserOutput, rewritten: RewrittenText
) -> RewrittenText | None:
    """Return the query with an alias for each nameless subquery among its columns."""
    if f'"{_SUBQUERY}"' not in reading.serialized:
        return None
    tree = tree_of(reading, rewritten)  # a new copy, so that it may be changed
    nameless = [item for item in _columns(tree["node"]) if _is_nameless(item)]
    if not nameless:
        return None
    for item in nameless:
        item["alias"] = expression_text(cursor, item)[:NAME_LENGTH_MAX]
    try:
        named = RewrittenText(statement_text(cursor, tree))
        is_proved = is_same_tree(tree["node"], parse(cursor, named)["node"], {})
    except Invalid:
        return None  # past the length limit, or the engine cannot write it as text
    return named if is_proved else None


def _columns(tree: Tree) -> list[Tree]:
    """Return the columns of every SELECT whose names may appear in the answer."""
    found: list[Tree] = []
    waiting: list[Any] = [tree]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, dict) and value.get("class") != _SUBQUERY:
            found += value.get("select_list") or ()
            waiting += value.values()
    return found


def _is_nameless(item: Tree) -> bool:
    if item["alias"] or item.get("class") == "STAR":
        return False
    inside = (part for part in tree_nodes(item) if part.get("class") == _SUBQUERY)
    return any(part.get("type") in _SOURCES for one in inside for part in tree_nodes(one))
