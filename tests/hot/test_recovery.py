"""A start of the write-ahead tier: what it replays, passes over, sets aside and leaves alone."""

import pyarrow as pa
import pytest

from fixtures.sim_disk import SimDisk
from thermocline.config import WalSettings
from thermocline.errors import Conflict, Corruption, Unavailable
from thermocline.format.log.action import Mark
from thermocline.hot.wal.folder import QUARANTINE_NAME, file_path
from thermocline.hot.wal.follower import JournalFollower
from thermocline.hot.wal.frame import FILE_HEADER_BYTES, decode_frame_header
from thermocline.hot.wal.group_commit import WriteRequest
from thermocline.hot.wal.journal import JournalEntry
from thermocline.hot.wal.repair.quarantine import UNREADABLE, set_aside
from thermocline.hot.wal.tier import WalTier

FOLDER = "/lake/journal"
PRICES, TRADES, NOBODYS = b"the prices table", b"the trades table", b"a table unknown."
SCHEMA_ID = 3


def batch(*numbers):
    values = pa.array(numbers, pa.int64())
    return pa.RecordBatch.from_arrays([values], names=["number"])


def started(disk, *, marks=None, known=(PRICES, TRADES), **options):
    """Start the tier; `marks` are what the lake has reached, `known` the tables it has."""
    reached = marks or {}

    def mark_of(table_id, source):
        return Mark(reached.get(table_id, 0)) if table_id in known else None

    return WalTier(disk, FOLDER, mark_of, WalSettings(file_bytes_max=700), **options)


def numbers(tier, table_id):
    parts = tier.table(table_id).snapshot().parts
    return [number for part in parts for number in part.batch.column("number").to_pylist()]


def killed(tier, disk):
    """End the tier as a kill would, and return the disk that the next one finds."""
    left = disk.killed()
    tier.group.stop()
    return left


@pytest.fixture
def left():
    """A disk on which a process was killed after writes to two tables."""
    disk = SimDisk(["/lake"])
    tier = started(disk)
    for place, table_id in enumerate([PRICES, TRADES, PRICES, PRICES], start=1):
        tier.table(table_id).submit(SCHEMA_ID, batch(place, place * 10)).result()
    return killed(tier, disk)


def frames_of(disk):
    return {path: data for path, data in disk.tree().items() if path.endswith(".wal")}


def test_W01_every_row_that_was_answered_is_hot_again_after_a_kill(left):
    tier = started(left)
    assert numbers(tier, PRICES) == [1, 10, 3, 30, 4, 40]
    assert numbers(tier, TRADES) == [2, 20]
    assert (tier.recovery_report.frames, tier.recovery_report.rows) == (4, 8)
    assert tier.hot_bytes == sum(table.buffer.size_bytes for table in tier.tables())
    tier.close()


def test_W17_a_replayed_batch_is_the_live_one_byte_for_byte():
    disk = SimDisk(["/lake"])
    tier = started(disk)
    rows = pa.record_batch(
        {"number": [1, None], "text": ["é\x00", None], "real": [float("nan"), -0.0]}
    )
    tier.table(PRICES).submit(SCHEMA_ID, rows).result()
    (live,) = tier.table(PRICES).snapshot().parts
    again = started(killed(tier, disk))
    (replayed,) = again.table(PRICES).snapshot().parts
    assert replayed.batch.serialize().equals(live.batch.serialize())
    assert (replayed.mark, replayed.schema_id) == (live.mark, SCHEMA_ID)
    again.close()


def test_F02_frames_up_to_a_tables_mark_are_passed_over_and_only_of_that_table(left):
    tier = started(left, marks={PRICES: 3})
    assert numbers(tier, PRICES) == [4, 40]
    assert numbers(tier, TRADES) == [2, 20]
    assert tier.table(PRICES).snapshot().mark == 3
    tier.close()


def test_a_start_makes_what_it_reads_durable_before_it_reads_it(left):
    tier = started(left)
    synced = next(place for place, (call, _) in enumerate(left.calls) if call == "sync_file")
    path = left.calls[synced][1]
    before = [call for call, of in left.calls[:synced] if of == path]
    assert before == ["size", "open_reader", "read_part", "close_reader"], "more than the header"
    assert ("read_part", path) in left.calls[synced:]
    tier.close()


def test_W22_a_start_changes_no_frame_so_that_the_next_one_finds_the_same(left):
    before = frames_of(left)
    again = killed(started(left), left)
    assert {path: frames_of(again)[path] for path in before} == before
    tier = started(again)
    assert numbers(tier, PRICES) == [1, 10, 3, 30, 4, 40]
    tier.close()


def set_frames_aside(disk, *, known=(PRICES, TRADES), dry_run=False):
    """Do what a person does who starts without the rows that no table can take."""

    def mark_of(table_id, source):
        return Mark(0) if table_id in known else None

    return set_aside(disk, FOLDER, mark_of, dry_run=dry_run)


def undecodable():
    """Return a disk whose journal has a whole frame between two others that holds no rows."""
    disk = SimDisk(["/lake"])
    tier = started(disk)
    tier.table(PRICES).submit(SCHEMA_ID, batch(1)).result()
    entry = JournalEntry(PRICES, SCHEMA_ID, b"no rows at all", 0, 14)
    tier.group.submit(WriteRequest(entry, lambda lsn: None)).result()
    tier.table(PRICES).submit(SCHEMA_ID, batch(3)).result()
    return killed(tier, disk)


def test_D05_a_frame_of_a_table_without_a_name_refuses_the_start_and_changes_nothing(left):
    before = left.tree()
    for _ in range(2):
        with pytest.raises(Corruption, match="no table can take") as raised:
            started(left, known=(PRICES,))
        assert raised.value.facts["frames"] == 1
        assert raised.value.facts["table_ids"] == [TRADES.hex()]
        assert "--set-aside" in raised.value.hint
    assert {path: data for path, data in left.tree().items() if "lock" not in path} == {
        path: data for path, data in before.items() if "lock" not in path
    }
    tier = started(left)
    assert numbers(tier, TRADES) == [2, 20], "its name was restored"
    tier.close()


def test_W18_D11_a_frame_that_a_person_set_aside_is_kept_with_its_bytes_and_counted(left):
    (told,) = set_frames_aside(left, known=(PRICES,), dry_run=True)
    assert not any(QUARANTINE_NAME in path for path in left.tree())
    assert set_frames_aside(left, known=(PRICES,)) == [told]
    assert set_frames_aside(left, known=(PRICES,)) == [], "it is there already"
    tier = started(left, known=(PRICES,))
    assert numbers(tier, PRICES) == [1, 10, 3, 30, 4, 40]
    (path,) = tier.recovery_report.quarantined
    assert tier.quarantined_count == 1
    data = left.read(path)
    journal_id = bytes.fromhex(tier.source)
    assert decode_frame_header(journal_id, data).table_id == TRADES
    assert data in b"".join(frames_of(left).values()), "not the bytes that were written"
    tier.close()


def test_W18_a_frame_that_holds_no_rows_refuses_the_start_until_a_person_sets_it_aside():
    disk = undecodable()
    with pytest.raises(Corruption, match="no table can take") as raised:
        started(disk)
    assert raised.value.facts["reason"] == UNREADABLE
    assert [one.lsn for one in set_frames_aside(disk)] == [2]
    again = started(disk)
    assert numbers(again, PRICES) == [1, 3]
    assert len(again.recovery_report.quarantined) == 1
    again.close()


def test_W18_a_reader_beside_the_journal_passes_over_what_was_set_aside():
    disk = undecodable()
    with pytest.raises(Corruption):
        JournalFollower(disk, FOLDER).snapshot(PRICES)
    set_frames_aside(disk)
    parts = JournalFollower(disk, FOLDER).snapshot(PRICES).parts
    assert [n for part in parts for n in part.batch.column("number").to_pylist()] == [1, 3]


def test_D05_a_copy_that_is_not_the_frame_is_no_decision(left):
    set_frames_aside(left, known=(PRICES,))
    (path,) = (path for path in left.tree() if path.endswith(".frame"))
    left.overwrite(path, left.read(path)[:-1])
    with pytest.raises(Corruption, match="no table can take"):
        started(left, known=(PRICES,))


def test_W18_W22_setting_a_frame_aside_that_dies_half_way_is_finished_by_the_next(left):
    moments = []

    def note(operation, path):
        if QUARANTINE_NAME in path:
            moments.append(left.freeze())

    left.hooks = note
    set_frames_aside(left, known=(PRICES,))
    left.hooks = None
    tier = started(left, known=(PRICES,))
    whole = left.read(tier.recovery_report.quarantined[0])
    tier.group.stop()
    assert len(moments) >= 5
    for volume in moments:
        for disk in (SimDisk.thaw(volume), *SimDisk.thaw(volume).crash_states(12)):
            set_frames_aside(disk, known=(PRICES,))
            tier = started(disk, known=(PRICES,))
            assert disk.read(tier.recovery_report.quarantined[0]) == whole
            assert numbers(tier, PRICES) == [1, 10, 3, 30, 4, 40]
            tier.close()


def test_W12_a_newest_file_without_a_whole_header_is_removed_by_a_start(left):
    number = max(int(path.rsplit("/", 1)[1][:20]) for path in frames_of(left)) + 1
    left.overwrite(file_path(FOLDER, number), bytes(FILE_HEADER_BYTES - 1))
    tier = started(left)
    assert numbers(tier, TRADES) == [2, 20]
    tier.table(PRICES).submit(SCHEMA_ID, batch(5)).result()
    again = started(killed(tier, left))
    assert numbers(again, PRICES) == [1, 10, 3, 30, 4, 40, 5]
    again.close()


def test_F03_files_that_were_trimmed_and_still_lie_there_are_removed_and_not_read(left):
    tier = started(left)
    kept = frames_of(left)
    for table in tier.tables():
        table.retire(Mark(4))
    tier.close()
    gone = kept.keys() - frames_of(left).keys()
    assert gone
    for path in gone:
        left.overwrite(path, kept[path])
    again = started(left.killed(), marks={PRICES: 4, TRADES: 4})
    assert numbers(again, PRICES) == numbers(again, TRADES) == []
    assert again.recovery_report.frames == 0
    again.close()


def test_W24_a_second_owner_is_refused_and_told_who_the_first_is(left):
    tier = started(left)
    with pytest.raises(Conflict, match="another process"):
        started(left)
    tier.close()
    started(left).close()


def test_a_journal_other_than_the_one_expected_is_refused(left):
    with pytest.raises(Corruption, match="missing or belongs to another"):
        started(left, expected="0" * 32)
    tier = started(left)
    source = tier.source
    tier.close()
    started(left, expected=source).close()


def test_a_closed_tier_takes_nothing_more(left):
    tier = started(left)
    table = tier.table(PRICES)
    tier.close()
    with pytest.raises(Unavailable):
        table.submit(SCHEMA_ID, batch(9)).result()
    assert left.handles == []
