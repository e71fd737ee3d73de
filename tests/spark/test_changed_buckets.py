"""What changed between two versions is found from the log and sidecars, and never too little."""

import pyarrow as pa
import pytest

from fixtures.rollups import JUNE_US, metrics, put, site_at
from thermocline.cold.care.vacuum import vacuum
from thermocline.cold.change.append import AppendOptions
from thermocline.cold.change.replace_segments import SegmentRewrite, replace_segments
from thermocline.cold.segment import parquet as segment_module
from thermocline.cold.segment.parquet import read_rows
from thermocline.cold.segment.stage import Stage
from thermocline.errors import Corruption
from thermocline.format.bucket import Bucket
from thermocline.format.coverage import Buckets
from thermocline.format.schema import Schema
from thermocline.pipeline.rollup.changed_buckets import convert_buckets, find_changes

FIRST = JUNE_US // 3_600_000_000


@pytest.fixture
def table(tmp_path):
    """A table with one segment that holds hours 0, 1 and 5."""
    made = metrics(site_at(tmp_path / "lake"))
    put(made, [(0, "a", 1.0), (60, "a", 2.0), (300, "b", 3.0)])
    return made


@pytest.fixture
def hours(table, monkeypatch):
    """Return the hours that changed since a version, "all" for everything; no Parquet is read."""

    def since(version):
        state = table.state()
        with monkeypatch.context() as patch:
            patch.delattr(segment_module.pq, "ParquetFile")
            found = find_changes(table, version, state)
        return "all" if found.is_everything else [n - FIRST for n in found.buckets.numbers()]

    return since


def delete(table, host):
    def matches(batch):
        return pa.array([one == host for one in batch.column(0).to_pylist()])

    return table.delete(matches, ["host"])[0]


def test_nothing_changed_where_nothing_happened(table, hours):
    assert hours(table.state().version) == []


def test_what_is_appended_changed_its_own_buckets(table, hours):
    put(table, [(61, "a", 1.0), (600, "c", 1.0)])
    assert hours(2) == [1, 10]


def test_what_is_deleted_changed_every_bucket_of_its_segment(table, hours):
    delete(table, "b")
    assert hours(2) == [0, 1, 5]


def test_what_is_replaced_changed_what_was_there_and_what_is_there_now(table, hours):
    put(table, [(60, "a", 9.0)], overlap="replace")
    assert {1} <= {*hours(2)} <= {0, 1, 5}


def test_a_segment_that_went_changed_what_it_held(table, hours):
    put(table, [(600, "c", 1.0)])
    delete(table, "c")
    assert hours(3) == [10]


def test_a_restore_changed_what_comes_back_and_what_goes(table, hours):
    put(table, [(600, "c", 1.0)])
    delete(table, "b")
    table.restore(2)
    assert hours(4) == [0, 1, 5, 10]


def test_a_compaction_changed_nothing_and_what_follows_it_is_still_found(table, hours):
    put(table, [(600, "b", 1.0)])
    state = table.state()
    stage = Stage(table.storage)
    inputs = list(state.segments)
    batches = [rows.batch for one in inputs for rows in read_rows(table.storage, state, one)]
    stage.write_table(pa.Table.from_batches(batches), state.schema, state.spec)
    replace_segments(table, SegmentRewrite(state, inputs), stage.staged)
    assert hours(3) == []
    delete(table, "b")
    assert hours(3) == [0, 1, 5, 10]


def test_a_sidecar_that_is_gone_counts_as_all_from_the_first_to_the_last(table, hours):
    put(table, [(600, "c", 1.0), (720, "c", 1.0)])
    for one in table.state().segments:
        table.storage.delete(one.coverage_path)
    assert hours(2) == [10, 11, 12]
    delete(table, "b")
    assert hours(3) == [0, 1, 2, 3, 4, 5]


def test_versions_that_expired_are_no_reason_to_find_less(table, hours):
    put(table, [(600, "c", 1.0)])
    delete(table, "a")
    delete(table, "c")
    vacuum(table, grace_s=0, dry_run=False, allow_short_grace=True)
    assert table.state().oldest > 2
    assert hours(2) == [0, 1, 2, 3, 4, 5, 10]


def test_T05_a_version_that_never_was_is_everything_and_a_lost_one_is_corruption(table, hours):
    assert hours(99) == "all"
    put(table, [(600, "c", 1.0)])
    put(table, [(600, "c", 1.0)])
    state = table.state()
    table.storage.delete("_log/00000000000000000003.json")
    with pytest.raises(Corruption) as raised:
        find_changes(table, 2, state)
    assert raised.value.facts["path"] == "_log/00000000000000000003.json"


def test_a_new_column_changes_nothing_and_a_renamed_one_everything(table, hours):
    more = pa.table(
        {
            "ts": pa.array([JUNE_US], pa.timestamp("us")),
            "host": ["a"],
            "value": [1.0],
            "unit": ["s"],
        }
    )
    table.append(more.to_reader(), AppendOptions(evolve=True))
    assert hours(2) == [0]

    def renamed(spec, schema: Schema):
        return spec, schema.rename_column("value", "old_value")

    table.alter("rename", renamed)
    assert hours(2) == "all"
    assert hours(4) == []


def test_an_expired_past_and_changed_columns_are_everything(table, hours):
    table.alter("rename", lambda spec, schema: (spec, schema.rename_column("value", "old_value")))
    delete(table, "a")
    delete(table, "b")
    vacuum(table, grace_s=0, dry_run=False, allow_short_grace=True)
    assert table.state().oldest > 2
    assert hours(2) == "all"


@pytest.mark.parametrize(
    ("held_s", "every_s", "buckets", "windows"),
    [
        (3600, 3600, [0, 5], [0, 5]),
        (3600, 900, [1], [4, 5, 6, 7]),
        (3600, 86_400, [-1, 23, 24], [-1, 0, 1]),
        (3600, 1500, [1], [2, 3, 4]),
        (1, 60, [59, 60], [0, 1]),
    ],
)
def test_windows_of_another_width_are_those_that_meet_the_buckets(
    held_s, every_s, buckets, windows
):
    found = convert_buckets(
        Buckets.from_numbers(pa.array(buckets).to_numpy()), Bucket(held_s), Bucket(every_s)
    )
    assert found.numbers().tolist() == windows
