"""Checks of texts that a query compares with numbers or times.

In:   the tree of a query or condition, its parameters, the engine's types of the other sides
Out:  `Invalid` for a text that the engine would round or cut before it compares

- The engine casts a text to the type of the other side: `i = '1.4'` is true where `i` is 1. It
  ignores a zone in a text that it compares with a time without a zone.
- Comparisons with doubles are allowed: a text means the nearest double, as a number does.
- The engine itself refuses a text that it cannot cast at all.
- In a query, a text is checked against the columns of its tables. An expression is not checked,
  nor a column that a subquery or alias defines: its type is unknown before the engine binds it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from thermocline.errors import Invalid
from thermocline.query.sql.engine_types import Shape
from thermocline.query.sql.gate import Statement
from thermocline.query.sql.syntax import Tree

_WHOLE_TYPES = re.compile(r"U?(TINY|SMALL|BIG|HUGE)INT|U?INTEGER")
_DECIMAL_TYPE = re.compile(r"DECIMAL\(\d+,(\d+)\)")
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


@dataclass(frozen=True, slots=True)
class TextComparison:
    """The texts and parameters of one comparison, and the other parts they are compared with."""

    texts: tuple[str, ...]
    parameters: tuple[str, ...]
    others: tuple[Tree, ...]


ColumnTexts = tuple[TextComparison, set[str]]
"""A comparison, and the lower-case names of the columns in it."""


def find_text_comparisons(nodes: Iterable[Tree]) -> Iterator[TextComparison]:
    """Yield the comparisons among these dictionaries of a tree in which a text may be changed."""
    for part in nodes:
        kind = part.get("class")
        if kind == "COMPARISON":
            sides = [part["left"], part["right"]]
        elif kind == "BETWEEN":
            sides = [part["input"], part["lower"], part["upper"]]
        elif kind == "OPERATOR" and part["type"] in ("COMPARE_IN", "COMPARE_NOT_IN"):
            sides = part["children"]
        else:
            continue
        texts = tuple(side["literal"]["text"] for side in sides if _is_text(side))
        parameters = tuple(side["identifier"] for side in sides if side["class"] == "PARAMETER")
        if parameters or any(map(_MAY_BE_FINER.search, texts)):
            others = (side for side in sides if not _is_text(side) and side["class"] != "PARAMETER")
            yield TextComparison(texts, parameters, tuple(others))


def check_compared_texts(
    comparisons: Iterable[ColumnTexts],
    shapes: Sequence[Shape | None],
    parameters: Mapping[str, Any],
) -> None:
    """Raise `Invalid` for a text that would be changed before it is compared with a column.

    If several tables have a column of this name, the text is refused only if it fits none of them.
    """
    for compared, columns in comparisons:
        given = (parameters.get(name) for name in compared.parameters)
        texts = [*compared.texts, *(value for value in given if isinstance(value, str))]
        for name in columns if None not in shapes else ():
            kinds = sorted(shape.types[name] for shape in shapes if shape and name in shape.types)
            for text in texts:
                if all(_would_change(text, kind) for kind in kinds):
                    for kind in kinds:
                        check_text_fits(text, kind)


def find_column_texts(statement: Statement) -> Iterator[ColumnTexts]:
    """Yield the comparisons of texts and parameters with columns, and the columns' names."""
    renamed: set[str] = set()
    for part in statement.nodes:
        for names in (part.get("column_name_alias"), part.get("aliases")):
            renamed.update(name.lower() for name in names or () if isinstance(name, str))
        alias = part.get("alias")
        if alias and _column_name(part) != alias.lower():
            renamed.add(alias.lower())
    for compared in find_text_comparisons(statement.nodes):
        columns = {name for one in compared.others if (name := _column_name(one))} - renamed
        if columns:
            yield compared, columns


def _column_name(part: Tree) -> str | None:
    is_column = part.get("class") == "COLUMN_REF"
    return str(part["column_names"][-1]).lower() if is_column else None


def check_text_fits(text: str, kind: str) -> None:
    """Raise `Invalid` for a text that the engine would change to compare it with this type."""
    facts = {"text": text[:80], "type": kind}
    if _loses_zone(text, kind):
        raise Invalid(
            "the zone in a text would be ignored: the text is compared with a time without a zone",
            hint="write the time in UTC, without an offset",
            **facts,
        )
    if _is_finer(text, kind):
        raise Invalid(
            "a text of the condition would be rounded before it is compared",
            hint="write a number without quotes, or a time with no more digits than the column has",
            **facts,
        )


def _would_change(text: str, kind: str) -> bool:
    return _loses_zone(text, kind) or _is_finer(text, kind)


def _loses_zone(text: str, kind: str) -> bool:
    if kind in _HAS_ZONE or not (kind in _FRACTION_DIGITS or kind == "DATE"):
        return False
    after = _AFTER_CLOCK.search(text.strip())
    return after is not None and not _UTC.fullmatch(after[1])


def _is_text(side: Tree) -> bool:
    literal = side.get("literal")
    return isinstance(literal, dict) and literal["kind"] == "STRING"


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
    return bool(number) and int(exponent) + zeros < -(int(found[1]) if found else 0)
