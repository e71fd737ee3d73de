"""Constant expressions of a query, evaluated before the query runs.

In:   expressions of a tree that name no column; the query's parameters
Out:  Python values with the engine's type; instants as nanoseconds since 1970

- The engine evaluates constants, so a constant means here what it means in the query. Only whole
  numbers, texts, parameters that are plain ints or datetimes, and times written in full with a
  four-digit year and no zone are read without the engine. A test compares such times with the
  engine's result.
- A constant that cannot be evaluated is None, and the caller does not prune by it.
- A constant that reads the clock is evaluated in the transaction of the query: both see one time.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import duckdb

from thermocline.format.instant import from_datetime
from thermocline.query.sql.engine_types import quote_text as quoted_text
from thermocline.query.sql.syntax import Tree, expression_text, parameter_names, tree_nodes
from thermocline.query.sql.vocabulary import (
    CLOCK_FUNCTIONS,
    CLOCK_WORDS,
    CONSTANT_FUNCTIONS,
)

Parameters = Mapping[str, Any]

YEAR_MIN, YEAR_MAX = 1700, 2200  # well inside what nanoseconds of 64 bits reach

_WHOLE = re.compile(r"^-?\d{1,18}$")
_TIME_TEXT = re.compile(
    r"((\d{4}-\d\d-\d\d)([ T]\d\d:\d\d:\d\d)?)(?:(?<=:\d\d)\.(\d{1,6}))?", re.ASCII
)
_TIMES = {
    "date": "DATE",
    "timestamp": "TIMESTAMP",
    "timestamptz": "TIMESTAMP WITH TIME ZONE",
    "timestamp with time zone": "TIMESTAMP WITH TIME ZONE",
}
_CLASSES = frozenset({"CONSTANT", "PARAMETER", "CAST", "TYPE", "FUNCTION", "COLUMN_REF"})
_NANOSECONDS = (
    "coalesce(epoch_ns(try_cast({0} as timestamp_ns))::hugeint,"
    " epoch_us(try_cast({0} as timestamp))::hugeint * 1000)"
)


@dataclass(frozen=True, slots=True)
class Constant:
    """An expression without columns: its text, its parameters, and whether it reads the clock.

    It `is_direct` when it is one literal or one parameter. `literal` is the kind and text of a
    literal that needs no evaluation; the kind of a time is an engine type.
    """

    text: str
    parameters: tuple[str, ...] = ()
    asks_clock: bool = False
    is_direct: bool = False
    literal: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class ConstantValue:
    """An evaluated constant: the engine's type, the value, and the instant if it is a time.

    `instant_as_column` is the instant after a cast of the value to the column's type.
    """

    type: str
    value: Any
    instant: int | None
    instant_as_column: int | None


def is_constant(expression: Tree, *, clock_words: bool) -> bool:
    """Tell whether this module can evaluate every part of an expression soundly.

    With `clock_words`, names such as `current_timestamp` are constants; the caller must know that
    no column has such a name.
    """
    if _parse_literal(expression) is not None:
        return True
    for part in tree_nodes(expression):
        kind = part.get("class")
        if kind is None and isinstance(part.get("type"), str) and part["type"] != "ORDER_MODIFIER":
            return False
        if kind is not None and kind not in _CLASSES:
            return False
        if kind == "COLUMN_REF" and not (clock_words and _is_clock_word(part)):
            return False
        if kind == "FUNCTION" and not _is_plain_call(part):
            return False
    return True


def _is_clock_word(part: Tree) -> bool:
    names = part["column_names"]
    return len(names) == 1 and names[0].lower() in CLOCK_WORDS


def _is_plain_call(part: Tree) -> bool:
    modified = part["distinct"] or part["filter"] or part["order_bys"]["orders"]
    return part["function_name"].lower() in CONSTANT_FUNCTIONS and not modified


def parse_constant(cursor: duckdb.DuckDBPyConnection, expression: Tree) -> Constant:
    """Return the `Constant` of an expression for which `is_constant` holds."""
    plain = _parse_literal(expression)
    if plain is not None:
        return plain
    timely = any(
        part.get("class") == "COLUMN_REF"
        or (part.get("class") == "FUNCTION" and part["function_name"].lower() in CLOCK_FUNCTIONS)
        for part in tree_nodes(expression)
    )
    return Constant(
        expression_text(cursor, expression),
        tuple(parameter_names(expression)),
        timely,
        expression["class"] in ("CONSTANT", "PARAMETER"),
    )


def _parse_literal(expression: Tree) -> Constant | None:
    """Return a whole number, text or time whose SQL text does not need the engine."""
    if expression["class"] == "CAST":
        return _parse_time_literal(expression)
    found = expression.get("literal") if expression["class"] == "CONSTANT" else None
    if not isinstance(found, dict):
        return None
    kind, text = str(found["kind"]), str(found["text"])
    if kind == "STRING":
        return Constant(quoted_text(text), is_direct=True, literal=(kind, text))
    if kind == "INTEGER" and _WHOLE.match(text):
        return Constant(text, is_direct=True, literal=(kind, text))
    return None


def _parse_time_literal(cast: Tree) -> Constant | None:
    """Return a text that is cast to a type of time: `timestamp '2024-06-01'`."""
    inner, written = cast["child"].get("literal"), cast["type_expr"]
    kind = _TIMES.get(str(written.get("type_name")).lower())
    if kind is None or cast["try_cast"] or not isinstance(inner, dict):
        return None
    if written["catalog"] or written["schema"] or written["children"] or inner["kind"] != "STRING":
        return None
    text = str(inner["text"])
    return Constant(f"CAST({quoted_text(text)} AS {kind})", literal=(kind, text))


def evaluate_constants(
    cursor: duckdb.DuckDBPyConnection,
    constants: Sequence[tuple[Constant, str]],
    parameters: Parameters,
) -> list[ConstantValue] | None:
    """Return the values of constants, each with the engine type of its column, by one query.

    None when the engine refuses that query: the user's query then fails with the same error.
    """
    known = [_known_value(one, column_type, parameters) for one, column_type in constants]
    left = [pair for pair, value in zip(constants, known, strict=True) if value is None]
    if not left:
        return [value for value in known if value is not None]
    columns = []
    for one, column_type in left:
        columns += [f"typeof(try({one.text}))", f"try({one.text})"]
        if column_type.startswith("TIMESTAMP"):
            columns += [
                _NANOSECONDS.format(f"try({one.text})"),
                _NANOSECONDS.format(f"try_cast({one.text} as {column_type})"),
            ]
        else:
            columns += ["NULL", "NULL"]
    used = used_parameters((one for one, _ in left), parameters)
    try:
        found = cursor.execute("select " + ", ".join(columns), used or None).fetchall()
    except duckdb.Error:
        return None
    row = found[0]
    fresh = iter([ConstantValue(*row[place : place + 4]) for place in range(0, len(row), 4)])
    return [next(fresh) if value is None else value for value in known]


def _known_value(one: Constant, column_type: str, parameters: Parameters) -> ConstantValue | None:
    """Return the value of a literal or parameter that needs no evaluation by the engine.

    Only exact types match, because a subclass may mean more than its base.
    """
    if one.literal is not None:
        kind, text = one.literal
        if kind == "INTEGER":
            return ConstantValue("BIGINT", int(text), None, None)
        if kind == "STRING" and column_type == "VARCHAR":
            return ConstantValue("VARCHAR", text, None, None)
        return _parse_time(kind, text) if column_type.startswith("TIMESTAMP") else None
    if not (one.is_direct and one.parameters):
        return None
    value = parameters[one.parameters[0]]
    if type(value) is datetime:
        instant = from_datetime(value)
        zoned = "TIMESTAMP WITH TIME ZONE" if value.tzinfo else "TIMESTAMP"
        return ConstantValue(zoned, value, instant, instant)
    if type(value) is int:
        return ConstantValue("BIGINT" if abs(value) < 2**63 else "HUGEINT", value, None, None)
    return None


def _parse_time(kind: str, text: str) -> ConstantValue | None:
    """Return the value of a text that is, or is compared with, a time; None for other forms."""
    found = _TIME_TEXT.fullmatch(text)
    if found is None or (kind == "DATE" and found[3]):
        return None
    whole, fraction = found[1], found[4] or ""
    try:
        moment = datetime.fromisoformat(f"{whole}.{fraction.ljust(6, '0')}" if fraction else whole)
    except ValueError:
        return None
    if not YEAR_MIN <= moment.year <= YEAR_MAX:
        return None
    instant = from_datetime(moment)
    value: Any = moment
    if kind == "STRING":
        kind, value = "VARCHAR", text
    elif kind == "DATE":
        value = moment.date()
    elif kind != "TIMESTAMP":
        value = moment.replace(tzinfo=UTC)
    return ConstantValue(kind, value, instant, instant)


def used_parameters(constants: Iterable[Constant], parameters: Parameters) -> dict[str, Any]:
    """Return those parameters that the constants use."""
    names = {name for one in constants for name in one.parameters}
    return {name: parameters[name] for name in names if name in parameters}
