"""The way back from lost commits: what is lost is said first, and accepted by a person."""

import pytest

from crash.operations import base_disk, opened
from fixtures.lake import closes, lake_on, rows, spec
from fixtures.sim_disk import SimDisk
from thermocline.cold.care.fsck import fsck
from thermocline.cold.care.repair import repair, survey
from thermocline.cold.change.append import AppendOptions
from thermocline.cold.coverage_report import history
from thermocline.errors import Corruption, ThermoclineError
from thermocline.format import layout
from thermocline.format.log.action import Mark

ROOT = "/lake/prices/"
CURRENT = ROOT + layout.CURRENT_PATH


def commit_file(version):
    return ROOT + layout.commit_path(version)


@pytest.fixture
def disk() -> SimDisk:
    return base_disk()


def test_a_whole_table_has_nothing_to_repair(disk):
    before = disk.tree()
    assert not survey(opened(disk)).is_needed
    assert repair(opened(disk)) is None
    assert disk.tree() == before


def test_D03_a_survey_says_what_is_lost_and_changes_nothing(disk):
    disk.remove(commit_file(6))
    before = disk.tree()
    loss = survey(opened(disk))
    assert (loss.intact, loss.lost_first, loss.lost_last) == (5, 6, 6)
    assert [(s.rows, s.first, s.last) for s in loss.segments] == [
        (1, "2024-06-01 08:00:00", "2024-06-01 08:00:00")
    ]
    assert any(layout.CURRENT_PATH in reason for reason in loss.reasons)
    assert disk.tree() == before


@pytest.mark.parametrize("count", [1, 2, 4])
def test_D03_a_repaired_table_opens_is_sound_and_says_so_in_its_history(disk, count):
    intact = 6 - count
    expected = closes(opened(disk), at=intact)
    for version in range(intact + 1, 7):
        disk.remove(commit_file(version))
    done = repair(opened(disk))
    assert (done.loss.intact, done.version) == (intact, intact + 1)
    table = opened(disk)
    assert table.state().version == intact + 1
    assert closes(table) == expected
    assert fsck(table).is_sound
    newest = history(table).to_pylist()[0]
    assert newest["operation"] == "repair"
    assert f"versions {intact + 1} to 6" in newest["note"]
    assert table.append(rows([50]).to_reader(), AppendOptions()).version == intact + 2
    assert not survey(opened(disk)).is_needed


@pytest.mark.parametrize("damage", ["missing", "flipped"])
def test_T05_a_gap_can_only_be_repaired_by_going_back_to_before_it(disk, damage):
    expected = closes(opened(disk), at=3)
    if damage == "missing":
        disk.remove(commit_file(4))
    else:
        disk.flip_byte(commit_file(4), 60)
    disk.remove(ROOT + layout.checkpoint_path(5))
    loss = survey(opened(disk))
    assert (loss.intact, loss.lost_first, loss.lost_last) == (3, 4, 6)
    assert loss.kept_after_gap == (5, 6)
    done = repair(opened(disk))
    assert closes(opened(disk)) == expected
    assert fsck(opened(disk)).is_sound
    assert f"{ROOT}{done.aside}/{layout.commit_path(6)[5:]}" in disk.tree()


def test_D04_a_repair_drops_a_current_of_another_table_and_no_version(disk):
    other = SimDisk(["/lake"])
    table = lake_on(other)
    table.create(spec())
    for hour in range(9):
        table.append(rows([hour]).to_reader(), AppendOptions())
    disk.overwrite(CURRENT, other.read(CURRENT))
    with pytest.raises(Corruption):
        opened(disk).state()
    repair(opened(disk))
    assert opened(disk).state().version == 7
    assert closes(opened(disk)) == closes(opened(base_disk()))


def test_T05_a_gap_that_a_checkpoint_bridges_costs_no_version(disk):
    disk.remove(commit_file(4))
    assert not survey(opened(disk)).is_needed
    assert repair(opened(disk)) is None
    assert opened(disk).state().version == 6


def test_a_table_without_one_intact_version_is_refused(disk):
    disk.remove(commit_file(1))
    disk.remove(ROOT + layout.checkpoint_path(5))
    with pytest.raises(Corruption) as error:
        repair(opened(disk))
    assert error.value.facts["path"] == layout.commit_path(1)


def test_a_repair_takes_over_the_mark_that_a_hot_source_has_handed_over(disk):
    loss = survey(opened(disk), {"hot": Mark(9)})
    assert loss.is_needed
    assert loss.sources == {"hot": 9}
    repair(opened(disk), {"hot": Mark(9)})
    state = opened(disk).state()
    assert state.marks["hot"] == 9
    assert [(hole.first, hole.last) for hole in state.holes] == [(1, 9)]
    assert not survey(opened(disk), {"hot": Mark(9)}).is_needed


@pytest.mark.parametrize("lost", [(6,), (4,), (5, 6)])
def test_a_repair_that_dies_at_any_call_is_finished_by_the_next(lost):
    damaged = base_disk()
    expected = closes(opened(damaged), at=lost[0] - 1)
    for version in lost:
        damaged.remove(commit_file(version))
    if lost == (4,):
        damaged.remove(ROOT + layout.checkpoint_path(5))
    counted = damaged.clone()
    counted.calls.clear()
    repair(opened(counted))
    for call in range(1, len(counted.mutations) + 1):
        disk = damaged.clone()
        disk.die(call, mutating_only=True)
        try:
            repair(opened(disk))
        except BaseException as error:
            if isinstance(error, ThermoclineError):
                raise
        disk = disk.killed()
        try:
            version = opened(disk).state().version
        except Corruption:
            repair(opened(disk))
            version = opened(disk).state().version
        assert closes(opened(disk)) == expected
        assert history(opened(disk)).to_pylist()[0]["operation"] == "repair", (call, version)
        assert fsck(opened(disk)).is_sound
