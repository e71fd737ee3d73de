"""Encodes the response to an OTLP client: a success, a partial success, or a failure.

In:   the outcome of decoding; or a code, a message and the delay before a retry
Out:  the bytes of a response in the encoding of the request

- A full success has no partial success field: no bytes in protobuf, `{}` in JSON.
- A failure is a `google.rpc.Status`. With a delay it carries `google.rpc.RetryInfo`; without it,
  gRPC clients do not retry "resource exhausted".
- Messages are truncated, so that a response is small for every request.

The server chooses the status line or trailer.
"""

import orjson

from thermocline.ingest.otlp.outcome import DecodedRequest
from thermocline.ingest.otlp.varint import VARINT, encode_bytes, encode_varint

MESSAGE_BYTES_MAX = 4_096
ENCODINGS = ("protobuf", "json")
_REJECTED = {
    "metrics": "rejectedDataPoints",
    "logs": "rejectedLogRecords",
    "traces": "rejectedSpans",
}
_RETRY_INFO = "type.googleapis.com/google.rpc.RetryInfo"


def encode_success(decoded: DecodedRequest, encoding: str) -> bytes:
    """Return the response to a request that was accepted, completely or in part."""
    if not decoded.is_partial:
        return b"" if encoding == "protobuf" else b"{}"
    message = _truncate(decoded.message)
    if encoding == "json":
        # In protobuf's JSON, 64-bit integers are texts.
        partial = {_REJECTED[decoded.signal]: str(decoded.rejected), "errorMessage": message}
        return orjson.dumps({"partialSuccess": partial})
    return encode_bytes(1, _encode_integer(1, decoded.rejected) + encode_bytes(2, message.encode()))


def encode_failure(
    code: int, message: str, encoding: str, *, retry_after_s: float | None = None
) -> bytes:
    """Return a `google.rpc.Status`; `code` is one of gRPC's."""
    text = _truncate(message)
    if encoding == "json":
        status: dict[str, object] = {"code": code, "message": text}
        if retry_after_s is not None:
            delay = f"{retry_after_s:.3f}s"
            status["details"] = [{"@type": _RETRY_INFO, "retryDelay": delay}]
        return orjson.dumps(status)
    body = _encode_integer(1, code) + encode_bytes(2, text.encode())
    if retry_after_s is not None:
        seconds, nanos = divmod(round(retry_after_s * 1_000_000_000), 1_000_000_000)
        delay_message = encode_bytes(1, _encode_integer(1, seconds) + _encode_integer(2, nanos))
        body += encode_bytes(
            3, encode_bytes(1, _RETRY_INFO.encode()) + encode_bytes(2, delay_message)
        )
    return body


def _truncate(message: str) -> str:
    return message.encode(errors="replace")[:MESSAGE_BYTES_MAX].decode(errors="ignore")


def _encode_integer(field: int, value: int) -> bytes:
    """Return the field of a number from 0; zero is encoded as absent."""
    return encode_varint(field << 3 | VARINT) + encode_varint(value) if value else b""
