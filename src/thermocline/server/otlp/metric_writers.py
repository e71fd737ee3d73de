"""Remote write and the line protocol over HTTP, beside OTLP on the same port.

In:   `POST /api/v1/write` (remote write 1.0 and 2.0), `POST /api/v2/write` and `/write` (lines)
Out:  204 when the rows are durable; a text that says why not

- Requests share OTLP's ingest queue, quotas, memory budget and backpressure: an error that the
  request does not cause is 429 or 503 with `Retry-After`.
- When some samples are refused, the others are written, and the answer is 400: its text has the
  reasons, and the headers of remote write 2.0 the counts of what was written. A sender does not
  repeat such a request.
- With an `Idempotency-Key`, a resend of an accepted request succeeds without new rows.
- A key may come as a bearer token, as InfluxDB's token, or as a password of basic authentication.
"""

import base64
import binascii
from collections.abc import Callable
from urllib.parse import parse_qs

from thermocline.errors import ThermoclineError
from thermocline.ingest.inflate import CODINGS
from thermocline.ingest.otlp.batch_decode import LINES, REMOTE_WRITE, RequestBody
from thermocline.ingest.otlp.outcome import DecodedRequest
from thermocline.server.otlp.admission import Admitted, refuse
from thermocline.server.otlp.http1.head import RequestHead, RequestRefused
from thermocline.server.otlp.http1.route import Http1Request, Http1Response, Http1Route
from thermocline.server.otlp.ingest_queue import INGEST_SCOPE, Receiver

REMOTE_WRITE_PATHS = ("/api/v1/write", "/api/v1/prom/api/v1/write")
LINE_PATHS = ("/api/v2/write", "/write")
PATHS = frozenset((*REMOTE_WRITE_PATHS, *LINE_PATHS))
_VERSIONS = {"prometheus.writerequest": 1, "io.prometheus.write.v2.request": 2}
_UNITS = {"ns": "ns", "n": "ns", "us": "us", "u": "us", "µ": "us", "ms": "ms", "s": "s"}
_WRITTEN = "X-Prometheus-Remote-Write-{}-Written"
_SIGNAL = "metrics"

Check = Callable[[RequestHead], None]


def writer_routes(receiver: Receiver, check_name: Check) -> dict[tuple[str, str], Http1Route]:
    """Return the routes; `check_name` refuses other host names on a node without keys."""

    def admit(head: RequestHead, encoding: str, coding: str) -> Admitted:
        check_name(head)
        try:
            caller = receiver.gateway.caller(bearer_text(head), INGEST_SCOPE, peer=head.peer)
        except ThermoclineError as error:
            raise refuse(error) from error
        return Admitted(caller.tenant, encoding, coding, head.text(b"idempotency-key"))

    def admit_remote_write(head: RequestHead) -> Admitted:
        coding = (head.text(b"content-encoding") or "").lower()
        if coding != "snappy":
            raise RequestRefused(415, "the content encoding of remote write is snappy")
        return admit(head, REMOTE_WRITE[_remote_write_version(head)], coding)

    def admit_lines(head: RequestHead) -> Admitted:
        coding = (head.text(b"content-encoding") or "identity").lower()
        if coding not in CODINGS:
            raise RequestRefused(415, f"the content encoding must be one of {', '.join(CODINGS)}")
        return admit(head, LINES[_unit(head)], coding)

    async def answer_remote_write(request: Http1Request) -> Http1Response:
        taken = await _ingest(receiver, request)
        # Decoding notes what 1.0 cannot report; 2.0 has headers for the counts.
        headers = (
            (_WRITTEN.format("Samples"), str(max(0, taken.accepted))),
            (_WRITTEN.format("Histograms"), "0"),
            (_WRITTEN.format("Exemplars"), "0"),
        )
        return _answer(taken, headers)

    async def answer_lines(request: Http1Request) -> Http1Response:
        return _answer(await _ingest(receiver, request), ())

    return {
        **{("POST", p): Http1Route(answer_remote_write, admit_remote_write)
           for p in REMOTE_WRITE_PATHS},
        **{("POST", path): Http1Route(answer_lines, admit_lines) for path in LINE_PATHS},
    }  # fmt: skip


def bearer_text(head: RequestHead) -> str | None:
    """Return the authorization of a request as the guard reads it."""
    given = head.text(b"authorization")
    if given is None:
        return None
    kind, _, text = given.partition(" ")
    if kind.lower() == "token":
        return f"Bearer {text.strip()}"
    if kind.lower() == "basic":
        try:
            decoded = base64.b64decode(text.strip(), validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            return given
        return f"Bearer {decoded.partition(':')[2]}"
    return given


def _remote_write_version(head: RequestHead) -> int:
    """Return the version of remote write in the content type; without one it is 1.0."""
    kind, *parameters = (head.text(b"content-type") or "application/x-protobuf").split(";")
    if kind.strip().lower() != "application/x-protobuf":
        raise RequestRefused(415, "the content type of remote write is application/x-protobuf")
    for one in parameters:
        name, _, value = one.partition("=")
        if name.strip().lower() == "proto":
            version = _VERSIONS.get(value.strip().strip('"').lower())
            if version is None:
                raise RequestRefused(415, f"the message must be one of {', '.join(_VERSIONS)}")
            return version
    return 1


def _unit(head: RequestHead) -> str:
    precision = parse_qs(head.query).get("precision", ["ns"])[-1]
    unit = _UNITS.get(precision)
    if unit is None:
        raise RequestRefused(400, f"the precision must be one of {', '.join(_UNITS)}")
    return unit


async def _ingest(receiver: Receiver, request: Http1Request) -> DecodedRequest:
    admitted: Admitted = request.admitted
    body = RequestBody(admitted.encoding, admitted.coding, request.body)
    try:
        return await receiver.ingest(admitted.tenant, _SIGNAL, body, admitted.request_id)
    except ThermoclineError as error:
        raise refuse(error) from error


def _answer(taken: DecodedRequest, headers: tuple[tuple[str, str], ...]) -> Http1Response:
    if taken.rejected > 0:
        return Http1Response(400, f"partial write: {taken.message}\n".encode(), headers=headers)
    return Http1Response(204, headers=headers)
