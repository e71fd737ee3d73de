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

from thermocline.cold.storage.local import LocalStorage
from thermocline.config import nearest
from thermocline.errors import Invalid, NotFound, ThermoclineError, Unavailable
from thermocline.extras import require_extra
from thermocline.pipeline.run.history import (
    BUSY,
    DONE,
    FAILED,
    NOT_RUN,
    NOTHING,
    Ran,
    note,
    now,
)
from thermocline.pipeline.run.job import Done, Job, Sparks, Task, Tell, silent
from thermocline.pipeline.run.lease import Busy, Lease
from thermocline.pipeline.run.settings import PipelineSettings
from thermocline.pipeline.run.workspace import Site
from thermocline.pipeline.spark.session import session, stop
from thermocline.pipeline.spark.spark_errors import SparkNotStarted, told_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDER = ("export", "compact", "rollup", "retain")
BY_NAME = ("erase", "backfill")
TASKS_MAX = 10_000


class Sessions:
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
class Asked:
    """A job that runs once, on request: `erase` and `backfill`."""

    name: str
    work: Callable[[Site, Sparks, Tell], Done]

    def due(self, site: Site) -> Iterator[Task]:  # noqa: ARG002
        """Yield no task: a requested job is never due by itself."""
        return iter(())

    def run(self, site: Site, task: Task, spark: Sparks, tell: Tell) -> Done:  # noqa: ARG002
        """Do the requested work."""
        return self.work(site, spark, tell)


class Runner:
    """Runs the jobs of one workspace."""

    def __init__(
        self,
        site: Site,
        settings: PipelineSettings | None = None,
        *,
        sessions: Sessions | None = None,
        is_stopping: Callable[[], bool] = lambda: False,
        is_confirmed: bool = False,
    ) -> None:
        """With `is_confirmed` a retention may delete every row of a table."""
        self._site = site
        self.settings = settings or PipelineSettings()
        self.sessions = sessions or Sessions(self.settings)
        self._is_stopping = is_stopping
        self._confirmed = frozenset(site.tables() if is_confirmed else ())
        self._spark_failure: ThermoclineError | None = None
        self._holder = f"{socket.gethostname()}:{os.getpid()}"

    def due(self, names: Sequence[str] = (), table: str | None = None) -> Iterator[Task]:
        """Yield the due tasks of these jobs, or of all scheduled jobs; change nothing."""
        for name in in_order(names):
            for task in job_named(name, self.settings, self._confirmed).due(self._site):
                if table is None or task.table.lower() == table.lower():
                    yield task

    def run(
        self,
        names: Sequence[str] = (),
        table: str | None = None,
        tell: Callable[[Task], Tell] = lambda task: silent,
    ) -> Iterator[Ran]:
        """Run the due tasks one after the other, and yield the record of each."""
        self._spark_failure = None
        for name in in_order(names):
            job = job_named(name, self.settings, self._confirmed)
            started_at = now()
            try:
                tasks = list(self.due([name], table))[:TASKS_MAX]
            except Exception as error:  # noqa: BLE001  the other jobs must still run
                failed = Ran(started_at, name, "", FAILED, error=told_of(error))
                note(self._site, failed)
                yield failed
                continue
            for task in tasks:
                if self._is_stopping():
                    return
                yield self.run_task(job, task, tell(task))

    def run_task(self, job: Job, task: Task, tell: Tell = silent) -> Ran:
        """Run one task under the table's lease, record it, and return its record."""
        started_at, began_s = now(), clock.monotonic()
        facts: dict[str, object] = {}
        try:
            done = self._leased(job, task, tell)
        except Busy as busy:
            state, facts["error"] = BUSY, busy
        except SparkNotStarted as error:
            state, facts["error"] = (NOT_RUN if error.is_known else FAILED), error
        except Exception as error:  # noqa: BLE001  a worker survives every error of a job
            state, facts["error"] = FAILED, told_of(error)
            if not isinstance(error, ThermoclineError):
                self._let_go()
        else:
            state = NOTHING if done.version is None else DONE
            facts |= {"version": done.version, "numbers": dict(done.numbers)}
        took_ms = round((clock.monotonic() - began_s) * 1000)
        ran = Ran(
            *(started_at, job.name, task.table, state, took_ms),
            master=self.sessions.master,
            **facts,  # type: ignore[arg-type]
        )
        note(self._site, ran)
        return ran

    def _leased(self, job: Job, task: Task, tell: Tell) -> Done:
        storage = LocalStorage(self._site.catalog.root)
        lease = Lease(
            *(storage, task.table),
            job=job.name,
            holder=self._holder,
            term_s=self.settings.lease,
        )
        with lease, ExitStack() as guarded:
            with suppress(NotFound):  # the task itself may create the table of a rollup
                table = self._site.table(task.table)
                before, table.guard = table.guard, lease.check
                guarded.callback(setattr, table, "guard", before)
            return job.run(self._site, task, self._session, tell)

    def _session(self) -> "SparkSession":
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
            self._spark_failure = told = told_of(error)
            if not isinstance(told, Unavailable):
                raise told from error  # a more exact kind: an invalid master, Spark not installed
            raise SparkNotStarted(told.message, hint=told.hint, **told.facts) from error

    def _let_go(self) -> None:
        """Let the next task start a new session: Spark itself may have failed."""
        with suppress(Exception):
            self.sessions.close()


def in_order(names: Sequence[str]) -> list[str]:
    """Return these jobs, or all, in the order in which they run; `Invalid` for an unknown job."""
    for name in names:
        if name in BY_NAME:
            hint = f"run it with `thermocline pipeline {name}`"
            raise Invalid("this job needs arguments", hint=hint, job=name)
        if name not in ORDER:
            known = (*ORDER, *BY_NAME)
            hint = f"did you mean {nearest(name, known)}? Jobs are {', '.join(known)}"
            raise Invalid("unknown job", hint=hint, job=name)
    return [name for name in ORDER if not names or name in names]


def job_named(
    name: str, settings: PipelineSettings, confirmed: frozenset[str] = frozenset()
) -> Job:
    """Return a scheduled job with its limits.

    `confirmed` names the tables whose retention may delete every row.
    """
    with require_extra("spark", "entities", feature=f"the job {name}"):
        return _LOADERS[name](settings, confirmed)


def _export(settings: PipelineSettings, _: frozenset[str]) -> Job:
    from thermocline.pipeline.export import Export, ExportLimits

    limits = settings.limits
    return Export(ExportLimits(limits.export_part_keys, limits.export_connections))


def _compact(settings: PipelineSettings, _: frozenset[str]) -> Job:
    from thermocline.pipeline.compact.job import Compact
    from thermocline.pipeline.compact.plan import Limits

    limits = settings.limits
    return Compact(
        Limits(target_bytes=limits.compact_segment_bytes, inputs_min=limits.compact_inputs_min)
    )


def _rollup(settings: PipelineSettings, _: frozenset[str]) -> Job:
    from thermocline.pipeline.rollup.job import Rollups

    return Rollups(settings.rollups)


def _retain(settings: PipelineSettings, confirmed: frozenset[str]) -> Job:
    from thermocline.pipeline.retain import Retain

    grace_s = settings.limits.vacuum_grace
    return Retain(int(grace_s) if grace_s else None, confirmed)


_LOADERS: dict[str, Callable[[PipelineSettings, frozenset[str]], Job]] = {
    "export": _export,
    "compact": _compact,
    "rollup": _rollup,
    "retain": _retain,
}
