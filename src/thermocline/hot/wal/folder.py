"""The folder of a journal: its file names, its identity file, its lock and its watermark.

    journal/journal.json               the journal's id, and the number of its oldest file
    journal/00000000000000000001.wal   frames, in files by counter
    journal/lock                       locked by the one writing process, like the folder itself
    journal/durable                    how far readers in other processes may read
    journal/retired.json               each table's last lsn in the files that were removed
    journal/quarantine/                what repair or a person set aside
    journal/.….tmp                     a file before its rename; not part of the journal

- The writer stores `oldest` before it removes a file. So a reader notices a file that is missing,
  and does not read a file that should be gone.
- `journal.json` has a checksum: with a wrong `oldest` a reader would silently skip files.
- The writer overwrites `durable` in place after each sync, and never fsyncs it. After a power cut
  it can be old or torn, but never ahead of the frames: its checksum and the write order ensure it.
"""

import os
import struct
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import google_crc32c
import orjson

from thermocline.disk import Disk, Lock, translate_errors
from thermocline.errors import Conflict, Corruption, NotFound
from thermocline.hot.wal.frame import Lsn

IDENTITY_NAME = "journal.json"
LOCK_NAME = "lock"
DURABLE_NAME = "durable"
QUARANTINE_NAME = "quarantine"
RETIRED_NAME = "retired.json"
SUFFIX = ".wal"
TEMPORARY_SUFFIX = ".tmp"
NO_FILE_YET = 0

_DURABLE = struct.Struct("<8s16s16sQQQQ")
_DURABLE_MAGIC = b"TCDURABL"
_CRC = struct.Struct("<I")
DURABLE_READS_MAX = 100


@dataclass(frozen=True, slots=True)
class JournalIdentity:
    """The id of a journal and the number of its oldest file; 0 before the first file."""

    journal_id: bytes
    oldest: int = NO_FILE_YET


@dataclass(frozen=True, slots=True)
class Watermark:
    """The last lsn of a journal that is acknowledged and visible, and the last durable one.

    The acknowledged frames end at `end` in file `number`. `boot_id` names the boot of the machine
    in which the watermark was written: after another boot it may be behind.
    """

    journal_id: bytes
    boot_id: bytes
    visible: Lsn
    durable: Lsn
    number: int
    end: int


def file_path(folder: str, number: int) -> str:
    """Return the path of the journal file with this number."""
    return f"{folder}/{number:020d}{SUFFIX}"


def file_number(name: str) -> int | None:
    """Return the number of a journal file, or None for any other name."""
    digits = name.removesuffix(SUFFIX)
    is_one = name.endswith(SUFFIX) and len(digits) == 20 and digits.isascii() and digits.isdigit()
    return int(digits) if is_one else None


def list_file_numbers(disk: Disk, folder: str) -> list[int]:
    """Return the numbers of the existing journal files, in order."""
    with translate_errors(folder):
        entries = disk.entries(folder)
    return sorted(n for entry in entries if (n := file_number(entry.name)) is not None)


def temporary_path(folder: str) -> str:
    """Return a new unique path: a file is written there and then renamed."""
    return f"{folder}/.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}"


def remove_temporaries(disk: Disk, folder: str) -> None:
    """Remove temporary files of dead processes; errors of the disk are ignored."""
    with suppress(OSError):
        for entry in disk.entries(folder):
            if entry.name.startswith(".") and entry.name.endswith(TEMPORARY_SUFFIX):
                disk.unlink(f"{folder}/{entry.name}")


def read_identity(disk: Disk, folder: str) -> JournalIdentity | None:
    """Return the identity of the journal, or None when the folder has no journal."""
    path = f"{folder}/{IDENTITY_NAME}"
    with translate_errors(path):
        try:
            data = disk.read(path)
        except FileNotFoundError:
            return None
    try:
        found = orjson.loads(data)
        identity = JournalIdentity(uuid.UUID(hex=found["journal_id"]).bytes, int(found["oldest"]))
        if _identity_bytes(identity) != data:
            raise ValueError("its checksum or form differs")
        return identity
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        hint = "restore it from a copy: it says which files belong to the journal"
        raise Corruption("the journal's identity file is damaged", hint=hint, path=path) from error


def require_identity(disk: Disk, folder: str) -> JournalIdentity:
    """Return the identity of the journal in a folder; `NotFound` when there is no journal."""
    found = read_identity(disk, folder)
    if found is not None:
        return found
    with translate_errors(folder):
        is_there = disk.size(folder) is not None
    if is_there and list_file_numbers(disk, folder):
        hint = "restore journal.json from a copy: it says which files belong to the journal"
        path = f"{folder}/{IDENTITY_NAME}"
        raise Corruption("the journal has files, but no identity file", hint=hint, path=path)
    raise NotFound("there is no journal here", hint="name the lake's folder", folder=folder)


def write_identity(disk: Disk, folder: str, identity: JournalIdentity) -> None:
    """Write the identity file; it is durable and whole when this returns."""
    path = f"{folder}/{IDENTITY_NAME}"
    with translate_errors(path):
        replace_file(disk, folder, path, _identity_bytes(identity))


def replace_file(disk: Disk, folder: str, path: str, *pieces: bytes) -> None:
    """Replace a file atomically; the new bytes and the name are durable when this returns."""
    _replace(disk, folder, path, pieces, is_synced=True)
    disk.sync_folder(folder)


def replace_unsynced(disk: Disk, folder: str, path: str, data: bytes) -> None:
    """Replace a small file atomically without fsync; a power cut may leave the old or the new."""
    _replace(disk, folder, path, (data,), is_synced=False)


def _replace(
    disk: Disk, folder: str, path: str, pieces: Sequence[bytes], *, is_synced: bool
) -> None:
    temporary = temporary_path(folder)
    try:
        writer = disk.create(temporary)
        try:
            for piece in pieces:
                writer.write(piece)
            if is_synced:
                writer.sync()
        finally:
            writer.close()
        disk.rename(temporary, path)
    except OSError:
        with suppress(OSError):
            disk.unlink(temporary)
        raise


@dataclass(frozen=True, slots=True)
class JournalLock:
    """The two locks of a journal's owner: the file `lock`, and the folder itself."""

    file: Lock
    folder: Lock

    def release(self) -> None:
        """Release both locks."""
        self.folder.release()
        self.file.release()


def lock_journal(disk: Disk, folder: str, *, hint: str) -> JournalLock:
    """Lock a journal; `Conflict` with this hint while another process holds the lock.

    The folder is locked as well: if a person removes `lock` and a second process creates it again,
    that process still cannot become a second owner.
    """
    path = f"{folder}/{LOCK_NAME}"
    with translate_errors(path):
        try:
            file = disk.lock(path, f"{os.getpid()}\n".encode())
        except BlockingIOError as error:
            process = disk.read(path).decode(errors="replace").strip()
            raise _lock_conflict(hint, folder=folder, process=process) from error
        try:
            return JournalLock(file, disk.lock_folder(folder))
        except BlockingIOError as error:
            file.release()
            raise _lock_conflict(
                f"{hint}; the file `{LOCK_NAME}` was removed while that process runs: keep it",
                folder=folder,
            ) from error
        except BaseException:
            file.release()
            raise


def _lock_conflict(hint: str, **facts: object) -> Conflict:
    return Conflict("another process writes this journal", hint=hint, **facts)


def _identity_bytes(identity: JournalIdentity) -> bytes:
    journal_id = uuid.UUID(bytes=identity.journal_id).hex
    body = {"journal_id": journal_id, "oldest": identity.oldest}
    return orjson.dumps({**body, "crc32c": google_crc32c.value(orjson.dumps(body))})


def encode_watermark(mark: Watermark) -> bytes:
    """Return the bytes of `durable`."""
    body = _DURABLE.pack(
        _DURABLE_MAGIC,
        mark.journal_id,
        mark.boot_id,
        mark.visible,
        mark.durable,
        mark.number,
        mark.end,
    )
    return body + _CRC.pack(google_crc32c.value(body))


def decode_watermark(data: bytes) -> Watermark | None:
    """Return the watermark in these bytes, or None when they are torn or of another kind."""
    if len(data) != _DURABLE.size + _CRC.size:
        return None
    body = data[: _DURABLE.size]
    if _CRC.unpack_from(data, _DURABLE.size)[0] != google_crc32c.value(body):
        return None
    magic, journal_id, boot_id, visible, durable, number, end = _DURABLE.unpack(body)
    if magic != _DURABLE_MAGIC:
        return None
    return Watermark(journal_id, boot_id, Lsn(visible), Lsn(durable), number, end)


def read_watermark(disk: Disk, folder: str, journal_id: bytes) -> Watermark | None:
    """Return the watermark of a journal, or None when no valid one exists.

    A reader may read while the writer overwrites the file; it reads again while the bytes change,
    at most `DURABLE_READS_MAX` times.
    """
    path = f"{folder}/{DURABLE_NAME}"
    last: bytes | None = None
    for _ in range(DURABLE_READS_MAX):
        with translate_errors(path):
            try:
                data = disk.read(path)
            except FileNotFoundError:
                return None
        mark = decode_watermark(data)
        if mark is not None:
            return mark if mark.journal_id == journal_id else None
        if data == last:
            return None
        last = data
    return None
