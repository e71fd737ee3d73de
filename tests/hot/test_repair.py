"""Journals that are damaged in every way: what a look at them tells, and what a repair leaves."""

import errno
import random
from pathlib import Path

import pytest

from fixtures.sim_disk import SimDisk
from fixtures.sim_fault import Died
from hot import repairing as verbs
from hot.repairing import FOLDER, LOGS, METRICS, path_of, started
from thermocline.disk import OsDisk
from thermocline.errors import Conflict, Corruption, NotFound, ThermoclineError, Unsupported
from thermocline.hot.wal.folder import (
    JournalIdentity,
    Watermark,
    encode_watermark,
    read_watermark,
    write_identity,
)
from thermocline.hot.wal.frame import (
    CODEC_NONE,
    FILE_HEADER_BYTES,
    KIND_ROWS,
    PAYLOAD_BYTES_MAX,
    FrameHeader,
    decode_file_header,
    decode_frame_header,
    encode_frame,
)
from thermocline.hot.wal.journal import Journal, JournalEntry
from thermocline.hot.wal.reader import JournalReader
from thermocline.hot.wal.repair.repair import inspect, repair
from thermocline.hot.wal.repair.survey import FileState

NOW_NS = 1_800_000_000 * 10**9


def repaired(disk):
    return repair(disk, FOLDER, dry_run=False, now_ns=lambda: NOW_NS)


def without_locks(disk):
    return {path: data for path, data in disk.tree().items() if not path.endswith("/lock")}


def salt_of(disk, number):
    return decode_file_header(disk.tree()[path_of(number)]).salt


def lost(disk):
    """Return the lsns that the damages of a journal have lost."""
    return [(one.first_lsn, one.last_lsn) for one in inspect(disk, FOLDER).damages if one.lost_lsns]


# What inspect tells.


def test_a_whole_journal_is_told_by_files_and_tables():
    disk = verbs.written((3, 2))
    found = inspect(disk, FOLDER)
    assert found.is_sound
    assert [(file.number, file.state, file.frames) for file in found.files] == [
        (1, FileState.WHOLE, 3),
        (2, FileState.WHOLE, 2),
        (3, FileState.WHOLE, 0),
    ]
    assert [(file.first_lsn, file.next_lsn) for file in found.files] == [(1, 4), (4, 6), (6, 6)]
    tables = {name: (table.frames, table.rows) for name, table in found.tables.items()}
    assert tables == {METRICS.hex(): (3, 6), LOGS.hex(): (2, 4)}
    assert (found.watermark.visible, found.watermark.durable) == (5, 5)


def test_a_look_changes_nothing_and_takes_no_lock():
    disk = verbs.written()
    disk.flip_byte(path_of(2), 100)
    lock = disk.lock(f"{FOLDER}/lock", b"9")
    before, mutations = disk.tree(), list(disk.mutations)
    assert not inspect(disk, FOLDER).is_sound
    repair(disk, FOLDER, dry_run=True)
    assert disk.tree() == before
    assert disk.mutations == mutations
    lock.release()


def test_the_journal_of_a_live_process_can_be_looked_at():
    disk = SimDisk([FOLDER])
    journal = verbs.journal_on(disk, file_bytes_max=700)
    seen = []
    for lsn in range(1, 30):
        journal.append([verbs.entry(lsn)])
        if lsn % 10 == 0:
            journal.trim(journal.number - 1)
        found = inspect(disk, FOLDER)
        assert found.is_sound, found.damages
        seen.append(found.chain[-1].next_lsn)
    assert seen == list(range(2, 31))


def test_files_that_are_trimmed_during_a_look_are_no_damage():
    disk = SimDisk([FOLDER])
    journal = verbs.journal_on(disk, file_bytes_max=300)
    for lsn in range(1, 9):
        journal.append([verbs.entry(lsn)])
    numbers = iter(range(2, 5))

    def trim(call, path):
        if call == "open_reader" and disk.hooks is not None:
            hooks, disk.hooks = disk.hooks, None
            number = next(numbers, None)
            if number is not None:
                journal.trim(number)
                disk.hooks = hooks

    disk.hooks = trim
    found = inspect(disk, FOLDER)
    assert found.is_sound
    assert found.identity.oldest == 4


def test_W05_a_torn_end_is_told_and_is_no_damage():
    disk = verbs.written((3,), is_closed=False)
    whole = disk.tree()[path_of(1)]
    disk.overwrite(path_of(1), whole + whole[64:150])
    disk.remove(f"{FOLDER}/durable")
    found = inspect(disk, FOLDER)
    assert found.is_sound
    assert found.torn_bytes == 86 == verbs.tail_of(disk).cut_bytes
    assert found.files[0].state is FileState.TORN
    assert repaired(disk).rewritten == ()
    assert disk.tree()[path_of(1)] == whole + whole[64:150]


def test_W18_frames_that_hold_no_rows_are_counted_and_are_no_damage():
    disk = SimDisk([FOLDER])
    journal = verbs.journal_on(disk)
    journal.append([JournalEntry(LOGS, 1, b"no rows", CODEC_NONE, 7), verbs.entry(2)])
    journal.close()
    found = inspect(disk, FOLDER)
    assert found.is_sound
    table = found.tables[LOGS.hex()]
    assert (table.frames, table.rows, table.unreadable) == (2, 2, 1)
    assert repaired(disk).damages == ()


def test_W12_a_headerless_newest_file_is_a_leftover():
    for data in (b"", b"TCJRNL", bytes(FILE_HEADER_BYTES)):
        disk = verbs.written((2,))
        disk.overwrite(path_of(3), data)
        found = inspect(disk, FOLDER)
        assert found.is_sound
        assert found.files[-1].state is FileState.LEFTOVER
        assert started(disk) == [1, 2]


def test_W12_a_headerless_file_before_others_is_damage_that_a_repair_mends_without_loss():
    disk = verbs.written((2, 0, 2))
    disk.truncate(path_of(2), 0)
    assert isinstance(started(disk), Corruption)
    assert lost(disk) == []
    told = repaired(disk)
    assert told.lost_lsns == 0
    assert [one.file for one in told.damages] == ["00000000000000000002.wal"]
    assert started(disk) == [1, 2, 3, 4]


def test_a_folder_without_a_journal_is_not_found():
    with pytest.raises(NotFound):
        inspect(SimDisk(["/lake"]), FOLDER)
    disk = SimDisk([FOLDER])
    with pytest.raises(NotFound):
        repaired(disk)
    assert list(disk.tree()) == ["/lake", FOLDER]


def test_a_journal_without_its_identity_is_not_taken_for_none():
    disk = verbs.written()
    disk.remove(f"{FOLDER}/journal.json")
    with pytest.raises(Corruption, match="no identity file"):
        inspect(disk, FOLDER)


def test_a_journal_of_a_newer_version_is_left_alone():
    disk = verbs.written((1,), is_closed=False)
    header = FrameHeader(9, CODEC_NONE, 2, salt_of(disk, 1), 1, NOW_NS, LOGS, 1, 1, 1)
    data = disk.tree()[path_of(1)] + b"".join(encode_frame(verbs.JOURNAL_ID, header, b"x"))
    disk.overwrite(path_of(1), data)
    for call in (lambda: inspect(disk, FOLDER), lambda: repaired(disk)):
        with pytest.raises(Unsupported):
            call()
    assert disk.tree()[path_of(1)] == data


# What repair leaves.


def test_W13_a_flipped_bit_in_a_payload_loses_that_frame_alone():
    disk = verbs.written()
    whole, kept = disk.tree()[path_of(2)], verbs.rows_kept(disk)
    _, offset, size_bytes = verbs.frames_of(disk, 2)[1]
    disk.flip_byte(path_of(2), offset + 90)
    damaged = disk.tree()[path_of(2)]
    refusal = started(disk)
    assert isinstance(refusal, Corruption)
    assert (refusal.facts["path"], refusal.facts["offset"]) == (path_of(2), offset)
    told = repaired(disk)
    assert started(disk) == [1, 2, 3, 4, (5, 5), 6, 7, 8, 9]
    (hole,) = verbs.holes_of(disk)
    assert (hole,) == told.damages
    assert (hole.first_lsn, hole.last_lsn, hole.file) == (5, 5, "00000000000000000002.wal")
    assert (hole.offset, hole.size_bytes) == (offset, size_bytes)
    assert hole.before_ns - hole.after_ns == 2 * 10**9
    assert (hole.tables, hole.are_tables_known) == ((METRICS.hex(),), True)
    assert [disk.tree()[path] for path in told.quarantined] == [damaged]
    del kept[5]
    assert verbs.rows_kept(disk) == kept
    assert whole != damaged


def test_W13_a_frame_without_a_header_may_have_been_of_any_table():
    disk = verbs.written()
    disk.flip_byte(path_of(2), verbs.frames_of(disk, 2)[1][1] + 20)
    (damage,) = repaired(disk).damages
    assert (damage.tables, damage.are_tables_known) == ((LOGS.hex(), METRICS.hex()), False)
    assert started(disk) == [1, 2, 3, 4, (5, 5), 6, 7, 8, 9]


@pytest.mark.parametrize("is_old", [False, True], ids=["salted", "format 1"])
def test_W13_every_flipped_byte_of_a_journal_is_refused_and_repaired_with_the_least_loss(is_old):
    whole = verbs.written((2, 3, 1))
    whole = verbs.in_format_1(whole) if is_old else whole
    sizes = {number: len(whole.tree()[path_of(number)]) for number in (1, 2, 3, 4)}
    owner = {}
    for number in (1, 2, 3):
        for lsn, offset, size_bytes in verbs.frames_of(whole, number):
            owner.update({(number, offset + place): lsn for place in range(size_bytes)})
    for number, size_bytes in sizes.items():
        for offset in range(size_bytes):
            disk = whole.clone()
            disk.flip_byte(path_of(number), offset)
            assert isinstance(started(disk), Corruption), (number, offset)
            assert not inspect(disk, FOLDER).is_sound
            repaired(disk)
            gone = owner.get((number, offset))
            expected = [(lsn, lsn) if lsn == gone else lsn for lsn in range(1, 7)]
            assert started(disk) == expected, (number, offset)


def test_W13_two_damages_in_one_file_are_two_holes():
    disk = verbs.written((5, 2))
    frames = verbs.frames_of(disk, 1)
    disk.flip_byte(path_of(1), frames[1][1] + 3)
    disk.flip_byte(path_of(1), frames[3][1] + 80)
    assert repaired(disk).lost_lsns == 2
    assert started(disk) == [1, (2, 2), 3, (4, 4), 5, 6, 7]


def test_W13_a_damaged_sector_over_two_frames_is_one_hole():
    disk = verbs.written((5, 2))
    frames = verbs.frames_of(disk, 1)
    data = bytearray(disk.tree()[path_of(1)])
    data[frames[1][1] + 100 : frames[2][1] + 100] = bytes(frames[1][2])
    disk.overwrite(path_of(1), bytes(data))
    repaired(disk)
    assert started(disk) == [1, (2, 3), 4, 5, 6, 7]


def test_W13_a_file_cut_short_before_others_loses_its_end():
    disk = verbs.written((4, 2))
    disk.truncate(path_of(1), verbs.frames_of(disk, 1)[2][1] + 10)
    assert isinstance(started(disk), Corruption)
    repaired(disk)
    assert started(disk) == [1, 2, (3, 4), 5, 6]


def test_W13_a_lost_header_is_told_from_the_neighbours():
    disk = verbs.written((2, 3, 1))
    disk.overwrite(path_of(2), bytes(64) + disk.tree()[path_of(2)][64:])
    assert repaired(disk).lost_lsns == 0
    assert started(disk) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("is_old", [False, True], ids=["salted", "format 1"])
def test_W13_a_file_keeps_its_format_and_its_salt_when_it_is_repaired(is_old):
    disk = verbs.written((2, 3, 1))
    disk = verbs.in_format_1(disk) if is_old else disk
    before = {number: decode_file_header(disk.tree()[path_of(number)]) for number in (1, 2, 3, 4)}
    disk.flip_byte(path_of(1), verbs.frames_of(disk, 1)[1][1] + 80)
    disk.overwrite(path_of(2), bytes(64) + disk.tree()[path_of(2)][64:])
    repaired(disk)
    assert started(disk) == [1, (2, 2), 3, 4, 5, 6]
    for number, header in before.items():
        assert decode_file_header(disk.tree()[path_of(number)]).tag == header.tag


def test_W13_frames_of_another_file_do_not_tell_what_a_lost_header_said():
    disk = verbs.written((2, 3, 1, 3))
    disk.overwrite(path_of(2), bytes(64) + disk.tree()[path_of(4)][64:])
    assert lost(disk) == [(3, 5)]
    repaired(disk)
    assert started(disk) == [1, 2, (3, 5), 6, 7, 8, 9]


def test_W06_W13_bytes_of_an_earlier_time_behind_a_lost_header_are_no_frames():
    disk = verbs.written((2, 3), is_closed=False)
    whole, start = disk.tree()[path_of(2)], verbs.frames_of(disk, 2)[2][1]
    frames = [frame for frame in JournalReader(disk, FOLDER).frames() if frame.number == 2]
    other = [(frame.header._replace(salt=frame.header.salt + 9), frame.payload) for frame in frames]
    pieces = [piece for one in other for piece in encode_frame(verbs.JOURNAL_ID, *one)]
    stale = bytes(64) + b"".join(pieces)
    assert len(stale) == len(whole)
    disk.remove(f"{FOLDER}/durable")
    disk.overwrite(path_of(2), bytes(64) + whole[64:start] + stale[start:])
    repaired(disk)
    assert started(disk) == [1, 2, 3, 4]


def test_W13_a_lost_header_with_a_lost_first_frame():
    for number, expected in ((2, [1, 2, (3, 3), 4, 5, 6]), (1, [(1, 1), 2, 3, 4, 5, 6])):
        disk = verbs.written((2, 3, 1))
        data = disk.tree()[path_of(number)]
        disk.overwrite(path_of(number), bytes(150) + data[150:])
        repaired(disk)
        assert started(disk) == expected


@pytest.mark.parametrize(
    ("gone", "expected"),
    [
        ((1,), [(1, 2), 3, 4, 5, 6, 7]),
        ((2,), [1, 2, (3, 5), 6, 7]),
        ((2, 3), [1, 2, (3, 6), 7]),
        ((1, 2, 3), [(1, 6), 7]),
        ((3, 4, 5), [1, 2, 3, 4, 5, (6, 7)]),
        ((5,), [1, 2, 3, 4, 5, 6, 7]),
        ((1, 2, 3, 4, 5), [(1, 7)]),
    ],
)
def test_W13_missing_files_become_a_hole(gone, expected):
    disk = verbs.written((2, 3, 1, 1))
    for number in gone:
        disk.remove(path_of(number))
    refusal = started(disk)
    assert isinstance(refusal, Corruption)
    assert [
        file.number for file in inspect(disk, FOLDER).files if file.state is FileState.MISSING
    ] == [*gone]
    repaired(disk)
    assert started(disk) == expected
    assert verbs.tail_of(disk).next_lsn == 8


def test_W13_a_missing_oldest_file_after_a_trim_loses_no_more_than_it_had_room_for():
    disk = SimDisk([FOLDER])
    journal = verbs.journal_on(disk, file_bytes_max=700)
    for lsn in range(1, 31):
        journal.append([verbs.entry(lsn)])
    journal.trim(5)
    journal.close()
    first, *_, last = (lsn for lsn, _, _ in verbs.frames_of(disk, 5))
    disk.remove(path_of(5))
    repaired(disk)
    hole, *rest = started(disk)
    assert hole[1] == last
    assert 1 < hole[0] <= first
    assert rest == list(range(last + 1, 31))


def test_W13_without_files_and_watermark_nothing_tells_the_lsns_and_repair_says_so():
    disk = verbs.written((2, 2))
    for name in (path_of(1), path_of(2), path_of(3), f"{FOLDER}/durable"):
        disk.remove(name)
    before = without_locks(disk)
    with pytest.raises(Corruption, match="how far the journal was written"):
        repaired(disk)
    assert without_locks(disk) == before
    assert not inspect(disk, FOLDER).is_sound


def test_W13_a_damaged_end_is_a_hole_up_to_what_the_watermark_proves():
    disk = verbs.written((5,), is_closed=False)
    frames = verbs.frames_of(disk, 1)
    disk.truncate(path_of(1), frames[3][1] + 50)
    assert isinstance(started(disk), Corruption)
    repaired(disk)
    assert started(disk) == [1, 2, 3, (4, 5)]
    assert verbs.tail_of(disk).next_lsn == 6


def test_W13_a_damaged_end_is_a_hole_up_to_what_later_frames_prove():
    disk = verbs.written((5,), is_closed=False)
    disk.remove(f"{FOLDER}/durable")
    frames = verbs.frames_of(disk, 1)
    disk.flip_byte(path_of(1), frames[2][1] + 80)
    assert isinstance(started(disk), Corruption)
    repaired(disk)
    assert started(disk) == [1, 2, (3, 3), 4, 5]


def test_W13_an_end_that_nothing_proves_is_torn_and_no_hole():
    disk = verbs.written((5,), is_closed=False)
    disk.remove(f"{FOLDER}/durable")
    frames = verbs.frames_of(disk, 1)
    disk.flip_byte(path_of(1), frames[1][1] + 80)
    disk.flip_byte(path_of(1), frames[4][1] + 80)
    damaged = disk.tree()[path_of(1)]
    told = repaired(disk)
    assert started(disk) == [1, (2, 2), 3, 4]
    assert told.torn_bytes == frames[4][2]
    assert [disk.tree()[path] for path in told.quarantined] == [damaged]


def test_W14_a_length_that_no_writer_writes_is_a_hole_and_nothing_is_allocated_for_it():
    disk = verbs.written((3,), is_closed=False)
    disk.remove(f"{FOLDER}/durable")
    _, offset, _ = verbs.frames_of(disk, 1)[2]
    data = disk.tree()[path_of(1)]
    header = decode_frame_header(verbs.JOURNAL_ID, data, offset)
    assert header.kind == KIND_ROWS
    for length in (PAYLOAD_BYTES_MAX + 1, (1 << 32) - 1):
        forged = _forged(header, length)
        disk.overwrite(path_of(1), data[:offset] + forged + data[offset + 72 :])
        assert isinstance(started(disk), Corruption)
        assert lost(disk) == [(3, 3)]
    repaired(disk)
    assert started(disk) == [1, 2, (3, 3)]


def _forged(header, length):
    """Return the header of a frame with a length that `encode_frame` refuses."""
    import struct

    import google_crc32c

    whole = b"".join(encode_frame(b"", header, bytes(header.length)))[:68]
    body = whole[:60] + struct.pack("<II", length, length)
    crc = google_crc32c.extend(google_crc32c.value(verbs.JOURNAL_ID), body)
    return body + struct.pack("<I", crc)


def test_what_looks_like_a_frame_inside_a_damaged_payload_is_none():
    disk = SimDisk([FOLDER])
    journal = verbs.journal_on(disk)
    journal.append([verbs.entry(1)])
    # A later frame of this very file, as bytes of a row: it must not be taken for the real one.
    header = FrameHeader(KIND_ROWS, CODEC_NONE, 3, salt_of(disk, 1), 2, NOW_NS, LOGS, 1, 4, 4)
    inner = b"".join(encode_frame(verbs.JOURNAL_ID, header, b"fake"))
    journal.append([JournalEntry(LOGS, 1, b"?" * 50 + inner, CODEC_NONE, 50 + len(inner))])
    journal.append([verbs.entry(3)])
    journal.close()
    true = verbs.rows_kept(disk)[3]
    disk.flip_byte(path_of(1), verbs.frames_of(disk, 1)[1][1] + 80)
    repaired(disk)
    assert started(disk) == [1, (2, 2), 3]
    assert verbs.rows_kept(disk)[3] == true


def test_headers_that_contradict_each_other_are_left_to_a_person():
    disk = verbs.written((2, 2, 2))
    other = verbs.written((6, 0, 2))
    disk.overwrite(path_of(2), other.tree()[path_of(2)])
    before = without_locks(disk)
    with pytest.raises(Corruption, match="claim the same lsns"):
        repaired(disk)
    assert without_locks(disk) == before


def test_repairing_again_changes_nothing():
    disk = verbs.written()
    disk.flip_byte(path_of(1), 100)
    disk.remove(path_of(3))
    repaired(disk)
    before = disk.tree()
    again = repaired(disk)
    assert (again.damages, again.rewritten, again.quarantined) == ((), (), ())
    assert without_locks(disk) == {k: v for k, v in before.items() if not k.endswith("/lock")}
    found = inspect(disk, FOLDER)
    assert found.is_sound
    assert [(hole.first_lsn, hole.last_lsn) for hole in found.holes] == [(1, 1), (7, 9)]


def test_a_hole_that_is_damaged_itself_is_a_hole_again():
    disk = verbs.written((4, 1))
    disk.flip_byte(path_of(1), verbs.frames_of(disk, 1)[1][1] + 80)
    repaired(disk)
    (_, offset, _) = verbs.frames_of(disk, 1)[1]
    disk.flip_byte(path_of(1), offset + 90)
    told = repaired(disk)
    assert started(disk) == [1, (2, 2), 3, 4, 5]
    assert told.damages[0].are_tables_known is False
    names = [path for path in disk.tree() if "/quarantine/" in path]
    assert len(names) == 2


def test_a_repaired_journal_goes_on():
    disk = verbs.written((3, 3), is_closed=False)
    disk.flip_byte(path_of(2), verbs.frames_of(disk, 2)[1][1] + 80)
    repaired(disk)
    identity = JournalIdentity(verbs.JOURNAL_ID, 1)
    journal = Journal(disk, FOLDER, identity, verbs.tail_of(disk), now_ns=verbs.Clock())
    assert journal.append([verbs.entry(7)]) == [7]
    journal.close()
    assert started(disk) == [1, 2, 3, 4, (5, 5), 6, 7]


def test_the_watermark_of_a_repaired_journal_is_where_its_frames_end():
    disk = verbs.written((3, 3), is_closed=False)
    disk.flip_byte(path_of(2), verbs.frames_of(disk, 2)[1][1] + 80)
    repaired(disk)
    tail = verbs.tail_of(disk)
    mark = read_watermark(disk, FOLDER, verbs.JOURNAL_ID)
    assert (mark.visible, mark.durable, mark.number, mark.end) == (6, 6, tail.number, tail.end)
    assert tail.unproved == ()


def test_what_proves_a_loss_lasts_before_a_repair_changes_anything():
    disk = hurt("end")
    repaired(disk)
    changes = [call for call in disk.mutations if call[0] != "sync_folder"]
    assert changes[0] == ("sync_file", f"{FOLDER}/durable")


def test_a_repair_while_a_process_holds_the_journal_is_refused():
    disk = verbs.written()
    disk.flip_byte(path_of(1), 100)
    before = disk.tree()
    lock = disk.lock(f"{FOLDER}/lock", b"4711\n")
    with pytest.raises(Conflict) as caught:
        repaired(disk)
    lock.release()
    assert caught.value.facts["process"] == "4711"
    assert "stop that process" in caught.value.hint
    assert without_locks(disk) == before
    repaired(disk)
    assert disk.handles == []


def test_a_loss_of_more_lsns_than_one_hole_can_count_is_several_holes():
    disk = SimDisk([FOLDER])
    write_identity(disk, FOLDER, JournalIdentity(verbs.JOURNAL_ID, 5))
    last = (1 << 33) + 9
    mark = Watermark(verbs.JOURNAL_ID, bytes(16), last, last, 5, 64)
    disk.overwrite(f"{FOLDER}/durable", encode_watermark(mark))
    repaired(disk)
    holes = started(disk)
    assert len(holes) == 3
    assert (holes[0][0], holes[-1][1]) == (1, last)


# At every call: the old journal, which refuses to start, or the repaired one.


def hurt(kind):
    """Return a journal with damages of one kind."""
    disk = verbs.written((3, 2, 4, 2), is_closed=kind != "end")
    match kind:
        case "frames":
            disk.flip_byte(path_of(1), verbs.frames_of(disk, 1)[1][1] + 80)
            disk.flip_byte(path_of(3), 70)
        case "files":
            disk.remove(path_of(2))
            disk.overwrite(path_of(3), bytes(150) + disk.tree()[path_of(3)][150:])
        case "end":
            disk.truncate(path_of(4), 100)
    settled = SimDisk([FOLDER])
    for path, data in disk.tree().items():
        if data is not None:
            settled.overwrite(path, data)
    return settled


EXPECTED = {
    "frames": [1, (2, 2), 3, 4, 5, (6, 6), 7, 8, 9, 10, 11],
    "files": [1, 2, 3, (4, 6), 7, 8, 9, 10, 11],
    "end": [1, 2, 3, 4, 5, 6, 7, 8, 9, (10, 11)],
}
STATES_MAX = 40


def flat(lsns):
    """Return the lsns that are lost, whichever holes say so."""
    return {n for one in lsns if isinstance(one, tuple) for n in range(one[0], one[1] + 1)}


def check_old_or_repaired(disk, damaged, expected):
    """Look at a disk that an interrupted repair left, and repair it to the end."""
    found = started(disk)
    assert isinstance(found, Corruption) or flat(found) == flat(expected), disk.story
    tree = disk.tree()
    copies = {data for path, data in tree.items() if "/quarantine/" in path}
    for path, data in damaged.items():
        assert tree.get(path) == data or data in copies, (path, disk.story)
    repaired(disk)
    assert flat(started(disk)) == flat(expected), disk.story
    kept = set(started(disk))
    assert kept >= {one for one in expected if isinstance(one, int)}


def damaged_files(disk):
    tree = disk.tree()
    return {
        file.path: tree[file.path]
        for file in inspect(disk, FOLDER).files
        if file.state is FileState.DAMAGED
    }


@pytest.mark.parametrize("kind", EXPECTED)
@pytest.mark.parametrize("after_call", [False, True], ids=["before", "after"])
def test_W22_a_repair_killed_at_every_call_is_not_begun_or_done_or_goes_on(kind, after_call):
    damaged = damaged_files(hurt(kind))
    for call in range(1, 1_000):
        disk = hurt(kind)
        disk.die(call, after=after_call)
        try:
            repaired(disk)
        except Died:
            check_old_or_repaired(disk.killed(), damaged, EXPECTED[kind])
            continue
        assert started(disk.killed()) == EXPECTED[kind]
        assert call > 40
        return
    pytest.fail("the repair makes too many calls")


@pytest.mark.parametrize("kind", EXPECTED)
def test_W22_a_repair_that_loses_power_at_every_change_is_old_or_repaired(kind):
    damaged = damaged_files(hurt(kind))
    states = 0
    for call in range(1, 1_000):
        disk = hurt(kind)
        disk.die(call, after=True, mutating_only=True)
        died = False
        try:
            repaired(disk)
        except Died:
            died = True
        for left in disk.crash_states(STATES_MAX, seed=call):
            states += 1
            check_old_or_repaired(left, damaged, EXPECTED[kind])
        if not died:
            assert states > 100
            return
    pytest.fail("the repair makes too many calls")


@pytest.mark.parametrize("kind", EXPECTED)
def test_a_repair_whose_calls_fail_says_so_and_can_be_repeated(kind):
    damaged = damaged_files(hurt(kind))
    codes = [errno.EIO, errno.ENOSPC, errno.EROFS, errno.EMFILE]
    for call in range(1, 1_000):
        disk = hurt(kind)
        disk.fail(call, codes[call % len(codes)], sticky=call % 3 == 0, torn=call % 2 == 0)
        raised = False
        try:
            repaired(disk)
        except ThermoclineError:
            raised = True
        struck = bool(disk.struck)
        disk.heal()
        assert disk.handles == [], call
        if raised:
            check_old_or_repaired(disk.killed(), damaged, EXPECTED[kind])
        if not struck:
            assert not raised
            return
    pytest.fail("the repair makes too many calls")


def test_W13_random_damage_is_told_by_a_look_as_a_start_takes_it_and_is_always_repaired():
    """Bytes flipped, zeroed, cut and files lost by chance: the two readers never disagree."""
    refused = 0
    for seed in range(400):
        rng = random.Random(seed)
        files = [rng.randint(1, 3), *(rng.randint(0, 4) for _ in range(rng.randint(0, 3)))]
        disk = verbs.written(files, is_closed=rng.random() < 0.5)
        whole = started(disk)
        _hurt_by_chance(disk, rng)
        before = started(disk)
        found = inspect(disk, FOLDER)
        assert found.is_sound == (not isinstance(before, Corruption)), seed
        refused += not found.is_sound
        if not found.is_repairable:
            continue
        if found.is_sound:
            assert found.torn_bytes == verbs.tail_of(disk).cut_bytes, seed
        repaired(disk)
        after = started(disk)
        assert isinstance(after, list), (seed, after)
        assert {one for one in after if isinstance(one, int)} <= set(whole)
        if not found.is_sound:
            told = {n for d in found.damages for n in range(d.first_lsn, d.last_lsn + 1)}
            assert flat(after) == told, seed
    assert refused > 150


def _hurt_by_chance(disk, rng):
    numbers = [path for path in disk.tree() if path.endswith(".wal")]
    for _ in range(rng.randint(1, 3)):
        path = rng.choice(numbers)
        size_bytes = len(disk.tree().get(path) or b"")
        match rng.randrange(5):
            case 0 if rng.random() < 0.4 and path in disk.tree():
                disk.remove(path)
            case 1 if size_bytes:
                disk.truncate(path, rng.randrange(size_bytes))
            case 2 if size_bytes > 1:
                start = rng.randrange(size_bytes)
                data = bytearray(disk.tree()[path])
                data[start : start + 120] = bytes(len(data[start : start + 120]))
                disk.overwrite(path, bytes(data))
            case 3 if rng.random() < 0.5 and f"{FOLDER}/durable" in disk.tree():
                disk.remove(f"{FOLDER}/durable")
            case _ if size_bytes:
                disk.flip_byte(path, rng.randrange(size_bytes))


def test_a_journal_on_a_real_disk_is_repaired(tmp_path):
    folder = verbs.put_journal(tmp_path, verbs.written((3, 3)))
    file = folder / path_of(1).rpartition("/")[2]
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)
    told = repair(OsDisk(), str(folder), dry_run=False)
    assert told.lost_lsns == 1
    assert inspect(OsDisk(), str(folder)).is_sound
    assert [Path(path).read_bytes() for path in told.quarantined] == [bytes(data)]


def test_progress_is_told_in_bytes_up_to_all_of_them():
    disk = verbs.written()
    told = []
    inspect(disk, FOLDER, progress=lambda done, total: told.append((done, total)))
    total = sum(len(data) for path, data in disk.tree().items() if path.endswith(".wal"))
    assert told[-1] == (total, total)
    assert [done for done, _ in told] == sorted({done for done, _ in told})
