"""A lean HTTP/1.1 server for requests with large bodies.

In:   connections; routes, each with a check of the head and a handler of the whole request
Out:  the answers, in the order of the requests of each connection

- The number of connections has a limit, from the moment they are accepted (`accept_gate.py`); a
  connection for which there is no place gets 503 and is closed.
- One clock task enforces all deadlines, so that a request costs no timer.
- A stop accepts no more connections, answers the requests in progress, and then closes.

`connection.py` handles one connection.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from email.utils import formatdate

from thermocline.server.access.accept_gate import BACKLOG, AcceptGate, ConnectionPlaces
from thermocline.server.otlp.http1.connection import RETRY_AFTER_S, Connection, ServerState
from thermocline.server.otlp.http1.head import RequestHead, RequestRefused
from thermocline.server.otlp.http1.route import (
    Http1Response,
    Http1Routes,
    HttpLimits,
    encode_response,
    text_refusal,
)
from thermocline.server.otlp.memory_budget import MemoryBudget

_TOO_MANY = RequestRefused(503, "too many connections", retry_after_s=RETRY_AFTER_S)


class Http1Server:
    """Listens on one address and serves its routes."""

    def __init__(
        self,
        routes: Http1Routes,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        budget: MemoryBudget | None = None,
        limits: HttpLimits | None = None,
        refusal: Callable[[RequestRefused, RequestHead | None], Http1Response] = text_refusal,
        observe: Callable[[str, int, float], None] = lambda path, status, seconds: None,
        tls: ssl.SSLContext | None = None,
        places: ConnectionPlaces | None = None,
    ) -> None:
        """`observe` gets the path (empty when no route has it), the status and the seconds."""
        self._shared = ServerState(
            routes,
            budget or MemoryBudget(),
            limits or HttpLimits(),
            refusal,
            observe,
            frozenset(path for _, path in routes),
            places or ConnectionPlaces((limits or HttpLimits()).connections_max),
        )
        self._host, self._port, self._tls = host, port, tls
        self._gate: AcceptGate | None = None
        self._clock: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The port of the listening socket."""
        return self._port

    @property
    def connection_count(self) -> int:
        """The number of open connections."""
        return len(self._shared.connections)

    async def start(self) -> None:
        """Listen; the server accepts connections when this returns."""
        loop = asyncio.get_running_loop()
        self._shared.date = formatdate(usegmt=True)
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listening = socket.create_server((self._host, self._port), family=family, backlog=BACKLOG)
        self._port = listening.getsockname()[1]
        self._gate = AcceptGate(
            listening,
            lambda: Connection(self._shared, loop),
            self._shared.places,
            tls=self._tls,
            refusal=encode_response(
                self._shared.refusal(_TOO_MANY, None), self._shared.date, is_kept=False
            ),
        )
        self._clock = loop.create_task(self._run_clock())

    async def stop(self, deadline_s: float) -> None:
        """Refuse new requests, answer those in progress, close; at the deadline abort the rest."""
        self._shared.is_stopping = True
        if self._gate is not None:
            self._gate.close()
        loop = asyncio.get_running_loop()
        end_s = loop.time() + deadline_s
        connections = self._shared.connections
        for connection in list(connections):
            connection.close_when_idle()
        try:
            while connections and loop.time() < end_s:
                await asyncio.sleep(0.01)
        finally:  # also when the stop is cancelled
            for connection in list(connections):
                connection.abort()
            if self._clock is not None:
                self._clock.cancel()
        if self._clock is not None:
            with suppress(asyncio.CancelledError):
                await self._clock
        while connections:
            await asyncio.sleep(0)  # until the aborted connections are closed

    async def _run_clock(self) -> None:
        loop = asyncio.get_running_loop()
        limits = self._shared.limits
        times = (limits.head_timeout_s, limits.body_timeout_s, limits.idle_timeout_s)
        step_s = min(1.0, *(one / 4 for one in times))
        while True:
            await asyncio.sleep(step_s)
            self._shared.date = formatdate(usegmt=True)
            now_s = loop.time()
            for connection in [c for c in self._shared.connections if c.deadline_s < now_s]:
                connection.end_overdue()
