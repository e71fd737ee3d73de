"""OTLP over HTTP: the three paths, in protobuf and JSON; other writers of metrics beside them.

In:   `POST /v1/metrics`, `/v1/logs`, `/v1/traces`, compressed or not
Out:  the answer in the encoding of the request: success, partial success, or `google.rpc.Status`

- Key, content type and content coding are checked from the head, before the body is read.
- A node without keys answers only to names of this machine, and to no page of another origin.
- A success is answered when the rows are durable, and counts the refused rows.
- An error that the request does not cause is 429 or 503 with `Retry-After`: the client keeps its
  rows and sends them again.
- Pages of the configured origins may send from a browser: a preflight is answered without a key,
  and every answer to such a page names its origin. Pages of other origins get no such header.
- A slash at the end of a path changes nothing.
- With an `Idempotency-Key`, a resend of an accepted request succeeds without new rows.
"""

import ssl
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from functools import partial

from thermocline.error_table import ERROR_TABLE, INVALID_ARGUMENT, UNIMPLEMENTED
from thermocline.errors import ThermoclineError
from thermocline.ingest.inflate import CODINGS
from thermocline.ingest.otlp.answer import encode_failure, encode_success
from thermocline.ingest.otlp.batch_decode import RequestBody
from thermocline.ingest.otlp.protobuf import SIGNALS
from thermocline.server.access.accept_gate import ConnectionPlaces
from thermocline.server.access.host_check import LOOPBACK_NAMES, HostRefusal, host_refusal
from thermocline.server.otlp.admission import Admitted, refuse
from thermocline.server.otlp.http1.head import RequestHead, RequestRefused
from thermocline.server.otlp.http1.route import (
    Http1Request,
    Http1Response,
    Http1Route,
    HttpLimits,
    refusal_headers,
    text_refusal,
)
from thermocline.server.otlp.http1.server import Http1Server
from thermocline.server.otlp.ingest_queue import INGEST_SCOPE, Receiver
from thermocline.server.otlp.metric_writers import PATHS, writer_routes

LISTENER = "otlp_http"
PREFLIGHT_KEPT_S = 7_200
"""How long a browser may remember that a page may send."""
_ENCODINGS = {"application/x-protobuf": "protobuf", "application/json": "json"}
_TYPES = {encoding: kind for kind, encoding in _ENCODINGS.items()}
_CODES = {row.otlp_status: row.grpc_code for row in ERROR_TABLE.values()} | {405: UNIMPLEMENTED}


class OtlpHttp:
    """The listener of OTLP over HTTP."""

    def __init__(
        self,
        receiver: Receiver,
        *,
        port: int,
        host: str = "127.0.0.1",
        limits: HttpLimits | None = None,
        tls: ssl.SSLContext | None = None,
        hosts: Collection[str] = LOOPBACK_NAMES,
        is_open: Callable[[], bool] = lambda: False,
        origins: Collection[str] = (),
        places: ConnectionPlaces | None = None,
    ) -> None:
        """`hosts` are the host names it answers to while `is_open`, that is, without keys.

        Pages of the `origins` may send from a browser; `*` is every page.
        """
        self._receiver = receiver
        self._origins = frozenset(origin.lower() for origin in origins)
        self._hosts, self._is_open = frozenset(hosts), is_open
        routes = {
            ("POST", f"/v1/{signal}{end}"): Http1Route(self._make_answer(signal), self._admit)
            for signal in SIGNALS
            for end in ("", "/")
        }
        if self._origins:
            paths = [path for _, path in routes]
            routes |= {("OPTIONS", path): Http1Route(self._answer_preflight) for path in paths}
        routes |= writer_routes(receiver, self._check_open_name)
        self._server = Http1Server(
            routes,
            host=host,
            port=port,
            budget=receiver.budget,
            limits=limits,
            refusal=self._refuse,
            observe=partial(receiver.metrics.count_request, LISTENER),
            tls=tls,
            places=places,
        )

    @property
    def port(self) -> int:
        """The port of the listening socket."""
        return self._server.port

    async def start(self) -> None:
        """Listen."""
        await self._server.start()

    async def stop(self, deadline_s: float) -> None:
        """Refuse new requests, answer those in progress, close; at the deadline abort the rest."""
        await self._server.stop(deadline_s)

    def _admit(self, head: RequestHead) -> Admitted:
        self._check_open_name(head)
        try:
            authorization = head.text(b"authorization")
            caller = self._receiver.gateway.caller(authorization, INGEST_SCOPE, peer=head.peer)
        except ThermoclineError as error:
            raise refuse(error) from error
        encoding = _encoding(head)
        if encoding is None:
            raise RequestRefused(415, f"the content type must be one of {', '.join(_ENCODINGS)}")
        coding = (head.text(b"content-encoding") or "identity").lower()
        if coding not in CODINGS:
            raise RequestRefused(415, f"the content encoding must be one of {', '.join(CODINGS)}")
        return Admitted(caller.tenant, encoding, coding, head.text(b"idempotency-key"))

    async def _answer_preflight(self, request: Http1Request) -> Http1Response:
        """Answer a browser that asks whether a page may send."""
        named = self._origin_headers(request.head)
        asked = request.head.text(b"access-control-request-headers") or "content-type"
        allowed = (
            ("Access-Control-Allow-Methods", "POST"),
            ("Access-Control-Allow-Headers", asked),
            ("Access-Control-Max-Age", str(PREFLIGHT_KEPT_S)),
        )
        return Http1Response(204, headers=(*named, *(allowed if named else ())))

    def _origin_headers(self, head: RequestHead | None) -> tuple[tuple[str, str], ...]:
        """Return the headers that let a page of an allowed origin read the answer."""
        origin = head.text(b"origin") if head is not None and self._origins else None
        if origin is None or not self._allows(origin):
            return ()
        return ("Access-Control-Allow-Origin", origin), ("Vary", "Origin")

    def _allows(self, origin: str) -> bool:
        return "*" in self._origins or origin.lower() in self._origins

    def _refuse(self, refused: RequestRefused, head: RequestHead | None) -> Http1Response:
        is_writer = head is not None and head.path in PATHS
        response = (text_refusal if is_writer else _refusal_response)(refused, head)
        return replace(response, headers=(*response.headers, *self._origin_headers(head)))

    def _check_open_name(self, head: RequestHead) -> None:
        """Refuse names of other machines while the node has no key."""
        if self._is_open():
            self._check_name(head)

    def _check_name(self, head: RequestHead) -> None:
        host, origin = head.text(b"host"), head.text(b"origin")
        if origin is not None and self._allows(origin):
            origin = None
        found = host_refusal(self._hosts, [] if host is None else [host], origin)
        if found is not None:
            raise RequestRefused(421 if found is HostRefusal.NAME else 403, found.value)

    def _make_answer(self, signal: str) -> Callable[[Http1Request], Awaitable[Http1Response]]:
        async def answer(request: Http1Request) -> Http1Response:
            admitted: Admitted = request.admitted
            body = RequestBody(admitted.encoding, admitted.coding, request.body)
            try:
                taken = await self._receiver.ingest(
                    admitted.tenant, signal, body, admitted.request_id
                )
            except ThermoclineError as error:
                raise refuse(error) from error
            answered = encode_success(taken, admitted.encoding)
            named = self._origin_headers(request.head)
            return Http1Response(200, answered, _TYPES[admitted.encoding], named)

        return answer


def _encoding(head: RequestHead) -> str | None:
    kind = (head.text(b"content-type") or "").partition(";")[0].strip().lower()
    return _ENCODINGS.get(kind)


def _refusal_response(refused: RequestRefused, head: RequestHead | None) -> Http1Response:
    """Return a refusal as `google.rpc.Status`, in the request's encoding if it is known."""
    encoding = (_encoding(head) if head is not None else None) or "json"
    code = _CODES.get(refused.status, INVALID_ARGUMENT)
    wait_s = refused.retry_after_s
    body = encode_failure(code, refused.message, encoding, retry_after_s=wait_s)
    return Http1Response(refused.status, body, _TYPES[encoding], refusal_headers(refused))
