"""Random access to bytes that are fetched in ranges.

In:   the size of something, and a way to fetch a range of it
Out:  a file that Arrow can read from anywhere

- A read returns all the bytes asked for, up to the end. If the fetch function returns fewer bytes,
  that is an error, never a shorter read.
- One range at a time is buffered, of at least `READ_AHEAD_BYTES`. Not thread-safe; Arrow locks
  around its reads.
"""

import io
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from thermocline.errors import Corruption

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

READ_AHEAD_BYTES = 1 << 20


class RangeReader(io.RawIOBase):
    """A file of known size whose bytes are fetched when they are read."""

    def __init__(self, size_bytes: int, fetch: Callable[[int, int], memoryview]) -> None:
        self._size_bytes = size_bytes
        self._fetch = fetch
        self._position = 0
        self._held = memoryview(b"")
        self._held_from = 0

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a position and return it."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size_bytes}
        self._position = max(0, base[whence] + offset)
        return self._position

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Fill the buffer, or as much of it as remains before the end."""
        target = memoryview(buffer).cast("B")
        length = max(0, min(len(target), self._size_bytes - self._position))
        start = self._position - self._held_from
        if not 0 <= start <= start + length <= len(self._held):
            self._fetch_ahead(length)
            start = 0
        target[:length] = self._held[start : start + length]
        self._position += length
        return length

    def _fetch_ahead(self, length: int) -> None:
        wanted = min(max(length, READ_AHEAD_BYTES), self._size_bytes - self._position)
        held = self._fetch(self._position, wanted)
        if len(held) != wanted:
            raise Corruption(
                "a range of a file was shorter than requested",
                hint="the file was changed while it was read; restore it from a copy",
                expected_bytes=wanted,
                found_bytes=len(held),
            )
        self._held, self._held_from = held, self._position
