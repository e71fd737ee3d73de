"""Finds the items of a request in one compiled pass: metrics, log records or spans.

In:   the bytes of an `Export{Metrics,Logs,Trace}ServiceRequest`; a table of interned bytes
Out:  for each item its position and the id of its origin; attributes as ids

- All signals have one form: a request has resources, a resource has scopes, a scope has items.
- The scan handles only the forms that exporters write. An unusual form ends it: the official
  decoder then handles the whole request.
- Attributes, scopes and resources are interned as raw bytes, so that the official library decodes
  each distinct one once.

The numbers in this module are protobuf's tags: a field's number times eight, and its wire type.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from thermocline.ingest.otlp.compiled.numba_support import Bytes, compile_native, inline_native
from thermocline.ingest.otlp.compiled.protobuf_wire import (
    FAILED,
    InternTable,
    intern,
    match_follower,
    read_span,
    read_varint,
    skip,
)

# The contexts of interned bytes.
ATTRIBUTES, RESOURCE, URL, SCOPE, ORIGIN, METRIC, WORD_TEXT, STATUS = range(8)
ITEM_BYTES_MIN = 16  # requests of smaller items go to the official decoder
KEY_BYTES_MAX = 16
REQUEST_BYTES_MAX = (1 << 31) - 1  # positions are int32
ITEMS, LAST_ATTRIBUTES, POINTS, WITH_EXEMPLARS, OTHERS = range(5)  # the places of counts

Positions = npt.NDArray[np.int64]


class RequestItems(NamedTuple):
    """The items of a request, a row for each: start, end and origin; and memory for the scan."""

    rows: npt.NDArray[np.int32]
    counts: Positions
    head: Positions
    scratch: Bytes


def new_items(size_bytes: int, items_max: int) -> RequestItems:
    """Return room for the expected items of a request of this many bytes, up to a limit."""
    return RequestItems(
        rows=np.empty((min(size_bytes // ITEM_BYTES_MIN, items_max) + 1, 3), np.int32),
        counts=np.zeros(5, np.int64),
        head=np.zeros(4, np.int64),
        scratch=np.empty(size_bytes + KEY_BYTES_MAX, np.uint8),
    )


@compile_native
def find_items(data: Bytes, table: InternTable, items: RequestItems) -> int:
    """Find the items of a request; return 0, `FAILED` or `FULL`."""
    at, end = 0, data.size
    while at < end:
        tag, at = read_varint(data, at, end)
        if tag == 10:
            start, at = read_span(data, at, end)
            done = FAILED if at < 0 else _find_in_group(data, start, at, table, items)
        else:
            at = skip(data, at, end, tag)
            done = min(at, 0)
        if done < 0:
            return done
    return 0


@compile_native
def _find_in_group(data: Bytes, at: int, end: int, table: InternTable, items: RequestItems) -> int:
    head = items.head
    if _find_head(data, at, end, head) < 0:
        return FAILED
    resource = intern(table, data, head[0], head[1], RESOURCE)
    url = intern(table, data, head[2], head[3], URL)
    if resource < 0 or url < 0:
        return min(resource, url)
    origin = FAILED  # the official decoder handles a resource without scopes
    while at < end:
        tag, at = read_varint(data, at, end)
        if tag != 18:
            at = skip(data, at, end, tag)  # `_find_head` has checked the fields of this level
            continue
        start, at = read_span(data, at, end)
        if at < 0:
            return FAILED
        origin = _intern_origin(data, start, at, resource, url, table, items)
        if origin < 0:
            return origin
        if _find_in_scope(data, start, at, origin, items) < 0:
            return FAILED
    return min(origin, 0)


@compile_native
def _find_in_scope(data: Bytes, at: int, end: int, origin: int, items: RequestItems) -> int:
    while at < end:
        tag, at = read_varint(data, at, end)
        if tag != 18:
            at = skip(data, at, end, tag)  # `_find_head` has checked the fields of this level
            continue
        start, at = read_span(data, at, end)
        row = items.counts[ITEMS]
        if at < 0 or row >= items.rows.shape[0]:
            return FAILED
        items.rows[row, 0], items.rows[row, 1], items.rows[row, 2] = start, at, origin
        items.counts[ITEMS] = row + 1
    return 0


@compile_native
def _find_head(data: Bytes, at: int, end: int, head: Positions) -> int:
    """Find the one message of field 1 and the one text of field 3, at any position."""
    head[0] = head[1] = head[2] = head[3] = 0
    seen_first = seen_third = False
    while at < end:
        tag, at = read_varint(data, at, end)
        if tag in (10, 26):
            start, at = read_span(data, at, end)
            if (tag == 10 and seen_first) or (tag == 26 and seen_third):
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
def _intern_origin(
    data: Bytes,
    start: int,
    end: int,
    resource: int,
    url: int,
    table: InternTable,
    items: RequestItems,
) -> int:
    """Return the id of a scope's origin: a resource and a scope, each with its schema URL."""
    head, scratch = items.head, items.scratch
    if _find_head(data, start, end, head) < 0:
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


@inline_native
def match_attributes(
    data: Bytes, field: int, at: int, end: int, table: InternTable, before: int
) -> tuple[int, int]:
    """Return the id of the expected attributes and their end; `FAILED` if they are others."""
    if before >= 0:
        guess, after = match_follower(table, before, data, field, end)
        if guess >= 0:
            return guess, after
    return FAILED, read_span(data, at, end)[1]


@inline_native
def intern_attributes(
    data: Bytes, first: int, last: int, guess: int, table: InternTable, items: RequestItems
) -> int:
    """Return the id of attributes, unless `guess` is it already; the next are expected after it."""
    if guess < 0:
        guess = intern(table, data, first, last, ATTRIBUTES)
    if guess < 0 or table.is_bad[guess]:
        return min(guess, FAILED)
    table.follows[items.counts[LAST_ATTRIBUTES]] = guess
    items.counts[LAST_ATTRIBUTES] = guess
    return guess
