"""Runs jobs by the clock: each as often as its schedule says, until `stop` is called.

In:   a data folder, settings
Out:  a `TaskRecord` for every task, passed to the listener

- When a job's interval has passed, its due tasks run one after the other.
- An error of one job, table or tenant is reported and recorded, and does not stop the others. The
  job is tried again after its next interval.
- After `stop`, the running task finishes and no other task starts. If the process is killed, its
  task leaves nothing or one commit, as every job does.
- Two workers may run at the same time: a lease gives a table to one job at a time, and the log
  decides in any case.
- Spark is stopped after a pass that found nothing to do.
"""

import time as clock
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Event

from thermocline.cold.tenants import TenantCatalog
from thermocline.config import LakeSettings
from thermocline.disk import OsDisk
from thermocline.errors import ThermoclineError
from thermocline.pipeline.run.history import BUSY, FAILED, TaskRecord, utc_now
from thermocline.pipeline.run.runner import JOB_ORDER, LazySession, Runner
from thermocline.pipeline.run.settings import PipelineSettings
from thermocline.pipeline.run.workspace import JobWorkspace

Listener = Callable[[str, TaskRecord], None]
"""Receives the tenant and the record of an ended task."""


class JobClock:
    """Runs the jobs of a data folder by the clock."""

    def __init__(
        self,
        root: str,
        settings: PipelineSettings,
        lake: LakeSettings | None = None,
        *,
        tenants: Sequence[str] = (),
        jobs: Sequence[str] = (),
        sessions: LazySession | None = None,
        now_s: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._root = root
        self._settings = settings
        self._lake = lake
        self._tenants = tuple(tenants)
        self._jobs = tuple(jobs) or JOB_ORDER
        self._sessions = sessions or LazySession(settings)
        self._now_s = now_s
        self._checked_s: dict[str, float] = {}
        self._sites: dict[str, JobWorkspace] = {}
        self._stopping = Event()

    def stop(self) -> None:
        """Start no other task. May be called from a signal handler."""
        self._stopping.set()

    def run(self, listen: Listener) -> None:
        """Run what is due, wait, and repeat until `stop` is called."""
        try:
            while not self._stopping.is_set():
                if not self.run_due(listen):
                    self._close_sessions()
                self._stopping.wait(self._settings.every)
        finally:
            self._close_sessions()
            for site in self._sites.values():
                with suppress(ThermoclineError):
                    site.close()

    def run_due(self, listen: Listener) -> int:
        """Run the due tasks of jobs whose interval has passed; return how many were started."""
        begun = 0
        for name in self._due_jobs():
            for tenant in self._tenants or tuple(TenantCatalog(self._root, OsDisk())):
                begun += self._run_job(name, tenant, listen)
                if self._stopping.is_set():
                    return begun
        return begun

    def _due_jobs(self) -> list[str]:
        """Return the jobs whose interval has passed, in order, and restart their intervals."""
        now_s, found = self._now_s(), []
        for name in JOB_ORDER:
            every_s = getattr(self._settings.schedule, name)
            last_s = self._checked_s.get(name)
            if name in self._jobs and every_s and (last_s is None or now_s - last_s >= every_s):
                self._checked_s[name] = now_s
                found.append(name)
        return found

    def _run_job(self, name: str, tenant: str, listen: Listener) -> int:
        begun = 0
        try:
            runner = Runner(
                self._site(tenant),
                self._settings,
                sessions=self._sessions,
                is_stopping=self._stopping.is_set,
            )
            for ran in runner.run([name]):
                begun += ran.state != BUSY
                listen(tenant, ran)
        except ThermoclineError as error:
            listen(tenant, TaskRecord(utc_now(), name, "", FAILED, error=error))
        return begun

    def _site(self, tenant: str) -> JobWorkspace:
        if tenant not in self._sites:
            self._sites[tenant] = JobWorkspace(self._root, tenant, settings=self._lake)
        return self._sites[tenant]

    def _close_sessions(self) -> None:
        with suppress(Exception):  # the session has ended, even if its end raised an error
            self._sessions.close()
