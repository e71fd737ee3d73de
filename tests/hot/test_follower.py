"""A reader of a journal's files sees what is acknowledged: no less, and nothing more."""

import random
import threading

import pytest

from fixtures.sim_disk import SimDisk
from fixtures.wal import numbers, opened, ticks
from thermocline.errors import Corruption, Unavailable
from thermocline.hot.wal.follower import JournalFollower
from thermocline.node import open_lake

ROOT = "/data/lake"


@pytest.fixture
def disk():
    """A simulated disk with a lake on it, whose table `m` has three acknowledged rows."""
    disk = SimDisk(["/data"])
    lake = opened(ROOT, disk)
    lake.create_table("m", time_column="ts", bucket="1h").write(ticks(1, 2, 3))
    return disk


def read(disk):
    return numbers(open_lake(ROOT, is_read_only=True, disk=disk).table("m"))


def journal_of(disk):
    return {path: data for path, data in disk.tree().items() if path.startswith(f"{ROOT}/journal")}


def test_rows_are_read_beside_the_owner_without_touching_the_journal(disk):
    before, calls = journal_of(disk), len(disk.mutations)
    assert read(disk) == [1, 2, 3]
    assert journal_of(disk) == before
    assert not [path for _, path in disk.mutations[calls:] if "/journal" in path]


def test_rows_that_are_written_and_not_yet_durable_are_not_read():
    disk = SimDisk(["/data"])
    lake = opened(ROOT, disk)
    table = lake.create_table("m", time_column="ts", bucket="1h")
    table.write(ticks(1))
    is_written, may_sync = threading.Event(), threading.Event()

    def hold(operation, path):
        if operation == "sync" and path.startswith(f"{ROOT}/journal/"):
            is_written.set()
            may_sync.wait(30)

    disk.hooks = hold
    writing = threading.Thread(target=table.write, args=(ticks(2),))
    writing.start()
    assert is_written.wait(30)
    assert read(disk) == [1]
    may_sync.set()
    writing.join()
    assert read(disk) == [1, 2]


def test_after_a_power_cut_the_old_watermark_is_not_believed(disk):
    for seed in range(40):
        left = disk.crash(random.Random(seed))
        assert read(left) == [1, 2, 3], left.story


def test_after_a_kill_all_that_was_acknowledged_is_read(disk):
    assert read(disk.killed()) == [1, 2, 3]


def test_files_that_are_trimmed_while_they_are_read_are_read_from_the_lake():
    disk = SimDisk(["/data"])
    lake = opened(ROOT, disk, file_bytes_max=200)
    table = lake.create_table("m", time_column="ts", bucket="1h")
    for n in range(5):
        table.write(ticks(n))
    reader = open_lake(ROOT, is_read_only=True, disk=disk)
    flushed = []

    def flush_once(operation, path):
        if operation == "open_reader" and path.endswith(".wal") and not flushed:
            flushed.append(path)
            table.flush()

    disk.hooks = flush_once
    assert numbers(reader.table("m")) == list(range(5))
    assert flushed


def test_a_journal_that_is_not_there_is_an_error_and_not_an_empty_answer(disk):
    disk.remove(f"{ROOT}/journal")
    with pytest.raises(Unavailable):
        JournalFollower(disk, f"{ROOT}/journal").snapshot(b"t" * 16)


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize("file_bytes_max", [200, 1 << 20])
def test_an_older_copy_of_the_watermark_never_makes_an_answer_short(is_closed, file_bytes_max):
    disk = SimDisk(["/data"])
    lake = opened(ROOT, disk, file_bytes_max=file_bytes_max)
    table = lake.create_table("m", time_column="ts", bucket="1h")
    table.write(ticks(0))
    path = f"{ROOT}/journal/durable"
    before = disk.read(path)
    for n in (1, 2):
        table.write(ticks(n))
    if is_closed:
        lake.close(flush=False)
    disk.overwrite(path, before)
    with pytest.raises(Corruption) as caught:
        read(disk)
    assert caught.value.facts["path"] == path


def test_a_journal_without_its_identity_is_corruption_that_names_it(disk):
    disk.remove(f"{ROOT}/journal/journal.json")
    with pytest.raises(Corruption) as caught:
        JournalFollower(disk, f"{ROOT}/journal").snapshot(b"t" * 16)
    assert caught.value.facts["path"].endswith("/journal.json")
