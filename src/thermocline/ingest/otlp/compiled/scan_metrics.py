"""Scans a metrics request in one compiled pass: its number points as columns.

In:   the bytes of an `ExportMetricsServiceRequest`; a table of interned bytes
Out:  columns of times, values and ids; the metrics of other kinds, moved to the front of the items

- The scan handles only the forms that exporters write. An unusual form, or a point to refuse or to
  note, ends the scan: the official decoder then handles the whole request.
- Metrics are interned as raw bytes, as attributes and origins are.

The numbers in this module are protobuf's tags: a field's number times eight, and its wire type.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from thermocline.ingest.otlp.compiled.numba_support import (
    Bytes,
    compile_native,
    inline_native,
    read_fixed64,
)
from thermocline.ingest.otlp.compiled.protobuf_wire import (
    FAILED,
    InternTable,
    copy,
    intern,
    read_span,
    read_varint,
    skip,
)
from thermocline.ingest.otlp.compiled.scan_items import (
    ITEMS,
    LAST_ATTRIBUTES,
    METRIC,
    OTHERS,
    POINTS,
    WITH_EXEMPLARS,
    RequestItems,
    find_items,
    intern_attributes,
    match_attributes,
    put_number,
)

GAUGE, SUM = 5, 7
DOUBLE, INT = 1, 2
POINT_BYTES_MIN = 11
METRIC_KEY_BYTES = 12
_TIME_MAX = np.uint64((1 << 63) - 1)


class PointColumns(NamedTuple):
    """The output of the scan: a row for each point."""

    time: npt.NDArray[np.uint64]
    start: npt.NDArray[np.uint64]
    bits: npt.NDArray[np.uint64]
    kind: Bytes
    flags: npt.NDArray[np.int64]
    attributes: npt.NDArray[np.int32]
    metric: npt.NDArray[np.int32]
    exemplars: npt.NDArray[np.int32]


def scan_points(
    data: Bytes, table: InternTable, items: RequestItems, items_max: int
) -> tuple[int, PointColumns]:
    """Return the result of `scan_metrics`, and the columns that it has filled."""
    columns = _new_point_columns(min(data.size // POINT_BYTES_MIN, items_max) + 1)
    return scan_metrics(data, table, items, columns), columns


def _new_point_columns(rows: int) -> PointColumns:
    """Return columns with room for this many points."""
    # One array, because the C library returns many to the system and faults their pages in again.
    time, start, bits, flags = np.empty((4, rows), np.uint64)
    return PointColumns(
        time=time,
        start=start,
        bits=bits,
        kind=np.empty(rows, np.uint8),
        flags=flags.view(np.int64),
        attributes=np.empty(rows, np.int32),
        metric=np.empty(rows, np.int32),
        exemplars=np.empty((rows, 3), np.int32),
    )


@compile_native
def scan_metrics(
    data: Bytes, table: InternTable, items: RequestItems, columns: PointColumns
) -> int:
    """Fill the columns from a request; return 0, `FAILED` or `FULL`."""
    done = find_items(data, table, items)
    if done < 0:
        return done
    for item in range(items.counts[ITEMS]):
        done = _scan_metric(data, item, table, items, columns)
        if done < 0:
            return done
    return 0


@compile_native
def _scan_metric(  # noqa: C901  # one loop, as in `_scan_point`
    data: Bytes, item: int, table: InternTable, items: RequestItems, columns: PointColumns
) -> int:
    """Scan one metric: copy all fields but the data to the scratch, and intern them from there."""
    at, end, scratch, kind = items.rows[item, 0], items.rows[item, 1], items.scratch, 0
    length, first, last = METRIC_KEY_BYTES, 0, 0
    while at < end:
        field = at
        tag, at = read_varint(data, at, end)
        if at < 0:
            return FAILED
        number = tag >> 3
        if 4 <= number <= 11:  # the data; 4, 6 and 8 were data in old versions and are reserved
            if kind or tag & 7 != 2:
                return FAILED
            kind = number
            first, at = read_span(data, at, end)
            last = at
        elif tag & 7 != 2 and (number <= 3 or number == 12):
            return FAILED  # a known field of a wrong wire type: it may be of another signal
        else:
            at = skip(data, at, end, tag)
            copy(data, field, at - field, scratch, length)
            length += at - field
        if at < 0:
            return FAILED
    if kind not in (GAUGE, SUM):
        if kind < 9:
            return FAILED
        for place in range(3):
            items.rows[items.counts[OTHERS], place] = items.rows[item, place]
        items.counts[OTHERS] += 1
        return 0
    form = _read_temporality(data, first, last, kind)
    if form < 0:
        return FAILED
    put_number(scratch, 0, int(items.rows[item, 2]))
    put_number(scratch, 4, kind)
    put_number(scratch, 8, form)
    metric = intern(table, scratch, 0, length, METRIC)
    if metric < 0:
        return metric
    return _scan_points(data, first, last, metric, table, items, columns)


@compile_native
def _read_temporality(data: Bytes, at: int, end: int, kind: int) -> int:
    """Return temporality times two, plus one if monotonic; both may follow the points."""
    temporality = monotonic = 0
    while at < end:
        tag, at = read_varint(data, at, end)
        if kind == SUM and tag == 16:
            temporality, at = read_varint(data, at, end)
        elif kind == SUM and tag == 24:
            monotonic, at = read_varint(data, at, end)
        else:
            at = skip(data, at, end, tag)
        if at < 0:
            return FAILED
    if temporality > 1_000 or (kind == SUM and temporality == 0):
        return FAILED
    return temporality * 2 + (1 if monotonic else 0)


@compile_native
def _scan_points(
    data: Bytes,
    at: int,
    end: int,
    metric: int,
    table: InternTable,
    items: RequestItems,
    columns: PointColumns,
) -> int:
    while at < end:
        tag, at = read_varint(data, at, end)
        if tag != 10:
            at = skip(data, at, end, tag)  # `_read_temporality` has checked this level
            continue
        start, at = read_span(data, at, end)
        row = items.counts[POINTS]
        if at < 0 or row >= columns.time.size:
            return FAILED
        columns.metric[row] = metric
        done = _scan_point(data, start, at, row, table, items, columns)
        if done < 0:
            return done
        items.counts[POINTS] = row + 1
    return 0


@inline_native
def _scan_point(  # noqa: C901  # one loop; split into functions it ran at half the speed
    data: Bytes,
    start: int,
    end: int,
    row: int,
    table: InternTable,
    items: RequestItems,
    columns: PointColumns,
) -> int:
    time = begun = bits = np.uint64(0)
    kind = flags = first = last = 0
    guess = FAILED
    has_exemplars = False
    at = start
    while at < end:
        field = at
        tag, at = read_varint(data, at, end)
        if at < 0:
            return FAILED
        if tag == 58:
            if last and last != field:
                return FAILED  # other fields lie between the attributes
            first = first if last else field
            before = FAILED if last else items.counts[LAST_ATTRIBUTES]
            guess, at = match_attributes(data, field, at, end, table, before)
            last = at
        elif tag in (17, 25, 33, 49):
            if at + 8 > end:
                return FAILED
            value = read_fixed64(data, at)
            at += 8
            if tag == 25:
                time = value
            elif tag == 17:
                begun = value
            else:
                bits, kind = value, DOUBLE if tag == 33 else INT
        elif tag == 64:
            flags, at = read_varint(data, at, end)
        else:
            has_exemplars |= tag == 42
            at = skip(data, at, end, tag)
        if at < 0:
            return FAILED
    if has_exemplars:
        place = items.counts[WITH_EXEMPLARS]
        columns.exemplars[place, 0], columns.exemplars[place, 1] = row, start
        columns.exemplars[place, 2] = end
        items.counts[WITH_EXEMPLARS] = place + 1
    attributes = intern_attributes(data, first, last, guess, table, items)
    columns.attributes[row], columns.time[row], columns.start[row] = attributes, time, begun
    columns.bits[row], columns.flags[row] = bits, flags
    columns.kind[row] = 0 if flags & 1 else kind
    # What the official decoder refuses or notes is left to it.
    if time == 0 or time > _TIME_MAX or begun > time or flags >> 32:
        return FAILED
    if kind == 0 and not flags & 1:
        return FAILED
    return min(attributes, 0)
