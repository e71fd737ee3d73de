"""Running jobs: what is due, in order, one a table at a time, noted in SQL, HTTP and metrics."""

import json
import os
import re
import threading
import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from fixtures.api import serving
from thermocline import connect
from thermocline.cold.change.append import AppendOptions
from thermocline.cold.storage.local import LocalStorage
from thermocline.config import LakeSettings
from thermocline.errors import Invalid, NotFound, Unavailable
from thermocline.pipeline.run import runner as running
from thermocline.pipeline.run.clock import JobClock
from thermocline.pipeline.run.history import (
    BUSY,
    DONE,
    FAILED,
    NAME,
    NOTHING,
    TaskRecord,
    last_runs,
    master_address,
    write_record,
)
from thermocline.pipeline.run.job import Task, TaskResult
from thermocline.pipeline.run.lease import Lease
from thermocline.pipeline.run.runner import JOB_ORDER, Runner, order_jobs
from thermocline.pipeline.run.settings import PipelineSettings, ScheduleSettings
from thermocline.pipeline.run.workspace import JobWorkspace

START = datetime(2024, 6, 1, tzinfo=UTC)
WAIT_LIMIT_S = 60.0


def rows(*values):
    times = pa.array([START + timedelta(minutes=v) for v in values], pa.timestamp("us", "UTC"))
    return pa.table({"ts": times, "value": list(values)})


class Append:
    """A job that appends one row to every table it is told of; a table named bad fails."""

    def __init__(self, name, tables, look=None):
        self.name, self.tables, self.look = name, tables, look
        self.began = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def due(self, site):
        if self.look is not None:
            raise self.look
        return iter([Task(self.name, table, "asked for") for table in self.tables])

    def run(self, site, task, spark, tell):
        self.began.set()
        assert self.go_on.wait(WAIT_LIMIT_S)
        tell("appending", 0, 1)
        if task.table == "bad":
            raise Unavailable("no luck", hint="try", dsn="postgresql://me:s3cret@host/db")
        if task.table == "worse":
            raise RuntimeError("not an error of ours")
        if task.table == "idle":
            return TaskResult(None)
        state = site.table(task.table).append(rows(len(self.name)).to_reader(), AppendOptions())
        tell("appending", 1, 1)
        return TaskResult(state.version, {"rows": 1, "bytes": 7})


@pytest.fixture
def site(tmp_path):
    with connect(tmp_path / "lake") as lake:
        for name in ("good", "bad", "worse", "idle", "late"):
            lake.create_table(name, time_column="ts", bucket="1h")
    with JobWorkspace(tmp_path / "lake") as site:
        yield site


@pytest.fixture
def registered(monkeypatch):
    """Put jobs of this test in the place of the package's own."""

    def put(*jobs):
        known = {name: Append(name, []) for name in JOB_ORDER} | {job.name: job for job in jobs}
        loaders = {name: lambda *_, job=job: job for name, job in known.items()}
        monkeypatch.setattr(running, "_LOADERS", loaders)

    return put


def told(ran):
    return [(one.job, one.table, one.state) for one in ran]


def test_jobs_run_in_order_and_one_that_fails_keeps_no_other(site, registered):
    registered(
        Append("retain", ["good"]),
        Append("export", ["bad", "good", "worse", "idle"]),
        Append("compact", [], look=Unavailable("PostgreSQL is not there", hint="start it")),
    )
    ran = list(Runner(site).run())
    assert told(ran) == [
        ("export", "bad", FAILED),
        ("export", "good", DONE),
        ("export", "worse", FAILED),
        ("export", "idle", NOTHING),
        ("compact", "", FAILED),
        ("retain", "good", DONE),
    ]
    assert ran[1].version is not None
    assert ran[2].error.facts["why"] == "RuntimeError: not an error of ours"
    assert ran[4].error.message == "PostgreSQL is not there"


def test_what_is_due_is_told_without_doing_it_and_may_be_of_one_table(site, registered):
    registered(Append("export", ["good", "late"]), Append("retain", ["late"]))
    before = site.table("late").state().version
    runner = Runner(site)
    assert [(t.job, t.table) for t in runner.due()] == [
        ("export", "good"),
        ("export", "late"),
        ("retain", "late"),
    ]
    assert [t.job for t in runner.due(["retain", "export"], "LATE")] == ["export", "retain"]
    assert site.table("late").state().version == before
    assert NAME not in site.tables()


def test_a_job_that_is_none_is_refused_with_the_nearest(site):
    with pytest.raises(Invalid, match="unknown job") as refused:
        order_jobs(["compct"])
    assert "did you mean compact?" in refused.value.hint
    with pytest.raises(Invalid, match="needs arguments"):
        order_jobs(["erase"])
    assert (
        order_jobs([]) == list(JOB_ORDER) == order_jobs(["retain", "rollup", "export", "compact"])
    )


def test_a_table_that_another_job_has_is_left_alone_and_not_noted(site, registered):
    registered(Append("export", ["good", "late"]))
    storage = LocalStorage(site.catalog.root)
    with Lease(storage, "good", job="compact", holder="somebody"):
        ran = list(Runner(site).run())
    assert told(ran) == [("export", "good", BUSY), ("export", "late", DONE)]
    assert [row["table_name"] for row in last_runs(site.table(NAME))] == ["late"]


def test_S05_two_runners_at_once_on_one_table_do_its_job_one_at_a_time(site, registered, tmp_path):
    job = Append("export", ["good"])
    job.go_on.clear()
    registered(job)
    first = []
    thread = threading.Thread(target=lambda: first.extend(Runner(site).run()))
    thread.start()
    assert job.began.wait(WAIT_LIMIT_S)
    with JobWorkspace(tmp_path / "lake") as beside:
        assert told(Runner(beside).run()) == [("export", "good", BUSY)]
        job.go_on.set()
        thread.join()
        assert told(first) == [("export", "good", DONE)]
        assert told(Runner(beside).run()) == [("export", "good", DONE)]


def test_a_job_that_lost_its_lease_fails_and_commits_nothing(site, registered, monkeypatch):
    job = Append("export", ["good"])
    job.go_on.clear()
    registered(job)
    before = site.table("good").state().version
    first = []
    thread = threading.Thread(target=lambda: first.extend(Runner(site).run()))
    thread.start()
    assert job.began.wait(WAIT_LIMIT_S)
    storage = LocalStorage(site.catalog.root)
    # Its machine stood still for so long that another one took the table.
    storage.put("leases/good/00000000000000000002.json", b"{}")
    job.go_on.set()
    thread.join()
    assert told(first) == [("export", "good", FAILED)]
    assert "lease of this table was lost" in first[0].error.message
    assert site.table("good").state().version == before
    (row,) = last_runs(site.table(NAME))
    assert row["error_code"] == "conflict"


# The history.


def test_the_history_is_a_table_that_sql_reads_and_has_no_password(site, registered, tmp_path):
    registered(Append("export", ["bad", "good", "idle"]))
    list(Runner(site).run())
    with connect(tmp_path / "lake") as lake:
        found = lake.sql(
            "select job, table_name, state, version, rows, bytes, error_code, error_message, "
            "master, took_ms >= 0 as timed, started_at > '2024-01-01' as dated "
            f"from {NAME} order by state"
        ).to_pylist()
    version = site.table("good").state().version
    done, failed = found
    assert done == {
        "job": "export",
        "table_name": "good",
        "state": "done",
        "version": version,
        "rows": 1,
        "bytes": 7,
        "error_code": None,
        "error_message": None,
        "master": "local[*]",
        "timed": True,
        "dated": True,
    }
    assert failed["error_message"] == "no luck (dsn=postgresql://***host/db)"
    assert failed["error_code"] == "unavailable"


def test_the_newest_runs_come_first_from_as_few_files_as_need_be(site):
    for minute in range(6):
        job = "compact" if minute % 2 else "retain"
        write_record(
            site, TaskRecord(START + timedelta(minutes=minute), job, "good", DONE, version=minute)
        )
    table = site.table(NAME)
    assert [row["version"] for row in last_runs(table, 4)] == [5, 4, 3, 2]
    oldest = min(table.state().segments, key=lambda one: one.ts_min)
    os.unlink(os.path.join(table.storage.root, oldest.path))
    assert len(last_runs(table, 4)) == 4  # what is not among them was not opened


@pytest.mark.parametrize(
    ("master", "address"),
    [
        ("local[*]", "local[*]"),
        ("sc://host:15002/;token=s3cret;use_ssl=true", "sc://host:15002"),
        ("spark://me:s3cret@head:7077", "spark://head:7077"),
    ],
)
def test_of_the_master_only_the_address_is_kept(master, address):
    assert master_address(master) == address


def test_a_history_that_cannot_be_written_fails_no_job(site, registered, caplog):
    site.ensure_table(NAME, site.table("good").state().spec).append(
        rows(1).to_reader(), AppendOptions()
    )
    registered(Append("export", ["good"]))
    assert told(Runner(site).run()) == [("export", "good", DONE)]
    assert "was not written" in caplog.text


def test_http_lists_the_jobs_beside_the_flushes_and_metrics_have_the_last_of_each(tmp_path):
    with serving(tmp_path) as served, served.client() as client:
        assert client.get("/api/v1/jobs").json()["runs"] == []
        with JobWorkspace(tmp_path / "lake") as site:
            failed = Unavailable("no luck", hint="try again")
            write_record(site, TaskRecord(START, "compact", "good", DONE, 12, 3, {"rows": 5}))
            write_record(
                site, TaskRecord(START + timedelta(hours=1), "compact", "bad", FAILED, error=failed)
            )
        found = client.get("/api/v1/jobs").json()
        assert [run["state"] for run in found["runs"]] == ["failed", "done"]
        assert found["runs"][1] == {
            "started_at": "2024-06-01T00:00:00Z",
            "job": "compact",
            "table": "good",
            "state": "done",
            "took_ms": 12,
            "version": 3,
            "numbers": {"rows": 5},
            "error_code": None,
            "error_message": None,
            "master": None,
        }
        assert found["notes"] == []
        assert len(client.get("/api/v1/jobs", params={"limit": 1}).json()["runs"]) == 1
        assert client.get("/api/v1/jobs", params={"limit": 0}).status_code == 400
        end_s = time.monotonic() + WAIT_LIMIT_S
        while "thermocline_job_failing" not in (text := client.get("/metrics").text):
            assert time.monotonic() < end_s
            time.sleep(0.05)
        assert 'thermocline_job_failing{job="compact"} 1.0' in text
        began = r'thermocline_job_last_run_timestamp_seconds\{job="compact",outcome="done"\} (\S+)'
        assert float(re.search(began, text)[1]) == START.timestamp()


# The clock.


class Time:
    """Seconds that go on when they are told to."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


@contextmanager
def clock_of(folder, time_s, **schedule):
    settings = PipelineSettings(every=0.1, schedule=ScheduleSettings(**schedule))
    yield JobClock(str(folder), settings, LakeSettings(), now_s=time_s)


def test_the_clock_looks_at_each_job_as_often_as_its_schedule_says(site, registered, tmp_path):
    registered(Append("export", ["good"]), Append("compact", ["late"]), Append("retain", ["good"]))
    time_s, heard = Time(), []
    with clock_of(tmp_path / "lake", time_s, export=10, compact=60, rollup=0, retain=0) as clock:
        for second in (0, 5, 10, 30, 60):
            time_s.now_s = second
            heard.append((second, clock.run_due(lambda tenant, ran: None)))
    assert heard == [(0, 2), (5, 0), (10, 1), (30, 1), (60, 2)]


def test_the_clock_survives_the_errors_of_a_job_and_stops_after_the_task_under_way(
    site, registered, tmp_path
):
    job = Append("compact", ["good", "late"])
    registered(Append("export", ["bad", "worse"]), job)
    heard = []
    every = {"export": 0.1, "compact": 0.1, "rollup": 0, "retain": 0}
    with clock_of(tmp_path / "lake", time.monotonic, **every) as clock:

        def listen(tenant, ran):
            heard.append((ran.job, ran.table, ran.state))
            if len(heard) == 7:
                clock.stop()

        clock.run(listen)
    assert heard[:4] == [
        ("export", "bad", FAILED),
        ("export", "worse", FAILED),
        ("compact", "good", DONE),
        ("compact", "late", DONE),
    ]
    assert heard[4:] == heard[:3]  # the second round ended after the task that was under way


def test_the_clock_runs_the_jobs_of_every_tenant(site, registered, tmp_path):
    from thermocline.cold.tenants import TenantCatalog
    from thermocline.disk import OsDisk

    TenantCatalog(str(tmp_path / "lake"), OsDisk()).create("acme")
    registered(Append("export", ["good"]))
    heard = []
    with clock_of(tmp_path / "lake", Time(), export=1, compact=0, rollup=0, retain=0) as clock:
        clock.run_due(lambda tenant, ran: heard.append((tenant, ran.state)))
    assert sorted(heard) == [("acme", FAILED), ("default", DONE)]  # acme has no such table


def test_a_folder_that_is_no_lake_is_said_to_be_none(tmp_path):
    with pytest.raises(NotFound, match="no lake here"):
        JobWorkspace(tmp_path)
    assert json.dumps(os.listdir(tmp_path)) == "[]"
