"""Rounds of care: tables stay small, and what fails is reported and tried again later."""

from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from fixtures.year import YearOfCare
from thermocline.care.rounds import RetryTimes
from thermocline.errors import NotFound


@pytest.fixture
def year(tmp_path):
    made = YearOfCare(tmp_path / "lake", retention="4d")
    yield made
    made.close()


def test_weeks_of_untouched_running_leave_a_table_of_bounded_size(year):
    checkups = {day: year.check(day) for day in year.live(16, flushes=10, rounds=1)}
    early, late = checkups[7], checkups[15]
    assert late.failed == 0
    assert late.rows == early.rows  # four days and what the last round has not removed yet
    assert late.segments <= early.segments + 10
    assert late.files <= early.files + 80
    assert late.log_bytes <= early.log_bytes * 2
    assert year.table.fsck().is_sound
    oldest = year.table.history().column("version").to_pylist()[-1]
    assert oldest > 1
    with pytest.raises(NotFound, match="expired"):
        year.table.to_arrow(at=1)


def test_the_rows_are_the_same_before_and_after_care(year):
    list(year.live(2, flushes=12, rounds=1))
    asked = "select count(*), sum(n), min(ts), max(ts) from readings"
    before, segments = year.lake.sql(asked).to_pylist(), year.check(0).segments
    year.now += timedelta(hours=2)
    done = list(year.care.run())
    assert {event.state for event in done} <= {"done", "nothing"}
    assert year.lake.sql(asked).to_pylist() == before
    assert year.check(0).segments < segments
    assert list(year.care.run()) == []


def test_the_sums_count_every_table(year):
    list(year.live(1, flushes=4, rounds=1))
    sums = year.care.sums()
    assert sums.tables >= 1
    assert sums.rows >= 80
    assert sums.segments >= 1


def test_a_retention_that_would_delete_every_row_is_told_and_the_other_jobs_run(year):
    list(year.live(2, flushes=12, rounds=1))
    year.now += timedelta(days=60)
    found = {event.job: event for event in year.care.run() if event.table == "readings"}
    assert found["retain"].state == "failed"
    assert found["compact"].state == "done"
    assert "retain" not in {event.job for event in year.care.run() if event.table == "readings"}


def test_D01_a_damaged_table_is_named_and_the_care_for_others_goes_on(year):
    list(year.live(2, flushes=12, rounds=1))
    damaged = year.lake.create_table("a_first", time_column="ts", bucket="1h")
    damaged.append(pa.table({"ts": pa.array([datetime(2024, 6, 1)], pa.timestamp("us"))}))
    path = Path(damaged.root(), "_log", f"{damaged.version():020d}.json")
    whole = path.read_bytes()
    year.now += timedelta(hours=2)
    path.write_bytes(whole.replace(b"append", b"appenf"))
    found = list(year.care.run())
    failed = {(event.job, event.table) for event in found if event.state == "failed"}
    assert failed == {(job, "a_first") for job in ("retain", "compact", "vacuum")}
    assert all(path.name in event.error for event in found if event.state == "failed")
    assert ("compact", "readings", "done") in {(one.job, one.table, one.state) for one in found}
    path.write_bytes(whole)
    cleared = [one for one in year.care.run() if one.table == "a_first"]
    assert {(one.job, one.state) for one in cleared} >= {("compact", "nothing")}
    assert [one for one in year.care.run() if one.table == "a_first"] == []


def test_a_failing_task_waits_longer_each_time_up_to_an_hour():
    now = [0.0]
    times = RetryTimes(lambda: now[0])
    waits = []
    for _ in range(9):
        times.note("t", "compact", "x", has_failed=True)
        began = now[0]
        while not times.is_due("t", "compact", "x"):
            now[0] += 10
        waits.append(now[0] - began)
    assert waits[:3] == [60, 120, 240]
    assert waits[-1] == 3_600
    times.note("t", "compact", "x", has_failed=False)
    assert times.is_due("t", "compact", "x")
