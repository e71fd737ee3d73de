"""The listener of the API: an ASGI application under uvicorn, on the node's event loop.

In:   an application, an address
Out:  answers, until it is stopped

- The address is bound before the server starts, so that an address in use is an error at once.
- The node handles signals; uvicorn installs no handlers.
- A stop accepts no more connections and waits for requests in progress until its deadline.
- Limits: the number of connections (`accept_gate.py`), the size of a request's head, and the time
  for a head to arrive, so that a silent client cannot keep a connection.
- Trailers behind a body end the connection: no route needs them, and their size has no limit.
- A client that reads less than `SEND_BYTES_MIN` of an answer in `SEND_WAIT_S` is disconnected,
  also when the server has closed its side already.
"""

import asyncio
import math
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from thermocline.config import Address
from thermocline.errors import Conflict, Invalid
from thermocline.server.access.accept_gate import (
    BACKLOG,
    AcceptGate,
    ConnectionPlaces,
    GatedProtocol,
)
from thermocline.server.api.types.route import ADMIT_CONNECTION

IDLE_TIMEOUT_S = 30
HEAD_TIMEOUT_S = 10.0
HEAD_BYTES_MAX = 64 << 10
START_POLL_S = 0.005
SEND_WAIT_S = 30.0
SEND_BYTES_MIN = 64 << 10


class _GatedServer(uvicorn.Server):
    """A server that installs no signal handlers, and accepts connections through a gate."""

    places: ConnectionPlaces

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        for listening in sockets or []:
            gate = AcceptGate(listening, self._make_protocol, self.places, tls=self.config.ssl)
            self.servers.append(gate)  # type: ignore[arg-type]  # only its `close` is called

    def _make_protocol(self) -> GatedProtocol:
        return _BoundedProtocol(self.config, self.server_state, self.lifespan.state)


class _BoundedProtocol(GatedProtocol, HttpToolsProtocol):
    """A connection with limits on a request head's size and time, and on a slow reader."""

    _head_bytes = 0
    _has_head = False
    _is_fed = False
    _idle_bytes = 0
    _timer: asyncio.TimerHandle | None = None
    _progress_timer: asyncio.TimerHandle | None = None
    _unsent_bytes = 0
    _is_drained = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._progress_timer = self.loop.call_later(SEND_WAIT_S, self._check_progress)
        self._timer = self.loop.call_later(HEAD_TIMEOUT_S, self._close_late)

    def abort(self) -> None:
        """Close at once, if the connection is made."""
        if self.transport is not None:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self.place is not None:
            self.place.release()
        if self._progress_timer is not None:
            self._progress_timer.cancel()
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        self._is_drained = True
        super().resume_writing()

    def _check_progress(self) -> None:
        """End a connection whose client reads too little of what is sent."""
        before, self._unsent_bytes = self._unsent_bytes, self.transport.get_write_buffer_size()
        is_slow = self._unsent_bytes > max(0, before - SEND_BYTES_MIN)
        if before and is_slow and not self._is_drained:
            self.transport.abort()
            return
        self._is_drained = False
        self._progress_timer = self.loop.call_later(SEND_WAIT_S, self._check_progress)

    def _close_late(self) -> None:
        if not self._has_head and not self.transport.is_closing():
            self.transport.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._has_head, self._head_bytes, self._idle_bytes = False, 0, 0
        self._stop_timer()
        self._timer = self.loop.call_later(HEAD_TIMEOUT_S, self._close_late)

    def on_headers_complete(self) -> None:
        self._has_head = True
        self._stop_timer()
        if self.place is not None and self.place.tenant is None:
            self.scope[ADMIT_CONNECTION] = self.place.admit  # type: ignore[literal-required]
        super().on_headers_complete()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._has_head:
            self.transport.abort()
        else:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._is_fed, self._idle_bytes = True, 0
        super().on_body(body)

    def data_received(self, data: bytes) -> None:
        self._is_fed = False
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._has_head:
            self._idle_bytes += 0 if self._is_fed else len(data)
            if self._idle_bytes > HEAD_BYTES_MAX:
                self.transport.abort()  # a trailer without an end
        else:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self.send_400_response("The head of the request is too large.")


class ApiListener:
    """Serves an ASGI application."""

    def __init__(
        self,
        app: Any,
        address: Address,
        *,
        connections_max: int,
        tls: ssl.SSLContext | None = None,
        certificate: str = "",
        places: ConnectionPlaces | None = None,
    ) -> None:
        self._address = address
        self._socket: socket.socket | None = None
        self._serving: asyncio.Task[None] | None = None
        config = uvicorn.Config(
            app,
            loop="none",
            http=_BoundedProtocol,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=IDLE_TIMEOUT_S,
            ssl_certfile=certificate or None,
            ssl_context_factory=None if tls is None else lambda *_: tls,
        )
        self._server = _GatedServer(config)
        self._server.places = places or ConnectionPlaces(connections_max)

    @property
    def port(self) -> int:
        """The port of the listening socket."""
        return self._address.port

    async def start(self) -> None:
        """Listen; the server answers requests when this returns."""
        self._socket = bind_socket(self._address)
        self._address = Address(self._address.host, self._socket.getsockname()[1])
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        while not self._server.started:
            if self._serving.done():
                await self._serving  # raises the error of the start
                raise Invalid("the API did not start", hint="see the node's log")
            await asyncio.sleep(START_POLL_S)

    async def stop(self, deadline_s: float) -> None:
        """Refuse new requests and answer those in progress; at the deadline cancel the rest."""
        if self._serving is None:
            return
        self._server.config.timeout_graceful_shutdown = max(1, math.ceil(deadline_s))
        self._server.should_exit = True
        done, _ = await asyncio.wait({self._serving}, timeout=deadline_s + 2)
        if not done:
            self._serving.cancel()
        with suppress(asyncio.CancelledError):
            await self._serving


def bind_socket(address: Address) -> socket.socket:
    """Return a socket that listens on the address; `Conflict` when the address is in use."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server((address.host, address.port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise bind_error(address, error) from error


def bind_error(address: Address, error: OSError) -> Conflict:
    """Return the error of an address that cannot be bound."""
    return Conflict(
        "the address cannot be listened on",
        hint="stop the process that listens there, or choose another port",
        address=str(address),
        why=error.strerror or str(error),
    )
