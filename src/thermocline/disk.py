"""Every call to the operating system's files, behind one seam.

In:   absolute paths and bytes
Out:  bytes, sizes, names; `OSError` as the operating system raised it

- A name is durable only after `sync_folder` of the folder that holds it, bytes only after
  `Writer.sync`. Nothing here syncs on its own: the caller's order is the proof.
- A failed `sync` is never repeated on the same file: the kernel may have dropped the bytes
  and will report success the second time.
- `size` answers None only for "there is nothing of this name"; every other trouble is raised.

Tests put a simulated disk in the place of `OsDisk`; that is why no other module touches files.
"""

import os
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

COPY_CHUNK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in a folder."""

    name: str
    size_bytes: int
    modified_ns: int
    is_folder: bool


class Writer(Protocol):
    """A new file being written; bytes are durable after `sync` and not before."""

    def write(self, data: bytes | memoryview) -> int: ...

    def sync(self) -> None: ...

    def close(self) -> None: ...


class Reader(Protocol):
    """An open file being read from its start."""

    def read(self, size_bytes: int) -> bytes: ...

    def close(self) -> None: ...


class Disk(Protocol):
    """What the lake and the journal need of a file system."""

    def read(self, path: str) -> bytes: ...

    def size(self, path: str) -> int | None: ...

    def resolve(self, path: str) -> str: ...

    def open_input(self, path: str) -> pa.NativeFile: ...

    def open_reader(self, path: str) -> Reader: ...

    def create(self, path: str) -> Writer: ...

    def link(self, source: str, target: str) -> None: ...

    def rename(self, source: str, target: str) -> None: ...

    def unlink(self, path: str) -> None: ...

    def make_folder(self, path: str) -> None: ...

    def sync_folder(self, path: str) -> None: ...

    def sync_file(self, path: str) -> None: ...

    def entries(self, path: str) -> list[Entry]: ...


class OsWriter:
    """A file of the operating system opened for writing, never for overwriting."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def write(self, data: bytes | memoryview) -> int:
        """Write all of `data`: a short write is continued, never reported as whole."""
        rest = memoryview(data).cast("B")
        size_bytes = len(rest)
        while rest:
            rest = rest[os.write(self._fd, rest) :]
        return size_bytes

    def sync(self) -> None:
        """Make the bytes written so far durable."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Close the file; an error here counts as a failed sync."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


class OsReader:
    """A file of the operating system opened for reading in sequence."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self, size_bytes: int) -> bytes:
        """Return up to `size_bytes`, empty at the end."""
        return os.read(self._fd, size_bytes)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


class OsDisk:
    """The file system of this machine."""

    def read(self, path: str) -> bytes:
        """Return the whole file."""
        with open(path, "rb", buffering=0) as file:
            return file.read()

    def size(self, path: str) -> int | None:
        """Return the size of what has this name, a link itself, or None when nothing has."""
        try:
            return os.stat(path, follow_symlinks=False).st_size
        except FileNotFoundError:
            return None

    def resolve(self, path: str) -> str:
        """Return the path with every symbolic link followed."""
        return os.path.realpath(path)

    def open_input(self, path: str) -> pa.NativeFile:
        """Return a random-access input that Parquet readers can use without copying."""
        return pa.memory_map(path, "r")

    def open_reader(self, path: str) -> Reader:
        """Return the file opened for reading in sequence."""
        return OsReader(path)

    def create(self, path: str) -> Writer:
        """Create a new file; `FileExistsError` when the name is taken."""
        return OsWriter(path)

    def link(self, source: str, target: str) -> None:
        """Give `source` a second name; `FileExistsError` when it is taken. Atomic."""
        os.link(source, target)

    def rename(self, source: str, target: str) -> None:
        """Move `source` onto `target`, replacing it. Atomic."""
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        """Remove a name."""
        os.unlink(path)

    def make_folder(self, path: str) -> None:
        """Create a folder; `FileExistsError` when the name is taken."""
        os.mkdir(path)

    def sync_folder(self, path: str) -> None:
        """Make the names in the folder durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_file(self, path: str) -> None:
        """Make the bytes of an existing file durable."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def entries(self, path: str) -> list[Entry]:
        """Return the names in a folder, in no order."""
        found = []
        with os.scandir(path) as scan:
            for item in scan:
                try:
                    status = item.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # removed between the listing and the look
                folder = item.is_dir(follow_symlinks=False)
                found.append(Entry(item.name, status.st_size, status.st_mtime_ns, folder))
        return found
