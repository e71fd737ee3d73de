"""An export into the lake whose k-th call fails, or is the last: it happened whole or not at all.

An export that raised leaves the version it was made against, so that its store may try again; one
whose answer was lost is found by the changes that its commit names.
"""

import errno
from functools import cache

import pytest

from cold.test_export_plan import COLUMNS, export, held
from fixtures.lake import lake_on
from fixtures.sim_disk import SimDisk
from fixtures.sim_fault import Died
from thermocline.cold.care.fsck import fsck
from thermocline.cold.change.export_plan import create_entity_spec, find_last_flush
from thermocline.errors import OutcomeUnknown, ThermoclineError
from thermocline.format.instant import parse_instant

ERRNOS = [errno.EIO, errno.ENOSPC, errno.EMFILE, errno.EROFS, errno.EDQUOT]
CALLS_MAX = 500
NOW_NS = parse_instant("2024-07-01")
BEFORE = {"a": 1, "b": 1, "c": 1}
AFTER = {"a": 2, "c": 1, "d": 2}


def opened(disk):
    """Return the table as a new process would meet it."""
    clock = iter(range(NOW_NS, NOW_NS + 10**15, 10**9))
    return lake_on(disk, "/lake/orders", now_ns=lambda: next(clock))


@cache
def _volume():
    disk = SimDisk(["/lake"])
    table = opened(disk)
    table.create(create_entity_spec("order"))
    table.adopt_columns(COLUMNS, evolve=False)
    export(table, BEFORE)
    return disk.freeze()


def act(table):
    export(table, {"a": 2, "d": 2}, gone=["b"], change=2)


def check_told(table):
    """Check that rows and changes agree: whoever sees the rows sees whose they are."""
    epoch = {1: BEFORE, 2: AFTER}[find_last_flush(table.log, table.state().version).epoch]
    assert held(table) == epoch
    assert fsck(table).is_sound


@pytest.mark.parametrize("how", ["once", "sticky", "landed"])
def test_an_export_whose_kth_call_fails_has_happened_whole_or_not_at_all(how):
    for call in range(1, CALLS_MAX):
        disk = SimDisk.thaw(_volume())
        table = opened(disk)
        kind = {"sticky": how == "sticky", "landed": how == "landed", "torn": call % 2 == 0}
        disk.fail(call, ERRNOS[call % len(ERRNOS)], **kind)
        raised = None
        try:
            act(table)
        except ThermoclineError as error:
            raised = error
        struck = bool(disk.struck)
        disk.heal()
        found = held(opened(disk))
        if raised is None:
            assert found == AFTER, call
        elif not isinstance(raised, OutcomeUnknown):
            assert found == BEFORE, (call, raised)
        check_told(opened(disk))
        assert disk.handles == [], (call, "left open")
        if not struck:
            return
    pytest.fail("an export makes too many calls")


@pytest.mark.parametrize("after_call", [False, True], ids=["before", "after"])
def test_an_export_killed_at_its_kth_call_can_be_found_out_and_made_again(after_call):
    for call in range(1, CALLS_MAX):
        disk = SimDisk.thaw(_volume())
        table = opened(disk)
        disk.die(call, after=after_call)
        died = False
        try:
            act(table)
        except Died:
            died = True
        left = opened(disk.killed())
        check_told(left)
        if find_last_flush(left.log, left.state().version).epoch == 1:
            act(left)
        check_told(left)
        assert held(left) == AFTER
        if not died:
            return
    pytest.fail("an export makes too many calls")
