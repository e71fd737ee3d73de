"""Coverage: what is believed when a sidecar is lost, torn or lies, and where buckets end."""

import logging

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crash.operations import base_disk, opened
from fixtures.lake import HOUR_US, JUNE_US, closes, lake_on, rows, spec
from fixtures.sim_disk import SimDisk
from thermocline.cold.care.fsck import fsck
from thermocline.cold.change.append import AppendOptions
from thermocline.cold.coverage_report import report_coverage
from thermocline.cold.segment import stage
from thermocline.cold.segment.measure import encode_entities
from thermocline.errors import Corruption, CoverageOverlapError
from thermocline.format import layout
from thermocline.format.bucket import Bucket
from thermocline.format.coverage import (
    Buckets,
    Coverage,
    decode_coverage,
    encode_bitmaps,
    encode_coverage,
    sidecar_checksum,
)
from thermocline.format.sealed_json import crc32c
from thermocline.table import TimeSeriesTable

ROOT = "/lake/prices/"


def made(*, entities=("symbol",), **options):
    disk = SimDisk(["/lake"])
    table = lake_on(disk)
    table.create(spec(entities=entities, **options))
    return disk, table


def append(table, data, **wish):
    return table.append(data.to_reader(), AppendOptions(**wish))


def hours(table, at=None):
    """Return the hours of June that each symbol is said to have."""
    first = JUNE_US // HOUR_US
    found = table.coverage(at)[1].entities.items()
    return {orjson.loads(key)[0]: (held.numbers() - first).tolist() for key, held in found}


def answers(disk):
    """Return all that a new process answers about coverage."""
    view = report_coverage(lake_on(disk))
    gaps = view.gaps("2024-06-01", "2024-06-02")
    return gaps.to_pylist(), view.runs().to_pylist(), view.ratio("2024-06-01", "2024-06-02")


def sidecars(table):
    return [ROOT + segment.coverage_path for segment in table.state().segments]


def forget_shortcuts(disk):
    """Remove the coverage of whole versions, so that the sidecars have to be read."""
    for path in [path for path in disk.tree() if "_coverage/table/" in path]:
        disk.remove(path)


# T17: sidecars that are lost or damaged


@pytest.mark.parametrize(
    "harm",
    [
        lambda disk, path: disk.remove(path),
        lambda disk, path: disk.truncate(path, 11),
        lambda disk, path: disk.truncate(path, 0),
        lambda disk, path: disk.flip_byte(path, -1),
        lambda disk, path: disk.flip_byte(path, 30),
        lambda disk, path: disk.overwrite(path, encode_coverage(Coverage(3600, Buckets(), {}))),
    ],
    ids=["missing", "torn", "empty", "checksum", "flipped", "another's"],
)
def test_T17_a_damaged_sidecar_is_made_again_with_a_warning_and_healed(harm, caplog):
    disk = base_disk()
    before = answers(disk)
    table = opened(disk)
    paths = sidecars(table)
    whole = {path: disk.read(path) for path in paths}
    forget_shortcuts(disk)
    for path in paths:
        harm(disk, path)
    with caplog.at_level(logging.WARNING):
        assert answers(disk) == before
    for path in paths:
        assert path.removeprefix(ROOT) in caplog.text
        assert disk.read(path) == whole[path]
    caplog.clear()
    forget_shortcuts(disk)
    assert answers(disk) == before
    assert caplog.text == ""


@settings(max_examples=40)
@given(st.data())
def test_T17_every_sidecar_can_be_made_again_whatever_was_replaced_and_deleted(data):
    # Stretches and single hours: a bitmap keeps them in different ways.
    stretch = st.tuples(st.integers(0, 300), st.integers(1, 12))
    some = st.lists(stretch, min_size=1, max_size=8).map(
        lambda made: [hour for first, length in made for hour in range(first, first + length)]
    )
    disk, table = made(overlap="allow")
    for symbol in ("NVDA", "AMD"):
        append(table, rows(data.draw(some), symbol))
    append(lake_on(disk), rows(data.draw(some)), overlap="replace")
    gone = pa.array([float(hour) for hour in data.draw(some)])
    table.delete(lambda batch: pc.is_in(batch.column("close"), gone), ["close"])
    before = answers(disk)
    for path in sidecars(table):
        disk.remove(path)
    forget_shortcuts(disk)
    assert answers(disk) == before
    assert fsck(lake_on(disk)).is_sound


def test_T17_what_a_replace_leaves_of_a_long_stretch_can_be_made_again():
    disk, table = made()
    append(table, rows(range(10)))
    append(lake_on(disk), rows(range(3, 10), close=9), overlap="replace")
    before = answers(disk)
    for path in sidecars(table):
        disk.remove(path)
    forget_shortcuts(disk)
    assert answers(disk) == before


def test_T17_a_segment_that_does_not_bear_out_the_log_is_an_error_that_names_both():
    disk, table = made()
    append(table, rows([0, 1]))
    _, other = made()
    append(other, rows([0, 5]))
    [mine], [theirs] = table.state().segments, other.state().segments
    data = other.storage.read(theirs.path)
    disk.overwrite(ROOT + mine.path, data.ljust(mine.file_size, b"\0")[: mine.file_size])
    disk.remove(ROOT + mine.coverage_path)
    forget_shortcuts(disk)
    with pytest.raises(Corruption) as error:
        answers(disk)
    assert mine.path in str(error.value)


def test_T17_a_sidecar_that_cannot_be_healed_is_still_answered_for():
    disk = base_disk()
    before = answers(disk)
    forget_shortcuts(disk)
    disk.remove(sidecars(opened(disk))[0])
    disk.fail(1, 30, sticky=True, mutating_only=True)  # EROFS: a copy on a read-only mount
    assert answers(disk) == before


# T18: sidecars that say what the log does not


def lied(disk, claim):
    """Let the newest segment's sidecar, and the commit that names it, make another claim."""
    table = opened(disk)
    version = table.state().version
    path = ROOT + layout.commit_path(version)
    commit = orjson.loads(disk.read(path))
    [segment] = [action["AddSegment"] for action in commit["actions"] if "AddSegment" in action]
    data = encode_coverage(claim(decode_coverage(disk.read(ROOT + segment["coverage_path"]))))
    disk.overwrite(ROOT + segment["coverage_path"], data)
    segment["coverage_checksum"] = sidecar_checksum(data)
    del commit["checksum"]
    body = orjson.dumps(commit)
    disk.overwrite(path, body[:-1] + b',"checksum":"' + crc32c(body).encode() + b'"}\n')
    return segment["coverage_path"]


def shifted(first, end):
    def claim(true):
        buckets = Buckets.from_range(true.whole.first() + first, true.whole.first() + end)
        return Coverage(true.width_s, buckets, dict.fromkeys(true.entities, buckets))

    return claim


CLAIMS = {
    "too many": shifted(0, 40),
    "too early": shifted(-5, 1),
    "elsewhere": shifted(7, 8),
    "nothing": lambda true: Coverage(true.width_s, Buckets(), {}),
    "another width": lambda true: Coverage(60, true.whole, true.entities),
}


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_T18_coverage_that_contradicts_the_log_is_told_as_not_verified(claim, caplog):
    disk = base_disk()
    live = closes(opened(disk))
    path = lied(disk, claim)
    view = report_coverage(opened(disk))
    assert not view.is_verified
    assert closes(opened(disk)) == live  # rows come from the files, whatever is claimed of them
    for answer in (
        view.gaps("2024-06-01", "2024-06-02"),
        view.runs(),
        view.silent_entities("2024-06-01", None),
    ):
        assert answer.schema.metadata[b"verified"] == b"false"
    assert path in caplog.text
    assert path in [
        finding.path for finding in fsck(opened(disk)).findings if not finding.is_harmless
    ]


def test_T18_what_was_not_verified_is_not_written_down_as_if_it_were():
    disk = base_disk()
    lied(disk, CLAIMS["too many"])
    append(opened(disk), rows([60]))
    assert not report_coverage(opened(disk)).is_verified
    # Once the segment that was lied about is gone, the rest is as good as ever.
    table = opened(disk)
    table.delete(lambda batch: pc.equal(batch.column("close"), 8.0), ["close"])
    assert report_coverage(table).is_verified
    assert report_coverage(opened(disk)).is_verified


def test_T18_a_claim_that_the_log_cannot_contradict_is_found_by_fsck():
    disk, table = made()
    append(table, rows([0, 2, 2, 9]))
    buckets = Buckets.from_numbers(JUNE_US // HOUR_US + np.array([0, 3, 9]))
    path = lied(disk, lambda true: Coverage(3600, buckets, {'["NVDA"]': buckets}))
    [found] = [finding for finding in fsck(lake_on(disk)).findings if not finding.is_harmless]
    assert (found.kind, found.path) == ("coverage", path)
    assert found.what == "1 buckets too many, 1 too few"


def test_true_coverage_is_told_as_verified(table):
    table.append(rows([0, 1]))
    table.delete("close = 0")
    assert table.gaps().schema.metadata[b"verified"] == b"true"
    assert table.coverage().schema.metadata[b"verified"] == b"true"


# T19: edges of buckets


def test_T19_a_bucket_holds_its_first_instant_and_not_its_last():
    table = made(entities=())[1]
    edge = [JUNE_US - 1, JUNE_US, JUNE_US + HOUR_US - 1, JUNE_US + HOUR_US]
    append(table, pa.table({"ts": pa.array(edge, pa.timestamp("us"))}))
    first = JUNE_US // HOUR_US
    assert table.coverage()[1].whole.numbers().tolist() == [first - 1, first, first + 1]


@settings(max_examples=60)
@given(
    st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=30),
    st.sampled_from([1, 7, 60, 3600, 86_400]),
)
def test_T19_every_nanosecond_is_in_exactly_one_bucket_before_and_after_1970(instants, width_s):
    table = made(entities=(), width_s=width_s)[1]
    append(table, pa.table({"ts": pa.array(instants, pa.timestamp("ns"))}))
    width_ns = width_s * 10**9
    found = table.coverage()[1].whole.numbers().tolist()
    assert found == sorted({instant // width_ns for instant in instants})
    bucket = Bucket(width_s)
    for instant in instants:
        holders = [b for b in found if bucket.start(b) <= instant < bucket.start(b + 1)]
        assert holders == [instant // width_ns]


def test_T19_an_hour_that_the_clock_shows_twice_is_two_buckets(tmp_path):
    from thermocline import TimeSeriesTable

    table = TimeSeriesTable.create(tmp_path / "t", time_column="ts", bucket="1h")
    ends = pa.array([1_729_987_200, 1_729_990_800, 1_729_994_400], pa.timestamp("s", tz="UTC"))
    table.append(pa.table({"ts": ends.cast(pa.timestamp("s", tz="Europe/Berlin"))}))
    clock = [time.hour for time in table.to_arrow().column("ts").to_pylist()]
    assert clock == [2, 2, 3]
    assert table.coverage().column("buckets").to_pylist() == [3]


# The shortcut of a whole version


def shortcut(table):
    return ROOT + layout.table_coverage_path(table.state().version)


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"garbage",
        b"TCCV" + bytes(60),
        encode_coverage(Coverage(3600, Buckets.from_range(0, 9), {})),
        encode_coverage(Coverage(3600, Buckets.from_range(0, 9), {}, digest=5)),
    ],
    ids=["missing", "empty", "garbage", "zeros", "no digest", "another's"],
)
def test_a_shortcut_that_is_not_of_this_version_is_never_believed(content):
    disk = base_disk()
    before = answers(disk)
    path = shortcut(opened(disk))
    disk.remove(path) if content is None else disk.overwrite(path, content)
    assert answers(disk) == before


def test_a_shortcut_of_an_older_version_under_a_newer_name_is_never_believed():
    disk, table = made()
    append(table, rows([0, 1]))
    older = disk.read(shortcut(table))
    append(table, rows([7]))
    disk.overwrite(shortcut(table), older)
    assert hours(lake_on(disk)) == {"NVDA": [0, 1, 7]}


def test_a_shortcut_of_a_newer_format_is_passed_by():
    disk = base_disk()
    before = answers(disk)
    path = shortcut(opened(disk))
    data = bytearray(disk.read(path)[:-4])
    data[4] = 9
    disk.overwrite(path, bytes(data) + int(crc32c(bytes(data))[7:], 16).to_bytes(4, "little"))
    assert answers(disk) == before


def test_a_shortcut_that_lies_with_the_right_digest_is_found_by_fsck():
    disk = base_disk()
    path = shortcut(opened(disk))
    true = decode_coverage(disk.read(path))
    lie = Coverage(true.width_s, true.whole, dict(list(true.entities.items())[1:]), true.digest)
    disk.overwrite(path, encode_coverage(lie))
    found = fsck(opened(disk)).findings
    assert [layout.table_coverage_path(6)] == [f.path for f in found if not f.is_harmless]


def test_coverage_is_answered_without_opening_a_parquet_file():
    disk, table = made()
    for day in range(5):
        append(table, rows(range(day * 24, day * 24 + 20)))
    table.delete(lambda batch: pc.equal(batch.column("close"), 5.0), ["close"])
    forget_shortcuts(disk)
    for _ in range(2):
        disk.calls.clear()
        assert len(hours(lake_on(disk))["NVDA"]) == 99
        assert not [path for _, path in disk.calls if path.startswith(ROOT + "data/")]
        read = [path for call, path in disk.calls if call == "read" and "_coverage/seg" in path]
        assert sorted(read) == sorted(sidecars(table))


def test_coverage_follows_the_table_through_every_version_and_back():
    disk, table = made()
    wanted = {1: {}}
    for hour in range(20):
        append(table, rows([hour, hour + 100]))
        wanted[table.state().version] = hours(lake_on(disk))
    assert wanted[21] == {"NVDA": [*range(20), *range(100, 120)]}
    for version in (21, 3, 17, 1, 2):
        assert hours(table, at=version) == wanted[version]
        assert hours(lake_on(disk), at=version) == wanted[version]
    table.restore(5)
    assert hours(table) == wanted[5] == hours(lake_on(disk))


def test_a_row_of_no_entity_is_told_from_all_that_a_narrow_dictionary_has():
    """128 names fill the indices of eight bits: the number of null is one more."""
    names = [f"s{n:03}" for n in range(128)]
    symbols = pa.DictionaryArray.from_arrays(pa.array([*range(128), None], pa.int8()), names)
    codes, keys = encode_entities(pa.RecordBatch.from_arrays([symbols], ["symbol"]), spec())
    assert [orjson.loads(keys[code])[0] for code in codes] == [*names, None]


@pytest.mark.parametrize("version", [1, 2])
def test_a_lost_sidecar_of_many_entities_is_rebuilt_byte_for_byte(tmp_path, monkeypatch, version):
    """A table of an older release has a sidecar of version 1 for many entities, too."""
    if version == 1:
        monkeypatch.setattr(stage, "encode_coverage", encode_bitmaps)
    hours = [(n % 7) * 3_600_000_000 for n in range(3_300)]
    names = [f"device-{n % 1_100}" for n in range(3_300)]
    rows = pa.table({"ts": pa.array(hours, pa.timestamp("us")), "device": names})
    table = TimeSeriesTable.create(
        tmp_path / "t", time_column="ts", bucket="1h", entity_columns="device"
    )
    table.append(rows)
    (sidecar,) = (tmp_path / "t" / "_coverage" / "segments").iterdir()
    before, gaps = sidecar.read_bytes(), TimeSeriesTable.open(tmp_path / "t").gaps()
    assert before[4] == version
    assert gaps.num_rows > 1_100
    sidecar.unlink()
    assert TimeSeriesTable.open(tmp_path / "t").gaps().equals(gaps)
    assert sidecar.read_bytes() == before
    assert table.fsck().is_sound
    table.append(rows.slice(0, 5), overlap="replace")
    table.delete("device = 'device-3'")
    assert table.fsck().is_sound
    with pytest.raises(CoverageOverlapError) as raised:
        table.append(rows.slice(4, 2))
    assert raised.value.facts["entities_overlapping"] == 2
