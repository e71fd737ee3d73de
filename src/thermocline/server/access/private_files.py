"""Files that only this user can read: keys, audit lines, locks.

In:   paths and bytes
Out:  durable files with mode 0600, which replace older ones atomically

- A file that root writes gets the owner of its folder: the node, which runs as that owner, must be
  able to read it.
- A file is changed under the lock beside it, by one process at a time.
"""

import os
import time as clock
from collections.abc import Iterator
from contextlib import contextmanager

from thermocline.disk import FileWriter, OsDisk, OsWriter, translate_errors
from thermocline.errors import Conflict
from thermocline.hot.wal.folder import replace_file

LOCK_WAIT_S = 5.0
LOCK_POLL_S = 0.01
FILE_MODE = 0o600


class _PrivateWriter(OsWriter):
    """A new file that is created with mode 0600."""

    def __init__(self, path: str) -> None:
        self._fd = _open_private(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)


class PrivateDisk(OsDisk):
    """The file system of this machine; only this user can read the files it creates."""

    def create(self, path: str) -> FileWriter:
        """Create a new file with mode 0600; `FileExistsError` when it exists."""
        return _PrivateWriter(path)


def _open_private(path: str, flags: int) -> int:
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
    try:
        os.fchmod(fd, FILE_MODE)  # an existing file may have another mode
        if os.geteuid() == 0:
            owner = os.stat(os.path.dirname(path))
            os.fchown(fd, owner.st_uid, owner.st_gid)
    except BaseException:
        os.close(fd)
        raise
    return fd


def write_private(path: str, data: bytes) -> None:
    """Write a file, or replace it atomically; it is durable when this returns."""
    with translate_errors(path):
        replace_file(PrivateDisk(), os.path.dirname(path), path, data)


def append_line(path: str, line: bytes, *, is_durable: bool) -> int:
    """Append a line in one write and return the file's size; raises `OSError` untranslated."""
    fd = _open_private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(fd, line)
        if is_durable:
            os.fdatasync(fd)
        return os.fstat(fd).st_size
    finally:
        os.close(fd)


@contextmanager
def hold_lock(path: str, *, what: str, wait_s: float = LOCK_WAIT_S) -> Iterator[None]:
    """Hold a lock file while the block runs; `Conflict` if another process holds it too long."""
    with translate_errors(path):
        os.close(_open_private(path, os.O_RDWR | os.O_CREAT))
        lock = None
        end_s = clock.monotonic() + wait_s
        while lock is None:
            try:
                lock = OsDisk().lock(path, f"{os.getpid()}\n".encode())
            except BlockingIOError as error:
                if clock.monotonic() >= end_s:
                    process = OsDisk().read(path).decode(errors="replace").strip()
                    raise Conflict(
                        f"another process {what}",
                        hint="wait until that process is done, then try again",
                        path=path,
                        process=process,
                    ) from error
                clock.sleep(LOCK_POLL_S)
    try:
        yield
    finally:
        lock.release()
