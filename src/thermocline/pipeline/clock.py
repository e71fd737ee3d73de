"""Runs jobs by the clock: each as often as its schedule says, until it is told to stop.

In:   a data folder, settings
Out:  a `Ran` for every task, told to whoever listens

- A job is looked at when its time has come; what is due of it is done, one task after the other.
- An error of one job, table or tenant is told and noted, and ends nothing. What failed is looked at
  again when the job's time comes again.
- Told to stop, the task under way is finished and no other is begun. Killed, it leaves nothing or
  one commit, as every job does.
- Two beside each other are safe: a table is one job's at a time, and the log decides in any case.
- Spark is let go of after a look that found nothing to do.
"""

import time as clock
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Event

from thermocline.config import LakeSettings
from thermocline.disk import OsDisk
from thermocline.errors import ThermoclineError
from thermocline.lake.tenants import Tenants
from thermocline.pipeline.history import BUSY, FAILED, Ran, now
from thermocline.pipeline.run import ORDER, Runner, Sessions
from thermocline.pipeline.settings import PipelineSettings
from thermocline.pipeline.site import Site

Listener = Callable[[str, Ran], None]
"""Is told the tenant and what became of a task."""


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
        sessions: Sessions | None = None,
        now_s: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._root = root
        self._settings = settings
        self._lake = lake
        self._tenants = tuple(tenants)
        self._jobs = tuple(jobs) or ORDER
        self._sessions = sessions or Sessions(settings)
        self._now_s = now_s
        self._looked_s: dict[str, float] = {}
        self._sites: dict[str, Site] = {}
        self._stopping = Event()

    def stop(self) -> None:
        """Begin no other task. May be called from a handler of a signal."""
        self._stopping.set()

    def run(self, listen: Listener) -> None:
        """Look, do what is due, wait, until it is told to stop."""
        try:
            while not self._stopping.is_set():
                if not self.look(listen):
                    self._let_go()
                self._stopping.wait(self._settings.every)
        finally:
            self._let_go()
            for site in self._sites.values():
                with suppress(ThermoclineError):
                    site.close()

    def look(self, listen: Listener) -> int:
        """Do what is due now of the jobs whose time has come; return how many tasks were begun."""
        begun = 0
        for name in self._in_time():
            for tenant in self._tenants or tuple(Tenants(self._root, OsDisk())):
                begun += self._ran(name, tenant, listen)
                if self._stopping.is_set():
                    return begun
        return begun

    def _in_time(self) -> list[str]:
        """Return the jobs whose time has come, in order, and begin to count anew for each."""
        now_s, found = self._now_s(), []
        for name in ORDER:
            every_s = getattr(self._settings.schedule, name)
            last_s = self._looked_s.get(name)
            if name in self._jobs and every_s and (last_s is None or now_s - last_s >= every_s):
                self._looked_s[name] = now_s
                found.append(name)
        return found

    def _ran(self, name: str, tenant: str, listen: Listener) -> int:
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
            listen(tenant, Ran(now(), name, "", FAILED, error=error))
        return begun

    def _site(self, tenant: str) -> Site:
        if tenant not in self._sites:
            self._sites[tenant] = Site(self._root, tenant, settings=self._lake)
        return self._sites[tenant]

    def _let_go(self) -> None:
        with suppress(Exception):  # what ends badly has ended
            self._sessions.close()
