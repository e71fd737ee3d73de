"""SQL text as statements: definitions of views and macros, EXPLAIN, SHOW TABLES, and one query.

In:   the text of a user
Out:  `Script`: what the text defines or drops, and the query at its end

- This module finds the parts of a text by the tokens of the engine's tokenizer. It admits nothing:
  the body of a definition and the query pass the gate as any other query does.
- A text is definitions, then at most one query. Each part keeps its position in the user's text,
  because blanks replace the parts before it.
- A plain query, which is nearly every text, is not tokenized.
- SHOW TABLES and its variants become queries of the information schema.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, Literal

import duckdb

from thermocline.errors import Invalid
from thermocline.names import is_table_name
from thermocline.query.sql.allowed_functions import (
    FUNCTIONS,
    OWN_FUNCTIONS,
    OWN_TABLE_FUNCTIONS,
    TABLE_FUNCTIONS,
)
from thermocline.query.sql.engine_types import quote_identifier, quote_text
from thermocline.query.sql.gate import RESERVED_PREFIXES, DefinedNames, Statement, admit
from thermocline.query.sql.syntax import (
    SqlToken,
    Tree,
    check_long_text,
    rewrite_as_of,
    tokenize,
    tree_nodes,
)

DEFINITIONS_MAX = 100  # of one session
PARAMETERS_MAX = 20  # of one macro
BODY_BYTES_MAX = 100_000

_MAY_BE_MORE = re.compile(
    r"\s*(?:--|/\*|create\b|drop\b|explain\b|show\b|desc(?:ribe)?\s*;?\s*$)|.*;\s*[^\s;]",
    re.IGNORECASE | re.DOTALL,
).match
_MAY_PIVOT = re.compile(r"\bpivot(?:_wider)?\b", re.IGNORECASE).search
_SHOW_TABLES = "SELECT table_name AS name FROM information_schema.tables ORDER BY name"
_SHOW_ALL_TABLES = """
    SELECT t.table_schema AS schema, t.table_name AS name, t.table_type AS type,
        list(c.column_name ORDER BY c.ordinal_position)
            FILTER (c.column_name IS NOT NULL) AS column_names,
        list(c.data_type ORDER BY c.ordinal_position)
            FILTER (c.column_name IS NOT NULL) AS column_types
    FROM information_schema.tables t
    LEFT JOIN information_schema.columns c USING (table_name) GROUP BY ALL ORDER BY name
"""
_SELECT_PARTS = ("modifiers", "where_clause", "group_expressions", "having", "sample", "qualify")
_PIVOT_ENDS = frozenset({b"using", b"group", b"order", b"limit", b"offset"})

Kind = Literal["view", "macro", "table macro"]
Explains = Literal["", "plan", "run"]


@dataclass(frozen=True, slots=True)
class Definition:
    """A view or macro of a session: its name and the text of its body.

    `columns` renames the columns of a view; `parameters` are those of a macro, each with the SQL of
    its default value or an empty text.
    """

    kind: Kind
    name: str
    body: str
    columns: tuple[str, ...] = ()
    parameters: tuple[tuple[str, str], ...] = ()

    @property
    def query(self) -> str:
        """The body as a query: that of a macro of values is its only column."""
        return f"SELECT {self.body}" if self.kind == "macro" else self.body

    def sql(self, filled: str) -> str:
        """Return the statement that creates this in the engine; `filled` is its admitted query."""
        head = f"{quote_identifier(self.name)}"
        if self.kind == "view":
            listed = ", ".join(quote_identifier(column) for column in self.columns)
            return f"CREATE TEMP VIEW {head}{f'({listed})' if listed else ''} AS\n{filled}"
        listed = ", ".join(
            quote_identifier(name) + (f" := {default}" if default else "")
            for name, default in self.parameters
        )
        if self.kind == "table macro":
            return f"CREATE TEMP MACRO {head}({listed}) AS TABLE\n{filled}"
        return f"CREATE TEMP MACRO {head}({listed}) AS (\n{filled.removeprefix('SELECT ')}\n)"


@dataclass(frozen=True, slots=True)
class Change:
    """One statement that defines a view or macro, or drops it when `definition` is None."""

    name: str
    kind: str
    definition: Definition | None = None
    replaces: bool = False
    is_optional: bool = False


@dataclass(frozen=True, slots=True)
class Script:
    """The changes of a text and its query; `explains` tells what EXPLAIN asks for."""

    changes: tuple[Change, ...]
    query: str | None
    explains: Explains = ""


Definitions = Mapping[str, Definition]


def read_script(text: str) -> Script:
    """Return the parts of a text; `Invalid` when it is not definitions and at most one query."""
    check_long_text(text)
    if not _MAY_BE_MORE(text):
        return Script((), text)
    data = text.encode(errors="replace")
    parts = list(_split_statements(tokenize(text)))
    if len(parts) <= 1:
        parts = parts or [[]]
    changes: list[Change] = []
    for place, tokens in enumerate(parts):
        change = _parse_change(tokens, data) if tokens else None
        if change is not None:
            changes.append(change)
        elif place < len(parts) - 1:
            raise Invalid(
                "a query must be exactly one statement",
                hint="send one SELECT; only CREATE TEMP VIEW and MACRO may come before it",
                statements=len(parts),
            )
        else:
            return _parse_query(tokens, data, tuple(changes), text)
    return Script(tuple(changes), None)


def _split_statements(tokens: Sequence[SqlToken]) -> Iterator[list[SqlToken]]:
    found: list[SqlToken] = []
    for token in tokens:
        if token.kind == "operator" and token.text == b";":
            if found:
                yield found
            found = []
        else:
            found.append(token)
    if found:
        yield found


def _parse_query(
    tokens: Sequence[SqlToken], data: bytes, changes: tuple[Change, ...], text: str
) -> Script:
    words = [token.text.lower() for token in tokens[:3]]
    if words in ([b"show", b"tables"], [b"show", b"all", b"tables"], [b"describe"], [b"desc"]):
        is_short = words == [b"show", b"tables"] and len(tokens) == 2
        if is_short or len(tokens) == len(words):
            return Script(changes, _SHOW_TABLES if is_short else _SHOW_ALL_TABLES)
    if words[:1] == [b"show"] and len(tokens) == 2 and is_table_name(tokens[1].text.decode()):
        return Script(changes, f"DESCRIBE {tokens[1].text.decode()}")
    if words[:1] != [b"explain"]:
        return Script(changes, _from_token(tokens, data) if changes else text)
    place = 2 if words[1:2] == [b"analyze"] else 1
    if len(tokens) <= place:
        raise Invalid("EXPLAIN needs a query", hint="write EXPLAIN SELECT ...")
    return Script(changes, _from_token(tokens[place:], data), "run" if place == 2 else "plan")


def _from_token(tokens: Sequence[SqlToken], data: bytes) -> str:
    """Return the text of the tokens, with blanks for the text before it."""
    start = tokens[0].start
    return " " * start + data[start : tokens[-1].end].decode()


class _TokenReader:
    """The tokens of one definition, read from left to right."""

    def __init__(self, tokens: Sequence[SqlToken]) -> None:
        self.tokens = tokens
        self.place = 0

    def skip(self, *words: bytes) -> bool:
        """Skip these words when they come next."""
        following = [token.text.lower() for token in self.tokens[self.place :][: len(words)]]
        if following != list(words):
            return False
        self.place += len(words)
        return True

    def expect(self, *words: bytes) -> None:
        """Skip these words; `Invalid` when others come next."""
        if not self.skip(*words):
            raise _definition_error(expected=b" ".join(words).decode().upper())

    def name(self) -> str:
        """Return the next token, a name; quotes around it are removed."""
        if self.place >= len(self.tokens):
            raise _definition_error(expected="a name")
        text = self.tokens[self.place].text.decode()
        self.place += 1
        if len(text) > 1 and text[0] == text[-1] == '"':
            text = text[1:-1].replace('""', '"')
        if not is_table_name(text):
            raise _definition_error(expected="a name", got=text[:80])
        return text

    @property
    def rest(self) -> Sequence[SqlToken]:
        """The tokens that are left."""
        if self.place >= len(self.tokens):
            raise _definition_error(expected="a query")
        return self.tokens[self.place :]


def _parse_change(tokens: Sequence[SqlToken], data: bytes) -> Change | None:
    """Return the definition or removal that the tokens are, or None for any other statement."""
    reader = _TokenReader(tokens)
    if reader.skip(b"drop"):
        is_view = reader.skip(b"view")
        is_table = not is_view and reader.skip(b"macro", b"table")
        if not is_view and not is_table and not reader.skip(b"macro"):
            return None
        is_optional = reader.skip(b"if", b"exists")
        name = reader.name()
        if reader.place < len(tokens):
            raise _definition_error(expected="the end of the statement")
        return Change(name, "view" if is_view else "macro", is_optional=is_optional)
    if not reader.skip(b"create"):
        return None
    replaces = reader.skip(b"or", b"replace")
    is_temporary = reader.skip(b"temp") or reader.skip(b"temporary")
    is_view = reader.skip(b"view")
    if not is_view and not reader.skip(b"macro") and not reader.skip(b"function"):
        return None
    if not is_temporary:
        raise Invalid(
            "a view or macro lasts as long as its session only",
            hint="write CREATE TEMP VIEW or CREATE TEMP MACRO",
        )
    found = _parse_view(reader, data) if is_view else _parse_macro(reader, data)
    return Change(found.name, found.kind, found, replaces)


def _parse_view(reader: _TokenReader, data: bytes) -> Definition:
    name = _check_name(reader.name())
    columns = []
    if reader.skip(b"("):
        columns.append(reader.name())
        while reader.skip(b","):
            columns.append(reader.name())
        reader.expect(b")")
    reader.expect(b"as")
    return Definition("view", name, _body(reader, data), tuple(columns))


def _parse_macro(reader: _TokenReader, data: bytes) -> Definition:
    name = _check_name(reader.name())
    if name.lower() in FUNCTIONS | OWN_FUNCTIONS | TABLE_FUNCTIONS | OWN_TABLE_FUNCTIONS:
        raise Invalid("a function has this name", hint="choose another name", name=name)
    parameters: list[tuple[str, str]] = []
    reader.expect(b"(")
    while not reader.skip(b")"):
        if parameters:
            reader.expect(b",")
        parameters.append((reader.name(), _parse_default(reader)))
    names = {parameter.lower() for parameter, _ in parameters}
    if len(names) < len(parameters) or len(parameters) > PARAMETERS_MAX:
        hint = "give each parameter a different name"
        raise Invalid("the parameters of a macro", hint=hint, parameters_max=PARAMETERS_MAX)
    reader.expect(b"as")
    kind: Kind = "table macro" if reader.skip(b"table") else "macro"
    return Definition(kind, name, _body(reader, data), parameters=tuple(parameters))


def _parse_default(reader: _TokenReader) -> str:
    """Return the literal after `:=`, or an empty text."""
    if not (reader.skip(b":=") or reader.skip(b":", b"=")):
        return ""
    sign = "-" if reader.skip(b"-") else ""
    token = reader.rest[0]
    reader.place += 1
    is_word = token.text.lower() in (b"null", b"true", b"false")
    if token.kind not in ("numeric_const", "string_const") and not is_word:
        hint = "write a number, a text, true, false or null"
        raise Invalid("the default of a parameter must be a literal", hint=hint)
    return sign + token.text.decode()


def _body(reader: _TokenReader, data: bytes) -> str:
    tokens = reader.rest
    body = data[tokens[0].start : tokens[-1].end].decode()
    if len(body) > BODY_BYTES_MAX:
        raise Invalid(
            "the text of a definition is too long",
            hint="define it in several parts",
            bytes=len(body),
            bytes_max=BODY_BYTES_MAX,
        )
    return body


def _check_name(name: str) -> str:
    if name.lower().startswith(RESERVED_PREFIXES):
        raise Invalid("this name is reserved", hint="choose another name", name=name)
    return name


def _definition_error(**facts: str) -> Invalid:
    return Invalid(
        "the definition cannot be read",
        hint="write CREATE TEMP VIEW name AS SELECT ..., or CREATE TEMP MACRO name(a) AS a + 1",
        **facts,
    )


def names_of(definitions: Definitions) -> DefinedNames:
    """Return the lower-case names of the definitions, by kind."""
    kinds: dict[str, set[str]] = {"view": set(), "macro": set(), "table macro": set()}
    for name, one in definitions.items():
        kinds[one.kind].add(name)
    return DefinedNames(*(frozenset(kinds[kind]) for kind in ("view", "macro", "table macro")))


def apply_change(definitions: Definitions, change: Change) -> dict[str, Definition]:
    """Return the definitions after a change; `Invalid` when it cannot be made."""
    changed, key = dict(definitions), change.name.lower()
    old = changed.pop(key, None)
    if change.definition is None:
        kind = "" if old is None else "view" if old.kind == "view" else "macro"
        if kind != change.kind and not (old is None and change.is_optional):
            hint = "a session drops only what it has defined"
            raise Invalid(f"no such {change.kind}", hint=hint, name=change.name)
        return changed
    if old is not None and not change.replaces:
        hint = "write CREATE OR REPLACE, or choose another name"
        raise Invalid("this name is defined already", hint=hint, name=change.name)
    if len(changed) >= DEFINITIONS_MAX:
        hint = "drop a view or macro that is no longer needed"
        raise Invalid("too many definitions", hint=hint, definitions_max=DEFINITIONS_MAX)
    changed[key] = change.definition
    return changed


def admit_definition(
    cursor: duckdb.DuckDBPyConnection, definition: Definition, names: DefinedNames
) -> Statement:
    """Return the admitted body of a definition; `Invalid` where it may not run."""
    statement = admit(cursor, definition.query, None, names)
    if statement.parameters:
        hint = "write the values into the text"
        raise Invalid("a definition has no parameters of a query", hint=hint, name=definition.name)
    node = statement.tree["node"]
    if definition.kind == "macro" and not _is_one_value(node):
        hint = "write one expression, or AS TABLE SELECT ..."
        raise Invalid("the body of this macro must be one value", hint=hint, name=definition.name)
    return statement


def _is_one_value(node: Tree) -> bool:
    if node["type"] != "SELECT_NODE" or node["cte_map"]["map"]:
        return False
    if node["from_table"]["type"] != "EMPTY" or any(node[part] for part in _SELECT_PARTS):
        return False
    columns = node["select_list"]
    return len(columns) == 1 and columns[0]["class"] != "STAR" and not columns[0]["alias"]


@dataclass(frozen=True, slots=True)
class OpenPivot:
    """A PIVOT without a list of values, with a marker where the list would be.

    The gate reads the text with the marker. The engine runs it without, and finds the values in
    the same rows.
    """

    text: str
    lists: tuple[str, ...]

    def remove_lists(self, filled: str) -> str:
        """Return a text made from this one, without the markers."""
        for one in self.lists:
            if filled.count(one) != 1:
                raise _pivot_error()
            filled = filled.replace(one, "")
        return filled

    def check(self, statement: Statement) -> None:
        """Raise `Invalid` unless every marker is the list of a PIVOT, and nothing else."""
        nodes = tree_nodes(statement.tree["node"])
        entries = [
            entry["star_expr"]
            for node in nodes
            if node.get("type") == "PIVOT" and "class" not in node
            for pivot in node["pivots"]
            if len(pivot["entries"]) == 1
            for entry in pivot["entries"]
        ]
        texts = [_literal_text(entry) for entry in entries]
        is_right = all(
            sum(quote_text(text) in one for text in texts if text) == 1 for one in self.lists
        )
        if not is_right or statement.parameters:
            raise _pivot_error()


def _literal_text(expression: Any) -> str:
    literal = expression.get("literal") if isinstance(expression, dict) else None
    return str(literal["text"]) if isinstance(literal, dict) else ""


def open_pivot(cursor: duckdb.DuckDBPyConnection, text: str) -> OpenPivot | None:
    """Return the query with a marker for each missing list of a PIVOT; None when none is missing.

    The engine makes several statements of such a text, which the gate cannot read.
    """
    if not _MAY_PIVOT(text):
        return None
    try:
        kinds = [one.type.name for one in cursor.extract_statements(rewrite_as_of(text).text)]
    except (duckdb.Error, UnicodeError):
        return None  # the gate reports the error with its position
    if kinds != ["MULTI"]:
        return None
    tokens = tokenize(text)
    items: set[tuple[int, int]] = set()
    for place, token in enumerate(tokens):
        before = tokens[place - 1].text if place else b"("
        if token.text.lower() in (b"pivot", b"pivot_wider") and before in (b"(", b")"):
            items |= _items_without_list(tokens, place + 1)
    data, pieces, lists, done = text.encode(), [], [], 0
    for start, end in sorted(items):
        lists.append(f" IN ({quote_text('thermocline pivot ' + token_hex(8))})")
        # In brackets, because `a > 1 IN (...)` would be another condition.
        pieces += [data[done:start].decode(), f"({data[start:end].decode()}\n)", lists[-1]]
        done = end
    return OpenPivot("".join([*pieces, data[done:].decode()]), tuple(lists))


def _items_without_list(tokens: Sequence[SqlToken], start: int) -> set[tuple[int, int]]:
    """Return where each item of the ON clause of a PIVOT begins and ends that has no list."""
    depth, begin, end = 0, None, len(tokens)
    for place in range(start, len(tokens)):
        word = tokens[place].text.lower()
        depth += (word == b"(") - (word == b")")
        if depth < 0 or (depth == 0 and begin is not None and word in _PIVOT_ENDS):
            end = place
            break
        if depth == 0 and word == b"on":
            begin = place + 1
    found: set[tuple[int, int]] = set()
    if begin is None:
        return found
    first, depth, has_list = begin, 0, False
    for place in range(begin, end + 1):
        word = tokens[place].text.lower() if place < end else b","
        depth += (word == b"(") - (word == b")")
        if depth == 0 and word == b",":
            if not has_list and place > first:
                found.add((tokens[first].start, tokens[place - 1].end))
            first, has_list = place + 1, False
        elif depth == 0 and word == b"in":
            has_list = True
    return found


def _pivot_error() -> Invalid:
    return Invalid(
        "the values of this PIVOT cannot be found",
        hint="list them: PIVOT t ON symbol IN ('A', 'B') USING avg(close)",
    )
