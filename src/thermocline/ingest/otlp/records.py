"""Converts log records to rows.

In:   an `ExportLogsServiceRequest` message, limits, the time of arrival
Out:  a batch of `logs`, and the tally

- `ts` is the time of the event; if that is unknown, the time it was observed; if that is unknown
  too, the time of arrival. `time_ns` and `observed_ns` are the client's values, or null.
- A body that is not a text is kept with its types in `body_json`, and as readable text in `body`.
- An identifier of a wrong length is omitted and noted.
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
from thermocline.ingest.otlp.tables import LOGS, rows_batch
from thermocline.ingest.otlp.value import ValueRenderer

BAD_ID = "trace or span id of a wrong length, left out"


def logs_batches(
    request: Any, limits: DecodeLimits, arrived_ns: int, tally: Tally
) -> DecodedRequest:
    """Return the log records of a request as a batch."""
    values = ValueRenderer(limits, tally)
    rows = []
    for origin, scope in scopes_with_origin(request.resource_logs, "scope_logs", values):
        for record in scope.log_records:
            if is_foreign(record):
                tally.reject(FOREIGN, record.event_name)
                continue
            if max(record.time_unix_nano, record.observed_time_unix_nano) > NS_MAX:
                tally.reject(TIME_BEYOND, record.event_name or record.severity_text)
                continue
            rows.append(_row(origin, record, values, tally, arrived_ns))
    tally.accepted = len(rows)
    return tally.outcome({LOGS.name: rows_batch(LOGS, rows)} if rows else {})


def parse_identifier(value: bytes, length: int, tally: Tally) -> bytes | None:
    """Return an identifier or None; note one of a wrong length."""
    if value and len(value) != length:
        tally.note(BAD_ID)
    return valid_identifier(value, length)


def _row(
    origin: Origin, record: Any, values: ValueRenderer, tally: Tally, arrived_ns: int
) -> tuple[Any, ...]:
    time_ns, observed_ns = record.time_unix_nano, record.observed_time_unix_nano
    ts_ns = time_ns or observed_ns or arrived_ns
    attributes, dropped = values.attributes_and_dropped(record.attributes)
    body = values.body(record.body) if record.HasField("body") else (None, None)
    return (
        ts_ns // 1_000,
        ts_ns,
        *origin.columns,
        time_ns or None,
        observed_ns or None,
        record.severity_number,
        values.optional_text(record.severity_text),
        values.optional_text(record.event_name),
        *body,
        attributes,
        record.dropped_attributes_count + dropped,
        parse_identifier(record.trace_id, 16, tally),
        parse_identifier(record.span_id, 8, tally),
        record.flags,
    )
