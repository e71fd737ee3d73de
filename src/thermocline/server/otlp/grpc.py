"""OTLP over gRPC: the three `Export` calls, on the bytes of their messages.

In:   unary calls, compressed with gzip or uncompressed
Out:  responses; or a status, with `google.rpc.RetryInfo` if the client should send again

- A call's key is checked from its metadata, before its message is read: a client without a valid
  key can only fill the connection's flow-control window.
- `READING_MAX` messages are read at once, each within `READ_WAIT_S`. Tenants share these turns
  (`fair_share.py`): streams of one that send nothing never delay the exports of another.
- The number of connections has a limit, and a connection without a call for `IDLE_WAIT_S` is
  closed.
- The lane's workers inflate a message, within the limit; gRPC does not. So a call that waits for
  its admission holds no more memory than came over the wire.
- gRPC accepts only gzip and identity; it refuses every other `grpc-encoding` with `UNIMPLEMENTED`.
  See `_coding`.
- A message that is too large gets `RESOURCE_EXHAUSTED` without `RetryInfo`, which is final. A
  temporary error gets `UNAVAILABLE` with `RetryInfo`.
- Work on a message continues after its client disconnects: the rows may be durable already.
"""

import asyncio
import time as clock
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc  # type: ignore[import-untyped]

from thermocline.error_table import UNAVAILABLE
from thermocline.errors import Conflict, Invalid, ThermoclineError, Unavailable
from thermocline.ingest.otlp.answer import encode_failure, encode_success
from thermocline.ingest.otlp.batch_decode import RequestBody
from thermocline.server.access.fair_share import FairTurns
from thermocline.server.otlp.grpc_health import HealthService
from thermocline.server.otlp.ingest_queue import INGEST_SCOPE, Receiver
from thermocline.server.otlp.memory_budget import Reservation
from thermocline.server.otlp.status import OtlpStatus, otlp_status

LISTENER = "otlp_grpc"
MESSAGE_BYTES_MAX = 64 << 20
STREAMS_MAX = 256  # calls at once on one connection
CONNECTIONS_MAX = 1_024
WINDOW_BYTES = 64 << 10  # the flow-control window: bytes that a client may send unread
METADATA_BYTES_MAX = 16 << 10
HANDSHAKE_WAIT_S = 10.0
IDLE_WAIT_S = 300.0
READING_MAX = 64
CALLS_WAITING_MAX = 1_024
READ_WAIT_S = 30.0
_IDENTITY_AND_GZIP = 1 << 0 | 1 << 2  # gRPC's numbers of algorithms; 1 is deflate
_GZIP_FIRST_BYTE = 0x1F
_SERVICES = {
    "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export": "metrics",
    "/opentelemetry.proto.collector.logs.v1.LogsService/Export": "logs",
    "/opentelemetry.proto.collector.trace.v1.TraceService/Export": "traces",
}
_CODES = {code.value[0]: code for code in grpc.StatusCode}

Export = Callable[[AsyncIterator[bytes], Any], Awaitable[bytes]]


class OtlpGrpc:
    """The listener of OTLP over gRPC; it runs on the event loop that starts it."""

    def __init__(
        self,
        receiver: Receiver,
        *,
        port: int,
        host: str = "127.0.0.1",
        message_bytes_max: int = MESSAGE_BYTES_MAX,
        connections_max: int = CONNECTIONS_MAX,
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        self._receiver = receiver
        self._host, self._port = host, port
        self._message_bytes_max = message_bytes_max
        self._connections_max = connections_max
        self._credentials = credentials
        self._server: Any = None
        self.reading = FairTurns(READING_MAX, CALLS_WAITING_MAX)
        self._is_stopping = False

    @property
    def port(self) -> int:
        """The port of the listening socket."""
        return self._port

    async def start(self) -> None:
        """Listen; the server accepts calls when this returns. `Conflict` for an address in use."""
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", self._message_bytes_max),
                ("grpc.max_concurrent_streams", STREAMS_MAX),
                ("grpc.max_allowed_incoming_connections", self._connections_max),
                ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
                ("grpc.http2.bdp_probe", 0),  # it would widen the window of every connection
                ("grpc.max_metadata_size", METADATA_BYTES_MAX),
                ("grpc.absolute_max_metadata_size", METADATA_BYTES_MAX),
                ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_WAIT_S * 1_000)),
                ("grpc.max_connection_idle_ms", int(IDLE_WAIT_S * 1_000)),
                ("grpc.per_message_decompression", 0),
                ("grpc.compression_enabled_algorithms_bitset", _IDENTITY_AND_GZIP),
                ("grpc.so_reuseport", 0),
            ]
        )
        methods = {name: self._make_export(signal, name) for name, signal in _SERVICES.items()}
        health = HealthService(self._is_serving, _SERVICES)
        self._server.add_generic_rpc_handlers((_Methods(methods), health))
        address = f"{self._host}:{self._port}"
        try:
            if self._credentials is None:
                self._port = self._server.add_insecure_port(address)
            else:
                self._port = self._server.add_secure_port(address, self._credentials)
        except RuntimeError as error:
            hint = "stop the process that listens there, or choose another port"
            raise Conflict(
                "the address cannot be listened on", hint=hint, address=address
            ) from error
        await self._server.start()

    async def stop(self, deadline_s: float) -> None:
        """Refuse new calls and answer those in progress; at the deadline cancel the rest."""
        self._is_stopping = True
        if self._server is not None:
            await self._server.stop(deadline_s)

    def _is_serving(self) -> bool:
        if self._is_stopping:
            return False
        try:
            _ = self._receiver.gateway.node
        except Unavailable:
            return False
        return True

    def _make_export(self, signal: str, name: str) -> Export:
        async def export(messages: AsyncIterator[bytes], context: Any) -> bytes:
            began_s = clock.monotonic()
            refusal: OtlpStatus | None = None
            try:
                answer = await self._receive(signal, messages, context)
            except Exception as error:  # noqa: BLE001  a client drops rows after any other status
                refusal = otlp_status(error)
                if not isinstance(error, ThermoclineError):
                    about = {"message": "a call failed", "exception": error}
                    asyncio.get_running_loop().call_exception_handler(about)
            code = 0 if refusal is None else refusal.code
            self._receiver.metrics.count_request(LISTENER, name, code, clock.monotonic() - began_s)
            if refusal is not None:
                await _abort(context, refusal)
            return answer

        return export

    async def _receive(self, signal: str, messages: AsyncIterator[bytes], context: Any) -> bytes:
        receiver = self._receiver
        metadata = dict(context.invocation_metadata() or ())
        # Order matters: the key is checked before any byte of the message is requested.
        authorization = _text(metadata.get("authorization"))
        peer = str(context.peer())
        tenant = receiver.gateway.caller(authorization, INGEST_SCOPE, peer=peer).tenant
        reservation = receiver.budget.reserve(tenant=tenant)
        try:
            async with self._turn(tenant):
                message = await self._read_message(messages, reservation)
        except BaseException:
            reservation.release()
            raise
        body = RequestBody("protobuf", _coding(message), message)
        taking = asyncio.ensure_future(
            receiver.ingest(tenant, signal, body, _text(metadata.get("idempotency-key")))
        )
        taking.add_done_callback(lambda _: reservation.release())
        return encode_success(await asyncio.shield(taking), "protobuf")

    @asynccontextmanager
    async def _turn(self, tenant: str) -> AsyncIterator[None]:
        """Wait until a call of the tenant may read its message; then hold its turn."""
        turns = self.reading
        if not turns.take(tenant):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            if not turns.wait(tenant, turn):
                hint = "send less at once, or later"
                raise Unavailable("too many calls wait to be read", hint=hint)
            try:
                await asyncio.wait_for(asyncio.shield(turn), READ_WAIT_S)
            except BaseException as error:
                if not turns.remove(tenant, turn):  # it got its turn at this moment
                    turns.give_back(tenant, _grant)
                if isinstance(error, TimeoutError):
                    hint = "send less at once, or later"
                    raise Unavailable("the call waited too long for its turn", hint=hint) from None
                raise
        try:
            yield
        finally:
            turns.give_back(tenant, _grant)

    async def _read_message(
        self, messages: AsyncIterator[bytes], reservation: Reservation
    ) -> bytes:
        """Return the one message of a call within `READ_WAIT_S`, and reserve memory for it."""
        try:
            async with asyncio.timeout(READ_WAIT_S):
                message = await anext(messages, None)
        except TimeoutError:
            hint = "send less at once, or later"
            raise Unavailable("the message did not arrive in time", hint=hint) from None
        if message is None:
            raise Invalid("the call has no message", hint="send one request in each call")
        reservation.grow(len(message))
        return message


def _grant(turn: "asyncio.Future[None]") -> None:
    turn.set_result(None)


class _Methods(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Finds the handler of a call by its name; messages are bytes.

    gRPC reads the message before it calls a unary handler. A streaming handler requests the
    message itself; on the wire both are the same.
    """

    def __init__(self, methods: dict[str, Export]) -> None:
        self._handlers = {
            name: grpc.stream_unary_rpc_method_handler(export) for name, export in methods.items()
        }

    def service(self, handler_call_details: Any) -> Any:
        return self._handlers.get(handler_call_details.method)


def _coding(message: bytes) -> str:
    """Return a message's compression, gzip or identity, from its first byte.

    gRPC does not expose the header `grpc-encoding` or the message's flag, and has refused every
    other encoding. Every gzip message begins with this byte and no protobuf message does: it would
    be a field of wire type 7, which does not exist.
    """
    return "gzip" if message[:1] == bytes([_GZIP_FIRST_BYTE]) else "identity"


async def _abort(context: Any, refusal: OtlpStatus) -> None:
    wait_s = refusal.retry_after_s if refusal.code == UNAVAILABLE else None
    details = encode_failure(refusal.code, refusal.message, "protobuf", retry_after_s=wait_s)
    trailers = (("grpc-status-details-bin", details),)
    await context.abort(_CODES[refusal.code], _ascii(refusal.message), trailing_metadata=trailers)


def _ascii(message: str) -> str:
    return message.encode("ascii", "replace").decode()[:1_000]


def _text(value: str | bytes | None) -> str | None:
    return value.decode("latin-1") if isinstance(value, bytes) else value
