"""Repairs a damaged journal so that it starts again, and records in it what was lost.

In:   a journal that no process writes, and what `inspect` found in it
Out:  the same journal with a hole frame for each loss; the damaged files in quarantine

- Whole frames keep their bytes, lsns and files; a file keeps its format and salt. A file that lost
  frames is rewritten with holes; the header of the next file is adjusted to its new end.
- A damaged file is in quarantine, byte for byte and durable, before a new file replaces it.
- Files are replaced one at a time, from the first, each by one rename that is durable before the
  next. Until the last rename the journal refuses to start: either a damage is still there, or a
  file ends elsewhere than the next file's header says. A second repair continues from there and
  loses nothing more, because lsns connect the files.
- Bytes at the end of the last file that are not proved durable are a torn end, which is no loss.
- A journal without damage is not changed.

It does not inform the tables: the next start of the journal finds the holes and does.
"""

import secrets
import time as clock
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from thermocline.disk import Disk, translate_errors
from thermocline.errors import Corruption
from thermocline.hot.wal.folder import (
    DURABLE_NAME,
    QUARANTINE_NAME,
    SUFFIX,
    Watermark,
    encode_watermark,
    lock_journal,
    replace_file,
    require_identity,
)
from thermocline.hot.wal.frame import (
    CODEC_NONE,
    FILE_HEADER_BYTES,
    FORMAT_VERSION,
    KIND_HOLE,
    SALT_BITS,
    FileHeader,
    FileTag,
    FrameHeader,
    Lsn,
    encode_file_header,
    encode_frame,
)
from thermocline.hot.wal.reader import JournalReader, JournalTail
from thermocline.hot.wal.repair.damage import Damage, encode_hole
from thermocline.hot.wal.repair.survey import (
    FileState,
    InspectedFile,
    Inspection,
    Progress,
    inspect,
)

SPAN_MAX = (1 << 32) - 1
NO_TABLE = bytes(16)


@dataclass(frozen=True, slots=True)
class JournalRepair:
    """What a repair did, or would do.

    `damages` are listed as found. `quarantined` are the copies of damaged files, `rewritten` the
    files that were rewritten. `torn_bytes` is the size of the torn end, which lost no frame.
    """

    is_dry_run: bool
    damages: tuple[Damage, ...] = ()
    quarantined: tuple[str, ...] = ()
    rewritten: tuple[str, ...] = ()
    torn_bytes: int = 0

    @property
    def lost_lsns(self) -> int:
        """The maximal number of lost writes."""
        return sum(damage.lost_lsns for damage in self.damages)


@dataclass(slots=True)
class _Replacement:
    """A file as rewritten: its header, and its content as ranges of the old file and holes."""

    file: InspectedFile
    header: FileHeader
    pieces: list[range | bytes] = field(default_factory=list)


def repair(
    disk: Disk,
    folder: str,
    *,
    dry_run: bool,
    progress: Progress | None = None,
    now_ns: Callable[[], int] = clock.time_ns,
) -> JournalRepair:
    """Set the damage of a journal aside and return what was lost.

    When this returns the journal can start. A dry run changes nothing and needs no lock.
    `Conflict` while a process holds the journal. `Corruption` when neither a file nor the
    watermark says how far the journal was written. After a crash halfway, repair again.
    """
    if dry_run:
        return _plan_repair(inspect(disk, folder, progress=progress), now_ns)[0]
    require_identity(disk, folder)  # do not create a lock file where there is no journal
    lock = lock_journal(disk, folder, hint="stop that process first, then repair")
    try:
        found = inspect(disk, folder, progress=progress)
        planned, replacements = _plan_repair(found, now_ns)
        if replacements:
            _sync_watermark(disk, folder, found)
        for replacement in replacements:
            _quarantine_file(disk, folder, replacement.file)
            _replace_damaged(disk, folder, replacement)
        if replacements:
            _write_watermark(disk, folder, found, _verify_repair(disk, folder))
        return replace(planned, is_dry_run=False)
    finally:
        with translate_errors(folder):
            lock.release()


def _plan_repair(
    found: Inspection, now_ns: Callable[[], int]
) -> tuple[JournalRepair, list[_Replacement]]:
    """Return what a repair will do: the files that it replaces, and their replacements."""
    if found.damages and not found.is_repairable:
        raise Corruption(
            "neither a file nor the watermark says how far the journal was written",
            hint="restore its files from a copy; or move the whole folder away, which loses the "
            "rows that were not flushed",
            folder=found.folder,
        )
    replacements = []
    end: int | None = None
    chain = found.chain if found.damages else []
    for file in chain:
        made = _Replacement(file, _header_for(found, file, end))
        has_hole = any(isinstance(part, int) for part in file.parts)
        # The end of the last file may not be durable; after a rewrite it is.
        is_unproved = file is chain[-1] and bool(file.parts or file.torn_bytes)
        if has_hole or is_unproved or made.header != file.header:
            made.pieces = [
                piece
                for part in file.parts
                for piece in _pieces_of(found, made.header, part, now_ns)
            ]
            replacements.append(made)
            end = FILE_HEADER_BYTES + sum(len(piece) for piece in made.pieces)
        else:
            end = file.end
    aside = [
        _quarantine_path(found.folder, r.file) for r in replacements if _is_quarantined(r.file)
    ]
    rewritten = [replacement.file.path for replacement in replacements]
    torn_bytes = found.torn_bytes if replacements else 0
    report = JournalRepair(True, tuple(found.damages), tuple(aside), tuple(rewritten), torn_bytes)
    return report, replacements


def _header_for(found: Inspection, file: InspectedFile, end_before: int | None) -> FileHeader:
    """Return the header that a file must have; the first file keeps its `previous_end`."""
    if end_before is None:
        end_before = file.header.previous_end if file.header is not None else 0
    version, salt = file.tag or FileTag(FORMAT_VERSION, secrets.randbits(SALT_BITS))
    journal_id = found.identity.journal_id
    return FileHeader(journal_id, file.number, file.first_lsn, salt, end_before, version)


def _pieces_of(
    found: Inspection, header: FileHeader, part: range | int, now_ns: Callable[[], int]
) -> list[range | bytes]:
    if isinstance(part, range):
        return [part]
    damage = found.damages[part]
    first, left = damage.first_lsn, damage.lost_lsns
    pieces: list[range | bytes] = []
    while left > 0:
        span = min(left, SPAN_MAX)
        hole = replace(damage, first_lsn=first, last_lsn=first + span - 1)
        pieces.append(hole_frame(header, hole, now_ns()))
        first, left = first + span, left - span
    return pieces


def hole_frame(file: FileHeader, damage: Damage, written_ns: int) -> bytes:
    """Return the hole frame of one file that replaces the frames lost by a damage."""
    payload = encode_hole(damage)
    header = FrameHeader(
        KIND_HOLE,
        CODEC_NONE,
        Lsn(damage.first_lsn),
        file.salt,
        Lsn(damage.first_lsn - 1),
        written_ns,
        NO_TABLE,
        damage.lost_lsns,
        len(payload),
        len(payload),
        file.version,
    )
    return b"".join(encode_frame(file.journal_id, header, payload))


def _sync_watermark(disk: Disk, folder: str, found: Inspection) -> None:
    """Fsync the watermark: without it, damage that it alone proves would look like a torn end."""
    if found.watermark is not None:
        path = f"{folder}/{DURABLE_NAME}"
        with translate_errors(path):
            disk.sync_file(path)
            disk.sync_folder(folder)


def _is_quarantined(file: InspectedFile) -> bool:
    """Tell whether a rewrite drops bytes of the file; one that only follows a damage keeps all."""
    return file.state in (FileState.DAMAGED, FileState.TORN)


def _quarantine_path(folder: str, file: InspectedFile) -> str:
    # A file damaged twice gets two copies; a file repaired twice gets one. CRC32C cannot name them:
    # bytes that contain their own checksums often have the same CRC.
    name = f"{file.number:020d}-{file.digest}{SUFFIX}"
    return f"{folder}/{QUARANTINE_NAME}/{name}"


def _quarantine_file(disk: Disk, folder: str, file: InspectedFile) -> None:
    """Copy a damaged file into the quarantine; the copy is durable when this returns."""
    if not _is_quarantined(file):
        return
    path, quarantine = _quarantine_path(folder, file), f"{folder}/{QUARANTINE_NAME}"
    with translate_errors(path):
        with suppress(FileExistsError):
            disk.make_folder(quarantine, is_private=True)
        disk.sync_folder(folder)
        replace_file(disk, quarantine, path, disk.read(file.path))


def _replace_damaged(disk: Disk, folder: str, replacement: _Replacement) -> None:
    file = replacement.file
    with translate_errors(file.path):
        old = b"" if file.state is FileState.MISSING else disk.read(file.path)
        body = [
            old[piece.start : piece.stop] if isinstance(piece, range) else piece
            for piece in replacement.pieces
        ]
        # Order matters: a file's rename is durable before the next file is replaced.
        replace_file(disk, folder, file.path, encode_file_header(replacement.header), *body)


def _verify_repair(disk: Disk, folder: str) -> JournalTail:
    """Read the repaired journal like a start, and return where it ends."""
    reader = JournalReader(disk, folder)
    for _ in reader.frames():
        pass
    assert reader.tail is not None
    return reader.tail


def _write_watermark(disk: Disk, folder: str, found: Inspection, tail: JournalTail) -> None:
    """Write the watermark, so that readers in other processes see where the frames end now."""
    last = Lsn(tail.next_lsn - 1)
    mark = Watermark(found.identity.journal_id, disk.boot_id(), last, last, tail.number, tail.end)
    path = f"{folder}/{DURABLE_NAME}"
    with translate_errors(path):
        slot = disk.open_slot(path)
        try:
            slot.put(encode_watermark(mark))
        finally:
            slot.close()
