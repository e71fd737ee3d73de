"""Health that tells the truth: live is not ready, and what is wrong is said."""

import errno

import pytest

from fixtures.wal import calm, ticks
from thermocline.disk import OsDisk
from thermocline.errors import Corruption, OutcomeUnknown, Unavailable
from thermocline.node import Node
from thermocline.server.observe.health import FLUSH_FAILING_S, Health


class Clock:
    def __init__(self):
        self.s = 10.0

    def __call__(self):
        return self.s


@pytest.fixture
def clock():
    return Clock()


class FullWriter:
    """A file that a full disk takes no bytes of, once `disk.is_full`."""

    def __init__(self, writer, disk):
        self._writer, self._disk = writer, disk

    def write(self, data):
        if self._disk.is_full:
            raise OSError(errno.ENOSPC, "full")
        return self._writer.write(data)

    def __getattr__(self, name):
        return getattr(self._writer, name)


class FullDisk(OsDisk):
    is_full = False

    def create(self, path):
        if self.is_full:
            raise OSError(errno.ENOSPC, "full")
        return FullWriter(super().create(path), self)


@pytest.fixture
def disk():
    return FullDisk()


@pytest.fixture
def node(tmp_path, disk):
    node = Node(str(tmp_path / "lake"), calm(), disk=disk)
    yield node
    disk.is_full = False
    node.close()


@pytest.fixture
def health(node, tmp_path, clock):
    health = Health(now_s=clock)
    health.report_started(node)
    return health


def test_O09_a_node_that_replays_is_alive_and_not_ready(clock):
    health = Health(now_s=clock)
    health.report_phase("replaying the journal", journal_bytes=123)
    clock.s += 2
    assert health.live().is_ok
    startup, ready = health.startup(), health.ready()
    assert (startup.status_code, ready.status_code) == (503, 503)
    assert startup.body() == {
        "status": "starting",
        "phase": "replaying the journal",
        "took_s": 2.0,
        "journal_bytes": 123,
    }
    assert ready.body()["reasons"] == ["the node is replaying the journal"]


def test_O09_a_start_that_failed_says_so_and_is_never_ready():
    health = Health()
    health.report_failure(Corruption("a frame's checksum differs"))
    assert health.live().is_ok
    assert health.startup().body()["status"] == "failed"
    assert "checksum" in health.ready().reasons[0]


def test_O09_an_open_node_is_ready(health):
    assert health.startup().is_ok
    assert health.ready().body() == {"status": "ready"}


def test_O09_a_node_that_stops_is_alive_and_not_ready(health):
    health.report_stopping()
    assert health.live().is_ok
    assert health.startup().is_ok
    assert health.check().reasons == ("the node is stopping",)


def test_O09_a_node_whose_disk_is_full_is_not_ready_and_is_again_when_there_is_room(
    health, node, disk
):
    table = node.lake().create_table("m", time_column="ts", bucket="1h")
    table.write(ticks(1))
    disk.is_full = True
    with pytest.raises((Unavailable, OutcomeUnknown)):
        table.write(ticks(2))
    ready = health.check()
    assert ready.status_code == 503
    assert "the journal cannot be written" in ready.reasons[0]
    disk.is_full = False
    assert health.check().is_ok
    table.write(ticks(3))
    assert health.check().is_ok


def test_O09_a_node_whose_journals_writer_ended_is_never_ready_again(health, node):
    node.tier.group._fail_waiting(RuntimeError("a bug"))
    node.tier.group._thread.join(30)
    assert not health.check().is_ok


def test_O09_flushes_that_keep_failing_make_a_node_not_ready_and_one_does_not(health, node, clock):
    node.flush_error = Unavailable("the disk is full")
    assert health.check().is_ok
    clock.s += FLUSH_FAILING_S
    ready = health.check()
    assert not ready.is_ok
    assert ready.reasons == ("flushes keep failing: the disk is full",)
    node.flush_error = None
    assert health.check().is_ok
    node.flush_error = Unavailable("the disk is full")
    assert health.check().is_ok


def test_D13_a_disk_that_fails_and_works_again_is_noticed_without_a_write(health, disk):
    disk.is_full = True
    assert health.check().status_code == 503
    disk.is_full = False
    assert health.check().is_ok


def test_a_look_leaves_no_file_behind(health, node, tmp_path):
    node.tier.group.last_error = Unavailable("the disk is full")
    before = {path.name for path in (tmp_path / "lake" / "journal").iterdir()}
    assert health.check().is_ok
    assert {path.name for path in (tmp_path / "lake" / "journal").iterdir()} == before


def test_asking_never_waits_for_the_disk(health, disk, monkeypatch):
    monkeypatch.setattr(disk, "create", lambda path: pytest.fail("it looked"))
    for _ in range(100):
        assert health.ready().is_ok
        assert health.live().is_ok
        assert health.startup().is_ok
