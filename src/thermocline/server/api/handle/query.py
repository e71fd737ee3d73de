"""SQL over HTTP: streams a query's answer, and lists and cancels running queries.

In:   a `QueryRequest` and the caller's lake
Out:  bytes as the engine produces them; a failed answer cannot be mistaken for a complete one

- The first batch is read before the first byte is sent: a failure until then is an ordinary error.
- A failure after the first byte ends the connection without the body's end, so no client mistakes
  it for a shorter answer. The error is in the body, if the format has a place for it, and at
  `/api/v1/queries/{id}`.
- When the client closes the connection, the query ends within a second, at any stage. A client
  that does not read for `SEND_WAIT_S` counts as disconnected.
- A query ends at the smaller of its client's timeout and the node's.
- A query waits in the queue of the query pool, without a thread, before it runs.
- With `rows_max` one row more is read, so that a header can say whether there are more rows. An
  answer past the node's limits is an error, never a shorter answer.
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

from starlette.types import Send

from thermocline.errors import (
    NotFound,
    Overloaded,
    QueryCancelled,
    QueryTimeout,
    ThermoclineError,
)
from thermocline.query.report import public_report
from thermocline.query.worker.pool import QueryPool
from thermocline.query.worker.protocol import AnswerRequest
from thermocline.query.worker.running_query import EncodedAnswer, RunningQuery
from thermocline.server.api.context import ApiContext
from thermocline.server.api.http.encode import content_type
from thermocline.server.api.http.incoming import ClientGone, wait_for_disconnect
from thermocline.server.api.http.parameters import parse_parameters
from thermocline.server.api.http.problem import (
    HttpStatusError,
    problem_bytes,
    problem_of,
)
from thermocline.server.api.http.reply import choose_format, send_in_time
from thermocline.server.api.types.response_types import Queries, QueryState
from thermocline.server.api.types.route import ApiRequest
from thermocline.show.answer_format import encode_failure

SETTLE_WAIT_S = 15.0
ANSWER_BYTES_MAX = 4 << 30
REPORT_HEADER_BYTES_MAX = 8_192

Result = TypeVar("Result")


async def query(call: ApiRequest, send: Send) -> None:
    """Answer one query on this connection."""
    if call.http_version == "1.0":
        hint = "use HTTP/1.1: with HTTP/1.0 a client cannot detect a truncated answer"
        raise HttpStatusError("a streamed answer needs HTTP/1.1", status=400, hint=hint)
    form = choose_format(call, call.body.format)
    pool = call.parts.node.query_pool
    with call.parts.quota.of(call.caller.tenant).count_query():
        admitted = pool.queue.admit(call.body.query_id, call.caller.tenant)
        answering = _QueryAnswer(call, pool, admitted, form)
        error: BaseException | None = None
        try:
            await answering.wait_for_turn()
            await answering.run(send)
        except BaseException as caught:
            error = caught
            raise
        finally:
            await answering.close()
            record_end(call.parts, admitted, error or answering.error, call.request_id)


def record_end(
    parts: ApiContext, one: RunningQuery, error: BaseException | None, request_id: str = ""
) -> None:
    """Count a query's outcome, and keep its error for `GET /api/v1/queries/{id}`."""
    outcome, failed = "ok", None
    seconds = time.monotonic() - one.started_s
    if isinstance(error, ClientGone | asyncio.CancelledError):
        outcome = "gone"
    elif error is not None:
        kinds = {QueryTimeout: "timeout", Overloaded: "overloaded", QueryCancelled: "cancelled"}
        outcome = next((name for kind, name in kinds.items() if isinstance(error, kind)), "error")
    if isinstance(error, ThermoclineError):
        error.facts["query_id"] = one.query_id
    if isinstance(error, Exception) and not isinstance(error, ClientGone):
        problem = problem_of(error, request_id)
        failed = QueryState(one.query_id, "failed", round(seconds, 3), problem)
    parts.failed_queries.record_end(one.tenant, one.query_id, failed)
    parts.metrics.count_query(outcome, seconds)


class _QueryAnswer:
    """Streams one answer from the engine, through an encoder, to a client that may disconnect."""

    def __init__(
        self, call: ApiRequest, pool: QueryPool, admitted: RunningQuery, form: str
    ) -> None:
        self._call = call
        self._pool = pool
        self._query = admitted
        self._form = form
        self._gone = asyncio.ensure_future(wait_for_disconnect(call.receive))
        self._doing: asyncio.Future[Any] | None = None
        self.is_truncated: bool | None = None
        self.error: BaseException | None = None

    async def wait_for_turn(self) -> None:
        """Wait until the query may run; raises the error when it is cancelled or waits too long."""
        turn = asyncio.wrap_future(self._query.turn)
        await asyncio.wait({turn, self._gone}, return_when=asyncio.FIRST_COMPLETED)
        if not turn.done():
            turn.cancel()
            raise ClientGone
        await turn

    async def run(self, send: Send) -> None:
        """Send the answer; raise an error that occurs before its first byte."""
        answer = await self._run_while_connected(self._begin)
        body = self._parts(answer)
        first = await self._run_while_connected(lambda: next(body, b""))
        headers = self._headers(answer)
        await self._send(send, {"type": "http.response.start", "status": 200, "headers": headers})
        await self._stream(send, body, first)

    def _begin(self) -> EncodedAnswer:
        body, most_s = self._call.body, self._pool.timeout_s
        return self._pool.run_encoded(
            self._query,
            body.sql,
            parse_parameters(body.params),
            self._call.lake.references(body.mode),
            # A client may ask for less than the node's limit, never for more.
            most_s if body.timeout_s is None else min(body.timeout_s, most_s),
            AnswerRequest(self._form, self._query.query_id, body.rows_max),
        )

    def _parts(self, answer: EncodedAnswer) -> Iterator[bytes]:
        """Yield an answer's bytes while they are within the limits; an empty part is the end."""
        size_bytes = 0
        quota = self._call.parts.quota.of(self._call.caller.tenant)
        for part in answer:
            quota.check_rows(answer.row_count)
            size_bytes += len(part)
            if size_bytes > ANSWER_BYTES_MAX:
                raise answer_too_large()
            if part:
                yield bytes(part)

    def _headers(self, answer: EncodedAnswer) -> list[tuple[bytes, bytes]]:
        self.is_truncated = answer.is_truncated
        read = public_report(answer.report)
        report = json.dumps(read, separators=(",", ":")).encode()  # ASCII alone
        if len(report) > REPORT_HEADER_BYTES_MAX:
            report = b'{"tables_left_off":%d}' % len(read["tables"])
        headers = [
            (b"content-type", content_type(self._form).encode()),
            (b"x-query-id", self._query.query_id.encode()),
            (b"x-thermocline-report", report),
        ]
        if self.is_truncated is not None:
            headers.append((b"x-thermocline-truncated", b"true" if self.is_truncated else b"false"))
        return headers

    async def _stream(self, send: Send, body: Iterator[bytes], part: bytes) -> None:
        """Send all parts, then the end that completes the body."""
        try:
            while part:
                await self._send(send, _body_message(part, is_last=False))
                part = await self._run_while_connected(lambda: next(body, b""))
        except ClientGone as error:
            self.error = error
        except Exception as error:  # noqa: BLE001  the status is sent, so only the body can tell
            # The body gets no end: uvicorn closes the connection, and the client sees a truncation.
            self.error = error
            await self._send_error(send, error)
        else:
            with suppress(ClientGone):
                await self._send(send, _body_message(b"", is_last=True))

    async def _send_error(self, send: Send, error: Exception) -> None:
        request_id = self._call.request_id
        if isinstance(error, ThermoclineError):
            error.facts["query_id"] = self._query.query_id
        else:
            kind = type(error).__name__
            self._call.parts.log.event(
                "request failed", request_id=request_id, error=kind, why=str(error)
            )
        words = encode_failure(self._form, problem_bytes(problem_of(error, request_id)))
        if words:
            with suppress(ClientGone):
                await self._send(send, _body_message(words, is_last=False))

    async def _run_while_connected(self, work: Callable[[], Result]) -> Result:
        """Run work on a thread; if the client disconnects first, end the query."""
        doing = self._doing = self._call.parts.reading.start(work, tenant=self._query.tenant)
        await asyncio.wait({doing, self._gone}, return_when=asyncio.FIRST_COMPLETED)
        if not self._gone.done():
            return await doing
        await self._cancel()
        raise ClientGone

    async def _cancel(self) -> None:
        """Cancel the query, and wait for the thread that reads its answer."""
        if self._doing is not None and not self._doing.done():
            self._pool.queue.cancel(self._query.query_id, self._query.tenant)
            await asyncio.wait({self._doing}, timeout=SETTLE_WAIT_S)

    async def _send(self, send: Send, message: Any) -> None:
        await send_in_time(send, message)
        if self._gone.done():
            raise ClientGone

    async def close(self) -> None:
        """End the query. A thread that still reads its answer ends it when it is done."""
        self._gone.cancel()
        await self._cancel()  # the server may stop while a thread reads
        if self._doing is None or self._doing.done():
            self._pool.queue.leave(self._query)


def _body_message(data: bytes, *, is_last: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": not is_last}


def answer_too_large() -> Overloaded:
    """Return the error of an answer that is larger than the limit."""
    return Overloaded(
        "the answer is larger than the limit",
        hint="select fewer rows, or only the first ones with rows_max",
        bytes_max=ANSWER_BYTES_MAX,
    )


def queries(call: ApiRequest) -> Queries:
    """Return the tenant's queued and running queries."""
    found = call.parts.node.query_pool.queue.of_tenant(call.caller.tenant)
    return Queries([_running_state(one) for one in found])


def query_state(call: ApiRequest) -> QueryState:
    """Return a query's state; `NotFound` when it has ended without an error."""
    tenant, query_id = call.caller.tenant, call.path["query_id"]
    running = call.parts.node.query_pool.queue.find(query_id, tenant)
    if running is not None:
        return _running_state(running)
    failed = call.parts.failed_queries.find(tenant, query_id)
    if failed is None:
        raise _not_running()
    return failed


def cancel(call: ApiRequest) -> None:
    """Cancel a running or queued query."""
    queue = call.parts.node.query_pool.queue
    if not queue.cancel(call.path["query_id"], call.caller.tenant):
        raise _not_running()


def _running_state(one: RunningQuery) -> QueryState:
    return QueryState(one.query_id, "running", round(time.monotonic() - one.started_s, 3))


def _not_running() -> NotFound:
    hint = "the query has ended, or the id is wrong"
    return NotFound("no query of this id is running", hint=hint)
