"""Where a table's files live: what the lake needs of a file system or an object store.

In:   paths relative to the table's root, and bytes
Out:  bytes, sizes, listings; errors of this package only

- When `put`, `put_new` or `take` returns, the bytes and the name are durable.
- `put_new` is the one primitive that decides who wins: of many callers with one path, exactly
  one is told True. When it raises, the caller does not know, and must look.
- "Not there" (None, `NotFound`) is an answer; every other trouble is an error.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Stored:
    """A file in the store."""

    path: str
    size_bytes: int
    modified_ns: int


@dataclass(frozen=True, slots=True)
class Taken:
    """A file that was taken in: its size and the checksum of its bytes."""

    size_bytes: int
    checksum: str


class Storage(Protocol):
    """One table's folder, wherever it is."""

    @property
    def root(self) -> str:
        """Where the table is, as a person would write it."""
        ...

    def probe(self) -> None:
        """Raise `Unsupported` when this place cannot decide who wins; called before writing."""
        ...

    def read(self, path: str) -> bytes:
        """Return a whole file; `NotFound` when there is none."""
        ...

    def size(self, path: str) -> int | None:
        """Return the size of a file, or None when there is none."""
        ...

    def list(self, folder: str) -> Iterator[Stored]:
        """Yield every file below a folder; nothing when there is no such folder."""
        ...

    def open_input(self, path: str) -> pa.NativeFile:
        """Return a random-access input on a file, unchecked; `NotFound` when there is none."""
        ...

    def check(self, path: str, size_bytes: int, checksum: str, *, fresh: bool = False) -> None:
        """Raise `Corruption` unless a file is there, inside the root, with exactly these bytes.

        A file is read once by each process and remembered until it changes; a `fresh` look reads
        it again in any case. `NotFound` when the whole table is not there.
        """
        ...

    def locate(self, path: str, size_bytes: int, checksum: str) -> str:
        """Return a checked file's path as the query engine can open it."""
        ...

    def open_segment(
        self, path: str, size_bytes: int, checksum: str, *, fresh: bool = False
    ) -> pa.NativeFile:
        """Return a random-access input on a checked file: the way to read a committed segment."""
        ...

    def put(self, path: str, data: bytes) -> None:
        """Write a file under a name nobody else uses."""
        ...

    def put_new(self, path: str, data: bytes) -> bool:
        """Write a file if there is none of this name, and tell whether this call did."""
        ...

    def settle(self, path: str) -> None:
        """Make a name durable that is there: whoever made it may have died before its sync."""
        ...

    def put_hint(self, path: str, data: bytes) -> None:
        """Write a file that may be lost or stale: a hint, cheaper than `put`."""
        ...

    def open_source(self, source: str) -> pa.NativeFile:
        """Return a random-access input on a caller's local file; `NotFound` when there is none."""
        ...

    def take(self, source: str, path: str, *, link: bool) -> Taken:
        """Take a local file in under a new name, by linking it if asked and possible."""
        ...

    def delete(self, path: str) -> None:
        """Remove a file; nothing happens when there is none."""
        ...
