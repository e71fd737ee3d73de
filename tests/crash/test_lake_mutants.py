"""Wrong lakes that the loops must catch: each has one mistake, and the right one has none.

Each mutant changes one step of a write, a flush, a start or a reading. The harm it does is named,
so that a loop which fails for another reason does not count.
"""

import errno
import random
from dataclasses import replace
from itertools import count

import pytest

from crash.lake_operations import Life, Looker, made_disk, opened, read, write_back
from crash.test_lake_power_cut import Cuts
from fixtures import sim_states
from thermocline import flush as flush_module
from thermocline import lake_table
from thermocline.cold.change.flush_plan import FlushPlanner
from thermocline.cold.log.commit_log import CommitLog
from thermocline.cold.log.transaction import CommitPlan, transact
from thermocline.cold.table import ColdTable
from thermocline.errors import OutcomeUnknown, ThermoclineError
from thermocline.format.log.action import SetMark
from thermocline.hot.tier import FrozenParts
from thermocline.hot.wal.buffer import TableBuffer
from thermocline.hot.wal.journal import Journal
from thermocline.hot.wal.recovery import Recovery
from thermocline.snapshot import TableView, hot_rows

STATES_PER_CALL = 12
SECOND_LIVES = 30
STORY = (
    ("write", "prices", 2),
    ("write", "trades", 1),
    ("flush", "prices", 0),
    ("write", "prices", 2),
    ("write", "prices", 1),
    ("flush", "prices", 0),
    ("write", "trades", 1),
    ("flush_all", "", 0),
)


@pytest.fixture(autouse=True)
def _few_dry_samples(monkeypatch):
    monkeypatch.setattr(sim_states, "DRY_SAMPLES_MAX", 12)


def cut_everywhere(seed=0):
    """Play the story, kill it and cut its power everywhere, then once more from what is left."""
    cuts = Cuts(Looker(made_disk()))
    life = Life(made_disk())
    life.play(STORY, random.Random(seed))
    cuts.all_of(life.end(), STATES_PER_CALL, seed)
    for disk, promise in cuts.some(random.Random(seed), SECOND_LIVES):
        again = Life(disk, promise, numbers=count(10**5))
        assert promise.broken_by(read(again.lake)) is None, promise.broken_by(read(again.lake))
        again.play([("write", "trades", 1), ("flush", "trades", 0)])
        cuts.all_of(again.end(), 2, seed)


def read_beside():
    """Read at every turn of the story, here and from another process, flushes in the middle too."""
    life = Life(made_disk(), is_recorded=False)
    follower = opened(life.disk, is_read_only=True)
    looking, troubles = False, []

    def look(operation, path):
        nonlocal looking
        if looking or operation not in ("link", "rename", "unlink", "sync", "put_slot"):
            return
        looking = True
        try:
            is_sync = operation == "sync"
            troubles.extend(
                trouble_of(lake, life.promise, is_sync=is_sync) for lake in (life.lake, follower)
            )
        finally:
            looking = False

    life.disk.hooks = look
    life.play(STORY)
    life.disk.hooks = None
    life.end()
    assert [trouble for trouble in troubles if trouble] == []
    assert len(troubles) > 60


def trouble_of(lake, promise, *, is_sync):
    """Return what is wrong with a reading; before a sync nobody may see what waits for it."""
    try:
        found = read(lake)
    except ThermoclineError as error:
        return str(error)
    open_rows = {row for request in promise.may for row in request}
    seen = {(name, number) for name, numbers in found.items() for number in numbers}
    if is_sync and open_rows & seen:
        return "dirty: read before it was durable"
    return promise.broken_by(found)


def write_into_a_flush():
    """Write while a flush of the same table is under way, and read after each."""
    life = Life(made_disk(), is_recorded=False)
    life.write("prices", 2)

    def strike(operation, path):
        if operation == "link" and "_log/" in path:
            life.disk.hooks = None
            life.write("prices", 1)

    life.disk.hooks = strike
    life.flush("prices")
    life.look()
    killed, promise = life.disk.killed(), life.promise
    life.end()
    again = Life(killed, promise, is_recorded=False)
    promise.check(read(again.lake))
    again.end()


def read_while_a_flush_comes_between():
    """Read, with a whole flush right after the version was looked up."""
    life = Life(made_disk(), is_recorded=False)
    life.write("prices", 2)
    log = life.lake.table("prices").cold.log
    head, flushed = log.head, []

    def then_flush():
        log.head = head
        found = head()
        flushed.append(life.flush("prices"))
        return found

    log.head = then_flush
    life.look()
    assert flushed == [None]
    life.look()
    life.end()


def flush_again_after_doubt():
    """Let a flush end without an answer though its commit landed, flush again, cut the power."""
    life = Life(made_disk(), is_recorded=False)
    life.write("prices", 2)
    write_back(life.disk)

    def strike(operation, path):
        if operation == "link" and "_log/0000" in path:
            life.disk.hooks = None
            life.disk.fail(2, errno.EIO, sticky=True)  # the link lands, no sync of a folder does

    life.disk.hooks = strike
    life.play([("flush", "prices", 0)])
    life.disk.hooks = None
    assert [type(error) for error in life.errors] == [OutcomeUnknown]
    life.disk.heal()
    life.look()
    life.play([("flush", "prices", 0), *[("write", "trades", 1)] * 12, ("flush", "trades", 0)])
    assert life.lake.tier._journal.identity.oldest > 1, "nothing was trimmed"
    looker = Looker(made_disk())
    for left in life.disk.crash_states(100):
        life.promise.check(looker.found(left).numbers, left.story)
    life.end()


# --- the mutants -----------------------------------------------------------------------------


def answers_before_the_sync(patch):
    def append(self, entries):
        self._sync_file, held = self._note_durable, self._sync_file
        try:
            return real(self, entries)
        finally:
            self._sync_file = held

    real = Journal.append
    patch.setattr(Journal, "append", append)


def marks_in_a_second_commit(patch):
    def plan(self, state):
        made = real(self, state)
        if made is None:
            return None
        return replace(made, actions=tuple(a for a in made.actions if not isinstance(a, SetMark)))

    def carry(self, rows, read_at, source, mark, requests):
        carried(self, rows, read_at, source, mark, requests)
        return transact(self.log, lambda state: CommitPlan("mark", (SetMark(source, mark),))).state

    real, carried = FlushPlanner.plan, ColdTable.commit_flush
    patch.setattr(FlushPlanner, "plan", plan)
    patch.setattr(ColdTable, "commit_flush", carry)


def trims_before_the_commit(patch):
    def flush(hot, table):
        frozen = hot.freeze()
        if frozen is not None:
            tier = hot._tier
            with tier.group.pause() as journal:
                journal.seal()
                journal.trim(journal.number)
        return real(hot, table)

    real = flush_module.flush
    patch.setattr(lake_table, "flush", flush)


def retires_before_the_commit(patch):
    def flush(hot, table):
        frozen = hot.freeze()
        if frozen is None:
            return None
        state = table.state()
        rows = hot_rows(TableView(state, frozen.parts))
        hot.buffer.retire(frozen.mark)
        table.commit_flush(rows, state, hot.source, frozen.mark)
        hot.retire(frozen.mark)
        return frozen.mark

    patch.setattr(lake_table, "flush", flush)


def pairs_with_the_newest_version(patch):
    newest = lambda hot, table: TableView(table.state(), hot.parts)  # noqa: E731
    patch.setattr(lake_table, "resolve_view", newest)


def reads_the_version_first(patch):
    def view(self, at=None):
        state = self.cold.state()
        hot = self.snapshot()
        arrived = state.marks.get(hot.source, 0)
        return TableView(state, tuple(part for part in hot.parts if part.mark > arrived))

    patch.setattr(lake_table.LakeTable, "_view", view)


def publishes_before_the_sync(patch):
    def write(self, placed):
        real(self, placed)
        kept = self._next_lsn
        self._next_lsn = kept + len(placed)
        self.publish()
        self._next_lsn = kept

    real = Journal._write
    patch.setattr(Journal, "_write", write)


def starts_without_marks(patch):
    patch.setattr(Recovery, "_reached_mark", lambda self, table_id: 0)


def adopts_frames_that_are_not_durable(patch):
    def run(self, reader):
        self._disk.sync_file, kept = (lambda path: None), self._disk.sync_file
        try:
            return replace(real(self, reader), unproved=())
        finally:
            self._disk.sync_file = kept

    real = Recovery.run
    patch.setattr(Recovery, "run", run)


def freezes_what_comes_later_too(patch):
    def freeze(self):
        frozen = real(self)
        return frozen and FrozenParts(frozen.mark + 1, frozen.parts)

    real = TableBuffer.freeze
    patch.setattr(TableBuffer, "freeze", freeze)


def trusts_a_version_that_may_not_last(patch):
    patch.setattr(CommitLog, "sync_commit", lambda self, version: None)


LOOPS = [
    cut_everywhere,
    read_beside,
    write_into_a_flush,
    read_while_a_flush_comes_between,
    flush_again_after_doubt,
]


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_the_right_lake_passes_every_loop(loop):
    loop()


@pytest.mark.parametrize(
    ("mutant", "loop", "harm"),
    [
        (answers_before_the_sync, cut_everywhere, "lost"),
        (marks_in_a_second_commit, cut_everywhere, "twice"),
        (trims_before_the_commit, cut_everywhere, "lost"),
        (retires_before_the_commit, read_beside, "behind what was flushed"),
        (pairs_with_the_newest_version, read_beside, "twice"),
        (reads_the_version_first, read_while_a_flush_comes_between, "lost"),
        (publishes_before_the_sync, read_beside, "dirty"),
        (starts_without_marks, cut_everywhere, "twice"),
        (adopts_frames_that_are_not_durable, cut_everywhere, "lost"),
        (freezes_what_comes_later_too, write_into_a_flush, "lost"),
        (trusts_a_version_that_may_not_last, cut_everywhere, "lost"),
        (trusts_a_version_that_may_not_last, flush_again_after_doubt, "lost"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_mutant_is_caught_by_the_harm_it_does(mutant, loop, harm, monkeypatch):
    mutant(monkeypatch)
    with pytest.raises(AssertionError, match=harm):
        loop()
