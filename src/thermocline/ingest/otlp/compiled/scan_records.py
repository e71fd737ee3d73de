"""Scans a request of logs or traces in one compiled pass: the fields of its records as columns.

In:   the bytes of an `Export{Logs,Trace}ServiceRequest`; a plan of a record's fields; a table of
      interned bytes
Out:  for each record its numbers, the positions of its texts, ids of interned texts, attributes

- The scan handles only the forms that exporters write. An unusual form ends the scan: the official
  decoder then handles the whole request. `records` checks the values of the columns.
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
    read_span,
    read_varint,
    skip,
)
from thermocline.ingest.otlp.compiled.scan_items import (
    ITEMS,
    LAST_ATTRIBUTES,
    Positions,
    RequestItems,
    find_items,
    intern_attributes,
    match_attributes,
)

NUMBER, SPAN, RUN, RICH, WRONG = range(1, 6)
TAGS_MAX = 256
NO_BODY, TEXT_BODY, OTHER_BODY = range(3)
_INT32_MAX = (1 << 31) - 1


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
    is_rich: Bytes


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


def new_record_columns(rows: int, plan: RecordPlan) -> RecordColumns:
    """Return columns with room for this many records."""
    return RecordColumns(
        numbers=np.empty((rows, plan.numbers), np.uint64),
        spans=np.empty((rows, plan.spans, 2), np.int64),
        ids=np.empty((rows, plan.interned.shape[0]), np.int32),
        attributes=np.empty(rows, np.int32),
        is_rich=np.empty(rows, np.uint8),
    )


@compile_native
def scan_records(
    data: Bytes, plan: RecordPlan, table: InternTable, items: RequestItems, columns: RecordColumns
) -> int:
    """Fill the columns from a request; return 0, `FAILED` or `FULL`."""
    done = find_items(data, table, items)
    if done < 0:
        return done
    for row in range(items.counts[ITEMS]):
        done = _scan_record(data, row, plan.fields, table, items, columns)
        if done < 0:
            return done
        for place in range(plan.interned.shape[0]):
            column, context = plan.interned[place, 0], plan.interned[place, 1]
            begun, stop = columns.spans[row, column, 0], columns.spans[row, column, 1]
            found = intern(table, data, begun, stop, context)
            if found < 0:
                return found
            columns.ids[row, place] = found
    return 0


@inline_native
def _scan_record(  # noqa: C901  # one loop, as in `scan_metrics`
    data: Bytes,
    row: int,
    fields: Positions,
    table: InternTable,
    items: RequestItems,
    columns: RecordColumns,
) -> int:
    at, end = items.rows[row, 0], items.rows[row, 1]
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
            before = FAILED if last else items.counts[LAST_ATTRIBUTES]
            first = first if last else field
            guess, at = match_attributes(data, field, at, end, table, before)
            last = at
        elif kind == WRONG:
            return FAILED
        else:
            columns.is_rich[row] |= np.uint8(kind == RICH)
            at = skip(data, at, end, tag)
        if at < 0:
            return FAILED
    attributes = intern_attributes(data, first, last, guess, table, items)
    columns.attributes[row] = attributes
    return min(attributes, 0)


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
