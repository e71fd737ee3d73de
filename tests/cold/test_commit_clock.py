"""Commit times when the clock of a writer jumps: bounded, said, and still a way through time."""

from itertools import pairwise

import pytest

from fixtures.lake import lake_on, rows, spec
from fixtures.sim_disk import SimDisk
from thermocline.cold.care.fsck import fsck
from thermocline.cold.care.vacuum import vacuum
from thermocline.cold.change.append import AppendOptions
from thermocline.cold.coverage_report import history
from thermocline.cold.log.commit_log import CLOCK_AHEAD_S_MAX
from thermocline.errors import NotFound
from thermocline.format.instant import NS_PER_S, parse_instant

NOON_NS = parse_instant("2026-06-01T12:00:00")
AHEAD_NS = parse_instant("2036-06-01T12:00:00")
HOUR_NS = 3600 * NS_PER_S
DAY_NS = 24 * HOUR_NS


class Clock:
    def __init__(self, now_ns):
        self.now_ns = now_ns

    def __call__(self):
        return self.now_ns


@pytest.fixture
def clock():
    return Clock(NOON_NS)


@pytest.fixture
def disk():
    return SimDisk(["/lake"])


def table_on(disk, clock):
    return lake_on(disk, checkpoint_every=4, now_ns=clock)


def append_at(disk, clock, now_ns, hour):
    clock.now_ns = now_ns
    return table_on(disk, clock).append(rows([hour]).to_reader(), AppendOptions())


def jumped(disk, clock):
    """Make versions 1 to 3 by a right clock, 4 and 5 ten years ahead, 6 to 9 by the right one."""
    table_on(disk, clock).create(spec())
    times = [NOON_NS + n * HOUR_NS for n in range(1, 3)]
    times += [AHEAD_NS, AHEAD_NS + NS_PER_S]
    times += [NOON_NS + n * HOUR_NS for n in range(3, 7)]
    for hour, now_ns in enumerate(times):
        append_at(disk, clock, now_ns, hour)
    return table_on(disk, clock)


def test_D14_a_clock_that_jumped_ahead_stamps_no_commit_after_it_was_set_right(disk, clock):
    table = jumped(disk, clock)
    assert [table.log.commit(v).time for v in range(6, 10)] == [
        NOON_NS + n * HOUR_NS for n in range(3, 7)
    ]
    assert table.state().clock_steps == (6,)
    assert fsck(table).is_sound


def test_D14_a_table_made_while_the_clock_was_ahead_is_stamped_right_again(disk, clock):
    clock.now_ns = AHEAD_NS
    table_on(disk, clock).create(spec())
    assert append_at(disk, clock, NOON_NS, 0).time == NOON_NS


@pytest.mark.parametrize("without_checkpoints", [False, True])
def test_D14_an_instant_still_names_the_newest_version_made_by_then(
    disk, clock, without_checkpoints
):
    jumped(disk, clock)
    if without_checkpoints:
        for path in [path for path in disk.tree() if "checkpoint" in path]:
            disk.remove(path)
    log = table_on(disk, clock).log
    by_hour = {0: 1, 1: 2, 2: 3, 3: 6, 4: 7, 5: 8, 6: 9}
    for hour, version in by_hour.items():
        assert log.version_at(NOON_NS + hour * HOUR_NS) == version
        assert log.version_at(NOON_NS + hour * HOUR_NS + HOUR_NS // 2) == version
    assert log.version_at(AHEAD_NS) == 9
    with pytest.raises(NotFound):
        log.version_at(NOON_NS - 1)


def test_D14_an_instant_names_versions_in_order_whatever_the_clock_did(disk, clock):
    table_on(disk, clock).create(spec())
    offsets_h = [1, 50, 2, 90, 91, 3, 30, 4, 4, 60, 61, 5]
    for hour, offset in enumerate(offsets_h):
        append_at(disk, clock, NOON_NS + offset * HOUR_NS, hour)
    log = table_on(disk, clock).log
    head = log.head().version
    times = [log.commit(version).time for version in range(1, head + 1)]
    effective = [min(times[place:]) for place in range(head)]
    for instant in sorted({*times, *(time - 1 for time in times), *(time + 1 for time in times)}):
        expected = sum(time <= instant for time in effective)
        assert log.newest_by(instant) == expected


def test_D14_the_history_says_that_the_clock_ran_ahead(disk, clock):
    notes = {row["version"]: row["note"] for row in history(jumped(disk, clock)).to_pylist()}
    assert "clock ran ahead" in notes[4]
    assert "clock ran ahead" in notes[5]
    assert "ahead of the clock" in notes[6]
    assert [version for version, note in notes.items() if note] == [6, 5, 4]


def test_a_clock_that_is_a_little_behind_still_makes_times_go_up(disk, clock):
    table_on(disk, clock).create(spec())
    for hour in range(4):
        append_at(disk, clock, NOON_NS - hour * CLOCK_AHEAD_S_MAX // 4 * NS_PER_S, hour)
    log = table_on(disk, clock).log
    times = [log.commit(version).time for version in range(1, 6)]
    assert all(before < after for before, after in pairwise(times))
    assert log.head().clock_steps == ()


def test_a_commit_is_never_further_ahead_of_the_clock_than_the_bound(disk, clock):
    table_on(disk, clock).create(spec())
    for hour, back_s in enumerate([0, 3599, 3600, 3601, 7200, 10**8]):
        now_ns = NOON_NS - back_s * NS_PER_S
        state = append_at(disk, clock, now_ns, hour)
        assert state.time - now_ns <= (CLOCK_AHEAD_S_MAX + 1) * NS_PER_S


def test_D14_vacuum_keeps_what_was_readable_at_its_cut_off_after_a_jump(disk, clock):
    jumped(disk, clock)
    clock.now_ns = NOON_NS + 30 * DAY_NS
    table = table_on(disk, clock)
    assert vacuum(table, grace_s=7 * 86_400).oldest == 9
