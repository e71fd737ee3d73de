"""Actions: what each says survives, what a newer version added survives, and paths stay inside."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from format.made import instants, schema, segment, spec
from format.test_layout import BAD_PATHS
from thermocline.errors import Corruption, Invalid, Unsupported
from thermocline.format.bucket import Bucket
from thermocline.format.instant import TimeNs
from thermocline.format.layout import Version
from thermocline.format.log.action import (
    FEATURES_SUPPORTED,
    AddSegment,
    Expire,
    Mark,
    RemoveSegment,
    SetDeletes,
    SetMark,
    SetTable,
    SetTxn,
    decode_action,
    decode_segment,
    decode_spec,
    encode_action,
    encode_segment,
    encode_spec,
    removal,
    with_deletes,
)
from thermocline.format.log.commit_note import NoteFlush

FULL = segment(
    first=-1,
    last=10**18 + 1,
    level=2,
    stats={"2": ("AAPL", "NVDA"), "3": (-5, 2**63)},
    absent=(4, 5),
    stored={"3": "int16", "6": {"dictionary": "string", "index": "int32", "ordered": False}},
    deletes="OjAAAAEAAAAAAAAAEAAAAAAA",
    deleted_count=1,
    extra={"bloom": {"path": "x"}, "sorted_by": ["ts"]},
)
ACTIONS = [
    SetTable(spec(extra={"comment": "prices", "layout": {"by": "hour"}}), 3, schema()),
    AddSegment(segment()),
    AddSegment(FULL),
    removal(FULL),
    with_deletes(segment(), deletes="AAAA", deleted_count=3, coverage_path="_coverage/x.roar"),
    SetMark("hot", Mark(7)),
    SetTxn("job", 0),
    Expire(Version(12)),
    NoteFlush("store", 3, TimeNs(1_500), "AAAA"),
    NoteFlush("store", 4, TimeNs(-1)),
]


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.name)
def test_every_action_reads_back_as_itself(action):
    json = encode_action(action)
    assert list(json) == [action.name]
    assert decode_action(json) == action


def test_a_plain_segment_is_written_with_nothing_that_is_at_its_default():
    assert encode_segment(segment()) == {
        "format": "parquet",
        "segment_id": "s1",
        "path": "data/2024/06/01/00/s1.parquet",
        "ts_min": "2024-06-01T00:00:00Z",
        "ts_max": "2024-06-01T00:00:00Z",
        "row_count": 10,
        "file_size": 1000,
        "checksum": "crc32c:0000000a",
        "coverage_path": "_coverage/segments/s1.roar",
        "coverage_checksum": "crc32c:0000000b",
        "schema_id": 1,
    }


def test_a_spec_is_written_with_every_field():
    assert encode_spec(spec(retention="90d", timezone="Asia/Tokyo")) == {
        "table_id": "t1",
        "time_column": "ts",
        "bucket": "1h",
        "entity_columns": ["symbol"],
        "overlap": "reject",
        "timezone": "Asia/Tokyo",
        "retention": "90d",
        "entities_max": 100_000,
        "features": [],
    }


@given(instants, instants)
def test_the_times_of_a_segment_are_exact_to_the_nanosecond(one, other):
    made = segment(first=min(one, other), last=max(one, other))
    assert decode_segment(encode_segment(made)) == made


unknown = st.dictionaries(
    st.text(min_size=1, max_size=8).map("x_{}".format),
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    max_size=3,
)


@given(unknown)
def test_fields_of_a_newer_version_are_kept_and_written_back(extra):
    body = {**encode_segment(segment()), **extra}
    assert decode_segment(body).extra == extra
    assert encode_segment(decode_segment(body)) == body
    changed = with_deletes(decode_segment(body), deletes="AAAA", deleted_count=1)
    assert changed.segment.extra == extra
    body = {**encode_spec(spec()), **extra}
    assert decode_spec(body).extra == extra
    assert encode_spec(replace(decode_spec(body), overlap="allow")) == {**body, "overlap": "allow"}


def test_an_unknown_action_is_named():
    with pytest.raises(Unsupported) as caught:
        decode_action({"AddIndex": {"path": "x"}})
    assert caught.value.facts == {"action": "AddIndex"}
    assert "newer" in caught.value.hint


def test_unknown_features_are_all_named():
    with pytest.raises(Unsupported) as caught:
        decode_spec({**encode_spec(spec()), "features": ["zorder", "encryption"]})
    assert caught.value.facts["needed"] == ["encryption", "zorder"]
    assert caught.value.facts["supported"] == sorted(FEATURES_SUPPORTED)


def test_a_segment_that_is_not_parquet_is_named():
    body = {**encode_segment(segment()), "format": "vortex"}
    with pytest.raises(Unsupported) as caught:
        decode_segment(body)
    assert caught.value.facts == {"format": "vortex"}


def test_a_policy_that_is_none_is_corruption():
    with pytest.raises(Corruption) as caught:
        decode_spec({**encode_spec(spec()), "overlap": "merge"})
    assert caught.value.facts == {"overlap": "merge"}


def _with_path(path):
    other = {**encode_segment(segment()), "path": path}
    yield AddSegment(segment(path=path)), {"AddSegment": other}
    yield (
        AddSegment(segment(coverage_path=path)),
        {"AddSegment": {**encode_segment(segment()), "coverage_path": path}},
    )
    yield (
        SetDeletes(segment(path=path), 0, ""),
        {"SetDeletes": {"segment": other, "before_count": 0, "before_coverage_checksum": ""}},
    )
    removed = encode_action(removal(segment()))["RemoveSegment"]
    yield removal(segment(path=path)), {"RemoveSegment": {**removed, "path": path}}


@pytest.mark.parametrize("path", BAD_PATHS, ids=lambda path: repr(path)[:20])
def test_a_path_out_of_the_table_is_refused_when_written_and_when_read(path):
    for action, json in _with_path(path):
        with pytest.raises(Corruption, match="path leaves"):
            encode_action(action)
        with pytest.raises(Corruption, match="path leaves"):
            decode_action(json)


def test_a_removal_carries_what_running_totals_need():
    removed = removal(FULL)
    assert removed == RemoveSegment(
        "s1",
        FULL.path,
        10,
        1,
        1_000,
        FULL.coverage_checksum,
        FULL.ts_min,
        FULL.ts_max,
    )


def test_a_deletion_remembers_what_was_there_before():
    action = with_deletes(FULL, deleted_count=4, coverage_checksum="crc32c:ffffffff")
    assert (action.before_count, action.before_coverage_checksum) == (1, "crc32c:0000000b")
    assert action.segment == replace(FULL, deleted_count=4, coverage_checksum="crc32c:ffffffff")


def test_retention_is_seconds_or_for_ever():
    assert spec().retention_s is None
    assert spec(retention="2w").retention_s == 1_209_600
    with pytest.raises(Invalid):
        _ = spec(retention="long").retention_s


def test_a_bucket_is_written_as_its_width():
    assert encode_spec(spec(bucket=Bucket(900)))["bucket"] == "15m"
    assert decode_spec({**encode_spec(spec()), "bucket": "900s"}).bucket == Bucket(900)
