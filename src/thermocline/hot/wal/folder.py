"""The folder of a journal: every name in it, what it says it is, and how far it is durable.

    journal/journal.json               its id, and the oldest file that must be there
    journal/00000000000000000001.wal   frames, in files by counter
    journal/lock                       held by the one process that writes, and so is the folder
    journal/durable                    how far readers in other processes may read
    journal/retired.json               what tables had taken over from files that were removed
    journal/quarantine/                what repair or recovery set aside
    journal/.….tmp                     a file that has no name yet; no part of the journal

- `oldest` is written down before a file is removed: a file that is missing and should not be is
  noticed, and one that should be gone is not read again.
- `journal.json` carries a checksum: a wrong `oldest` would pass files over in silence.
- `durable` is written over in place after each sync and never synced itself. It can be old or torn
  after a power cut, never ahead of the truth: its checksum and its order see to that.
"""

import os
import struct
import uuid
from contextlib import suppress
from dataclasses import dataclass

import google_crc32c
import orjson

from thermocline.disk import Disk, Lock, translated
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
class Identity:
    """Which journal this is, and the number of its oldest file; 0 before there is one."""

    journal_id: bytes
    oldest: int = NO_FILE_YET


@dataclass(frozen=True, slots=True)
class Watermark:
    """How far a journal has got: acknowledged and visible, and of that, durable.

    The acknowledged frames end at `end` in file `number`. `boot_id` names the run of the machine
    in which it was written: after another boot it may be behind.
    """

    journal_id: bytes
    boot_id: bytes
    visible: Lsn
    durable: Lsn
    number: int
    end: int


def file_path(folder: str, number: int) -> str:
    """Return the path of a file of frames."""
    return f"{folder}/{number:020d}{SUFFIX}"


def file_number(name: str) -> int | None:
    """Return the number of a file of frames, or None for any other name."""
    digits = name.removesuffix(SUFFIX)
    is_one = name.endswith(SUFFIX) and len(digits) == 20 and digits.isascii() and digits.isdigit()
    return int(digits) if is_one else None


def numbers(disk: Disk, folder: str) -> list[int]:
    """Return the numbers of the files of frames that are there, in order."""
    with translated(folder):
        entries = disk.entries(folder)
    return sorted(n for entry in entries if (n := file_number(entry.name)) is not None)


def temporary_path(folder: str) -> str:
    """Return a path that nobody has: a file is made there and then given its name."""
    return f"{folder}/.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}"


def remove_temporaries(disk: Disk, folder: str) -> None:
    """Remove what dead processes left under temporary names, as far as the disk lets us."""
    with suppress(OSError):
        for entry in disk.entries(folder):
            if entry.name.startswith(".") and entry.name.endswith(TEMPORARY_SUFFIX):
                disk.unlink(f"{folder}/{entry.name}")


def read_identity(disk: Disk, folder: str) -> Identity | None:
    """Return what the journal says it is, or None when there is no journal here."""
    path = f"{folder}/{IDENTITY_NAME}"
    with translated(path):
        try:
            data = disk.read(path)
        except FileNotFoundError:
            return None
    try:
        found = orjson.loads(data)
        identity = Identity(uuid.UUID(hex=found["journal_id"]).bytes, int(found["oldest"]))
        if _identity_bytes(identity) != data:
            raise ValueError("its checksum or form differs")
        return identity
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        hint = "restore it from a copy; without it nobody knows which files belong to the journal"
        raise Corruption("not the identity of a journal", hint=hint, path=path) from error


def identity_of(disk: Disk, folder: str) -> Identity:
    """Return what the journal in a folder says it is; `NotFound` when there is none."""
    found = read_identity(disk, folder)
    if found is not None:
        return found
    with translated(folder):
        is_there = disk.size(folder) is not None
    if is_there and numbers(disk, folder):
        hint = "restore journal.json from a copy; without it nobody knows which files belong to it"
        path = f"{folder}/{IDENTITY_NAME}"
        raise Corruption("a journal's files without its identity", hint=hint, path=path)
    raise NotFound("there is no journal here", hint="name the lake's folder", folder=folder)


def write_identity(disk: Disk, folder: str, identity: Identity) -> None:
    """Write down what the journal is; it is durable and whole when this returns."""
    path = f"{folder}/{IDENTITY_NAME}"
    with translated(path):
        replace_file(disk, folder, path, _identity_bytes(identity))


def replace_file(disk: Disk, folder: str, path: str, *pieces: bytes) -> None:
    """Put a file in the place of another at once; it and its name are durable afterwards."""
    temporary = temporary_path(folder)
    try:
        writer = disk.create(temporary)
        try:
            for piece in pieces:
                writer.write(piece)
            writer.sync()
        finally:
            writer.close()
        disk.rename(temporary, path)
    except OSError:
        with suppress(OSError):
            disk.unlink(temporary)
        raise
    disk.sync_folder(folder)


def replace_unsynced(disk: Disk, folder: str, path: str, data: bytes) -> None:
    """Put a small file in the place of another at once; after a power cut it may be either."""
    temporary = temporary_path(folder)
    try:
        writer = disk.create(temporary)
        try:
            writer.write(data)
        finally:
            writer.close()
        disk.rename(temporary, path)
    except OSError:
        with suppress(OSError):
            disk.unlink(temporary)
        raise


@dataclass(frozen=True, slots=True)
class JournalLock:
    """What the owner of a journal holds: the file `lock`, and the folder itself."""

    file: Lock
    folder: Lock

    def release(self) -> None:
        """Let go of both."""
        self.folder.release()
        self.file.release()


def held(disk: Disk, folder: str, *, hint: str) -> JournalLock:
    """Return the lock of a journal; `Conflict` with this hint while a process holds it.

    The folder itself is held as well: a `lock` that somebody removes, and that a second process
    makes again, lets no second owner in.
    """
    path = f"{folder}/{LOCK_NAME}"
    with translated(path):
        try:
            file = disk.lock(path, f"{os.getpid()}\n".encode())
        except BlockingIOError as error:
            process = disk.read(path).decode(errors="replace").strip()
            raise _taken(hint, folder=folder, process=process) from error
        try:
            return JournalLock(file, disk.lock_folder(folder))
        except BlockingIOError as error:
            file.release()
            raise _taken(
                f"{hint}; the file `{LOCK_NAME}` was removed while that process runs, leave it",
                folder=folder,
            ) from error
        except BaseException:
            file.release()
            raise


def _taken(hint: str, **facts: object) -> Conflict:
    return Conflict("another process writes this journal", hint=hint, **facts)


def _identity_bytes(identity: Identity) -> bytes:
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
    """Return the watermark, or None when these bytes are none."""
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
    """Return how far the journal has got, or None when that is not written down.

    A reader may meet a writer half way; it looks again while the bytes change, a bounded number
    of times.
    """
    path = f"{folder}/{DURABLE_NAME}"
    last: bytes | None = None
    for _ in range(DURABLE_READS_MAX):
        with translated(path):
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
