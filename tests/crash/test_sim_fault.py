"""Shows that calls of the simulated disk fail exactly as asked, and that the dead stay dead."""

import errno
from contextlib import suppress

import pytest

from fixtures.sim_disk import SimDisk
from fixtures.sim_fault import Died
from fixtures.sim_verbs import refusal, write
from thermocline.disk import Disk


def publish(disk: Disk) -> None:
    """Make ten calls of every kind that matters, in the order of a commit."""
    write(disk, "/lake/staged", b"commit")
    disk.link("/lake/staged", "/lake/7.json")
    disk.sync_folder("/lake")
    disk.unlink("/lake/staged")
    disk.read("/lake/7.json")
    disk.entries("/lake")


PUBLISH_CALLS = [
    ("create", "/lake/staged"),
    ("write", "/lake/staged"),
    ("sync", "/lake/staged"),
    ("close", "/lake/staged"),
    ("link", "/lake/7.json"),
    ("sync_folder", "/lake"),
    ("unlink", "/lake/staged"),
    ("read", "/lake/7.json"),
    ("entries", "/lake"),
]


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk(["/lake"])


# --- failing ------------------------------------------------------------------------------------


def test_calls_are_traced_in_order(disk: SimDisk) -> None:
    publish(disk)
    assert disk.calls == PUBLISH_CALLS
    assert disk.mutations == PUBLISH_CALLS[:7]


@pytest.mark.parametrize("mutating_only", [False, True])
def test_the_kth_call_fails_and_no_other(mutating_only: bool) -> None:
    met = []
    codes = set()
    for k in range(1, 100):
        disk = SimDisk(["/lake"])
        disk.fail(k, errno.EIO, mutating_only=mutating_only)
        try:
            publish(disk)
        except OSError as error:
            codes.add(error.errno)
        if not disk.struck:
            break
        met += disk.struck
    assert codes == {errno.EIO}
    assert met == (PUBLISH_CALLS[:7] if mutating_only else PUBLISH_CALLS)


def test_a_failed_call_has_no_effect_and_the_next_succeeds(disk: SimDisk) -> None:
    write(disk, "/lake/a", b"x")
    before = disk.tree()
    for act in (
        lambda: disk.create("/lake/b"),
        lambda: disk.link("/lake/a", "/lake/b"),
        lambda: disk.rename("/lake/a", "/lake/b"),
        lambda: disk.unlink("/lake/a"),
        lambda: disk.make_folder("/lake/b"),
    ):
        disk.fail(1, errno.EIO)
        with refusal(errno.EIO):
            act()
        assert disk.tree() == before
    disk.link("/lake/a", "/lake/b")
    assert disk.read("/lake/b") == b"x"


def test_a_torn_write_leaves_its_first_half_and_another_failed_write_nothing(
    disk: SimDisk,
) -> None:
    writer = disk.create("/lake/a")
    disk.fail(1, errno.ENOSPC)
    with refusal(errno.ENOSPC):
        writer.write(b"12345678")
    assert disk.read("/lake/a") == b""
    disk.fail(1, errno.ENOSPC, torn=True)
    with refusal(errno.ENOSPC):
        writer.write(b"12345678")
    assert disk.read("/lake/a") == b"1234"


def test_a_call_that_landed_has_taken_effect_and_fails_all_the_same(disk: SimDisk) -> None:
    write(disk, "/lake/a", b"x")
    disk.fail(1, errno.EIO, landed=True)
    with refusal(errno.EIO):
        disk.link("/lake/a", "/lake/b")
    assert disk.read("/lake/b") == b"x"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_goes_on_refusing_writes_but_reads_and_unlinks(
    disk: SimDisk, code: int
) -> None:
    write(disk, "/lake/a", b"x")
    writer = disk.create("/lake/b")
    disk.fail(1, code, sticky=True)
    for act in (lambda: writer.write(b"x"), lambda: writer.write(b"x"), lambda: disk.create("/c")):
        with refusal(code):
            act()
    assert disk.read("/lake/a") == b"x"
    writer.close()
    disk.unlink("/lake/b")
    with refusal(code):
        disk.make_folder("/lake/c")
    disk.heal()
    disk.make_folder("/lake/c")


def test_a_read_only_disk_does_not_unlink_but_reads(disk: SimDisk) -> None:
    write(disk, "/lake/a", b"x")
    disk.fail(1, errno.EROFS, sticky=True)
    for act in (lambda: disk.unlink("/lake/a"), lambda: disk.create("/lake/b")):
        with refusal(errno.EROFS):
            act()
    assert disk.read("/lake/a") == b"x"


def test_a_process_out_of_descriptors_still_writes_to_those_it_has(disk: SimDisk) -> None:
    writer = disk.create("/lake/a")
    disk.fail(1, errno.EMFILE, sticky=True)
    for act in (lambda: disk.create("/lake/b"), lambda: disk.read("/lake/a")):
        with refusal(errno.EMFILE):
            act()
    assert writer.write(b"x") == 1
    writer.sync()


def test_a_sticky_broken_disk_fails_everything_until_healed(disk: SimDisk) -> None:
    disk.fail(2, errno.EIO, sticky=True)
    disk.entries("/lake")
    for act in (lambda: disk.entries("/lake"), lambda: disk.size("/lake/a"), lambda: publish(disk)):
        with refusal(errno.EIO):
            act()
    disk.heal()
    publish(disk)


def test_counting_starts_at_one(disk: SimDisk) -> None:
    with pytest.raises(ValueError, match="from 1"):
        disk.fail(0, errno.EIO)


# --- dying --------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("k", range(1, 8))
def test_death_comes_at_the_call_named_before_or_after_its_effect(k: int, after: bool) -> None:
    reached: list[set[str]] = []
    disk = SimDisk(["/lake"])
    disk.hooks = lambda operation, path: reached.append(set(disk.tree()))
    publish(disk)
    reached.append(set(disk.tree()))
    doomed = SimDisk(["/lake"])
    doomed.die(k, after=after)
    with pytest.raises(Died):
        publish(doomed)
    # The `finally` of the dying writer makes one more attempt; it must not be counted.
    assert doomed.calls == PUBLISH_CALLS[:k]
    assert set(doomed.killed().tree()) == reached[k if after else k - 1]


def test_the_dead_touch_nothing(disk: SimDisk) -> None:
    went_on: list[str] = []

    def link_or_tidy_up() -> None:
        try:
            with suppress(Exception):
                disk.link("/lake/a", "/lake/b")
            went_on.append("past a handler of errors")
        finally:
            disk.unlink("/lake/a")

    writer = disk.create("/lake/a")
    writer.write(b"x")
    disk.die(1)
    with pytest.raises(Died):
        link_or_tidy_up()
    assert went_on == []
    for act in (writer.sync, lambda: disk.read("/lake/a"), lambda: disk.sync_folder("/lake")):
        with pytest.raises(Died):
            act()
    assert disk.tree() == {"/lake": None, "/lake/a": b"x"}


def test_what_was_pending_outlives_the_process_but_not_the_power(disk: SimDisk) -> None:
    disk.create("/lake/a").write(b"x")
    disk.die(1)
    with pytest.raises(Died):
        disk.sync_folder("/lake")
    found = disk.killed()
    assert found.read("/lake/a") == b"x"
    assert {"/lake": None} in [state.tree() for state in found.crash_states(100)]


def test_the_dead_are_not_held_at_hooks(disk: SimDisk) -> None:
    disk.die(1)
    with pytest.raises(Died):
        disk.entries("/lake")
    seen: list[str] = []
    disk.hooks = lambda operation, path: seen.append(operation)
    with pytest.raises(Died):
        disk.entries("/lake")
    assert seen == []
