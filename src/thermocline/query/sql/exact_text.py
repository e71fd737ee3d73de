"""Checks of texts that a condition compares with numbers or times.

In:   the tree of a condition, the engine's type of the value that a text is compared with
Out:  `Invalid` for a text that the engine would round or cut before it compares

- The engine casts a text to the type of the other side: `i = '1.4'` is true where `i` is 1.
- Comparisons with doubles are allowed: a text means the nearest double, as a number does.
- The engine itself refuses a text that it cannot cast at all.
"""

import re
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation

from thermocline.errors import Invalid
from thermocline.query.sql.syntax import Tree, tree_nodes

_WHOLE_TYPES = re.compile(r"U?(TINY|SMALL|BIG|HUGE)INT|U?INTEGER")
_DECIMAL_TYPE = re.compile(r"DECIMAL\(\d+,(\d+)\)")
_MAY_BE_FINER = re.compile(r"[.:eE]")
_CLOCK = re.compile(r"\d+:[\d:.]+")
_FRACTION = re.compile(r":\d+\.(\d+)")
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


def find_text_comparisons(expression: Tree) -> Iterator[tuple[list[str], list[Tree]]]:
    """Yield the texts of each comparison, and the other parts that they are compared with."""
    for part in tree_nodes(expression):
        kind = part.get("class")
        if kind == "COMPARISON":
            sides = [part["left"], part["right"]]
        elif kind == "BETWEEN":
            sides = [part["input"], part["lower"], part["upper"]]
        elif kind == "OPERATOR" and part["type"] in ("COMPARE_IN", "COMPARE_NOT_IN"):
            sides = part["children"]
        else:
            continue
        texts = [side["literal"]["text"] for side in sides if _is_text(side)]
        if any(_MAY_BE_FINER.search(text) for text in texts):
            yield texts, [side for side in sides if not _is_text(side)]


def check_text_fits(text: str, kind: str) -> None:
    """Raise `Invalid` for a text that is a number or time finer than the engine's type."""
    if not _is_finer(text, kind):
        return
    raise Invalid(
        "a text of the condition would be rounded before it is compared",
        hint="write a number without quotes, or a time with no more digits than the column has",
        text=text[:80],
        type=kind,
    )


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
