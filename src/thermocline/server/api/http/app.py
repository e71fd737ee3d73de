"""The ASGI application: the routes, behind one middleware for names, ids, headers and metrics.

In:   a node, its guard, quotas, metrics and log
Out:  an ASGI application

- Order matters, on every request: check the host name, then the key, then the path, the parameters
  and the body. Nothing is decoded for a client without a valid key.
- A node without keys answers only to names of this machine and to its own pages: a page of another
  site cannot reach the node through a browser on this machine.
- A path is split at its slashes before its parts are decoded: an entity id may contain a slash.
- Every answer has a request id, and headers that keep a browser from reinterpreting it.
- One place turns errors into problem documents; an exception of another package is logged there,
  once.
"""

import time
import traceback
from collections.abc import Collection
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from urllib.parse import quote, unquote

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.middleware import Middleware
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as AsgiScope

from thermocline.alert.keeper import AlertKeeper
from thermocline.config import NodeSettings
from thermocline.errors import Forbidden, NotFound, ThermoclineError
from thermocline.hot.postgres.store.author import write_as
from thermocline.server.access.audit import Audit
from thermocline.server.access.guard import ANONYMOUS, Caller, Guard, NodeGateway
from thermocline.server.access.host_check import LOOPBACK_NAMES, HostRefusal, host_refusal
from thermocline.server.access.quota import Quotas
from thermocline.server.api.context import ApiContext
from thermocline.server.api.http.incoming import (
    JSON_BYTES_MAX,
    ClientGone,
    decode_body,
    decode_parameters,
    read_body,
    request_id_of,
)
from thermocline.server.api.http.problem import HttpStatusError
from thermocline.server.api.http.reply import (
    encode_answer,
    send_answer,
    send_problem,
    send_prometheus_error,
)
from thermocline.server.api.types.route import (
    ADMIT_CONNECTION,
    PROMETHEUS,
    ApiRequest,
    ApiResponse,
    ApiRoute,
)
from thermocline.server.api.types.routes import ROUTES
from thermocline.server.iceberg.endpoint import CATALOG_PREFIX, FILES_PREFIX, IcebergEndpoint
from thermocline.server.observe.health import Health
from thermocline.server.observe.log import EventLog
from thermocline.server.observe.metrics import Metrics
from thermocline.server.otlp.memory_budget import MemoryBudget, Reservation

LISTENER = "api"
NO_ROUTE = "none"
CHARGED_BYTES_MIN = 256 << 10  # smaller answers are negligible beside the cost of a connection
_SAFE_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}


def make_app(
    gateway: NodeGateway,
    guard: Guard,
    quota: Quotas,
    metrics: Metrics,
    log: EventLog,
    *,
    health: Health | None = None,
    settings: NodeSettings | None = None,
    audit: Audit | None = None,
    budget: MemoryBudget | None = None,
    hosts: Collection[str] = LOOPBACK_NAMES,
    alerts: AlertKeeper | None = None,
) -> Starlette:
    """Return the application. Its parts are in `app.state.parts`.

    Until the gateway has a node it answers only health. `hosts` are the host names it answers to
    while the node has no key; with keys it answers to any name.
    """
    parts = ApiContext(
        gateway,
        guard,
        quota,
        metrics,
        log,
        health=health or Health(),
        settings=settings,
        audit=audit,
        budget=budget or MemoryBudget(),
        hosts=frozenset(hosts),
        alerts=alerts,
    )
    by_path: dict[str, dict[str, ApiRoute]] = {}
    for route in ROUTES:
        by_path.setdefault(route.path, {})[route.method] = route

    @asynccontextmanager
    async def lifespan(_: Starlette) -> Any:
        yield
        parts.close()

    routes = [
        _PathRoute(path, _PathHandler(parts, found), methods=[*found])
        for path, found in by_path.items()
    ]
    iceberg = IcebergEndpoint(parts)
    for prefix, endpoint in (
        (CATALOG_PREFIX, iceberg.serve_catalog),
        (FILES_PREFIX, iceberg.serve_file),
    ):
        routes.append(_PathRoute(f"{prefix}/{{rest:path}}", _Endpoint(endpoint)))
    app = Starlette(
        routes=routes, middleware=[Middleware(_RequestMiddleware, parts=parts)], lifespan=lifespan
    )
    app.router.redirect_slashes = False
    app.router.default = _PathHandler(parts, {})
    app.state.parts = parts
    app.state.iceberg = iceberg
    return app


class _PathRoute(StarletteRoute):
    """A path with its methods. `_PathHandler` refuses other methods, not Starlette."""

    async def handle(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


class _Endpoint:
    """An ASGI application as Starlette takes it: a class instance is not wrapped."""

    def __init__(self, serve: ASGIApp) -> None:
        self._serve = serve

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        await self._serve(scope, receive, send)


class _RequestMiddleware:
    """The middleware of every request: its id, headers, host check and metrics."""

    def __init__(self, app: ASGIApp, parts: ApiContext) -> None:
        self._app = app
        self._parts = parts

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            # Refuse a websocket by closing it.
            await send({"type": "websocket.close", "code": 1008})
            return
        began_s = time.monotonic()
        headers = Headers(scope=scope)
        request_id = request_id_of(headers)
        scope["thermocline.request_id"] = request_id
        scope["thermocline.route"] = NO_ROUTE
        scope["path"] = _path_of(scope)
        status = 0

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                response_headers = MutableHeaders(scope=message)
                response_headers["X-Request-Id"] = request_id
                for name, value in _SAFE_HEADERS.items():
                    response_headers.setdefault(name, value)
            await send(message)

        try:
            self._check_name(headers)
            await self._app(scope, receive, note_status)
        except ClientGone:
            status = status or 499
        except ThermoclineError as error:
            await _send_error(note_status, error, scope)
        except Exception as error:
            _log_bug(self._parts.log, error, request_id)
            if status:
                raise  # the answer has begun, so uvicorn closes the connection
            await _send_error(note_status, error, scope)
        finally:
            seconds = time.monotonic() - began_s
            self._parts.metrics.count_request(LISTENER, scope["thermocline.route"], status, seconds)

    def _check_name(self, headers: Headers) -> None:
        """Refuse host names of other machines and pages of other origins (DNS rebinding)."""
        if not self._parts.guard.is_open:
            return
        found = host_refusal(self._parts.hosts, headers.getlist("host"), headers.get("origin"))
        if found is HostRefusal.NAME:
            hint = "ask for localhost, or make a key and use any name"
            raise HttpStatusError(found.value, status=421, hint=hint)
        if found is HostRefusal.PAGE:
            raise Forbidden(found.value, hint="make a key, and let the page send it")


async def _send_error(send: Send, error: Exception, scope: AsgiScope) -> None:
    """Send an error in the form of its route."""
    is_problem = scope.get("thermocline.error_form") != PROMETHEUS
    sending = send_problem if is_problem else send_prometheus_error
    await sending(send, error, scope["thermocline.request_id"])


def _log_bug(log: EventLog, error: BaseException, request_id: str) -> None:
    log.event(
        "request failed",
        request_id=request_id,
        error=type(error).__name__,
        why=str(error),
        where=[f"{f.filename}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__)[-5:]],
    )


def _path_of(scope: AsgiScope) -> str:
    """Return the path with each part quoted uniformly, so that a part may contain a slash."""
    raw = scope.get("raw_path") or quote(scope["path"]).encode()
    parts = raw.partition(b"?")[0].decode("latin-1").split("/")
    return "/".join(quote(unquote(part), safe="") for part in parts)


class _PathHandler:
    """One path with the routes of its methods."""

    def __init__(self, parts: ApiContext, routes: dict[str, ApiRoute]) -> None:
        self._parts = parts
        self._routes = routes

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        request_id = scope["thermocline.request_id"]
        try:
            route = self._find_route(scope["method"])
        except HttpStatusError as error:
            allow = ", ".join(sorted(self._routes))
            await send_problem(send, error, request_id, {"Allow": allow})
            return
        scope["thermocline.route"] = route.path
        scope["thermocline.error_form"] = route.error_form
        caller = self._authenticate(route, Headers(scope=scope), scope)
        if route.body is None:
            await self._answer(route, caller, None, scope, receive, send)
            return
        reservation = self._parts.budget.reserve(tenant=caller.tenant)
        try:
            await self._answer(route, caller, reservation, scope, receive, send)
        finally:
            reservation.release()

    async def _answer(
        self,
        route: ApiRoute,
        caller: Caller,
        reservation: Reservation | None,
        scope: AsgiScope,
        receive: Receive,
        send: Send,
    ) -> None:
        headers = Headers(scope=scope)
        request_id = scope["thermocline.request_id"]
        call = ApiRequest(
            parts=self._parts,
            route=route,
            caller=caller,
            request_id=request_id,
            path={name: unquote(part) for name, part in scope.get("path_params", {}).items()},
            headers=headers,
            params=decode_parameters(
                QueryParams(scope.get("query_string", b"")), route.params_type
            ),
            body=await self._read_body(route, caller, headers, receive, reservation),
            http_version=scope.get("http_version", "1.1"),
            receive=receive,
            is_head=scope["method"] == "HEAD",
        )
        if route.stream is not None:
            await route.stream(call, send)
            return
        run = route.run
        assert run is not None, route.name
        threads = self._parts.work if route.scope else self._parts.health_work
        if route.is_between_nodes:
            threads = self._parts.between_nodes
        # A request without a key is charged to its peer.
        owner = caller.tenant if route.scope else f"peer {_peer(scope)}"

        def answer() -> ApiResponse:
            with write_as(caller.key_id, request_id):
                return encode_answer(call, run(call))

        done = await threads.run(answer, tenant=owner, receive=receive)
        # An unsent answer occupies memory like an unprocessed request, so both are charged to one
        # budget.
        size_bytes = len(done.value)
        answered = (
            self._parts.budget.reserve(size_bytes, tenant=caller.tenant)
            if size_bytes > CHARGED_BYTES_MIN
            else None
        )
        try:
            await send_answer(send, done)
        finally:
            if answered is not None:
                answered.release()
        if route.scope == "admin":
            self._parts.log.event(
                "administered",
                route=route.name,
                tenant=call.caller.tenant,
                key_id=call.caller.key_id,
                request_id=request_id,
            )

    def _find_route(self, method: str) -> ApiRoute:
        found = self._routes.get("GET" if method == "HEAD" else method)
        if found is not None:
            return found
        if self._routes:
            hint = f"use {' or '.join(sorted(self._routes))}"
            raise HttpStatusError("this address does not support the method", status=405, hint=hint)
        raise NotFound("there is nothing at this address", hint="/api/docs lists the routes")

    async def _read_body(
        self,
        route: ApiRoute,
        caller: Caller,
        headers: Headers,
        receive: Receive,
        reservation: Reservation | None,
    ) -> Any:
        """Return the body; a raw body keeps its memory reserved until the work is done."""
        if route.body is None or reservation is None:
            return None
        limit_bytes = self._parts.body_bytes_max if route.is_raw else JSON_BYTES_MAX
        _, data = await read_body(
            receive,
            headers,
            route.body_types,
            limit_bytes,
            reservation=reservation,
            run=partial(self._parts.work.run, tenant=caller.tenant),
        )
        if route.is_raw:
            return data
        reservation.release()
        return decode_body(data, route.body)

    def _authenticate(self, route: ApiRoute, headers: Headers, scope: AsgiScope) -> Caller:
        if route.scope is None:
            return ANONYMOUS
        given = headers.getlist("authorization")
        peer = _peer(scope)
        # Two keys count as no key: the node must not choose between them.
        authorization = given[0] if len(given) == 1 else None
        caller = self._parts.guard.caller(authorization, route.scope, peer=peer)
        admit_connection = scope.get(ADMIT_CONNECTION)
        if admit_connection is not None:
            admit_connection(caller.tenant)
        if route.is_operator_only and caller.tenant != ANONYMOUS.tenant:
            raise NotFound("there is nothing at this address", hint="/api/docs lists the routes")
        return caller


def _peer(scope: AsgiScope) -> str:
    """Return the address of the client."""
    return str((scope.get("client") or ("",))[0])
