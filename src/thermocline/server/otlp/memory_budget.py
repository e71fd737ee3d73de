"""The memory budget of all requests in flight, over all clients and listeners.

In:   tenants, and sizes of buffers when they are allocated
Out:  reservations, which count until they are released; `Overloaded` when the budget is spent

- Only new requests are refused: an accepted request is never dropped for lack of memory.
- A request is charged for the bytes that have arrived, not for the announced length: a slow client
  with a large body reserves little.
- Each tenant has a share (`fair_share.py`): its small requests fit however much the others send.
- Only the event loop's thread uses it; there is no lock.
"""

from thermocline.errors import Overloaded
from thermocline.server.access.fair_share import FairShare

ROOM_BYTES_MAX = 256 << 20
REQUEST_BYTES = 4 << 10  # the memory of a request besides its body


class MemoryBudget:
    """The bytes that all requests in flight may reserve together."""

    def __init__(self, bytes_max: int = ROOM_BYTES_MAX) -> None:
        self.share = FairShare(bytes_max)

    @property
    def bytes_max(self) -> int:
        """The bytes that may be held at once."""
        return self.share.total

    @property
    def held_bytes(self) -> int:
        """The bytes that all requests hold."""
        return self.share.held

    def reserve(self, size_bytes: int = 0, *, tenant: str = "") -> "Reservation":
        """Reserve memory for a request of this size; `Overloaded` when it does not fit."""
        made = Reservation(self, tenant)
        made.grow(REQUEST_BYTES + size_bytes)
        return made


class Reservation:
    """The memory reserved for one request, until it is released."""

    __slots__ = ("_share", "_tenant", "size_bytes")

    def __init__(self, budget: MemoryBudget, tenant: str) -> None:
        self._share = budget.share
        self._tenant = tenant
        self.size_bytes = 0

    def grow(self, size_bytes: int) -> None:
        """Reserve more; `Overloaded` when it does not fit, and the reservation is unchanged."""
        share = self._share
        # A request that is alone always fits: other limits bound its size.
        if share.held > self.size_bytes and not share.fits(self._tenant, size_bytes):
            raise Overloaded(
                "more bytes of requests are in flight than the limit or the tenant's share of it",
                hint="send less at once, or later",
                in_flight_bytes=share.held_by.get(self._tenant, 0),
                in_flight_bytes_max=share.total,
            )
        if size_bytes:
            share.take(self._tenant, size_bytes)
            self.size_bytes += size_bytes

    def release(self) -> None:
        """Release everything; a second call has no effect."""
        if self.size_bytes:
            self._share.give_back(self._tenant, self.size_bytes)
            self.size_bytes = 0
