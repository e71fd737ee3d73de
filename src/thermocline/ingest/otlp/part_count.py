"""Counts the parts of a protobuf request before anything is built from it.

In:   the bytes of an `Export{Metrics,Logs,Trace}ServiceRequest`, inflated; the limits
Out:  nothing, or `BodyTooLarge`

- A few bytes of a request may become a message, a row and a dozen Python objects, so the size of a
  body does not bound its cost. These counts do: items (resources, scopes, metrics, points, records,
  spans, events, links, exemplars), values (attributes and all other messages, elements of packed
  lists), and fields of any kind.
- The scan ends at the first count past its limit: a refusal costs no more than an accepted request.
- One algorithm has two forms: compiled beside the fast decoder (`compiled/part_scan.py`), and plain
  Python until that is compiled.
- A malformed request gets the counts up to its fault; the decoder reports the fault.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from thermocline.errors import BodyTooLarge
from thermocline.ingest.inflate import Data
from thermocline.ingest.otlp.limits import DecodeLimits

ITEMS, VALUES, FIELDS = range(3)  # the places of counts and limits
FIELDS_PER_VALUE = 4
_NAMES = ("items", "values", "fields")
_ITEM_KINDS = frozenset(
    f"{prefix}{kind}"
    for prefix, kinds in {
        "": ("Metric", "LogRecord", "Span", "Event", "Link", "Exemplar", "SummaryDataPoint"),
        "Resource": ("Metrics", "Logs", "Spans"),
        "Scope": ("Metrics", "Logs", "Spans"),
        "Number": ("DataPoint",),
        "Histogram": ("DataPoint",),
        "ExponentialHistogram": ("DataPoint",),
    }.items()
    for kind in kinds
)
_PACKED = -1
_NUMBERS_MAX = 32  # fields of higher numbers hold nothing that is repeated
_DEPTH_MAX = 100  # protobuf's own limit

Numbers = npt.NDArray[np.int64]
Scan = Callable[[Any, Numbers, Numbers, Numbers, Numbers, Numbers], int]


@dataclass(frozen=True, slots=True)
class _Shape:
    """The messages of a request: what each field holds, and where each message is counted."""

    # By message times `_NUMBERS_MAX` plus field: 0, `_PACKED`, or the number of a message.
    below: Numbers
    places: Numbers  # by message: `ITEMS` or `VALUES`


def check_parts(signal: str, data: Data, limits: DecodeLimits, scan: "Scan | None" = None) -> None:
    """Raise `BodyTooLarge` for a request with more parts than the limits allow."""
    most = np.array([limits.items_max, limits.values_max, FIELDS_PER_VALUE * limits.values_max])
    if len(data) <= 2 * min(limits.items_max, limits.values_max):
        return  # a part has at least two bytes
    shape = _shape(signal)
    counts, stack = np.zeros(3, np.int64), np.zeros(2 * _DEPTH_MAX, np.int64)
    arrays = (shape.below, shape.places, most, counts, stack)
    if scan is None:
        # Plain Python reads bytes and lists faster than arrays.
        lists: list[Any] = [array.tolist() for array in arrays]
        count_parts(data, *lists)
        counts[:] = lists[3]
    else:
        scan(np.frombuffer(data, np.uint8), *arrays)
    for name, count, limit in zip(_NAMES, counts.tolist(), most.tolist(), strict=True):
        if count > limit:
            raise too_many_error(name, limit)


def too_many_error(name: str, limit: int) -> BodyTooLarge:
    """Return the error for a request with more of something than the limit."""
    return BodyTooLarge(
        f"the request has more {name} than the limit",
        hint="send smaller batches",
        **{f"{name}_max": limit},
    )


def count_parts(  # noqa: C901  # one loop over fields: calls cost more than it does
    data: Any, below: Numbers, places: Numbers, most: Numbers, counts: Numbers, stack: Numbers
) -> int:
    """Add the parts of a request to the counts; return when one is past `most`, or at the end.

    `stack` has the end and the number of each open message. The compiled form is this function.
    """
    at, depth, end, kind = 0, 0, len(data), 0
    stack[0] = end
    while True:
        while at >= end:
            if depth == 0 or at > end:
                return at
            depth -= 2
            end, kind = stack[depth], stack[depth + 1]
        tag, shift = 0, 0
        while at < end:
            byte = int(data[at])
            at += 1
            tag |= (byte & 127) << shift
            shift += 7
            if byte < 128 or shift > 28:
                break
        counts[FIELDS] += 1
        if counts[FIELDS] > most[FIELDS]:
            return at
        wire, number = tag & 7, tag >> 3
        if wire == 1 or wire == 5:  # compiled: a set is slower
            at += 8 if wire == 1 else 4
        elif wire == 0 or wire == 2:
            length, shift = 0, 0
            while at < end:
                byte = int(data[at])
                at += 1
                if shift < 35:
                    length |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    break
            inner = below[kind * _NUMBERS_MAX + number] if number < _NUMBERS_MAX else 0
            if wire == 0:
                if inner == _PACKED:
                    counts[VALUES] += 1
            elif length > end - at:
                return at
            elif inner > 0:
                counts[places[inner]] += 1
                if counts[places[inner]] > most[places[inner]]:
                    return at
                if depth + 3 < 2 * _DEPTH_MAX:
                    depth += 2
                    stack[depth - 2], stack[depth - 1] = end, kind
                    end, kind = at + length, inner
                else:
                    at += length  # the decoder refuses what is nested deeper
            else:
                if inner == _PACKED:
                    counts[VALUES] += length >> 3
                at += length
            if counts[VALUES] > most[VALUES]:
                return at
        elif wire > 5:
            return at  # malformed


@functools.cache
def _shape(signal: str) -> _Shape:
    from thermocline.ingest.otlp.protobuf import empty_message

    first = empty_message(signal).DESCRIPTOR
    kinds = {first.full_name: 0}
    waiting, rows, places = [first], [], []
    while waiting:
        kind = waiting.pop(0)
        row = [0] * _NUMBERS_MAX
        for field in kind.fields:
            inner = field.message_type
            if inner is not None:
                if inner.full_name not in kinds:
                    kinds[inner.full_name] = len(kinds)
                    waiting.append(inner)
                row[field.number] = kinds[inner.full_name]
            elif field.is_repeated and field.cpp_type != field.CPPTYPE_STRING:
                row[field.number] = _PACKED
        rows.append(row)
        places.append(ITEMS if kind.name in _ITEM_KINDS else VALUES)
    return _Shape(np.array(rows, np.int64).ravel(), np.array(places, np.int64))
