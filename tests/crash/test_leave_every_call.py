"""Leaving the open journal file, with every call of it failed, killed or cut from power.

The story flushes all there is and then asks once more, so that the open file is sealed and goes;
hot rows of the other table keep it in one story, and it goes with their flush.
"""

import errno
import random

import pytest

from crash.lake_operations import JOURNAL, Life, Looker, made_disk, proven, read
from crash.test_lake_every_call import gone_on
from crash.test_lake_power_cut import Cuts
from fixtures import sim_states
from thermocline.errors import Unavailable
from thermocline.hot.wal.folder import list_file_numbers as files_of
from thermocline.hot.wal.reader import JournalReader
from thermocline.hot.wal.tier import WalTier

BEFORE = (("write", "prices", 2), ("write", "trades", 1), ("flush", "prices", 0))
KEPT = (("flush", "prices", 0), ("write", "trades", 1), ("flush", "trades", 0))
LEFT = (("flush", "trades", 0), ("flush_all", "", 0), ("write", "prices", 1))
CALLS_MAX = 200
STATES_PER_CALL = 40
CUTS_PER_CALL = 3


@pytest.fixture(autouse=True)
def _few_dry_samples(monkeypatch):
    monkeypatch.setattr(sim_states, "DRY_SAMPLES_MAX", 12)


def frames(disk):
    return list(JournalReader(disk, JOURNAL).frames())


def cut_everywhere(after, seed=1):
    """Play the story, kill it and cut its power before each of its calls; prove some of it."""
    cuts = Cuts(Looker(made_disk()))
    life = Life(made_disk())
    life.play([*BEFORE, *after], random.Random(seed))
    assert life.errors == []
    moments = life.end()
    cuts.all_of(moments, STATES_PER_CALL, seed)
    for disk, promise in cuts.some(random.Random(seed), 6):
        proven(disk.clone(), promise)
    return [moment.call for moment in moments]


@pytest.mark.parametrize("after", [LEFT, KEPT])
def test_a_process_that_dies_while_it_leaves_a_file_loses_nothing(after):
    calls = cut_everywhere(after)
    removed = [path for operation, path in calls if operation == "unlink" and path.endswith(".wal")]
    assert removed, "no file was left: the story does not do what it is for"


@pytest.mark.parametrize("how", ["once", "sticky", "torn", "landed"])
def test_a_file_whose_leaving_fails_at_any_call_keeps_all_and_is_left_later(how):
    looker = Looker(made_disk())
    for call in range(1, CALLS_MAX):
        life = Life(made_disk(), is_recorded=False)
        life.play([*BEFORE, ("flush", "trades", 0)])
        life.disk.fail(
            call, errno.EIO, mutating_only=True, **({} if how == "once" else {how: True})
        )
        life.play([("flush_all", "", 0), ("write", "trades", 1), ("flush", "prices", 0)])
        assert all(isinstance(error, Unavailable) for error in life.errors), (call, life.errors)
        is_struck = bool(life.disk.struck)
        life.promise.check(read(life.lake), call)
        for left in (life.disk.killed(), *life.disk.crash_states(CUTS_PER_CALL, seed=call)):
            life.promise.check(looker.found(left).numbers, call, left.story)
        gone_on(life)
        life.play([("flush_all", "", 0)])
        assert frames(life.disk) == [], call
        assert len(files_of(life.disk, JOURNAL)) == 1, call
        life.end()
        if not is_struck:
            assert call > 10, "leaving a file makes more calls than this"
            return
    pytest.fail("leaving a file makes too many calls")


def removes_what_is_open(patch):
    patch.setattr(WalTier, "_is_passed", lambda self, number: True)


def forgets_who_has_rows_in_it(patch):
    def leave(self, table):
        with self.group.pause() as journal:
            with self._changed:
                self._last_lsns.clear()
            journal.seal()
        self.trim()

    patch.setattr(WalTier, "leave_open_file", leave)


@pytest.mark.parametrize("mutant", [removes_what_is_open, forgets_who_has_rows_in_it])
def test_a_tier_that_lets_go_of_rows_nobody_has_is_caught(mutant, monkeypatch):
    mutant(monkeypatch)
    with pytest.raises(AssertionError, match="lost"):
        cut_everywhere(KEPT)
