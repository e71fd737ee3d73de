"""The interface to the operating system's files; every file access goes through it.

In:   absolute paths and bytes
Out:  bytes, sizes, names; `OSError` as the operating system raised it, until `translate_errors`
      turns it into an error of this package

- A name is durable only after `sync_folder` of its folder, bytes only after `FileWriter.sync`.
  Nothing here syncs unasked: durability follows from the caller's order of calls.
- A failed `sync` must not be retried on the same file: the kernel may have dropped the bytes and
  would report success the second time.
- `size` and `stamp` return None only if the name does not exist; every other failure raises.

Tests replace `OsDisk` by a simulated disk, so no other module may touch files.
"""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, Protocol

import pyarrow as pa

from thermocline.errors import Invalid, NotFound, Overloaded, ThermoclineError, Unavailable

COPY_CHUNK_BYTES = 4 << 20
_NO_FOLDER_LOCKS = (errno.EBADF, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """One name in a folder."""

    name: str
    size_bytes: int
    modified_ns: int
    is_folder: bool


class FileStamp(NamedTuple):
    """The operating system's metadata of a file; if the bytes change, the stamp changes."""

    device: int
    inode: int
    size_bytes: int
    modified_ns: int
    changed_ns: int


class FileWriter(Protocol):
    """A new file being written; bytes are durable after `sync` and not before."""

    def write(self, data: bytes | memoryview) -> int: ...

    def sync(self) -> None: ...

    def cut(self, size_bytes: int) -> None: ...

    def close(self) -> None: ...


class Slot(Protocol):
    """A small file that is overwritten in place; its bytes are never guaranteed to be durable."""

    def put(self, data: bytes) -> None: ...

    def close(self) -> None: ...


class Lock(Protocol):
    """An exclusive lock on a file, held until this process releases it or ends."""

    def release(self) -> None: ...


class OpenFile(Protocol):
    """An open file, which tells whether its path still names the same file."""

    def is_current(self) -> bool: ...

    def close(self) -> None: ...


class FileReader(Protocol):
    """An open file being read from its start."""

    def read(self, size_bytes: int) -> bytes: ...

    def close(self) -> None: ...


class Disk(Protocol):
    """What the lake and the journal need of a file system."""

    def read(self, path: str) -> bytes: ...

    def size(self, path: str) -> int | None: ...

    def stamp(self, path: str) -> FileStamp | None: ...

    def resolve(self, path: str) -> str: ...

    def is_link(self, path: str) -> bool: ...

    def open_input(self, path: str) -> pa.NativeFile: ...

    def open_reader(self, path: str) -> FileReader: ...

    def create(self, path: str) -> FileWriter: ...

    def link(self, source: str, target: str) -> None: ...

    def rename(self, source: str, target: str) -> None: ...

    def unlink(self, path: str) -> None: ...

    def make_folder(self, path: str, *, is_private: bool = False) -> None: ...

    def sync_folder(self, path: str) -> None: ...

    def sync_file(self, path: str) -> None: ...

    def entries(self, path: str) -> list[FolderEntry]: ...

    def open_slot(self, path: str) -> Slot: ...

    def lock(self, path: str, note: bytes) -> Lock: ...

    def lock_folder(self, path: str) -> Lock: ...

    def pin(self, path: str) -> OpenFile: ...

    def boot_id(self) -> bytes: ...


class OsWriter:
    """A file of the operating system opened for writing, never for overwriting."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def write(self, data: bytes | memoryview) -> int:
        """Write all of `data`, continuing after a short write."""
        rest = memoryview(data).cast("B")
        size_bytes = len(rest)
        while rest:
            rest = rest[os.write(self._fd, rest) :]
        return size_bytes

    def sync(self) -> None:
        """Make the bytes written so far durable, and the size with them."""
        os.fdatasync(self._fd)

    def cut(self, size_bytes: int) -> None:
        """Truncate the file to a size; the next write continues there."""
        os.ftruncate(self._fd, size_bytes)
        os.lseek(self._fd, size_bytes, os.SEEK_SET)

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


class OsSlot:
    """A small file of the operating system, overwritten in place."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def put(self, data: bytes) -> None:
        """Overwrite the start of the file; other processes see the data at once."""
        if os.pwrite(self._fd, data, 0) != len(data):
            raise OSError(errno.EIO, "short write")

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


class OsLock:
    """A lock of the operating system, released at the latest when the process ends."""

    def __init__(self, path: str, note: bytes) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, note, 0)
        except OSError:
            os.close(self._fd)
            raise

    def release(self) -> None:
        """Release the lock."""
        os.close(self._fd)


class OsFolderLock:
    """A lock on a folder itself: it persists whatever names in the folder are removed.

    On a file system that cannot lock folders (NFS), it locks nothing.
    """

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _NO_FOLDER_LOCKS:
                os.close(self._fd)
                raise

    def release(self) -> None:
        """Release the lock."""
        os.close(self._fd)


class OsPin:
    """An open file of the operating system; while it is open, no other file has its inode."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._status = os.fstat(self._fd)

    def is_current(self) -> bool:
        """Return whether the path names this file: one `stat`."""
        try:
            return os.path.samestat(os.stat(self._path), self._status)
        except (FileNotFoundError, NotADirectoryError):
            return False

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
        """Return the size of a file, or of a link itself; None if the name does not exist."""
        try:
            return os.stat(path, follow_symlinks=False).st_size
        except FileNotFoundError:
            return None

    def stamp(self, path: str) -> FileStamp | None:
        """Return the stamp of a file, or of a link itself; None if the name does not exist."""
        try:
            found = os.stat(path, follow_symlinks=False)
        except FileNotFoundError:
            return None
        return FileStamp(
            found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
        )

    def resolve(self, path: str) -> str:
        """Return the path with every symbolic link followed."""
        return os.path.realpath(path)

    def is_link(self, path: str) -> bool:
        """Tell whether a path is itself a symbolic link."""
        return os.path.islink(path)

    def open_input(self, path: str) -> pa.NativeFile:
        """Return a random-access input that Parquet readers can use without copying."""
        return pa.memory_map(path, "r")

    def open_reader(self, path: str) -> FileReader:
        """Return the file opened for reading in sequence."""
        return OsReader(path)

    def create(self, path: str) -> FileWriter:
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

    def make_folder(self, path: str, *, is_private: bool = False) -> None:
        """Create a folder, for this user only if asked; `FileExistsError` if the name is taken."""
        os.mkdir(path, 0o700 if is_private else 0o777)

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

    def entries(self, path: str) -> list[FolderEntry]:
        """Return the names in a folder, in no order."""
        found = []
        with os.scandir(path) as scan:
            for item in scan:
                try:
                    status = item.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # removed between the listing and the `stat`
                folder = item.is_dir(follow_symlinks=False)
                found.append(FolderEntry(item.name, status.st_size, status.st_mtime_ns, folder))
        return found

    def open_slot(self, path: str) -> Slot:
        """Open a small file for overwriting in place; create it if need be."""
        return OsSlot(path)

    def lock(self, path: str, note: bytes) -> Lock:
        """Lock a file and write a note to it; `BlockingIOError` if another process has the lock."""
        return OsLock(path, note)

    def lock_folder(self, path: str) -> Lock:
        """Lock a folder itself; `BlockingIOError` if another process has the lock."""
        return OsFolderLock(path)

    def pin(self, path: str) -> OpenFile:
        """Open a file, to tell later whether its path still names the same file."""
        return OsPin(path)

    def boot_id(self) -> bytes:
        """Return 16 bytes that identify this boot of the machine, all zero if unknown."""
        return _boot_id()


@cache
def _boot_id() -> bytes:
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return bytes.fromhex(file.read().decode().strip().replace("-", ""))
    except (OSError, ValueError):
        return bytes(16)


@contextmanager
def translate_errors(path: str) -> Iterator[None]:
    """Turn errors of the operating system into errors of this package that name the path."""
    try:
        yield
    except OSError as error:
        raise translate_error(error, path) from error


def translate_error(error: OSError, path: str) -> ThermoclineError:
    """Return the error of this package for an error of the operating system."""
    facts = {"path": path, "error": os.strerror(error.errno) if error.errno else str(error)}
    match error.errno:
        case errno.ENOENT | errno.ENOTDIR:
            return NotFound("no such file", hint="check the path", **facts)
        case errno.ENOSPC | errno.EDQUOT:
            return Unavailable("the disk is full", hint="free space, then try again", **facts)
        case errno.EACCES | errno.EPERM | errno.EROFS:
            hint = "make the folder writable for this user, then try again"
            return Unavailable("the file system does not allow this", hint=hint, **facts)
        case errno.EMFILE | errno.ENFILE:
            hint = "raise `ulimit -n`, or do less at once"
            return Overloaded("too many open files", hint=hint, **facts)
        case errno.EISDIR | None if error.errno or "is a directory" in str(error):
            return Invalid("a folder where a file is needed", hint="name a file", **facts)
    return Unavailable("the disk failed", hint="check the machine, then try again", **facts)
