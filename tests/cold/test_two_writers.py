"""Two writers, five phases each, every order of their ten steps: 252 schedules of each pair.

The phases of a writer are the calls at which another one may come between: reading the log,
staging its data, trying its commit, hearing the answer, and finishing. A scheduler lets exactly
one writer run to its next phase; every interleaving of two times five steps is tried.
"""

import itertools
import threading

import pyarrow.compute as pc
import pytest

from fixtures.lake import closes, lake_on, rows, spec
from fixtures.sim_disk import SimDisk
from thermocline.cold.care.fsck import fsck
from thermocline.cold.change.append import AppendOptions
from thermocline.cold.log.commit_log import CommitLog
from thermocline.cold.log.transaction import CommitPlan, transact
from thermocline.cold.segment.stage import Stage
from thermocline.errors import CoverageOverlapError, ThermoclineError
from thermocline.format.log.action import AddSegment, removal
from thermocline.format.schema import ColumnFit

PHASES = 5
SCHEDULES = sorted(set(itertools.combinations(range(2 * PHASES), PHASES)))
TURN_TIMEOUT_S = 30


class Scheduler:
    """Lets one of two writers run at a time, in a given order of turns."""

    def __init__(self, schedule):
        self._turns = [0 if turn in schedule else 1 for turn in range(2 * PHASES)]
        self._place = 0
        self._done = set()
        self._condition = threading.Condition()

    def turn(self, writer):
        """Wait until it is this writer's turn, and use the turn up."""
        with self._condition:
            self._condition.wait_for(lambda: self._may_run(writer), TURN_TIMEOUT_S)
            assert self._may_run(writer), "the schedule is stuck"
            if self._place < len(self._turns):
                self._place += 1
            self._condition.notify_all()

    def _may_run(self, writer):
        while self._place < len(self._turns) and self._turns[self._place] in self._done:
            self._place += 1
        return self._place >= len(self._turns) or self._turns[self._place] == writer

    def finish(self, writer):
        """Give this writer's remaining turns away."""
        with self._condition:
            self._done.add(writer)
            self._condition.notify_all()


class PhasedLog(CommitLog):
    """A log that waits for its turn before each phase."""

    scheduler = None
    writer = 0

    def head(self):
        if self.scheduler:
            self.scheduler.turn(self.writer)
        return super().head()

    def try_commit(self, commit):
        if self.scheduler:
            self.scheduler.turn(self.writer)
        return super().try_commit(commit)

    def advance_head(self, before, landed):
        if self.scheduler:
            self.scheduler.turn(self.writer)
        return super().advance_head(before, landed)


def phased(disk, scheduler, writer):
    table = lake_on(disk)
    log = PhasedLog(table.storage)
    table.log = table.index._log = log
    log.scheduler, log.writer = scheduler, writer
    put = table.storage.put

    def put_at_its_turn(path, data):
        table.storage.put = put  # staging is one phase, however many files it writes
        scheduler.turn(writer)
        put(path, data)

    table.storage.put = put_at_its_turn
    return table


def run(schedule, acts, prepare):
    disk = SimDisk(["/lake"])
    table = lake_on(disk)
    table.create(spec())
    prepare(table)
    scheduler = Scheduler(schedule)
    outcomes = [None, None]

    def work(writer):
        try:
            outcomes[writer] = acts[writer](phased(disk, scheduler, writer))
        except ThermoclineError as error:
            outcomes[writer] = error
        finally:
            scheduler.finish(writer)

    threads = [threading.Thread(target=work, args=(writer,)) for writer in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return lake_on(disk), outcomes


def append(hours, symbol="NVDA", **wish):
    return lambda table: table.append(rows(hours, symbol).to_reader(), AppendOptions(**wish))


def delete(close):
    return lambda table: table.delete(lambda b: pc.equal(b.column("close"), close), ["close"])


def sound(table):
    return [finding for finding in fsck(table).findings if not finding.is_harmless] == []


def nothing(table):
    return None


def test_there_are_252_schedules():
    assert len(SCHEDULES) == 252


def test_T01_two_appends_both_land_in_every_schedule():
    for schedule in SCHEDULES:
        table, outcomes = run(schedule, [append([1]), append([2])], nothing)
        assert [isinstance(o, Exception) for o in outcomes] == [False, False], outcomes
        assert closes(table) == [1.0, 2.0]
        assert table.state().version == 3
        assert sound(table)


def test_T16_of_two_appends_into_one_bucket_exactly_one_lands_in_every_schedule():
    for schedule in SCHEDULES:
        table, outcomes = run(schedule, [append([1]), append([1])], append([5]))
        refused = [o for o in outcomes if isinstance(o, CoverageOverlapError)]
        assert len(refused) == 1, outcomes
        assert closes(table) == [1.0, 5.0]
        assert sound(table)


def compact(table):
    """Merge all segments into one, as a compaction would: rows read, rewritten, swapped."""

    def plan(state):
        stage = Stage(table.storage, workers=1)
        batches = list(table.read(state, None))
        stage.write_batches(batches, state.schema, state.spec)
        adds = [
            AddSegment(staged.segment(state.schema_id, state.schema, ColumnFit(), state.spec))
            for staged in stage.staged
        ]
        return CommitPlan("compact", (*(removal(s) for s in state.segments), *adds))

    return transact(table.log, plan).state


def test_T13_a_compaction_and_a_delete_bring_no_row_back_and_lose_none_in_every_schedule():
    def prepare(table):
        append([1, 2])(table)
        append([3])(table)

    for schedule in SCHEDULES:
        table, outcomes = run(schedule, [compact, delete(2.0)], prepare)
        assert [isinstance(o, Exception) for o in outcomes] == [False, False], outcomes
        assert closes(table) == [1.0, 3.0]
        assert table.state().totals.rows == 2
        assert sound(table)


def test_T12_two_deletes_of_one_row_delete_it_once_in_every_schedule():
    for schedule in SCHEDULES:
        table, outcomes = run(schedule, [delete(2.0), delete(2.0)], append([1, 2, 3]))
        assert [isinstance(o, Exception) for o in outcomes] == [False, False], outcomes
        assert sorted(o[1] for o in outcomes) == [0, 1]
        assert closes(table) == [1.0, 3.0]
        assert table.state().totals.rows == 2
        assert sound(table)


def test_T14_a_delete_misses_no_row_committed_before_it_in_every_schedule():
    def delete_from_two(table):
        return table.delete(lambda b: pc.greater_equal(b.column("close"), 2.0), ["close"])

    for schedule in SCHEDULES:
        table, outcomes = run(schedule, [delete_from_two, append([9])], append([1, 2]))
        (state, count), appended = outcomes
        # Serial: the new row is gone exactly if the delete's commit came after the append's.
        is_later = state.version > appended.version
        assert closes(table) == ([1.0] if is_later else [1.0, 9.0])
        assert count == (2 if is_later else 1)
        assert sound(table)


def test_T15_an_append_and_a_new_column_both_land_and_no_old_schema_is_written_as_new():
    import pyarrow as pa

    def add(table):
        return table.alter("add", lambda s, c: (s, c.add_columns([pa.field("note", pa.string())])))

    for schedule in SCHEDULES:
        table, outcomes = run(schedule, [append([5]), add], append([1]))
        assert [isinstance(o, Exception) for o in outcomes] == [False, False], outcomes
        state = table.state()
        assert list(state.schema.by_name) == ["ts", "symbol", "close", "note"]
        assert closes(table) == [1.0, 5.0]
        assert sound(table)


def test_T20_two_replaces_of_one_bucket_leave_the_later_one_in_every_schedule():
    def replace(value):
        return lambda table: table.append(
            rows([1], close=value).to_reader(), AppendOptions(overlap="replace")
        )

    for schedule in SCHEDULES:
        table, outcomes = run(schedule, [replace(10.0), replace(20.0)], append([1, 2]))
        last = 10.0 if outcomes[0].version > outcomes[1].version else 20.0
        assert closes(table) == sorted([2.0, last])
        assert sound(table)


@pytest.mark.parametrize("wish", [{"txn": ("job", 7)}])
def test_two_writers_with_one_batch_number_write_it_once_in_every_schedule(wish):
    for schedule in SCHEDULES:
        acts = [append([4], overlap="allow", **wish), append([4], overlap="allow", **wish)]
        table, outcomes = run(schedule, acts, nothing)
        assert [isinstance(o, Exception) for o in outcomes] == [False, False], outcomes
        assert closes(table) == [4.0]
        assert sound(table)
