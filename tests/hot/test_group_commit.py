"""Whoever waits is written together; nobody is answered before the sync, nobody is dropped."""

import threading
import time

import pytest

from fixtures.sim_disk import SimDisk
from thermocline.config import Sync
from thermocline.errors import OutcomeUnknown, Overloaded, Unavailable
from thermocline.hot.wal.folder import JournalIdentity, write_identity
from thermocline.hot.wal.frame import Lsn
from thermocline.hot.wal.group_commit import GroupCommit, WriteRequest
from thermocline.hot.wal.journal import Journal, JournalEntry
from thermocline.hot.wal.reader import JournalReader, JournalTail

FOLDER = "/journal"


class Gate:
    """Holds the disk at each sync until it is told to go on."""

    def __init__(self, disk):
        self.syncs = 0
        self.may_go = threading.Event()
        self.is_there = threading.Event()
        self._disk = disk

    def __call__(self, operation, path):
        if operation == "sync":
            self.syncs += 1
            self.is_there.set()
            self.may_go.wait(30)


def grouped(disk, *, queue_bytes_max=1 << 20, **options):
    identity = JournalIdentity(b"j" * 16)
    write_identity(disk, FOLDER, identity)
    journal = Journal(disk, FOLDER, identity, JournalTail(0, 0, Lsn(1)), **options)
    return GroupCommit(journal, queue_bytes_max=queue_bytes_max)


def entry(payload=b"rows"):
    return JournalEntry(b"t" * 16, 0, payload, 0, len(payload))


def test_requests_that_wait_together_share_one_sync_and_are_applied_before_the_answer():
    disk = SimDisk([FOLDER])
    group = grouped(disk)
    group.submit(WriteRequest(entry(), lambda lsn: None)).result()
    gate = disk.hooks = Gate(disk)
    applied = []
    first = group.submit(WriteRequest(entry(), applied.append))
    assert gate.is_there.wait(30)
    others = [group.submit(WriteRequest(entry(), applied.append)) for _ in range(10)]
    assert not first.done()
    assert applied == []
    gate.may_go.set()
    assert [future.result() for future in (first, *others)] == list(range(2, 13))
    assert applied == list(range(2, 13))
    assert gate.syncs == 2
    disk.hooks = None
    group.close()


def test_W20_a_full_queue_refuses_and_drops_nothing():
    disk = SimDisk([FOLDER])
    group = grouped(disk, queue_bytes_max=100)
    group.submit(WriteRequest(entry(), lambda lsn: None)).result()
    gate = disk.hooks = Gate(disk)
    writing = group.submit(WriteRequest(entry(b"x" * 60), lambda lsn: None))
    assert gate.is_there.wait(30)
    queued = group.submit(WriteRequest(entry(b"x" * 60), lambda lsn: None))
    with pytest.raises(Overloaded) as raised:
        group.submit(WriteRequest(entry(b"x" * 60), lambda lsn: None))
    assert raised.value.facts["queued_bytes_max"] == 100
    gate.may_go.set()
    assert [writing.result(), queued.result()] == [2, 3]
    disk.hooks = None
    group.close()
    assert len(list(JournalReader(disk, FOLDER).frames())) == 3


def test_W07_a_group_that_the_disk_refuses_fails_whole_and_the_next_one_is_written():
    disk = SimDisk([FOLDER])
    group = grouped(disk)
    group.submit(WriteRequest(entry(), lambda lsn: None)).result()
    applied = []
    disk.fail(1, 5, sticky=True, mutating_only=True)
    failed = group.submit(WriteRequest(entry(), applied.append))
    with pytest.raises(Unavailable):
        failed.result()
    assert group.last_error is not None
    assert applied == []
    disk.heal()
    assert group.submit(WriteRequest(entry(), applied.append)).result() == 2
    assert group.last_error is None
    group.close()


def test_a_closed_group_says_so():
    disk = SimDisk([FOLDER])
    group = grouped(disk)
    group.close()
    with pytest.raises(Unavailable, match="closed"):
        group.submit(WriteRequest(entry(), lambda lsn: None))


def test_a_bug_while_applying_tells_everyone_that_the_outcome_is_unknown(monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    disk = SimDisk([FOLDER])
    group = grouped(disk)

    def broken(lsn):
        raise RuntimeError("a bug")

    with pytest.raises(OutcomeUnknown):
        group.submit(WriteRequest(entry(), broken)).result()
    with pytest.raises(Unavailable):
        group.submit(WriteRequest(entry(), lambda lsn: None))


def test_the_interval_policy_answers_before_the_sync_and_syncs_soon_after(monkeypatch):
    disk = SimDisk([FOLDER])
    identity = JournalIdentity(b"j" * 16)
    write_identity(disk, FOLDER, identity)
    journal = Journal(disk, FOLDER, identity, JournalTail(0, 0, Lsn(1)), sync=Sync.INTERVAL)
    answered, sync = threading.Event(), journal.sync

    def sync_after_the_answer():
        assert answered.wait(60)
        sync()

    monkeypatch.setattr(journal, "sync", sync_after_the_answer)
    group = GroupCommit(journal, sync_interval_s=0.01, queue_bytes_max=1 << 20)
    group.submit(WriteRequest(entry(), lambda lsn: None)).result(30)
    after = [call for call, _ in disk.calls]
    assert after[-3:] == ["write", "open_slot", "put_slot"]
    answered.set()
    until = time.monotonic() + 10
    while "sync" not in [call for call, _ in disk.calls[len(after) :]]:
        assert time.monotonic() < until
        time.sleep(0.005)
    group.close()


def test_the_interval_is_kept_under_a_load_that_never_pauses():
    disk = SimDisk([FOLDER])
    identity = JournalIdentity(b"j" * 16)
    write_identity(disk, FOLDER, identity)
    journal = Journal(disk, FOLDER, identity, JournalTail(0, 0, Lsn(1)), sync=Sync.INTERVAL)
    group = GroupCommit(journal, sync_interval_s=0.02, queue_bytes_max=1 << 20)
    group.submit(WriteRequest(entry(), lambda lsn: None)).result()
    begun, is_over = len(disk.calls), threading.Event()

    def write_on(lsn):
        if not is_over.is_set():
            group.submit(WriteRequest(entry(), write_on))

    for _ in range(3):
        group.submit(WriteRequest(entry(), write_on))
    until = time.monotonic() + 30
    while [call for call, _ in disk.calls[begun:]].count("sync") < 3:
        assert time.monotonic() < until
        time.sleep(0.01)
    is_over.set()
    group.close()
