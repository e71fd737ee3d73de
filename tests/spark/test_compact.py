"""Compaction: the same rows in fewer files, whoever writes, deletes, reads or dies meanwhile."""

import decimal
import os
import signal
import subprocess
import sys
import textwrap
from datetime import date
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thermocline import connect
from thermocline.cold.care.fsck import fsck
from thermocline.cold.care.pin import pin_version
from thermocline.cold.care.vacuum import vacuum
from thermocline.cold.change.append import AppendOptions
from thermocline.cold.change.delete import match_every_row
from thermocline.cold.compact import merge as merging
from thermocline.cold.compact.merge import Slice, merge, sort_indices, without_segments
from thermocline.cold.compact.plan import (
    CompactionGroup,
    CompactionLimits,
    live_rows,
    plan_groups,
    plan_slices,
)
from thermocline.cold.compact.rewrite import compact, merge_here
from thermocline.cold.segment.row_digest import digest_rows
from thermocline.cold.segment.write_target import WriteTarget
from thermocline.errors import Conflict, Corruption, Unavailable
from thermocline.format.bucket import Bucket
from thermocline.format.instant import TimeNs
from thermocline.format.log.action import Segment, TableSpec
from thermocline.format.log.conflict import TimeWindow
from thermocline.pipeline.compact.job import CompactJob, report_merges, spark_kernel
from thermocline.pipeline.run.job import ignore_progress
from thermocline.pipeline.run.workspace import JobWorkspace

JUNE_US = 1_717_200_000_000_000
MINUTE_US = 60_000_000
DAY_NS = 86_400 * 10**9
SPEC = TableSpec("", "ts", Bucket(60), ("device",), "allow")
SMALL = CompactionLimits(inputs_min=4)


def rows(first, count=10, devices=("b", "a", "c"), value=None):
    """Return one row a minute, the devices in turn."""
    minutes = range(first, first + count)
    return pa.table(
        {
            "ts": pa.array([JUNE_US + m * MINUTE_US for m in minutes], pa.timestamp("us", "UTC")),
            "device": [devices[m % len(devices)] for m in minutes],
            "value": [float(m if value is None else value) for m in minutes],
        }
    )


@pytest.fixture
def site(tmp_path):
    """A lake with a table of readings in six small segments."""
    connect(tmp_path / "lake").close()
    with JobWorkspace(tmp_path / "lake") as made:
        table = made.ensure_table("readings", SPEC)
        for part in range(6):
            append(table, rows(part * 5))
        yield made


@pytest.fixture
def table(site):
    return site.table("readings")


def append(table, data, **options):
    return table.append(data.to_reader(), AppendOptions(**options))


def content(table, at=None):
    return digest_rows(table.read(table.state(at), None))


def ids(table):
    return [segment.segment_id for segment in table.state().segments]


def all_of(table, kernel=merge_here, limits=SMALL):
    """Compact all segments of a table."""
    return compact(table, ids(table), kernel, limits, ignore_progress)


def assert_sound(table):
    assert not [found for found in fsck(table).findings if not found.is_harmless]


def unnamed(table):
    """Return the files of rows that no version has ever named."""
    named = set()
    for commit in table.commits():
        for action in commit.actions:
            if hasattr(action, "segment"):
                named.add(action.segment.path)
    return {stored.path for stored in table.storage.list("data")} - named


# What is chosen.


def segment(name, day=0, size=1_000, rows=100, deleted=0, days=0.5, level=0):
    first = TimeNs(int(day * DAY_NS))
    return Segment(
        *(name, f"data/{name}", first, TimeNs(first + int(days * DAY_NS)), rows, size),
        *("", f"c/{name}", "", 1, level),
        deleted_count=deleted,
    )


def state_of(site, segments):
    from dataclasses import replace

    from thermocline.format.log.state import SegmentSet

    state = site.table("readings").state()
    return replace(state, segments=SegmentSet(changed={s.segment_id: s for s in segments}))


def chosen(site, segments, **limits):
    found = plan_groups(state_of(site, segments), CompactionLimits(**{"inputs_min": 4, **limits}))
    return [{s.segment_id for s in group.segments} for group in found]


def test_small_segments_of_one_day_are_chosen_once_there_are_enough(site):
    few = [segment(f"s{n}") for n in range(3)]
    assert chosen(site, few) == []
    assert chosen(site, [*few, segment("s3")]) == [{"s0", "s1", "s2", "s3"}]


def test_segments_that_are_large_in_bytes_or_rows_are_left_alone(site):
    small = [segment(f"s{n}") for n in range(4)]
    large = [segment("bytes", size=900), segment("rows", size=10, rows=900)]
    assert chosen(site, small + large, target_bytes=2_500, target_rows=1_000) == [
        {"s0", "s1", "s2", "s3", "bytes"}
    ]
    assert chosen(site, small + large, target_bytes=2_500, target_rows=100_000) == [
        {"s0", "s1", "s2", "s3", "bytes", "rows"}
    ]


def test_days_stay_apart_until_there_are_too_few_in_each(site):
    near = [segment(f"a{n}", day=1) for n in range(4)] + [segment(f"b{n}", day=2) for n in range(4)]
    assert chosen(site, near) == [{"a0", "a1", "a2", "a3"}, {"b0", "b1", "b2", "b3"}]
    sparse = [segment(f"d{n}", day=n) for n in range(4)]
    assert chosen(site, sparse) == [{"d0", "d1", "d2", "d3"}]


def test_a_segment_larger_than_all_that_would_join_it_is_not_written_again(site):
    new = [segment(f"s{n}", size=100) for n in range(4)]
    assert chosen(site, [*new, segment("old", size=500)]) == [{"s0", "s1", "s2", "s3"}]
    assert chosen(site, [*new, segment("old", size=300)]) == [{"s0", "s1", "s2", "s3", "old"}]


def test_a_segment_of_which_many_rows_are_deleted_is_chosen_whatever_its_size(site):
    big = segment("big", size=1 << 40, deleted=30)
    assert chosen(site, [big]) == [{"big"}]
    assert chosen(site, [big], deleted_share_max=0.5) == []


def test_a_group_has_limits_in_segments_and_in_bytes(site):
    many = [segment(f"s{n:02}") for n in range(10)]
    assert [len(found) for found in chosen(site, many, inputs_max=5)] == [5, 5]
    assert [len(found) for found in chosen(site, many, bytes_max=4_999)] == [4, 4]


def test_rows_are_not_written_anew_for_ever_for_the_size_of_their_segments(site):
    assert chosen(site, [segment(f"s{n}", level=16) for n in range(9)]) == []


def test_repeated_compaction_moves_a_row_a_bounded_number_of_times(site):
    live, written, number = [], 0, 0
    for _ in range(400):
        live.append(segment(f"s{number}", size=100, rows=1))
        number += 1
        for group in list(plan_groups(state_of(site, live), CompactionLimits(inputs_min=4))):
            gone = {s.segment_id for s in group.segments}
            live = [s for s in live if s.segment_id not in gone]
            live.append(segment(f"s{number}", size=group.size_bytes, rows=group.rows))
            number += 1
            written += group.size_bytes
    assert len(live) < 40
    assert written / (400 * 100) < 9  # log2(400): each time a row moves, what is around it doubles


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(0, 20), st.integers(1, 500)),
        min_size=1,
        max_size=12,
    )
)
def test_slices_have_every_moment_exactly_once_and_about_the_rows_that_are_wanted(site, given_ones):
    made = [
        segment(f"s{n}", day=first, days=span, rows=count)
        for n, (first, span, count) in enumerate(given_ones)
    ]
    state = state_of(site, made)
    ordered = tuple(sorted(made, key=lambda one: one.ts_min))
    found = plan_slices(
        site.table("readings"), state, CompactionGroup(ordered), CompactionLimits(target_rows=100)
    )
    assert found[0].window.start is None
    assert found[-1].window.end is None
    for one, two in pairwise(found):
        assert one.window.end == two.window.start
        assert one.window.end is not None
    for piece in found:
        inside = {s.segment_id for s in made if piece.window.meets(s.ts_min, s.ts_max)}
        assert {s.segment_id for s in piece.segments} == inside


# What the kernel does.


def merged(table, limit=None, **how):
    state = table.state()
    target = WriteTarget(table.storage.root, state.spec, state.schema, "test")
    options = {} if limit is None else {"loaded_bytes_max": limit}
    return merge(target, without_segments(state), Slice(tuple(state.segments), **how), **options)


def read_back(table, staged):
    with table.storage.open_input(staged.path) as source:
        return pq.ParquetFile(source).read()


def test_rows_are_sorted_by_entity_and_then_by_time(table):
    (staged,) = merged(table).staged
    found = read_back(table, staged)
    assert found.num_rows == 60
    keys = list(zip(found["device"].to_pylist(), found["ts"].to_pylist(), strict=True))
    assert keys == sorted(keys)


def test_rows_too_far_apart_for_one_number_are_sorted_all_the_same():
    far = pa.array([2**62, -(2**62), 0, 5], pa.int64()).cast(pa.timestamp("us"))
    batch = pa.record_batch({"ts": far, "device": ["a", "b", "b", "a"]})
    assert sort_indices(batch, SPEC).tolist() == [3, 0, 1, 2]


@pytest.mark.parametrize("limit", [1, 300, 100_000])
def test_a_slice_that_is_too_large_becomes_several_segments_with_the_same_rows(table, limit):
    made = merged(table, limit)
    assert made.before == made.after == content(table)
    assert sum(staged.measured.row_count for staged in made.staged) == 60
    assert (len(made.staged) > 1) is (limit < 100_000)


def test_rows_of_one_moment_that_are_too_many_are_cut_by_their_files(site):
    table = site.ensure_table("moment", SPEC)
    for _ in range(4):
        append(table, pa.concat_tables([rows(1, 1)] * 50))
    made = merged(table, 2_000)
    assert len(made.staged) > 1
    assert made.before == made.after == content(table)


def test_what_a_slice_does_not_mean_is_not_in_it(table):
    middle = (JUNE_US + 20 * MINUTE_US) * 1_000
    early, late = (
        merged(table, window=TimeWindow(None, middle)),
        merged(table, window=TimeWindow(middle)),
    )
    assert early.before.rows > 0
    assert late.before.rows > 0
    assert early.before + late.before == content(table)


VALUES = {
    "text": (pa.string(), st.text(max_size=4)),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), st.sampled_from(["x", "y", "z"])),
    "large": (pa.large_string(), st.sampled_from(["long", "longer"])),
    "decimal32": (pa.decimal32(7, 2), st.decimals(-99, 99, places=2)),
    "decimal64": (pa.decimal64(15, 4), st.decimals(-99, 99, places=4)),
    "decimal": (pa.decimal128(20, 5), st.decimals(-99, 99, places=5)),
    "wide": (pa.decimal256(60, 1), st.decimals(-99, 99, places=1)),
    "nanos": (pa.timestamp("ns", "UTC"), st.integers(0, 2**60)),
    "day": (pa.date32(), st.dates(date(1970, 1, 1), date(2030, 1, 1))),
    "list": (pa.list_(pa.int64()), st.lists(st.integers(0, 9), max_size=3)),
    "struct": (pa.struct([("a", pa.int8())]), st.fixed_dictionaries({"a": st.integers(0, 9)})),
    "binary": (pa.binary(), st.binary(max_size=3)),
    "flag": (pa.bool_(), st.booleans()),
    "real": (pa.float64(), st.floats()),
}


COLUMNS = st.fixed_dictionaries(
    {
        name: st.lists(st.none() | values, min_size=4, max_size=4)
        for name, (_, values) in VALUES.items()
    }
)


def test_C10_C11_rows_say_the_same_after_and_their_types_are_the_same(site):
    numbered = iter(range(100))
    extra = pa.schema([pa.field(name, kind) for name, (kind, _) in VALUES.items()])

    @settings(max_examples=10)
    @given(st.lists(COLUMNS, min_size=2, max_size=3))
    def check(parts):
        table = site.ensure_table(f"kinds_{next(numbered)}", SPEC)
        for place, part in enumerate(parts):
            data = rows(place * 3, 4)
            for field in extra:
                data = data.append_column(field, pa.array(part[field.name], field.type))
            append(table, data)
        before, arrow = content(table), table.state().schema.arrow
        all_of(table)
        (made,) = table.state().segments
        assert content(table) == before
        assert table.state().schema.arrow == arrow
        with table.storage.open_input(made.path) as source:
            written = pq.read_schema(source)
        assert {f.name: f.type for f in extra} == {
            f.name: written.field(f.name).type for f in extra
        }

    check()


def test_C11_columns_that_were_added_renamed_and_widened_meanwhile_read_as_before(site):
    table = site.ensure_table("moving", SPEC)
    append(table, rows(0).append_column("n", pa.array([1] * 10, pa.int16())))
    table.alter("rename", lambda s, c: (s, c.rename_column("value", "reading")))
    table.alter("widen", lambda s, c: (s, c.widen_column("n", pa.int64())))
    table.alter("add", lambda s, c: (s, c.add_columns([pa.field("note", pa.string())])))
    later = rows(10).rename_columns(["ts", "device", "reading"])
    later = later.append_column("n", pa.array([2**40] * 10))
    append(table, later.append_column("note", pa.array(["x"] * 10)))
    before = content(table)
    all_of(table)
    assert content(table) == before
    assert_sound(table)


def test_C10_a_kernel_that_mixes_rows_up_commits_nothing(table, monkeypatch):
    before, version = content(table), table.state().version

    def mixed(batch, places):
        values = batch.column("value").take(pa.array(places[::-1]))
        return pa.record_batch(
            {"ts": batch["ts"].take(pa.array(places)), "device": batch["device"], "value": values}
        )

    monkeypatch.setattr(merging, "take_rows", mixed)
    with pytest.raises(Corruption):
        all_of(table)
    assert (content(table), table.state().version) == (before, version)
    assert not unnamed(table)


def test_C10_a_kernel_that_loses_a_slice_commits_nothing(table):
    version = table.state().version
    with pytest.raises(Corruption):
        all_of(table, lambda *given: merge_here(*given)[:-1], CompactionLimits(target_rows=20))
    assert table.state().version == version
    assert not unnamed(table)


# The job.


def test_a_table_is_compacted_when_it_is_due_and_then_no_more(site, table):
    job = CompactJob(SMALL, merge_here)
    before = content(table)
    (task,) = job.due(site)
    assert (task.table, task.numbers["segments"]) == ("readings", 6)
    done = job.run(site, task, None, ignore_progress)
    assert done.numbers["segments"] == 1
    assert table.state().totals.segments == 1
    assert content(table) == before
    assert list(job.due(site)) == []
    assert job.run(site, task, None, ignore_progress).version is None
    assert_sound(table)


def test_the_history_says_what_the_rows_say(table):
    before = content(table)
    done = all_of(table)
    assert table.log.commit(done.version).metrics["content"] == str(before)


def test_deleted_rows_are_purged(site, table):
    middle = (JUNE_US + 20 * MINUTE_US) * 1_000
    table.delete(match_every_row, (), TimeWindow(None, middle))
    before = content(table)
    for task in CompactJob(SMALL, merge_here).due(site):
        CompactJob(SMALL, merge_here).run(site, task, None, ignore_progress)
    assert content(table) == before
    assert sum(s.row_count for s in table.state().segments) == before.rows
    assert not any(s.deletes for s in table.state().segments)


def killed(site, at):
    """Compact in another process that kills itself with -9 at a point; return when it is dead."""
    program = f"""
        import os, signal
        from thermocline.pipeline.run.workspace import JobWorkspace
        from thermocline.cold.compact.rewrite import compact, merge_here
        from thermocline.cold.compact.plan import CompactionLimits
        from thermocline.pipeline.run.job import ignore_progress
        from thermocline.cold.compact import rewrite as module
        die = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        table = JobWorkspace({site.root!r}).table("readings")
        ids = [s.segment_id for s in table.state().segments]
        kernel, rewrite = merge_here, module.replace_segments
        if {at!r} == "output":
            kernel = lambda *given: (merge_here(*given), die())
        if {at!r} == "commit":
            module.replace_segments = lambda *given: (rewrite(*given), die())
        compact(table, ids, kernel, CompactionLimits(), ignore_progress)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=False)
    assert done.returncode == -signal.SIGKILL


def test_C01_a_crash_before_the_commit_leaves_orphans_only_and_the_next_one_sweeps_them(
    site, table
):
    before, version = content(table), table.state().version
    killed(site, "output")
    assert (content(table), table.state().version) == (before, version)
    assert unnamed(table)
    assert_sound(table)
    all_of(table)
    assert not unnamed(table)
    assert content(table) == before


def test_C02_after_a_crash_behind_the_commit_a_vacuum_takes_the_inputs(site, table):
    before = content(table)
    inputs = {segment.path for segment in table.state().segments}
    killed(site, "commit")
    assert table.state().totals.segments == 1
    assert content(table) == before
    assert not inputs & {segment.path for segment in table.state().segments}
    compact(table, ids(table), merge_here, SMALL, ignore_progress)  # the pin of the dead one goes
    done = vacuum(table, grace_s=0, dry_run=False, allow_short_grace=True)
    assert inputs <= set(done.files)
    assert content(table) == before
    assert_sound(table)


def test_C02_what_a_dead_compactor_committed_is_kept_for_the_versions_that_have_it(site, table):
    killed(site, "commit")
    made = table.state().version
    before = content(table)
    append(table, rows(100))
    # Work of another kind, which leaves the dead one's pin alone, replaces what it committed.
    compact(table, ids(table), merge_here, SMALL, ignore_progress, "erase")
    all_of(table)
    assert not list(table.storage.list("_pins"))
    assert content(table, int(made)) == before


def test_C03_files_that_cannot_be_deleted_are_tried_again_and_nothing_else_is_lost(
    table, monkeypatch
):
    before = content(table)
    inputs = {segment.path for segment in table.state().segments}
    all_of(table)
    delete, refused = table.storage.delete, []

    def failing(path):
        if path in inputs and len(refused) < 2:
            refused.append(path)
            raise Unavailable("no", hint="later")
        delete(path)

    monkeypatch.setattr(table.storage, "delete", failing)
    for _ in range(3):
        try:
            vacuum(table, grace_s=0, dry_run=False, allow_short_grace=True)
            break
        except Unavailable:
            assert content(table) == before
    assert len(refused) == 2
    assert not inputs & {stored.path for stored in table.storage.list("data")}
    assert content(table) == before
    assert_sound(table)


def test_C04_a_flush_into_the_same_hours_survives_and_so_does_the_compaction(site, table):
    def meanwhile(*given):
        with connect(site.root) as lake:
            lake.table("readings").write(rows(0, 5, value=77))
            lake.flush("readings")
        return merge_here(*given)

    before = content(table)
    all_of(table, meanwhile)
    assert [c.operation for c in table.commits()][:2] == ["compact", "flush"]
    assert content(table) == before + digest_rows(rows(0, 5, value=77).to_batches())
    assert_sound(table)


def test_C05_of_two_compactors_one_gives_way_and_no_row_is_lost(table):
    before, outcome = content(table), []

    def second_first(*given):
        made = merge_here(*given)
        if not outcome:
            outcome.append(None)
            outcome[0] = all_of(table)
        return made

    first = all_of(table, second_first)
    assert outcome[0].version is not None
    assert first.version is None  # what it wanted to write anew has gone
    assert table.state().totals.segments == 1
    assert content(table) == before
    assert not unnamed(table)


def test_what_is_deleted_while_segments_are_merged_stays_deleted(table):
    calls = []

    def with_delete(*given):
        made = merge_here(*given)
        calls.append(1)
        if len(calls) == 1:
            table.delete(match_every_row, (), TimeWindow(None, (JUNE_US + 3 * MINUTE_US) * 1_000))
        return made

    all_of(table, with_delete)
    assert len(calls) == 2
    assert content(table).rows == 57
    assert table.state().totals.segments == 1
    assert not unnamed(table)


def test_a_compaction_that_others_are_always_ahead_of_gives_up_and_changes_nothing(table):
    def with_delete(*given):
        made = merge_here(*given)
        first = min(s.ts_min for s in table.state().segments if live_rows(s))
        last = max(s.ts_max for s in table.state().segments)
        gone = TimeWindow(last - len(calls) * MINUTE_US * 1_000, None)
        calls.append(first)
        table.delete(match_every_row, (), gone)
        return made

    calls = []
    with pytest.raises(Conflict):
        all_of(table, with_delete)
    assert "compact" not in {commit.operation for commit in table.commits()}
    assert not unnamed(table)


def test_C06_a_batch_that_is_too_much_is_tried_again_with_less(table):
    sizes = []

    def weak(target, state, pieces):
        sizes.append(sum(live_rows(s) for piece in pieces for s in piece.segments))
        if sizes[-1] > 20:
            raise Unavailable("killed", hint="take less")
        return merge_here(target, state, pieces)

    before = content(table)
    done = all_of(table, weak)
    assert sizes == [60, 30, 20]
    assert done.numbers["segments_before"] == 2
    assert content(table) == before
    assert_sound(table)


def test_C06_a_batch_that_is_always_too_much_fails_and_changes_nothing(table):
    def dead(*_):
        raise Unavailable("killed", hint="take less")

    version = table.state().version
    with pytest.raises(Unavailable):
        all_of(table, dead)
    assert table.state().version == version


def test_C06_after_a_compactor_was_killed_the_next_one_takes_half(site, table):
    killed(site, "output")
    seen = []

    def counting(target, state, pieces):
        seen.append(sum(len(piece.segments) for piece in pieces))
        return merge_here(target, state, pieces)

    all_of(table, counting)
    all_of(table, counting)
    assert seen[0] == 3
    assert seen[1] == 4  # the one that was made, and the three that were left


def test_C07_a_reader_of_an_old_version_reads_it_to_the_end(table):
    old = table.state()
    before = content(table)
    with pin_version(table, old.version):
        all_of(table)
        vacuum(table, grace_s=0, dry_run=False, allow_short_grace=True)
        assert digest_rows(table.read(old, None)) == before
    assert content(table) == before


def test_C08_a_compaction_whose_files_were_taken_away_is_not_committed(table):
    calls = []

    def robbed(*given):
        made = merge_here(*given)
        calls.append(1)
        if len(calls) == 1:
            for one in made:
                for staged in one.staged:
                    table.storage.delete(staged.path)
        return made

    before = content(table)
    with pytest.raises(Exception, match="missing"):
        all_of(table, robbed)
    assert content(table) == before
    assert_sound(table)


def test_C08_the_inputs_of_a_compaction_under_way_are_not_vacuumed(table):
    def with_vacuum(*given):
        # Somebody replaces the inputs, and vacuums, while they are read.
        everything_again = all_of(table)
        assert everything_again.version is not None
        vacuum(table, grace_s=0, dry_run=False, allow_short_grace=True)
        return merge_here(*given)

    before = content(table)
    assert all_of(table, with_vacuum).version is None
    assert content(table) == before


# On Spark.


def test_spark_s_workers_merge_and_the_driver_commits_once(site, table, spark):
    before = content(table)
    job = CompactJob(CompactionLimits(inputs_min=4, target_rows=25))
    (task,) = job.due(site)
    told = []
    done = job.run(site, task, lambda: spark, lambda *what: told.append(what))
    assert done.numbers["segments"] == 3
    assert told == [("merging", 0, 3), ("merging", 3, 3)]
    assert content(table) == before
    assert table.state().version == done.version
    assert_sound(table)
    spans = sorted((s.ts_min, s.ts_max) for s in table.state().segments)
    assert all(one[1] < two[0] for one, two in pairwise(spans))


def killed_when_large(target, state, pieces, batches):
    """Merge as a worker does, and die as one that the kernel's out-of-memory killer chose."""
    if sum(live_rows(s) for piece in pieces for s in piece.segments) > 30:
        os.kill(os.getpid(), signal.SIGKILL)
    yield from report_merges(target, state, pieces, batches)


def test_C06_a_worker_that_is_killed_is_followed_by_a_smaller_batch(table, spark):
    before = content(table)
    done = all_of(table, spark_kernel(lambda: spark, killed_when_large))
    assert done.numbers["segments_before"] == 3
    assert content(table) == before
    assert not unnamed(table)
    assert_sound(table)


def test_an_error_of_a_worker_comes_back_as_it_was(table, spark):
    first = next(iter(table.state().segments))
    with open(f"{table.storage.root}/{first.path}", "r+b") as file:
        file.truncate(first.file_size - 1)
    with pytest.raises(Corruption) as raised:
        all_of(table, spark_kernel(lambda: spark))
    assert raised.value.facts["path"] == first.path


def test_exact_numbers_come_through_spark_as_they_were(site, spark):
    table = site.ensure_table("exact", SPEC)
    for place in range(3):
        data = rows(place * 10)
        exact = pa.array([decimal.Decimal("0.01") * place] * 10, pa.decimal128(20, 2))
        nanos = pa.array([1_717_200_000_000_000_001] * 10, pa.timestamp("ns"))
        append(table, data.append_column("exact", exact).append_column("nanos", nanos))
    before, schema = content(table), table.state().schema.arrow
    all_of(table, spark_kernel(lambda: spark))
    assert (content(table), table.state().schema.arrow) == (before, schema)


def damaged_file(table):
    """Flip a bit of a value in a live segment, and return its path."""
    segment = list(table.state().segments)[2]
    path = f"{table.storage.root}/{segment.path}"
    with open(path, "rb") as file:
        data = bytearray(file.read())
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(2)
    first = min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset)
    data[first + chunk.total_compressed_size - 4] ^= 1
    with open(path, "wb") as file:
        file.write(data)
    return segment.path


def test_D02_a_damaged_segment_is_not_compacted_and_is_not_sound_afterwards(table):
    version, path = table.state().version, damaged_file(table)
    with pytest.raises(Corruption, match="not those that were committed") as raised:
        all_of(table)
    assert raised.value.facts["path"] == path
    assert raised.value.facts["offset"] > 0
    assert table.state().version == version
    assert not unnamed(table)
    assert [f.path for f in fsck(table).findings if not f.is_harmless] == [path]


def test_D02_spark_does_not_compact_a_damaged_segment(spark, table):
    version, path = table.state().version, damaged_file(table)
    with pytest.raises(Exception, match="not those that were committed") as raised:
        all_of(table, spark_kernel(lambda: spark))
    assert path in str(raised.value)
    assert table.state().version == version
    assert not unnamed(table)
