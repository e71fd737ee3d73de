"""Jobs under faults, and on every kind of Spark: the same answers; nothing, or one commit."""

import os
import resource
import signal
import subprocess
import time
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fixtures.entities import database
from fixtures.postgres import postgres_run, postgres_server
from postgres.entity_verbs import ACCOUNT, account, balances, cold_balances
from thermocline import TimeSeriesTable
from thermocline import connect as open_lake
from thermocline.cold.care.fsck import fsck
from thermocline.cold.table import ColdTable
from thermocline.config import LakeSettings
from thermocline.errors import ThermoclineError
from thermocline.hot.postgres.store.operation import Operation, OperationKind
from thermocline.pipeline import export as exporting
from thermocline.pipeline.export import ExportJob, ExportLimits
from thermocline.pipeline.rollup.spec import rollup
from thermocline.pipeline.run.history import DONE, NAME, last_runs
from thermocline.pipeline.run.job import Task, ignore_progress
from thermocline.pipeline.run.runner import Runner
from thermocline.pipeline.run.settings import LimitSettings, PipelineSettings
from thermocline.pipeline.run.workspace import JobWorkspace
from thermocline.pipeline.spark import session as sessions

__all__ = ["postgres_run", "postgres_server"]

CALM = {"export_changes": 1_000_000, "export_age_s": 3_600.0}
KEYS = 20
WAIT_LIMIT_S = 240.0
TASK = Task("export", "account", "asked for")
SETTINGS = PipelineSettings(
    limits=LimitSettings(export_part_keys=5, export_connections=4, compact_inputs_min=4),
    rollups=(rollup("metrics_1h", "metrics", "1h", by=["host"], aggregates={"n": "count(*)"}),),
)


@contextmanager
def opened(folder, dsn):
    """Give a lake with accounts that are not exported and metrics in many segments."""
    with open_lake(folder, postgres=dsn, **CALM) as lake:
        entities = lake.register("account", ACCOUNT)
        made = [Operation(OperationKind.CREATE, f"a{n:03d}", account(n)) for n in range(KEYS)]
        entities.bulk(made)
        metrics = lake.create_table("metrics", time_column="ts", bucket="1h")
        for number in range(6):
            moment = datetime(2024, 6, 1, tzinfo=UTC) + timedelta(minutes=25 * number)
            metrics.write([{"ts": moment, "host": f"h{number % 2}", "value": float(number)}])
            lake.flush("metrics")
    yield Path(folder)


@pytest.fixture
def lake(tmp_path, postgres_server):
    """A lake, the address of its PostgreSQL."""
    with database(postgres_server) as dsn, opened(tmp_path / "lake", dsn) as folder:
        yield str(folder), dsn


class Given:
    """A session that somebody else starts and stops, as a runner asks for it."""

    def __init__(self, spark, master):
        self.spark, self.master = spark, master

    def __call__(self):
        return self.spark

    def close(self):
        pass


def site_of(folder, dsn):
    return JobWorkspace(folder, settings=LakeSettings(postgres=dsn, **CALM))


def every_job(spark, master, folder, dsn):
    """Run what is due; return what became of it, and what the tables hold. In any process."""
    with site_of(folder, dsn) as site:
        runner = Runner(site, SETTINGS, sessions=Given(spark, master))
        ran = [
            (one.job, one.table, one.state) for one in runner.run(["export", "compact", "rollup"])
        ]
        entities = site.entities().table("account")
        counted = site.table("metrics_1h")
        windows = [
            (row["host"], row["n"])
            for batch in counted.read(counted.state(), None)
            for row in batch.to_pylist()
        ]
        held = cold_balances(entities)
        segments = len(list(site.table("metrics").state().segments))
        assert {row["master"] for row in last_runs(site.table(NAME))} == {master}
        findings = [
            f for name in site for f in fsck(site.table(name)).findings if not f.is_harmless
        ]
    return ran, sorted(windows), held, segments, findings


def exported_elsewhere(spark, folder, dsn):
    """Export in this process, with this session."""
    with site_of(folder, dsn) as site:
        job = ExportJob(ExportLimits(5, 4))
        return job.run(site, TASK, lambda: spark, ignore_progress).version


def wait_for(condition):
    """Wait until something is so, and return it."""
    end_s = time.monotonic() + WAIT_LIMIT_S
    while not (found := condition()):
        assert time.monotonic() < end_s, "it never was"
        time.sleep(0.02)
    return found


EVERYTHING = (
    [
        ("export", "account", DONE),
        ("compact", "account", DONE),
        ("compact", "metrics", DONE),
        ("rollup", "metrics_1h", DONE),
    ],
    [("h0", 1), ("h0", 2), ("h1", 1), ("h1", 1), ("h1", 1)],
    {f"a{n:03d}": n for n in range(KEYS)},
    1,
    [],
)


def test_every_job_does_its_work_in_a_session_of_this_machine(spark, lake):
    assert every_job(spark, "local[2]", *lake) == EVERYTHING


def test_the_same_jobs_give_the_same_answers_through_spark_connect(connect, elsewhere, lake):
    assert elsewhere(every_job, connect, connect, *lake) == EVERYTHING


# Dying.


def stopped_once(parts, target, batches):
    """Write a part, and the first time stand still before it is reported. For workers."""
    place = Path(target.root).parent.parent
    for report in _reports(parts, target, batches):
        with open(place / f"written-{os.getpid()}", "w"):
            pass
        while not (place / "killed").exists():
            time.sleep(0.02)
        yield report


_reports = exporting._write_parts


def every_job_with_a_stop(spark, master, folder, dsn):
    exporting._write_parts = stopped_once
    return every_job(spark, master, folder, dsn)


def test_S01_on_a_cluster_an_executor_killed_between_write_and_report_counts_nothing_twice(
    cluster, started_elsewhere, lake
):
    folder, dsn = lake
    call = started_elsewhere(every_job_with_a_stop, cluster.url, cluster.url, folder, dsn)
    wait_for(lambda: list(Path(folder).glob("written-*")))
    cluster.kill_executor()
    (Path(folder) / "killed").touch()
    assert call.result() == EVERYTHING  # on a cluster, too, and whoever died
    with site_of(folder, dsn) as site:
        table = site.table("account")
        written = len(list(table.storage.list("data")))
        assert written > len(list(table.state().segments))  # what the dead one had written


def kill_driver(when):
    supersede = ColdTable.commit_export

    def last(table, hand):
        if when == "after":
            supersede(table, hand)
        os.kill(os.getpid(), signal.SIGKILL)

    ColdTable.commit_export = last


def exported_until_killed(spark, folder, dsn, when):
    kill_driver(when)
    return exported_elsewhere(spark, folder, dsn)


@pytest.mark.parametrize(("when", "commits"), [("before", 0), ("after", 1)])
def test_S02_a_driver_killed_around_its_commit_leaves_nothing_or_one(
    spark, started_elsewhere, lake, when, commits
):
    folder, dsn = lake
    with site_of(folder, dsn) as site:
        entities = site.entities().table("account")
        before = entities.table.state().version
        call = started_elsewhere(exported_until_killed, "local[2]", folder, dsn, when)
        assert call.process.wait(WAIT_LIMIT_S) == -signal.SIGKILL
        assert entities.table.state().version == before + commits
        assert balances(entities) == {f"a{n:03d}": n for n in range(KEYS)}
        (task,) = ExportJob().due(site)
        assert task.table == "account"
        assert exported_elsewhere(spark, folder, dsn) == (None if commits else before + 1)
        assert entities.table.state().version == before + 1 == entities.source.head().version
        assert cold_balances(entities) == {f"a{n:03d}": n for n in range(KEYS)}
        assert list(ExportJob().due(site)) == []


# A full disk.


FILLER = "data/filler"


@contextmanager
def small_volume(folder, size_bytes):
    """Mount a file system of so many bytes; tell whether this process may do that."""
    options = ["-o", f"size={size_bytes}", "thermocline-test", str(folder)]
    mount = ["mount", "-t", "tmpfs", *options]
    is_mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def on_a_full_disk(parts, target, batches):
    """Write a part where no file may have more than a kilobyte. For workers."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, limits[1]))
    try:
        yield from _reports(parts, target, batches)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("way", ["mounted", "limited"])
def test_S08_a_disk_that_is_full_fails_the_job_and_commits_nothing(spark, lake, monkeypatch, way):
    """The workers' disk is a file system of one page that is taken, where one may be mounted.

    A page that is free would do for the first of the files, and the worker that got it may end
    after the job's failure was seen: nobody but the vacuum removes its file then.
    Where none may be mounted, and once more in any case, no file of a worker may grow past a
    kilobyte.
    """
    folder, dsn = lake
    with site_of(folder, dsn) as site, ExitStack() as full:
        entities = site.entities().table("account")
        before = entities.table.state().version
        data = Path(entities.table.storage.root, "data")
        data.mkdir(exist_ok=True)
        page_bytes = resource.getpagesize()
        if way == "mounted" and full.enter_context(small_volume(data, page_bytes)):
            Path(entities.table.storage.root, FILLER).write_bytes(bytes(page_bytes))
        else:
            monkeypatch.setattr(exporting, "_write_parts", on_a_full_disk)
        runner = Runner(site, SETTINGS, sessions=Given(spark, "local[2]"))
        (ran,) = runner.run(["export"])
        assert isinstance(ran.error, ThermoclineError)
        assert ran.state == "failed"
        assert entities.table.state().version == before
        assert {stored.path for stored in entities.table.storage.list("data")} <= {FILLER}
        monkeypatch.undo()
        full.close()
        (ran,) = runner.run(["export"])
        assert (ran.state, ran.version) == (DONE, before + 1)


SHUFFLED = 300_000
SCRATCH_BYTES = 1 << 20


def shuffled_into(spark, root, is_mounted):
    """Write a frame whose rows change places first, which takes more than the scratch disk has."""
    if not is_mounted:
        for gateway in sessions._gateways.values():
            limit = (SCRATCH_BYTES // 4, resource.RLIM_INFINITY)
            resource.prlimit(gateway.process.pid, resource.RLIMIT_FSIZE, limit)
    frame = spark.range(SHUFFLED, numPartitions=2).selectExpr(
        "timestamp_micros(1717200000000000 + id) as ts", "rand() as close"
    )
    frame.repartition(2).write.format("thermocline").mode("append").save(root)


def test_S08_a_scratch_disk_that_is_full_of_a_shuffle_fails_the_write(elsewhere, tmp_path):
    """Spark's scratch folder is a file system of a megabyte, where this process may mount one.

    Where it may not, no file that Spark's Java writes may grow past a quarter of that.
    """
    made = {"time_column": "ts", "bucket": "1h"}
    table = TimeSeriesTable.create(tmp_path / "t", **made)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with small_volume(scratch, SCRATCH_BYTES) as is_mounted:
        told = "No space left on device" if is_mounted else "File too large"
        call = (shuffled_into, "local[2]", table.root(), is_mounted)
        with pytest.raises(Exception, match=told):
            elsewhere(*call, spark__local__dir=str(scratch))
    assert table.version() == 1
    assert list(table.cold.storage.list("data")) == []
