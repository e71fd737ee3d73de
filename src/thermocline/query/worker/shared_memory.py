"""Shares hot rows with worker processes: written once to shared memory, mapped without a copy.

In:   parts of a hot snapshot; in the worker, open files
Out:  open files; in the worker, the same parts

- A part is immutable, so it is written once and every query that reads it shares its file. The file
  is closed when the part is freed; its memory is freed when the last query that maps it ends.
- The file is sealed: no process can change, truncate or extend it.
- At most `FILES_KEPT_MAX` files are kept; parts beyond that are written for each query.
"""

import fcntl
import mmap
import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa

from thermocline.errors import Unavailable
from thermocline.format.log.action import Mark
from thermocline.hot.tier import HotPart, HotSnapshot, HotVersion

FILES_KEPT_MAX = 256
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


class PartHeader(NamedTuple):
    """The metadata of a part that is sent beside its rows."""

    mark: int
    schema_id: int
    size_bytes: int
    length_bytes: int


class SnapshotHeader(NamedTuple):
    """The metadata of a snapshot; the files of its parts follow in the same order."""

    source: str
    mark: int
    parts: tuple[PartHeader, ...]
    pairing: HotVersion | None
    others: tuple["SnapshotHeader", ...] = ()
    warning: str = ""

    @property
    def part_count(self) -> int:
        """The parts of this snapshot and of the others in it."""
        return len(self.parts) + sum(one.part_count for one in self.others)


class _SharedFile(NamedTuple):
    batch: "weakref.ref[pa.RecordBatch]"
    file: int
    length_bytes: int


class SharedParts:
    """The files of parts, by the identity of their rows. Thread-safe."""

    def __init__(self) -> None:
        # Re-entrant: the garbage collector may free rows, and so their file, at any allocation.
        self._lock = threading.RLock()
        self._kept: dict[int, _SharedFile] = {}

    @contextmanager
    def lend(self, snapshot: HotSnapshot) -> Iterator[tuple[SnapshotHeader, list[int]]]:
        """Yield the header and the open files of a snapshot while the block runs."""
        passing: list[int] = []
        files: list[int] = []
        try:
            first, *others = [self._note(one, files, passing) for one in snapshot.sources]
            yield first._replace(others=tuple(others), warning=snapshot.warning), files
        finally:
            for file in passing:
                os.close(file)

    def _note(self, snapshot: HotSnapshot, files: list[int], passing: list[int]) -> SnapshotHeader:
        notes = []
        for part in snapshot.parts:
            file, length_bytes, is_kept = self._file_of(part.batch)
            passing += [] if is_kept else [file]
            files.append(file)
            notes.append(PartHeader(part.mark, part.schema_id, part.size_bytes, length_bytes))
        return SnapshotHeader(snapshot.source, snapshot.mark, tuple(notes), snapshot.pairing)

    def _file_of(self, batch: pa.RecordBatch) -> tuple[int, int, bool]:
        key = id(batch)
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None and kept.batch() is batch:
                return kept.file, kept.length_bytes, True
            file, length_bytes = _create_shared_file(batch)
            if len(self._kept) >= FILES_KEPT_MAX:
                return file, length_bytes, False
            gone = weakref.ref(batch, lambda _: self._drop(key, file))
            self._kept[key] = _SharedFile(gone, file, length_bytes)
            return file, length_bytes, True

    def _drop(self, key: int, file: int) -> None:
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None and kept.file == file:
                del self._kept[key]
                os.close(file)

    def close(self) -> None:
        """Close every file; queries that have mapped them keep their rows."""
        with self._lock:
            kept, self._kept = list(self._kept.values()), {}
        for shared in kept:
            os.close(shared.file)


def _create_shared_file(batch: pa.RecordBatch) -> tuple[int, int]:
    """Return an open file with a batch in it, and its length."""
    try:
        file = os.memfd_create("thermocline-hot", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        raise Unavailable(
            "hot rows cannot be shared with a query worker",
            hint="raise the limit of open files (ulimit -n), or free memory",
            error=str(error),
        ) from error
    try:
        with (
            os.fdopen(os.dup(file), "wb") as sink,
            pa.ipc.new_stream(sink, batch.schema) as writer,
        ):
            writer.write_batch(batch)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
        return file, os.lseek(file, 0, os.SEEK_END)
    except (OSError, pa.ArrowException) as error:
        os.close(file)
        raise Unavailable(
            "hot rows cannot be shared with a query worker", hint="free memory", error=str(error)
        ) from error


def map_snapshot(note: SnapshotHeader, files: Sequence[int]) -> HotSnapshot:
    """Return the shared snapshot, mapped from its files, and close the files."""
    try:
        waiting = iter(files)
        first, *others = [_map_parts(one, waiting) for one in (note, *note.others)]
    except (OSError, ValueError, pa.ArrowException) as error:
        raise Unavailable(
            "shared hot rows cannot be mapped", hint="run the query again", error=str(error)
        ) from error
    finally:
        for file in files:
            os.close(file)
    return replace(first, others=tuple(others), warning=note.warning)


def _map_parts(note: SnapshotHeader, files: Iterator[int]) -> HotSnapshot:
    parts = tuple(_map_part(one, next(files)) for one in note.parts)
    return HotSnapshot(note.source, Mark(note.mark), parts, note.pairing)


def _map_part(note: PartHeader, file: int) -> HotPart:
    # A shared read-only mapping does not count towards the memory limit of this process.
    data = mmap.mmap(file, note.length_bytes, mmap.MAP_SHARED, mmap.PROT_READ)
    batch = pa.ipc.open_stream(pa.py_buffer(data)).read_next_batch()
    return HotPart(Mark(note.mark), note.schema_id, batch, note.size_bytes)
