"""The quarantine of a journal: frames and files that a person has set aside, with their bytes.

    journal/quarantine/<lsn>.frame           a whole frame that no table can take
    journal/quarantine/<number>-<digest>.wal a damaged file, as it was before its repair

In:   a journal that no process writes, and the marks of its tables
Out:  durable copies of frames; a list of the quarantine's files

- A person decides what is in the quarantine: a start skips a frame that is here byte for byte, and
  refuses every other frame that no table can take. Only `set_aside` copies frames.
- The journal itself does not change. Until its file is removed, a frame is replayed like any other
  if its table exists again.
- Health, metrics, `doctor` and `journal inspect` count the files here until a person removes them.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from thermocline.disk import Disk, translate_errors
from thermocline.errors import Corruption
from thermocline.format.log.action import Mark
from thermocline.hot.wal.folder import (
    QUARANTINE_NAME,
    SUFFIX,
    lock_journal,
    replace_file,
    require_identity,
)
from thermocline.hot.wal.frame import KIND_HOLE, encode_frame
from thermocline.hot.wal.payload import decode_rows
from thermocline.hot.wal.reader import Frame, JournalReader

MarkOf = Callable[[bytes, str], Mark | None]
"""Returns the mark of a source in the log of a table id; None when no table has this id."""

FRAME_SUFFIX = ".frame"
UNKNOWN_TABLE = "no table has this id"
UNREADABLE = "the frame is whole, but it does not hold rows that this version can decode"


@dataclass(frozen=True, slots=True)
class RejectedFrame:
    """A whole frame that no table can take."""

    lsn: int
    table_id: str
    file: str
    why: str


@dataclass(frozen=True, slots=True)
class QuarantineFile:
    """One file of the quarantine."""

    name: str
    size_bytes: int


def list_quarantine(disk: Disk, folder: str) -> list[QuarantineFile]:
    """Return the files in a journal's quarantine, by name; empty when it does not exist."""
    quarantine = f"{folder}/{QUARANTINE_NAME}"
    with translate_errors(quarantine):
        try:
            entries = disk.entries(quarantine)
        except FileNotFoundError:
            return []
    kept = [one for one in entries if one.name.endswith((FRAME_SUFFIX, SUFFIX))]
    return [
        QuarantineFile(one.name, one.size_bytes) for one in sorted(kept, key=lambda one: one.name)
    ]


def frame_path(folder: str, frame: Frame) -> str:
    """Return the path of a frame's copy in the quarantine."""
    return f"{folder}/{QUARANTINE_NAME}/{frame.header.lsn:020d}{FRAME_SUFFIX}"


def is_quarantined(disk: Disk, folder: str, journal_id: bytes, frame: Frame) -> bool:
    """Tell whether the quarantine has a frame, byte for byte."""
    path = frame_path(folder, frame)
    with translate_errors(path):
        try:
            return disk.read(path) == _frame_bytes(journal_id, frame)
        except FileNotFoundError:
            return False


def set_aside(disk: Disk, folder: str, mark_of: MarkOf, *, dry_run: bool) -> list[RejectedFrame]:
    """Copy the frames that no table can take into the quarantine, and return them.

    When this returns the copies are durable, and a start skips these frames; a dry run changes
    nothing. `Conflict` while a process holds the journal.
    """
    identity = require_identity(disk, folder)
    lock = lock_journal(disk, folder, hint="stop that process first, then set frames aside")
    try:
        found = []
        marks: dict[bytes, Mark | None] = {}
        for frame in JournalReader(disk, folder, identity).frames():
            header = frame.header
            if header.kind != KIND_HOLE and header.table_id not in marks:
                marks[header.table_id] = mark_of(header.table_id, identity.journal_id.hex())
            why = _rejection_reason(frame, marks)
            if why is None or is_quarantined(disk, folder, identity.journal_id, frame):
                continue
            if not dry_run:
                _copy_frame(disk, folder, identity.journal_id, frame)
            found.append(RejectedFrame(header.lsn, header.table_id.hex(), frame.path, why))
        return found
    finally:
        with translate_errors(folder):
            lock.release()


def refusal(folder: str, found: list[RejectedFrame]) -> Corruption:
    """Return the error of a start that found frames that no table can take."""
    first = found[0]
    if first.why == UNKNOWN_TABLE:
        hint = (
            "restore the file of this table in names/ from a backup of this lake; to start without "
            "these rows, keep them in the quarantine with `thermocline journal repair --set-aside`"
        )
    else:
        hint = (
            "open the lake with the version that wrote these rows; to start without them, keep "
            "them in the quarantine with `thermocline journal repair --set-aside`"
        )
    return Corruption(
        "the journal has acknowledged rows that no table can take",
        hint=hint,
        path=first.file,
        lsn=first.lsn,
        reason=first.why,
        frames=len(found),
        table_ids=sorted({one.table_id for one in found})[:5],
        folder=folder,
    )


def _rejection_reason(frame: Frame, marks: dict[bytes, Mark | None]) -> str | None:
    header = frame.header
    if header.kind == KIND_HOLE:
        return None
    mark = marks[header.table_id]
    if mark is None:
        return UNKNOWN_TABLE
    if header.lsn <= mark:
        return None
    try:
        decode_rows(header, frame.payload)
    except Corruption:
        return UNREADABLE
    return None


def _copy_frame(disk: Disk, folder: str, journal_id: bytes, frame: Frame) -> None:
    path, quarantine = frame_path(folder, frame), f"{folder}/{QUARANTINE_NAME}"
    with translate_errors(path):
        with suppress(FileExistsError):
            disk.make_folder(quarantine, is_private=True)
        disk.sync_folder(folder)
        replace_file(disk, quarantine, path, _frame_bytes(journal_id, frame))


def _frame_bytes(journal_id: bytes, frame: Frame) -> bytes:
    return b"".join(encode_frame(journal_id, frame.header, frame.payload))
