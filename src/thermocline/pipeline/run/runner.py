"""Runs the jobs that are due, in order, one a table at a time, and records each in the history.

In:   a workspace, settings, the names of jobs
Out:  a `TaskRecord` for every task; rows in the history

- Order: first exports, which bring rows into the lake, then compaction, then rollups, then
  retention. `erase` and `backfill` run only on request, with their arguments.
- The due tasks of a job are found when its turn comes: a rollup sees what earlier jobs committed.
- A task that fails does not stop the others.
- The first task that needs Spark starts it. If Spark cannot be started, that task fails with the
  reason, and later tasks that need Spark are recorded as not run.
"""

import os
import socket
import time as clock
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from thermocline.config import find_nearest
from thermocline.errors import Invalid, NotFound, ThermoclineError, Unavailable
from thermocline.extras import require_extra
from thermocline.format.argument import check_renamed_flag
from thermocline.pipeline.run.history import (
    BUSY,
    DONE,
    FAILED,
    NOT_RUN,
    NOTHING,
    TaskRecord,
    write_record,
)
from thermocline.pipeline.run.job import (
    Job,
    SessionFactory,
    Task,
    TaskProgress,
    TaskResult,
    ignore_progress,
)
from thermocline.pipeline.run.lease import Lease, TableBusy
from thermocline.pipeline.run.settings import PipelineSettings
from thermocline.pipeline.run.workspace import JobWorkspace
from thermocline.pipeline.spark.session import session, stop
from thermocline.pipeline.spark.spark_errors import SparkNotStarted, translate_error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB_ORDER = ("export", "compact", "rollup", "retain")
REQUESTED_JOBS = ("erase", "backfill")
TASKS_MAX = 10_000


class LazySession:
    """The Spark session of a run, started at its first use."""

    def __init__(self, settings: PipelineSettings, master: str | None = None) -> None:
        self._settings = settings
        self.master = master or settings.master
        self._running: SparkSession | None = None

    def __call__(self) -> "SparkSession":
        """Return the session."""
        if self._running is None:
            self._running = session(
                self.master, memory=self._settings.memory, settings=self._settings.spark
            )
        return self._running

    def close(self) -> None:
        """End the session if there is one; the next call starts another."""
        running, self._running = self._running, None
        if running is not None:
            stop(running)


@dataclass(frozen=True, slots=True)
class RequestedJob:
    """A job that runs once, on request: `erase` and `backfill`."""

    name: str
    work: Callable[[JobWorkspace, SessionFactory, TaskProgress], TaskResult]

    def due(self, site: JobWorkspace) -> Iterator[Task]:  # noqa: ARG002
        """Yield no task: a requested job is never due by itself."""
        return iter(())

    def run(
        self,
        site: JobWorkspace,
        task: Task,  # noqa: ARG002
        spark: SessionFactory,
        tell: TaskProgress,
    ) -> TaskResult:
        """Do the requested work."""
        return self.work(site, spark, tell)


class Runner:
    """Runs the jobs of one workspace."""

    def __init__(
        self,
        site: JobWorkspace,
        settings: PipelineSettings | None = None,
        *,
        sessions: LazySession | None = None,
        is_stopping: Callable[[], bool] = lambda: False,
        yes: bool = False,
        is_confirmed: bool | None = None,
    ) -> None:
        """With `yes` a retention may delete all rows of a table; `is_confirmed` is its old name."""
        yes = check_renamed_flag(yes, "yes", is_confirmed, "is_confirmed")
        self._site = site
        self.settings = settings or PipelineSettings()
        self.sessions = sessions or LazySession(self.settings)
        self._is_stopping = is_stopping
        self._confirmed = frozenset(site.tables() if yes else ())
        self._spark_failure: ThermoclineError | None = None
        self._holder = f"{socket.gethostname()}:{os.getpid()}"

    def due(self, names: Sequence[str] = (), table: str | None = None) -> Iterator[Task]:
        """Yield the due tasks of these jobs, or of all scheduled jobs; change nothing."""
        for name in order_jobs(names):
            for task in load_job(name, self.settings, self._confirmed).due(self._site):
                if table is None or task.table.lower() == table.lower():
                    yield task

    def run(
        self,
        names: Sequence[str] = (),
        table: str | None = None,
        tell: Callable[[Task], TaskProgress] = lambda task: ignore_progress,
    ) -> Iterator[TaskRecord]:
        """Run the due tasks one after the other, and yield the record of each."""
        self._spark_failure = None
        for name in order_jobs(names):
            job = load_job(name, self.settings, self._confirmed)
            started_at = self._site.now()
            try:
                tasks = list(self.due([name], table))[:TASKS_MAX]
            except Exception as error:  # noqa: BLE001  the other jobs must still run
                failed = TaskRecord(started_at, name, "", FAILED, error=translate_error(error))
                write_record(self._site, failed)
                yield failed
                continue
            for task in tasks:
                if self._is_stopping():
                    return
                yield self.run_task(job, task, tell(task))

    def run_task(self, job: Job, task: Task, tell: TaskProgress = ignore_progress) -> TaskRecord:
        """Run one task under the table's lease, record it, and return its record."""
        started_at, began_s = self._site.now(), clock.monotonic()
        facts: dict[str, object] = {}
        try:
            if task.error is not None:
                raise task.error
            done = self._run_leased(job, task, tell)
        except TableBusy as busy:
            state, facts["error"] = BUSY, busy
        except SparkNotStarted as error:
            state, facts["error"] = (NOT_RUN if error.is_known else FAILED), error
        except Exception as error:  # noqa: BLE001  a worker survives every error of a job
            state, facts["error"] = FAILED, translate_error(error)
            if not isinstance(error, ThermoclineError):
                self._close_session()
        else:
            state = NOTHING if done.version is None else DONE
            facts |= {"version": done.version, "numbers": dict(done.numbers)}
        took_ms = round((clock.monotonic() - began_s) * 1000)
        ran = TaskRecord(
            *(started_at, job.name, task.table, state, took_ms),
            master=self.sessions.master,
            **facts,  # type: ignore[arg-type]
        )
        write_record(self._site, ran)
        return ran

    def _run_leased(self, job: Job, task: Task, tell: TaskProgress) -> TaskResult:
        lease = Lease(
            *(self._site.catalog.storage, task.table),
            job=job.name,
            holder=self._holder,
            term_s=self.settings.lease,
        )
        with lease, ExitStack() as guarded:
            with suppress(NotFound):  # the task itself may create the table of a rollup
                table = self._site.table(task.table)
                before, table.check_before_commit = table.check_before_commit, lease.check
                guarded.callback(setattr, table, "check_before_commit", before)
            return job.run(self._site, task, self._require_session, tell)

    def _require_session(self) -> "SparkSession":
        """Return the session; `SparkNotStarted` if it cannot or could not be started."""
        if self._spark_failure is not None:
            known = SparkNotStarted(
                "not run, because Spark did not start",
                hint="see the reason at the task that failed; nothing was changed",
            )
            known.is_known = True
            raise known
        try:
            return self.sessions()
        except Exception as error:
            self._spark_failure = failure = translate_error(error)
            if not isinstance(failure, Unavailable):
                raise failure from error  # more exact: an invalid master, Spark not installed
            raise SparkNotStarted(failure.message, hint=failure.hint, **failure.facts) from error

    def _close_session(self) -> None:
        """Let the next task start a new session: Spark itself may have failed."""
        with suppress(Exception):
            self.sessions.close()


def order_jobs(names: Sequence[str]) -> list[str]:
    """Return these jobs, or all, in the order in which they run; `Invalid` for an unknown job."""
    for name in names:
        if name in REQUESTED_JOBS:
            hint = f"run it with `thermocline pipeline {name}`"
            raise Invalid("this job needs arguments", hint=hint, job=name)
        if name not in JOB_ORDER:
            known = (*JOB_ORDER, *REQUESTED_JOBS)
            hint = f"did you mean {find_nearest(name, known)}? Jobs are {', '.join(known)}"
            raise Invalid("unknown job", hint=hint, job=name)
    return [name for name in JOB_ORDER if not names or name in names]


def load_job(name: str, settings: PipelineSettings, confirmed: frozenset[str] = frozenset()) -> Job:
    """Return a scheduled job with its limits.

    `confirmed` names the tables whose retention may delete every row.
    """
    with require_extra("spark", "entities", feature=f"the job {name}"):
        return _LOADERS[name](settings, confirmed)


def _load_export(settings: PipelineSettings, _: frozenset[str]) -> Job:
    from thermocline.pipeline.export import ExportJob, ExportLimits

    limits = settings.limits
    return ExportJob(ExportLimits(limits.export_part_keys, limits.export_connections))


def _load_compact(settings: PipelineSettings, _: frozenset[str]) -> Job:
    from thermocline.cold.compact.plan import CompactionLimits
    from thermocline.pipeline.compact.job import CompactJob

    limits = settings.limits
    return CompactJob(
        CompactionLimits(
            target_bytes=limits.compact_segment_bytes, inputs_min=limits.compact_inputs_min
        )
    )


def _load_rollup(settings: PipelineSettings, _: frozenset[str]) -> Job:
    from thermocline.pipeline.rollup.job import RollupJob

    return RollupJob(settings.rollups)


def _load_retain(settings: PipelineSettings, confirmed: frozenset[str]) -> Job:
    from thermocline.pipeline.retain import RetainJob

    grace_s = settings.limits.vacuum_grace
    return RetainJob(int(grace_s) if grace_s else None, confirmed)


_LOADERS: dict[str, Callable[[PipelineSettings, frozenset[str]], Job]] = {
    "export": _load_export,
    "compact": _load_compact,
    "rollup": _load_rollup,
    "retain": _load_retain,
}
