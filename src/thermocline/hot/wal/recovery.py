"""Replays a journal's rows into memory when its process starts.

In:   the frames of a journal, and for each table the mark in its log
Out:  buffers with every row that no version contains; where the journal continues

- Frames up to a table's mark are in the lake and are skipped: so rows of a flush that was
  interrupted between commit and retire are not read twice.
- The files are fsynced before they are read: frames of a killed process may exist only in the
  kernel's memory, and must not be visible and then lost.
- A whole frame that cannot be decoded, or whose table does not exist, holds acknowledged rows. So
  the start is refused, unless a person has put the frame into the quarantine (`quarantine.py`):
  then the frame is counted, and the rest is replayed.
- Small writes are decoded many at a time: opening a stream is most of the cost of one.
- Replay does not change the journal's frames, so after a crash halfway the next start repeats it.
"""

from contextlib import suppress
from dataclasses import dataclass, field, replace

import pyarrow as pa

from thermocline.disk import Disk, translate_errors
from thermocline.errors import Corruption
from thermocline.format.log.action import Mark
from thermocline.format.null_columns import unify_columns
from thermocline.hot.wal.buffer import TableBuffer
from thermocline.hot.wal.folder import file_number, file_path
from thermocline.hot.wal.frame import KIND_HOLE, FrameHeader
from thermocline.hot.wal.payload import DECODE_RUN_BYTES, FrameRows, decode_frames
from thermocline.hot.wal.reader import Frame, JournalReader, JournalTail
from thermocline.hot.wal.repair.damage import Damage, decode_hole
from thermocline.hot.wal.repair.quarantine import (
    UNKNOWN_TABLE,
    UNREADABLE,
    MarkOf,
    RejectedFrame,
    frame_path,
    is_quarantined,
    refusal,
)


@dataclass(slots=True)
class RecoveryReport:
    """The result of a replay: rows restored, bytes of the torn end, quarantined frames."""

    frames: int = 0
    rows: int = 0
    cut_bytes: int = 0
    quarantined: list[str] = field(default_factory=list)
    holes: list[Damage] = field(default_factory=list)
    last_lsns: dict[int, dict[bytes, int]] = field(default_factory=dict)


@dataclass(slots=True)
class _PendingFrames:
    """Frames of one table and schema that will be decoded together."""

    buffer: TableBuffer
    frames: list[Frame] = field(default_factory=list)
    size_bytes: int = 0


class Recovery:
    """One replay of a journal."""

    def __init__(self, disk: Disk, folder: str, mark_of: MarkOf, source: str) -> None:
        self._disk = disk
        self._folder = folder
        self._mark_of = mark_of
        self._source = source
        self._marks: dict[bytes, Mark | None] = {}
        self._pending: dict[bytes, _PendingFrames] = {}
        self._refused: list[RejectedFrame] = []
        self.report = RecoveryReport()
        self.buffers: dict[bytes, TableBuffer] = {}

    def run(self, reader: JournalReader) -> JournalTail:
        """Replay the journal and return where it ends.

        `Corruption` when it has rows that no table can take and that no person has set aside.
        """
        if reader.files:
            with translate_errors(reader.files[-1].path):
                self._disk.sync_file(reader.files[-1].path)
                self._disk.sync_folder(self._folder)
        for frame in reader.frames():
            self._replay(frame)
        for waiting in self._pending.values():
            self._restore_rows(waiting)
        if self._refused:
            raise refusal(self._folder, self._refused)
        assert reader.tail is not None
        self.report.cut_bytes = reader.tail.cut_bytes
        self._remove_leftovers(reader)
        return reader.tail

    def _replay(self, frame: Frame) -> None:
        header = frame.header
        self.report.frames += 1
        if header.kind == KIND_HOLE:
            self.report.holes.append(_hole_damage(frame))
            return
        mark = self._reached_mark(header.table_id)
        if mark is None:
            self._skip_or_refuse(frame, UNKNOWN_TABLE)
            return
        self.report.last_lsns.setdefault(frame.number, {})[header.table_id] = header.lsn
        if header.lsn <= mark:
            return
        waiting = self._pending.get(header.table_id)
        if waiting is None:
            waiting = _PendingFrames(TableBuffer(self._source, mark))
            self._pending[header.table_id] = waiting
        if waiting.frames and waiting.frames[-1].header.schema_id != header.schema_id:
            self._restore_rows(waiting)
        waiting.frames.append(frame)
        waiting.size_bytes += header.raw_length
        if waiting.size_bytes >= DECODE_RUN_BYTES:
            self._restore_rows(waiting)

    def _restore_rows(self, waiting: _PendingFrames) -> None:
        """Restore the rows of a table's pending frames as one part."""
        frames, waiting.frames, waiting.size_bytes = waiting.frames, [], 0
        held: list[tuple[FrameHeader, FrameRows]] = []
        found = decode_frames([(frame.header, frame.payload) for frame in frames])
        for frame, stored in zip(frames, found, strict=True):
            if isinstance(stored, Corruption):
                self._skip_or_refuse(frame, UNREADABLE)
            else:
                held.append((frame.header, stored))
        if not held:
            return
        last, (rows, _) = held[-1]
        size_bytes = last.raw_length
        if len(held) > 1:
            rows = _combine_batches([stored.batch for _, stored in held])
            size_bytes = rows.get_total_buffer_size()
        requests = {key: n for _, stored in held for key, n in stored.requests.items()}
        waiting.buffer.add(last.lsn, last.schema_id, rows, size_bytes, requests)
        self.buffers[last.table_id] = waiting.buffer
        self.report.rows += rows.num_rows

    def _reached_mark(self, table_id: bytes) -> Mark | None:
        if table_id not in self._marks:
            self._marks[table_id] = self._mark_of(table_id, self._source)
        return self._marks[table_id]

    def _skip_or_refuse(self, frame: Frame, why: str) -> None:
        """Count a frame that a person has set aside; for any other, the start will be refused."""
        if is_quarantined(self._disk, self._folder, bytes.fromhex(self._source), frame):
            self.report.quarantined.append(frame_path(self._folder, frame))
            return
        header = frame.header
        self._refused.append(RejectedFrame(header.lsn, header.table_id.hex(), frame.path, why))

    def _remove_leftovers(self, reader: JournalReader) -> None:
        """Remove files that are not part of the journal: unfinished and already trimmed ones."""
        if reader.leftover is not None:
            with translate_errors(reader.leftover):
                self._disk.unlink(reader.leftover)
        with translate_errors(self._folder):
            entries = self._disk.entries(self._folder)
        for entry in entries:
            number = file_number(entry.name)
            if number is not None and number < reader.identity.oldest:
                with suppress(OSError):  # readers ignore the file; the next start retries
                    self._disk.unlink(file_path(self._folder, number))


def _combine_batches(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    # Twice as fast as `concat_batches`.
    table = pa.Table.from_batches(unify_columns(batches)).combine_chunks()
    return next(iter(table.to_batches()), batches[0])


def _hole_damage(frame: Frame) -> Damage:
    """Return the damage that a hole records; its lsns are the frame's, not the payload's."""
    first, last = frame.header.lsn, frame.header.lsn + frame.header.span - 1
    try:
        return replace(decode_hole(frame.payload), first_lsn=first, last_lsn=last)
    except Corruption:
        return Damage(first, last, frame.path, frame.offset, 0, "unknown", tables=None)
