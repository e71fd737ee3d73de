"""The interface to files: what a table and a lake need of a file system or an object store.

In:   paths relative to the root of the table or the lake, and bytes
Out:  bytes, sizes, listings; errors of this package only

- When `put`, `put_new`, `replace` or `take` returns, the bytes and the name are durable.
- `put_new` alone decides which writer wins: of many callers with one path, exactly one gets True.
  If it raises, the outcome is unknown, and the caller must read the path.
- "Not there" (None, `NotFound`) is a result; every other failure is an error.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file in the store."""

    path: str
    size_bytes: int
    modified_ns: int


@dataclass(frozen=True, slots=True)
class FileChecksum:
    """The size of a stored file and the checksum of its bytes."""

    size_bytes: int
    checksum: str


class Storage(Protocol):
    """The folder of a table or of a lake, wherever it is."""

    @property
    def root(self) -> str:
        """The path or URL of the folder, as a user would write it."""
        ...

    def make_root(self) -> None:
        """Make the folder itself, where folders exist; it is durable when this returns."""
        ...

    def within(self, folder: str) -> "Storage":
        """Return the storage of a folder inside this one."""
        ...

    def probe(self) -> None:
        """Raise `Unsupported` when creates are not atomic here; called before writing."""
        ...

    def read(self, path: str) -> bytes:
        """Return a whole file; `NotFound` when there is none."""
        ...

    def size(self, path: str) -> int | None:
        """Return the size of a file, or None when there is none."""
        ...

    def list(self, folder: str) -> Iterator[StoredFile]:
        """Yield every file below a folder; nothing when there is no such folder."""
        ...

    def list_names(self, folder: str = "") -> Sequence[str]:
        """Return the names of the files and folders directly in a folder; none if it is missing."""
        ...

    def open_input(self, path: str) -> pa.NativeFile:
        """Return a random-access input on a file, unchecked; `NotFound` when there is none."""
        ...

    def check(self, path: str, size_bytes: int, checksum: str, *, fresh: bool = False) -> None:
        """Raise `Corruption` unless a file is there, inside the root, with exactly these bytes.

        Each process reads a file once and remembers the result until the file changes. With `fresh`
        it always reads the file. `NotFound` when the whole table is not there.
        """
        ...

    def locate(self, path: str, size_bytes: int, checksum: str) -> str:
        """Return a checked file's path as the query engine can open it."""
        ...

    def open_segment(
        self, path: str, size_bytes: int, checksum: str, *, fresh: bool = False
    ) -> pa.NativeFile:
        """Return a random-access input on a committed segment, after checking its bytes."""
        ...

    def put(self, path: str, data: bytes) -> None:
        """Write a file under a unique name."""
        ...

    def put_new(self, path: str, data: bytes) -> bool:
        """Write a file if there is none of this name, and tell whether this call did."""
        ...

    def settle(self, path: str) -> None:
        """Make an existing name durable: its writer may have died before syncing it."""
        ...

    def replace(self, path: str, data: bytes) -> None:
        """Write a file in place of the one of this name: readers see the old or the new bytes."""
        ...

    def put_hint(self, path: str, data: bytes) -> None:
        """Write a file that may be lost or stale: a hint, cheaper than `put`."""
        ...

    def open_source(self, source: str) -> pa.NativeFile:
        """Return a random-access input on a caller's local file; `NotFound` when there is none."""
        ...

    def take(self, source: str, path: str, *, link: bool) -> FileChecksum:
        """Copy a local file to a new name, or link it if `link` is set and a link is possible."""
        ...

    def delete(self, path: str) -> None:
        """Remove a file; nothing happens when there is none."""
        ...
