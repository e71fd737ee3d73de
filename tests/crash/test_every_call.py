"""The loop: run an operation, fail or kill its k-th call of the disk, for every k; then look.

After each: an operation that returned has happened; one that raised anything but `OutcomeUnknown`
has not; the table is whole, the next writer can write, and nothing of the old content is lost.
"""

import errno

import pytest

from crash.operations import (
    OPERATIONS,
    base_disk,
    check_whole,
    contents,
    create,
    empty_disk,
    opened,
    seen,
)
from fixtures.sim_fault import Died
from thermocline.errors import OutcomeUnknown, ThermoclineError

ERRNOS = [errno.EIO, errno.ENOSPC, errno.EMFILE, errno.EROFS, errno.EDQUOT]
CALLS_MAX = 2_000

by_name = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: o.name)


def _fails(operation, call, code, **how):
    """Run the operation with one call failing; return None once it makes fewer calls."""
    disk = base_disk()
    table = opened(disk)
    disk.fail(call, code, **how)
    raised = None
    try:
        operation.act(table)
    except ThermoclineError as error:
        raised = error
    struck = bool(disk.struck)
    disk.heal()
    return disk, raised, struck


@by_name
@pytest.mark.parametrize("how", ["once", "sticky", "landed"])
def test_an_operation_whose_kth_call_fails_has_happened_whole_or_not_at_all(operation, how):
    before, after = contents(operation.name)
    for call in range(1, CALLS_MAX):
        code = ERRNOS[call % len(ERRNOS)]
        kind = {"sticky": how == "sticky", "landed": how == "landed", "torn": call % 2 == 0}
        disk, raised, struck = _fails(operation, call, code, **kind)
        found = seen(disk)
        if raised is None:
            assert found == after, (call, code)
        elif isinstance(raised, OutcomeUnknown):
            assert found in (before, after), (call, raised)
        else:
            assert found == before, (call, code, raised)
        assert disk.handles == [], (call, "left open")
        if call % 7 == 0 or not struck:
            check_whole(disk)
        if not struck:
            return
    pytest.fail("the operation makes too many calls")


@by_name
@pytest.mark.parametrize("after_call", [False, True], ids=["before", "after"])
def test_an_operation_killed_at_its_kth_call_leaves_a_table_the_next_writer_can_write(
    operation, after_call
):
    before, after = contents(operation.name)
    for call in range(1, CALLS_MAX):
        disk = base_disk()
        table = opened(disk)
        disk.die(call, after=after_call)
        died = False
        try:
            operation.act(table)
        except Died:
            died = True
        left = disk.killed()
        assert seen(left) in (before, after)
        check_whole(left)
        if not died:
            return
    pytest.fail("the operation makes too many calls")


@pytest.mark.parametrize("after_call", [False, True], ids=["before", "after"])
def test_a_create_killed_at_its_kth_call_leaves_no_table_or_a_whole_one(after_call):
    for call in range(1, CALLS_MAX):
        disk = empty_disk()
        disk.die(call, after=after_call)
        died = False
        try:
            create(opened(disk))
        except Died:
            died = True
        left = disk.killed()
        table = opened(left)
        if not table.log.exists():
            create(table)
        check_whole(left)
        if not died:
            return
    pytest.fail("the operation makes too many calls")
