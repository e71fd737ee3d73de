"""Retention: deletes rows that are older than a table's retention, and later their files.

In:   tables that have a retention
Out:  one version a table without those rows; removed files, if a vacuum is configured

- If a whole segment is too old, it is removed. If only some of its rows are, it gets a deletion
  vector, and compaction purges it.
- A clock that has jumped ahead deletes nothing: if every row would go, the job fails for this table
  until a person confirms it.
- Entity tables have no retention: their rows go when they are deleted.
- Spark is not needed: the job finds the rows from the log and the time column.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from thermocline.cold.care.vacuum import vacuum
from thermocline.cold.table import ColdTable
from thermocline.format.instant import NS_PER_S, format_instant
from thermocline.format.log.action import ENTITIES_FEATURE
from thermocline.format.log.state import TableState
from thermocline.pipeline.run.job import (
    SessionFactory,
    Task,
    TaskProgress,
    TaskResult,
    find_tasks,
)
from thermocline.pipeline.run.workspace import JobWorkspace

JOB = "retain"


@dataclass(frozen=True, slots=True)
class RetainJob:
    """The job. With a grace period, it expires older versions and removes their files.

    `confirmed` names the tables whose retention may delete every row.
    """

    vacuum_grace_s: int | None = None
    confirmed: frozenset[str] = frozenset()
    name: str = JOB

    def due(self, site: JobWorkspace) -> Iterator[Task]:
        """Yield the tables that hold a bucket past their retention, from metadata alone."""
        yield from find_tasks(self.name, site, partial(_find_old_rows, site))

    def run(
        self,
        site: JobWorkspace,
        task: Task,
        spark: SessionFactory,  # noqa: ARG002
        tell: TaskProgress,
    ) -> TaskResult:
        """Delete the rows past the retention in one commit; then vacuum, if configured.

        `Invalid` if every row would go and `confirmed` does not name this table.
        """
        table = site.table(task.table)
        before = table.state().version
        tell("retain", 0, 1)
        state, rows = table.retain(yes=task.table in self.confirmed)
        tell("retain", 1, 1)
        numbers = {"rows": rows}
        if self.vacuum_grace_s is not None:
            done = vacuum(table, grace_s=self.vacuum_grace_s, dry_run=False)
            numbers |= {"files": len(done.files), "size_bytes": done.size_bytes}
        return TaskResult(state.version if state.version != before else None, numbers)


def _find_old_rows(site: JobWorkspace, name: str) -> Iterator[Task]:
    table = site.table(name)
    state = table.state()
    cut_off = _cut_off(table, state)
    if cut_off is None:
        return
    # By coverage: segments may still contain rows that are already deleted.
    held = table.index.at(state).whole
    if held and state.spec.bucket.start(held.first() + 1) <= cut_off:
        old = [s for s in state.segments if s.ts_min < cut_off]
        whole = sum(s.ts_max < cut_off for s in old)
        numbers = {"segments": len(old), "whole": whole}
        why = f"rows before {format_instant(cut_off)} are past {state.spec.retention}"
        yield Task(JOB, name, why, numbers)


def _cut_off(table: ColdTable, state: TableState) -> int | None:
    """Return the time before which rows are deleted; None if all rows are kept."""
    if ENTITIES_FEATURE in state.spec.features or state.spec.retention_s is None:
        return None
    return table.log.now() - state.spec.retention_s * NS_PER_S
