"""How many bytes of requests may be in memory at once, whoever sent them.

In:   sizes of buffers, as they are made
Out:  holds that give the room back; `Overloaded` when there is none

- What is refused was not begun: nothing that was taken is dropped for want of room.
- A request is charged for what has arrived of it, not for what it promises: slow senders of large
  bodies hold little.
- One thread, that of the event loop; nothing is locked.
"""

from thermocline.errors import Overloaded

ROOM_BYTES_MAX = 256 << 20
REQUEST_BYTES = 4 << 10  # what a request costs beside its body


class Room:
    """The bytes that all requests in flight may have together."""

    def __init__(self, bytes_max: int = ROOM_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0

    def hold(self, size_bytes: int = 0) -> "Hold":
        """Return a hold for a request of this size; `Overloaded` when it does not fit."""
        made = Hold(self)
        made.grow(REQUEST_BYTES + size_bytes)
        return made


class Hold:
    """The room of one request, until it is released."""

    __slots__ = ("_room", "size_bytes")

    def __init__(self, room: Room) -> None:
        self._room = room
        self.size_bytes = 0

    def grow(self, size_bytes: int) -> None:
        """Take more room; `Overloaded` when there is none, and then this holds what it held."""
        room = self._room
        # A request that is alone has room whatever its size: other limits say how large it may be.
        if room.held_bytes > self.size_bytes and room.held_bytes + size_bytes > room.bytes_max:
            raise Overloaded(
                "more bytes of requests are in flight than the limit",
                hint="send less at once, or later",
                in_flight_bytes=room.held_bytes,
                in_flight_bytes_max=room.bytes_max,
            )
        room.held_bytes += size_bytes
        self.size_bytes += size_bytes

    def release(self) -> None:
        """Give all of it back; doing it twice is doing it once."""
        self._room.held_bytes -= self.size_bytes
        self.size_bytes = 0
