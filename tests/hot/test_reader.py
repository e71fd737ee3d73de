"""Reading a journal's files: torn ends are cut, damage is refused by name, nothing is skipped."""

import random
import tracemalloc
from functools import partial
from itertools import count

import pytest

from crash.journal_core import FOLDER, JOURNAL_ID, TABLE_ID, entry, journal_disk, opened, payloads
from fixtures.sim_disk import SimDisk
from thermocline.errors import Corruption, NotFound, Unsupported
from thermocline.hot.wal.folder import (
    DURABLE_NAME,
    IDENTITY_NAME,
    JournalIdentity,
    file_path,
    read_identity,
    read_watermark,
    write_identity,
)
from thermocline.hot.wal.frame import (
    CHECKSUM_BYTES,
    CODEC_NONE,
    FILE_HEADER_BYTES,
    FORMAT_VERSION,
    FRAME_HEADER_BYTES,
    KIND_HOLE,
    KIND_ROWS,
    UNSALTED_VERSION,
    FileHeader,
    FrameHeader,
    Lsn,
    encode_file_header,
    encode_frame,
)
from thermocline.hot.wal.journal import Journal
from thermocline.hot.wal.reader import READ_BYTES, JournalReader

FILE_BYTES_MAX = 300
SALT = 4711  # of file 1; the next files have the next numbers
WATERMARK = f"{FOLDER}/{DURABLE_NAME}"


def path(number):
    return file_path(FOLDER, number)


def written(groups, *, file_bytes_max=FILE_BYTES_MAX, has_watermark=True):
    """Return a disk with these groups appended, by a process that was killed then."""
    disk = journal_disk()
    kind = partial(Journal, new_salt=count(SALT).__next__)
    journal = opened(disk, kind, file_bytes_max=file_bytes_max)
    for group in groups:
        journal.append([entry(name) for name in group])
    if not has_watermark:
        disk.remove(WATERMARK)
    return disk


def rows(count):
    return [[b"row %d" % number] for number in range(count)]


def read(disk):
    reader = JournalReader(disk, FOLDER)
    found = [frame.payload for frame in reader.frames()]
    return found, reader.tail


def refusal(disk):
    with pytest.raises(Corruption) as caught:
        read(disk)
    return caught.value


def frame_bytes(lsn, payload, *, salt=SALT, durable=0, journal_id=JOURNAL_ID, **changed):
    fields = {"kind": KIND_ROWS, "schema_id": 0, "raw_length": len(payload), **changed}
    header = FrameHeader(
        fields["kind"],
        CODEC_NONE,
        Lsn(lsn),
        salt,
        Lsn(durable),
        0,
        TABLE_ID,
        fields["schema_id"],
        len(payload),
        fields["raw_length"],
        fields.get("version", FORMAT_VERSION),
    )
    return b"".join(encode_frame(journal_id, header, payload))


def extend(disk, number, data):
    disk.overwrite(path(number), disk.read(path(number)) + data)


# --- a torn end ---------------------------------------------------------------------------------


@pytest.mark.parametrize("last_group", [[b"one"], [b"one", b"two", b"three"]])
def test_W05_a_last_group_torn_at_any_byte_is_cut_and_nothing_before_it(last_group):
    before = written(rows(2), has_watermark=False)
    kept = len(before.read(path(1)))
    disk = written([*rows(2), last_group], file_bytes_max=10**6, has_watermark=False)
    whole = disk.read(path(1))
    ends = [kept]
    for name in last_group:
        ends.append(ends[-1] + FRAME_HEADER_BYTES + len(name) + CHECKSUM_BYTES)
    assert ends[-1] == len(whole)
    for size in range(kept, len(whole) + 1):
        disk.overwrite(path(1), whole[:size])
        found, tail = read(disk)
        whole_ones = sum(end <= size for end in ends[1:])
        assert found == [b"row 0", b"row 1", *last_group[:whole_ones]], size
        assert (tail.number, tail.end) == (1, ends[whole_ones])
        assert tail.cut_bytes == size - ends[whole_ones]
        assert tail.next_lsn == 3 + whole_ones


@pytest.mark.parametrize("junk", [b"\0" * 700, b"\xf7TCF" * 99, random.Random(3).randbytes(5000)])
def test_W06_garbage_behind_the_last_frame_is_cut(junk):
    disk = written(rows(2))
    extend(disk, 1, junk)
    found, tail = read(disk)
    assert found == [b"row 0", b"row 1"]
    assert tail.cut_bytes == len(junk)


@pytest.mark.parametrize(
    "stale",
    [
        frame_bytes(3, b"another journal's", journal_id=b"x" * 16),
        frame_bytes(3, b"another file's", salt=SALT + 1),
        frame_bytes(3, b"format 1 of this number", salt=1, version=UNSALTED_VERSION),
        frame_bytes(3, b"format 1 of this salt", version=UNSALTED_VERSION),
        frame_bytes(2, b"an earlier lsn"),
        frame_bytes(4, b"a later lsn"),
    ],
)
def test_W06_old_bytes_of_a_recycled_file_are_cut(stale):
    disk = written(rows(2))
    extend(disk, 1, stale)
    assert read(disk)[0] == [b"row 0", b"row 1"]


@pytest.mark.parametrize("salt", [SALT + 1, SALT])
def test_W06_old_bytes_of_a_recycled_file_prove_nothing(salt):
    disk = written(rows(2))
    extend(disk, 1, b"torn" + frame_bytes(9, b"later", durable=8, salt=salt))
    if salt == SALT:
        assert refusal(disk).facts["durable_lsn"] == 8
    else:
        assert read(disk)[1].cut_bytes > 4


def test_files_of_format_1_are_read_and_followed_by_those_of_today():
    disk = journal_disk()
    header = FileHeader(JOURNAL_ID, 1, Lsn(1), 1, 0, UNSALTED_VERSION)
    old = {"salt": 1, "version": UNSALTED_VERSION}
    frames = [frame_bytes(lsn, b"row %d" % (lsn - 1), **old) for lsn in (1, 2)]
    disk.overwrite(path(1), b"".join([encode_file_header(header), *frames]))
    write_identity(disk, FOLDER, JournalIdentity(JOURNAL_ID, 1))
    assert opened(disk).append([entry(b"row 2")]) == [3]
    assert payloads(disk) == [b"row 0", b"row 1", b"row 2"]
    assert [file.header.version for file in JournalReader(disk, FOLDER).files] == [
        UNSALTED_VERSION,
        FORMAT_VERSION,
    ]


def test_frames_that_nothing_proves_durable_are_found_and_told_apart():
    disk = written(rows(1), has_watermark=False)
    assert [frame.payload for frame in read(disk)[1].unproved] == [b"row 0"]
    extend(disk, 1, frame_bytes(2, b"torn away", durable=1)[:-1])
    assert read(disk)[1].unproved == ()
    assert read(written(rows(1)))[1].unproved == ()
    closed = written(rows(1))
    opened(closed).close()
    closed.remove(WATERMARK)
    assert read(closed)[1].unproved == ()


# --- files that were never finished -------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 63, 64])
def test_W12_an_unfinished_newest_file_counts_for_nothing(size):
    disk = written(rows(2))
    disk.overwrite(path(2), b"\0" * size)
    found, tail = read(disk)
    assert found == [b"row 0", b"row 1"]
    assert (tail.number, tail.leftover) == (1, path(2))
    opened(disk, file_bytes_max=1).append([entry(b"row 2")])
    assert payloads(disk) == [b"row 0", b"row 1", b"row 2"]


def test_W12_a_newest_file_with_a_header_and_nothing_else_is_fine():
    disk = written(rows(2))
    opened(disk).close()
    assert len(disk.read(path(2))) == FILE_HEADER_BYTES
    found, tail = read(disk)
    assert found == [b"row 0", b"row 1"]
    assert (tail.number, tail.end, tail.next_lsn) == (2, FILE_HEADER_BYTES, 3)


@pytest.mark.parametrize("size", [0, 1, 63])
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("has_watermark", [True, False])
def test_W12_an_unfinished_file_before_others_is_refused_by_name(size, number, has_watermark):
    disk = written(rows(8), has_watermark=has_watermark)
    assert disk.size(path(3))
    disk.truncate(path(number), size)
    assert refusal(disk).facts["path"] == path(number)


def test_W12_a_file_without_its_frames_before_others_is_refused_by_name():
    disk = written(rows(8), has_watermark=False)
    disk.truncate(path(2), FILE_HEADER_BYTES)
    error = refusal(disk)
    assert (error.facts["path"], error.facts["offset"]) == (path(2), FILE_HEADER_BYTES)


@pytest.mark.parametrize("size", [0, 64])
def test_W12_a_newest_file_that_was_answered_from_is_not_taken_for_unfinished(size):
    disk = written(rows(2))
    disk.overwrite(path(1), b"\0" * size)
    assert refusal(disk).facts["path"] == path(1)
    disk.remove(WATERMARK)
    assert refusal(disk).facts["path"] == path(1)


def test_a_bad_header_with_frames_behind_it_is_damage_even_in_the_newest_file():
    disk = written(rows(2), has_watermark=False)
    disk.flip_byte(path(1), 20)
    assert refusal(disk).facts["path"] == path(1)


# --- damage -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 2])
def test_W13_every_flipped_byte_of_a_sealed_file_is_refused_with_its_place(number):
    disk = written(rows(8), has_watermark=False)
    whole = disk.read(path(number))
    for place in range(len(whole)):
        disk.flip_byte(path(number), place)
        error = refusal(disk)
        assert error.facts["path"] == path(number)
        assert error.facts["offset"] <= place
        assert error.hint
        disk.overwrite(path(number), whole)
    assert len(payloads(disk)) == 8


def test_W13_no_flipped_byte_of_the_last_file_loses_a_frame_that_was_proved():
    disk = written([[b"a", b"b"], [b"c"], [b"d", b"e"]], file_bytes_max=10**6)
    names = [b"a", b"b", b"c", b"d", b"e"]
    whole = disk.read(path(1))
    for place in range(len(whole)):
        disk.flip_byte(path(1), place)
        assert refusal(disk).facts["path"] == path(1)
        disk.overwrite(path(1), whole)
    disk.remove(WATERMARK)
    last_group = whole.index(b"\xf7TCF", whole.index(b"c", 200))
    for place in range(len(whole)):
        disk.flip_byte(path(1), place)
        if place < last_group:
            assert refusal(disk).facts["path"] == path(1)
        else:
            found, tail = read(disk)
            assert found == names[: len(found)]
            assert len(found) >= 3
            assert tail.cut_bytes > 0
        disk.overwrite(path(1), whole)


def test_W13_a_watermark_that_is_damaged_proves_nothing_and_harms_nothing():
    disk = written(rows(3))
    data = disk.read(WATERMARK)
    for place in range(len(data)):
        disk.flip_byte(WATERMARK, place)
        assert len(payloads(disk)) == 3
        disk.overwrite(WATERMARK, data)
    for other in (b"", data[:-1], data + b"\0", bytes(len(data))):
        disk.overwrite(WATERMARK, other)
        assert read_watermark(disk, FOLDER, JOURNAL_ID) is None
        assert len(payloads(disk)) == 3


def test_the_watermark_of_another_journal_proves_nothing():
    disk = written(rows(3))
    assert read_watermark(disk, FOLDER, JOURNAL_ID).durable == 3
    assert read_watermark(disk, FOLDER, b"x" * 16) is None


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16, 32, 64, 128, 255])
def test_every_flip_in_the_identity_is_refused(bits):
    disk = written(rows(8))
    where = f"{FOLDER}/{IDENTITY_NAME}"
    whole = disk.read(where)
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= bits
        disk.overwrite(where, bytes(damaged))
        assert refusal(disk).facts["path"] == where


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_missing_file_at_the_front_in_the_middle_or_at_the_end_is_refused_by_name(number):
    disk = written(rows(8))
    assert disk.size(path(4)) is None
    disk.remove(path(number))
    assert refusal(disk).facts["path"] == path(number)


def test_a_journal_whose_every_file_is_gone_is_refused():
    disk = written(rows(2))
    disk.remove(path(1))
    assert refusal(disk).facts["path"] == path(1)
    disk.remove(WATERMARK)
    assert refusal(disk).facts["path"] == path(1)


def test_a_file_that_was_trimmed_while_the_journal_was_looked_at_is_not_damage():
    disk = written(rows(8))
    before = read_identity(disk, FOLDER)
    opened(disk).trim(3)
    with pytest.raises(NotFound):
        JournalReader(disk, FOLDER, before)
    assert len(payloads(disk)) == 2


def test_files_before_the_oldest_are_not_read_again():
    disk = written(rows(8))
    write_identity(disk, FOLDER, JournalIdentity(JOURNAL_ID, 2))
    disk.flip_byte(path(1), 80)
    assert payloads(disk) == [b"row %d" % number for number in range(3, 8)]


@pytest.mark.parametrize("swap", [(1, 2), (2, 3)])
def test_files_in_each_others_place_are_refused(swap):
    disk = written(rows(8))
    one, two = (disk.read(path(number)) for number in swap)
    disk.overwrite(path(swap[0]), two)
    disk.overwrite(path(swap[1]), one)
    assert refusal(disk).facts["path"] in (path(swap[0]), path(swap[1]))


def test_a_file_of_another_journal_is_refused():
    disk = written(rows(8))
    other = SimDisk([FOLDER])
    write_identity(other, FOLDER, JournalIdentity(b"another journal!"))
    opened(other).append([entry(b"x")])
    disk.overwrite(path(1), other.read(path(1)))
    assert refusal(disk).facts["path"] == path(1)


@pytest.mark.parametrize(
    "name",
    ["1.wal", "00000000000000000009.wal.bak", "0000000000000000000x.wal", "notes.txt", ".x.tmp"],
)
def test_names_that_are_no_files_of_a_journal_are_not_looked_at(name):
    disk = written(rows(2))
    disk.overwrite(f"{FOLDER}/{name}", b"whatever")
    assert payloads(disk) == [b"row 0", b"row 1"]


def test_a_folder_without_a_journal_is_refused():
    with pytest.raises(Corruption, match="no journal"):
        JournalReader(SimDisk([FOLDER]), FOLDER)


def test_a_journal_without_files_is_empty():
    found, tail = read(journal_disk())
    assert (found, tail.number, tail.end, tail.next_lsn) == ([], 0, 0, 1)


# --- frames of other kinds, and bounds ----------------------------------------------------------


def test_a_hole_takes_the_lsns_of_what_was_lost():
    disk = written(rows(2))
    extend(disk, 1, frame_bytes(3, b"{}", kind=KIND_HOLE, schema_id=5))
    extend(disk, 1, frame_bytes(8, b"after"))
    found, tail = read(disk)
    assert found == [b"row 0", b"row 1", b"{}", b"after"]
    assert tail.next_lsn == 9


def test_a_frame_of_an_unknown_kind_is_unsupported_and_not_damage():
    disk = written(rows(2))
    extend(disk, 1, frame_bytes(3, b"?", kind=9))
    with pytest.raises(Unsupported):
        read(disk)


def test_W14_a_frame_that_claims_four_gigabytes_is_refused_without_room_for_it():
    disk = written(rows(2))
    extend(disk, 1, frame_bytes(3, b"", raw_length=2**32 - 1))
    tracemalloc.start()
    try:
        assert refusal(disk).facts["path"] == path(1)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


class Counting(SimDisk):
    """A disk that remembers how much was asked for at once."""

    asked: list[int]

    def open_reader(self, path):
        reader = super().open_reader(path)
        right = reader.read

        def read(size_bytes):
            self.asked.append(size_bytes)
            return right(size_bytes)

        reader.read = read
        return reader


def test_W14_reads_are_bounded_whatever_the_files_hold():
    disk = Counting([FOLDER])
    disk.asked = []
    write_identity(disk, FOLDER, JournalIdentity(JOURNAL_ID))
    journal = opened(disk, file_bytes_max=10**6)
    for number in range(40):
        journal.append([entry(random.Random(number).randbytes(200_000))])
    disk.asked.clear()
    reader = JournalReader(disk, FOLDER)
    assert len([frame.header.lsn for frame in reader.frames()]) == 40
    assert max(disk.asked) <= READ_BYTES
