"""Decides which SQL may run: one SELECT whose parts are all on an allow list.

In:   SQL text; a cursor of the engine, for its parser; the names that the session defines
Out:  a `Statement`: the tree, and every table, function and parameter it names

- Query kinds, FROM items, expressions and function names are allow-listed. An unknown part is
  refused, so a newer engine cannot open a hole.
- A name is a table of the session or a common table expression in scope. It never resolves to a
  file, a catalog or a variable of the program. `main.t` is the table `t`.
- The tables of `information_schema` are Thermocline's, and the engine's are never read.
- Views and macros of the session have a name here only; their text is admitted in the same way
  when they are defined and whenever a query uses them.
- `a.f(x)` is `f(a, x)`: the engine has no schemas of users, so `a` is a column or a table.
- Scope follows the engine: a common table expression sees those before it, and itself only in the
  second half of a recursion. Names of the engine's catalog are reserved.

This module does not know which tables exist; the session looks up `Statement.tables`.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb

from thermocline.errors import Invalid
from thermocline.query.sql.allowed_functions import (
    CLOCK_FUNCTIONS,
    CLOCK_WORDS,
    FILL_FUNCTION,
    FUNCTIONS,
    INSTEAD,
    OPERATORS,
    OWN_FUNCTIONS,
    OWN_TABLE_FUNCTIONS,
    TABLE_FUNCTIONS,
)
from thermocline.query.sql.constant import DIGITS_MAX
from thermocline.query.sql.syntax import (
    ParserOutput,
    Tree,
    parameter_names_among,
    parse_query,
    tree_nodes,
)

INTERNAL_PREFIX = "__thermocline_"
WHOLE, FRACTION = "INTEGER", "NUMERIC"  # the engine's names for kinds of number literals
RESERVED_PREFIXES = (INTERNAL_PREFIX, "duckdb_", "pg_", "pragma_", "sqlite_")

_QUERIES = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE"})
_SOURCES = frozenset(
    {
        "BASE_TABLE",
        "EMPTY",
        "EXPRESSION_LIST",
        "JOIN",
        "PIVOT",
        "SHOW_REF",
        "SUBQUERY",
        "TABLE_FUNCTION",
    }
)
_MODIFIERS = frozenset(
    {
        "ASCENDING",
        "DESCENDING",
        "DISTINCT_MODIFIER",
        "LIMIT_MODIFIER",
        "LIMIT_PERCENT_MODIFIER",
        "ORDER_DEFAULT",
        "ORDER_MODIFIER",
    }
)
_EXPRESSIONS = frozenset(
    {
        "BETWEEN",
        "CASE",
        "CAST",
        "COLLATE",
        "COLUMN_REF",
        "COMPARISON",
        "CONJUNCTION",
        "CONSTANT",
        "DEFAULT",
        "FUNCTION",
        "LAMBDA",
        "LAMBDA_REF",
        "OPERATOR",
        "PARAMETER",
        "POSITIONAL_REFERENCE",
        "STAR",
        "SUBQUERY",
        "TYPE",
        "WINDOW",
    }
)
_UNDERSTOOD = frozenset(
    {
        *("BASE_TABLE", "JOIN", "SUBQUERY", "EMPTY", "TABLE_FUNCTION", "EXPRESSION_LIST"),
        *("SELECT_NODE", "SET_OPERATION_NODE", "CTE_NODE", "RECURSIVE_CTE_NODE"),
        *("ORDER_MODIFIER", "LIMIT_MODIFIER", "DISTINCT_MODIFIER", "LIMIT_PERCENT_MODIFIER"),
        *("ASCENDING", "DESCENDING", "ORDER_DEFAULT"),
    }
)
_ANY_COLUMN = frozenset({"STAR", "POSITIONAL_REFERENCE"})
_OF_ONE_ROW = frozenset(  # not FUNCTION: an aggregate reads every row
    {"CASE", "CAST", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "STAR"}
)
_CHANGES_ROWS = ("where_clause", "group_expressions", "having", "sample", "qualify")
_SHOWN = frozenset({"DESCRIBE", "SUMMARY"})
MAIN_SCHEMA, CATALOG_SCHEMA = "main", "information_schema"
CATALOG_TABLES = ("columns", "schemata", "tables")  # of the information schema
_ENGINE_SCHEMAS = frozenset(
    {MAIN_SCHEMA, CATALOG_SCHEMA, "memory", "pg_catalog", "pragma", "system", "temp"}
)
_NEAR = 0.6  # how alike two names are for one to be suggested instead of the other
_FIND_FUNCTION = "select 1 from duckdb_functions() where lower(function_name) = $1 limit 1"
_BRANCHES = frozenset({dict, list})  # every other value in a tree is a leaf
_Scope = frozenset[str]


@dataclass(frozen=True, slots=True)
class Reference:
    """One reference to a table of the session; `node` is its node in the tree."""

    table: str
    written: str
    node: Tree


@dataclass(frozen=True, slots=True)
class DefinedNames:
    """The lower-case names of views, macros and table macros that a query may use."""

    views: frozenset[str] = frozenset()
    macros: frozenset[str] = frozenset()
    table_macros: frozenset[str] = frozenset()


NOTHING_DEFINED = DefinedNames()


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """One call of a Thermocline table function, such as `gaps` or `rate`.

    The first argument of `fill_gaps` is a subquery. It passes the gate when it is prepared, as a
    separate statement.
    A table of the information schema is one, too: its function is `information_schema.tables`.
    """

    function: str
    arguments: tuple[Tree, ...]
    node: Tree


@dataclass(frozen=True)
class Statement:
    """A query that passed the gate. It is immutable, so it can be cached by its text.

    `nodes` are all dictionaries of the tree, the outer ones first. `columns` are the lower-case
    names that it mentions, or None when it may read any column. `parsed_guess` is the parser's
    output for the guessed text. `defined` are the lower-case names of the views and macros in it.
    """

    text: str
    tree: Tree
    nodes: Sequence[Tree]
    references: tuple[Reference, ...]
    calls: tuple[FunctionCall, ...]
    parameters: frozenset[str]
    expressions: frozenset[str]
    columns: frozenset[str] | None
    asks_clock: bool
    parsed_guess: ParserOutput | None = None
    defined: frozenset[str] = frozenset()

    @property
    def tables(self) -> Mapping[str, str]:
        """The tables it reads: lower-case name to the name as written."""
        return {reference.table: reference.written for reference in self.references}


def admit(
    cursor: duckdb.DuckDBPyConnection,
    sql: str,
    guess: str | None = None,
    names: DefinedNames = NOTHING_DEFINED,
) -> Statement:
    """Return the statement in the text; `Invalid` names the part that may not run, and why.

    `guess` is the likely text of the proof of its template.
    """
    parsed = parse_query(cursor, sql, guess)
    walk = _GateWalk(cursor, names)
    walk.run(parsed.tree["node"])
    nodes = tree_nodes(parsed.tree["node"])
    check_digits(nodes, FRACTION)
    return Statement(
        parsed.text,
        parsed.tree,
        nodes,
        tuple(walk.references),
        tuple(walk.calls),
        frozenset(parameter_names_among(nodes)),
        frozenset(walk.expressions),
        # The body of a macro may name columns of the query that uses it.
        None if walk.uses_macros else _find_columns(nodes, walk.references),
        any(_asks_clock(part) for part in nodes),
        parsed.parsed_guess,
        frozenset(walk.defined),
    )


def _asks_clock(part: Tree) -> bool:
    """Tell whether a part of a tree may read the clock."""
    if part.get("class") == "FUNCTION":
        return part["function_name"].lower() in CLOCK_FUNCTIONS
    return part.get("class") == "COLUMN_REF" and part["column_names"][-1].lower() in CLOCK_WORDS


def _find_columns(nodes: Sequence[Tree], references: Sequence[Reference]) -> frozenset[str] | None:
    """Return the column names that a query mentions, or None when it may need any column.

    A name anywhere in the query counts for every table. A star, a whole row, a position, a natural
    join, a FROM item with renamed columns, or an unknown FROM item may need every column.
    Selecting four columns of 24 instead of all saves the engine's binder a millisecond a query.
    """
    names: set[str] = set()
    tables: set[str] = set()
    for part in nodes:
        if "class" in part:
            if part["class"] in _ANY_COLUMN:
                return None
            if part["class"] == "COLUMN_REF":
                mentioned = [name.lower() for name in part["column_names"]]
                names.update(mentioned)
                if len(mentioned) == 1:
                    tables.add(mentioned[0])
            elif part["class"] == "FUNCTION" and part["schema"]:
                called_on = [name.lower() for name in part["qualified_name"]["path"][:-1]]
                names.update(called_on)
                tables.add(called_on[0])
        elif isinstance(part.get("type"), str) and not _is_understood(part):
            return None
        if "using_columns" in part:
            names.update(name.lower() for name in part["using_columns"])
    called = {(r.node["alias"] or r.written).lower() for r in references}
    return None if tables & called else frozenset(names)


def _is_understood(part: Tree) -> bool:
    if part["type"] not in _UNDERSTOOD or part.get("column_name_alias"):
        return False
    return part.get("ref_type") not in ("NATURAL", "POSITIONAL")


def rows_needed(statement: Statement) -> int | None:
    """Return how many rows of its one table answer a statement; None when all may be needed.

    A number is known for one SELECT from one table that keeps every row and ends in a LIMIT of
    constants: any so many rows are an answer.
    """
    node = statement.tree["node"]
    if node["type"] != "SELECT_NODE" or any(node[part] for part in _CHANGES_ROWS):
        return None
    source, modifiers = node["from_table"], node["modifiers"]
    if source["type"] != "BASE_TABLE" or source["sample"] or len(statement.references) != 1:
        return None
    if len(modifiers) != 1 or modifiers[0]["type"] != "LIMIT_MODIFIER":
        return None
    if any(
        part.get("class", "CONSTANT") not in _OF_ONE_ROW for part in tree_nodes(node["select_list"])
    ):
        return None
    counts = [
        _whole_number(modifiers[0][part]) for part in ("limit", "offset") if modifiers[0][part]
    ]
    known = [count for count in counts if count is not None]
    return sum(known) if modifiers[0]["limit"] and len(known) == len(counts) else None


def _whole_number(part: Tree) -> int | None:
    literal = part.get("literal") if part["class"] == "CONSTANT" else None
    is_whole = isinstance(literal, dict) and literal["kind"] == "INTEGER"
    return int(literal["text"]) if literal and is_whole else None


def check_digits(nodes: Iterable[Tree], kind: str) -> None:
    """Raise `Invalid` for a number with more digits than the engine compares exactly.

    It makes a double of a number with a fraction, and then rows match that do not have the value.
    """
    for node in nodes:
        literal = node.get("literal")
        if not isinstance(literal, dict) or literal["kind"] != kind:
            continue
        text = str(literal["text"]).lower()
        digits = sum(letter.isdigit() for letter in text.lstrip("-0."))
        if "e" not in text and "x" not in text and digits > DIGITS_MAX:
            raise Invalid(
                "a number has more digits than are compared exactly",
                hint="write fewer digits, or 1e40 for a double",
                number=text[:80],
                digits_max=DIGITS_MAX,
            )


class _GateWalk:
    """One pass over a tree, with a list of pending nodes instead of recursion."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection, names: DefinedNames) -> None:
        self.references: list[Reference] = []
        self.calls: list[FunctionCall] = []
        self.expressions: set[str] = set()
        self.defined: set[str] = set()
        self.uses_macros = False
        self._names = names
        self._cursor = cursor
        self._waiting: list[tuple[Any, _Scope]] = []

    def run(self, tree: Tree) -> None:
        self._waiting = [(tree, frozenset())]
        while self._waiting:
            value, scope = self._waiting.pop()
            if type(value) is list:
                self._waiting += [(item, scope) for item in value if type(item) in _BRANCHES]
            else:
                self._visit(value, scope)

    def _visit(self, node: Tree, scope: _Scope) -> None:
        kind = node.get("type")
        if "class" in node:
            self._visit_expression(node, scope)
        elif not isinstance(kind, str):
            self._queue_children(node, scope)
        elif kind in _QUERIES:
            self._visit_query(node, scope)
        elif kind in _SOURCES:
            self._visit_source(node, scope)
        elif kind in _MODIFIERS:
            self._queue_children(node, scope)
        else:
            raise _refusal("this part of SQL is not supported", part=kind)

    def _queue_children(self, node: Tree, scope: _Scope, *, skip: tuple[str, ...] = ()) -> None:
        for key, value in node.items():
            if type(value) in _BRANCHES and key not in skip:
                self._waiting.append((value, scope))

    def _visit_query(self, node: Tree, scope: _Scope) -> None:
        for entry in node["cte_map"]["map"]:
            name = self._add_expression_name(entry["key"])
            self._waiting.append((entry["value"], scope))
            scope = scope | {name}
        if node["type"] == "RECURSIVE_CTE_NODE":
            own = node["cte_name"].lower()
            self._waiting.append((node["right"], scope | {own}))
            self._queue_children(node, scope, skip=("cte_map", "right"))
        else:
            self._queue_children(node, scope, skip=("cte_map",))

    def _add_expression_name(self, written: str) -> str:
        name = written.lower()
        if name.startswith(RESERVED_PREFIXES):
            raise _refusal("this name is reserved", name=written)
        self.expressions.add(name)
        return name

    def _visit_source(self, node: Tree, scope: _Scope) -> None:
        match node["type"]:
            case "BASE_TABLE":
                self._visit_table(node, scope)
            case "TABLE_FUNCTION":
                self._visit_table_function(node, scope)
            case "SHOW_REF":
                if node["show_type"] not in _SHOWN or node["query"] is None:
                    raise _refusal("this part of SQL is not supported", part=node["show_type"])
                self._queue_children(node, scope)
            case _:
                self._queue_children(node, scope)

    def _visit_table(self, node: Tree, scope: _Scope) -> None:
        path = node["qualified_name"]["path"]
        written = node["table_name"]
        name = written.lower()
        schema = node["schema_name"].lower()
        if schema == CATALOG_SCHEMA and name in CATALOG_TABLES and len(path) == 2:
            if node["at_clause"]:
                raise _refusal("only a table can be read as of another version", name=name)
            self.calls.append(FunctionCall(f"{CATALOG_SCHEMA}.{name}", (), node))
            return
        is_main = schema == MAIN_SCHEMA and path[1:] == [written]
        if node["catalog_name"] or (path != [written] and not is_main):
            raise _refusal("a table name has no catalog or schema", table=".".join(path))
        if is_main or name not in scope:
            if name in self._names.views:
                self.defined.add(name)
            else:
                self.references.append(Reference(name, written, node))
        if node["at_clause"] and (name in self._names.views or (name in scope and not is_main)):
            raise _refusal("only a table can be read as of another version", name=written)
        self._queue_children(node, scope)

    def _visit_table_function(self, node: Tree, scope: _Scope) -> None:
        function = node["function"]
        if function.get("class") != "FUNCTION":
            raise _refusal("this part of SQL is not supported", part="table function")
        name = _plain_name(function, is_method=False)
        if name in OWN_TABLE_FUNCTIONS:
            arguments = tuple(argument["expression"] for argument in function["arguments"])
            if any(argument["name"] for argument in function["arguments"]):
                raise _refusal("this function takes arguments by position only", function=name)
            self.calls.append(FunctionCall(name, arguments, node))
            if name == FILL_FUNCTION:
                self._visit_fill(node, function, scope)
                return
        elif name in self._names.table_macros:
            self.defined.add(name)
            self.uses_macros = True
        elif name not in TABLE_FUNCTIONS:
            known = TABLE_FUNCTIONS | OWN_TABLE_FUNCTIONS | self._names.table_macros
            raise self._function_error(name, known, "this table function is not allowed")
        self._queue_children(node, scope, skip=("function",))
        self._queue_children(function, scope)

    def _visit_fill(self, node: Tree, function: Tree, scope: _Scope) -> None:
        """Visit a call of `fill_gaps` except its subquery."""
        arguments = function["arguments"]
        if not arguments or arguments[0]["expression"].get("subquery_type") != "SCALAR":
            raise Invalid(
                "fill_gaps takes a query in brackets as its first argument",
                hint="write: from fill_gaps((select ...), '1 minute', 'previous')",
            )
        self._queue_children(node, scope, skip=("function",))
        self._queue_children(function, scope, skip=("arguments",))
        self._waiting.append((arguments[1:], scope))

    def _visit_expression(self, node: Tree, scope: _Scope) -> None:
        kind = node["class"]
        if kind not in _EXPRESSIONS:
            raise _refusal("this kind of expression is not allowed", expression=kind)
        if kind in ("FUNCTION", "WINDOW"):
            name = _plain_name(node, is_method=kind == "FUNCTION")
            if name in self._names.macros:
                self.defined.add(name)
                self.uses_macros = True
            elif name not in FUNCTIONS | OWN_FUNCTIONS and name not in OPERATORS:
                known = FUNCTIONS | OWN_FUNCTIONS | self._names.macros
                raise self._function_error(name, known, "this function is not allowed")
            if node.get("export_state"):
                raise _refusal("this function is not allowed", function="export_state")
        elif kind == "TYPE" and (node["catalog"] or node["schema"]):
            raise _refusal("a type name has no catalog or schema", type=node["type_name"])
        self._queue_children(node, scope)

    def _function_error(self, name: str, known: frozenset[str], message: str) -> Invalid:
        """Return the error for a function that may not be called, or that does not exist."""
        if name in OWN_TABLE_FUNCTIONS | self._names.table_macros:
            hint = f"it returns rows: write it after FROM, as {name}(...)"
            return Invalid("this function is not allowed here", hint=hint, function=name)
        found = self._cursor.execute(_FIND_FUNCTION, [name]).fetchall()
        if found and name not in INSTEAD:
            return _refusal(message, function=name)
        near = difflib.get_close_matches(name, known, n=1, cutoff=_NEAR)
        guess = f"did you mean {near[0]}?" if near else "check its spelling"
        return Invalid("no such function", hint=INSTEAD.get(name, guess), function=name)


def _plain_name(function: Tree, *, is_method: bool) -> str:
    """Return the lower-case name of a function; `is_method` allows `a.f()` for `f(a)`."""
    name = str(function["function_name"]).lower()
    path = [part.lower() for part in function["qualified_name"]["path"]]
    is_plain = path == [name] and not (function["catalog"] or function["schema"])
    is_called_on = is_method and path[-1] == name and not _ENGINE_SCHEMAS & set(path[:-1])
    if not is_plain and not is_called_on:
        raise Invalid(
            "a function name has no catalog or schema",
            hint="write f(x), or x.f() of a column x",
            function=".".join(path),
        )
    return name


def _refusal(message: str, **facts: Any) -> Invalid:
    hint = "write one SELECT over registered tables that calls only functions of values"
    return Invalid(message, hint=hint, **facts)
