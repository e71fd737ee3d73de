"""SQL text as the engine's own parser reads it, and back to text.

In:   SQL text, also with `FROM t AS OF VERSION 3` or `FROM t p AS OF TIMESTAMP '2024-06-01'`; a
      cursor of the engine
Out:  the syntax tree as plain dictionaries and lists; `Invalid` with the parser's message

- The same parser checks and runs a query. A second parser would read some texts differently, and
  each difference would be a security hole.
- A tree is immutable, so threads may share it.
- Positions in a tree are bytes of the UTF-8 text.

`AS OF`, as users write it, becomes the `AT` clause that the parser reads: `AT (VERSION => 3)`.

- The engine's own tokenizer finds the words, so the text inside strings, comments and quoted names
  never changes. A text without the separate word OF is not tokenized at all.
- Only the sequence AS, OF, VERSION or TIMESTAMP, and a value is replaced. No other SQL has these
  in a row, so no other text changes its meaning. The parser reports a clause in a wrong place.
- A value is one number, string or parameter; after TIMESTAMP it may also be an expression in
  brackets, a call such as `now()`, a typed string, and sums of these with intervals:
  `now() - INTERVAL 1 HOUR`.
- An alias after the clause is moved before it, where the parser expects it.

A result column that is a subquery gets the text that the user wrote as its alias, in the engine's
spelling: `(SELECT max(v) FROM t)`. The engine names a column without an alias by its text, and
after the tables are replaced that text would contain file paths. The query text is generated from
its tree only when the query has such a column. The new text is used only if its tree equals the
old one except for those aliases.

The parser is called by a query of the engine. That query is parsed once and kept. Together with a
disabled optimizer, parsing a text takes 0.33 ms instead of 0.47.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import duckdb
import orjson

from thermocline.errors import Invalid

Tree: TypeAlias = dict[str, Any]

TEXT_BYTES_MAX = 1 << 20
TREE_BYTES_MAX = 256 << 20
SHORT_TEXT_BYTES_MAX = 100_000
TOKENS_MAX = 300_000
WORDS_MAX = 40_000
DEPTH_MAX = 100
NOWHERE = 1 << 62  # nodes that the parser itself added have a position past this
_POSITION_KEYS = frozenset({"query_location", "query_location_length"})
_READ = "select system.main.json_serialize_sql($1)"
_READ_BOTH = "select system.main.json_serialize_sql($1), system.main.json_serialize_sql($2)"
_WRITE = "select system.main.json_deserialize_sql($1)"
_prepared_statements: dict[str, duckdb.Statement] = {}
_UNITS = {b"version": b"VERSION", b"timestamp": b"TIMESTAMP"}
_CLAUSE_TOKENS_MAX = 1_000
_TIME_TYPES = frozenset({b"timestamp", b"timestamptz", b"date"})
_CLOCK_WORDS = frozenset({b"current_timestamp", b"current_date", b"localtimestamp"})
_SPANS = b"""
    microsecond millisecond second minute hour day week month quarter year decade century
""".split()
_SPAN_UNITS = frozenset([*_SPANS, *(word + b"s" for word in _SPANS)])
# AS comes before OF and VERSION or TIMESTAMP after it, so OF has a word boundary on both sides.
_HAS_OF = re.compile(r"\bof\b", re.ASCII | re.IGNORECASE).search
NAME_LENGTH_MAX = 1_000
_SUBQUERY = "SUBQUERY"
_NAMED_SOURCES = ("BASE_TABLE", "TABLE_FUNCTION")


class SqlToken(NamedTuple):
    """One token: its bytes, where they begin, and the engine's name for its kind."""

    start: int
    text: bytes
    kind: str

    @property
    def end(self) -> int:
        """Where the token ends, without the white space after it."""
        return self.start + len(self.text)

    def is_keyword(self, keyword: bytes) -> bool:
        """Tell whether this is the keyword, in upper or lower case."""
        return self.kind == "keyword" and self.text.lower() == keyword


class _ClauseEdit(NamedTuple):
    start: int
    end: int
    new: bytes


@dataclass(frozen=True, slots=True)
class RewrittenText:
    """SQL text for the parser; `original_position` maps its byte positions to the user's."""

    text: str
    edits: tuple[_ClauseEdit, ...] = ()

    def original_position(self, position: int) -> int:
        """Return the byte of the user's text that a byte of this text stands for."""
        shift = 0
        for edit in self.edits:
            begin = edit.start + shift
            if position < begin:
                break
            if position < begin + len(edit.new):
                return edit.start
            shift += len(edit.new) - (edit.end - edit.start)
        return position - shift


def tokenize(text: str) -> list[SqlToken]:
    """Return the tokens of SQL text without comments; positions are in bytes of UTF-8."""
    data = text.encode()
    tokens = duckdb.tokenize(text)
    ends = [start for start, _ in tokens[1:]] + [len(data)]
    found = [
        SqlToken(start, data[start:end].rstrip(), str(kind).rpartition(".")[2])
        for (start, kind), end in zip(tokens, ends, strict=True)
    ]
    return [word for word in found if word.kind != "comment"]


def rewrite_as_of(text: str) -> RewrittenText:
    """Return the text with every `AS OF` clause written as an `AT` clause."""
    if not _HAS_OF(text):
        return RewrittenText(text)
    tokens = tokenize(text)
    edits = []
    at = 0
    while at < len(tokens):
        if tokens[at].is_keyword(b"as"):
            edit, used = _parse_clause(tokens[at : at + _CLAUSE_TOKENS_MAX])
            edits += [edit] if edit else []
            at += used
        else:
            at += 1
    if not edits:
        return RewrittenText(text)
    data, pieces, done = text.encode(), [], 0
    for edit in edits:
        pieces += [data[done : edit.start], edit.new]
        done = edit.end
    return RewrittenText(b"".join([*pieces, data[done:]]).decode(), tuple(edits))


def _parse_clause(tokens: list[SqlToken]) -> tuple[_ClauseEdit | None, int]:
    """Return the edit that the tokens begin with, if any, and how many of them it uses."""
    if len(tokens) < 4 or not (tokens[0].is_keyword(b"as") and tokens[1].is_keyword(b"of")):
        return None, 1
    unit = _UNITS.get(tokens[2].text.lower()) if tokens[2].kind == "keyword" else None
    if unit is None:
        return None, 1
    count = _value_length(tokens[3:], "numeric_const" if unit == b"VERSION" else "string_const")
    if unit == b"TIMESTAMP":
        count = _instant_length(tokens[3:])
    if not count:
        return None, 1
    used = 3 + count
    value = _text_between(tokens[3:used])
    alias, more = _parse_alias(tokens[used:])
    new = (b"AS " + alias + b" " if alias else b"") + b"AT (" + unit + b" => " + value + b")"
    last = tokens[used + more - 1]
    return _ClauseEdit(tokens[0].start, last.end, new), used + more


def _text_between(tokens: list[SqlToken]) -> bytes:
    """Return the text of the tokens, with one space where the user wrote space or a comment."""
    found = tokens[0].text
    for before, token in pairwise(tokens):
        found += (b"" if before.end == token.start else b" ") + token.text
    return found


def _value_length(tokens: list[SqlToken], literal: str) -> int:
    """Return how many tokens the literal or parameter takes that they begin with, or 0."""
    first = tokens[0] if tokens else None
    if first is None:
        return 0
    if first.kind == literal:
        return 1
    if first.kind != "operator" or first.text not in (b"?", b"$"):
        return 0
    if len(tokens) > 1 and tokens[1].start == first.end:
        name = tokens[1]
        if name.kind in ("numeric_const", "identifier", "keyword"):
            return 2
    return 1 if first.text == b"?" else 0


def _instant_length(tokens: list[SqlToken]) -> int:
    """Return how many tokens the expression of an instant takes that they begin with, or 0."""
    used = _operand_length(tokens)
    while used and used < len(tokens) and tokens[used].text in (b"+", b"-"):
        more = _interval_length(tokens[used + 1 :]) or _operand_length(tokens[used + 1 :])
        if not more:
            return 0
        used += 1 + more
    return used


def _operand_length(tokens: list[SqlToken]) -> int:
    """Return how many tokens one operand takes: a value, a call, or an expression in brackets."""
    if not tokens:
        return 0
    first, word = tokens[0], tokens[0].text.lower()
    used = _value_length(tokens, "string_const") or _bracket_length(tokens)
    if not used and word in _TIME_TYPES and len(tokens) > 1 and tokens[1].kind == "string_const":
        used = 2
    if not used and first.kind in ("identifier", "keyword"):
        brackets = _bracket_length(tokens[1:])
        used = 1 + brackets if brackets else int(word in _CLOCK_WORDS)
    while used and len(tokens) > used + 1 and tokens[used].text == b"::":
        used += 2
    return used


def _bracket_length(tokens: list[SqlToken]) -> int:
    """Return how many tokens an expression in brackets takes that they begin with, or 0."""
    depth = 0
    for place, token in enumerate(tokens):
        if token.kind == "operator":
            depth += (token.text == b"(") - (token.text == b")")
        if not depth:
            return place + 1 if place else 0
    return 0


def _interval_length(tokens: list[SqlToken]) -> int:
    """Return how many tokens an interval takes: `INTERVAL '1 hour'` or `INTERVAL 1 HOUR`."""
    if len(tokens) < 2 or tokens[0].text.lower() != b"interval":
        return 0
    number = int(tokens[1].kind == "numeric_const") or _bracket_length(tokens[1:])
    used = 1 + (number or _value_length(tokens[1:], "string_const"))
    if used < len(tokens) and tokens[used].text.lower() in _SPAN_UNITS:
        return used + 1
    return used if used > 1 and not number else 0


def _parse_alias(tokens: list[SqlToken]) -> tuple[bytes | None, int]:
    """Return the alias that the tokens begin with, and how many of them it takes."""
    if tokens and tokens[0].kind == "identifier":
        return tokens[0].text, 1
    is_named = len(tokens) > 1 and tokens[0].is_keyword(b"as") and not tokens[1].is_keyword(b"of")
    if is_named and tokens[1].kind in ("identifier", "keyword"):
        return tokens[1].text, 2
    return None, 0


class ParserOutput(NamedTuple):
    """The parser's serialized output for a text; it may hold an error."""

    text: str
    serialized: str


class ParsedQuery(NamedTuple):
    """A query as it was parsed: its text for the engine, its tree, and the output for the guess."""

    text: str
    tree: Tree
    parsed_guess: ParserOutput | None


def parse_query(cursor: duckdb.DuckDBPyConnection, sql: str, guess: str | None) -> ParsedQuery:
    """Return the one SELECT statement that a user wrote; `Invalid` for anything else.

    `guess` is the likely text of the next parse. It is parsed in the same call, unless the query
    has an `AS OF`, whose rewritten text cannot be guessed.
    """
    rewritten = rewrite_as_of(sql)
    if guess is None or rewritten.edits:
        reading, beside = run_parser(cursor, rewritten.text), None
    else:
        reading, beside = run_parser_pair(cursor, rewritten.text, guess)
    named = _name_subqueries(cursor, reading, rewritten)
    if named is not None:
        rewritten, beside = named, None
        reading = run_parser(cursor, rewritten.text)
    return ParsedQuery(rewritten.text, tree_of(reading, rewritten), beside)


def parse(cursor: duckdb.DuckDBPyConnection, rewritten: RewrittenText) -> Tree:
    """Return the tree of the one SELECT statement in the text; `Invalid` for anything else."""
    return tree_of(run_parser(cursor, rewritten.text), rewritten)


def run_parser(cursor: duckdb.DuckDBPyConnection, text: str) -> ParserOutput:
    """Run the parser on a text; `Invalid` when the engine cannot take the text."""
    check_length(text)
    try:
        return ParserOutput(text, _query_row(cursor, _READ, text)[0])
    except (duckdb.Error, UnicodeError) as error:
        raise Invalid("the query text cannot be read", error=str(error)) from error


def run_parser_pair(
    cursor: duckdb.DuckDBPyConnection, text: str, other: str
) -> tuple[ParserOutput, ParserOutput | None]:
    """Run the parser on two texts at once; the second output is None when the call fails.

    Two texts take one and a half times as long as one.
    """
    check_length(text)
    try:
        first, second = _query_row(cursor, _READ_BOTH, text, other)
        return ParserOutput(text, first), ParserOutput(other, second)
    except (duckdb.Error, UnicodeError):
        return run_parser(cursor, text), None


def tree_of(reading: ParserOutput, rewritten: RewrittenText) -> Tree:
    """Return the tree of a parser output; `Invalid` as from `parse`."""
    if len(reading.serialized) > TREE_BYTES_MAX:
        raise Invalid(
            "the query has too many parts",
            hint="pass long lists as parameters",
            bytes=len(reading.serialized),
            bytes_max=TREE_BYTES_MAX,
        )
    try:
        answer: Tree = orjson.loads(reading.serialized)
    except (orjson.JSONDecodeError, RecursionError) as error:
        hint = "use fewer levels of brackets and subqueries"
        raise Invalid("the query is nested too deep", hint=hint) from error
    if answer["error"]:
        raise _refusal(answer, rewritten)
    statements = answer["statements"]
    if len(statements) != 1:
        raise Invalid(
            "a query must be exactly one statement",
            hint="send one SELECT",
            statements=len(statements),
        )
    statement: Tree = statements[0]
    return statement


def check_length(text: str) -> None:
    """Raise `Invalid` for a text longer than the limit, before the parser reads it."""
    size_bytes = len(text.encode(errors="replace"))
    if size_bytes > TEXT_BYTES_MAX:
        raise Invalid(
            "the query text is too long",
            hint="pass long lists as parameters",
            bytes=size_bytes,
            bytes_max=TEXT_BYTES_MAX,
        )


def check_long_text(text: str) -> None:
    """Raise `Invalid` for a long text that is more than a query with long lists of values.

    Before the parser reads it: at this length, deep brackets or many subqueries overflow its stack
    or take it minutes.
    """
    check_length(text)
    if len(text) <= SHORT_TEXT_BYTES_MAX:
        return
    depth = deepest = words = 0
    tokens = tokenize(text)
    for _, token, kind in tokens:
        if token in (b"(", b"[", b"{"):
            depth += 1
            deepest = max(deepest, depth)
        elif token in (b")", b"]", b"}"):
            depth -= 1
        elif kind not in ("numeric_const", "string_const") and token not in (b",", b"-"):
            words += 1
    if len(tokens) > TOKENS_MAX or words > WORDS_MAX or deepest > DEPTH_MAX:
        raise Invalid(
            "the query has too many parts",
            hint="pass long lists as parameters, or put them into a table",
            tokens=len(tokens),
            tokens_max=TOKENS_MAX,
            words=words,
            words_max=WORDS_MAX,
            depth=deepest,
            depth_max=DEPTH_MAX,
        )


def _query_row(cursor: duckdb.DuckDBPyConnection, sql: str, *texts: str) -> Sequence[Any]:
    """Run one of this module's queries with these texts; return its only row."""
    ready = _prepared_statements.get(sql)
    if ready is None:
        ready = _prepared_statements[sql] = cursor.extract_statements(sql)[0]
    row: Sequence[Any] = cursor.execute(ready, list(texts)).fetchall()[0]
    return row


def _refusal(answer: Tree, rewritten: RewrittenText) -> Invalid:
    message = str(answer.get("error_message", "unknown error"))
    if answer.get("error_type") == "not implemented":
        if "SELECT" in message:
            hint = "write a SELECT, EXPLAIN, SHOW TABLES, or CREATE TEMP VIEW or MACRO"
            return Invalid("only a SELECT statement is run", hint=hint)
        return Invalid("the query cannot be run", error=message)
    facts: dict[str, Any] = {"error": message}
    if "position" in answer:
        place = rewritten.original_position(int(answer["position"]))
        # The engine counts bytes of the rewritten text; the fact is a position in the user's text.
        facts["position"] = place
    return Invalid("the query has a syntax error", hint="fix the SQL at this position", **facts)


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
    return statement_text(cursor, with_parameters({"node": node})).removeprefix("SELECT ")


def with_parameters(statement: Tree) -> Tree:
    """Return a statement of these nodes that declares the parameters it uses."""
    node = statement["node"]
    parameters = [
        {"key": key, "value": place} for place, key in enumerate(parameter_names(node), 1)
    ]
    return {"node": node, "named_param_map": parameters}


def statement_text(cursor: duckdb.DuckDBPyConnection, statement: Tree) -> str:
    """Return the SQL text of a tree, as the engine writes it."""
    whole = {"error": False, "statements": [statement]}
    try:
        return str(_query_row(cursor, _WRITE, orjson.dumps(whole).decode())[0])
    except duckdb.Error as error:
        raise Invalid("an expression cannot be converted to SQL text", error=str(error)) from error


def parameter_names(tree: Any) -> list[str]:
    """Return the parameters that a part of a tree uses, each once."""
    return parameter_names_among(tree_nodes(tree))


def parameter_names_among(nodes: Iterable[Tree]) -> list[str]:
    """Return the parameters among these dictionaries of a tree, each once."""
    found = {node["identifier"]: None for node in nodes if node.get("class") == "PARAMETER"}
    return list(found)


def tree_nodes(tree: Any) -> list[Tree]:
    """Return every dictionary of a tree, the outer ones first."""
    # A list instead of recursion: the depth of a tree is the sender's choice.
    found: list[Tree] = []
    waiting = [tree]
    while waiting:
        value = waiting.pop()
        if type(value) is dict:
            found.append(value)
            value = value.values()
        for inner in value:
            if type(inner) is dict or type(inner) is list:
                waiting.append(inner)  # noqa: PERF401  # a new list for each node takes longer
    return found


def is_same_tree(old: Tree, new: Tree, replaced: Mapping[int, Tree]) -> bool:
    """Tell whether a tree equals the old one except for positions and for replaced nodes.

    `replaced` maps the `id` of a node of the old tree to the node that must be in its place.
    """
    waiting: list[tuple[Any, Any]] = [(old, new)]
    while waiting:
        one, other = waiting.pop()
        if type(one) is dict:
            one = replaced.get(id(one), one)
            if one.keys() != other.keys():
                return False
            keys: Iterable[str | int] = one
        elif len(one) == len(other):
            keys = range(len(one))
        else:
            return False
        for key in keys:
            value, beside = one[key], other[key]
            kind = type(value)
            if kind is not type(beside):
                return False
            if kind is dict or kind is list:
                waiting.append((value, beside))
            elif value != beside and key not in _POSITION_KEYS:
                return False
    return True


def _name_subqueries(
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
    return any(part.get("type") in _NAMED_SOURCES for one in inside for part in tree_nodes(one))
