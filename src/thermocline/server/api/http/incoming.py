"""Reads a request's parts within limits and decodes them into typed values.

In:   an ASGI request: headers, the query string, the body as it comes
Out:  typed values of `request_types.py`; the inflated bytes of a body

- A body has a limit in bytes, before and after inflating, and a limit in time. A truncated body is
  discarded as a whole.
- Content-Type must come once and be one that the route accepts. Forms are never parsed.
- JSON is strict: no NaN, no number beyond a double, no text that is not Unicode, no nesting past
  the decoder's limit; unknown fields are refused by name.
"""

import asyncio
import re
import uuid
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

import msgspec
from starlette.datastructures import Headers, QueryParams
from starlette.types import Receive

from thermocline.errors import BodyTooLarge, Invalid
from thermocline.ingest.inflate import BODY_BYTES_MAX, inflate
from thermocline.names import HTTP_IDEMPOTENCY_KEY, HTTP_IDEMPOTENCY_KEY_LENGTH_MAX
from thermocline.server.api.http.problem import HttpStatusError
from thermocline.server.otlp.memory_budget import Reservation

JSON_BYTES_MAX = 4 << 20
BODY_WAIT_S = 60.0

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_IDEMPOTENCY_KEY = re.compile(HTTP_IDEMPOTENCY_KEY)

Shape = TypeVar("Shape")


class ClientGone(Exception):
    """The client closed the connection, so no answer can be sent."""


def request_id_of(headers: Headers) -> str:
    """Return the client's request id if it is well-formed, otherwise a new one."""
    given = headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def idempotency_key_of(headers: Headers) -> str | None:
    """Return the idempotency key, or None; `Invalid` for a malformed one."""
    given = headers.getlist("idempotency-key")
    if not given:
        return None
    if len(given) > 1 or not _IDEMPOTENCY_KEY.fullmatch(given[0]):
        raise Invalid(
            "the idempotency key is not valid",
            hint="send one header with 1 to 200 visible ASCII characters",
            characters_max=HTTP_IDEMPOTENCY_KEY_LENGTH_MAX,
        )
    return given[0]


def _check_content_type(headers: Headers, allowed: tuple[str, ...]) -> str:
    """Return the body's media type; 415 unless it comes once and is allowed."""
    given = headers.getlist("content-type")
    if len(given) > 1:
        raise Invalid("the content type is given more than once", hint="send one")
    media = given[0].split(";")[0].strip().lower() if given else ""
    charset = given[0].lower().partition("charset=")[2].strip("\"' ") if given else ""
    if media not in allowed or charset not in ("", "utf-8", "utf8"):
        raise HttpStatusError(
            "the route does not accept the body's content type",
            status=415,
            hint=f"send {' or '.join(allowed)}, in UTF-8",
            content_type=media[:100],
        )
    return media


async def read_body(
    receive: Receive,
    headers: Headers,
    types: tuple[str, ...],
    limit_bytes: int,
    *,
    reservation: Reservation | None = None,
    wait_s: float = BODY_WAIT_S,
    run: Callable[[Callable[[], bytes]], Awaitable[bytes]] = asyncio.to_thread,
) -> tuple[str, bytes]:
    """Return the body's media type, one of `types`, and the body, inflated on a thread by `run`.

    `BodyTooLarge` past the limit; 415 for another type; 408 when the body comes too slowly.
    """
    media = _check_content_type(headers, types)
    codings = headers.getlist("content-encoding")
    if len(codings) > 1:
        raise Invalid("the content encoding is given more than once", hint="send one")
    length = headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit_bytes:
        raise body_too_large(limit_bytes)  # before any of it is read
    try:
        async with asyncio.timeout(wait_s):
            data = await _read(receive, limit_bytes, reservation)
    except TimeoutError:
        hint = "send the body faster, or in smaller parts"
        raise HttpStatusError("the body did not arrive in time", status=408, hint=hint) from None
    coding = codings[0] if codings else "identity"
    if coding.strip().lower() in ("", "identity"):
        return media, data
    inflated = await run(lambda: inflate(data, coding, limit_bytes=limit_bytes))
    if reservation is not None:
        reservation.grow(len(inflated))
    return media, inflated


async def _read(receive: Receive, limit_bytes: int, reservation: Reservation | None) -> bytes:
    parts: list[bytes] = []
    size_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        size_bytes += len(part)
        if size_bytes > limit_bytes:
            raise body_too_large(limit_bytes)
        if reservation is not None:
            reservation.grow(len(part))
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has disconnected; call it after its body was read."""
    while (await receive())["type"] != "http.disconnect":
        pass


def body_too_large(limit_bytes: int) -> BodyTooLarge:
    """Return the error of a body past its limit."""
    hint = "send the body in smaller parts"
    return BodyTooLarge("the body is larger than the limit", hint=hint, limit_bytes=limit_bytes)


def decode_body(data: bytes, shape: type[Shape]) -> Shape:
    """Decode a JSON body into a type; `Invalid` names the place of an error."""
    try:
        return msgspec.json.decode(data or b"{}", type=shape)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        hint = "see /api/docs for the fields of the body"
        raise Invalid("the body does not match the route", hint=hint, why=_why(error)) from error


def decode_parameters(params: QueryParams, shape: type[Shape]) -> Shape:
    """Decode the query parameters into a type; each may come once, except for lists."""
    values = field_values(params.multi_items(), shape)
    try:
        return msgspec.convert(values, shape, strict=False)
    except (msgspec.MsgspecError, ValueError) as error:
        hint = "see /api/docs for the parameters of the route"
        raise Invalid(
            "the parameters do not match the route", hint=hint, why=_why(error)
        ) from error


def field_values(pairs: Iterable[tuple[str, str]], shape: type) -> dict[str, Any]:
    """Return parameters by name; those that are lists in the type may come several times.

    If the type has a field that is a dict, it takes the parameters that the type does not name.
    """
    fields = msgspec.structs.fields(shape)
    origins = {one.encode_name: getattr(one.type, "__origin__", None) for one in fields}
    lists = {name for name, origin in origins.items() if origin is list}
    rest_name = next((name for name, origin in origins.items() if origin is dict), None)
    names = origins.keys() - {rest_name}
    rest: dict[str, str] = {}
    values: dict[str, Any] = {}
    for name, value in pairs:
        if value == "":
            continue  # an absent parameter: forms and curl send it so
        if rest_name is not None and name not in names:
            if name in rest:
                raise Invalid("a condition is given more than once", hint="send a filter as JSON")
            rest[name] = value
        elif name in lists:
            values.setdefault(name, []).append(value)
        elif name in values:
            raise Invalid("a parameter is given more than once", hint="send one", parameter=name)
        else:
            values[name] = value
    return values if rest_name is None else values | {rest_name: rest}


def _why(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return str(error).splitlines()[0] if str(error) else "it is not JSON in UTF-8"


__all__ = [
    "BODY_BYTES_MAX",
    "BODY_WAIT_S",
    "JSON_BYTES_MAX",
    "ClientGone",
    "body_too_large",
    "decode_body",
    "decode_parameters",
    "field_values",
    "idempotency_key_of",
    "read_body",
    "request_id_of",
    "wait_for_disconnect",
]
