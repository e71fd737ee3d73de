"""The job `vacuum`: expires old versions, removes their files, and truncates the log.

In:   tables with versions that are older than they are kept for
Out:  removed segments, sidecars, commits, checkpoints and bases

- A table is due when `EXPIRED_MIN` versions have passed their time, at most every `EVERY_S`; and
  every `DAY_S` in any case, to remove the files of writers that died.
- Reading an expired version is `NotFound`, never part of the version.
- The log of an entity table keeps its commits: PostgreSQL follows them one by one.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from thermocline.cold.care.truncate import truncate_log
from thermocline.cold.care.vacuum import vacuum
from thermocline.cold.table import ColdTable
from thermocline.format.instant import NS_PER_S
from thermocline.pipeline.run.job import (
    SessionFactory,
    Task,
    TaskProgress,
    TaskResult,
    find_tasks,
)
from thermocline.pipeline.run.workspace import JobWorkspace

JOB = "vacuum"
EVERY_S = 3_600
EXPIRED_MIN = 100
"""How many versions must have passed their time before a vacuum is due."""
DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class VacuumJob:
    """The job; `kept_s` says for how many seconds a table keeps its versions, by its name.

    `vacuumed_ns` is when each table was vacuumed last, by tenant and name.
    """

    kept_s: Callable[[str], int]
    vacuumed_ns: dict[tuple[str, str], int] = field(default_factory=dict)
    name: str = JOB

    def due(self, site: JobWorkspace) -> Iterator[Task]:
        """Yield the tables with versions or files to remove, from the log alone."""
        yield from find_tasks(self.name, site, partial(self._find_expired, site))

    def _find_expired(self, site: JobWorkspace, name: str) -> Iterator[Task]:
        table = site.table(name)
        now_ns = table.log.now()
        last_ns = self.vacuumed_ns.get((site.tenant, name))
        since_s = DAY_S if last_ns is None else (now_ns - last_ns) // NS_PER_S
        if since_s < EVERY_S:
            return
        expired = self._count_expired(table, name, now_ns)
        if expired >= EXPIRED_MIN or since_s >= DAY_S:
            why = f"{expired} versions are older than they are kept for"
            yield Task(JOB, name, why, {"versions": expired})

    def _count_expired(self, table: ColdTable, name: str, now_ns: int) -> int:
        kept = table.log.newest_by(now_ns - self.kept_s(name) * NS_PER_S)
        return max(0, int(kept) - int(table.log.head().oldest))

    def run(
        self,
        site: JobWorkspace,
        task: Task,
        spark: SessionFactory,  # noqa: ARG002
        tell: TaskProgress,
    ) -> TaskResult:
        """Expire versions in one commit, then remove the files that no kept version needs."""
        table = site.table(task.table)
        before = table.state().version
        done = vacuum(
            table,
            grace_s=self.kept_s(task.table),
            dry_run=False,
            progress=lambda files, total: tell("removing", files, total),
        )
        cut = truncate_log(table)
        self.vacuumed_ns[site.tenant, task.table] = table.log.now()
        after = table.state().version
        numbers = {
            "files": len(done.files) + cut.files,
            "size_bytes": done.size_bytes,
            "oldest": int(table.state().oldest),
        }
        return TaskResult(after if after != before else None, numbers)
