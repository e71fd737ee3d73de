"""Changes of tables over HTTP: write rows, flush, delete, restore, retain, vacuum.

In:   a call on a route
Out:  counts and versions; when an answer is sent, the change is durable and visible

- A write is atomic. With an `Idempotency-Key` a resend is a no-op.
- Bytes are charged to the tenant's quota and to the memory budget of all requests. The decoded
  values of JSON are charged too: they are counted before any of them is created.
"""

from contextlib import suppress
from typing import Any

import pyarrow as pa
from starlette.types import Send

from thermocline.errors import Invalid, ThermoclineError
from thermocline.server.api.handle.table import moment
from thermocline.server.api.http.incoming import (
    body_of,
    content_type_of,
    idempotency_key_of,
)
from thermocline.server.api.http.json_size import json_values_max
from thermocline.server.api.http.reply import made, sent
from thermocline.server.api.http.rows import (
    VALUE_BYTES,
    arrow_rows,
    check_values,
    json_rows,
    place_of,
)
from thermocline.server.api.types import response_types
from thermocline.server.api.types.route import Call

ARROW = "application/vnd.apache.arrow.stream"
JSON_LINES = "application/x-ndjson"
ROW_TYPES = (JSON_LINES, "application/jsonl", "application/ndjson", "application/json", ARROW)
SIGNAL = "rows"


async def write_rows(call: Call, send: Send) -> None:
    """Write the rows of a body into a table."""
    media = content_type_of(call.headers, ROW_TYPES)
    key = idempotency_key_of(call.headers)
    parts = call.parts
    hold = parts.room.hold()
    try:
        data = await body_of(call.receive, call.headers, parts.body_bytes_max, hold=hold)
        parts.quota.take_ingest(call.caller.tenant, len(data))
        if media != ARROW:
            values = await parts.work.run(lambda: json_values_max(data))
            check_values(values)
            hold.grow(values * VALUE_BYTES)
        count = await parts.work.run(lambda: _written(call, data, media, key))
    finally:
        hold.release()
    parts.metrics.ingested(SIGNAL, count, len(data))
    await sent(send, made(call, response_types.Written(count)))


def _written(call: Call, data: bytes, media: str, key: str | None) -> int:
    table = call.table
    how = {"evolve": call.asked.evolve, "wait_s": call.asked.wait_s, "request_id": key}
    if media == ARROW:
        try:
            return int(table.write(arrow_rows(data), **how))
        except pa.ArrowInvalid as error:
            hint = "send columns of the table's types"
            message = "the rows do not fit the table"
            raise Invalid(message, hint=hint, why=str(error)[:200]) from error
    found = json_rows(data, table.schema(), is_list=media == "application/json")
    try:
        return int(table.write(found.rows, **how))
    except Invalid as error:
        error.facts |= place_of(found, table)
        call.parts.metrics.rejected(SIGNAL, len(found.rows))
        raise


def flush_table(call: Call) -> response_types.Flushed:
    """Flush a table's hot rows into the lake, and release them from the journal's open file."""
    table = call.table
    _leave_journal(table)
    marks = call.lake.flush(table.name)
    return response_types.Flushed(
        {name: int(mark) for name, mark in marks.items()}, table.version()
    )


def flush(call: Call) -> response_types.Flushed:
    """Flush the hot rows of all the caller's tables into the lake, as `flush_table` does."""
    for name in call.lake.tables():
        _leave_journal(call.lake.table(name))
    return response_types.Flushed({name: int(mark) for name, mark in call.lake.flush().items()})


def _leave_journal(table: Any) -> None:
    """Start a new journal file for the table's later writes, before the flush.

    So writes during the flush do not keep the old file alive.
    """
    if not table.is_keyed:
        # If the switch fails now, the next requested flush tries again.
        with suppress(ThermoclineError):
            table.hot().leave()


def delete(call: Call) -> response_types.Changed:
    """Delete rows."""
    body = call.body
    return response_types.Changed(call.table.delete(body.where, start=body.start, end=body.end))


def restore(call: Call) -> response_types.Changed:
    """Restore a table to a version or instant."""
    return response_types.Changed(call.table.restore(moment(call.body.at)))


def retain(call: Call) -> response_types.Changed:
    """Delete the rows past a table's retention."""
    return response_types.Changed(call.table.retain(yes=call.body.yes))


def vacuum(call: Call) -> response_types.Vacuumed:
    """Remove files that no kept version names."""
    body = call.body
    found = call.table.vacuum(
        dry_run=body.dry_run, grace=body.grace, allow_short_grace=body.allow_short_grace
    )
    return response_types.Vacuumed(
        found.is_dry_run, found.oldest, list(found.files), found.size_bytes
    )
