"""Runs the query of a client: waits for a turn, reads batches on a thread, sends them in time.

In:   a `FlightStatement`, its caller, a function that sends bytes
Out:  the answer as messages of Flight; an error before or after the first of them

- It is the way of the HTTP API: the same quota, queue, workers, deadline and limits.
- One batch is in memory. The worker blocks until the client has taken it, and a client that takes
  none for `SEND_WAIT_S` counts as disconnected.
- When the client cancels its call or disconnects, the query ends within a second.
- The schema of an answer is asked for with the query around which stands a limit of no rows. A text
  that cannot stand there (EXPLAIN, definitions) is started itself, and stopped at its first batch.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import pyarrow as pa

from thermocline.errors import Invalid
from thermocline.query.worker.running_query import ResultStream
from thermocline.server.access.guard import Caller
from thermocline.server.api.context import ApiContext
from thermocline.server.api.handle.query import (
    ANSWER_BYTES_MAX,
    SETTLE_WAIT_S,
    answer_too_large,
    record_end,
)
from thermocline.server.api.http.incoming import ClientGone
from thermocline.server.api.http.reply import SEND_WAIT_S
from thermocline.server.flight.messages import encode_flight_data
from thermocline.server.flight.parameter_types import HINT_TASK, parameter_schema
from thermocline.server.flight.statement import FlightStatement, encode_row

PARAMETERS_MAX = 1_000

Result = TypeVar("Result")
SendBytes = Callable[[bytes], Awaitable[None]]


class FlightQuery:
    """One query of a caller, from its admission to its end."""

    def __init__(self, parts: ApiContext, caller: Caller, statement: FlightStatement) -> None:
        self._parts = parts
        self._caller = caller
        self._statement = statement
        self._reading: asyncio.Future[Any] | None = None

    async def send_answer(self, query_id: str, send: SendBytes) -> None:
        """Run the query and send its whole answer."""

        async def send_all(answer: ResultStream) -> None:
            batches = self._encode(answer)
            while message := await self._on_thread(lambda: next(batches, b"")):
                await send_in_time(send, message)

        await self._run(query_id, send_all)

    async def read_schema(self) -> pa.Schema:
        """Return the schema of the answer, without reading rows."""

        async def read(answer: ResultStream) -> pa.Schema:
            return answer.schema

        return await self._run(None, read)

    async def _run(
        self, query_id: str | None, work: Callable[[ResultStream], Awaitable[Result]]
    ) -> Result:
        """Run the query while the tenant's quota allows it, give its stream to `work`, end it."""
        pool = self._parts.node.query_pool
        with self._parts.quota.of(self._caller.tenant).count_query():
            admitted = pool.queue.admit(query_id, self._caller.tenant)
            error: BaseException | None = None
            try:
                await asyncio.wrap_future(admitted.turn)
                answer = await self._on_thread(
                    lambda: pool.run(
                        admitted,
                        self._statement.sql,
                        self._statement.values,
                        self._parts.node.lake(self._caller.tenant).references(None),
                        pool.timeout_s,
                    )
                )
                return await work(answer)
            except BaseException as caught:
                error = caught
                raise
            finally:
                if self._reading is not None and not self._reading.done():
                    pool.queue.cancel(admitted.query_id, admitted.tenant)
                    await asyncio.wait({self._reading}, timeout=SETTLE_WAIT_S)
                if self._reading is None or self._reading.done():
                    pool.queue.leave(admitted)
                record_end(self._parts, admitted, error)

    async def _on_thread(self, work: Callable[[], Result]) -> Result:
        """Run work on a thread that reads answers; if the call is cancelled, it goes on there."""
        self._reading = self._parts.reading.start(work, tenant=self._caller.tenant)
        return await asyncio.shield(self._reading)

    def _encode(self, answer: ResultStream) -> Iterator[bytes]:
        """Yield the messages of an answer: its schema, then its rows."""
        quota = self._parts.quota.of(self._caller.tenant)
        rows = size_bytes = 0
        encoder = StreamEncoder(answer.schema)
        yield encoder.head()
        for batch in answer:
            rows += batch.num_rows
            quota.check_rows(rows)
            for message in encoder.encode(batch):
                size_bytes += len(message)
                if size_bytes > ANSWER_BYTES_MAX:
                    raise answer_too_large()
                yield message


async def describe(parts: ApiContext, caller: Caller, sql: str) -> FlightStatement:
    """Return a statement with the names of its parameters and the schema of its answer."""
    # The gate reads the whole text, so what a client writes gains no rights here.
    inner = sql.rstrip().removesuffix(";")
    bare = f"SELECT * FROM (\n{inner}\n) AS described LIMIT 0"  # noqa: S608
    names: tuple[str, ...] = ()
    try:
        schema, names = await _describe(parts, caller, bare)
    except Invalid:
        # The text may be one that stands alone; if it is wrong, the error is about the text itself.
        schema, names = await _describe(parts, caller, sql)
    parameters = b""
    if names:
        node = parts.node
        told = await parts.reading.run(
            lambda: node.query_pool.run_task(HINT_TASK, sql.encode(), tenant=caller.tenant)
        )
        found = parameter_schema(names, told, node.lake(caller.tenant))
        parameters = bytes(found.serialize())
    return FlightStatement(sql, names, schema=bytes(schema.serialize()), parameters=parameters)


async def _describe(
    parts: ApiContext, caller: Caller, sql: str
) -> tuple[pa.Schema, tuple[str, ...]]:
    try:
        return await FlightQuery(parts, caller, FlightStatement(sql)).read_schema(), ()
    except Invalid as error:
        names = error.facts.get("missing")
        if not isinstance(names, list) or not names or len(names) > PARAMETERS_MAX:
            raise
    ordered = sorted(names, key=lambda name: (len(name), name) if name.isdecimal() else (0, name))
    nulls = pa.table({name: pa.nulls(1) for name in ordered})
    row = encode_row(nulls, tuple(ordered))
    query = FlightQuery(parts, caller, FlightStatement(sql, row=row))
    return await query.read_schema(), tuple(ordered)


async def send_in_time(send: SendBytes, message: bytes) -> None:
    """Send a message; `ClientGone` when the client does not take it in time."""
    try:
        await asyncio.wait_for(send(message), SEND_WAIT_S)
    except TimeoutError as error:
        raise ClientGone from error


class StreamEncoder:
    """Writes batches as messages of Flight, through Arrow's own writer of streams."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._sink = _ByteSink()
        self._writer = pa.ipc.new_stream(pa.PythonFile(self._sink, "w"), schema)

    def head(self) -> bytes:
        """Return the message of the schema."""
        _, header, body = next(_split_messages(bytes(self._schema.serialize())))
        return encode_flight_data(header, body)

    def encode(self, batch: pa.RecordBatch) -> list[bytes]:
        """Return the messages of a batch: its dictionaries, if it has new ones, and its rows."""
        self._writer.write_batch(batch)
        # The writer writes the schema with the first batch, and the head has it already.
        found = _split_messages(self._sink.drain())
        return [encode_flight_data(*one[1:]) for one in found if one[0] != "schema"]


def _split_messages(data: bytes) -> Iterator[tuple[str, pa.Buffer, pa.Buffer]]:
    """Yield the messages of a stream: kind, header, body."""
    reader = pa.ipc.MessageReader.open_stream(pa.BufferReader(data))
    while True:
        try:
            one = reader.read_next_message()
        except StopIteration:
            return
        yield one.type, one.metadata, one.body


class _ByteSink:
    """A writable file that returns what was written since the last call."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._parts.append(data)
        return len(data)

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def drain(self) -> bytes:
        data, self._parts = b"".join(self._parts), []
        return data
