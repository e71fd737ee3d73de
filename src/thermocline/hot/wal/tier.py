"""The write-ahead tier of one node: one journal for all tables, and their rows in memory.

In:   rows that have their table's columns; marks of committed flushes
Out:  durable rows; snapshots; journal files removed once every table has passed them

- A write is answered when it is durable and in the buffer: the next snapshot has it.
- Memory has a limit. Above it a write waits a bounded time for a flush, and is then refused;
  accepted rows are never dropped.
- A journal file is removed when each table's retired mark has passed the table's last lsn in it.
  Snapshots hold their batches in memory and need no file. The open file stays until it is full, or
  until a client flushes a table that has no hot rows but has frames in it.
- One process owns a journal. A second process is refused, and gets the owner's process id. An owner
  whose journal was replaced acknowledges no write and flushes nothing.
"""

import logging
import os
import threading
import time as clock
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from types import MappingProxyType

import pyarrow as pa

from thermocline.config import Sync, WalSettings
from thermocline.disk import Disk, translate_errors
from thermocline.errors import Corruption, Overloaded, ThermoclineError
from thermocline.format.log.action import Mark
from thermocline.hot.tier import FrozenParts, HotSnapshot
from thermocline.hot.wal.buffer import TableBuffer
from thermocline.hot.wal.folder import (
    IDENTITY_NAME,
    JournalIdentity,
    JournalLock,
    lock_journal,
    read_identity,
    write_identity,
)
from thermocline.hot.wal.frame import Lsn
from thermocline.hot.wal.group_commit import GroupCommit, WriteRequest
from thermocline.hot.wal.journal import Journal, JournalEntry
from thermocline.hot.wal.payload import Payload, encode_rows
from thermocline.hot.wal.reader import JournalReader
from thermocline.hot.wal.recovery import Recovery, RecoveryReport
from thermocline.hot.wal.repair.quarantine import MarkOf, list_quarantine
from thermocline.hot.wal.retired_marks import read_retired, write_retired

logger = logging.getLogger(__name__)

Listener = Callable[[pa.RecordBatch], None]
"""Receives rows that have become durable and visible."""


class WalTier:
    """A journal that this process owns, and the hot rows of all its tables."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        mark_of: MarkOf,
        settings: WalSettings | None = None,
        *,
        expected: str | None = None,
        now_ns: Callable[[], int] = clock.time_ns,
        on_pressure: Callable[[], None] = lambda: None,
    ) -> None:
        """Lock the journal and replay it; `expected` is the id that it must have.

        `on_pressure` is called by writers while hot rows take more than half of their memory.
        """
        self._settings = settings or WalSettings()
        self._on_pressure = on_pressure
        self._disk = disk
        self._folder = folder
        self._mark_of = mark_of
        self._lock = _lock_folder(disk, folder)
        try:
            identity = _open_identity(disk, folder, expected)
            self.source = uuid.UUID(bytes=identity.journal_id).hex
            self._journal_id = identity.journal_id
            self._retired = read_retired(disk, folder, identity.journal_id)
            recovery = Recovery(disk, folder, mark_of, self.source)
            tail = recovery.run(JournalReader(disk, folder, identity))
            self._journal = Journal(
                disk,
                folder,
                identity,
                tail,
                sync=self._settings.sync,
                file_bytes_max=self._settings.file_bytes_max,
                now_ns=now_ns,
            )
            try:
                self._journal.publish()
            except BaseException:
                with suppress(ThermoclineError):
                    self._journal.close()
                raise
        except BaseException:
            self._lock.release()
            raise
        self.recovery_report: RecoveryReport = recovery.report
        self.quarantined_count = 0
        self.count_quarantined()
        self._last_lsns = recovery.report.last_lsns
        self._changed = threading.Condition()
        self._tables = {key: WalTable(self, key, found) for key, found in recovery.buffers.items()}
        self._hot_bytes = sum(table.buffer.size_bytes for table in self._tables.values())
        is_periodic = self._settings.sync is Sync.INTERVAL
        self.group = GroupCommit(
            self._journal,
            sync_interval_s=self._settings.sync_interval_s if is_periodic else None,
            queue_bytes_max=self._settings.queue_bytes_max,
        )
        self._is_open = True

    def count_quarantined(self) -> int:
        """Count the files in the quarantine, and store the number in `quarantined`."""
        # If the folder cannot be listed, the last count stays until the next call.
        with suppress(ThermoclineError):
            self.quarantined_count = len(list_quarantine(self._disk, self._folder))
        return self.quarantined_count

    def table(self, table_id: bytes, mark: Mark | None = None) -> "WalTable":
        """Return the hot half of a table; `mark` is how far it was flushed, if that is known."""
        with self._changed:
            if table_id not in self._tables:
                if mark is None:
                    mark = self._mark_of(table_id, self.source) or Mark(0)
                self._tables[table_id] = WalTable(self, table_id, TableBuffer(self.source, mark))
            return self._tables[table_id]

    def tables(self) -> list["WalTable"]:
        """Return the hot halves of all tables that were recovered or used."""
        with self._changed:
            return list(self._tables.values())

    @property
    def changing(self) -> threading.Condition:
        """The lock of changes to what is hot."""
        return self._changed

    @property
    def next_lsn(self) -> Lsn:
        """The lsn of the next write."""
        return self._journal.next_lsn

    @property
    def hot_bytes(self) -> int:
        """The memory of all hot rows and of all reservations."""
        return self._hot_bytes

    @property
    def hot_bytes_max(self) -> int:
        """The limit of `hot_bytes`."""
        return self._settings.hot_bytes_max

    def reserve(self, size_bytes: int, wait_s: float | None) -> None:
        """Reserve memory for rows; above the limit wait for a flush, then raise `Overloaded`."""
        end_s = clock.monotonic() + (self._settings.write_wait_s if wait_s is None else wait_s)
        with self._changed:
            while self._hot_bytes and self._hot_bytes + size_bytes > self.hot_bytes_max:
                self._on_pressure()
                left_s = end_s - clock.monotonic()
                if left_s <= 0 or not self._changed.wait(left_s):
                    raise Overloaded(
                        "hot rows have reached their memory limit",
                        hint="send less, or later: a flush makes room",
                        hot_bytes=self._hot_bytes,
                        hot_bytes_max=self.hot_bytes_max,
                    )
            self._hot_bytes += size_bytes
            if self._hot_bytes * 2 > self.hot_bytes_max:
                self._on_pressure()

    def release(self, size_bytes: int) -> None:
        """Release reserved memory."""
        with self._changed:
            self._hot_bytes -= size_bytes
            self._changed.notify_all()

    def apply(
        self,
        table: "WalTable",
        lsn: Lsn,
        schema_id: int,
        payload: Payload,
        reserved_bytes: int,
    ) -> None:
        """Make durable rows visible, in the memory reserved for them.

        Only the journal thread calls this.
        """
        with self._changed:
            before = table.buffer.size_bytes
            # The batch's buffers are slices of the reserved bytes, and keep all of them alive.
            table.buffer.add(lsn, schema_id, payload.batch, reserved_bytes, payload.requests)
            table.hot_since_s = table.hot_since_s or clock.monotonic()
            self._hot_bytes += table.buffer.size_bytes - before - reserved_bytes
            self._changed.notify_all()
            self._last_lsns.setdefault(self._journal.number, {})[table.table_id] = lsn
        table.announce(payload.batch)

    def freeze(self, table: "WalTable") -> FrozenParts | None:
        """Return what the next flush of a table carries, or None when it has no hot rows.

        These rows are durable in the journal first, under any policy: if a mark were ahead of the
        journal, the next start would skip rows that come later.

        Without hot rows, the table's frames leave the journal's open file as well. The flush clock
        skips such a table, so a client asked for this flush and wants the rows only in the lake.
        """
        with self._changed:
            frozen = table.buffer.freeze()
        if frozen is None:
            # If this fails, the next explicit flush tries again.
            with suppress(ThermoclineError):
                self.leave_open_file(table)
            return None
        with self.group.pause() as journal:
            # If another process took the journal over, its flush may carry these rows too.
            journal.check_owned()
            if self._settings.sync is not Sync.ALWAYS:
                journal.sync()
        return frozen

    def retire(self, table: "WalTable", mark: Mark) -> None:
        """Drop rows that a version contains, and remove journal files that no table needs."""
        with self._changed:
            self._hot_bytes -= table.buffer.retire(mark)
            table.hot_since_s = clock.monotonic() if table.buffer.snapshot().parts else None
            self._changed.notify_all()
        # If a file cannot be removed now, the next flush tries again.
        with suppress(ThermoclineError):
            self.trim()

    def leave_open_file(self, table: "WalTable") -> None:
        """Seal the open journal file if it may have frames of a table; remove passed files.

        Invariant: when this returns, no frame that the table had in the journal at the call is in
        the open file. Once every table has passed the file of those frames, it is removed like any
        other: now, or at the flush that passes it. If this raises, no row is lost: the rows stay
        durable in their file, and the next write can be appended.
        """
        with self.group.pause() as journal:
            hot = table.snapshot()
            last = max([hot.mark, *(part.mark for part in hot.parts)])
            if self._is_open and last >= journal.first_lsn:
                journal.seal()
        self.trim()

    def trim(self) -> None:
        """Remove the journal files that every table has passed."""
        with self.group.pause() as journal:
            with self._changed:
                oldest = journal.number
                for number in sorted(self._last_lsns):
                    if number < oldest and not self._is_passed(number):
                        oldest = number
                passed = [n for n in self._last_lsns if n < oldest]
            # Order matters: `retired.json` is durable before the journal removes the files.
            self._note_retired(passed)
            with self._changed:
                for number in passed:
                    del self._last_lsns[number]
            journal.trim(oldest)

    def _note_retired(self, numbers: list[int]) -> None:
        """Store each table's last lsn in the files that are about to be removed."""
        marks = dict(self._retired)
        for number in numbers:
            for table_id, lsn in self._last_lsns[number].items():
                marks[table_id] = Mark(max(lsn, marks.get(table_id, 0)))
        if marks != self._retired:
            write_retired(self._disk, self._folder, self._journal_id, marks)
            self._retired = marks

    def retired_mark(self, table_id: bytes) -> Mark:
        """Return the mark that a table's log must have: files with its rows were removed."""
        return self._retired.get(table_id, Mark(0))

    def _is_passed(self, number: int) -> bool:
        return all(
            lsn <= self._tables[table_id].buffer.snapshot().mark
            if table_id in self._tables
            else lsn <= (self._mark_of(table_id, self.source) or 0)
            for table_id, lsn in self._last_lsns[number].items()
        )

    def close(self) -> None:
        """Write the queued requests, make them durable, close the journal and release its lock."""
        with self.group.pause():
            self._is_open = False  # a flush that still runs creates no file any more
        try:
            self.group.stop()
            # The next start does not replay files that every table has passed.
            with suppress(ThermoclineError):
                with self.group.pause() as journal:
                    journal.seal()
                self.trim()
            self.group.close()
        finally:
            self._lock.release()


class WalTable:
    """The hot half of one table."""

    def __init__(self, tier: WalTier, table_id: bytes, buffer: TableBuffer) -> None:
        self._tier = tier
        self.table_id = table_id
        self.buffer = buffer
        self.hot_since_s = clock.monotonic() if buffer.snapshot().parts else None
        self._listeners: tuple[Listener, ...] = ()

    def listen(self, listener: "Listener") -> Callable[[], None]:
        """Call a function with all rows that become visible from now on; return what ends that.

        It is called once for each write, in the order of the writes, and must neither wait nor
        raise: it may run in the journal thread.
        """
        with self._tier.changing:
            self._listeners = (*self._listeners, listener)

        def end() -> None:
            with self._tier.changing:
                self._listeners = tuple(one for one in self._listeners if one is not listener)

        return end

    def announce(self, batch: pa.RecordBatch) -> None:
        """Call the listeners with rows that are durable and visible."""
        for listener in self._listeners:
            try:
                listener(batch)
            except Exception:
                logger.exception("a listener to hot rows failed; the rows are stored")

    @property
    def source(self) -> str:
        """The name under which a lake version stores this journal's mark."""
        return self._tier.source

    def submit(
        self,
        schema_id: int,
        batch: pa.RecordBatch,
        *,
        wait_s: float | None = None,
        requests: Mapping[str, int] = MappingProxyType({}),
        result: int | None = None,
    ) -> "Future[int]":
        """Queue rows that have the table's columns; `result` is what the future returns.

        The future is done when they are durable and visible. Without `result` it returns their lsn.
        """
        payload = encode_rows(batch, requests)
        tier, size_bytes = self._tier, payload.raw_length
        tier.reserve(size_bytes, wait_s)

        reserved = [size_bytes]

        def apply(lsn: Lsn) -> None:
            tier.apply(self, lsn, schema_id, payload, reserved.pop())

        def give_back(_: object = None) -> None:
            if reserved:  # it was never applied
                tier.release(reserved.pop())

        entry = JournalEntry(
            self.table_id, schema_id, payload.data, payload.codec, payload.raw_length
        )
        try:
            future = tier.group.submit(WriteRequest(entry, apply, result))
        except BaseException:
            give_back()
            raise
        future.add_done_callback(give_back)
        return future

    def snapshot(self) -> HotSnapshot:
        """Return every row acknowledged before this call that no retired flush has taken."""
        return self.buffer.snapshot()

    def freeze(self) -> FrozenParts | None:
        """Return what the next flush carries, or None when there are no hot rows."""
        return self._tier.freeze(self)

    def leave_open_file(self) -> None:
        """Seal the journal's open file if it may have frames of this table."""
        self._tier.leave_open_file(self)

    def retire(self, mark: Mark) -> None:
        """Drop the rows up to a mark: a committed version has them."""
        self._tier.retire(self, mark)


def _lock_folder(disk: Disk, folder: str) -> JournalLock:
    """Create the journal's folder if it is missing, and lock it; `Conflict` when it is locked."""
    with translate_errors(folder):
        if disk.size(folder) is None:
            with suppress(FileExistsError):
                disk.make_folder(folder, is_private=True)
        # Even for an existing folder: its creator may have crashed before this fsync.
        disk.sync_folder(os.path.dirname(folder))
    return lock_journal(disk, folder, hint="stop it, or open the lake for reading only")


def _open_identity(disk: Disk, folder: str, expected: str | None) -> JournalIdentity:
    """Return the identity of the journal; create a journal only if none is expected."""
    identity = read_identity(disk, folder)
    if expected is not None and (identity is None or identity.journal_id.hex() != expected):
        raise Corruption(
            "the lake's journal is missing or belongs to another lake",
            hint="check that its disk is mounted: rows that were not flushed are only in the "
            "lake's own journal",
            path=f"{folder}/{IDENTITY_NAME}",
            expected=expected,
            found=identity and identity.journal_id.hex(),
        )
    if identity is None:
        identity = JournalIdentity(uuid.uuid4().bytes)
        write_identity(disk, folder, identity)
    return identity
