"""SQL text as the engine's own parser reads it, and back to text.

In:   SQL text; a cursor of the engine
Out:  the syntax tree as plain dictionaries and lists; `Invalid` with the parser's words

- There is one parser: what is checked is what is run. A second one would read some texts
  differently, and the difference is a hole.
- A tree is never changed once it is made; it may be shared by threads.
- Positions in a tree are bytes of the UTF-8 text.
"""

from collections.abc import Iterator
from typing import Any, TypeAlias

import duckdb
import orjson

from thermocline.errors import Invalid
from thermocline.query.asof import Rewritten

Tree: TypeAlias = dict[str, Any]

TEXT_BYTES_MAX = 100_000
NOWHERE = 1 << 62  # what the parser made up itself has a position past this
_PLACES = ("query_location", "query_location_length")


def parse(cursor: duckdb.DuckDBPyConnection, rewritten: Rewritten) -> Tree:
    """Return the tree of the one SELECT statement in the text; `Invalid` for anything else."""
    check_length(rewritten.text)
    answer = _serialized(cursor, rewritten.text)
    if answer["error"]:
        raise _refusal(answer, rewritten)
    statements = answer["statements"]
    if len(statements) != 1:
        raise Invalid(
            "exactly one statement is run at a time",
            hint="send one SELECT",
            statements=len(statements),
        )
    statement: Tree = statements[0]
    return statement


def check_length(text: str) -> None:
    """Raise `Invalid` for a text longer than the limit, before anything reads it."""
    size_bytes = len(text.encode(errors="replace"))
    if size_bytes > TEXT_BYTES_MAX:
        raise Invalid(
            "the query text is too long",
            hint="pass long lists as parameters",
            bytes=size_bytes,
            bytes_max=TEXT_BYTES_MAX,
        )


def _serialized(cursor: duckdb.DuckDBPyConnection, text: str) -> Tree:
    try:
        rows = cursor.execute("select json_serialize_sql($1)", [text]).fetchall()
        answer: Tree = orjson.loads(rows[0][0])
        return answer
    except (orjson.JSONDecodeError, RecursionError) as error:
        hint = "use fewer levels of brackets and subqueries"
        raise Invalid("the query is nested too deep", hint=hint) from error
    except (duckdb.Error, UnicodeError) as error:
        raise Invalid("the query text cannot be read", error=str(error)) from error


def _refusal(answer: Tree, rewritten: Rewritten) -> Invalid:
    message = str(answer.get("error_message", "unknown trouble"))
    if answer.get("error_type") == "not implemented":
        if "SELECT" in message:
            hint = "write a SELECT; nothing else is run here"
            return Invalid("only a SELECT statement is run", hint=hint)
        return Invalid("the query cannot be run", error=message)
    facts: dict[str, Any] = {"error": message}
    if "position" in answer:
        place = rewritten.origin(int(answer["position"]))
        # The place is in bytes of the rewritten text; people count letters of their own.
        facts["position"] = place
    return Invalid("the query has a syntax error", hint="mend the SQL at this position", **facts)


def expression_text(cursor: duckdb.DuckDBPyConnection, expression: Tree) -> str:
    """Return the SQL text of an expression of a tree, as the engine writes it."""
    node: Tree = {
        "type": "SELECT_NODE",
        "modifiers": [],
        "cte_map": {"map": []},
        "select_list": [{**expression, "alias": ""}],
        "from_table": {"type": "EMPTY", "alias": "", "sample": None},
        "where_clause": None,
        "group_expressions": [],
        "group_sets": [],
        "aggregate_handling": "STANDARD_HANDLING",
        "having": None,
        "sample": None,
        "qualify": None,
    }
    parameters = [{"key": key, "value": place} for place, key in enumerate(named(expression), 1)]
    whole = {"error": False, "statements": [{"node": node, "named_param_map": parameters}]}
    try:
        rows = cursor.execute(
            "select json_deserialize_sql($1)", [orjson.dumps(whole).decode()]
        ).fetchall()
    except duckdb.Error as error:
        raise Invalid("an expression cannot be written down", error=str(error)) from error
    return str(rows[0][0]).removeprefix("SELECT ")


def named(tree: Any) -> list[str]:
    """Return the parameters that a part of a tree uses, each once."""
    found = {part["identifier"]: None for part in parts(tree) if part.get("class") == "PARAMETER"}
    return list(found)


def parts(tree: Any) -> Iterator[Tree]:
    """Yield every dictionary of a tree, the outer ones first."""
    # A list instead of recursion: the depth of a tree is the sender's choice.
    waiting = [tree]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield value
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)


def without_places(tree: Any) -> Any:
    """Return a copy of a tree without its positions, to compare two trees by meaning."""
    if isinstance(tree, list):
        return [without_places(value) for value in tree]
    if isinstance(tree, dict):
        return {key: without_places(value) for key, value in tree.items() if key not in _PLACES}
    return tree
