"""The loop over a whole lake: fail its k-th changing call, for every k; go on, then look.

After each, in the same process as long as it answers, and after the disk has healed and the lake
was opened again: every row that was answered is read once, no request is half there, nothing that
was refused is found, and the next flush succeeds without a restart.
"""

import errno
from contextlib import suppress

import pytest

from crash.lake_operations import (
    ROOT,
    STORY,
    TABLES,
    Life,
    Looker,
    Promise,
    abandon,
    made_disk,
    opened,
    proven,
    read,
    settings,
)
from fixtures.sim_disk import SimDisk
from thermocline.errors import Corruption, Overloaded, ThermoclineError, Unavailable
from thermocline.node import open_lake

CODES = (errno.EIO, errno.ENOSPC, errno.EROFS, errno.EMFILE)
CALLS_MAX = 2_000
PROVEN_EVERY = 16
CUTS_PER_CALL = 3
ONE_PROCESS = tuple(step for step in STORY if step[0] not in ("reopen", "close"))
"""The steps of the story that need no second start, so that one process goes through the fault."""


def lived(call, code, **how):
    """Live the story with a failing call; the process goes on; return the life."""
    life = Life(made_disk(), is_recorded=False)
    life.disk.fail(call, code, mutating_only=True, **how)
    for step in ONE_PROCESS:
        life.play([step])
        if life.errors:
            life.look()  # reads go on, whatever writes do
    return life


def gone_on(life):
    """Heal the disk and prove that the same process needs no restart."""
    life.disk.heal()
    for name in TABLES:
        life.write(name, 1)
    life.look()
    life.flush_all()
    life.look()
    hot = [part for name in TABLES for part in life.lake.table(name).snapshot().parts]
    assert hot == [], "a flush after the fault left rows hot"


@pytest.mark.parametrize("how", ["once", "sticky", "torn", "landed"])
def test_W10_W11_W23_F04_a_lake_whose_kth_call_fails_goes_on_and_loses_nothing(how):
    looker = Looker(made_disk())
    for call in range(1, CALLS_MAX):
        code = CODES[(call + len(how)) % len(CODES)]
        life = lived(call, code, **({} if how == "once" else {how: True}))
        for error in life.errors:
            assert isinstance(error, Unavailable | Overloaded), (call, error)
        is_struck = bool(life.disk.struck)
        killed, promise = life.disk.killed(), life.promise
        gone_on(life)
        for disk, known in ((killed, promise), (life.disk, life.promise)):
            for left in [disk, *disk.crash_states(CUTS_PER_CALL, seed=call)]:
                known.check(looker.found(left).numbers, call, left.story)
        life.end()
        if call % PROVEN_EVERY == 0:
            proven(killed, promise)
            proven(life.disk.killed(), life.promise)
        if not is_struck:
            return
    pytest.fail("the story makes too many calls")


@pytest.mark.parametrize("code", CODES)
def test_W23_a_lake_that_fails_to_open_can_be_opened_once_the_disk_has_healed(code):
    """In the same process: nothing of the failed start may be left, no lock and no open file."""
    life = Life(made_disk(), is_recorded=False)
    life.play(STORY[:5])
    promise = life.promise
    life.end()
    for call in range(1, CALLS_MAX):
        disk = life.disk.killed()
        disk.fail(call, code)
        lake = refusal = None
        try:
            lake = open_lake(ROOT, settings(), disk=disk)
        except ThermoclineError as error:
            refusal = error
        disk.heal()
        if lake is None:
            assert not isinstance(refusal, Corruption), (call, refusal)
            assert disk.handles == [], (call, "left open", disk.calls[-3:])
            lake = opened(disk)
        promise.check(read(lake), call)
        is_struck = bool(disk.struck)
        abandon(lake)
        if not is_struck:
            return
    pytest.fail("a start makes too many calls")


@pytest.mark.parametrize("code", CODES)
def test_W23_a_lake_that_could_not_be_made_can_be_made_once_the_disk_has_healed(code):
    for call in range(1, CALLS_MAX):
        disk = SimDisk(["/"])
        disk.fail(call, code, mutating_only=True)
        try:
            lake = open_lake(ROOT, settings(), disk=disk)
        except ThermoclineError:
            disk.heal()
            lake = opened(disk)
        with suppress(ThermoclineError):
            lake.create_table("prices", time_column="ts", bucket="1h")
        disk.heal()
        for name in set(TABLES) - set(lake.tables()):
            lake.create_table(name, time_column="ts", bucket="1h")
        is_struck = bool(disk.struck)
        abandon(lake)
        if call % PROVEN_EVERY == 0:
            proven(disk.killed(), Promise())
        if not is_struck:
            return
    pytest.fail("making a lake takes too many calls")
