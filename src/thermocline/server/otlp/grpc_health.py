"""The gRPC health service, grpc.health.v1.Health, for probes: a status, once or at each change.

In:   the name of a service, or none for the whole node
Out:  SERVING or NOT_SERVING; NOT_FOUND for a service that the listener does not have

    HealthCheckRequest     string service = 1
    HealthCheckResponse    enum status = 1    0 unknown, 1 serving, 2 not serving, 3 no such service

- Both messages are so small that they are read and written here, without generated code.
- A probe needs no key: the answer says no more than that the port is open.
- The streaming call sends the status at once and at each change, checked every `WATCH_S`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import grpc  # type: ignore[import-untyped]

SERVING, NOT_SERVING, SERVICE_UNKNOWN = b"\x08\x01", b"\x08\x02", b"\x08\x03"
WATCH_S = 1.0
NAME_BYTES_MAX = 127
_CHECK, _WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"


class HealthService(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The service; `methods` are the full names of the calls that the listener serves."""

    def __init__(self, is_serving: Callable[[], bool], methods: Iterable[str]) -> None:
        self._is_serving = is_serving
        self._services = {"", *(name.split("/")[1] for name in methods)}

    def service(self, handler_call_details: Any) -> Any:
        """Return the handler of a call of this service."""
        if handler_call_details.method == _CHECK:
            return grpc.unary_unary_rpc_method_handler(self._check)
        if handler_call_details.method == _WATCH:
            return grpc.unary_stream_rpc_method_handler(self._watch)
        return None

    def _status(self, message: bytes) -> bytes:
        if _service_name(message) not in self._services:
            return SERVICE_UNKNOWN
        return SERVING if self._is_serving() else NOT_SERVING

    async def _check(self, message: bytes, context: Any) -> bytes:
        status = self._status(message)
        if status == SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        return status

    async def _watch(self, message: bytes, context: Any) -> AsyncIterator[bytes]:  # noqa: ARG002
        said = b""
        while True:
            status = self._status(message)
            if status != said:
                said = status
                yield status
            await asyncio.sleep(WATCH_S)


def _service_name(message: bytes) -> str | None:
    """Return the service that a request names; empty for the whole node, None if unreadable."""
    if not message:
        return ""
    is_name = len(message) >= 2 and message[0] == 0x0A and message[1] <= NAME_BYTES_MAX
    if not is_name or len(message) != 2 + message[1]:
        return None
    return message[2:].decode("utf-8", "replace")
