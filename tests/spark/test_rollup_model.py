"""Whatever happens to a source and to its rollups, a run makes them what a full recompute gives."""

import shutil
import tempfile
from pathlib import Path

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fixtures.rollups import (
    JUNE_US,
    expected,
    found,
    is_same,
    metrics,
    put,
    rows_of,
    run_here,
    site_at,
)
from thermocline.cold.care.vacuum import vacuum
from thermocline.cold.change.delete import match_every_row
from thermocline.cold.change.replace_segments import SegmentRewrite, replace_segments
from thermocline.cold.segment.parquet import read_rows
from thermocline.cold.segment.stage import Stage
from thermocline.format.log.action import AddSegment, RemoveSegment, SetDeletes
from thermocline.format.log.conflict import TimeWindow
from thermocline.pipeline.rollup import changed_buckets as changed_module
from thermocline.pipeline.rollup import job as rollup_module
from thermocline.pipeline.rollup.changed_buckets import _CommitWalk
from thermocline.pipeline.rollup.spec import rollup

NS_PER_MINUTE = 60_000_000_000
HOURLY = rollup(
    "hourly",
    "metrics",
    "1h",
    by=["host"],
    aggregates={
        "n": "count(*)",
        "total": "sum(value)",
        "low": "min(value)",
        "oldest": "first(value)",
        "newest": "last(value)",
        "kinds": "count(distinct value)",
        "p90": "percentile(value, 0.9)",
        "spread": "stddev(value)",
    },
)
ODD = rollup(
    "odd",
    "metrics",
    "25m",
    aggregates={"n": "count(value)", "top": "max(value)"},
    where="value > 1",
)
DAILY = rollup(
    "daily", "hourly", "1d", aggregates={"n": "sum(n)", "total": "sum(total)", "hours": "count(*)"}
)
MINUTES = st.integers(-30, 200)
ROWS = st.lists(
    st.tuples(MINUTES, st.sampled_from("ab"), st.integers(0, 12).map(lambda n: n / 4)),
    min_size=1,
    max_size=6,
)


class Histories(RuleBasedStateMachine):
    """Any history of a source, of its rollups and of a rollup of a rollup."""

    @initialize()
    def begin(self):
        memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
        self.folder = tempfile.mkdtemp(prefix="thermocline-rollup-", dir=memory)
        self.site = site_at(self.folder)
        self.source = metrics(self.site)

    def teardown(self):
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)

    @rule(rows=ROWS)
    def append(self, rows):
        put(self.source, rows)

    @rule(rows=ROWS)
    def replace(self, rows):
        put(self.source, rows, overlap="replace")

    @rule(start=MINUTES, length=st.integers(1, 90), host=st.sampled_from("ab"))
    def delete(self, start, length, host):
        if self.source.state().schema.columns:
            self.source.delete(
                lambda batch: pa.array([h == host for h in batch.column(0).to_pylist()]),
                ["host"],
                _window(start, length),
            )

    @rule(before=MINUTES)
    def expire_rows(self, before):
        if self.source.state().schema.columns:
            self.source.delete(match_every_row, [], TimeWindow(None, _window(before, 0).start))

    @rule(data=st.data())
    def restore(self, data):
        state = self.source.state()
        versions = range(max(2, state.oldest), state.version + 1)
        if versions:
            self.source.restore(data.draw(st.sampled_from(versions)))

    @rule(data=st.data())
    def compact(self, data):
        segments = list(self.source.state().segments)
        if segments:
            some = data.draw(st.lists(st.sampled_from(range(len(segments))), min_size=1))
            compact(self.source, [segments[place] for place in sorted(set(some))])

    @rule()
    def forget_old_versions(self):
        vacuum(self.source, grace_s=0, dry_run=False, allow_short_grace=True)

    @rule(start=MINUTES, length=st.integers(1, 200))
    def delete_from_the_rollup(self, start, length):
        if "hourly" in self.site.tables():
            self.site.table("hourly").delete(match_every_row, [], _window(start, length))

    @rule(data=st.data())
    def restore_the_rollup(self, data):
        if "hourly" in self.site.tables():
            table = self.site.table("hourly")
            table.restore(data.draw(st.integers(1, table.state().version)))

    @precondition(lambda self: self.source.state().schema.columns)
    @rule()
    def run(self):
        for one in (HOURLY, ODD, DAILY):
            run_here(self.site, one)
            if one.name not in self.site.tables():
                assert not rows_of(self.source)
                continue
            rows = rows_of(self.site.table(one.source))
            rows = [row for row in rows if one is not ODD or row["value"] > 1]
            assert is_same(expected(rows, one), found(self.site.table(one.name), one)), one.name
            assert run_here(self.site, one) is None


def _window(start, length):
    first = JUNE_US * 1_000 + start * NS_PER_MINUTE
    return TimeWindow(first, first + length * NS_PER_MINUTE)


def compact(table, segments):
    """Write segments anew as one, as the compaction does."""
    state = table.state()
    stage = Stage(table.storage)
    batches = [rows.batch for one in segments for rows in read_rows(table.storage, state, one)]
    live = pa.Table.from_batches(batches)
    stage.write_table(live, state.schema, state.spec)
    replace_segments(table, SegmentRewrite(state, segments), stage.staged)


def test_a_rollup_is_what_a_full_recompute_would_give_whatever_happened_to_its_source():
    # What fails is not made smaller: that takes minutes, and nobody waits for it here.
    wanted = settings(max_examples=15, stateful_step_count=14, phases=[Phase.generate])
    run_state_machine_as_test(Histories, settings=wanted)


# Simpler designs, each of which is wrong after its shortest history.


def only_new_segments(walk, action):
    """Take only what was added for changed."""
    return walk._right_changed_buckets(action) if isinstance(action, AddSegment) else []


def only_buckets_that_emptied(walk, action):
    """Take the buckets that coverage lost for all that a delete changed."""
    if not isinstance(action, SetDeletes):
        return walk._right_changed_buckets(action)
    return [
        walk._segment_buckets(walk._find_segment(action.segment.segment_id))
        - walk._segment_buckets(action.segment)
    ]


def nothing_of_what_went(walk, action):
    """Forget segments that were removed."""
    return [] if isinstance(action, RemoveSegment) else walk._right_changed_buckets(action)


def only_by_the_number_of_rows(commit):
    """Take as many rows as before for the same rows."""
    rows = 0
    for action in commit.actions:
        if isinstance(action, AddSegment):
            rows += action.segment.row_count - action.segment.deleted_count
        elif isinstance(action, RemoveSegment):
            rows -= action.row_count - action.deleted_count
    return rows == 0


def delete_one_of_two(site, source):
    source.delete(lambda batch: pa.array([True, False]), [])


def delete_all(site, source):
    source.delete(match_every_row, [])


def replace_all(site, source):
    put(source, [(1, "a", 7.0), (2, "b", 8.0)], overlap="replace")


def delete_from_the_rollup(site, source):
    site.table("hourly").delete(match_every_row, [])


@pytest.mark.parametrize(
    ("place", "wrong", "history"),
    [
        ((_CommitWalk, "_changed_buckets"), only_new_segments, delete_all),
        ((_CommitWalk, "_changed_buckets"), only_buckets_that_emptied, delete_one_of_two),
        ((_CommitWalk, "_changed_buckets"), nothing_of_what_went, delete_all),
        ((changed_module, "_is_neutral"), only_by_the_number_of_rows, replace_all),
        (
            (rollup_module, "_last_refill"),
            lambda _, seen, key: seen.version,
            delete_from_the_rollup,
        ),
    ],
    ids=["new", "emptied", "went", "neutral", "own table"],
)
def test_simpler_designs_are_wrong_after_their_shortest_history(
    place, wrong, history, monkeypatch, tmp_path
):
    def is_right_after(folder):
        site = site_at(folder)
        source = metrics(site)
        put(source, [(1, "a", 1.0), (2, "b", 2.0)])
        run_here(site, HOURLY)
        history(site, source)
        run_here(site, HOURLY)
        return is_same(expected(rows_of(source), HOURLY), found(site.table("hourly"), HOURLY))

    assert is_right_after(tmp_path / "true")
    monkeypatch.setattr(
        _CommitWalk, "_right_changed_buckets", _CommitWalk._changed_buckets, raising=False
    )
    monkeypatch.setattr(*place, wrong)
    assert not is_right_after(tmp_path / "wrong")
