"""The listener of Arrow Flight SQL: a gRPC server on the node's event loop.

In:   an address, the node's parts, a certificate
Out:  answers of `FlightService`, until it is stopped

- The listener takes the limits of the OTLP listener: connections, sizes of heads, handshakes, and
  windows of flow control, so that a client that sends fills no memory.
- A connection without a call for `IDLE_WAIT_S` is closed; clients open another one by themselves.
- A stop lets running answers end until its deadline, then cancels them.
"""

from typing import Any

import grpc  # type: ignore[import-untyped]

from thermocline.config import Address
from thermocline.errors import Conflict
from thermocline.server.api.context import ApiContext
from thermocline.server.flight.service import PARAMETER_BYTES_MAX, FlightService
from thermocline.server.flight.statement import STATEMENT_BYTES_MAX

STREAMS_MAX = 64  # calls at once on one connection
WINDOW_BYTES = 64 << 10
METADATA_BYTES_MAX = 16 << 10
HANDSHAKE_WAIT_S = 10.0
IDLE_WAIT_S = 600.0
MESSAGE_BYTES_MAX = PARAMETER_BYTES_MAX + STATEMENT_BYTES_MAX


class FlightListener:
    """Serves Flight SQL on the event loop that starts it."""

    def __init__(
        self,
        parts: ApiContext,
        address: Address,
        *,
        connections_max: int,
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        self._parts = parts
        self._address = address
        self._connections_max = connections_max
        self._credentials = credentials
        self._server: Any = None

    @property
    def port(self) -> int:
        """The port of the listening socket."""
        return self._address.port

    async def start(self) -> None:
        """Listen; the server takes calls when this returns. `Conflict` for an address in use."""
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_concurrent_streams", STREAMS_MAX),
                ("grpc.max_allowed_incoming_connections", self._connections_max),
                ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
                ("grpc.max_metadata_size", METADATA_BYTES_MAX),
                ("grpc.absolute_max_metadata_size", METADATA_BYTES_MAX),
                ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_WAIT_S * 1_000)),
                ("grpc.max_connection_idle_ms", int(IDLE_WAIT_S * 1_000)),
                ("grpc.so_reuseport", 0),
            ]
        )
        self._server.add_generic_rpc_handlers((FlightService(self._parts),))
        try:
            if self._credentials is None:
                port = self._server.add_insecure_port(str(self._address))
            else:
                port = self._server.add_secure_port(str(self._address), self._credentials)
        except RuntimeError as error:
            hint = "stop the process that listens there, or choose another port"
            address = str(self._address)
            raise Conflict(
                "the address cannot be listened on", hint=hint, address=address
            ) from error
        self._address = Address(self._address.host, port)
        await self._server.start()

    async def stop(self, deadline_s: float) -> None:
        """Refuse new calls and answer those in progress; at the deadline cancel the rest."""
        if self._server is not None:
            await self._server.stop(deadline_s)
