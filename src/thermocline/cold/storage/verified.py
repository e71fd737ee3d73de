"""Verifies that a file's bytes are those that a commit names; the result is cached.

In:   a file of a disk, the checksum that the log names for it
Out:  nothing, or `Corruption` with the file and, where it can be found, the damaged offset

- A file is read to its end and its CRC32C is compared before any of its rows is used. This process
  caches the result under the file's stamp: device, inode, size, modification time and change time.
  A file with another stamp is read again.
- The result for a file that changed a moment ago is not cached: a second change within one tick of
  the file system's clock would not change the stamp.
- A caller that copies rows elsewhere asks for a `fresh` check, because bytes may rot on a medium
  without a new stamp. A fresh check ignores the cache and updates it.
- Bytes are read with `read`, not through a memory map: an unreadable sector then raises an error
  instead of killing the process.

The cache is bounded; the oldest entry is evicted first. Thread-safe.
"""

import errno
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq

from thermocline.disk import Disk, FileStamp
from thermocline.errors import Corruption, ThermoclineError, Unavailable, Unsupported

FILES_REMEMBERED_MAX = 131_072
OFFSETS_REMEMBERED_MAX = 1_024
READ_CHUNK_BYTES = 256 << 10
UNSETTLED_NS = 100_000_000
"""How long after its last change a file may change again without a new change time."""

READ_TRIES_MAX = 3
READ_LOCKS = 64
CHECKSUM_PREFIX = "crc32c:"
PARQUET_MAGIC = b"PAR1"
RESTORE_HINT = "restore the file from a backup; `thermocline table fsck` lists all damaged files"

# Arrow's messages for a chunk whose description in the footer contradicts itself.
_FOOTER_ERROR = re.compile(r"histogram size mismatch|does not support")
_remembered: dict[FileStamp, str] = {}
_offsets: dict[FileStamp, int | None] = {}
_lock = threading.Lock()
_read_locks = [threading.Lock() for _ in range(READ_LOCKS)]


def checksum_text(checksum: int) -> str:
    """Return a CRC32C as the log writes it."""
    return f"{CHECKSUM_PREFIX}{checksum:08x}"


def verify_file(
    disk: Disk, absolute: str, path: str, checksum: str, stamp: FileStamp, *, fresh: bool = False
) -> FileStamp:
    """Return the stamp of a file whose bytes have this checksum; `Corruption` otherwise.

    `path` is the file's path in the log, `stamp` its present stamp. Raises `OSError` as the
    operating system does, `FileNotFoundError` when the file was removed meanwhile.
    """
    if not fresh and _remembered.get(stamp) == checksum:
        return stamp
    check_algorithm(path, checksum)
    for _ in range(READ_TRIES_MAX):
        known = None if fresh else _remembered.get(stamp)
        if known is None:
            with _read_locks[hash(stamp) % READ_LOCKS]:
                known = None if fresh else _remembered.get(stamp)
                known = known or _read_checksum(disk, absolute)
                after = disk.stamp(absolute)
                if after is None:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), absolute)
                if after != stamp:
                    stamp = after  # the file was replaced or written while it was read
                    continue
                _remember(stamp, known)
        if known != checksum:
            offset = _recall_damaged_offset(disk, absolute, stamp)
            raise damage_error(path, checksum, known, offset)
        return stamp
    raise Unavailable(
        "a live file changes while it is read",
        hint="segments are never changed in place: stop the program that writes it",
        path=path,
    )


def check_algorithm(path: str, checksum: str) -> None:
    """Raise `Unsupported` for a checksum that this version cannot compute."""
    if not checksum.startswith(CHECKSUM_PREFIX):
        raise Unsupported(
            "a segment has a checksum of a newer format",
            hint="use a newer Thermocline",
            path=path,
            checksum=checksum,
        )


def damage_error(path: str, expected: str, found: str, offset: int | None) -> Corruption:
    """Return the error for bytes that are not those that were committed."""
    place = {} if offset is None else {"offset": offset}
    return Corruption(
        "a segment's bytes are not those that were committed",
        hint=RESTORE_HINT,
        path=path,
        **place,
        expected=expected,
        found=found,
    )


def missing_file_error(path: str) -> Corruption:
    """Return the error for a file that the log names and that does not exist."""
    return Corruption("a live file is missing", hint=RESTORE_HINT, path=path)


def wrong_size_error(path: str, expected: int, found: int) -> Corruption:
    """Return the error for a file that is longer or shorter than the log says."""
    return Corruption(
        "a live file has another size than the log says",
        hint=RESTORE_HINT,
        path=path,
        expected_bytes=expected,
        found_bytes=found,
    )


def find_damaged_offset(open_input: Callable[[], pa.NativeFile]) -> int | None:
    """Return the offset of the damage in a Parquet file, or None when it cannot be located.

    It is the first byte of the first column chunk with a page that fails its checksum or cannot be
    decoded, or of an unreadable footer. The damage may be impossible to locate in a file without
    page checksums, or in a footer that is still readable.
    """
    with suppress(ThermoclineError, MemoryError, OSError), open_input() as source:
        return _scan_for_damage(source)
    return None


def _scan_for_damage(source: pa.NativeFile) -> int | None:
    try:
        file = pq.ParquetFile(source, page_checksum_verification=True)
    except MemoryError:
        return None
    except (pa.ArrowException, OSError, ValueError):  # ValueError: a column name is not UTF-8
        return _find_footer(source)
    end = len(PARQUET_MAGIC)
    for group in range(file.metadata.num_row_groups):
        for place in range(file.metadata.num_columns):
            try:
                path = file.schema.column(place).path
                file.read_row_group(group, [path], use_threads=False)
            except MemoryError:
                return None
            except (pa.ArrowException, OSError, ValueError) as error:
                # Chunks follow each other, so this one begins where the previous one ends. Do not
                # ask Arrow: it ends the process when this part of the footer is damaged.
                return _find_footer(source) if _FOOTER_ERROR.search(str(error)) else end
            chunk = file.metadata.row_group(group).column(place)
            first = min(chunk.data_page_offset, chunk.dictionary_page_offset or sys.maxsize)
            end = first + chunk.total_compressed_size
    return None


def _find_footer(source: pa.NativeFile) -> int:
    """Return the start of the footer by its length, or the offset of the length if that is bad."""
    size_bytes = source.size()
    length_at = max(0, size_bytes - 8)
    source.seek(length_at)
    length = int.from_bytes(source.read(4), "little")
    return length_at - length if length <= length_at else length_at


def _read_checksum(disk: Disk, absolute: str) -> str:
    checksum = 0
    reader = disk.open_reader(absolute)
    try:
        while chunk := reader.read(READ_CHUNK_BYTES):
            checksum = google_crc32c.extend(checksum, chunk)
    finally:
        reader.close()
    return checksum_text(checksum)


def _remember(stamp: FileStamp, checksum: str) -> None:
    if 0 <= time.time_ns() - stamp.changed_ns < UNSETTLED_NS:
        return
    with _lock:
        while len(_remembered) >= FILES_REMEMBERED_MAX:
            del _remembered[next(iter(_remembered))]
        _remembered[stamp] = checksum


def _recall_damaged_offset(disk: Disk, absolute: str, stamp: FileStamp) -> int | None:
    """Return the damaged offset; each file is searched once, and the result is cached."""
    if stamp not in _offsets:
        offset = find_damaged_offset(lambda: disk.open_input(absolute))
        with _lock:
            while len(_offsets) >= OFFSETS_REMEMBERED_MAX:
                del _offsets[next(iter(_offsets))]
            _offsets[stamp] = offset
    return _offsets.get(stamp)
