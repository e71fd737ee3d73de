"""Fills the gaps of a result: every group gets a row for every window between the first and last.

In:   rows with one time column, whose times are starts of windows; the width; how to fill
Out:  the same columns with the missing rows, sorted by group and time

- Columns of numbers are values; every other column, and `series_id`, tells the groups apart.
- `null` leaves the values of new rows empty, `previous` repeats the last value before the gap, and
  `linear` draws a line between the values on both sides. None of them invents a value before the
  first or, except `previous`, after the last one of a group.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as kinds

from thermocline.errors import Invalid, Overloaded
from thermocline.query.series.evaluate import ORIGIN_NS, RESULT_ROWS_MAX
from thermocline.query.series.samples import Bools, Ints

NULL, PREVIOUS, LINEAR = "null", "previous", "linear"
MODES = (NULL, PREVIOUS, LINEAR)
_SERIES_ID = "series_id"


def fill_gaps(rows: pa.Table, window_ns: int, mode: str) -> pa.Table:
    """Return the rows with one for each group and window from the first to the last window."""
    time_name = _time_column(rows)
    if not rows.num_rows:
        return rows
    windows = _windows_of(rows, time_name, window_ns)
    first = int(windows.min())
    width = int(windows.max()) - first + 1
    keys = [name for name in rows.column_names if _is_key(rows, name, time_name)]
    groups, firsts = _number_groups(rows, keys)
    cells = len(firsts) * width
    if cells > RESULT_ROWS_MAX:
        raise Overloaded(
            "the filled result has more rows than the limit",
            hint="take a shorter time, a wider window or fewer groups",
            rows=cells,
            rows_max=RESULT_ROWS_MAX,
        )
    places = groups * width + (windows - first)
    source = np.full(cells, -1, dtype=np.int64)
    source[places] = np.arange(len(places))
    if len(np.unique(places)) != len(places):
        raise Invalid(
            "two rows have the same time and the same texts",
            hint="group by the time and by every text column",
        )
    times = (np.tile(np.arange(width), len(firsts)) + first) * window_ns + ORIGIN_NS
    key_rows = pa.array(np.repeat(firsts, width))
    made = []
    for name in rows.column_names:
        column = rows.column(name)
        if name == time_name:
            kind = column.type
            unit = pa.timestamp("ns", tz=kind.tz)
            made.append(pa.array(times, pa.int64()).cast(unit).cast(kind))
        elif name in keys:
            made.append(column.take(key_rows))
        else:
            made.append(_fill_values(column, source, width, mode))
    return pa.table(made, names=rows.column_names)


def _time_column(rows: pa.Table) -> str:
    times = [field.name for field in rows.schema if kinds.is_timestamp(field.type)]
    if len(times) != 1 or len(set(rows.column_names)) != rows.num_columns:
        raise Invalid(
            "fill_gaps needs a query with one time column, and with different column names",
            hint="select one timestamp, the texts that tell series apart, and numbers",
            time_columns=times,
        )
    return times[0]


def _windows_of(rows: pa.Table, name: str, window_ns: int) -> Ints:
    column = rows.column(name)
    if column.null_count:
        raise Invalid("a row has no time", hint="add: where ts is not null", column=name)
    times = column.cast(pa.timestamp("ns", tz=column.type.tz)).cast(pa.int64()).to_numpy()
    windows, inside = np.divmod(times - ORIGIN_NS, window_ns)
    if inside.any():
        raise Invalid(
            "a time is not the start of a window",
            hint="use the window of rate(), or group by time_bucket(interval '1 minute', ts)",
            column=name,
        )
    found: Ints = windows
    return found


def _is_key(rows: pa.Table, name: str, time_name: str) -> bool:
    kind = rows.schema.field(name).type
    is_number = kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal(kind)
    return name != time_name and (name == _SERIES_ID or not is_number)


def _number_groups(rows: pa.Table, keys: list[str]) -> tuple[Ints, Ints]:
    """Return the number of each row's group, and a row of each group."""
    found = np.zeros(rows.num_rows, dtype=np.int64)
    for name in keys:
        column = rows.column(name)
        if kinds.is_nested(column.type):
            raise Invalid(
                "a list or a struct cannot tell groups apart",
                hint="select texts, numbers and one time",
                column=name,
            )
        encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
        codes = encoded.indices.to_numpy().astype(np.int64)
        _, found = np.unique(found * (len(encoded.dictionary) + 1) + codes, return_inverse=True)
    _, firsts, groups = np.unique(found, return_index=True, return_inverse=True)
    return groups.astype(np.int64), firsts.astype(np.int64)


def _fill_values(column: pa.ChunkedArray, source: Ints, width: int, mode: str) -> pa.Array:
    valid = column.is_valid().to_numpy()
    has = source >= 0
    has[has] = valid[source[has]]
    if mode == NULL:
        return column.take(pa.array(source, mask=~has))
    before = _nearest(has, width, is_before=True)
    if mode == PREVIOUS:
        places = np.where(before >= 0, source[before], -1)
        return column.take(pa.array(places, mask=before < 0))
    after = _nearest(has, width, is_before=False)
    values = column.cast(pa.float64()).fill_null(0).to_numpy()
    inside = (before >= 0) & (after >= 0)
    here = np.arange(len(source))
    left, right = np.where(inside, before, 0), np.where(inside, after, 0)
    low, high = values[source[left]], values[source[right]]
    span = np.maximum(right - left, 1)
    drawn = low + (high - low) * (here - left) / span
    return pa.array(np.where(has, values[source], drawn), mask=~inside)


def _nearest(has: Bools, width: int, *, is_before: bool) -> Ints:
    """Return for each cell the nearest cell of its group with a value, itself included; or -1."""
    cells = has.reshape(-1, width)
    if not is_before:
        cells = cells[:, ::-1]
    columns: npt.NDArray[np.int64] = np.where(cells, np.arange(width), -1)
    columns = np.maximum.accumulate(columns, axis=1)
    if not is_before:
        columns = np.where(columns >= 0, width - 1 - columns, -1)[:, ::-1]
    rows = np.arange(len(cells))[:, None] * width
    found: Ints = np.where(columns >= 0, columns + rows, -1).reshape(-1)
    return found
