"""States: what folding refuses, what it counts, and how segments are found again."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from format.made import JUNE_NS, commit, schema, segment, spec
from thermocline.errors import Corruption
from thermocline.format.instant import NS_PER_US, TimeNs
from thermocline.format.layout import Version
from thermocline.format.log.action import (
    AddSegment,
    Expire,
    Mark,
    SetMark,
    SetTable,
    SetTxn,
    removal,
    with_deletes,
)
from thermocline.format.log.state import SegmentSet, Totals, coverage_digest, fold

TABLE = SetTable(spec(), 1, schema())


@dataclass
class Columns:
    """The segments of a checkpoint, in memory; counts how many were made."""

    rows: list
    made: int = 0

    @property
    def ids(self):
        return [row.segment_id for row in self.rows]

    @property
    def ts_min_us(self):
        return np.array([row.ts_min // NS_PER_US for row in self.rows], dtype=np.int64)

    @property
    def ts_max_us(self):
        return np.array([-(-row.ts_max // NS_PER_US) for row in self.rows], dtype=np.int64)

    def segments(self, rows):
        found = [self.rows[row] for row in rows]
        self.made += len(found)
        return found


def ids(segments):
    return sorted(found.segment_id for found in segments)


def started(*segments):
    return fold(None, [commit(1, TABLE, *(AddSegment(one) for one in segments))])


def test_a_log_that_does_not_say_what_the_table_is_is_corruption():
    with pytest.raises(Corruption, match="does not say what the table is"):
        fold(None, [commit(1, AddSegment(segment()))])
    with pytest.raises(Corruption, match="does not say what the table is"):
        fold(None, [])


@pytest.mark.parametrize("version", [1, 3, 2**40])
def test_commits_that_do_not_follow_each_other_are_corruption(version):
    with pytest.raises(Corruption, match="do not follow") as caught:
        fold(started(), [commit(version)])
    assert caught.value.facts == {"version": version, "after": 1}


def test_the_first_commit_is_version_one():
    with pytest.raises(Corruption, match="do not follow"):
        fold(None, [commit(2, TABLE)])


def test_a_segment_is_added_once():
    with pytest.raises(Corruption, match="live already") as caught:
        fold(started(segment()), [commit(2, AddSegment(segment()))])
    assert caught.value.facts == {"segment": "s1", "version": 2}


@pytest.mark.parametrize(
    "action", [removal(segment("x")), with_deletes(segment("x"), deleted_count=1)]
)
def test_what_is_not_live_cannot_be_changed(action):
    with pytest.raises(Corruption, match="not live") as caught:
        fold(started(segment()), [commit(2, action)])
    assert caught.value.facts == {"segment": "x", "version": 2}


def test_a_segment_cannot_be_removed_twice():
    gone = fold(started(segment()), [commit(2, removal(segment()))])
    with pytest.raises(Corruption, match="not live"):
        fold(gone, [commit(3, removal(segment()))])


def test_a_removed_segment_may_come_back():
    found = fold(
        started(segment()), [commit(2, removal(segment())), commit(3, AddSegment(segment()))]
    )
    assert ids(found.segments) == ["s1"]
    assert found.totals == started(segment()).totals


def test_a_state_that_was_handed_out_never_changes():
    before = started(segment())
    fold(before, [commit(2, removal(segment()), SetMark("hot", Mark(1)), SetTxn("job", 1))])
    assert ids(before.segments) == ["s1"]
    assert (before.marks, before.txns, before.version) == ({}, {}, 1)


def test_totals_count_live_rows_files_and_bytes():
    hidden = with_deletes(segment("b"), deleted_count=4, coverage_checksum="crc32c:00000001")
    found = fold(
        started(segment("a"), segment("b"), segment("c")),
        [commit(2, hidden, removal(segment("c")))],
    )
    assert found.totals == Totals(
        segments=2,
        rows=16,
        size_bytes=2_000,
        digest=coverage_digest("a", "crc32c:0000000b") ^ coverage_digest("b", "crc32c:00000001"),
    )


def test_the_digest_of_a_coverage_is_frozen():
    assert coverage_digest("s1", "crc32c:0000000b") == 0xD0684FEC8BE8D6D0


def test_marks_writers_and_expiry_are_the_last_ones_said():
    found = fold(
        started(),
        [
            commit(2, SetMark("hot", Mark(3)), SetTxn("job", 1), Expire(Version(5))),
            commit(3, SetMark("hot", Mark(4)), SetTxn("other", 9), Expire(Version(2))),
        ],
    )
    assert (found.marks, found.txns, found.oldest) == ({"hot": 4}, {"job": 1, "other": 9}, 5)
    assert (found.version, found.time) == (3, JUNE_NS + 3 * 10**9)


def test_older_columns_are_kept_for_older_segments():
    wider = schema().rename_column("close", "last")
    found = fold(started(), [commit(2, SetTable(spec(overlap="allow"), 2, wider))])
    assert found.schema == wider
    assert found.schemas == {1: schema(), 2: wider}
    assert found.spec.overlap == "allow"


def test_a_checkpoints_segments_are_made_only_when_they_are_needed():
    columns = Columns([segment(f"s{place}", place * 1_000_000) for place in range(1_000)])
    segments = SegmentSet(columns)
    assert ids(segments.overlapping(5_000_000, 7_000_001)) == ["s5", "s6", "s7"]
    assert segments.find("s9").ts_min == 9_000_000
    assert "s9" in segments
    assert "x" not in segments
    assert segments.find("x") is None
    assert columns.made == 4


def test_changes_since_a_checkpoint_hide_what_it_says():
    columns = Columns([segment("a", 10), segment("b", 20), segment("c", 30)])
    changed = replace(segment("b", 20), row_count=7)
    segments = SegmentSet(columns, {"b": changed, "d": segment("d", 40)}, frozenset({"c"}))
    assert ids(segments) == ["a", "b", "d"]
    assert segments.find("b") == changed
    assert segments.find("c") is None
    assert "c" not in segments
    assert len(list(segments)) == 3


@pytest.mark.parametrize(
    ("start", "end", "found"),
    [
        (None, None, ["s1"]),
        (2_500, None, ["s1"]),
        (2_501, None, []),
        (None, 1_500, []),
        (None, 1_501, ["s1"]),
        (2_500, 2_501, ["s1"]),
        (1_500, 1_501, ["s1"]),
        (2_000, 2_001, ["s1"]),
    ],
)
@pytest.mark.parametrize("is_checkpoint", [True, False])
def test_rounding_to_microseconds_neither_loses_nor_adds_a_segment(
    start, end, found, is_checkpoint
):
    one = segment("s1", TimeNs(1_500), TimeNs(2_500))
    segments = SegmentSet(Columns([one])) if is_checkpoint else SegmentSet(None, {"s1": one})
    assert ids(segments.overlapping(start, end)) == found
