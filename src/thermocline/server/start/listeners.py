"""Builds a node's listeners from its settings.

In:   a server with its guard, quotas, metrics, log and settings
Out:  the ingest queue, and the listeners in the order to start them

- Requests in flight on all listeners share one memory budget.
- A listener with the address `off` is not built.
- Connections leave descriptors for files: their limit is lowered if the process may open too few.
"""

import socket
from typing import TYPE_CHECKING

from thermocline.config import Address
from thermocline.server.access.accept_gate import ConnectionPlaces, reserve_files
from thermocline.server.access.fair_share import Share
from thermocline.server.access.host_check import LOOPBACK_NAMES
from thermocline.server.api.context import ApiContext
from thermocline.server.api.http.app import make_app
from thermocline.server.otlp.http import OtlpHttp
from thermocline.server.otlp.http1.route import HttpLimits
from thermocline.server.otlp.ingest_queue import IngestQueue, Receiver
from thermocline.server.otlp.memory_budget import MemoryBudget
from thermocline.server.start.api_listener import ApiListener, bind_error

if TYPE_CHECKING:
    from thermocline.server.flight.listener import FlightListener
    from thermocline.server.otlp.grpc import OtlpGrpc
    from thermocline.server.start.serve import NodeServer

_SHARES = {"http": "http_connections", "grpc": "grpc_streams", "api": "api_connections"}
"""The class of cost that tenants share on a listener."""


class BoundListener:
    """A listener that raises an error of this package when its address is in use."""

    def __init__(
        self,
        listener: "OtlpHttp | OtlpGrpc | ApiListener | FlightListener",
        address: Address,
        parts: ApiContext | None = None,
        share: Share | None = None,
    ) -> None:
        """`parts` is the context of a listener that runs queries; tenants share its `share`."""
        self._listener = listener
        self._address = address
        self.parts = parts
        self.share = share

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return int(self._listener.port)

    async def start(self) -> None:
        """Listen."""
        try:
            await self._listener.start()
        except OSError as error:
            raise bind_error(self._address, error) from error

    async def stop(self, deadline_s: float) -> None:
        """Stop within the deadline."""
        await self._listener.stop(deadline_s)


def make_listeners(server: "NodeServer") -> tuple[IngestQueue | None, dict[str, BoundListener]]:
    """Return the ingest queue, if a listener uses it, and the listeners in the order to start."""
    settings = server.settings
    budget = MemoryBudget(settings.inflight_bytes_max)
    queue: IngestQueue | None = None
    made: dict[str, BoundListener] = {}
    connections_max = reserve_files(settings.connections_max, len(settings.listeners()))
    if connections_max < settings.connections_max:
        server.log.event(
            "fewer connections than set",
            connections_max=connections_max,
            why="the process may open too few files (ulimit -n)",
        )
    if settings.http is not None or settings.grpc is not None:
        care = settings.care
        queue = IngestQueue(
            server.gateway,
            body_bytes_max=settings.body_bytes_max,
            retention_s={
                "metrics": care.metrics_retention_s,
                "logs": care.logs_retention_s,
                "spans": care.spans_retention_s,
            },
        )
        receiver = Receiver(queue, budget, server.gateway, server.quotas, server.metrics)
        if settings.http is not None:
            made["http"] = _make_http(server, receiver, settings.http, connections_max)
        if settings.grpc is not None:
            made["grpc"] = _make_grpc(server, receiver, settings.grpc, connections_max)
    if settings.api is not None:
        made["api"] = _make_api(server, budget, settings.api, connections_max)
    if settings.flight is not None:
        parts = made["api"].parts if "api" in made else None
        made["flight"] = _make_flight(server, parts, budget, settings.flight)
    parts = made["api"].parts if "api" in made else None
    if parts is not None:
        shares = {_SHARES[name]: one.share for name, one in made.items() if one.share is not None}
        parts.shares.update(shares)
    server.metrics.watch_refusals(server.quotas.refusals)
    return queue, made


def _make_http(
    server: "NodeServer", receiver: Receiver, address: Address, connections_max: int
) -> BoundListener:
    settings = server.settings
    limits = HttpLimits(body_bytes_max=settings.body_bytes_max, connections_max=connections_max)
    host, port = address
    places = ConnectionPlaces(connections_max)
    listener = OtlpHttp(
        receiver,
        host=host,
        port=port,
        limits=limits,
        tls=server.tls,
        hosts=_host_names(address),
        is_open=lambda: server.guard.is_open,
        origins=settings.cors_origins.split(),
        places=places,
    )
    return BoundListener(listener, address, share=places.share)


def _make_grpc(
    server: "NodeServer", receiver: Receiver, address: Address, connections_max: int
) -> BoundListener:
    from thermocline.server.otlp.grpc import OtlpGrpc

    settings = server.settings
    certificate = server.certificate
    host = f"[{address.host}]" if ":" in address.host else address.host
    listener = OtlpGrpc(
        receiver,
        host=host,
        port=address.port,
        message_bytes_max=settings.body_bytes_max,
        connections_max=connections_max,
        credentials=None if certificate is None else certificate.grpc_credentials(),
    )
    return BoundListener(listener, address, share=listener.reading)


def _host_names(address: Address) -> frozenset[str]:
    """Return the host names that a listener answers to while the node has no key."""
    return LOOPBACK_NAMES | {address.host.lower(), socket.gethostname().lower()}


def _make_api(
    server: "NodeServer", budget: MemoryBudget, address: Address, connections_max: int
) -> BoundListener:
    settings = server.settings
    app = make_app(
        server.gateway,
        server.guard,
        server.quotas,
        server.metrics,
        server.log,
        health=server.health,
        settings=settings,
        audit=server.audit,
        budget=budget,
        hosts=_host_names(address),
        alerts=server.alerts,
    )
    places = ConnectionPlaces(connections_max)
    listener = ApiListener(
        app,
        address,
        connections_max=connections_max,
        tls=server.tls,
        certificate=settings.tls_certificate,
        places=places,
    )
    return BoundListener(listener, address, app.state.parts, places.share)


def _make_flight(
    server: "NodeServer", parts: ApiContext | None, budget: MemoryBudget, address: Address
) -> BoundListener:
    """Return the listener of Flight SQL; it shares the parts of the API, if there is one."""
    from thermocline.server.flight.listener import FlightListener

    if parts is None:
        parts = ApiContext(
            server.gateway,
            server.guard,
            server.quotas,
            server.metrics,
            server.log,
            health=server.health,
            settings=server.settings,
            audit=server.audit,
            budget=budget,
        )
    certificate = server.certificate
    listener = FlightListener(
        parts,
        address,
        connections_max=server.settings.connections_max,
        credentials=None if certificate is None else certificate.grpc_credentials(),
    )
    return BoundListener(listener, address, parts)
