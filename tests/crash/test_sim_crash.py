"""Shows what a power cut may and may not take from the simulated disk.

Every promise is shown from both sides: what was synced is in every state, and what was not is
missing from some, so that a test on this disk can fail.
"""

import errno

import pytest

from fixtures.sim_crash import NOISE
from fixtures.sim_disk import SimDisk
from fixtures.sim_node import SECTOR_BYTES
from fixtures.sim_verbs import contents, refusal, text, trees, write


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk(["/lake"])


# --- names --------------------------------------------------------------------------------------


def test_a_name_that_was_never_synced_is_lost_in_some_state_and_kept_in_some(
    disk: SimDisk,
) -> None:
    write(disk, "/lake/a", b"x")
    assert contents(disk, "/lake/a") == {b"x", None}


def test_a_synced_name_with_synced_bytes_is_whole_in_every_state(disk: SimDisk) -> None:
    write(disk, "/lake/a", b"x")
    disk.sync_folder("/lake")
    write(disk, "/lake/b", b"y")
    assert contents(disk, "/lake/a") == {b"x"}
    assert contents(disk, "/lake/b") == {b"y", None}


def test_syncing_a_file_does_not_sync_its_name(disk: SimDisk) -> None:
    write(disk, "/lake/a", b"x")
    disk.sync_file("/lake/a")
    assert None in contents(disk, "/lake/a")


def test_syncing_one_folder_does_not_sync_another(disk: SimDisk) -> None:
    disk.make_folder("/lake/one")
    disk.make_folder("/lake/two")
    disk.sync_folder("/lake")
    write(disk, "/lake/one/a", b"x")
    write(disk, "/lake/two/a", b"x")
    disk.sync_folder("/lake/one")
    assert contents(disk, "/lake/one/a") == {b"x"}
    assert contents(disk, "/lake/two/a") == {b"x", None}


def test_a_folder_that_is_not_durable_takes_what_was_synced_in_it_along(disk: SimDisk) -> None:
    disk.make_folder("/lake/data")
    write(disk, "/lake/data/a", b"x")
    disk.sync_folder("/lake/data")
    assert trees(disk) == [
        {"/lake": None},
        {"/lake": None, "/lake/data": None, "/lake/data/a": b"x"},
    ]
    disk.sync_folder("/lake")
    assert contents(disk, "/lake/data/a") == {b"x"}


def test_an_unlink_that_was_never_synced_may_come_undone(disk: SimDisk) -> None:
    disk.overwrite("/lake/a", b"x")
    disk.unlink("/lake/a")
    assert contents(disk, "/lake/a") == {b"x", None}
    disk.sync_folder("/lake")
    assert contents(disk, "/lake/a") == {None}


def test_a_rename_shows_the_old_state_or_the_new_and_never_a_missing_name(disk: SimDisk) -> None:
    disk.overwrite("/lake/CURRENT", b"old")
    write(disk, "/lake/staged", b"new")
    disk.rename("/lake/staged", "/lake/CURRENT")
    found = trees(disk)
    old = {"/lake": None, "/lake/CURRENT": b"old"}
    assert old in found
    assert old | {"/lake/staged": b"new"} in found
    assert old | {"/lake/CURRENT": b"new"} in found
    assert len(found) == 3


@pytest.mark.parametrize("synced", ["/lake", "/lake/data"])
def test_a_rename_between_folders_is_kept_whole_by_a_sync_of_either(
    disk: SimDisk, synced: str
) -> None:
    disk.make_folder("/lake/data")
    disk.sync_folder("/lake")
    write(disk, "/lake/a", b"x")
    disk.rename("/lake/a", "/lake/data/a")
    assert all(not ("/lake/a" in tree and "/lake/data/a" in tree) for tree in trees(disk)), (
        "one file, one name"
    )
    disk.sync_folder(synced)
    assert trees(disk) == [{"/lake": None, "/lake/data": None, "/lake/data/a": b"x"}]


def test_a_durable_file_moved_between_folders_is_never_gone_from_both(disk: SimDisk) -> None:
    disk.overwrite("/lake/a", b"x")
    disk.overwrite("/lake/data/other", b"y")
    write(disk, "/lake/b", b"z")
    disk.rename("/lake/a", "/lake/data/a")
    disk.unlink("/lake/data/other")
    for any_subset in (False, True):
        found = trees(disk, any_subset=any_subset)
        assert all(("/lake/a" in tree) != ("/lake/data/a" in tree) for tree in found)
        assert {"/lake/a" in tree for tree in found} == {True, False}


def test_a_chain_of_renames_is_kept_in_order(disk: SimDisk) -> None:
    disk.overwrite("/lake/b", b"b")
    disk.overwrite("/lake/a", b"a")
    disk.rename("/lake/a", "/lake/b")
    disk.rename("/lake/b", "/lake/c")
    files = [{k: v for k, v in tree.items() if v is not None} for tree in trees(disk)]
    assert sorted(map(str, files)) == sorted(
        map(str, [{"/lake/a": b"a", "/lake/b": b"b"}, {"/lake/b": b"a"}, {"/lake/c": b"a"}])
    )


def test_two_names_of_one_file_have_the_same_bytes_in_every_state(disk: SimDisk) -> None:
    write(disk, "/lake/staged", text(2000), synced=False)
    disk.link("/lake/staged", "/lake/7.json")
    both = [t for t in trees(disk) if {"/lake/staged", "/lake/7.json"} <= t.keys()]
    assert len({tree["/lake/staged"] for tree in both}) > 4
    assert all(tree["/lake/staged"] == tree["/lake/7.json"] for tree in both)


def test_a_folder_keeps_a_prefix_of_its_changes_or_in_the_nastier_mode_any_of_them(
    disk: SimDisk,
) -> None:
    for name in "abc":
        write(disk, f"/lake/{name}", b"x")
    mild, nasty = (
        {"".join(name for name in "abc" if f"/lake/{name}" in tree) for tree in found}
        for found in (trees(disk, any_subset=False), trees(disk))
    )
    assert mild == {"", "a", "ab", "abc"}
    assert nasty == {"", "a", "b", "c", "ab", "ac", "bc", "abc"}


def test_folders_keep_their_changes_independently_even_in_the_milder_mode(disk: SimDisk) -> None:
    for folder in ("one", "two"):
        disk.make_folder(f"/lake/{folder}")
    disk.sync_folder("/lake")
    for folder in ("one", "two"):
        write(disk, f"/lake/{folder}/a", b"x")
    kept = {
        ("/lake/one/a" in tree, "/lake/two/a" in tree) for tree in trees(disk, any_subset=False)
    }
    assert kept == {(False, False), (False, True), (True, False), (True, True)}


def test_in_the_milder_mode_a_folder_ends_where_another_folder_lost_their_common_rename(
    disk: SimDisk,
) -> None:
    disk.overwrite("/lake/a", b"x")
    disk.overwrite("/lake/data/old", b"y")
    disk.unlink("/lake/data/old")
    disk.rename("/lake/a", "/lake/data/a")
    write(disk, "/lake/later", b"z")
    kept = {
        ("/lake/data/a" in tree, "/lake/later" in tree) for tree in trees(disk, any_subset=False)
    }
    assert kept == {(False, False), (True, False), (True, True)}


def test_a_failed_sync_of_a_folder_leaves_names_pending_and_the_next_keeps_them(
    disk: SimDisk,
) -> None:
    write(disk, "/lake/a", b"x")
    disk.fail(1, errno.EIO)
    with refusal(errno.EIO):
        disk.sync_folder("/lake")
    assert contents(disk, "/lake/a") == {b"x", None}
    disk.sync_folder("/lake")
    assert contents(disk, "/lake/a") == {b"x"}


# --- bytes --------------------------------------------------------------------------------------


def test_bytes_without_a_sync_may_be_missing_zeros_noise_or_stale_under_a_durable_name(
    disk: SimDisk,
) -> None:
    disk.overwrite("/lake/earlier", b"stale")
    write(disk, "/lake/a", b"12345678", synced=False)
    disk.sync_folder("/lake")
    assert contents(disk, "/lake/a") == {b"12345678", b"", bytes(8), NOISE[:8], b"stalesta"}


def test_stale_bytes_are_never_those_that_did_not_reach_the_disk(disk: SimDisk) -> None:
    disk.overwrite("/lake/earlier", b"stale")
    write(disk, "/lake/unsynced", b"never", synced=False)
    write(disk, "/lake/a", b"12345", synced=False)
    disk.sync_folder("/lake")
    assert contents(disk, "/lake/a") == {b"12345", b"", bytes(5), NOISE[:5], b"stale"}


def test_synced_bytes_are_in_every_state_whatever_is_written_behind_them(disk: SimDisk) -> None:
    head, tail = text(700), text(3000, seed=2)
    writer = disk.create("/lake/a")
    writer.write(head)
    writer.sync()
    disk.sync_folder("/lake")
    writer.write(tail)
    found = contents(disk, "/lake/a")
    assert len(found) > 20
    assert all(data is not None and data.startswith(head) for data in found)
    assert head in found
    assert head + tail in found
    disk.sync_file("/lake/a")
    assert contents(disk, "/lake/a") == {head + tail}


def test_a_write_is_torn_at_sectors_and_nowhere_else(disk: SimDisk) -> None:
    data = text(4 * SECTOR_BYTES + 100)
    write(disk, "/lake/a", data, synced=False)
    disk.sync_folder("/lake")
    kept_sets = set()
    for found in contents(disk, "/lake/a"):
        assert found is not None
        assert len(found) % SECTOR_BYTES == 0 or len(found) == len(data)
        kept = []
        for start in range(0, len(found), SECTOR_BYTES):
            sector = found[start : start + SECTOR_BYTES]
            whole = data[start : start + SECTOR_BYTES]
            assert sector in (whole, bytes(len(sector)), NOISE[start : start + len(sector)])
            kept.append(sector == whole)
        kept_sets.add(tuple(kept))
    assert (True, True) in kept_sets, "a prefix"
    assert (True, False, True, True, True) in kept_sets, "a hole"
    assert (False, False, False, False, True) in kept_sets, "only the end"
    assert (False,) * 5 in kept_sets, "the size alone"


def test_sectors_are_those_of_the_file_and_not_of_the_write(disk: SimDisk) -> None:
    write(disk, "/lake/a", text(100), text(1500, seed=2), synced=False)
    disk.sync_folder("/lake")
    sizes = {len(found) for found in contents(disk, "/lake/a") if found is not None}
    assert sizes == {0, 100, 512, 1024, 1536, 1600}


def test_each_sector_is_lost_alone_and_kept_alone_and_ends_the_file_in_some_state(
    disk: SimDisk,
) -> None:
    sectors = [text(SECTOR_BYTES, seed) for seed in range(16)]
    write(disk, "/lake/a", b"".join(sectors), synced=False)
    disk.sync_folder("/lake")
    found = contents(disk, "/lake/a")
    for lost in range(16):
        none = bytes(SECTOR_BYTES)
        holed = [none if place == lost else sector for place, sector in enumerate(sectors)]
        alone = [sector if place == lost else none for place, sector in enumerate(sectors)]
        assert {b"".join(holed), b"".join(alone), b"".join(sectors[:lost])} <= found


def test_small_writes_in_one_sector_are_kept_in_order(disk: SimDisk) -> None:
    write(disk, "/lake/a", b"11", b"22", b"33", synced=False)
    disk.sync_folder("/lake")
    kept = {(found or b"").rstrip(b"\0") for found in contents(disk, "/lake/a")}
    assert {b"", b"11", b"1122", b"112233"} <= kept
    assert not any(b"22" in found and b"11" not in found for found in kept)
    assert not any(b"33" in found and b"1122" not in found for found in kept)


@pytest.mark.parametrize("broken", ["sync", "close", "sync_file"])
def test_bytes_of_a_failed_sync_stay_lost_though_the_next_sync_succeeds(
    disk: SimDisk, broken: str
) -> None:
    writer = disk.create("/lake/a")
    writer.write(b"kept")
    writer.sync()
    writer.write(b"lost")
    disk.fail(1, errno.EIO)
    with refusal(errno.EIO):
        {"sync": writer.sync, "close": writer.close}.get(
            broken, lambda: disk.sync_file("/lake/a")
        )()
    disk.sync_file("/lake/a")
    disk.sync_folder("/lake")
    assert disk.read("/lake/a") == b"keptlost", "readers cannot tell before the power cut"
    assert contents(disk, "/lake/a") == {b"kept", b"kept" + bytes(4), b"kept" + NOISE[4:8]}


def test_bytes_after_a_failed_sync_become_durable_behind_the_hole(disk: SimDisk) -> None:
    writer = disk.create("/lake/a")
    writer.write(b"lost")
    disk.fail(1, errno.EIO)
    with refusal(errno.EIO):
        writer.sync()
    writer.write(b"later")
    writer.sync()
    disk.sync_folder("/lake")
    assert contents(disk, "/lake/a") == {bytes(4) + b"later", NOISE[:4] + b"later"}


def test_a_sync_that_failed_after_it_landed_has_kept_the_bytes(disk: SimDisk) -> None:
    writer = disk.create("/lake/a")
    writer.write(b"x")
    disk.fail(1, errno.EIO, landed=True)
    with refusal(errno.EIO):
        writer.sync()
    disk.sync_folder("/lake")
    assert contents(disk, "/lake/a") == {b"x"}
