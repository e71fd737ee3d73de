"""Leases: one job a table at a time, whatever dies; and the log decides without them, too."""

import threading
import time
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from thermocline import connect
from thermocline.cold.change.append import AppendOptions
from thermocline.cold.storage.local import LocalStorage
from thermocline.errors import Conflict
from thermocline.pipeline.run.lease import EPOCHS_KEPT, Lease, TableBusy, newest_lease
from thermocline.pipeline.run.workspace import JobWorkspace

NS_PER_S = 1_000_000_000


class Clock:
    """A clock that goes on when it is told to."""

    def __init__(self):
        self.now_ns = 1_700_000_000 * NS_PER_S

    def __call__(self):
        return self.now_ns

    def go_on(self, seconds):
        self.now_ns += int(seconds * NS_PER_S)


@pytest.fixture
def storage(tmp_path):
    return LocalStorage(str(tmp_path))


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def lease(storage, clock):
    """Make a lease of one table, for whoever asks."""

    def made(holder="a", table="prices", term_s=60.0):
        return Lease(storage, table, job="compact", holder=holder, term_s=term_s, now_ns=clock)

    return made


def test_a_table_is_one_holders_at_a_time_and_free_afterwards(lease):
    with lease("a") as first:
        with pytest.raises(TableBusy) as refused, lease("b"):
            pass
        assert refused.value.facts == {"table": "prices", "holder": "a", "job": "compact"}
        with lease("b", table="other"):
            pass
    with lease("b") as second:
        assert second.epoch == first.epoch + 1


def test_the_lease_of_a_holder_that_died_ends_by_itself(lease, clock):
    died = lease("a")
    died.__enter__()
    died._released.set()  # its process is gone: no beat comes any more
    died._renewer.join()
    clock.go_on(59)
    with pytest.raises(TableBusy), lease("b"):
        pass
    clock.go_on(2)
    with lease("b") as now:
        assert now.epoch == 2
        with pytest.raises(Conflict, match="lease of this table was lost") as lost:
            died.check()
        assert lost.value.facts["holder"] == "b"
        now.check()


def test_S09_a_holder_that_died_while_its_clock_was_years_ahead_keeps_no_table(lease, clock):
    years_s = 10 * 365 * 24 * 3_600
    clock.go_on(years_s)
    died = lease("a")
    died.__enter__()
    died._released.set()
    died._renewer.join()
    clock.go_on(-years_s)
    with lease("b") as now:
        assert now.epoch == 2
        now.check()


def test_a_holder_that_lives_keeps_its_lease_past_the_term(lease, clock, storage):
    with lease("a", term_s=0.2):
        begun = newest_lease(storage, "prices").until_ns
        clock.go_on(1_000)
        end_s = time.monotonic() + 60
        while newest_lease(storage, "prices").until_ns == begun:
            assert time.monotonic() < end_s
            time.sleep(0.01)
        with pytest.raises(TableBusy), lease("b"):
            pass


def test_of_many_who_ask_at_once_one_has_it(lease):
    together, left, got = threading.Barrier(8), threading.Barrier(8), []

    def ask(number):
        together.wait()
        try:
            with lease(str(number)) as mine:
                got.append(mine.epoch)
                left.wait()
        except TableBusy:
            left.wait()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [1]


def test_old_leases_are_removed_and_a_slow_one_cannot_have_their_numbers(lease, storage):
    for _ in range(EPOCHS_KEPT + 4):
        with lease():
            pass
    epochs = {stored.path.rpartition("/")[2][:20] for stored in storage.list("leases/prices")}
    assert len(epochs) == EPOCHS_KEPT
    slow = lease("slow")
    slow.epoch = 2  # it had counted before the others came and went
    with pytest.raises(Conflict, match="was lost"):
        slow.check()


def test_a_damaged_lease_is_one_that_has_ended(lease, storage):
    storage.put("leases/prices/00000000000000000007.json", b"\x00 not json")
    with lease() as mine:
        assert mine.epoch == 8


def test_D01_a_flipped_bit_never_makes_a_lease_that_does_not_end(lease, clock, storage):
    with lease("slow"):
        (path,) = (one.path for one in storage.list("leases/prices"))
        data = storage.read(path)
        clock.go_on(3_600)
        for place in range(len(data)):
            storage.put_hint(path, data[:place] + bytes([data[place] ^ 8]) + data[place + 1 :])
            assert newest_lease(storage, "prices").until_ns < clock()


def one_row(value):
    moment = datetime(2024, 6, 1, tzinfo=UTC) + timedelta(minutes=value)
    rows = pa.table({"ts": pa.array([moment], pa.timestamp("us", "UTC")), "value": [value]})
    return rows.to_reader()


@pytest.fixture
def opened(tmp_path):
    """Open the one table, as another process would each time."""
    with connect(tmp_path / "lake") as lake:
        lake.create_table("prices", time_column="ts", bucket="1h")
    return lambda: JobWorkspace(tmp_path / "lake").table("prices")


@pytest.fixture
def table(opened):
    return opened()


def test_a_holder_that_lost_its_lease_commits_nothing_and_leaves_no_file(table, lease, clock):
    table.append(one_row(1), AppendOptions())
    before = table.state().version
    late = lease("late")
    late.__enter__()
    table.check_before_commit = late.check
    table.append(one_row(2), AppendOptions())  # it has the lease still
    late._released.set()
    late._renewer.join()
    clock.go_on(3_600)
    with lease("next"), pytest.raises(Conflict, match="it commits nothing"):
        table.append(one_row(3), AppendOptions())
    assert table.state().version == before + 1
    assert len(list(table.storage.list("data"))) == 2


def test_a_holder_stopped_between_its_look_and_its_commit_is_put_right_by_the_log(table, opened):
    """What no lease can prevent: it has looked, stands still, and another does the same work."""
    batch, before, stops = AppendOptions(txn=("backfill:june", 0)), table.state().version, []

    def stands_still():
        if not stops:
            stops.append(opened().append(one_row(1), batch))

    table.check_before_commit = stands_still
    table.append(one_row(1), batch)
    assert table.state().version == before + 1 == stops[0].version
    assert sum(segment.row_count for segment in table.state().segments) == 1
