"""The memory budget of all requests in flight, over all clients and listeners.

In:   sizes of buffers, when they are allocated
Out:  reservations, which count until they are released; `Overloaded` when the budget is spent

- Only new requests are refused: an accepted request is never dropped for lack of memory.
- A request is charged for the bytes that have arrived, not for the announced length: a slow client
  with a large body reserves little.
- Only the event loop's thread uses it; there is no lock.
"""

from thermocline.errors import Overloaded

ROOM_BYTES_MAX = 256 << 20
REQUEST_BYTES = 4 << 10  # the memory of a request besides its body


class MemoryBudget:
    """The bytes that all requests in flight may reserve together."""

    def __init__(self, bytes_max: int = ROOM_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0

    def reserve(self, size_bytes: int = 0) -> "Reservation":
        """Reserve memory for a request of this size; `Overloaded` when it does not fit."""
        made = Reservation(self)
        made.grow(REQUEST_BYTES + size_bytes)
        return made


class Reservation:
    """The memory reserved for one request, until it is released."""

    __slots__ = ("_budget", "size_bytes")

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self.size_bytes = 0

    def grow(self, size_bytes: int) -> None:
        """Reserve more; `Overloaded` when it does not fit, and the reservation is unchanged."""
        budget = self._budget
        # A request that is alone always fits: other limits bound its size.
        if (
            budget.held_bytes > self.size_bytes
            and budget.held_bytes + size_bytes > budget.bytes_max
        ):
            raise Overloaded(
                "more bytes of requests are in flight than the limit",
                hint="send less at once, or later",
                in_flight_bytes=budget.held_bytes,
                in_flight_bytes_max=budget.bytes_max,
            )
        budget.held_bytes += size_bytes
        self.size_bytes += size_bytes

    def release(self) -> None:
        """Release everything; a second call has no effect."""
        self._budget.held_bytes -= self.size_bytes
        self.size_bytes = 0
