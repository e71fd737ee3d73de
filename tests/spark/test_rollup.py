"""Rollups are declared, computed where their source changed, and committed once."""

import decimal
import shutil
from dataclasses import replace
from datetime import date

import pyarrow as pa
import pytest

from fixtures.rollups import (
    JUNE_US,
    computed_here,
    expected,
    found,
    is_same,
    metrics,
    put,
    rows_of,
    run_here,
    site_at,
)
from thermocline.cold.care.fsck import fsck
from thermocline.cold.change.delete import match_every_row
from thermocline.cold.change.replace_windows import RefillOvertaken, replace_windows
from thermocline.cold.segment import parquet as segment_module
from thermocline.errors import Conflict, Invalid, NotFound, Overloaded, ThermoclineError
from thermocline.format.coverage import Buckets
from thermocline.format.schema import create_schema
from thermocline.pipeline.rollup import job as rollup_module
from thermocline.pipeline.rollup.job import (
    RollupJob,
    ensure_target,
    find_due,
    order_by_source,
    plan_recompute,
)
from thermocline.pipeline.rollup.kernel import RollupKernel
from thermocline.pipeline.rollup.spec import parse_rollup, rollup
from thermocline.pipeline.run.job import ignore_progress
from thermocline.pipeline.run.workspace import JobWorkspace

HOURLY = rollup(
    "hourly",
    "metrics",
    "1h",
    by=["host"],
    aggregates={"n": "count(*)", "total": "sum(value)", "mean": "avg(value)"},
)
DAILY = rollup("daily", "hourly", "1d", aggregates={"n": "sum(n)", "hours": "count(*)"})
ROWS = [(0, "a", 1.0), (1, "a", 2.0), (1, "b", 4.0), (70, "a", 8.0), (1500, "b", 16.0)]


@pytest.fixture
def site(tmp_path):
    with site_at(tmp_path / "lake") as made_site:
        yield made_site


@pytest.fixture
def source(site):
    table = metrics(site)
    put(table, ROWS)
    return table


def is_right(site, one, source="metrics"):
    return is_same(expected(rows_of(site.table(source)), one), found(site.table(one.name), one))


# On Spark.


def test_a_job_computes_what_changed_and_nothing_else_and_then_is_not_due(site, source, spark):
    job = RollupJob([DAILY, HOURLY])
    done = {}
    for task in job.due(site):
        done[task.table] = job.run(site, task, lambda: spark, ignore_progress)
    assert list(done) == ["hourly", "daily"]
    assert done["hourly"].numbers == {"windows": 3, "segments_read": 1, "rows": 4}
    assert is_right(site, HOURLY)
    assert is_right(site, DAILY, "hourly")
    assert list(job.due(site)) == []
    put(source, [(75, "c", 1.0)])
    (task,) = job.due(site)
    assert (task.table, task.numbers["windows"]) == ("hourly", 1)
    again = job.run(site, task, lambda: spark, ignore_progress)
    assert again.numbers == {"windows": 1, "segments_read": 2, "rows": 2}
    assert is_right(site, HOURLY)
    assert fsck(site.table("hourly")).findings == ()


def test_a_task_that_fails_commits_nothing_leaves_nothing_and_says_why(site, source, spark):
    job = RollupJob([HOURLY])
    (task,) = job.due(site)
    (segment,) = source.state().segments
    source.storage.delete(segment.path)
    with pytest.raises(ThermoclineError) as caught:
        job.run(site, task, lambda: spark, ignore_progress)
    assert segment.path in str(caught.value)
    target = site.table("hourly")
    assert target.state().version == 1
    assert not list(target.storage.list("data"))


# What is due, without Spark.


def test_what_is_due_is_found_without_opening_a_file_and_changes_nothing(site, source, monkeypatch):
    monkeypatch.delattr(segment_module.pq, "ParquetFile")
    (task,) = RollupJob([HOURLY]).due(site)
    assert task.why == "every window: it was never computed"
    assert site.tables() == ["metrics"]


def test_a_window_whose_source_is_empty_now_disappears(site, source):
    run_here(site, HOURLY)
    source.delete(match_every_row, [])
    run_here(site, HOURLY)
    assert rows_of(site.table("hourly")) == []
    assert not site.table("hourly").coverage()[1].whole


def test_late_rows_recompute_their_own_window_from_the_segments_that_meet_it(site, source):
    run_here(site, HOURLY)
    put(source, [(1501, "b", 1.0)])
    put(source, [(3, "z", 1.0)])
    run_here(site, HOURLY)
    put(source, [(2, "a", 5.0)])
    work, wish = plan_recompute(find_due(site, HOURLY))
    assert len(wish.windows) == 1
    (piece,) = work.pieces
    assert len(piece.segments) == 3  # the first, which has all hours, and the two in this hour
    assert run_here(site, HOURLY) == wish.windows
    assert is_right(site, HOURLY)


def test_pieces_cut_small_give_the_same_answer(site, source, monkeypatch):
    for minute in range(0, 600, 40):
        put(source, [(minute, "a", minute / 4), (minute + 30, "b", 1.0)])
    monkeypatch.setattr(rollup_module, "ROWS_PER_PIECE", 3)
    assert len(plan_recompute(ensure_target(site, HOURLY))[0].pieces) > 3
    run_here(site, HOURLY)
    assert is_right(site, HOURLY)


def test_a_source_put_back_from_a_copy_is_computed_anew_though_its_version_is_the_same(
    site, source, tmp_path
):
    shutil.copytree(site.root, tmp_path / "copy")
    put(source, [(5, "a", 100.0)])
    run_here(site, HOURLY)
    folder = source.storage.root
    shutil.rmtree(folder)
    shutil.copytree(folder.replace(site.root, str(tmp_path / "copy")), folder)
    with JobWorkspace(site.root) as anew:
        put(anew.table("metrics"), [(600, "b", 1.0)])
        run_here(anew, HOURLY)
        assert is_right(anew, HOURLY)


def test_what_the_targets_own_retention_took_does_not_come_back(site, source):
    run_here(site, HOURLY)
    target = site.table("hourly")
    target.alter("set retention", lambda spec, schema: (replace(spec, retention="1d"), schema))
    target.retain(yes=True)
    assert find_due(site, HOURLY) is None
    put(source, [(5, "a", 1.0)])
    assert find_due(site, HOURLY) is None
    assert rows_of(target) == []


def test_two_runs_at_once_make_one_of_two_answers_never_a_mixture(site, source):
    run_here(site, HOURLY)
    put(source, [(5, "a", 1.0)])
    slow = find_due(site, HOURLY)
    work, wish = plan_recompute(slow)
    staged = computed_here(work)
    put(source, [(400, "a", 1.0)])
    run_here(site, HOURLY)
    with pytest.raises(RefillOvertaken):
        replace_windows(slow.target, staged, wish)
    assert is_right(site, HOURLY)


def test_other_aggregates_are_computed_for_every_window_in_one_commit(site, source):
    run_here(site, HOURLY)
    before = site.table("hourly").state()
    other = rollup(
        "hourly",
        "metrics",
        "1h",
        by=["host"],
        aggregates={"top": "max(value)", "n": "count(value)"},
    )
    assert "declaration changed" in find_due(site, other).task.why
    run_here(site, other)
    after = site.table("hourly").state()
    assert after.version == before.version + 1
    assert list(after.schema.by_name) == ["ts", "host", "top", "n"]
    assert is_right(site, other)
    assert len(rows_of(site.table("hourly"), before.version)) == 4
    assert find_due(site, other) is None
    run_here(site, HOURLY)
    assert is_right(site, HOURLY)
    assert fsck(site.table("hourly")).findings == ()


def test_other_windows_or_groups_need_another_name(site, source):
    run_here(site, HOURLY)
    for change in ({"every": "2h"}, {"by": []}):
        options = {"every": "1h", "by": ["host"], **change}
        other = rollup("hourly", "metrics", aggregates={"n": "count(*)"}, **options)
        with pytest.raises(Invalid, match="cannot change"):
            find_due(site, other)
    taken = rollup("metrics2", "metrics", "1h", aggregates={"n": "count(*)"})
    metrics(site, "metrics2")
    with pytest.raises(Conflict):
        find_due(site, taken)


def test_a_source_without_columns_or_without_rows_is_not_due(site):
    table = metrics(site)
    assert find_due(site, HOURLY) is None
    put(table, ROWS)
    table.delete(match_every_row, [])
    assert find_due(site, HOURLY) is None
    with pytest.raises(NotFound):
        find_due(site, rollup("x", "nothing", "1h", aggregates={"n": "count(*)"}))


def test_rollups_come_after_what_they_are_made_of_and_never_of_each_other():
    one = rollup("one", "two", "1h", aggregates={"n": "count(*)"})
    two = rollup("two", "metrics", "1h", aggregates={"n": "count(*)"})
    assert order_by_source([one, two]) == [two, one]
    with pytest.raises(Invalid, match="each other"):
        order_by_source([one, rollup("two", "one", "1h", aggregates={"n": "count(*)"})])
    with pytest.raises(Invalid, match="same name"):
        order_by_source([one, one])


# Declarations.


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"evry": "1h"}, "did you mean every"),
        ({"aggregates": {}}, "at least one"),
        ({"aggregates": {"x": "value"}}, "invalid aggregate"),
        ({"aggregates": {"x": "sum(value) + 1"}}, "invalid aggregate"),
        ({"aggregates": {"x": "sum(*)"}}, "for count"),
        ({"aggregates": {"x": "approx_percentile(value, 0.5)"}}, "did you mean percentile"),
        ({"aggregates": {"x": "percentile(value)"}}, "needs a share"),
        ({"aggregates": {"x": "percentile(value, 95)"}}, "out of range"),
        ({"aggregates": {"x": "avg(value, 0.5)"}}, "only percentile"),
        ({"every": "1 month"}, "the duration cannot be read"),
        ({"every": "2d"}, "out of range"),
        ({"by": "host"}, "list of columns"),
        ({"name": "metrics"}, "name of a rollup"),
        ({"name": "no good"}, "name of a rollup"),
        ({"where": "ts > now()"}, "depends on when"),
        ({"source": None}, "lacks settings"),
    ],
)
def test_a_declaration_that_cannot_be_right_says_why(change, said):
    entry = {
        "name": "cpu_1h",
        "source": "metrics",
        "every": "1h",
        "aggregates": {"n": "count(*)"},
    } | change
    entry = {name: value for name, value in entry.items() if value is not None}
    with pytest.raises(Invalid) as caught:
        parse_rollup(entry)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"aggregates": {"x": "sum(host)"}}, Invalid, "sum needs numbers"),
        ({"aggregates": {"x": "sum(valu)"}}, NotFound, "valu"),
        ({"aggregates": {"host": "count(*)"}, "by": ["host"]}, Invalid, "used twice"),
        ({"aggregates": {"TS": "count(*)"}}, Invalid, "used twice"),
        ({"aggregates": {"n": "count(*)"}, "by": ["value"]}, Invalid, "group by"),
        ({"aggregates": {"n": "count(*)"}, "by": ["nobody"]}, NotFound, "nobody"),
        ({"aggregates": {"n": "count(*)"}, "where": "valu > 1"}, NotFound, "valu"),
        ({"aggregates": {"n": "count(*)"}, "where": "value +"}, Invalid, ""),
        ({"aggregates": {"n": "count(*)"}, "where": "(select 1) = 1"}, Invalid, ""),
    ],
)
def test_what_does_not_suit_the_source_is_told_before_anything_is_made(
    site, source, options, error, said
):
    one = rollup("x", "metrics", "1h", **options)
    with pytest.raises(error) as caught:
        ensure_target(site, one)
    assert said in str(caught.value)
    assert site.tables() == ["metrics"]


def test_a_declaration_is_the_same_however_it_is_written():
    entry = {"name": "a", "source": "m", "every": "60m", "aggregates": {"n": "COUNT( * )"}}
    other = rollup("a", "m", "1h", aggregates={"n": "count(*)"})
    assert parse_rollup(entry) == other
    assert parse_rollup(entry).digest == other.digest
    assert other.digest != rollup("a", "m", "1h", aggregates={"n": "count(x)"}).digest


# The kernel.


def test_every_aggregate_of_every_kind_is_exact():
    rows = pa.table(
        {
            "ts": pa.array([1, 3_599_999_999_999, 3, 3_600_000_000_001, -1], pa.timestamp("ns")),
            "host": pa.array(["a", "b", None, "a", "a"]).dictionary_encode(),
            "whole": pa.array([2**53, 1, 1, None, 5], pa.int64()),
            "money": pa.array([decimal.Decimal("0.10")] * 5),
            "day": pa.array([date(2024, 1, n) for n in (5, 4, 3, 2, 1)]),
            "when": pa.array([5, 4, 3, 2, 1], pa.timestamp("ns", tz="Europe/Berlin")),
        }
    )
    one = rollup(
        "r",
        "m",
        "1h",
        aggregates={
            "sum": "sum(whole)",
            "money": "sum(money)",
            "first": "first(day)",
            "last": "last(whole)",
            "low": "min(when)",
            "hosts": "count(distinct host)",
            "top": "max(host)",
            "mid": "median(whole)",
        },
    )
    kernel = RollupKernel(one, create_schema(rows.schema, "ts"), "ts")
    made_rows = kernel.aggregate(rows.to_batches(), Buckets.from_range(-1, 2)).to_pylist()
    assert [row["ts"].value for row in made_rows] == [-3_600_000_000_000, 0, 3_600_000_000_000]
    before, middle, after = made_rows
    assert (middle["sum"], middle["money"]) == (2**53 + 2, decimal.Decimal("0.30"))
    assert (middle["first"], middle["last"]) == (date(2024, 1, 5), 1)
    assert (middle["low"].value, middle["hosts"], middle["top"]) == (3, 2, "b")
    assert (before["mid"], after["mid"], after["last"]) == (5.0, None, None)
    only = kernel.aggregate(rows.to_batches(), Buckets.from_range(1, 2)).to_pylist()
    assert only == [after]


def test_the_order_of_rows_decides_nothing():
    one = rollup("r", "m", "1h", aggregates={"f": "first(v)", "l": "last(v)", "s": "sum(v)"})
    rows = pa.table({"ts": pa.array([0, 0, 0], pa.timestamp("us")), "v": [1e16, 1.0, -1e16]})
    kernel = RollupKernel(one, create_schema(rows.schema, "ts"), "ts")
    answers = [
        kernel.aggregate(rows.take(order).to_batches(), Buckets.from_range(0, 1)).to_pylist()
        for order in ([0, 1, 2], [2, 1, 0], [1, 0, 2])
    ]
    assert answers[0] == answers[1] == answers[2]


def test_a_sum_that_does_not_fit_is_refused_never_wrapped():
    one = rollup("r", "m", "1h", aggregates={"s": "sum(v)"})
    rows = pa.table({"ts": pa.array([JUNE_US] * 2, pa.timestamp("us")), "v": [2**62, 2**62]})
    kernel = RollupKernel(one, create_schema(rows.schema, "ts"), "ts")
    hour = JUNE_US // 3_600_000_000
    with pytest.raises(Overloaded):
        kernel.aggregate(rows.to_batches(), Buckets.from_range(hour, hour + 1))
