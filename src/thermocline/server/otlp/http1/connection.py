"""One connection of an HTTP/1.1 server: its phase within a request, and the phase's deadline.

In:   bytes from the transport, in the order of the wire
Out:  a task for each whole request; its answer, or a refusal, in the same order

- A body with a length is read from the socket straight into the buffer that the handler gets: it
  is not copied. The body's limit and the memory budget are enforced while it arrives.
- A request is refused by its head where possible: the key is checked before any of the body is
  read.
- The connection handles one request at a time; pipelined requests wait unread.
- Slow clients are disconnected: a head has a deadline, and a body has one that only progress
  extends: it must bring `body_bytes_per_s_min` over each `body_timeout_s`.
- When a body is refused midway, the server sends the answer and discards the following bytes for a
  while: a client that is cut off while it sends would not read the answer.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import httptools
import numpy as np

from thermocline.errors import Overloaded
from thermocline.ingest.inflate import Data
from thermocline.server.access.accept_gate import ConnectionPlaces, GatedProtocol
from thermocline.server.otlp.http1.head import (
    ParserCallbacks,
    RequestHead,
    RequestRefused,
    find_head_end,
    parse_head,
)
from thermocline.server.otlp.http1.route import (
    Http1Request,
    Http1Response,
    Http1Route,
    Http1Routes,
    HttpLimits,
    encode_response,
    no_route_refusal,
)
from thermocline.server.otlp.memory_budget import MemoryBudget, Reservation

READ_BYTES = 256 << 10
HEAD_READ_BYTES = 4 << 10
FIRST_BODY_BYTES = 1 << 20
FRAME_BYTES_MAX = 1 << 20
DISCARD_BYTES_MAX = 256 << 20
RETRY_AFTER_S = 1

_HEAD, _BODY, _CHUNKS, _BUSY, _DISCARD = range(5)
_NEVER = float("inf")


@dataclass(slots=True)
class ServerState:
    """The state that all connections of a server share."""

    routes: Http1Routes
    budget: MemoryBudget
    limits: HttpLimits
    refusal: Callable[[RequestRefused, RequestHead | None], Http1Response]
    observe: Callable[[str, int, float], None]
    paths: frozenset[str] = frozenset()
    places: ConnectionPlaces = field(default_factory=lambda: ConnectionPlaces(1))
    connections: "set[Connection]" = field(default_factory=set)
    # Connections share one buffer: the transport requests it, fills it and reports the bytes
    # within one step of the event loop.
    scratch: memoryview = field(default_factory=lambda: memoryview(bytearray(READ_BYTES)))
    date: str = ""
    is_stopping: bool = False


class Connection(GatedProtocol, asyncio.BufferedProtocol):
    """One connection: its phase within a request, and the phase's deadline."""

    def __init__(self, shared: ServerState, loop: asyncio.AbstractEventLoop) -> None:
        self._shared = shared
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._phase = _HEAD
        self.deadline_s = _NEVER
        self._pending = b""
        self._head: RequestHead | None = None
        self._callbacks = ParserCallbacks()
        self._route: Http1Route | None = None
        self._admitted: Any = None
        self._body = _new_buffer(0)
        self._received = self._counted = 0
        self._reservation: Reservation | None = None
        self._began_s = 0.0
        self._is_paused = self._is_full = False
        self._task: asyncio.Task[None] | None = None

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop has its own class
        shared = self._shared
        shared.connections.add(self)
        if shared.is_stopping:
            self._refuse(RequestRefused(503, "the node is stopping", retry_after_s=RETRY_AFTER_S))
        else:
            self._await_head()

    def connection_lost(self, _: Exception | None) -> None:
        self._shared.connections.discard(self)
        self._transport = None
        if self.place is not None:
            self.place.release()
        if self._phase != _BUSY:
            self._release()  # a running handler releases its memory when it ends

    def eof_received(self) -> bool:
        if self._phase in (_BODY, _CHUNKS):
            self._refuse(RequestRefused(400, "the body ends before its length"))
            return True
        if self._phase == _BUSY and self._head is not None:
            self._head.is_keep_alive = False
            return True
        return False

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._read_next()

    def get_buffer(self, _: int) -> memoryview:
        if self._phase == _BODY:
            return self._body[self._received :]
        # Read a head in small pieces: only the part of a body that comes with it is copied.
        return self._shared.scratch[: HEAD_READ_BYTES if self._phase == _HEAD else READ_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        if self._phase == _BODY:
            self._received += nbytes
            self._continue_body()
        elif self._phase == _CHUNKS:
            self._feed_chunks(bytes(self._shared.scratch[:nbytes]))
        elif self._phase == _DISCARD:
            self._received += nbytes
            if self._received > DISCARD_BYTES_MAX:
                self.abort()
        else:
            self._pending += bytes(self._shared.scratch[:nbytes])
            if self._phase == _BUSY:
                self._pause_reading()
            else:
                self._read_head()

    # From a head to an answer.

    def _await_head(self) -> None:
        self._phase = _HEAD
        self._head = None
        self.deadline_s = self._loop.time() + self._shared.limits.idle_timeout_s

    def _read_head(self) -> None:
        """Read a head from the pending bytes, and begin its body."""
        if self._began_s == 0.0:
            if self._pending.startswith(b"\r\n"):
                self._pending = self._pending[2:]  # some old clients send one more after a body
            if not self._pending:
                return
            self._began_s = self._loop.time()
            self.deadline_s = self._began_s + self._shared.limits.head_timeout_s
        try:
            end = find_head_end(self._pending)
            if end < 0:
                return
            head, self._callbacks = parse_head(self._pending[:end])
            self._head = head
            self._pending = self._pending[end:]
            self._begin_body(head)
        except RequestRefused as refused:
            self._refuse(refused)
        except Exception as error:  # noqa: BLE001  a bug in a head's check must not end the server
            self._refuse(self._report_bug(error))

    def _begin_body(self, head: RequestHead) -> None:
        shared = self._shared
        self._route = shared.routes.get((head.method, head.path))
        if self._route is None:
            raise no_route_refusal(shared.routes, head)
        if head.length is not None and head.length > shared.limits.body_bytes_max:
            raise _too_large()
        head.peer = "" if self.place is None else self.place.peer
        self._admitted = self._route.admit(head)
        self._reservation = self._reserve(getattr(self._admitted, "tenant", ""))
        if head.expects_continue and not self._pending and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._received = self._counted = 0
        self.deadline_s = self._loop.time() + shared.limits.body_timeout_s
        first, self._pending = self._pending, b""
        if head.is_chunked:
            self._phase = _CHUNKS
            self._feed_chunks(first)
            return
        length = head.length or 0
        self._pending = first[length:]
        first = first[:length]
        self._phase = _BODY
        self._grow_buffer(min(length, max(FIRST_BODY_BYTES, len(first))))
        self._body[: len(first)] = first
        self._received = len(first)
        self._continue_body()

    def _reserve(self, tenant: str) -> Reservation:
        try:
            if self.place is not None and self.place.tenant is None:
                self.place.admit(tenant)
            return self._shared.budget.reserve(tenant=tenant)
        except Overloaded as error:
            raise RequestRefused(429, error.message, retry_after_s=RETRY_AFTER_S) from error

    def _grow_buffer(self, capacity: int) -> None:
        assert self._reservation is not None
        try:
            self._reservation.grow(capacity - len(self._body))
        except Overloaded as error:
            raise RequestRefused(429, error.message, retry_after_s=RETRY_AFTER_S) from error
        grown = _new_buffer(capacity)
        grown[: self._received] = self._body[: self._received]
        self._body = grown

    def _continue_body(self) -> None:
        """Continue a body of known length: hand it over at its end, else grow the buffer."""
        assert self._head is not None
        length = self._head.length or 0
        if self._received == length:
            self._start_answer(self._body)
        elif self._received == len(self._body):
            try:
                self._grow_buffer(min(length, 2 * len(self._body)))
            except RequestRefused as refused:
                self._refuse(refused)

    def _feed_chunks(self, data: bytes) -> None:
        """Continue a chunked body."""
        assert self._head is not None
        assert self._reservation is not None
        reading = self._callbacks
        try:
            if data:
                self._head.parser.feed_data(data)
        except httptools.HttpParserError:
            if not reading.is_complete:
                self._refuse(RequestRefused(400, "the chunks of the body are malformed"))
                return
            self._head.is_keep_alive = False  # the bytes behind the request are not a request
        # Count the framing around and behind the chunks too: the parser keeps some of it.
        self._received += len(data)
        limit_bytes = self._shared.limits.body_bytes_max
        if len(reading.body) > limit_bytes or self._received > limit_bytes + FRAME_BYTES_MAX:
            self._refuse(_too_large())
            return
        try:
            self._reservation.grow(max(0, self._received - self._reservation.size_bytes))
        except Overloaded as error:
            self._refuse(RequestRefused(429, error.message, retry_after_s=RETRY_AFTER_S))
            return
        if not reading.is_complete:
            return
        if reading.message_count > 1:
            self._head.is_keep_alive = False  # the parser consumed the next request's bytes
        self._start_answer(reading.body)

    def _has_progress(self) -> bool:
        """Extend the deadline of a body of which enough has arrived since the last one."""
        limits = self._shared.limits
        arrived, self._counted = self._received - self._counted, self._received
        self.deadline_s += limits.body_timeout_s
        return arrived >= limits.body_bytes_per_s_min * limits.body_timeout_s

    def _start_answer(self, body: Data) -> None:
        assert self._head is not None
        request = Http1Request(self._head, body, self._admitted)
        self._phase = _BUSY
        self.deadline_s = _NEVER
        self._body = _new_buffer(0)
        self._task = self._loop.create_task(self._run_answer(request))

    async def _run_answer(self, request: Http1Request) -> None:
        assert self._route is not None
        try:
            response = await self._route.answer(request)
        except RequestRefused as refused:
            response = self._shared.refusal(refused, request.head)
        except Exception as error:  # noqa: BLE001  a bug in one handler must not end the server
            response = self._shared.refusal(self._report_bug(error), request.head)
        self._release()
        self._send(response)
        self._began_s = 0.0
        if self._transport is None:
            return
        if not request.head.is_keep_alive or self._shared.is_stopping:
            self._transport.close()
            return
        self._await_head()
        self._read_next()

    def _report_bug(self, error: Exception) -> RequestRefused:
        """Report a bug to the event loop; return the refusal that the client gets."""
        self._loop.call_exception_handler({"message": "an answer failed", "exception": error})
        return RequestRefused(503, "the node cannot answer now", retry_after_s=RETRY_AFTER_S)

    def _read_next(self) -> None:
        """Read the next request, unless the client has still to read the last answer."""
        if self._is_full or self._transport is None or self._phase != _HEAD:
            return
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
        if self._pending:
            self._read_head()

    def _pause_reading(self) -> None:
        if not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()

    # Answers and ends.

    def _send(self, response: Http1Response) -> None:
        head, shared = self._head, self._shared
        path = head.path if head is not None and head.path in shared.paths else ""
        spent_s = self._loop.time() - self._began_s if self._began_s else 0.0
        shared.observe(path, response.status, spent_s)
        if self._transport is None or self._transport.is_closing():
            return
        is_kept = head is not None and head.is_keep_alive and not shared.is_stopping
        self._transport.write(encode_response(response, shared.date, is_kept=is_kept))

    def _refuse(self, refused: RequestRefused) -> None:
        """Answer an incomplete request with an error, then close the connection."""
        head = self._head if self._began_s and self._phase != _BUSY else None
        if head is not None:
            head.is_keep_alive = False
        self._release()
        self._send(self._shared.refusal(refused, head))
        self._body, self._pending, self._callbacks = _new_buffer(0), b"", ParserCallbacks()
        self._phase, self._received = _DISCARD, 0
        self.deadline_s = self._loop.time() + self._shared.limits.discard_timeout_s
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()
        elif self._transport is not None:
            self._transport.close()

    def _release(self) -> None:
        if self._reservation is not None:
            self._reservation.release()
            self._reservation = None

    def end_overdue(self) -> None:
        """End a connection whose deadline has passed, unless its body makes progress."""
        if self._phase == _DISCARD or (self._phase == _HEAD and not self._began_s):
            self.abort()
        elif self._phase == _HEAD:
            self._refuse(RequestRefused(408, "the request did not arrive in time"))
        elif not self._has_progress():
            # OTLP clients drop a request that gets 408, and the network may be the slow part.
            late = "the body did not arrive in time"
            self._refuse(RequestRefused(503, late, retry_after_s=RETRY_AFTER_S))

    def close_when_idle(self) -> None:
        """Close now if no request has begun; otherwise after the answer."""
        if self._phase == _HEAD and not self._began_s and self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()


def _new_buffer(size_bytes: int) -> memoryview:
    """Return an uninitialised buffer for a body."""
    return np.empty(size_bytes, np.uint8).data


def _too_large() -> RequestRefused:
    return RequestRefused(413, "the body is larger than the limit")
