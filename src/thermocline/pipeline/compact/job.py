"""Compaction: merges many small segments into few large ones, sorted, without deleted rows.

In:   the live segments of a table, chosen by size and count from the log alone
Out:  one version for each task, with the same rows in fewer files

- Workers read, sort, write and read back; the driver commits what they report, once, and only if
  the digests of the rows before and after are equal.
- Readers, flushes, appends, deletes and exports never wait for a compaction. If one of them changes
  an input first, the compaction starts again, a bounded number of times.
- The next compaction removes the files of one that died, and takes smaller batches.
- The old files stay until a vacuum removes them: kept versions can still be read.
"""

import logging
import pickle
import random
import time as clock
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from thermocline.cold.change.replace_segments import SegmentRewrite, replace_segments
from thermocline.cold.change.work_lease import SHARE_MAX, WorkLease, lease_work, sweep_dead_work
from thermocline.cold.table import ColdTable
from thermocline.errors import Conflict, Corruption, ThermoclineError, Unavailable
from thermocline.format.log.state import TableState
from thermocline.pipeline.compact.merge import MergeResult, Slice, merge, without_segments
from thermocline.pipeline.compact.plan import (
    INPUTS_LEAST,
    CompactionGroup,
    CompactionLimits,
    plan_groups,
    plan_slices,
    take_within_limits,
)
from thermocline.pipeline.run.job import SessionFactory, Task, TaskProgress, TaskResult
from thermocline.pipeline.run.workspace import JobWorkspace
from thermocline.pipeline.spark.session import without_warnings
from thermocline.pipeline.spark.spark_errors import SparkNotStarted, translate_error
from thermocline.pipeline.spark.worker_stage import WriteTarget

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB = "compact"
TRIES_MAX = 8
WAIT_S_MAX = 1.0
REPORT = "merged binary"

MergeKernel: TypeAlias = Callable[[WriteTarget, TableState, Sequence[Slice]], list[MergeResult]]
"""Merges slices in any process; the segments that it returns are durable in the table's folder."""

MergeWorker: TypeAlias = Callable[
    [WriteTarget, TableState, Sequence[Slice], Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]
]
"""Runs in a worker: the numbers of slices in, their results out."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CompactJob:
    """The job. `kernel` merges the slices; by default Spark's workers do."""

    limits: CompactionLimits = field(default_factory=CompactionLimits)
    kernel: MergeKernel | None = None
    name: str = JOB

    def due(self, site: JobWorkspace) -> Iterator[Task]:
        """Yield the groups that are worth rewriting in each table, from the log alone."""
        for name in site:
            for group in plan_groups(site.table(name).state(), self.limits):
                yield _make_task(name, group)

    def run(
        self, site: JobWorkspace, task: Task, spark: SessionFactory, tell: TaskProgress
    ) -> TaskResult:
        """Rewrite the segments of a task in one commit; do nothing if they are gone."""
        table = site.table(task.table)
        kernel = self.kernel or spark_kernel(spark)
        return compact(table, list(task.detail), kernel, self.limits, tell)


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


def compact(
    table: ColdTable,
    wanted: Sequence[str],
    kernel: MergeKernel,
    limits: CompactionLimits,
    tell: TaskProgress,
    operation: str = JOB,
) -> TaskResult:
    """Rewrite those of these segments that are live; return the version that was committed.

    `Conflict` if other writers changed the segments first in every try, `Unavailable` if workers
    died even with the smallest batch; the table is unchanged then.
    """
    share = sweep_dead_work(table, operation)
    for attempt in range(TRIES_MAX):
        state = table.state()
        live = [s for key in wanted if (s := state.segments.find(key)) is not None]
        group = CompactionGroup(tuple(take_within_limits(live, limits, share)))
        if not group.segments or (len(group.segments) == 1 and not group.deleted):
            return TaskResult(None)
        try:
            return _Attempt(table, state, group, operation, share).run(kernel, limits, tell)
        except Conflict as error:
            logger.info("%s of %s begins again: %s", operation, table.storage.root, error.message)
            clock.sleep(random.uniform(0, min(WAIT_S_MAX, 0.01 * 2**attempt)))  # noqa: S311
        except SparkNotStarted:
            raise  # a smaller batch would not start Spark either
        except Unavailable as error:
            if share >= SHARE_MAX or len(group.segments) <= INPUTS_LEAST:
                raise
            share *= 2
            logger.warning("%s of %s takes less: %s", operation, table.storage.root, error.message)
    raise Conflict(
        "other writers changed the segments first in every try",
        hint="run it again later, or while fewer rows are deleted",
        tries=TRIES_MAX,
    )


def _divide_limits(limits: CompactionLimits, share: int) -> CompactionLimits:
    """Return limits with which a worker holds fewer rows at a time."""
    return CompactionLimits(
        max(limits.target_bytes // share, 1),
        max(limits.target_rows // share, 1),
        limits.inputs_min,
        limits.inputs_max,
        limits.bytes_max,
        limits.deleted_share_max,
    )


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One attempt to rewrite a group, from one state."""

    table: ColdTable
    state: TableState
    group: CompactionGroup
    operation: str
    share: int

    def run(self, kernel: MergeKernel, limits: CompactionLimits, tell: TaskProgress) -> TaskResult:
        group, table = self.group, self.table
        with lease_work(table, self.state.version, self.operation, self.share) as work:
            pieces = plan_slices(table, self.state, group, _divide_limits(limits, self.share))
            tell("merging", 0, len(pieces))
            merged = sum(self._merge(work, kernel, pieces), MergeResult())
            tell("merging", len(pieces), len(pieces))
            _check_content(group, merged)
            work.check_lease()
            what = SegmentRewrite(self.state, group.segments, self.operation, str(merged.after))
            after = replace_segments(table, what, merged.staged)
        numbers = {
            "segments_before": len(group.segments),
            "segments": len(merged.staged),
            "rows": merged.after.rows,
            "purged": group.deleted,
            "size_bytes_before": group.size_bytes,
            "size_bytes": sum(staged.checksum.size_bytes for staged in merged.staged),
        }
        return TaskResult(after.version, numbers)

    def _merge(
        self, work: WorkLease, kernel: MergeKernel, pieces: Sequence[Slice]
    ) -> list[MergeResult]:
        target = WriteTarget(self.table.storage.root, self.state.spec, self.state.schema, work.tag)
        try:
            return kernel(target, without_segments(self.state), pieces)
        except ThermoclineError as error:
            live = self.table.state().segments
            gone = sum(live.find(segment.segment_id) is None for segment in self.group.segments)
            if gone:
                # Not a fault: another writer removed segments while they were read.
                raise Conflict(
                    "segments were removed while they were read", hint="try again", segments=gone
                ) from error
            raise


def _check_content(group: CompactionGroup, merged: MergeResult) -> None:
    """Raise `Corruption` unless digest and number of the rows are the same before and after."""
    if merged.before != merged.after or merged.before.rows != group.rows:
        raise Corruption(
            "the rewritten rows are not the rows that were read",
            hint="nothing was committed; run fsck on the table, and report this bug",
            before=str(merged.before),
            after=str(merged.after),
            live_rows=group.rows,
        )


def merge_here(
    target: WriteTarget, state: TableState, pieces: Sequence[Slice]
) -> list[MergeResult]:
    """Merge slices one after another in this process."""
    return [merge(target, state, piece) for piece in pieces]


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
