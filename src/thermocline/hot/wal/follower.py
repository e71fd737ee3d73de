"""Reads the hot rows of a lake from the journal's files, beside the process that writes them.

In:   the journal folder of a running or a dead process
Out:  the `HotSnapshot`s that the owner would return

- Nothing is written and no lock is taken: the owner does not notice.
- The watermark is read first: up to there all is acknowledged, and nothing behind it is. Then the
  files, then (by the caller) the table's newest version. A file that goes away meanwhile went
  because a version has its rows; the reading begins again.
- A watermark of an earlier boot proves nothing: what a start would find is read, durable first.
- A watermark that is behind what the files prove is an older copy of itself: `Corruption`, because
  the answer would be short.
- Files that are full are read once and kept; the last one is read again each time.
"""

import threading
import uuid
from dataclasses import dataclass, field

from thermocline.disk import Disk, translate_errors
from thermocline.errors import Corruption, NotFound, Unavailable
from thermocline.format.log.action import Mark
from thermocline.hot.tier import HotPart, HotSnapshot
from thermocline.hot.wal.folder import JournalIdentity, Watermark, read_watermark, require_identity
from thermocline.hot.wal.frame import KIND_ROWS, Lsn
from thermocline.hot.wal.payload import decode_frames
from thermocline.hot.wal.reader import Frame, FrameReader, JournalFile, JournalReader
from thermocline.hot.wal.repair.quarantine import is_quarantined
from thermocline.hot.wal.retired_marks import read_retired

TRIES_MAX = 20


@dataclass(frozen=True, slots=True)
class _FileRows:
    """The rows of one file by table."""

    parts: dict[bytes, list[HotPart]] = field(default_factory=dict)


class JournalFollower:
    """The hot rows of every table of a journal that another process may be writing."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._folder = folder
        self._lock = threading.Lock()
        self._full_files: dict[int, _FileRows] = {}

    def snapshot(self, table_id: bytes) -> HotSnapshot:
        """Return every row of a table acknowledged before this call that the files still hold.

        Some of these rows may be in the lake already: the version's mark tells which.
        """
        with self._lock:
            for _ in range(TRIES_MAX):
                try:
                    return self._read_snapshot(table_id)
                except NotFound:
                    continue  # trimmed while it was read: a version has those rows
        raise Unavailable(
            "the journal changes faster than it can be read",
            hint="try again",
            folder=self._folder,
        )

    def table(self, table_id: bytes) -> "FollowedTable":
        """Return the hot half of a table, for reading."""
        return FollowedTable(self, table_id)

    def _read_snapshot(self, table_id: bytes) -> HotSnapshot:
        identity = self._identity()
        source = uuid.UUID(bytes=identity.journal_id).hex
        mark = self._read_trusted_watermark(identity.journal_id)
        # Order matters: the watermark first, then the files it speaks of.
        identity = self._identity()
        reader = JournalReader(self._disk, self._folder, identity)
        found = (
            self._group_by_table(self._read_all_frames(reader))
            if mark is None
            else self._read_up_to(reader, mark)
        )
        self._full_files = {
            number: read for number, read in self._full_files.items() if number >= identity.oldest
        }
        # A table's log that is behind this mark has lost commits: the caller compares the marks.
        retired = read_retired(self._disk, self._folder, identity.journal_id)
        return HotSnapshot(source, retired.get(table_id, Mark(0)), tuple(found.get(table_id, ())))

    def _identity(self) -> JournalIdentity:
        try:
            return require_identity(self._disk, self._folder)
        except NotFound as error:
            raise Unavailable(error.message, hint="check the path", path=self._folder) from error

    def _read_trusted_watermark(self, journal_id: bytes) -> Watermark | None:
        mark = read_watermark(self._disk, self._folder, journal_id)
        return mark if mark is not None and mark.boot_id == self._disk.boot_id() else None

    def _read_all_frames(self, reader: JournalReader) -> list[Frame]:
        if reader.files:
            with translate_errors(reader.files[-1].path):
                self._disk.sync_file(reader.files[-1].path)
        return list(reader.frames())

    def _read_up_to(self, reader: JournalReader, mark: Watermark) -> dict[bytes, list[HotPart]]:
        found: dict[bytes, list[HotPart]] = {}
        proved = Lsn(0)
        for file in reader.files:
            number = file.header.number
            if number >= mark.number:
                read, rest = self._read_file(reader, file, mark.end if number == mark.number else 0)
                proved = max(proved, file.proved_behind(mark), rest)
                if number > mark.number:
                    continue
            else:
                if number not in self._full_files:
                    self._full_files[number], _ = self._read_file(reader, file, file.end)
                read = self._full_files[number]
            for table_id, parts in read.parts.items():
                found.setdefault(table_id, []).extend(parts)
        reader.check_mark(mark, proved)
        return found

    def _read_file(
        self, reader: JournalReader, file: JournalFile, until: int | None
    ) -> tuple[_FileRows, Lsn]:
        """Return the rows of a file up to an offset, and what is proved durable behind it."""
        reading = FrameReader(self._disk, file, reader.identity.journal_id)
        try:
            frames = list(reading.frames(file.header.first_lsn, until))
            return _FileRows(self._group_by_table(frames)), reading.proof_of_rest()
        finally:
            reading.close()

    def _group_by_table(self, frames: list[Frame]) -> dict[bytes, list[HotPart]]:
        """Return each table's rows, one part per frame: a mark may lie between any two frames."""
        written: dict[bytes, list[Frame]] = {}
        for frame in frames:
            if frame.header.kind == KIND_ROWS:
                written.setdefault(frame.header.table_id, []).append(frame)
        return {table_id: self._decode_parts(found) for table_id, found in written.items()}

    def _decode_parts(self, frames: list[Frame]) -> list[HotPart]:
        parts = []
        held = decode_frames([(frame.header, frame.payload) for frame in frames])
        for frame, stored in zip(frames, held, strict=True):
            header = frame.header
            if not isinstance(stored, Corruption):
                rows = stored.batch
                parts.append(HotPart(Mark(header.lsn), header.schema_id, rows, header.raw_length))
            elif not self._is_set_aside(frame):
                raise stored
        return parts

    def _is_set_aside(self, frame: Frame) -> bool:
        identity = self._identity()
        return is_quarantined(self._disk, self._folder, identity.journal_id, frame)


@dataclass(frozen=True, slots=True)
class FollowedTable:
    """The hot half of one table whose rows another process writes."""

    _follower: JournalFollower
    table_id: bytes

    def snapshot(self) -> HotSnapshot:
        """Return the table's hot rows, as `JournalFollower.snapshot` does."""
        return self._follower.snapshot(self.table_id)
