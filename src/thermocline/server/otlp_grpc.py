"""OTLP over gRPC: the three `Export` calls, on the bytes of their messages.

In:   unary calls, compressed by gzip, deflate or not at all
Out:  responses; or a status, with `google.rpc.RetryInfo` where sending again helps

- A message is inflated by the lane's workers, within the limit, and not by the library: what a
  call holds before it is admitted is what came over the wire.
- A message that is too large is `RESOURCE_EXHAUSTED` without `RetryInfo`, which is final. Whatever
  passes is `UNAVAILABLE` with it.
- What works on a message goes on when the client has gone: the rows may be durable already.
"""

import asyncio
import time as clock
from collections.abc import Awaitable, Callable
from typing import Any

import grpc  # type: ignore[import-untyped]

from thermocline.errors import Invalid, ThermoclineError
from thermocline.ingest.otlp.answer import failure, success
from thermocline.ingest.otlp.together import Body
from thermocline.server.otlp_verdict import UNAVAILABLE, Verdict, verdict
from thermocline.server.receiver import Receiver

PORT = 4317
LISTENER = "otlp_grpc"
MESSAGE_BYTES_MAX = 64 << 20
STREAMS_MAX = 256  # calls at once on one connection
_SERVICES = {
    "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export": "metrics",
    "/opentelemetry.proto.collector.logs.v1.LogsService/Export": "logs",
    "/opentelemetry.proto.collector.trace.v1.TraceService/Export": "traces",
}
_CODES = {code.value[0]: code for code in grpc.StatusCode}

Export = Callable[[bytes, Any], Awaitable[bytes]]


class OtlpGrpc:
    """The listener of OTLP over gRPC; it runs on the event loop it is started on."""

    def __init__(
        self,
        receiver: Receiver,
        *,
        host: str = "127.0.0.1",
        port: int = PORT,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        self._receiver = receiver
        self._host, self._port = host, port
        self._message_bytes_max = message_bytes_max
        self._credentials = credentials
        self._server: Any = None
        self._is_stopping = False

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return self._port

    async def start(self) -> None:
        """Listen; calls are taken when this returns. `Invalid` when the address is taken."""
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", self._message_bytes_max),
                ("grpc.max_concurrent_streams", STREAMS_MAX),
                ("grpc.per_message_decompression", 0),
                ("grpc.so_reuseport", 0),
            ]
        )
        methods = {name: self._exporting(signal, name) for name, signal in _SERVICES.items()}
        self._server.add_generic_rpc_handlers((_Methods(methods),))
        address = f"{self._host}:{self._port}"
        try:
            if self._credentials is None:
                self._port = self._server.add_insecure_port(address)
            else:
                self._port = self._server.add_secure_port(address, self._credentials)
        except RuntimeError as error:
            hint = "stop what listens there, or choose another port"
            raise Invalid(
                "the address cannot be listened on", hint=hint, address=address
            ) from error
        await self._server.start()

    async def stop(self, deadline_s: float) -> None:
        """Take nothing new, answer what has begun; what is not done by then is cancelled."""
        self._is_stopping = True
        if self._server is not None:
            await self._server.stop(deadline_s)

    def _exporting(self, signal: str, name: str) -> Export:
        async def export(message: bytes, context: Any) -> bytes:
            began_s = clock.monotonic()
            told: Verdict | None = None
            try:
                answer = await self._taken(signal, message, context)
            except Exception as error:  # noqa: BLE001  what is not told as passing is dropped
                told = verdict(error)
                if not isinstance(error, ThermoclineError):
                    about = {"message": "a call failed", "exception": error}
                    asyncio.get_running_loop().call_exception_handler(about)
            code = 0 if told is None else told.code
            self._receiver.observe(LISTENER, name, code, clock.monotonic() - began_s)
            if told is not None:
                await _abort(context, told)
            return answer

        return export

    async def _taken(self, signal: str, message: bytes, context: Any) -> bytes:
        receiver = self._receiver
        metadata = dict(context.invocation_metadata() or ())
        tenant = receiver.tenant(_text(metadata.get("authorization")))
        hold = receiver.room.hold(len(message))
        body = Body("protobuf", _coding(message), message)
        taking = asyncio.ensure_future(
            receiver.take(tenant, signal, body, _text(metadata.get("idempotency-key")))
        )
        taking.add_done_callback(lambda _: hold.release())
        return success(await asyncio.shield(taking), "protobuf")


class _Methods(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Finds the handler of a call by its name; messages are bytes."""

    def __init__(self, methods: dict[str, Export]) -> None:
        self._handlers = {
            name: grpc.unary_unary_rpc_method_handler(export) for name, export in methods.items()
        }

    def service(self, handler_call_details: Any) -> Any:
        return self._handlers.get(handler_call_details.method)


def _coding(message: bytes) -> str:
    """Return how a message is compressed, by how it begins.

    The library does not tell. No request begins like gzip, for its first byte would be a field of
    a kind that does not exist; nor like deflate, whose first byte would be a field 15.
    """
    if message[:2] == b"\x1f\x8b":
        return "gzip"
    if message[:1] == b"\x78" and len(message) > 2 and int.from_bytes(message[:2]) % 31 == 0:
        return "deflate"
    return "identity"


async def _abort(context: Any, told: Verdict) -> None:
    wait_s = told.retry_after_s if told.code == UNAVAILABLE else None
    details = failure(told.code, told.message, "protobuf", retry_after_s=wait_s)
    trailers = (("grpc-status-details-bin", details),)
    await context.abort(_CODES[told.code], _ascii(told.message), trailing_metadata=trailers)


def _ascii(message: str) -> str:
    return message.encode("ascii", "replace").decode()[:1_000]


def _text(value: str | bytes | None) -> str | None:
    return value.decode("latin-1") if isinstance(value, bytes) else value
