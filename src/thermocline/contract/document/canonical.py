"""The canonical form of a document: the form that its columns return.

In:   a value that fits its schema, and its kind
Out:  the same value in its canonical form

- An instant is UTC, written with `Z` and without zeros at the end of its fraction.
- A decimal has exactly its scale of digits; a `number` is a float, an `integer` an int.
- A UUID is in lower case. All other values are unchanged.
- A value that its column cannot hold exactly is a problem, and is never rounded: nanoseconds, leap
  seconds, the year 0, a digit after a decimal's last.
"""

import re
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Context, Decimal, Inexact
from typing import Any, TypeAlias

from thermocline.contract.document.kind import DIGITS_MAX, ColumnKind
from thermocline.contract.document.text import NESTING_MAX, preview_value, too_deep_error
from thermocline.contract.schema.pointer import DocumentProblem, pointer_of
from thermocline.contract.schema.subschema import Json, Steps

_EXACT = Context(prec=5_000, traps=[Inexact])
_QUANTA = [Decimal(1).scaleb(-scale) for scale in range(DIGITS_MAX + 1)]
_INSTANT = re.compile(
    r"^(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?:[Zz]|([+-])(\d\d):(\d\d))$",
    re.ASCII,
)


def to_canonical(kind: ColumnKind, value: Any, at: Steps, problems: list[DocumentProblem]) -> Any:
    """Return the canonical form; add values that cannot be kept exactly to the problems."""
    if value is None or kind.name not in _CANONICALIZERS:
        return value
    return _CANONICALIZERS[kind.name](kind, value, at, problems)


def _canonical_struct(
    kind: ColumnKind, value: Json, at: Steps, problems: list[DocumentProblem]
) -> Json:
    return {
        part.name: to_canonical(part.kind, value[part.name], (*at, part.name), problems)
        for part in kind.fields
        if part.name in value
    }


def _canonical_list(
    kind: ColumnKind, value: list[Any], at: Steps, problems: list[DocumentProblem]
) -> list[Any]:
    inner = kind.inner
    return [to_canonical(inner, item, (*at, i), problems) for i, item in enumerate(value)]


def _canonical_map(
    kind: ColumnKind, value: Json, at: Steps, problems: list[DocumentProblem]
) -> Json:
    inner = kind.inner
    return {key: to_canonical(inner, item, (*at, key), problems) for key, item in value.items()}


def json_form(value: Any, depth: int = 0) -> Any:
    """Return a value of a JSON column; a `Decimal` becomes a float if that has the same digits.

    `Invalid` when it is nested past the limit; only values of JSON columns can be.
    """
    if isinstance(value, Decimal):
        near = float(value)
        return near if near not in _INFINITE and Decimal(repr(near)) == value else value
    if depth > NESTING_MAX:
        raise too_deep_error("")
    if isinstance(value, dict):
        return {key: json_form(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list):
        return [json_form(inner, depth + 1) for inner in value]
    return value


_INFINITE = (float("inf"), float("-inf"))


def number_form(kind: ColumnKind, value: Any) -> float:
    """Return a number as its column holds it: the nearest double, or the nearest 32-bit float.

    `OverflowError` when that is not finite.
    """
    near = float(value)
    if near in _INFINITE:
        raise OverflowError
    if kind.bits == 32:
        rounded: float = struct.unpack("<f", struct.pack("<f", near))[0]
        return rounded
    return near


def _canonical_number(
    kind: ColumnKind, value: Any, at: Steps, problems: list[DocumentProblem]
) -> Any:
    try:
        near = number_form(kind, value)
    except OverflowError:
        near = None
    # A number with a fraction becomes the nearest one of its column, an integer is never rounded.
    if near is None or (isinstance(value, int) and int(near) != value):
        bits = "a number that 32 bits hold" if kind.bits == 32 else "a number that a double holds"
        problems.append(DocumentProblem(pointer_of(at), bits, preview_value(value)))
        return value
    return near


def _canonical_decimal(
    kind: ColumnKind, value: Any, at: Steps, problems: list[DocumentProblem]
) -> Any:
    given = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    try:
        kept = given.quantize(_QUANTA[kind.scale], context=_EXACT)
    except Inexact:
        expected = f"at most {kind.scale} digits after the point"
        problems.append(DocumentProblem(pointer_of(at), expected, preview_value(value)))
        return value
    if not kept:
        kept = abs(kept)  # columns do not hold the sign of a zero
    elif kept.adjusted() >= kind.digits - kind.scale:
        expected = f"at most {kind.digits - kind.scale} digits before the point"
        problems.append(DocumentProblem(pointer_of(at), expected, preview_value(value)))
    return format(kept, "f") if kind.is_text else kept


def _canonical_date(_: ColumnKind, value: str, at: Steps, problems: list[DocumentProblem]) -> str:
    if value.startswith("0000"):
        problems.append(
            DocumentProblem(pointer_of(at), "a year from 0001 to 9999", preview_value(value))
        )
    return value


def _canonical_timestamp(
    _: ColumnKind, value: str, at: Steps, problems: list[DocumentProblem]
) -> str:
    moment = _parse_instant(value)
    if isinstance(moment, str):
        problems.append(DocumentProblem(pointer_of(at), moment, preview_value(value)))
        return value
    return instant_text(moment)


def _parse_instant(value: str) -> datetime | str:
    """Return the instant in UTC, or a text that says what is expected."""
    found = _INSTANT.match(value)
    if found is None:
        return "an instant with its offset, such as 2024-06-01T12:00:00Z"
    *numbers, fraction, sign, hours, minutes = found.groups()
    year, month, day, hour, minute, second = (int(number) for number in numbers)
    fraction = (fraction or "").rstrip("0")
    if second == 60:
        return "a second from 00 to 59: leap seconds are not kept"
    if len(fraction) > 6:
        return "at most microseconds: 6 digits after the point"
    offset = timedelta(hours=int(hours or 0), minutes=int(minutes or 0))
    try:
        zone = timezone(-offset if sign == "-" else offset)
        parts = (year, month, day, hour, minute, second, int(fraction.ljust(6, "0")))
        return datetime(*parts, tzinfo=zone).astimezone(UTC)
    except (ValueError, OverflowError):
        return "an instant in the years 0001 to 9999"


def instant_text(moment: datetime) -> str:
    """Return an instant in the canonical form."""
    utc = moment.astimezone(UTC).replace(tzinfo=None)
    text = utc.isoformat()
    return (text.rstrip("0") if utc.microsecond else text) + "Z"


def date_text(day: date) -> str:
    """Return a day in the canonical form."""
    return day.isoformat()


_Canonicalizer: TypeAlias = Callable[[ColumnKind, Any, Steps, list[DocumentProblem]], Any]
_CANONICALIZERS: dict[str, _Canonicalizer] = {
    "integer": lambda kind, value, at, problems: int(value),
    "number": _canonical_number,
    "uuid": lambda kind, value, at, problems: value.lower(),
    "json": lambda kind, value, at, problems: json_form(value),
    "decimal": _canonical_decimal,
    "timestamp": _canonical_timestamp,
    "date": _canonical_date,
    "struct": _canonical_struct,
    "list": _canonical_list,
    "map": _canonical_map,
}
