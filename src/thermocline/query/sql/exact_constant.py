"""Checks of texts and numbers that a query compares with columns of another type.

In:   the tree of a query or condition, its parameters, the engine's types of the other sides
Out:  `Invalid` for a constant that the engine would round or cut before it compares

- The engine casts a text to the type of the other side: `i = '1.4'` is true where `i` is 1. It
  ignores a zone in a text that it compares with a time without a zone.
- Comparisons with doubles are allowed: a text means the nearest double, as a number with a fraction
  does. A whole number must be held exactly.
- The engine compares a whole number with a double as doubles: above 2^53 each double stands for
  several whole numbers, so such a double is refused.
- The engine itself refuses a text that it cannot cast at all.
- In a query, a constant is checked against the columns of its tables. An expression is not checked,
  nor a column that a subquery or alias defines: its type is unknown before the engine binds it.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np

from thermocline.errors import Invalid
from thermocline.query.sql.engine_types import Shape
from thermocline.query.sql.gate import Statement
from thermocline.query.sql.syntax import Tree

_WHOLE_TYPES = re.compile(r"U?(TINY|SMALL|BIG|HUGE)INT|U?INTEGER")
_DECIMAL_TYPE = re.compile(r"DECIMAL\((\d+),(\d+)\)")
_MAY_BE_FINER = re.compile(r"[.:eE]")
_CLOCK = re.compile(r"\d+:[\d:.]+")
_FRACTION = re.compile(r":\d+\.(\d+)")
_AFTER_CLOCK = re.compile(r":\d\d(?:\.\d+)?\s*([^\d\s:.].*)$")
_UTC = re.compile(r"(?i)z|utc|[+-]00(?::?00)*")
_HAS_ZONE = frozenset({"TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ_NS"})
_FRACTION_DIGITS = {
    "TIME": 6,
    "TIME_NS": 9,
    "TIMESTAMP": 6,
    "TIMESTAMP WITH TIME ZONE": 6,
    "TIMESTAMP_S": 0,
    "TIMESTAMP_MS": 3,
    "TIMESTAMP_NS": 9,
    "TIMESTAMPTZ_NS": 9,
}


_WIDE_WHOLE_MAX = {"BIGINT": 2**63, "UBIGINT": 2**64, "HUGEINT": 2**127, "UHUGEINT": 2**128}
EXACT_WHOLE_MAX = {"FLOAT": 1 << 24, "DOUBLE": 1 << 53}
"""Up to here a floating type holds every whole number."""
_FLOATS: dict[str, Any] = {"FLOAT": np.float32, "DOUBLE": float}

Number = int | float | Decimal


@dataclass(frozen=True, slots=True)
class ConstantComparison:
    """The constants of one comparison, and the other parts they are compared with."""

    texts: tuple[str, ...]
    numbers: tuple[Number, ...]
    parameters: tuple[str, ...]
    others: tuple[Tree, ...]


ColumnConstants = tuple[ConstantComparison, set[str]]
"""A comparison, and the lower-case names of the columns in it."""


def compared_sides(part: Tree) -> list[Tree]:
    """Return the parts that an expression compares with each other; none if it does not compare."""
    kind = part.get("class")
    if kind == "COMPARISON":
        return [part["left"], part["right"]]
    if kind == "BETWEEN":
        return [part["input"], part["lower"], part["upper"]]
    if kind == "OPERATOR" and part["type"] in ("COMPARE_IN", "COMPARE_NOT_IN"):
        return list(part["children"])
    return []


def find_constant_comparisons(nodes: Iterable[Tree]) -> Iterator[ConstantComparison]:
    """Yield the comparisons among these dictionaries of a tree that may change a constant."""
    for part in nodes:
        texts, numbers, parameters, others = [], [], [], []
        for side in compared_sides(part):
            literal = side.get("literal")
            if side["class"] == "PARAMETER":
                parameters.append(side["identifier"])
            elif isinstance(literal, dict) and literal["kind"] == "STRING":
                texts.append(literal["text"])
            elif (number := number_of(side)) is not None:
                numbers.append(number)
            else:
                others.append(side)
        may_change = any(map(_MAY_BE_FINER.search, texts)) or any(map(_may_be_rounded, numbers))
        if others and (parameters or may_change):
            yield ConstantComparison(*map(tuple, (texts, numbers, parameters, others)))


def number_of(side: Tree) -> Number | None:
    """Return the number that a part of a tree is: a float if it has an exponent; else None."""
    literal = side.get("literal")
    if not isinstance(literal, dict) or literal["kind"] not in ("INTEGER", "NUMERIC"):
        return None
    text = str(literal["text"])
    try:
        if literal["kind"] == "INTEGER":
            return int(text, 0)
        return float(text) if "e" in text.lower() else Decimal(text)
    except (ValueError, InvalidOperation):
        return None  # in a form that is not known here: the engine decides


def _may_be_rounded(number: Number) -> bool:
    limit = EXACT_WHOLE_MAX["FLOAT"]
    return not -limit < number < limit


def check_compared_constants(
    comparisons: Iterable[ColumnConstants],
    shapes: Sequence[Shape | None],
    parameters: Mapping[str, Any],
) -> None:
    """Raise `Invalid` for a constant that would be changed before it is compared with a column.

    If several tables have a column of this name, it is refused only if it fits none of them.
    """
    for compared, columns in comparisons:
        given = [parameters.get(name) for name in compared.parameters]
        constants = [*compared.texts, *compared.numbers, *given]
        for name in columns if None not in shapes else ():
            kinds = sorted(shape.types[name] for shape in shapes if shape and name in shape.types)
            for one in constants:
                if kinds and all(_would_change(one, kind) for kind in kinds):
                    check_constant_fits(one, kinds[0])


def find_column_constants(statement: Statement) -> Iterator[ColumnConstants]:
    """Yield the comparisons of constants and parameters with columns, and the columns' names."""
    renamed: set[str] = set()
    for part in statement.nodes:
        for names in (part.get("column_name_alias"), part.get("aliases")):
            renamed.update(name.lower() for name in names or () if isinstance(name, str))
        alias = part.get("alias")
        if alias and _column_name(part) != alias.lower():
            renamed.add(alias.lower())
    for compared in find_constant_comparisons(statement.nodes):
        columns = {name for one in compared.others if (name := _column_name(one))} - renamed
        if columns:
            yield compared, columns


def _column_name(part: Tree) -> str | None:
    is_column = part.get("class") == "COLUMN_REF"
    return str(part["column_names"][-1]).lower() if is_column else None


def check_constant_fits(constant: object, kind: str) -> None:
    """Raise `Invalid` for a constant that the engine would change to compare it with this type."""
    if not _would_change(constant, kind):
        return
    if not isinstance(constant, str):
        raise Invalid(
            "a number would be compared as a double, which stands for several whole numbers",
            hint="write a whole number without an exponent, or cast the column to double",
            number=str(constant)[:80],
            type=kind,
        )
    facts = {"text": constant[:80], "type": kind}
    if _loses_zone(constant, kind):
        raise Invalid(
            "the zone in a text would be ignored: the text is compared with a time without a zone",
            hint="write the time in UTC, without an offset",
            **facts,
        )
    raise Invalid(
        "a text of the condition would be rounded before it is compared",
        hint="write a number without quotes, or a time with no more digits than the column has",
        **facts,
    )


def _would_change(constant: object, kind: str) -> bool:
    if isinstance(constant, str):
        return _loses_zone(constant, kind) or _is_finer(constant, kind)
    if isinstance(constant, bool) or not isinstance(constant, int | float | Decimal):
        return False
    if isinstance(constant, float):
        return EXACT_WHOLE_MAX["DOUBLE"] <= abs(constant) <= _WIDE_WHOLE_MAX.get(kind, 0)
    # A number with a fraction means the nearest number of the column's width.
    if kind not in _FLOATS or not math.isfinite(constant) or constant != int(constant):
        return False
    with np.errstate(over="ignore"):
        return float(_FLOATS[kind](constant)) != constant


def inexact_limit(kinds: Iterable[str], kind: str) -> str | None:
    """Return the number above which values of a type are not compared exactly, as SQL text.

    `kinds` are the types of all sides of the comparison. None if every value is compared exactly.
    """
    floats = [one for one in EXACT_WHOLE_MAX if one in kinds]
    if not floats or kind in EXACT_WHOLE_MAX:
        return None
    limit = EXACT_WHOLE_MAX[floats[-1]]
    found = _DECIMAL_TYPE.fullmatch(kind)
    if found is None:
        is_wide = kind in _WIDE_WHOLE_MAX or (kind.endswith("INTEGER") and floats == ["FLOAT"])
        return str(limit) if is_wide else None
    width, scale = int(found[1]), int(found[2])
    return str(Decimal(limit).scaleb(-scale)) if 10**width > limit else None


def _loses_zone(text: str, kind: str) -> bool:
    if kind in _HAS_ZONE or not (kind in _FRACTION_DIGITS or kind == "DATE"):
        return False
    after = _AFTER_CLOCK.search(text.strip())
    return after is not None and not _UTC.fullmatch(after[1])


def _is_finer(text: str, kind: str) -> bool:
    if kind in _FRACTION_DIGITS:
        found = _FRACTION.search(text)
        return found is not None and len(found[1].rstrip("0")) > _FRACTION_DIGITS[kind]
    if kind == "DATE":
        clock = _CLOCK.search(text)
        return clock is not None and any(letter in "123456789" for letter in clock[0])
    found = _DECIMAL_TYPE.fullmatch(kind)
    if found is None and not _WHOLE_TYPES.fullmatch(kind):
        return False
    try:
        number = Decimal(text.strip())
    except InvalidOperation:
        return False
    if not number.is_finite():
        return False
    digits, exponent = number.as_tuple()[1:]
    written = "".join(map(str, digits))
    zeros = len(written) - len(written.rstrip("0"))
    return bool(number) and int(exponent) + zeros < -(int(found[2]) if found else 0)
