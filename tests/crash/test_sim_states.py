"""Shows that enough states of a power cut are found, and that they tell right from wrong.

The commit protocols at the end are the control: the right one survives every state, and each
wrong one is caught.
"""

import errno
import random
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.sim_disk import SimDisk
from fixtures.sim_fault import Died
from fixtures.sim_verbs import STATES_MAX, text, trees, write

OLD = {"/lake": None, "/lake/CURRENT": b"old"}


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk(["/lake"])


def busy(disk: SimDisk) -> SimDisk:
    """Leave pending bytes and names in several folders."""
    disk.overwrite("/lake/CURRENT", b"old")
    for folder in ("_log", "data"):
        disk.make_folder(f"/lake/{folder}")
    write(disk, "/lake/data/1.parquet", text(3000), text(500), synced=False)
    write(disk, "/lake/_log/staged", text(900), synced=False)
    disk.link("/lake/_log/staged", "/lake/_log/1.json")
    write(disk, "/lake/staged", b"new", synced=False)
    disk.rename("/lake/staged", "/lake/CURRENT")
    disk.unlink("/lake/_log/staged")
    return disk


def test_states_are_all_different_and_begin_with_all_lost(disk: SimDisk) -> None:
    found = [state.tree() for state in busy(disk).crash_states(800)]
    assert len(found) == 800
    assert len({str(tree) for tree in found}) == 800
    assert found[0] == OLD
    assert disk.tree() in found[:10]


def test_states_stop_at_the_limit_and_end_by_themselves_when_there_are_few(disk: SimDisk) -> None:
    assert len(list(busy(disk).crash_states(7))) == 7
    calm = SimDisk(["/lake"])
    assert trees(calm) == [{"/lake": None}]
    write(calm, "/lake/a", b"x")
    assert len(trees(calm)) == 2


def test_states_that_differ_only_in_inodes_are_one(disk: SimDisk) -> None:
    disk.overwrite("/lake/CURRENT", b"old")
    write(disk, "/lake/staged", b"old")
    disk.rename("/lake/staged", "/lake/CURRENT")
    assert trees(disk) == [OLD, OLD | {"/lake/staged": b"old"}]


def test_each_pending_change_is_dropped_alone_and_kept_alone_in_some_state(
    disk: SimDisk,
) -> None:
    names = [f"/lake/{number}" for number in range(12)]
    for name in names:
        write(disk, name, b"x")
    found = [set(state.tree()) - {"/lake"} for state in disk.crash_states(200)]
    for name in names:
        assert {name} in found
        assert set(names) - {name} in found


PATHS = st.sampled_from(["/a", "/b", "/a/b", "/a/c", "/b/c", "/a/b/c"])
HISTORIES = st.lists(
    st.tuples(
        st.sampled_from(
            ["write", "link", "rename", "unlink", "make_folder", "sync_folder", "sync_file"]
        ),
        PATHS,
        PATHS,
    ),
    max_size=20,
)


@settings(max_examples=100, deadline=None)
@given(HISTORIES)
def test_after_any_history_synced_disks_lose_nothing_and_others_at_most_what_is_pending(
    history: list[tuple[str, str, str]],
) -> None:
    disk = SimDisk()
    for operation, path, target in history:
        with suppress(OSError):
            if operation == "write":
                write(disk, path, text(700), synced=False)
            elif operation in ("link", "rename"):
                getattr(disk, operation)(path, target)
            else:
                getattr(disk, operation)(path)
    assert disk.tree() in [state.tree() for state in disk.crash_states(20)]
    for path, data in disk.tree().items():
        if data is None:
            disk.sync_folder(path)
        else:
            disk.sync_file(path)
    disk.sync_folder("/")
    assert trees(disk) == [disk.tree()]


def test_a_power_cut_changes_nothing_on_the_disk_it_came_from(disk: SimDisk) -> None:
    before = busy(disk).tree()
    for state in disk.crash_states(50):
        state.overwrite("/lake/CURRENT", b"other")
    assert disk.tree() == before
    assert next(disk.crash_states(1)).tree() == OLD


def test_what_is_found_after_a_power_cut_is_durable(disk: SimDisk) -> None:
    for state in busy(disk).crash_states(200):
        assert [again.tree() for again in state.crash_states(10)] == [state.tree()]


@pytest.mark.parametrize("any_subset", [False, True])
def test_a_crash_by_chance_repeats_with_its_seed_and_finds_many_states(
    disk: SimDisk, any_subset: bool
) -> None:
    busy(disk)
    first = [disk.crash(random.Random(n), any_subset=any_subset).tree() for n in range(300)]
    again = [disk.crash(random.Random(n), any_subset=any_subset).tree() for n in range(300)]
    assert first == again
    assert len({str(tree) for tree in first}) > 100
    assert OLD in first
    assert all(tree["/lake/CURRENT"] is not None for tree in first)


def test_a_crash_by_chance_never_takes_what_is_durable(disk: SimDisk) -> None:
    write(disk, "/lake/a", text(2000))
    disk.sync_folder("/lake")
    busy(disk)
    for seed in range(300):
        left = disk.crash(random.Random(seed), any_subset=seed % 2 == 0)
        assert left.read("/lake/a") == text(2000)


def test_the_story_of_a_state_names_what_was_kept_and_lost(disk: SimDisk) -> None:
    write(disk, "/lake/a", text(2000), synced=False)
    write(disk, "/lake/b", b"x")
    assert disk.story == ""
    stories = {tuple(sorted(s.tree())): s.story for s in disk.crash_states(STATES_MAX)}
    assert "lost create /lake/a\nkept create /lake/b" in stories["/lake", "/lake/b"]
    assert any("4 pending sectors" in told and "/lake/a" in told for told in stories.values())


def test_fingerprints_are_equal_exactly_for_equal_trees(disk: SimDisk) -> None:
    states = list(busy(disk).crash_states(200))
    assert len({state.fingerprint() for state in states}) == 200
    assert states[5].fingerprint() == states[5].clone().fingerprint()


# --- the control: right and wrong commits -------------------------------------------------------


def commit(disk: SimDisk) -> None:
    """Durable before visible, visible before answered."""
    write(disk, "/lake/staged", text(1500))
    disk.link("/lake/staged", "/lake/7.json")
    disk.sync_folder("/lake")
    disk.unlink("/lake/staged")


def commit_without_syncing_bytes(disk: SimDisk) -> None:
    write(disk, "/lake/staged", text(1500), synced=False)
    disk.link("/lake/staged", "/lake/7.json")
    disk.sync_folder("/lake")


def commit_without_syncing_the_name(disk: SimDisk) -> None:
    write(disk, "/lake/staged", text(1500))
    disk.link("/lake/staged", "/lake/7.json")


def commit_under_the_final_name(disk: SimDisk) -> None:
    write(disk, "/lake/7.json", text(1500))
    disk.sync_folder("/lake")


def commit_that_syncs_again_after_a_failure(disk: SimDisk) -> None:
    writer = disk.create("/lake/staged")
    writer.write(text(1500))
    try:
        writer.sync()
    except OSError:
        writer.sync()
    disk.link("/lake/staged", "/lake/7.json")
    disk.sync_folder("/lake")


def harms(act: Callable[[SimDisk], None], prepare: Callable[[SimDisk], None]) -> set[str]:
    """Cut the power before every call and after the answer; return what went wrong."""
    found = set()
    rehearsal = SimDisk(["/lake"])
    prepare(rehearsal)
    act(rehearsal)
    for call in range(1, len(rehearsal.calls) + 2):
        disk = SimDisk(["/lake"])
        prepare(disk)
        disk.die(call)
        is_answered = True
        try:
            act(disk)
        except Died:
            is_answered = False
        for state in disk.crash_states(300):
            data = state.tree().get("/lake/7.json")
            if data is None and is_answered:
                found.add("lost")
            if data is not None and data != text(1500):
                found.add("torn")
    return found


def break_the_sync(disk: SimDisk) -> None:
    disk.fail(3, errno.EIO)


@pytest.mark.parametrize(
    ("act", "prepare", "expected"),
    [
        (commit, lambda disk: None, set()),
        (commit_without_syncing_bytes, lambda disk: None, {"torn"}),
        (commit_without_syncing_the_name, lambda disk: None, {"lost"}),
        (commit_under_the_final_name, lambda disk: None, {"torn"}),
        (commit_that_syncs_again_after_a_failure, lambda disk: None, set()),
        (commit_that_syncs_again_after_a_failure, break_the_sync, {"torn"}),
    ],
)
def test_the_right_commit_survives_every_state_and_each_wrong_one_is_caught(
    act: Callable[[SimDisk], None], prepare: Callable[[SimDisk], None], expected: set[str]
) -> None:
    assert harms(act, prepare) == expected
