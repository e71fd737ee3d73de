"""Commits that were durable and are gone: an error that names them, never a shorter table."""

import orjson
import pytest

from crash.operations import base_disk, opened, seen
from fixtures.lake import closes, lake_on, rows, spec
from fixtures.sim_disk import SimDisk
from thermocline.cold.care.fsck import fsck
from thermocline.cold.change.append import AppendOptions
from thermocline.errors import Conflict, Corruption
from thermocline.format import layout
from thermocline.format.log.current import Current, decode_current, encode_current

ROOT = "/lake/prices/"
CURRENT = ROOT + layout.CURRENT_PATH


def commit_file(version):
    return ROOT + layout.commit_path(version)


@pytest.fixture
def disk() -> SimDisk:
    return base_disk()


def refused(act, version):
    with pytest.raises(Corruption) as error:
        act()
    assert error.value.facts["path"] == layout.commit_path(version)


def append(disk):
    return opened(disk).append(rows([50]).to_reader(), AppendOptions())


def forget_proofs(disk, *, but=()):
    """Remove every file that proves a version, except those named."""
    for path in list(disk.tree()):
        is_proof = "CURRENT" in path or "checkpoint" in path or "_coverage/table/" in path
        if is_proof and not any(word in path for word in but):
            disk.remove(path)


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_D03_newest_commits_that_are_deleted_are_missed_by_every_reader_and_writer(disk, count):
    first = 7 - count
    kept = {version: disk.read(commit_file(version)) for version in range(first, 7)}
    for version in kept:
        disk.remove(commit_file(version))
    refused(lambda: opened(disk).state(), first)
    refused(lambda: opened(disk).log.head(), first)
    refused(lambda: append(disk), first)
    assert not any(commit_file(version) in disk.tree() for version in kept)
    with pytest.raises(Conflict):
        opened(disk).create(spec())
    checked = fsck(opened(disk))
    assert not checked.is_sound
    assert layout.commit_path(first) in [finding.path for finding in checked.findings]
    for version, data in kept.items():
        disk.overwrite(commit_file(version), data)
    assert opened(disk).state().version == 6
    assert fsck(opened(disk)).is_sound


@pytest.mark.parametrize("proof", ["CURRENT", "checkpoint", "_coverage/table"])
@pytest.mark.parametrize("current", [None, b"", b"garbage", "behind"])
def test_D03_any_file_of_a_version_proves_that_its_commit_was_there(proof, current):
    if proof == "CURRENT" and current is not None:
        pytest.skip("CURRENT is the proof here")
    disk = SimDisk(["/lake"])
    table = lake_on(disk, checkpoint_every=6)
    table.create(spec())
    for hour in range(5):
        before = disk.read(CURRENT)
        table.append(rows([hour]).to_reader(), AppendOptions())
    forget_proofs(disk, but=(proof,))
    if current is not None:
        disk.overwrite(CURRENT, before if current == "behind" else current)
    disk.remove(commit_file(6))
    refused(lambda: lake_on(disk, checkpoint_every=6).state(), 6)
    assert not fsck(lake_on(disk, checkpoint_every=6)).is_sound


def test_D03_an_old_hint_without_a_checksum_is_a_proof_as_well(disk):
    disk.overwrite(CURRENT, b'{"version":9}')
    refused(lambda: opened(disk).state(), 7)
    refused(lambda: append(disk), 7)


def test_T06_a_hint_with_one_flipped_byte_is_ignored_and_written_again(disk):
    whole, before = disk.read(CURRENT), seen(disk)
    for offset in range(len(whole)):
        disk.overwrite(CURRENT, whole)
        disk.flip_byte(CURRENT, offset)
        assert seen(disk) == before
    disk.overwrite(CURRENT, whole[:-5])
    assert append(disk).version == 7
    assert decode_current(disk.read(CURRENT)).version == 7


def test_D03_a_writer_that_was_behind_never_takes_the_number_of_a_lost_commit(disk):
    behind = opened(disk)
    behind.state()
    append(disk)
    disk.remove(commit_file(7))
    refused(lambda: behind.append(rows([60]).to_reader(), AppendOptions()), 7)
    assert commit_file(7) not in disk.tree()


def test_D03_a_running_process_does_not_build_on_a_commit_that_went_away(disk):
    table = opened(disk)
    table.state()
    disk.remove(commit_file(6))
    refused(lambda: table.append(rows([60]).to_reader(), AppendOptions()), 6)
    assert commit_file(7) not in disk.tree()


def test_D03_a_running_reader_notices_that_the_newest_commit_went_away(disk):
    table = opened(disk)
    table.state()
    disk.remove(commit_file(6))
    table.log._head_checked_s = float("-inf")
    refused(table.state, 6)
    refused(lambda: table.log.commit(6), 6)


def other_table() -> SimDisk:
    disk = SimDisk(["/lake"])
    table = lake_on(disk)
    table.create(spec())
    for hour in range(8):
        table.append(rows([100 + hour], "OTHER").to_reader(), AppendOptions())
    return disk


@pytest.mark.parametrize("version", [2, 5, 6])
def test_D04_a_commit_of_another_table_in_the_place_of_one_is_found(disk, version):
    disk.remove(ROOT + layout.checkpoint_path(5))
    disk.overwrite(commit_file(version), other_table().read(commit_file(version)))
    with pytest.raises(Corruption) as error:
        opened(disk).state()
    assert "_log/" in error.value.facts["path"]
    assert not fsck(opened(disk)).is_sound


def test_D04_a_newest_commit_without_a_link_to_the_one_before_is_compared_with_current(disk):
    json = orjson.loads(other_table().read(commit_file(6)))
    del json["checksum"], json["previous"]
    from thermocline.format.sealed_json import seal

    disk.overwrite(commit_file(6), seal(json))
    refused(lambda: opened(disk).state(), 6)
    assert not fsck(opened(disk)).is_sound


def test_D04_a_current_of_another_table_is_never_taken_for_this_ones(disk):
    disk.overwrite(CURRENT, encode_current(Current(6, "0" * 32, "1" * 32)))
    with pytest.raises(Corruption):
        opened(disk).state()


def test_D04_a_log_that_an_older_copy_replaced_is_found():
    disk = base_disk()
    copy = {path: data for path, data in disk.tree().items() if path.startswith(ROOT + "_log/0")}
    append(disk)
    current = disk.read(CURRENT)
    rival = base_disk()
    rival_table = opened(rival)
    rival_table.append(rows([70]).to_reader(), AppendOptions())
    assert copy
    rival.overwrite(CURRENT, current)
    refused(lambda: opened(rival).state(), 7)


def test_T09_a_checkpoint_of_another_table_is_passed_over(disk):
    before = seen(disk)
    other = other_table()
    lake_on(other).log.write_checkpoint(5)
    disk.overwrite(ROOT + layout.checkpoint_path(5), other.read(ROOT + layout.checkpoint_path(5)))
    assert seen(disk) == before
    assert closes(opened(disk)) == closes(opened(base_disk()))
    assert not fsck(opened(disk)).is_sound


def test_T05_a_commit_in_the_middle_that_is_gone_is_corruption_for_history_too(disk):
    table = opened(disk)
    table.state()
    disk.remove(commit_file(3))
    with pytest.raises(Corruption) as error:
        list(table.commits())
    assert error.value.facts["path"] == layout.commit_path(3)
