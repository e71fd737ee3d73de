"""Scans a request of logs or traces in one compiled pass: the fields of its records as columns.

In:   the bytes of an `Export{Logs,Trace}ServiceRequest`; a plan of a record's fields; a table of
      interned bytes
Out:  for each record its numbers, the positions of its texts, ids of interned texts, its origin

- The scan handles only the forms that exporters write. An unusual form ends the scan: the official
  decoder then handles the whole request. `fast_records` checks the values of the columns.
- A number that is given twice keeps its last value, as in protobuf. A text or a message given twice
  ends the scan: protobuf merges messages, and also checks a text that a later one replaces.
- A known field of a wrong wire type (`WRONG`) ends the scan: the item may be of another signal.
- The scan skips the content of a `RICH` field and marks the record, which the official library then
  decodes.

The numbers in this module are protobuf's tags: a field's number times eight, and its wire type.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from thermocline.ingest.otlp.compiled.numba_support import (
    Bytes,
    compile_native,
    inline_native,
    read_byte,
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
from thermocline.ingest.otlp.compiled.scan_metrics import (
    ATTRIBUTES,
    RESOURCE,
    URL,
    find_head,
    scope_origin,
)

NUMBER, SPAN, RUN, RICH, WRONG = range(1, 6)
TAGS_MAX = 256
RECORD_BYTES_MIN = 16  # requests of smaller records go to the official decoder
ORIGIN_KEY_BYTES = 16
NO_BODY, TEXT_BODY, OTHER_BODY = range(3)
_INT32_MAX = (1 << 31) - 1

Positions = npt.NDArray[np.int64]


class RecordPlan(NamedTuple):
    """The fields of a record: kind and column by tag; the interned texts with their contexts.

    An empty or absent text is interned as empty.
    """

    fields: Positions
    interned: Positions
    numbers: int
    spans: int


class RecordColumns(NamedTuple):
    """The output of the scan: a row for each record."""

    numbers: npt.NDArray[np.uint64]
    spans: Positions
    ids: npt.NDArray[np.int32]
    attributes: npt.NDArray[np.int32]
    origin: npt.NDArray[np.int32]
    positions: Positions
    is_rich: Bytes
    counts: Positions
    head: Positions
    scratch: Bytes


def new_plan(
    numbers: dict[int, int],
    spans: dict[int, int],
    *,
    attributes: int,
    interned: dict[int, int],
    rich: tuple[int, ...] = (),
) -> RecordPlan:
    """Return a plan from columns by tag, the tag of attributes, and contexts by text column."""
    fields = np.zeros((TAGS_MAX, 2), np.int64)
    for kind, columns in ((NUMBER, numbers), (SPAN, spans)):
        for tag, column in columns.items():
            fields[tag] = kind, column
    fields[attributes] = RUN, 0
    for tag in rich:
        fields[tag] = RICH, 0
    for number in {tag >> 3 for tag in (*numbers, *spans, attributes, *rich)}:
        for tag in range(number << 3, (number << 3) + 8):
            if not fields[tag, 0]:
                fields[tag] = WRONG, 0
    found = np.array(list(interned.items()), np.int64).reshape(-1, 2)
    return RecordPlan(fields, found, len(numbers), len(spans))


def new_record_columns(size_bytes: int, plan: RecordPlan) -> RecordColumns:
    """Return columns with room for the expected records of a request of this many bytes."""
    rows = size_bytes // RECORD_BYTES_MIN + 1
    return RecordColumns(
        numbers=np.empty((rows, plan.numbers), np.uint64),
        spans=np.empty((rows, plan.spans, 2), np.int64),
        ids=np.empty((rows, plan.interned.shape[0]), np.int32),
        attributes=np.empty(rows, np.int32),
        origin=np.empty(rows, np.int32),
        positions=np.empty((rows, 2), np.int64),
        is_rich=np.empty(rows, np.uint8),
        counts=np.zeros(2, np.int64),  # rows, the last attributes
        head=np.zeros(4, np.int64),
        scratch=np.empty(ORIGIN_KEY_BYTES, np.uint8),
    )


@compile_native
def scan_records(
    data: Bytes, fields: Positions, interned: Positions, table: InternTable, columns: RecordColumns
) -> int:
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
            done = _scan_group(data, start, at, fields, interned, table, columns)
            if done < 0:
                return done
        else:
            at = skip(data, at, end, tag)
            if at < 0:
                return FAILED
    return 0


@compile_native
def _scan_group(
    data: Bytes,
    at: int,
    end: int,
    fields: Positions,
    interned: Positions,
    table: InternTable,
    columns: RecordColumns,
) -> int:
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
        done = _scan_scope(data, start, at, origin, fields, interned, table, columns)
        if done < 0:
            return done
    return min(origin, 0)


@compile_native
def _scan_scope(
    data: Bytes,
    at: int,
    end: int,
    origin: int,
    fields: Positions,
    interned: Positions,
    table: InternTable,
    columns: RecordColumns,
) -> int:
    while at < end:
        tag, at = read_varint(data, at, end)
        if tag != 18:
            at = skip(data, at, end, tag)
            continue
        start, at = read_span(data, at, end)
        row = columns.counts[0]
        if at < 0 or row >= columns.origin.size:
            return FAILED
        columns.origin[row] = origin
        columns.positions[row, 0], columns.positions[row, 1] = start, at
        done = _scan_record(data, start, at, row, fields, table, columns)
        if done < 0:
            return done
        for place in range(interned.shape[0]):
            column, context = interned[place, 0], interned[place, 1]
            begun, stop = columns.spans[row, column, 0], columns.spans[row, column, 1]
            found = intern(table, data, begun, stop, context)
            if found < 0:
                return found
            columns.ids[row, place] = found
        columns.counts[0] = row + 1
    return 0


@inline_native
def _scan_record(  # noqa: C901  # one loop, as in `scan`
    data: Bytes,
    at: int,
    end: int,
    row: int,
    fields: Positions,
    table: InternTable,
    columns: RecordColumns,
) -> int:
    for place in range(columns.numbers.shape[1]):
        columns.numbers[row, place] = 0
    for place in range(columns.spans.shape[1]):
        columns.spans[row, place, 0] = columns.spans[row, place, 1] = 0
    columns.is_rich[row] = 0
    first = last = 0
    guess = FAILED
    while at < end:
        field = at
        tag, at = read_varint(data, at, end)
        if at < 0:
            return FAILED
        kind = fields[tag, 0] if tag < TAGS_MAX else 0
        if kind == NUMBER:
            value, at = _read_number(data, at, end, tag & 7)
            columns.numbers[row, fields[tag, 1]] = value
        elif kind == SPAN:
            column = fields[tag, 1]
            if columns.spans[row, column, 1]:
                return FAILED  # the field is given twice
            begun, at = read_span(data, at, end)
            columns.spans[row, column, 0], columns.spans[row, column, 1] = begun, at
        elif kind == RUN:
            if last and last != field:
                return FAILED  # other fields lie between the attributes
            before = FAILED if last else columns.counts[1]
            first = first if last else field
            guess, at = _match_attributes(data, field, at, end, table, before)
            last = at
        elif kind == WRONG:
            return FAILED
        else:
            columns.is_rich[row] |= np.uint8(kind == RICH)
            at = skip(data, at, end, tag)
        if at < 0:
            return FAILED
    return _keep_attributes(data, first, last, guess, row, table, columns)


@inline_native
def _read_number(data: Bytes, at: int, end: int, wire: int) -> tuple[np.uint64, int]:
    """Return the number of a field, and the position after it."""
    if wire == 0:
        small, at = read_varint(data, at, end)
        return np.uint64(small), (at if small <= _INT32_MAX else FAILED)
    width = 8 if wire == 1 else 4
    if at + width > end:
        return np.uint64(0), FAILED
    if wire == 1:
        return read_fixed64(data, at), at + 8
    value = 0
    for place in range(4):
        value |= read_byte(data, at + place) << (8 * place)
    return np.uint64(value), at + 4


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
def _keep_attributes(
    data: Bytes,
    first: int,
    last: int,
    guess: int,
    row: int,
    table: InternTable,
    columns: RecordColumns,
) -> int:
    """Store the attributes of a record."""
    if guess < 0:
        guess = intern(table, data, first, last, ATTRIBUTES)
    if guess < 0 or table.is_bad[guess]:
        return min(guess, FAILED)
    table.follows[columns.counts[1]] = guess
    columns.counts[1] = guess
    columns.attributes[row] = guess
    return 0


@compile_native
def split_bodies(data: Bytes, bodies: Positions, kinds: Bytes) -> None:
    """Set the kind of each body, an `AnyValue`; if it is only a text, set its span to the text."""
    for row in range(kinds.size):
        start, end = bodies[row, 0], bodies[row, 1]
        kinds[row] = OTHER_BODY if end else NO_BODY
        if end > start and data[start] == 10:
            first, after = read_span(data, start + 1, end)
            if after == end:
                kinds[row] = TEXT_BODY
                bodies[row, 0] = first


@compile_native
def gather_texts(
    data: Bytes, spans: Positions, offsets: npt.NDArray[np.int32], found: Bytes
) -> None:
    """Copy each text to its position in `offsets`."""
    for row in range(spans.shape[0]):
        at = offsets[row]
        copy(data, spans[row, 0], offsets[row + 1] - at, found, at)


@compile_native
def gather_ids(data: Bytes, spans: Positions, width: int, found: Bytes, is_there: Bytes) -> int:
    """Copy identifiers of one width, and set which are present: one of all zeros is absent.

    `FAILED` when one is neither empty nor of this width.
    """
    for row in range(spans.shape[0]):
        start = spans[row, 0]
        length = spans[row, 1] - start
        is_there[row] = 0
        if length == 0:
            for place in range(width):
                found[row * width + place] = 0
            continue
        if length != width:
            return FAILED
        for place in range(width):
            byte = data[start + place]
            found[row * width + place] = byte
            is_there[row] |= np.uint8(byte != 0)
    return 0
