"""Scans a metrics request in one compiled pass: its number points as columns.

In:   the bytes of an `ExportMetricsServiceRequest`; a table of interned bytes
Out:  columns of times, values and ids; the positions of metrics of other kinds

- The scan handles only the forms that exporters write. An unusual form, or a point to refuse or to
  note, ends the scan: the official decoder then handles the whole request.
- Attributes, metrics, scopes and resources are interned as raw bytes, so that the official library
  decodes each distinct one once.

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
    match_follower,
    read_span,
    read_varint,
    skip,
)

ATTRIBUTES, RESOURCE, URL, SCOPE, ORIGIN, METRIC = range(6)
GAUGE, SUM = 5, 7
DOUBLE, INT = 1, 2
POINT_BYTES_MIN = 11
METRIC_KEY_BYTES = 12
_TIME_MAX = np.uint64((1 << 63) - 1)


class PointColumns(NamedTuple):
    """The output of the scan: a row for each point; `others` are metrics of other kinds."""

    time: npt.NDArray[np.uint64]
    start: npt.NDArray[np.uint64]
    bits: npt.NDArray[np.uint64]
    kind: Bytes
    flags: npt.NDArray[np.int64]
    attributes: npt.NDArray[np.int32]
    metric: npt.NDArray[np.int32]
    exemplars: npt.NDArray[np.int64]
    others: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    head: npt.NDArray[np.int64]
    scratch: Bytes


def new_columns(size_bytes: int) -> PointColumns:
    """Return columns with room for all points of a request of this many bytes."""
    rows = size_bytes // POINT_BYTES_MIN + 1
    return PointColumns(
        time=np.empty(rows, np.uint64),
        start=np.empty(rows, np.uint64),
        bits=np.empty(rows, np.uint64),
        kind=np.empty(rows, np.uint8),
        flags=np.empty(rows, np.int64),
        attributes=np.empty(rows, np.int32),
        metric=np.empty(rows, np.int32),
        exemplars=np.empty((rows, 3), np.int64),
        others=np.empty((rows, 3), np.int64),
        counts=np.zeros(4, np.int64),  # rows, rows with exemplars, others, the last attributes
        head=np.zeros(4, np.int64),
        scratch=np.empty(size_bytes + METRIC_KEY_BYTES, np.uint8),
    )


@compile_native
def scan_metrics(data: Bytes, table: InternTable, columns: PointColumns) -> int:
    """Fill the columns from a request; return 0, `FAILED` or `FULL`."""
    at, end = 0, data.size
    while at < end:
        tag, at = read_varint(data, at, end)
        if at < 0:
            return FAILED
        if tag == 10:
            start, at = read_span(data, at, end)
            if at < 0:
                return FAILED
            done = _scan_group(data, start, at, table, columns)
            if done < 0:
                return done
        else:
            at = skip(data, at, end, tag)
            if at < 0:
                return FAILED
    return 0


@compile_native
def find_head(data: Bytes, at: int, end: int, head: npt.NDArray[np.int64]) -> int:
    """Find the one message of field 1 and the one text of field 3, at any position."""
    head[0] = head[1] = head[2] = head[3] = 0
    seen_first = seen_third = False
    while at < end:
        tag, at = read_varint(data, at, end)
        if at < 0:
            return FAILED
        if tag in (10, 26):
            start, at = read_span(data, at, end)
            if at < 0 or (tag == 10 and seen_first) or (tag == 26 and seen_third):
                return FAILED  # protobuf merges a message that is given twice
            place = 0 if tag == 10 else 2
            head[place], head[place + 1] = start, at
            seen_first, seen_third = seen_first or tag == 10, seen_third or tag == 26
        else:
            at = skip(data, at, end, tag)
            if at < 0:
                return FAILED
    return 0


@compile_native
def _scan_group(data: Bytes, at: int, end: int, table: InternTable, columns: PointColumns) -> int:
    head = columns.head
    if find_head(data, at, end, head) < 0:
        return FAILED
    resource = intern(table, data, head[0], head[1], RESOURCE)
    url = intern(table, data, head[2], head[3], URL)
    if resource < 0 or url < 0:
        return min(resource, url)
    origin = FAILED  # the official decoder handles a resource without scopes
    while at < end:
        tag, at = read_varint(data, at, end)
        if tag != 18:
            at = skip(data, at, end, tag)
            continue
        start, at = read_span(data, at, end)
        if at < 0:
            return FAILED
        origin = scope_origin(data, start, at, resource, url, table, head, columns.scratch)
        if origin < 0:
            return origin
        done = _scan_scope(data, start, at, origin, table, columns)
        if done < 0:
            return done
    return min(origin, 0)


@compile_native
def scope_origin(
    data: Bytes,
    start: int,
    end: int,
    resource: int,
    url: int,
    table: InternTable,
    head: npt.NDArray[np.int64],
    scratch: Bytes,
) -> int:
    """Return the id of a scope's origin: a resource and a scope, each with its schema URL."""
    if find_head(data, start, end, head) < 0:
        return FAILED
    scope = intern(table, data, head[0], head[1], SCOPE)
    scope_url = intern(table, data, head[2], head[3], URL)
    if scope < 0 or scope_url < 0:
        return min(scope, scope_url)
    for place, part in enumerate((resource, url, scope, scope_url)):
        put_number(scratch, 4 * place, part)
    return intern(table, scratch, 0, 16, ORIGIN)


@compile_native
def put_number(scratch: Bytes, at: int, value: int) -> None:
    """Write a number as four bytes."""
    for place in range(4):
        scratch[at + place] = np.uint8((value >> (8 * place)) & 255)


@compile_native
def _scan_scope(
    data: Bytes, at: int, end: int, origin: int, table: InternTable, columns: PointColumns
) -> int:
    while at < end:
        tag, at = read_varint(data, at, end)
        if tag != 18:
            at = skip(data, at, end, tag)
            continue
        start, at = read_span(data, at, end)
        if at < 0:
            return FAILED
        done = _scan_metric(data, start, at, origin, table, columns)
        if done < 0:
            return done
    return 0


@compile_native
def _scan_metric(  # noqa: C901  # one loop, as in `_scan_point`
    data: Bytes, start: int, end: int, origin: int, table: InternTable, columns: PointColumns
) -> int:
    """Scan one metric: copy all fields but the data to the scratch, and intern them from there."""
    scratch, at, kind = columns.scratch, start, 0
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
        others = columns.counts[2]
        if kind < 9 or others >= columns.others.shape[0]:
            return FAILED
        columns.others[others, 0], columns.others[others, 1] = start, end
        columns.others[others, 2] = origin
        columns.counts[2] += 1
        return 0
    form = _read_temporality(data, first, last, kind)
    if form < 0:
        return FAILED
    put_number(scratch, 0, origin)
    put_number(scratch, 4, kind)
    put_number(scratch, 8, form)
    metric = intern(table, scratch, 0, length, METRIC)
    if metric < 0:
        return metric
    return _scan_points(data, first, last, metric, table, columns)


@compile_native
def _read_temporality(data: Bytes, at: int, end: int, kind: int) -> int:
    """Return temporality times two, plus one if monotonic; both may follow the points."""
    temporality = monotonic = 0
    while at < end:
        tag, at = read_varint(data, at, end)
        if at < 0:
            return FAILED
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
    data: Bytes, at: int, end: int, metric: int, table: InternTable, columns: PointColumns
) -> int:
    while at < end:
        tag, at = read_varint(data, at, end)
        if tag != 10:
            at = skip(data, at, end, tag)
            continue
        start, at = read_span(data, at, end)
        row = columns.counts[0]
        if at < 0 or row >= columns.time.size:
            return FAILED
        columns.metric[row] = metric
        done = _scan_point(data, start, at, row, table, columns)
        if done < 0:
            return done
        columns.counts[0] = row + 1
    return 0


@inline_native
def _scan_point(  # noqa: C901  # one loop; split into functions it ran at half the speed
    data: Bytes, start: int, end: int, row: int, table: InternTable, columns: PointColumns
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
            before = FAILED if last else columns.counts[3]
            guess, at = _match_attributes(data, field, at, end, table, before)
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
        place = columns.counts[1]
        columns.exemplars[place, 0], columns.exemplars[place, 1] = row, start
        columns.exemplars[place, 2] = end
        columns.counts[1] = place + 1
    if guess < 0:
        guess = intern(table, data, first, last, ATTRIBUTES)
    columns.time[row], columns.start[row], columns.bits[row] = time, begun, bits
    columns.kind[row], columns.flags[row] = kind, flags
    return _finish_point(row, guess, table, columns)


@inline_native
def _match_attributes(
    data: Bytes, field: int, at: int, end: int, table: InternTable, before: int
) -> tuple[int, int]:
    """Return the id of the expected attributes and their end; `FAILED` if they are others."""
    if before >= 0:
        guess, after = match_follower(table, before, data, field, end)
        if guess >= 0:
            return guess, after
    return FAILED, read_span(data, at, end)[1]


@inline_native
def _finish_point(row: int, attributes: int, table: InternTable, columns: PointColumns) -> int:
    """Check a point as the official decoder does, and store its attributes."""
    time, flags = columns.time[row], columns.flags[row]
    if time == 0 or time > _TIME_MAX or columns.start[row] > time or flags >> 32:
        return FAILED
    if flags & 1:
        columns.kind[row] = 0
    elif columns.kind[row] == 0:
        return FAILED
    if attributes < 0 or table.is_bad[attributes]:
        return min(attributes, FAILED)
    table.follows[columns.counts[3]] = attributes
    columns.counts[3] = attributes
    columns.attributes[row] = attributes
    return 0
