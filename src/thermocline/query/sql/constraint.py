"""Bounds that rows of a table must satisfy, and the segments that cannot have such rows.

In:   comparisons of a column with evaluated constants; segments with their bounds
Out:  a `Constraint`, or None when the comparison gives no certain bound; pruned segments

- A constraint may admit too much, never too little. Where the engine compares in another type
  than the column's, the bounds are widened by more than any rounding error.
- Times are nanoseconds since 1970 and whole numbers are Python's. Texts compare by code point,
  which is the order of their UTF-8 bytes and the engine's order.
- A segment without bounds for a column is kept.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from thermocline.format.log.action import Segment
from thermocline.format.log.state import TableState
from thermocline.query.sql.constant import Constant, ConstantValue
from thermocline.query.sql.engine_types import INTEGER, TEXT, TIME, ShapeColumn

# Below these limits, the type of the comparison holds every whole number near the constant exactly.
FLOAT_EXACT_MAX = 2**24 - 2
DOUBLE_EXACT_MAX = 2**53 - 2

_TIMES = frozenset(
    {
        "DATE",
        "TIMESTAMP",
        "TIMESTAMP_S",
        "TIMESTAMP_MS",
        "TIMESTAMP_NS",
        "TIMESTAMP WITH TIME ZONE",
        "TIMESTAMPTZ_NS",
    }
)


@dataclass(frozen=True, slots=True)
class Constraint:
    """A column's values lie between `low` and `high`; with `values`, are among them too."""

    column: str
    low: Any = None
    high: Any = None
    low_inclusive: bool = True
    high_inclusive: bool = True
    values: tuple[Any, ...] | None = None

    def admits(self, least: Any, greatest: Any) -> bool:
        """Tell whether some value from `least` to `greatest` may satisfy this."""
        if self.low is not None and (
            greatest < self.low or (greatest == self.low and not self.low_inclusive)
        ):
            return False
        if self.high is not None and (
            least > self.high or (least == self.high and not self.high_inclusive)
        ):
            return False
        return self.values is None or any(least <= value <= greatest for value in self.values)


def derive_constraint(
    column: ShapeColumn,
    operator: str,
    constants: Sequence[Constant],
    values: Sequence[ConstantValue],
) -> Constraint | None:
    """Return the constraint of `column operator constants`, or None when it is not certain."""
    types = {value.type for value in values}
    if "VARCHAR" in types and len(types) > 1:
        return None  # the engine casts the texts to the type of the other values
    ranges = [_range(column, *pair) for pair in zip(constants, values, strict=True)]
    found = [one for one in ranges if one is not None]
    if len(found) != len(ranges):
        return None
    exact = all(low == high for low, high in found)
    lows, highs = [low for low, _ in found], [high for _, high in found]
    match operator:
        case "=":
            return Constraint(column.name, lows[0], highs[0])
        case "<" | "<=":
            inclusive = operator == "<=" or not exact
            return Constraint(column.name, high=highs[0], high_inclusive=inclusive)
        case ">" | ">=":
            inclusive = operator == ">=" or not exact
            return Constraint(column.name, low=lows[0], low_inclusive=inclusive)
        case "between":
            return Constraint(column.name, lows[0], highs[1])
        case "in" if found:
            among = tuple(sorted(set(lows))) if exact else None
            return Constraint(column.name, min(lows), max(highs), values=among)
    return None


def _range(column: ShapeColumn, constant: Constant, value: ConstantValue) -> tuple[Any, Any] | None:
    """Return the least and greatest value of the column that may equal the constant."""
    exact: Any = None
    if column.sort == TIME:
        exact = _instant(constant, value)
    elif column.sort == TEXT:
        exact = value.value if value.type == "VARCHAR" and constant.is_direct else None
    elif column.sort == INTEGER and type(value.value) is int:
        exact = value.value
    elif column.sort == INTEGER and isinstance(value.value, float | Decimal):
        return _widen_range(value)
    return None if exact is None else (exact, exact)


def _instant(constant: Constant, value: ConstantValue) -> int | None:
    if value.type == "VARCHAR":
        # A text is cast to the column's type, which may read or ignore a zone in it.
        return value.instant_as_column if constant.is_direct else None
    return value.instant if value.type in _TIMES else None


def _widen_range(value: ConstantValue) -> tuple[int, int] | None:
    limit = FLOAT_EXACT_MAX if value.type == "FLOAT" else DOUBLE_EXACT_MAX
    if not math.isfinite(value.value) or abs(value.value) > limit:
        return None
    return math.floor(value.value) - 1, math.ceil(value.value) + 1


def time_window(column: str, alternatives: Iterable[Sequence[Constraint]]) -> tuple[Any, Any]:
    """Return the least and greatest time any alternative admits; None where one is unbounded."""
    lows: list[Any] = []
    highs: list[Any] = []
    for constraints in alternatives:
        mine = [one for one in constraints if one.column == column]
        lows.append(max((one.low for one in mine if one.low is not None), default=None))
        highs.append(min((one.high for one in mine if one.high is not None), default=None))
    low: Any = None if None in lows else min(lows, default=None)
    high: Any = None if None in highs else max(highs, default=None)
    return low, high


def prune_segments(
    state: TableState, alternatives: Sequence[Sequence[Constraint]]
) -> list[Segment]:
    """Return the segments of a state that may have rows for at least one alternative.

    An alternative is one reference of the query to the table: all its constraints hold together.
    """
    time_column = state.spec.time_column
    low, high = time_window(time_column, alternatives)
    found = state.segments.overlapping(low, None if high is None else high + 1)
    ids = {column.name: str(column.id) for column in state.schema.columns}
    if not all(alternatives):
        return found
    return [
        segment
        for segment in found
        if any(
            all(_may_have_rows(segment, one, time_column, ids[one.column]) for one in constraints)
            for constraints in alternatives
        )
    ]


def _may_have_rows(segment: Segment, constraint: Constraint, time_column: str, key: str) -> bool:
    if constraint.column == time_column:
        return constraint.admits(segment.ts_min, segment.ts_max)
    bounds = segment.stats.get(key)
    if bounds is None:
        return True
    asked = constraint.high if constraint.low is None else constraint.low
    # Bounds of other types than whole numbers and texts are stored as texts.
    if type(bounds[0]) is not type(asked) or type(bounds[1]) is not type(asked):
        return True
    return constraint.admits(*bounds)
