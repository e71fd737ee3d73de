"""Leaving the open journal file: what is cold when a flush is asked for is in no file after."""

import errno
import threading

import pytest

from fixtures.sim_disk import SimDisk
from fixtures.wal import numbers as lake_numbers
from fixtures.wal import opened, ticks
from hot.test_recovery import PRICES, SCHEMA_ID, TRADES, batch, killed, numbers
from thermocline import connect
from thermocline.config import Sync, WalSettings
from thermocline.format.log.action import Mark
from thermocline.hot.wal.folder import list_file_numbers as files_of
from thermocline.hot.wal.folder import read_identity
from thermocline.hot.wal.reader import JournalReader
from thermocline.hot.wal.tier import WalTier

FOLDER = "/lake/journal"


def started(disk, *, marks=None, **settings):
    reached = marks or {}
    return WalTier(
        disk, FOLDER, lambda table_id, _: Mark(reached.get(table_id, 0)), WalSettings(**settings)
    )


def write(tier, table_id, *values):
    return tier.table(table_id).submit(SCHEMA_ID, batch(*values)).result()


def flush(tier, *table_ids):
    """Flush as a node does, into a lake that takes everything; return how many had rows."""
    frozen = [(table_id, tier.table(table_id).freeze()) for table_id in table_ids]
    for table_id, part in frozen:
        if part is not None:
            tier.table(table_id).retire(part.mark)
    return sum(part is not None for _, part in frozen)


def frames(disk):
    return [frame.header.lsn for frame in JournalReader(disk, FOLDER).frames()]


@pytest.fixture
def disk():
    return SimDisk(["/lake"])


@pytest.fixture
def tier(disk):
    made = started(disk)
    yield made
    made.close()


def test_an_ordinary_flush_goes_on_in_the_same_file(tier, disk):
    for number in range(3):
        write(tier, PRICES, number)
        assert flush(tier, PRICES) == 1
    assert files_of(disk, FOLDER) == [1]
    assert frames(disk) == [1, 2, 3]


def test_a_flush_that_is_asked_for_when_all_is_cold_leaves_no_frame(tier, disk):
    write(tier, PRICES, 1)
    write(tier, TRADES, 2)
    assert flush(tier, PRICES, TRADES) == 2
    assert flush(tier, PRICES) == 0
    assert frames(disk) == []
    assert files_of(disk, FOLDER) == [2]
    assert read_identity(disk, FOLDER).oldest == 2
    assert write(tier, TRADES, 3) == 3
    assert frames(disk) == [3]


def test_it_is_done_once_and_a_file_without_the_tables_rows_is_not_left(tier, disk):
    write(tier, PRICES, 1)
    flush(tier, PRICES)
    flush(tier, PRICES)
    write(tier, TRADES, 2)
    count = len(disk.mutations)
    flush(tier, PRICES)
    assert disk.mutations[count:] == []
    assert frames(disk) == [2]


def test_rows_of_another_table_keep_the_file_until_they_are_flushed(tier, disk):
    write(tier, PRICES, 1)
    write(tier, TRADES, 2)
    flush(tier, PRICES)
    flush(tier, PRICES)
    write(tier, TRADES, 3)
    assert frames(disk) == [1, 2, 3]
    assert files_of(disk, FOLDER) == [1, 2]
    assert numbers(tier, TRADES) == [2, 3]
    assert flush(tier, TRADES) == 1
    assert frames(disk) == [3], "a flush by the clock lets the sealed file go"


def test_what_was_frozen_and_not_committed_keeps_its_file(tier, disk):
    write(tier, PRICES, 1)
    write(tier, TRADES, 2)
    flush(tier, TRADES)
    part = tier.table(PRICES).freeze()
    flush(tier, TRADES)
    assert frames(disk) == [1, 2]
    tier.table(PRICES).retire(part.mark)
    assert frames(disk) == []


@pytest.mark.parametrize("is_cold", [True, False])
def test_frames_of_a_process_that_was_killed_are_left_as_well(disk, is_cold):
    tier = started(disk)
    write(tier, PRICES, 1)
    write(tier, PRICES, 2)
    left = killed(tier, disk)
    again = started(left, marks={PRICES: 2} if is_cold else {})
    assert flush(again, PRICES) == (not is_cold)
    flush(again, PRICES)
    assert frames(left) == []
    again.close()


@pytest.mark.parametrize("sync", [Sync.INTERVAL, Sync.OS])
def test_frames_that_were_moved_because_a_sync_failed_are_left_as_well(disk, sync):
    tier = started(disk, sync=sync, sync_interval_s=10**6)
    write(tier, PRICES, 1)
    disk.fail(1, errno.EIO, mutating_only=True)
    assert flush(tier, PRICES) == 1
    assert disk.struck
    assert tier._journal.number == 2, "it did not move"
    flush(tier, PRICES)
    assert frames(disk) == []
    tier.close()


def test_a_file_that_could_not_be_removed_goes_at_the_next_flush_that_is_asked_for(tier, disk):
    write(tier, PRICES, 1)
    flush(tier, PRICES)

    def strike(operation, path):
        if operation == "unlink" and path.endswith(".wal"):
            disk.hooks = None
            disk.fail(1, errno.EBUSY)

    disk.hooks = strike
    flush(tier, PRICES)
    assert disk.struck
    assert files_of(disk, FOLDER) == [1, 2]
    assert frames(disk) == []
    disk.heal()
    flush(tier, PRICES)
    assert files_of(disk, FOLDER) == [2]


def test_a_tier_that_is_closed_makes_no_file_any_more(disk):
    tier = started(disk)
    write(tier, PRICES, 1)
    flush(tier, PRICES)
    tier.close()
    tier._journal._end += 1  # as if the file could not be sealed
    before = disk.tree()
    flush(tier, PRICES)
    assert disk.tree() == before


def test_rows_written_and_read_beside_it_are_there_once(tmp_path):
    """Writers and a reader in another's place go on while files are left under them."""
    rounds, writers = 12, 2
    with opened(tmp_path / "lake") as lake:
        table = lake.create_table("m", time_column="ts", bucket="1h", entity_columns=["host"])
        table.write(ticks(0))
        acknowledged = [0]
        troubles: list[BaseException] = []
        is_over = threading.Event()

        def keep_writing(first):
            try:
                for number in range(first, first + 10**6):
                    table.write(ticks(number))
                    acknowledged.append(number)
                    if is_over.is_set():
                        return
            except BaseException as error:  # noqa: BLE001 told below
                troubles.append(error)

        threads = [
            threading.Thread(target=keep_writing, args=(1 + place * 10**6,))
            for place in range(writers)
        ]
        with connect(tmp_path / "lake", read_only=True) as beside:
            for thread in threads:
                thread.start()
            try:
                for _ in range(rounds):
                    before = set(acknowledged)
                    table.flush()
                    lake.tier.leave_open_file(table.hot())
                    for seen in (lake_numbers(table), lake_numbers(beside.table("m"))):
                        assert before <= set(seen)
                        assert len(seen) == len(set(seen))
            finally:
                is_over.set()
                for thread in threads:
                    thread.join()
        assert troubles == []
        table.flush()
        table.flush()
        assert lake.tier._journal.number > 1, "no file was left"
        assert lake_numbers(table) == sorted(acknowledged)
        lake.close(flush=False)
    with connect(tmp_path / "lake") as again:
        assert again.node.recovered.rows == 0
        assert lake_numbers(again.table("m")) == sorted(acknowledged)
