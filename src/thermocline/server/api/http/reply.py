"""Encodes and sends answers: typed values as JSON, small tables in any format, problems.

In:   values, Arrow tables, errors
Out:  ASGI messages

- An answer's length is known before its first byte, so a client detects a truncated answer.
- It is sent in parts, as fast as the client reads. A client that reads nothing for `SEND_WAIT_S`
  counts as disconnected.
"""

import asyncio
from typing import Any

import msgspec
import pyarrow as pa
from starlette.types import Message, Send

from thermocline.contract.document.text import encode_text
from thermocline.promql.answer import error_document
from thermocline.server.api.http.encode import (
    MEDIA_TYPES,
    content_type,
    encode_table,
    negotiate_format,
)
from thermocline.server.api.http.incoming import ClientGone
from thermocline.server.api.http.problem import (
    PROBLEM_TYPE,
    HttpStatusError,
    problem_bytes,
    problem_headers,
    problem_of,
)
from thermocline.server.api.types.route import JSON, ApiRequest, ApiResponse, TruncatedRows

TRUNCATED = "X-Thermocline-Truncated"
SEND_WAIT_S = 30.0
PART_BYTES = 256 << 10
_PROMETHEUS_KINDS = {
    400: "bad_data",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    413: "bad_data",
    415: "bad_data",
    429: "execution",
    501: "bad_data",
    503: "unavailable",
    504: "timeout",
}


def choose_format(call: ApiRequest, named: str | None = None) -> str:
    """Return the format of the answer: the named one, or the one that Accept prefers."""
    form = named or negotiate_format(", ".join(call.headers.getlist("accept")))
    if form is None:
        raise HttpStatusError(
            "the route has none of the formats in Accept",
            status=406,
            hint=f"accept one of {', '.join(MEDIA_TYPES.values())}",
        )
    return form


def encode_answer(call: ApiRequest, value: Any) -> ApiResponse:
    """Encode a route's result; called on a thread."""
    if isinstance(value, ApiResponse):
        return value
    if isinstance(value, pa.Table):
        value = TruncatedRows(value, is_truncated=False)
    if isinstance(value, TruncatedRows):
        call.parts.quota.of(call.caller.tenant).check_rows(value.rows.num_rows)
        form = choose_format(call)
        data = encode_table(value.rows, form, is_truncated=value.is_truncated)
        response_headers = {TRUNCATED: "true" if value.is_truncated else "false"}
        return ApiResponse(data, call.route.status, content_type(form), response_headers)
    if value is None:
        return ApiResponse(b"", 204)
    return ApiResponse(msgspec.json.encode(value), call.route.status)


def exact_json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> ApiResponse:
    """Encode an answer so that its numbers keep all digits."""
    return ApiResponse(encode_text(value).encode(), status, headers=headers or {})


async def send_answer(send: Send, done: ApiResponse) -> None:
    """Send a whole answer."""
    await _send(send, done.status, done.value, done.media_type, done.headers)


async def send_problem(
    send: Send, error: BaseException, request_id: str, headers: dict[str, str] | None = None
) -> int:
    """Send an error, and return its status."""
    problem = problem_of(error, request_id)
    response_headers = problem_headers(error, problem) | (headers or {})
    await _send(send, problem.status, problem_bytes(problem), PROBLEM_TYPE, response_headers)
    return problem.status


async def send_prometheus_error(send: Send, error: BaseException, request_id: str) -> int:
    """Send an error in Prometheus' form, and return its status."""
    problem = problem_of(error, request_id)
    texts = [problem.detail, str((problem.facts or {}).get("why", "")), problem.hint]
    kind = _PROMETHEUS_KINDS.get(problem.status, "internal")
    data = error_document(kind, ": ".join(text for text in texts if text))
    await _send(send, problem.status, data, JSON, problem_headers(error, problem))
    return problem.status


async def _send(
    send: Send, status: int, data: bytes, media_type: str, headers: dict[str, str]
) -> None:
    pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    if status not in (204, 304):
        pairs.append((b"content-type", media_type.encode()))
        pairs.append((b"content-length", str(len(data)).encode()))
    await send_in_time(send, {"type": "http.response.start", "status": status, "headers": pairs})
    rest = memoryview(data)
    while len(rest) > PART_BYTES:
        part, rest = rest[:PART_BYTES], rest[PART_BYTES:]
        await send_in_time(
            send, {"type": "http.response.body", "body": bytes(part), "more_body": True}
        )
    await send_in_time(send, {"type": "http.response.body", "body": bytes(rest)})


async def send_in_time(send: Send, message: Message) -> None:
    """Send a part of an answer; `ClientGone` when the client does not read in time."""
    try:
        await asyncio.wait_for(send(message), SEND_WAIT_S)
    except (TimeoutError, OSError) as error:
        raise ClientGone from error


__all__ = [
    "JSON",
    "choose_format",
    "encode_answer",
    "exact_json",
    "send_answer",
    "send_in_time",
    "send_problem",
    "send_prometheus_error",
]
