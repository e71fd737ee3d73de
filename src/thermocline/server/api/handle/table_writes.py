"""Changes of tables over HTTP: write rows, flush, delete, restore, retain, compact.

In:   a call on a route
Out:  counts and versions; when an answer is sent, the change is durable and visible

- A write is atomic. With an `Idempotency-Key` a resend is a no-op.
- Bytes are charged to the tenant's quota and to the memory budget of all requests. The decoded
  values of JSON are charged too: they are counted before any of them is created.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
from starlette.types import Send

from thermocline.cold.change.update import UpdateReport
from thermocline.errors import Invalid, ThermoclineError
from thermocline.ingest.json_size import json_values_max
from thermocline.lake_table import LakeTable
from thermocline.server.api.handle.table import parse_at
from thermocline.server.api.http.incoming import (
    idempotency_key_of,
    read_body,
)
from thermocline.server.api.http.reply import encode_answer, send_answer
from thermocline.server.api.http.rows import (
    VALUE_BYTES,
    arrow_rows,
    check_values,
    json_rows,
    locate_refused_row,
)
from thermocline.server.api.types import response_types
from thermocline.server.api.types.route import ApiRequest

ARROW = "application/vnd.apache.arrow.stream"
JSON_LINES = "application/x-ndjson"
ROW_TYPES = (JSON_LINES, "application/jsonl", "application/ndjson", "application/json", ARROW)
SIGNAL = "rows"
Changed = TypeVar("Changed")


async def write_rows(call: ApiRequest, send: Send) -> None:
    """Write the rows of a body into a table."""
    key = idempotency_key_of(call.headers)
    how = {"evolve": call.params.evolve, "wait_s": call.params.wait_s, "request_id": key}
    count = await _take_rows(call, lambda rows: int(call.table.write(rows, **how)))
    await send_answer(send, encode_answer(call, response_types.WrittenResponse(count)))


async def update_rows(call: ApiRequest, send: Send) -> None:
    """Give rows new values by their keys."""
    await _update_rows(call, send, lambda rows, how: call.table.update_rows(rows, **how))


async def upsert_rows(call: ApiRequest, send: Send) -> None:
    """Give rows new values by their keys, and insert the others."""
    await _update_rows(call, send, lambda rows, how: call.table.upsert(rows, **how))


async def _update_rows(
    call: ApiRequest, send: Send, change: Callable[[Any, dict[str, Any]], UpdateReport]
) -> None:
    asked = call.params
    how = {"columns": _split(asked.columns), "expected_version": asked.expected_version}
    report = await _take_rows(call, lambda rows: change(rows, how))
    updated = response_types.UpdatedResponse(
        int(report.committed_version), report.matched, report.inserted, report.unchanged
    )
    await send_answer(send, encode_answer(call, updated))


def _split(names: str | None) -> list[str] | None:
    return None if names is None else names.split(",")


async def _take_rows(call: ApiRequest, change: Callable[[Any], Changed]) -> Changed:
    """Return what a change answers for the rows of a body, within every limit of the body."""
    parts = call.parts
    tenant = call.caller.tenant
    run = partial(parts.work.run, tenant=tenant, receive=call.receive)
    reservation = parts.budget.reserve(tenant=tenant)
    try:
        media, data = await read_body(
            call.receive,
            call.headers,
            ROW_TYPES,
            parts.body_bytes_max,
            reservation=reservation,
            run=run,
        )
        parts.quota.take_ingest(tenant, len(data))
        if media != ARROW:
            values = await run(lambda: json_values_max(data))
            check_values(values)
            reservation.grow(values * VALUE_BYTES)
        count, answer = await run(lambda: _change_by(call, data, media, change))
    finally:
        reservation.release()
    parts.metrics.count_ingested(SIGNAL, count, len(data))
    return answer


def _change_by(
    call: ApiRequest, data: bytes, media: str, change: Callable[[Any], Changed]
) -> tuple[int, Changed]:
    """Return the number of rows of a body, and what the change answers for them."""
    table = call.table
    if media == ARROW:
        try:
            rows = arrow_rows(data)
            _check_columns(call, table, [rows.column_names])
            return rows.num_rows, change(rows)
        except pa.ArrowInvalid as error:
            hint = "send columns of the table's types"
            message = "the rows do not fit the table"
            raise Invalid(message, hint=hint, why=str(error)[:200]) from error
    found = json_rows(data, table.schema(), is_list=media == "application/json")
    _check_columns(call, table, found.rows)
    try:
        return len(found.rows), change(found.rows)
    except Invalid as error:
        if "cells_max" not in error.facts:  # that one is about all rows
            error.facts |= locate_refused_row(found, table)
        call.parts.metrics.count_rejected(SIGNAL, len(found.rows))
        raise


def _check_columns(call: ApiRequest, table: LakeTable, rows: Iterable[Iterable[str]]) -> None:
    """Refuse rows whose new columns exceed the tenant's quota, before they are converted."""
    if not getattr(call.params, "evolve", False):
        return  # unknown columns are refused
    quota, names = call.parts.quota.of(call.caller.tenant), set(table.schema().names)
    for row in rows:
        if not names.issuperset(row):
            names.update(row)
            quota.check_columns(len(names))


def flush_table(call: ApiRequest) -> response_types.Flushed:
    """Flush a table's hot rows into the lake, and release them from the journal's open file."""
    table = call.table
    _leave_journal(table)
    marks = call.lake.flush(table.name)
    return response_types.Flushed(
        {name: int(mark) for name, mark in marks.items()}, table.version()
    )


def flush(call: ApiRequest) -> response_types.Flushed:
    """Flush the hot rows of all the caller's tables into the lake, as `flush_table` does."""
    for name in call.lake.tables():
        _leave_journal(call.lake.table(name))
    return response_types.Flushed({name: int(mark) for name, mark in call.lake.flush().items()})


def _leave_journal(table: LakeTable) -> None:
    """Start a new journal file for the table's later writes, before the flush.

    So writes during the flush do not keep the old file alive.
    """
    if not table.is_keyed:
        # If the switch fails now, the next requested flush tries again.
        with suppress(ThermoclineError):
            table.hot().leave_open_file()


def delete(call: ApiRequest) -> response_types.ChangedResponse:
    """Delete rows."""
    body = call.body
    return response_types.ChangedResponse(
        call.table.delete(body.where, start=body.start, end=body.end)
    )


def restore(call: ApiRequest) -> response_types.ChangedResponse:
    """Restore a table to a version or instant."""
    return response_types.ChangedResponse(call.table.restore(parse_at(call.body.at)))


def retain(call: ApiRequest) -> response_types.ChangedResponse:
    """Delete the rows past a table's retention."""
    return response_types.ChangedResponse(call.table.retain(yes=call.body.yes))


def set_retention(call: ApiRequest) -> response_types.ChangedResponse:
    """Set how long a table keeps its rows."""
    return response_types.ChangedResponse(call.table.set_retention(call.body.retention))


def compact(call: ApiRequest) -> response_types.CompactedResponse:
    """Rewrite small segments as few large ones, in this process."""
    return response_types.CompactedResponse(**asdict(call.table.compact()))


def vacuum(call: ApiRequest) -> response_types.VacuumedResponse:
    """Remove files that no kept version names."""
    body = call.body
    found = call.table.vacuum(
        dry_run=body.dry_run, grace=body.grace, allow_short_grace=body.allow_short_grace
    )
    return response_types.VacuumedResponse(
        found.is_dry_run, found.oldest, list(found.files), found.size_bytes
    )
