"""Converts spans to rows, with their events and links as nested values.

In:   an `ExportTraceServiceRequest` message, limits
Out:  a batch of `spans`, and the tally

- A span without a trace id, a span id or a start is refused: no query could find it.
- A span that ends before it starts is kept unchanged, with a negative duration, and noted.
- `ts` is the start. An end of 0 means that the end is unknown: `end_ns` and `duration_ns` are null.
"""

from typing import Any

from thermocline.ingest.otlp.limits import DecodeLimits
from thermocline.ingest.otlp.origin import (
    NS_MAX,
    TIME_BEYOND,
    Origin,
    is_foreign,
    scopes_with_origin,
    valid_identifier,
)
from thermocline.ingest.otlp.outcome import FOREIGN, DecodedRequest, Tally
from thermocline.ingest.otlp.records import parse_identifier
from thermocline.ingest.otlp.tables import SPANS, rows_batch
from thermocline.ingest.otlp.value import ValueRenderer

KINDS = ("unspecified", "internal", "server", "client", "producer", "consumer")
STATUS_CODES = ("unset", "ok", "error")

BAD_TRACE_ID = "trace_id is not 16 bytes, or all zeros"
BAD_SPAN_ID = "span_id is not 8 bytes, or all zeros"
NO_START = "start_time_unix_nano is 0"
ENDS_EARLY = "span ends before it starts"
EVENT_BEYOND = "event with a time beyond int64, emptied"


def traces_batches(request: Any, limits: DecodeLimits, tally: Tally) -> DecodedRequest:
    """Return the spans of a request as a batch."""
    values = ValueRenderer(limits, tally)
    rows = []
    for origin, scope in scopes_with_origin(request.resource_spans, "scope_spans", values):
        for span in scope.spans:
            reason = FOREIGN if is_foreign(span) else _span_fault(span)
            if reason:
                tally.reject(reason, span.name)
            else:
                rows.append(_row(origin, span, values, tally))
    tally.accepted = len(rows)
    return tally.outcome({SPANS.name: rows_batch(SPANS, rows)} if rows else {})


def _span_fault(span: Any) -> str | None:
    if valid_identifier(span.trace_id, 16) is None:
        return BAD_TRACE_ID
    if valid_identifier(span.span_id, 8) is None:
        return BAD_SPAN_ID
    if not span.start_time_unix_nano:
        return NO_START
    if max(span.start_time_unix_nano, span.end_time_unix_nano) > NS_MAX:
        return TIME_BEYOND
    return None


def _row(origin: Origin, span: Any, values: ValueRenderer, tally: Tally) -> tuple[Any, ...]:
    start_ns, end_ns = span.start_time_unix_nano, span.end_time_unix_nano or None
    if end_ns is not None and end_ns < start_ns:
        tally.note(ENDS_EARLY)
    attributes, dropped = values.attributes_and_dropped(span.attributes)
    return (
        start_ns // 1_000,
        start_ns,
        *origin.columns,
        span.trace_id,
        span.span_id,
        parse_identifier(span.parent_span_id, 8, tally),
        values.optional_text(span.trace_state),
        values.text(span.name),
        enum_name(KINDS, span.kind),
        end_ns,
        None if end_ns is None else end_ns - start_ns,
        enum_name(STATUS_CODES, span.status.code),
        values.optional_text(span.status.message),
        attributes,
        span.dropped_attributes_count + dropped,
        [event_row(one, values, tally) for one in span.events] or None,
        span.dropped_events_count,
        [link_row(one, values, tally) for one in span.links] or None,
        span.dropped_links_count,
        span.flags,
    )


def event_row(event: Any, values: ValueRenderer, tally: Tally) -> dict[str, Any]:
    """Return an event of a span as a value of the table's column."""
    time_ns = event.time_unix_nano
    if time_ns > NS_MAX:
        tally.note(EVENT_BEYOND)
        time_ns = 0
    attributes, dropped = values.attributes_and_dropped(event.attributes)
    return {
        "ts_ns": time_ns or None,
        "name": values.text(event.name),
        "attributes": attributes,
        "dropped_attributes": event.dropped_attributes_count + dropped,
    }


def link_row(link: Any, values: ValueRenderer, tally: Tally) -> dict[str, Any]:
    """Return a link of a span as a value of the table's column."""
    attributes, dropped = values.attributes_and_dropped(link.attributes)
    return {
        "trace_id": parse_identifier(link.trace_id, 16, tally),
        "span_id": parse_identifier(link.span_id, 8, tally),
        "trace_state": values.optional_text(link.trace_state),
        "attributes": attributes,
        "dropped_attributes": link.dropped_attributes_count + dropped,
        "flags": link.flags,
    }


def enum_name(names: tuple[str, ...], number: int) -> str:
    """Return the name of an enumeration's number, or its digits when the name is unknown."""
    return names[number] if 0 <= number < len(names) else str(number)
