"""Verbs for tests of damaged journals: write one, hurt it, read it as a start does."""

import uuid
from dataclasses import replace
from itertools import count

import pyarrow as pa

from fixtures.sim_disk import SimDisk
from thermocline.errors import Corruption
from thermocline.hot.wal.folder import JournalIdentity, file_path, write_identity
from thermocline.hot.wal.frame import (
    KIND_HOLE,
    UNSALTED_VERSION,
    encode_file_header,
    encode_frame,
)
from thermocline.hot.wal.journal import Journal, JournalEntry
from thermocline.hot.wal.payload import encode_rows
from thermocline.hot.wal.reader import JournalReader, JournalTail
from thermocline.hot.wal.repair.damage import decode_hole

FOLDER = "/lake/journal"
JOURNAL_ID = uuid.UUID(int=7).bytes
LOGS, METRICS = (uuid.UUID(int=number).bytes for number in (1, 2))
SALT = 1 << 60
START_NS = 1_717_200_000 * 10**9


class Clock:
    """Goes on by a second at each look."""

    def __init__(self):
        self.now_ns = START_NS

    def __call__(self):
        self.now_ns += 10**9
        return self.now_ns


def entry(number, table_id=LOGS):
    """Return a write of two rows that know their number."""
    payload = encode_rows(pa.record_batch({"n": [number, number]}))
    return JournalEntry(table_id, 1, payload.data, payload.codec, payload.raw_length)


def journal_on(disk, *, file_bytes_max=1 << 20):
    """Return the journal of a new process on this disk."""
    identity = JournalIdentity(JOURNAL_ID)
    write_identity(disk, FOLDER, identity)
    given = {"now_ns": Clock(), "new_salt": count(SALT).__next__}
    return Journal(
        disk, FOLDER, identity, JournalTail(0, 0, 1), file_bytes_max=file_bytes_max, **given
    )


def written(files=(3, 3, 3), *, is_closed=True, disk=None):
    """Return a disk with a journal of so many frames in each file, of two tables in turn."""
    disk = disk or SimDisk([FOLDER])
    journal = journal_on(disk)
    lsn = 1
    for place, frames in enumerate(files):
        if place:
            journal.rotate()
        for _ in range(frames):
            journal.append([entry(lsn, METRICS if lsn % 2 else LOGS)])
            lsn += 1
    if is_closed:
        journal.close()
    return disk


def in_format_1(disk):
    """Write the files of a journal as they were before they had salts."""
    reader = JournalReader(disk, FOLDER)
    files = {
        file.header.number: [
            encode_file_header(
                replace(file.header, salt=file.header.number, version=UNSALTED_VERSION)
            )
        ]
        for file in reader.files
    }
    for frame in reader.frames():
        header = frame.header._replace(salt=frame.number, version=UNSALTED_VERSION)
        files[frame.number] += encode_frame(JOURNAL_ID, header, frame.payload)
    for number, pieces in files.items():
        disk.overwrite(path_of(number), b"".join(pieces))
    return disk


def put_journal(lake, disk):
    """Write a simulated journal into the folder of a lake on the real disk; return its folder."""
    folder = lake / "journal"
    folder.mkdir(parents=True)
    for path, data in disk.tree().items():
        if data is not None:
            (folder / path.rpartition("/")[2]).write_bytes(data)
    return folder


def path_of(number):
    return file_path(FOLDER, number)


def frames_of(disk, number):
    """Return (lsn, offset, size) of the frames of one file of a whole journal."""
    return [
        (frame.header.lsn, frame.offset, frame.header.size_bytes)
        for frame in JournalReader(disk, FOLDER).frames()
        if frame.path == path_of(number)
    ]


def started(disk, folder=FOLDER):
    """Return what a start reads: lsns, a hole as (first, last); the error when it refuses."""
    try:
        reader = JournalReader(disk, folder)
        found = []
        for frame in reader.frames():
            header = frame.header
            last = header.lsn + header.span - 1
            found.append((header.lsn, last) if header.kind == KIND_HOLE else header.lsn)
    except Corruption as error:
        return error
    return found


def tail_of(disk):
    reader = JournalReader(disk, FOLDER)
    list(reader.frames())
    return reader.tail


def holes_of(disk):
    """Return what the holes of a journal tell."""
    frames = JournalReader(disk, FOLDER).frames()
    return [decode_hole(frame.payload) for frame in frames if frame.header.kind == KIND_HOLE]


def rows_kept(disk):
    """Return the bytes of every frame of rows by its lsn."""
    return {
        frame.header.lsn: frame.payload
        for frame in JournalReader(disk, FOLDER).frames()
        if frame.header.kind != KIND_HOLE
    }
