"""Uses the filters that Spark pushes down to skip segments.

In:   the filters of a query, all of which are true for its rows
Out:  the stretch of time that may have rows, bounds of entity columns, and the filters that Spark
      must still evaluate

- A comparison of the time column is applied to each row exactly, so Spark need not evaluate it.
- A filter on an entity column only skips segments; Spark evaluates it for the rows.
- An unknown filter skips nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pyspark.sql import datasource as pushed

from thermocline.errors import Invalid
from thermocline.format.instant import NS_PER_US, from_datetime
from thermocline.format.log.action import Segment
from thermocline.format.log.conflict import ALL_TIME, TimeWindow
from thermocline.format.log.state import TableState


@dataclass(frozen=True, slots=True)
class ValueBounds:
    """The lowest and the highest value that a filter lets through; None is no bound."""

    low: Any = None
    high: Any = None

    def excludes(self, low: Any, high: Any) -> bool:
        """Tell whether all values from `low` to `high` are outside of the bounds."""
        is_below = _is_comparable(self.low, high) and high < self.low
        is_above = _is_comparable(self.high, low) and low > self.high
        return is_below or is_above


@dataclass(frozen=True, slots=True)
class SegmentPruning:
    """Which segments the filters exclude; `rest` are the filters that Spark must evaluate."""

    window: TimeWindow = ALL_TIME
    bounds: dict[str, list[ValueBounds]] = field(default_factory=dict)
    rest: tuple[pushed.Filter, ...] = ()

    def matching_segments(self, state: TableState) -> list[Segment]:
        """Return the segments of a state that may have rows."""
        found = state.segments.overlapping(self.window.start, self.window.end)
        ids = {name: str(state.schema.column(name).id) for name in self.bounds}
        return [one for one in found if not self._excludes(one, ids)]

    def _excludes(self, segment: Segment, ids: dict[str, str]) -> bool:
        for name, bounds in self.bounds.items():
            held = segment.stats.get(ids[name])
            if held is not None and any(one.excludes(*held) for one in bounds):
                return True
        return False


def parse_filters(
    filters: Iterable[pushed.Filter], time_column: str, entity_columns: Iterable[str]
) -> SegmentPruning:
    """Return which segments the filters exclude, for a table with these columns."""
    window, bounds = ALL_TIME, dict[str, list[ValueBounds]]()
    rest = []
    for one in filters:
        name = _filter_column(one)
        if name == time_column:
            stretch = _filter_window(one)
            if stretch is not None:
                window = window.intersect(stretch.start, stretch.end)
                continue
        elif name in entity_columns:
            found = _filter_bounds(one)
            if found is not None:
                bounds.setdefault(name, []).append(found)
        rest.append(one)
    return SegmentPruning(window, bounds, tuple(rest))


def _filter_column(one: pushed.Filter) -> str:
    path: tuple[str, ...] = getattr(one, "attribute", ())
    return path[0] if len(path) == 1 else ""


def _filter_window(one: pushed.Filter) -> TimeWindow | None:
    """Return the stretch of time for which a filter is true; None if there is no such stretch."""
    if isinstance(one, pushed.IsNotNull):
        return ALL_TIME  # the time column has no nulls
    value = getattr(one, "value", None)
    if isinstance(value, int) and not isinstance(value, bool):
        return _compare_window(one, value, value + 1)
    if not isinstance(value, datetime):
        return None
    try:
        first = from_datetime(value)
    except Invalid:
        return None
    # Spark compares microseconds: all nanoseconds of a microsecond are equal to it.
    return _compare_window(one, first, first + NS_PER_US)


def _compare_window(one: pushed.Filter, first: int, after: int) -> TimeWindow | None:
    """Return where a comparison with the positions from `first` to `after` is true."""
    match one:
        case pushed.EqualTo() | pushed.EqualNullSafe():
            return TimeWindow(first, after)
        case pushed.GreaterThan():
            return TimeWindow(after, None)
        case pushed.GreaterThanOrEqual():
            return TimeWindow(first, None)
        case pushed.LessThan():
            return TimeWindow(None, first)
        case pushed.LessThanOrEqual():
            return TimeWindow(None, after)
    return None


def _filter_bounds(one: pushed.Filter) -> ValueBounds | None:
    match one:
        case pushed.EqualTo(_, value) | pushed.EqualNullSafe(_, value) if value is not None:
            return ValueBounds(value, value)
        case pushed.In(_, values):
            wanted = [value for value in values if value is not None]
            if wanted and all(_is_comparable(value, wanted[0]) for value in wanted):
                return ValueBounds(min(wanted), max(wanted))
        case pushed.GreaterThan(_, value) | pushed.GreaterThanOrEqual(_, value):
            return ValueBounds(low=value)
        case pushed.LessThan(_, value) | pushed.LessThanOrEqual(_, value):
            return ValueBounds(high=value)
        case pushed.StringStartsWith(_, value):
            return ValueBounds(low=value)
    return None


def _is_comparable(one: Any, other: Any) -> bool:
    return any(type(one) is kind and type(other) is kind for kind in (str, int))
