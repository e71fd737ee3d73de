"""Accepts the connections of one listener: who may have a place, and whose place is taken away.

In:   a listening socket; the protocol of each connection; the peer's address
Out:  connections within the limit, each known by its peer until a request shows its tenant

- A connection counts from the moment it is accepted, before its TLS handshake, which has a
  deadline of `HANDSHAKE_WAIT_S`.
- A connection is silent until a request on it has shown a valid key. When every place is taken, the
  oldest silent connection of the peer that has most of them is closed for the new one. So clients
  that connect and say nothing displace each other, never a client with a key, and a health probe
  always finds a place.
- Connections with a key are shared fairly among tenants (`fair_share.py`).
- When the process has no file descriptor left, the gate pauses for `PAUSE_S`. `reserve_files`
  limits connections so that this does not happen: files and queries keep a reserve.

Only the event loop's thread uses it.
"""

import asyncio
import ipaddress
import resource
import socket
import ssl
from collections.abc import Callable

from thermocline.errors import Overloaded
from thermocline.server.access.fair_share import FairShare

HANDSHAKE_WAIT_S = 5.0
PAUSE_S = 0.2
ACCEPTS_AT_ONCE = 64
BACKLOG = 1_024
PROBE_PARTS = 16
FILES_RESERVED = 512
"""Descriptors that connections never use: journal, segments, workers, logs."""
IPV6_PREFIX = 64
"""The bits of an IPv6 address that name a site: one client may have all addresses below."""


class GatedProtocol(asyncio.BaseProtocol):
    """A connection's protocol; the gate sets `place` before the connection is made."""

    place: "Place | None" = None

    def abort(self) -> None:
        """Close the connection at once, if it is made."""
        raise NotImplementedError


class Place:
    """The place of one connection among those of its listener."""

    __slots__ = ("_close", "_gate", "_is_open", "peer", "tenant")

    def __init__(self, gate: "ConnectionPlaces", peer: str, close: Callable[[], None]) -> None:
        self._gate = gate
        self._close = close
        self._is_open = True
        self.peer = peer
        self.tenant: str | None = None

    def admit(self, tenant: str) -> None:
        """Charge the connection to a tenant whose key it has shown.

        `Overloaded` if the tenant has its share of the connections.
        """
        if self.tenant is None and self._is_open:
            self._gate.admit(self, tenant)

    def close(self) -> None:
        """Close the connection; the place is released."""
        self._close()
        self.release()

    def release(self) -> None:
        """Return the place; a second call has no effect."""
        if self._is_open:
            self._is_open = False
            self._gate.remove(self)


class ConnectionPlaces:
    """The places of one listener's connections."""

    def __init__(self, places_max: int) -> None:
        self.places_max = places_max
        self.count = 0
        self.silent: dict[str, dict[Place, None]] = {}  # by peer, the oldest first
        # A sixteenth is never for keys, so that a probe finds a place when tenants use all others.
        self.share = FairShare(places_max - places_max // PROBE_PARTS)

    def enter(self, address: str, close: Callable[[], None]) -> Place | None:
        """Return a place, if need be one of a silent connection; None if all have shown a key."""
        if self.count >= self.places_max and not self._displace():
            return None
        place = Place(self, _site(address), close)
        self.count += 1
        self.silent.setdefault(place.peer, {})[place] = None
        return place

    def _displace(self) -> bool:
        """Close the oldest silent connection of the peer that has most of them."""
        if not self.silent:
            return False
        most = max(self.silent.values(), key=len)
        next(iter(most)).close()
        return True

    def admit(self, place: Place, tenant: str) -> None:
        """Move a silent connection to its tenant; `Overloaded` beyond the tenant's share."""
        if not self.share.fits(tenant, 1):
            raise Overloaded(
                "the tenant has as many connections as its share allows",
                hint="use fewer connections, and keep them open",
                connections=self.share.held_by.get(tenant, 0),
                connections_max=self.places_max,
            )
        self._remove_silent(place)
        self.share.take(tenant, 1)
        place.tenant = tenant

    def remove(self, place: Place) -> None:
        """Forget a closed connection."""
        self.count -= 1
        if place.tenant is None:
            self._remove_silent(place)
        else:
            self.share.give_back(place.tenant, 1)

    def _remove_silent(self, place: Place) -> None:
        places = self.silent[place.peer]
        del places[place]
        if not places:
            del self.silent[place.peer]


class AcceptGate:
    """Accepts connections on one socket, and hands each to its protocol."""

    def __init__(
        self,
        listening: socket.socket,
        make_protocol: Callable[[], GatedProtocol],
        places: ConnectionPlaces,
        *,
        tls: ssl.SSLContext | None = None,
        refusal: bytes = b"",
        handshake_wait_s: float | None = None,
    ) -> None:
        """`refusal` is what a client reads for which there is no place, without TLS."""
        self._listening = listening
        self._make_protocol = make_protocol
        self._places = places
        self._tls = tls
        self._refusal = refusal
        self._handshake_wait_s = HANDSHAKE_WAIT_S if handshake_wait_s is None else handshake_wait_s
        self._loop = asyncio.get_running_loop()
        self._starting: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        self._loop.add_reader(listening.fileno(), self._accept)

    def close(self) -> None:
        """Accept no more, and end the connections whose handshake is not complete."""
        if self._listening.fileno() >= 0:
            self._loop.remove_reader(self._listening.fileno())
            self._listening.close()
        if self._pause is not None:
            self._pause.cancel()
        for task in self._starting:
            task.cancel()

    async def wait_closed(self) -> None:
        """Return at once: the server waits for its connections itself."""

    def _accept(self) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                accepted, address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                self._wait_for_files()
                return
            accepted.setblocking(False)
            self._open(accepted, str(address[0]) if address else "")

    def _wait_for_files(self) -> None:
        """Accept nothing for a moment: the process or the system is out of descriptors."""
        number = self._listening.fileno()
        if number < 0:
            return
        self._loop.remove_reader(number)
        self._pause = self._loop.call_later(PAUSE_S, self._continue)

    def _continue(self) -> None:
        if self._listening.fileno() >= 0:
            self._loop.add_reader(self._listening.fileno(), self._accept)

    def _open(self, accepted: socket.socket, address: str) -> None:
        protocol = self._make_protocol()
        starting: asyncio.Task[None] | None = None

        def close() -> None:
            if starting is not None and not starting.done():
                starting.cancel()
            protocol.abort()

        place = self._places.enter(address, close)
        if place is None:
            self._refuse(accepted)
            return
        protocol.place = place
        starting = self._loop.create_task(self._start(accepted, protocol))
        self._starting.add(starting)

        def finish(task: asyncio.Task[None]) -> None:
            self._starting.discard(task)
            # A client that fails its handshake, is too slow for it, or was displaced.
            if task.cancelled() or task.exception() is not None:
                place.release()
                accepted.close()

        starting.add_done_callback(finish)

    async def _start(self, accepted: socket.socket, protocol: GatedProtocol) -> None:
        """Complete the TLS handshake, if there is one, and give the socket to its protocol."""
        await self._loop.connect_accepted_socket(
            lambda: protocol,
            accepted,
            ssl=self._tls,
            ssl_handshake_timeout=None if self._tls is None else self._handshake_wait_s,
        )

    def _refuse(self, accepted: socket.socket) -> None:
        if self._refusal and self._tls is None:
            try:
                accepted.send(self._refusal)
                accepted.shutdown(socket.SHUT_WR)
            except OSError:
                pass
        accepted.close()


def _site(address: str) -> str:
    """Return the address of a peer, or for IPv6 the network of its site."""
    if ":" not in address:
        return address
    try:
        found = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((found, IPV6_PREFIX), strict=False))


def reserve_files(connections_max: int, listeners: int) -> int:
    """Return how many connections each listener may have, so that descriptors remain for files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return connections_max
    reserve = min(FILES_RESERVED, soft // 2)
    return max(1, min(connections_max, (soft - reserve) // max(1, listeners)))
