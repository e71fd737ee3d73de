"""Power cuts: at every call of every operation, every kind of loss a disk may show.

What was answered is there; what was not answered is there whole or not at all; and a table after
the cut can be read, proven and written.
"""

import random

import pytest

from crash.operations import OPERATIONS, base_disk, check_whole, contents, opened, seen
from fixtures.sim_fault import Died

CALLS_MAX = 2_000
STATES_PER_CALL = 24

changing = [operation for operation in OPERATIONS if operation.name != "read"]


def _cut_at(operation, call):
    """Return the disk at the moment of the cut, and whether the operation had answered."""
    disk = base_disk()
    table = opened(disk)
    disk.die(call, mutating_only=True)
    try:
        operation.act(table)
    except Died:
        return disk, False
    return disk, True


@pytest.mark.parametrize("operation", changing, ids=lambda o: o.name)
def test_T03_T09_F15_a_power_cut_at_any_call_leaves_the_old_table_or_the_new_one(operation):
    before, after = contents(operation.name)
    states = 0
    for call in range(1, CALLS_MAX):
        disk, answered = _cut_at(operation, call)
        for left in disk.crash_states(STATES_PER_CALL, seed=call):
            states += 1
            found = seen(left)
            if answered:
                assert found == after, left.story
            else:
                assert found in (before, after), left.story
            if states % 29 == 0:
                check_whole(left)
        if answered:
            assert states > call
            return
    pytest.fail("the operation makes too many calls")


@pytest.mark.parametrize("seed", range(8))
def test_a_second_power_cut_while_the_next_writer_works_changes_nothing(seed):
    rng = random.Random(seed)
    operation = rng.choice(changing)
    before, after = contents(operation.name)
    disk, _ = _cut_at(operation, rng.randrange(1, 30))
    left = disk.crash(rng)
    middle = seen(left)
    assert middle in (before, after)
    next_one = rng.choice(changing)
    left.die(rng.randrange(1, 30), mutating_only=True)
    try:
        next_one.act(opened(left))
    except Died:
        twice = left.crash(rng)
        seen(twice)
        check_whole(twice)
