"""The live tail of a table: rows as they become durable, as server-sent events.

In:   a condition in SQL and names of columns; the rows that the journal thread announces
Out:  events until the client disconnects, the time is over, or the client reads too slowly

    rows    JSON lines, one for each row
    end     why the stream ends: `slow`, `time`, `stopping` or `error`, with a message

- A row is announced when it is durable and visible, once. Rows of before the request are not sent:
  ask a query for them.
- The condition passes the gate and runs in a query worker, as that of a deletion does; it occupies
  the worker only while there are rows to test.
- Rows wait in a buffer of bounded size. The journal never waits for a tail: when the buffer is
  full, the rows in it are sent and the stream ends with `slow`. So no row is silently missing.
- A number of tails may be open for a tenant, and another one for the node.
"""

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

import pyarrow as pa
from starlette.types import Send

from thermocline.cold.segment.parquet import coerce_batch, filter_rows
from thermocline.errors import Invalid, ThermoclineError
from thermocline.lake_table import LakeTable
from thermocline.query.worker.worker_condition import WorkerCondition
from thermocline.server.api.http.incoming import ClientGone, wait_for_disconnect
from thermocline.server.api.http.problem import problem_of
from thermocline.server.api.http.reply import send_in_time
from thermocline.server.api.types.route import ApiRequest
from thermocline.show.answer_format import ENCODERS, AnswerInfo

MEDIA_TYPE = "text/event-stream"
BUFFER_BYTES_MAX = 8 << 20
ROWS_PER_EVENT = 500
KEEP_ALIVE_S = 10.0
LOOK_S = 1.0
GATHER_S = 0.1
"""How long rows are gathered after an event: a fast writer makes large events, not many."""


class TailBuffer:
    """Rows on their way from the journal to one client. Thread-safe."""

    def __init__(self, wake: Callable[[], None], bytes_max: int = BUFFER_BYTES_MAX) -> None:
        self._wake = wake
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._batches: list[pa.RecordBatch] = []
        self._size_bytes = 0
        self.is_full = False

    def put(self, batch: pa.RecordBatch) -> None:
        """Add rows; past the limit the buffer is full and takes no more. This never waits."""
        size_bytes = batch.get_total_buffer_size()
        with self._lock:
            if self.is_full:
                return
            if self._size_bytes and self._size_bytes + size_bytes > self._bytes_max:
                self.is_full = True
            else:
                self._batches.append(batch)
                self._size_bytes += size_bytes
        self._wake()

    def take(self) -> list[pa.RecordBatch]:
        """Return the rows since the last call, in the order in which they became durable."""
        with self._lock:
            taken, self._batches, self._size_bytes = self._batches, [], 0
            return taken


async def tail(call: ApiRequest, send: Send) -> None:
    """Send rows as they become durable."""
    table = call.table
    if table.is_keyed:
        hint = "read the entity's history instead"
        raise Invalid("entities have no live tail", hint=hint, table=table.name)
    tails = call.parts.tails
    tails.enter(call.caller.tenant)
    try:
        tenant = call.caller.tenant
        await call.parts.work.run(lambda: _check(call, table), tenant=tenant)
        if call.is_head:
            await _begin(send)
            await _send(send, b"", is_last=True)
        else:
            await _Tail(call, table).run(send)
    finally:
        tails.leave(call.caller.tenant)


def _check(call: ApiRequest, table: LakeTable) -> None:
    """Raise the error of a wrong condition or column before the answer begins."""
    schema = table.schema()
    missing = [name for name in _columns(call) if name not in schema.names]
    if missing:
        hint = f"the table has {', '.join(schema.names[:20])}"
        raise Invalid("the table has no such column", hint=hint, missing=missing)
    if call.params.where is not None:
        _compile(call, schema).close()


def _columns(call: ApiRequest) -> list[str]:
    given = call.params.columns
    return [name.strip() for name in given.split(",") if name.strip()] if given else []


def _compile(call: ApiRequest, schema: pa.Schema) -> WorkerCondition:
    pool = call.parts.node.query_pool
    return pool.open_condition(call.params.where, schema, tenant=call.caller.tenant)


class _Tail:
    """One tail: from the journal's announcements to one client's events."""

    def __init__(self, call: ApiRequest, table: LakeTable) -> None:
        self._call = call
        self._table = table
        self._loop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()
        self._buffer = TailBuffer(self._wake)
        self._gone = asyncio.ensure_future(wait_for_disconnect(call.receive))

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._arrived.set)

    async def run(self, send: Send) -> None:
        stop_listening = self._table.hot().listen(self._buffer.put)
        try:
            await _begin(send)
            await self._follow(send)
        except ClientGone:
            return
        finally:
            stop_listening()
            self._gone.cancel()

    async def _follow(self, send: Send) -> None:
        end_s = self._loop.time() + self._call.params.seconds
        quiet_s = 0.0
        while (reason := self._end_reason(end_s)) is None:
            await self._wait(min(LOOK_S, max(0.0, end_s - self._loop.time())))
            if not self._arrived.is_set():
                quiet_s += LOOK_S
                if quiet_s >= KEEP_ALIVE_S:
                    quiet_s = 0.0
                    await _send(send, b": quiet\n\n")
                continue
            quiet_s = 0.0
            self._arrived.clear()
            try:
                await self._send_rows(send)
            except ThermoclineError as error:
                reason = "error", problem_of(error, self._call.request_id).detail
                break
            await self._wait_for_more()
        assert reason is not None
        if reason[0] == "slow":
            with suppress(ThermoclineError):
                await self._send_rows(send)
        why = json.dumps({"reason": reason[0], "message": reason[1]})
        await _send(send, f"event: end\ndata: {why}\n\n".encode(), is_last=True)

    def _end_reason(self, end_s: float) -> tuple[str, str] | None:
        if self._gone.done():
            raise ClientGone
        if self._buffer.is_full:
            return "slow", "rows arrived faster than they were read: narrow the condition"
        if self._call.parts.health.is_stopping:
            return "stopping", "the node stops: ask again in a moment"
        if self._loop.time() >= end_s:
            return "time", "the time is over: ask again"
        return None

    async def _wait(self, wait_s: float) -> None:
        """Wait for rows, for the client's end, or for a time."""
        arrived = asyncio.ensure_future(self._arrived.wait())
        either: set[asyncio.Future[object]] = {arrived, self._gone}  # type: ignore[arg-type]
        await asyncio.wait(either, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        arrived.cancel()

    async def _wait_for_more(self) -> None:
        await asyncio.wait({self._gone}, timeout=GATHER_S)

    async def _send_rows(self, send: Send) -> None:
        batches = self._buffer.take()
        if not batches:
            return
        tenant = self._call.caller.tenant
        events = await self._call.parts.work.run(lambda: self._encode(batches), tenant=tenant)
        for event in events:
            await _send(send, event)
            if self._gone.done():
                raise ClientGone

    def _encode(self, batches: Sequence[pa.RecordBatch]) -> list[bytes]:
        """Return the events of the rows that match; called on a thread."""
        state = self._table.cold.state()
        rows = [coerce_batch(batch, state.schema, state.spec) for batch in batches]
        names = _columns(self._call) or state.schema.arrow.names
        if self._call.params.where is not None:
            condition = _compile(self._call, state.schema.arrow)
            try:
                rows = [
                    filter_rows(batch, condition.mask(batch.select(list(condition.columns))))
                    for batch in rows
                ]
            finally:
                condition.close()
        return [
            _encode_rows(batch.select(names).slice(start, ROWS_PER_EVENT))
            for batch in rows
            for start in range(0, batch.num_rows, ROWS_PER_EVENT)
        ]


def _encode_rows(batch: pa.RecordBatch) -> bytes:
    encoder = ENCODERS["ndjson"](batch.schema, AnswerInfo())
    lines = encoder.head() + encoder.rows(batch)
    data = b"".join(b"data: " + line + b"\n" for line in lines.split(b"\n") if line)
    return b"event: rows\n" + data + b"\n"


async def _begin(send: Send) -> None:
    headers = [
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"x-accel-buffering", b"no"),
    ]
    await send_in_time(send, {"type": "http.response.start", "status": 200, "headers": headers})
    await _send(send, b": listening\n\n")


async def _send(send: Send, data: bytes, *, is_last: bool = False) -> None:
    message = {"type": "http.response.body", "body": data, "more_body": not is_last}
    await send_in_time(send, message)
