"""The last lsn of each table in the journal files that were removed.

    journal/retired.json   {"journal_id": hex, "marks": {table id in hex: lsn}, "checksum": ...}

In:   the last lsn of each table in files that are about to be removed
Out:  for each table, the lsn that its log must have reached

A journal file is removed only when the log of every table in it has the file's rows. This file is
durable before the journal files are removed. So a table whose log has a lower mark has lost
commits: without this file, the rows would be missing from both halves without an error.

- A journal that never removed a file has no such file; nor has a journal of an older release.
- A file of another journal is ignored: its lsns belong to other writes.
"""

import os
import uuid
from collections.abc import Mapping

from thermocline.disk import Disk, OsDisk, translate_errors
from thermocline.errors import Corruption
from thermocline.format.log.action import Mark
from thermocline.format.sealed_json import seal, unseal
from thermocline.hot.wal.folder import IDENTITY_NAME, RETIRED_NAME, replace_file, require_identity

JOURNAL_NAME = "journal"
FOLDERS_ABOVE_MAX = 5
_HINT = "restore it from a copy; or remove it, which disables this check for lost commits of tables"


def read_retired(disk: Disk, folder: str, journal_id: bytes) -> dict[bytes, Mark]:
    """Return the mark that each table's log must have; `Corruption` when the file is damaged."""
    path = f"{folder}/{RETIRED_NAME}"
    with translate_errors(path):
        try:
            data = disk.read(path)
        except FileNotFoundError:
            return {}
    fields = unseal(data, path, hint=_HINT)
    try:
        if uuid.UUID(hex=fields["journal_id"]).bytes != journal_id:
            return {}
        return {bytes.fromhex(key): Mark(int(mark)) for key, mark in fields["marks"].items()}
    except (LookupError, ValueError, TypeError, AttributeError) as error:
        raise Corruption("retired.json cannot be decoded", hint=_HINT, path=path) from error


def write_retired(disk: Disk, folder: str, journal_id: bytes, marks: Mapping[bytes, Mark]) -> None:
    """Write the marks; they are durable when this returns."""
    path = f"{folder}/{RETIRED_NAME}"
    data = encode_retired(journal_id, marks)
    with translate_errors(path):
        replace_file(disk, folder, path, data)


def encode_retired(journal_id: bytes, marks: Mapping[bytes, Mark]) -> bytes:
    """Return the bytes of the file."""
    named = {key.hex(): mark for key, mark in sorted(marks.items())}
    return seal({"journal_id": uuid.UUID(bytes=journal_id).hex, "marks": named})


def retired_marks_above(
    table_root: str, table_id: str, disk: Disk | None = None
) -> dict[str, Mark]:
    """Return the retired mark of a table in the journal of the lake around its folder, by source.

    Empty if the folder is not in a lake, or the journal never removed a file with the table's rows.
    """
    disk = disk or OsDisk()
    folder = table_root
    for _ in range(FOLDERS_ABOVE_MAX):
        folder = os.path.dirname(folder)
        journal = os.path.join(folder, JOURNAL_NAME)
        with translate_errors(journal):
            is_there = disk.size(os.path.join(journal, IDENTITY_NAME)) is not None
        if is_there:
            journal_id = require_identity(disk, journal).journal_id
            mark = read_retired(disk, journal, journal_id).get(bytes.fromhex(table_id))
            return {} if mark is None else {uuid.UUID(bytes=journal_id).hex: mark}
    return {}
