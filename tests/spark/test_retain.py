"""Retention as a job: over all tables that have one, never by a clock that is wrong."""

import time
from dataclasses import replace

import pyarrow as pa
import pytest

from thermocline import connect
from thermocline.cold.change.append import AppendOptions
from thermocline.cold.change.export_plan import create_entity_spec
from thermocline.errors import Invalid
from thermocline.format.bucket import Bucket
from thermocline.format.instant import NS_PER_S
from thermocline.format.log.action import TableSpec
from thermocline.pipeline.retain import RetainJob
from thermocline.pipeline.run.job import ignore_progress
from thermocline.pipeline.run.workspace import JobWorkspace

DAY_S = 86_400
NOW_S = 1_717_200_000
SPEC = TableSpec("", "ts", Bucket(60), overlap="allow", retention="10d")


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A lake with tables that keep ten days, and with others."""
    connect(tmp_path / "lake").close()
    with JobWorkspace(tmp_path / "lake") as made:
        for name in ("logs", "spans"):
            table = made.ensure_table(name, SPEC)
            for age in (30, 20, 11, 9, 1):
                append(table, age)
        append(made.ensure_table("kept", replace(SPEC, retention=None)), 500)
        made.ensure_table("people", create_entity_spec("people"))
        for name in made:
            at(made, name, NOW_S, monkeypatch)
        yield made


def at(site, name, now_s, monkeypatch):
    """Let a table's clock say another time."""
    monkeypatch.setattr(site.table(name).log, "_now_ns", lambda: now_s * NS_PER_S)


def append(table, *ages):
    """Append a row of each age, in days, in one segment."""
    times = pa.array([(NOW_S - age * DAY_S) * 10**6 for age in ages], pa.timestamp("us"))
    table.append(pa.table({"ts": times, "age": list(ages)}).to_reader(), AppendOptions())


def ages(site, name):
    table = site.table(name)
    found = (batch["age"].to_pylist() for batch in table.read(table.state(), ["age"]))
    return sorted(age for part in found for age in part)


def run(site, job):
    return {task.table: job.run(site, task, None, ignore_progress) for task in job.due(site)}


def test_rows_past_their_age_go_from_every_table_that_has_one(site):
    done = run(site, RetainJob())
    assert {name: one.numbers["rows"] for name, one in done.items()} == {"logs": 3, "spans": 3}
    assert (ages(site, "logs"), ages(site, "spans")) == ([1, 9], [1, 9])
    assert ages(site, "kept") == [500]
    assert list(RetainJob().due(site)) == []


def test_segments_that_are_too_old_as_a_whole_are_removed_and_others_hide_what_is(site):
    append(site.table("logs"), 15, 5)
    (task,) = [task for task in RetainJob().due(site) if task.table == "logs"]
    assert dict(task.numbers) == {"segments": 4, "whole": 3}
    run(site, RetainJob())
    assert ages(site, "logs") == [1, 5, 9]
    assert sorted(s.deleted_count for s in site.table("logs").state().segments) == [0, 0, 1]
    assert list(RetainJob().due(site)) == [], "the row that is hidden is not due again"


def test_space_comes_back_when_a_vacuum_is_asked_for(site, monkeypatch):
    files = len(list(site.table("logs").storage.list("data")))
    run(site, RetainJob())
    assert len(list(site.table("logs").storage.list("data"))) == files
    append(site.table("logs"), 0, 12)
    # The files are as old as their rows say, by the clock of an hour later than now.

    later_s = int(time.time()) + 2 * 3_600
    for name in ("logs", "spans"):
        at(site, name, later_s, monkeypatch)
    site.table("logs").alter("keep", lambda s, c: (replace(s, retention="36500d"), c))
    job = RetainJob(vacuum_grace_s=3_600, confirmed=frozenset({"spans"}))
    assert [task.table for task in job.due(site)] == ["spans"]
    done = run(site, job)["spans"]
    assert done.numbers["files"] > 0
    assert done.numbers["size_bytes"] > 0
    assert ages(site, "spans") == []


def test_C09_a_clock_that_jumped_ten_years_ahead_takes_nothing_and_is_told_of(site, monkeypatch):
    at(site, "logs", NOW_S + 3_650 * DAY_S, monkeypatch)
    tasks = {task.table: task for task in RetainJob().due(site)}
    with pytest.raises(Invalid, match="every row would be deleted"):
        RetainJob().run(site, tasks["logs"], None, ignore_progress)
    assert ages(site, "logs") == [1, 9, 11, 20, 30]
    RetainJob().run(site, tasks["spans"], None, ignore_progress)
    assert ages(site, "spans") == [1, 9]


def test_C09_somebody_who_confirms_it_for_a_table_means_that_table_alone(site, monkeypatch):
    for name in ("logs", "spans"):
        at(site, name, NOW_S + 3_650 * DAY_S, monkeypatch)
    job = RetainJob(confirmed=frozenset({"logs"}))
    tasks = {task.table: task for task in job.due(site)}
    job.run(site, tasks["logs"], None, ignore_progress)
    assert ages(site, "logs") == []
    with pytest.raises(Invalid):
        job.run(site, tasks["spans"], None, ignore_progress)
