"""One round of care: what is due on the tables of every tenant is done, one task after another.

In:   a data folder, settings
Out:  a `CareEvent` for each task that has ended, and the sums over all tables after the round

- The jobs are those of the pipeline, with a kernel that merges in this process: retention, then
  compaction, then vacuum. Each takes the table's lease, as a worker of the pipeline does.
- The error of one task is reported, and does not stop the others. A task that keeps failing is
  tried again after longer and longer waits, because each try leaves a row in the history.
- A table whose log is damaged is a task that fails. When it has been repaired, and has nothing to
  do, an event of the state `nothing` ends the report of its failure.
- A table that was never written has nothing to do, and an idle node has no task.
"""

import time as clock
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from typing import Any

from thermocline.care.vacuum_job import VacuumJob
from thermocline.cold.compact.plan import CompactionLimits
from thermocline.cold.compact.rewrite import HERE_BYTES_MAX, HERE_LIMITS, merge_here
from thermocline.cold.tenants import TenantCatalog
from thermocline.config import CareSettings
from thermocline.disk import OsDisk
from thermocline.errors import ThermoclineError
from thermocline.ingest.otlp.tables import TABLES
from thermocline.pipeline.compact.job import CompactJob
from thermocline.pipeline.retain import RetainJob
from thermocline.pipeline.run.history import FAILED, NOTHING, utc_now
from thermocline.pipeline.run.job import Job
from thermocline.pipeline.run.runner import LazySession, Runner
from thermocline.pipeline.run.settings import PipelineSettings
from thermocline.pipeline.run.workspace import JobWorkspace
from thermocline.pipeline.spark.spark_errors import translate_error

MASTER = "node"
"""The master in the history: these tasks ran without Spark."""
INPUTS_MIN = 8
RETRY_S = 60.0
RETRY_S_MAX = 3_600.0
TASKS_MAX = 200
"""How many tasks of one job and tenant one round does; the next round does the others."""


@dataclass(frozen=True, slots=True)
class CareEvent:
    """A task that has ended: its outcome, and the error's message if it failed."""

    tenant: str
    job: str
    table: str
    state: str
    error: str = ""
    took_ms: int = 0
    numbers: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TableSums:
    """Sums over the cold tables of all tenants."""

    tables: int = 0
    segments: int = 0
    rows: int = 0
    size_bytes: int = 0
    versions: int = 0


class RetryTimes:
    """When failing tasks are tried again: after a minute, then twice as long, up to an hour."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._failed: dict[tuple[str, str, str], tuple[int, float]] = {}

    def list_failed(self, tenant: str, job: str) -> list[str]:
        """Return the tables for which a job of a tenant failed last."""
        return [table for t, j, table in self._failed if (t, j) == (tenant, job)]

    def is_due(self, tenant: str, job: str, table: str) -> bool:
        """Tell whether a task may run now."""
        task = tenant, job, table
        return task not in self._failed or self._now_s() >= self._failed[task][1]

    def note(self, tenant: str, job: str, table: str, *, has_failed: bool) -> None:
        """Record how a task ended."""
        task = tenant, job, table
        if not has_failed:
            self._failed.pop(task, None)
            return
        times = self._failed.get(task, (0, 0.0))[0]
        wait_s = min(RETRY_S * 2**times, RETRY_S_MAX)
        self._failed[task] = times + 1, self._now_s() + wait_s


class CareRounds:
    """The rounds of one data folder."""

    def __init__(
        self,
        root: str,
        settings: CareSettings,
        *,
        is_stopping: Callable[[], bool] = lambda: False,
        open_site: Callable[[str, str], JobWorkspace] = JobWorkspace,
        now_s: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._root = root
        self._settings = settings
        self._is_stopping = is_stopping
        self._open_site = open_site
        self._sites: dict[str, JobWorkspace] = {}
        self._jobs = make_jobs(settings)
        self._retries = RetryTimes(now_s)

    def run(self) -> Iterator[CareEvent]:
        """Do what is due now; yield what has ended."""
        for tenant in TenantCatalog(self._root, OsDisk()):
            for job in self._jobs:
                try:
                    yield from self._run_job(tenant, job)
                except Exception as error:  # noqa: BLE001  care survives every error of a job
                    self._retries.note(tenant, job.name, "", has_failed=True)
                    yield CareEvent(tenant, job.name, "", FAILED, _describe(translate_error(error)))
                if self._is_stopping():
                    return

    def _run_job(self, tenant: str, job: Job) -> Iterator[CareEvent]:
        site = self._site(tenant)
        settings = PipelineSettings()
        sessions = LazySession(settings, MASTER)
        runner = Runner(site, settings, sessions=sessions, is_stopping=self._is_stopping)
        tasks = list(islice(job.due(site), TASKS_MAX))
        if len(tasks) < TASKS_MAX:
            due = {task.table for task in tasks}
            for failed in self._retries.list_failed(tenant, job.name):
                if failed not in due:
                    self._retries.note(tenant, job.name, failed, has_failed=False)
                    yield CareEvent(tenant, job.name, failed, NOTHING)
        for task in tasks:
            if self._is_stopping():
                return
            if not self._retries.is_due(tenant, job.name, task.table):
                continue
            ran = runner.run_task(job, task)
            self._retries.note(tenant, job.name, task.table, has_failed=ran.state == FAILED)
            why = "" if ran.error is None else _describe(ran.error)
            numbers = dict(ran.numbers)
            yield CareEvent(tenant, job.name, task.table, ran.state, why, ran.took_ms, numbers)

    def _site(self, tenant: str) -> JobWorkspace:
        if tenant not in self._sites:
            self._sites[tenant] = self._open_site(self._root, tenant)
        return self._sites[tenant]

    def sums(self) -> TableSums:
        """Return the sums over all tables, from their logs; a damaged table is omitted."""
        totals = dict.fromkeys(asdict(TableSums()), 0)
        for tenant in TenantCatalog(self._root, OsDisk()):
            site = self._site(tenant)
            for name in site:
                with suppress(ThermoclineError):
                    state = site.table(name).state()
                    totals["tables"] += 1
                    totals["segments"] += state.totals.segments
                    totals["rows"] += state.totals.rows
                    totals["size_bytes"] += state.totals.size_bytes
                    totals["versions"] += int(state.version) - int(state.oldest) + 1
        return TableSums(**totals)

    def close(self) -> None:
        """Close the workspaces."""
        for site in self._sites.values():
            with suppress(ThermoclineError):
                site.close()


def _describe(error: ThermoclineError) -> str:
    """Return an error's message, with the file that it is about."""
    path = error.facts.get("path")
    return f"{error.message}: {path}" if path else error.message


def make_jobs(settings: CareSettings) -> tuple[Job, ...]:
    """Return the jobs of a round, in order."""

    def kept_s(name: str) -> int:
        is_telemetry = name in TABLES
        return int(settings.telemetry_versions_s if is_telemetry else settings.versions_s)

    limits = CompactionLimits(
        HERE_LIMITS.target_bytes,
        HERE_LIMITS.target_rows,
        inputs_min=INPUTS_MIN,
        level_max=HERE_LIMITS.level_max,
    )
    kernel = partial(merge_here, loaded_bytes_max=HERE_BYTES_MAX)
    return RetainJob(), CompactJob(limits, kernel), VacuumJob(kept_s)


def event_fields(event: CareEvent) -> dict[str, Any]:
    """Return an event as a JSON object; `ended_at` is the time now."""
    return {**asdict(event), "ended_at": utc_now().isoformat()}
