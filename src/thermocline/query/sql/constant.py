"""The values in a query: its parameters, and its constant expressions before the query runs.

In:   parameters of any Python type, by name; expressions of a tree that name no column
Out:  parameters that the engine reads exactly; values of constants with the engine's type, and
      instants as nanoseconds since 1970

Parameters:

- The engine would round a decimal of more than 38 digits, cut nanoseconds off, and turn a
  `datetime64` into a number. Here each is passed on exactly or refused.
- The values of a list have one kind, at every depth: the engine would turn mixed ones into texts
  or doubles, and cut digits of decimals that one decimal type does not hold together.

Constants:

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
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import duckdb

from thermocline.errors import Invalid
from thermocline.format.argument import PARAMETER_DEPTH_MAX
from thermocline.format.instant import NS_PER_S, Nanoseconds, from_datetime
from thermocline.query.sql.allowed_functions import (
    CLOCK_FUNCTIONS,
    CLOCK_WORDS,
    CONSTANT_FUNCTIONS,
)
from thermocline.query.sql.engine_types import quote_text as quoted_text
from thermocline.query.sql.syntax import Tree, expression_text, parameter_names, tree_nodes

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
DIGITS_MAX = 38
_EXACT_DOUBLE = 2**53
_PASSED_AS_IS = (str, bytes, bytearray, memoryview, date, time, timedelta, UUID)


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
    modified = part["distinct"] or part["filter"] or part["order_bys"]["orders"] or part["schema"]
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


def convert_parameter(value: Any, name: str, depth: int = 0) -> Any:
    """Return a parameter's value in a form that the engine does not change."""
    if depth > PARAMETER_DEPTH_MAX:
        raise Invalid("a parameter is nested too deeply", hint="flatten it", parameter=name)
    if value is None or type(value) in (bool, float, str, bytes):
        return value
    if type(value).__module__.partition(".")[0] in ("numpy", "pandas"):
        value = of_library(value, name)
    if isinstance(value, Mapping):
        return {key: convert_parameter(one, name, depth + 1) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return _check_one_kind([convert_parameter(one, name, depth + 1) for one in value], name)
    return _convert_scalar(value, name)


def _convert_scalar(value: Any, name: str) -> Any:
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return _check_number(value, name)
    if isinstance(value, Decimal):
        return _convert_decimal(value, name)
    if isinstance(value, Nanoseconds):
        return _convert_nanoseconds(value)
    if isinstance(value, time) and value.tzinfo is not None:
        raise _refusal(name, value, "drop the zone of the time, or pass a datetime")
    if isinstance(value, _PASSED_AS_IS):
        return value
    raise _refusal(name, value, "use numbers, texts, times and lists of them")


def of_library(value: Any, name: str) -> Any:
    """Return a value of numpy or pandas as one of Python, or as `Nanoseconds`."""
    kind = type(value).__name__
    if getattr(value, "ndim", 0):  # an array, a series
        return list(value)
    if kind == "ndarray":
        return convert_parameter(value[()], name)
    if kind in ("NaTType", "NAType") or str(value) == "NaT":
        return None
    if kind == "Timestamp":
        if not value.nanosecond:
            return value.to_pydatetime()
        return Nanoseconds(int(value.as_unit("ns").value), value.tzinfo is not None)
    if kind == "datetime64":
        return _convert_datetime64(value, name)
    if kind in ("Timedelta", "timedelta64"):
        return _convert_timedelta(value, name)
    found = value.item() if hasattr(value, "item") else value
    if not isinstance(found, bool | int | float | str | bytes):
        raise _refusal(name, value, "use numbers, texts, times and lists of them")
    return found


def _convert_timedelta(value: Any, name: str) -> timedelta:
    if hasattr(value, "to_timedelta64"):  # of pandas
        value = value.to_timedelta64()
    try:
        found = value.astype("timedelta64[us]")
        is_same = bool(found == value)
    except TypeError:  # months and years have no one length
        is_same = False
    if not is_same:
        raise _refusal(name, value, "the engine's intervals count microseconds")
    made: timedelta = found.item()
    return made


def _convert_datetime64(value: Any, name: str) -> Any:
    found = value.astype("datetime64[ns]")
    if found.astype(value.dtype) != value or found.astype("datetime64[s]") != value.astype(
        "datetime64[s]"
    ):
        raise _refusal(name, value, "pass a datetime")
    count = int(found.astype("int64"))
    if count % 1000:
        return Nanoseconds(count, has_zone=False)
    return datetime(1970, 1, 1) + timedelta(microseconds=count // 1000)  # noqa: DTZ001


def _convert_nanoseconds(value: Nanoseconds) -> Any:
    whole, fraction = divmod(value.time_ns, NS_PER_S)
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=whole)
    text = f"{moment:%Y-%m-%d %H:%M:%S}.{fraction:09}"
    if value.has_zone:
        return duckdb.Value(f"{text}+00", duckdb.sqltype("TIMESTAMPTZ_NS"))
    return duckdb.Value(text, duckdb.sqltype("TIMESTAMP_NS"))


def _check_number(value: int, name: str) -> int:
    if abs(value) >= 10**DIGITS_MAX:
        raise _refusal(name, value, f"a whole number has at most {DIGITS_MAX} digits")
    return int(value)


def _convert_decimal(value: Decimal, name: str) -> Any:
    _, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return float("nan") if value.is_nan() else float(value)  # a signaling NaN has no float
    whole, broken = _widths(value)
    # The engine counts the nought of 0.01 as a digit, but not that of 0.12.
    is_padded = -exponent > len(digits) or not any(digits)
    if whole + broken + is_padded > DIGITS_MAX:
        raise _refusal(name, value, f"a decimal has at most {DIGITS_MAX} digits")
    return value


def _widths(value: int | Decimal) -> tuple[int, int]:
    """Return how many digits a number has before its point and after it."""
    if isinstance(value, int):
        return len(str(abs(value))), 0
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    return max(0, len(digits) + exponent), max(0, -exponent)


def _check_one_kind(values: list[Any], name: str) -> list[Any]:
    """Return the values of a list, whole numbers among decimals as decimals."""
    if {_kind(one) for one in values if one is not None} == {"int", "Decimal"}:
        values = [Decimal(one) if isinstance(one, int) else one for one in values]
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for one in values:
        _gather(one, (), groups)
    if not all(_is_one_kind(group) for group in groups.values()):
        raise _refusal(name, values, "give the values of a list one type")
    return values


def _gather(value: Any, path: tuple[Any, ...], groups: dict[tuple[Any, ...], list[Any]]) -> None:
    """Group a value, and those inside of it, by the place that will have one type."""
    if value is None:
        return
    groups.setdefault(path, []).append(value)
    if isinstance(value, list):
        for one in value:
            _gather(one, (*path, None), groups)
    elif isinstance(value, dict):
        for key, one in value.items():
            _gather(one, (*path, key), groups)


def _is_one_kind(values: list[Any]) -> bool:
    kinds = {_kind(one) for one in values}
    if kinds == {"int", "float"}:
        return all(abs(one) <= _EXACT_DOUBLE for one in values if isinstance(one, int))
    if kinds == {"Decimal"}:
        widths = [_widths(one) for one in values]
        return max(one[0] for one in widths) + max(one[1] for one in widths) <= DIGITS_MAX
    return len(kinds) <= 1


def _kind(value: Any) -> str:
    if isinstance(value, datetime):
        return "datetime" if value.tzinfo is None else "datetime with a zone"
    if isinstance(value, bytes | bytearray | memoryview):
        return "bytes"
    return type(value).__name__


def _refusal(name: str, value: Any, hint: str) -> Invalid:
    return Invalid(
        "a parameter cannot be passed to the engine exactly",
        hint=hint,
        parameter=name,
        type=type(value).__name__,
    )
