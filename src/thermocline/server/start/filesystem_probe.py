"""Tests that a folder's file system gives the guarantees that a node depends on.

In:   a folder that exists
Out:  `Unsupported` when a guarantee does not hold; the time of an fsync; the kind of file system

- Guarantees: only one process can create a name; an fsync of bytes and names succeeds; a lock
  excludes other processes. Network and overlay file systems may break one of them silently.
- The probe's files are hidden, and removed afterwards.
"""

import os
import time as clock
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from thermocline.disk import OsDisk, translate_errors
from thermocline.errors import Unsupported

PROBE_BYTES = 4_096
_HINT = "put the data on a local file system, such as ext4 or xfs"
REMOTE = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs", "lustre", "afs"})
FLEETING = frozenset({"tmpfs", "ramfs", "overlay", "aufs"})


@contextmanager
def _probe_names(folder: str, count: int) -> Iterator[list[str]]:
    stem = f"{folder}/.probe-{uuid.uuid4().hex}"
    names = [f"{stem}-{place}.tmp" for place in range(count)]
    try:
        yield names
    finally:
        for name in names:
            with suppress(OSError):
                OsDisk().unlink(name)


def _write_probe(path: str) -> None:
    writer = OsDisk().create(path)
    try:
        writer.write(bytes(PROBE_BYTES))
        writer.sync()
    finally:
        writer.close()


def probe_link(folder: str) -> None:
    """Test that an existing name cannot be linked again."""
    disk = OsDisk()
    with translate_errors(folder), _probe_names(folder, 3) as (one, two, name):
        _write_probe(one)
        _write_probe(two)
        try:
            disk.link(one, name)
        except OSError as error:
            raise Unsupported(
                "the file system does not support hard links", hint=_HINT, folder=folder
            ) from error
        try:
            disk.link(two, name)
        except FileExistsError:
            return
    raise Unsupported("the file system lets a name be created twice", hint=_HINT, folder=folder)


def probe_sync(folder: str) -> float:
    """Test that bytes and names can be synced; return the seconds it takes."""
    with translate_errors(folder), _probe_names(folder, 1) as (path,):
        began_s = clock.perf_counter()
        _write_probe(path)
        OsDisk().sync_folder(folder)
        return clock.perf_counter() - began_s


def probe_lock(folder: str) -> None:
    """Test that a lock excludes a second holder."""
    disk = OsDisk()
    with translate_errors(folder), _probe_names(folder, 1) as (path,):
        held = disk.lock(path, b"")
        try:
            disk.lock(path, b"").release()
        except BlockingIOError:
            return
        finally:
            held.release()
    raise Unsupported("the file system's locks have no effect", hint=_HINT, folder=folder)


PROBES: tuple[Callable[[str], object], ...] = (probe_link, probe_sync, probe_lock)


def probe(folder: str) -> None:
    """Test every guarantee; `Unsupported` for the first that does not hold."""
    for one in PROBES:
        one(folder)


def file_system(folder: str) -> str:
    """Return the kind of file system that a folder is on; empty if the system does not tell."""
    real = os.path.realpath(folder)
    best, kind = "", ""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8") as file:
            for line in file:
                left, _, right = line.partition(" - ")
                point = left.split()[4].encode().decode("unicode_escape")
                inside = real == point or real.startswith(point.rstrip("/") + "/")
                if inside and len(point) >= len(best):
                    best, kind = point, right.split()[0]
    except (OSError, IndexError, ValueError):
        return ""
    return kind
