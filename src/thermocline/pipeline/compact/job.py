"""The job `compact`: rewrites small segments as few large ones, on Spark's workers.

In:   the live segments of a table, chosen by size and count from the log alone
Out:  one version for each task, with the same rows in fewer files

- `cold/compact` plans, merges and commits; here are only the task and the kernel that lets Spark's
  workers merge. With the kernel `merge_here` the job runs without Spark.
"""

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from thermocline.cold.compact.merge import MergeResult, Slice, merge
from thermocline.cold.compact.plan import CompactionGroup, CompactionLimits, plan_groups
from thermocline.cold.compact.rewrite import OPERATION, MergeKernel, compact
from thermocline.cold.segment.write_target import WriteTarget
from thermocline.errors import ThermoclineError
from thermocline.format.log.state import TableState
from thermocline.pipeline.run.job import (
    SessionFactory,
    Task,
    TaskProgress,
    TaskResult,
    find_tasks,
)
from thermocline.pipeline.run.workspace import JobWorkspace
from thermocline.pipeline.spark.session import without_warnings
from thermocline.pipeline.spark.spark_errors import translate_error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB = OPERATION
REPORT = "merged binary"

MergeWorker: TypeAlias = Callable[
    [WriteTarget, TableState, Sequence[Slice], Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]
]
"""Runs in a worker: the numbers of slices in, their results out."""


@dataclass(frozen=True, slots=True)
class CompactJob:
    """The job. `kernel` merges the slices; by default Spark's workers do."""

    limits: CompactionLimits = field(default_factory=CompactionLimits)
    kernel: MergeKernel | None = None
    name: str = JOB

    def due(self, site: JobWorkspace) -> Iterator[Task]:
        """Yield the groups that are worth rewriting in each table, from the log alone."""

        def find(name: str) -> Iterator[Task]:
            for group in plan_groups(site.table(name).state(), self.limits):
                yield _make_task(name, group)

        yield from find_tasks(self.name, site, find)

    def run(
        self, site: JobWorkspace, task: Task, spark: SessionFactory, tell: TaskProgress
    ) -> TaskResult:
        """Rewrite the segments of a task in one commit; do nothing if they are gone."""
        table = site.table(task.table)
        kernel = self.kernel or spark_kernel(spark)
        done = compact(table, list(task.detail), kernel, self.limits, tell)
        return TaskResult(done.version, done.numbers)


def _make_task(name: str, group: CompactionGroup) -> Task:
    numbers = {
        "segments": len(group.segments),
        "rows": group.rows,
        "deleted": group.deleted,
        "size_bytes": group.size_bytes,
    }
    count = len(group.segments)
    why = f"{count} segments can be merged" if count > 1 else "rows of a segment are deleted"
    return Task(JOB, name, why, numbers, tuple(s.segment_id for s in group.segments))


def spark_kernel(spark: SessionFactory, work: MergeWorker | None = None) -> MergeKernel:
    """Return the kernel that merges in Spark's workers; its first use starts the session."""
    return lambda target, state, pieces: merge_on_spark(spark(), target, state, pieces, work)


def merge_on_spark(
    spark: "SparkSession",
    target: WriteTarget,
    state: TableState,
    pieces: Sequence[Slice],
    work: MergeWorker | None = None,
) -> list[MergeResult]:
    """Merge each slice in its own task; `Unavailable` when Spark or a worker fails."""
    frame = spark.range(0, len(pieces), 1, len(pieces))
    given = partial(work or report_merges, target, state, tuple(pieces))
    try:
        with without_warnings():
            reports = frame.mapInArrow(given, REPORT).collect()
    except Exception as error:
        raise translate_error(error) from error
    found = [pickle.loads(report.merged) for report in reports]  # noqa: S301  our own workers
    failed = next((one for one in found if isinstance(one, ThermoclineError)), None)
    if failed is not None:
        raise failed
    return found


def report_merges(
    target: WriteTarget,
    state: TableState,
    pieces: Sequence[Slice],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Merge the slices whose numbers come in; yield the result of each. For workers."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            made: MergeResult | ThermoclineError
            try:
                made = merge(target, state, pieces[number])
            except ThermoclineError as error:
                made = error  # returned, because Spark would turn a raised error into text
            yield pa.RecordBatch.from_pydict({"merged": [pickle.dumps(made)]})
