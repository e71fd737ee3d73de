"""The values of the HTTP/1.1 server: limits, routes, requests, answers.

In:   nothing
Out:  values; the bytes of an answer
"""

import functools
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from thermocline.ingest.inflate import Data
from thermocline.server.otlp.http1.head import RequestHead, RequestRefused

_PHRASES = {status.value: status.phrase for status in HTTPStatus}


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits on a request's size and duration, and on the number of connections."""

    body_bytes_max: int = 64 << 20
    connections_max: int = 1_024
    idle_timeout_s: float = 75.0
    head_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    body_bytes_per_s_min: int = 64 << 10
    discard_timeout_s: float = 5.0


@dataclass(slots=True)
class Http1Request:
    """A whole request; `admitted` is the result of the route's `admit`."""

    head: RequestHead
    body: Data
    admitted: Any


@dataclass(frozen=True, slots=True)
class Http1Response:
    """An answer."""

    status: int
    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Http1Route:
    """A handler for whole requests, and a check of the head before the body is read.

    `admit` raises `RequestRefused`, or returns a value that `answer` gets as
    `Http1Request.admitted`. The request is charged to the `tenant` of that value.
    """

    answer: Callable[[Http1Request], Awaitable[Http1Response]]
    admit: Callable[[RequestHead], Any] = field(default=lambda head: None)


Http1Routes = Mapping[tuple[str, str], Http1Route]


def text_refusal(refused: RequestRefused, _: RequestHead | None) -> Http1Response:
    """Return a refusal as text."""
    body = f"{refused.message}\n".encode()
    return Http1Response(refused.status, body, headers=refusal_headers(refused))


@functools.lru_cache(maxsize=64)  # nearly all answers within one second are the same
def encode_response(response: Http1Response, date: str, *, is_kept: bool) -> bytes:
    """Return the bytes of an answer."""
    lines = [
        f"HTTP/1.1 {response.status} {_PHRASES.get(response.status, 'Status')}",
        f"Date: {date}",
        f"Content-Type: {response.content_type}",
        f"Content-Length: {len(response.body)}",
        *(f"{name}: {value}" for name, value in response.headers),
    ]
    if not is_kept:
        lines.append("Connection: close")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + response.body


def refusal_headers(refused: RequestRefused) -> tuple[tuple[str, str], ...]:
    """Return the headers of a refusal: `Retry-After`, `Allow`."""
    if refused.retry_after_s is None:
        return refused.headers
    return (*refused.headers, ("Retry-After", str(refused.retry_after_s)))


def no_route_refusal(routes: Http1Routes, head: RequestHead) -> RequestRefused:
    """Return the refusal of a request that matches no route."""
    methods = ", ".join(method for method, path in routes if path == head.path)
    if not methods:
        return RequestRefused(404, "nothing is served at this path")
    return RequestRefused(405, f"this path supports {methods} only", headers=(("Allow", methods),))
