"""fsck: each kind of damage is found and named, all of it at once, and nothing is changed."""

from dataclasses import replace

import orjson
import pytest

from crash.operations import base_disk, opened
from fixtures.lake import lake_on, rows, spec
from fixtures.sim_disk import SimDisk
from fixtures.sim_fault import MUTATING
from thermocline.cold.care.fsck import fsck
from thermocline.cold.change.append import AppendOptions
from thermocline.cold.log.checkpoint import encode_checkpoint
from thermocline.format import layout
from thermocline.format.coverage import Buckets, Coverage, encode_coverage
from thermocline.format.log.state import SegmentSet
from thermocline.format.sealed_json import crc32c

ROOT = "/lake/prices/"


@pytest.fixture
def disk():
    return base_disk()


def live(disk, place=0):
    """Return one of the live segments, in order of their times."""
    segments = sorted(opened(disk).state().segments, key=lambda s: (s.ts_min, s.path))
    return segments[place]


def harm(disk):
    """Return the findings that are not harmless, as kind and path."""
    return [(f.kind, f.path) for f in fsck(opened(disk)).findings if not f.is_harmless]


def rewritten(disk, version, change):
    """Write a commit again, changed, with a right checksum, as a program with a bug might."""
    path = ROOT + layout.commit_path(version)
    commit = orjson.loads(disk.read(path))
    del commit["checksum"]
    change(commit)
    body = orjson.dumps(commit)
    disk.overwrite(path, body[:-1] + b',"checksum":"' + crc32c(body).encode() + b'"}\n')


def test_a_table_that_is_whole_has_no_finding_and_is_not_touched(disk):
    before = disk.tree()
    table = opened(disk)
    disk.calls.clear()
    steps = []
    checked = fsck(table, lambda done, total: steps.append((done, total)))
    assert checked.is_sound
    assert checked.findings == ()
    assert (checked.version, checked.commits, checked.segments, checked.rows) == (6, 6, 4, 9)
    assert checked.size_bytes == sum(s.file_size for s in table.state().segments)
    assert steps == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert not [call for call, _ in disk.calls if call in MUTATING]
    assert disk.tree() == before


# Segments


@pytest.mark.parametrize(
    "damage",
    [
        lambda disk, path: disk.remove(path),
        lambda disk, path: disk.truncate(path, disk.size(path) - 1),
        lambda disk, path: disk.truncate(path, 0),
        lambda disk, path: disk.flip_byte(path, 4),
        lambda disk, path: disk.flip_byte(path, disk.size(path) // 2),
        lambda disk, path: disk.flip_byte(path, -1),
        lambda disk, path: disk.overwrite(path, disk.read(path) + b"more"),
    ],
    ids=["missing", "short", "empty", "first page", "middle", "footer", "long"],
)
def test_T21_a_segment_that_is_not_what_was_written_is_named(disk, damage):
    segment = live(disk)
    damage(disk, ROOT + segment.path)
    assert harm(disk) == [("segment", segment.path)]
    assert not fsck(opened(disk)).is_sound


def test_every_byte_of_a_segment_is_under_its_checksum(disk):
    segment = live(disk)
    for offset in range(0, segment.file_size, 97):
        disk.flip_byte(ROOT + segment.path, offset)
        assert harm(disk) == [("segment", segment.path)], offset
        disk.flip_byte(ROOT + segment.path, offset)
    assert harm(disk) == []


def add_segment(commit):
    return next(a["AddSegment"] for a in commit["actions"] if "AddSegment" in a)


@pytest.mark.parametrize(
    "lie",
    [{"ts_min": "2024-06-01T07:59:59Z"}, {"ts_max": "2024-06-01T08:00:01Z"}, {"row_count": 2}],
    ids=lambda lie: next(iter(lie)),
)
def test_a_log_that_says_other_than_the_file_holds_is_found(disk, lie):
    rewritten(disk, 6, lambda commit: add_segment(commit).update(lie))
    assert ("segment", live(disk, 3).path) in harm(disk)


def test_all_damage_is_reported_not_the_first_alone(disk):
    one, two, three = live(disk, 0), live(disk, 1), live(disk, 2)
    disk.remove(ROOT + one.path)
    disk.flip_byte(ROOT + two.path, 10)
    disk.remove(ROOT + three.coverage_path)
    found = sorted(harm(disk))
    assert found == sorted(
        [("segment", one.path), ("segment", two.path), ("coverage", three.coverage_path)]
    )


# Coverage


@pytest.mark.parametrize(
    "damage",
    [
        lambda disk, path: disk.remove(path),
        lambda disk, path: disk.truncate(path, 20),
        lambda disk, path: disk.flip_byte(path, 30),
        lambda disk, path: disk.overwrite(path, encode_coverage(Coverage(3600, Buckets(), {}))),
    ],
    ids=["missing", "torn", "flipped", "another's"],
)
def test_T17_a_sidecar_that_is_not_what_was_written_is_named(disk, damage):
    segment = live(disk)
    damage(disk, ROOT + segment.coverage_path)
    assert harm(disk) == [("coverage", segment.coverage_path)]


def test_a_sidecar_that_reading_has_healed_is_sound_again(disk):
    segment = live(disk)
    disk.remove(ROOT + segment.coverage_path)
    disk.remove(ROOT + "_coverage/table")
    opened(disk).coverage()
    assert harm(disk) == []


# The log


@pytest.mark.parametrize("version", [1, 3, 5])
def test_T05_a_missing_commit_is_named(disk, version):
    disk.remove(ROOT + layout.commit_path(version))
    assert harm(disk) == [("log", layout.commit_path(version))]


def test_T04_every_damaged_commit_is_named(disk):
    for version in (2, 4):
        disk.flip_byte(ROOT + layout.commit_path(version), 50)
    assert harm(disk) == [("log", layout.commit_path(2)), ("log", layout.commit_path(4))]


def test_a_commit_that_does_not_follow_from_the_ones_before_is_found(disk):
    def twice(commit):
        commit["actions"] = commit["actions"] * 2

    rewritten(disk, 6, twice)
    disk.remove(ROOT + layout.checkpoint_path(5))
    table = opened(disk)
    assert [finding.kind for finding in fsck(table).findings] == ["log"]


def test_T06_a_hint_past_the_end_is_found_and_a_lost_one_is_harmless(disk):
    disk.overwrite(ROOT + layout.CURRENT_PATH, b'{"version": 99}')
    assert harm(disk) == [("log", layout.commit_path(7))]
    for content in (b"", b"garbage", b"{}", b"[1]"):
        disk.overwrite(ROOT + layout.CURRENT_PATH, content)
        assert harm(disk) == []
        assert [finding.kind for finding in fsck(opened(disk)).findings] == ["current"]


def test_T09_a_checkpoint_that_lies_is_found(disk):
    table = opened(disk)
    path = ROOT + layout.checkpoint_path(5)
    disk.overwrite(path, encode_checkpoint(table.log.state(4)))
    assert harm(disk) == []  # says another version: nobody would believe it
    state = table.log.state(5)
    kept = SegmentSet(changed={s.segment_id: s for s in list(state.segments)[1:]})
    totals = replace(state.totals, segments=state.totals.segments - 1)
    lie = replace(state, segments=kept, totals=totals)
    disk.overwrite(path, encode_checkpoint(lie))
    assert harm(disk) == [("state", layout.checkpoint_path(5))]


@pytest.mark.parametrize("size_bytes", [0, 100, -20])
def test_T09_a_torn_checkpoint_is_harmless_because_the_log_is_used(disk, size_bytes):
    path = ROOT + layout.checkpoint_path(5)
    disk.truncate(path, size_bytes % disk.size(path))
    assert harm(disk) == []
    found = fsck(opened(disk)).findings
    assert [(f.kind, f.path) for f in found] == [("state", layout.checkpoint_path(5))]


def test_a_checkpoint_of_a_version_that_does_not_exist_is_found(disk):
    data = disk.read(ROOT + layout.checkpoint_path(5))
    disk.overwrite(ROOT + layout.checkpoint_path(9), data)
    assert harm(disk) == [("log", layout.commit_path(7)), ("state", layout.checkpoint_path(9))]


def test_a_folder_without_a_commit_is_no_table():
    disk = SimDisk(["/lake"])
    checked = fsck(lake_on(disk))
    assert not checked.is_sound
    assert [finding.kind for finding in checked.findings] == ["log"]


# Leftovers


def test_files_that_no_version_names_are_told_and_harmless(disk):
    left = ["data/2024/06/01/00/left.parquet", "_coverage/segments/left.roar"]
    for path in left:
        disk.overwrite(ROOT + path, b"left by a writer that died")
    checked = fsck(opened(disk))
    assert checked.is_sound
    assert sorted((f.kind, f.path) for f in checked.findings) == sorted(
        ("orphan", path) for path in left
    )


def test_a_file_of_an_older_version_is_no_leftover(disk):
    table = opened(disk)
    table.append(rows([0, 1, 2], close=9).to_reader(), AppendOptions(overlap="replace"))
    assert fsck(opened(disk)).findings == ()


def test_a_table_without_rows_is_sound():
    disk = SimDisk(["/lake"])
    table = lake_on(disk)
    table.create(spec())
    assert fsck(table).findings == ()
