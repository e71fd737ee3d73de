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

from thermocline.cold.change.replace_segments import Rewrite, rewrite
from thermocline.cold.change.work_lease import SHARE_MAX, Work, swept, working
from thermocline.cold.table import Table
from thermocline.errors import Conflict, Corruption, ThermoclineError, Unavailable
from thermocline.format.log.state import TableState
from thermocline.pipeline.compact.merge import Merged, Slice, bare, merge
from thermocline.pipeline.compact.plan import (
    INPUTS_LEAST,
    Group,
    Limits,
    groups,
    slices,
    within_limits,
)
from thermocline.pipeline.run.job import Done, Sparks, Task, Tell
from thermocline.pipeline.run.workspace import Site
from thermocline.pipeline.spark.session import without_warnings
from thermocline.pipeline.spark.spark_errors import SparkNotStarted, told_of
from thermocline.pipeline.spark.worker_stage import Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB = "compact"
TRIES_MAX = 8
WAIT_S_MAX = 1.0
REPORT = "merged binary"

Kernel: TypeAlias = Callable[[Target, TableState, Sequence[Slice]], list[Merged]]
"""Merges slices in any process; the segments that it returns are durable in the table's folder."""

Reporter: TypeAlias = Callable[
    [Target, TableState, Sequence[Slice], Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]
]
"""Runs in a worker: the numbers of slices in, their results out."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Compact:
    """The job. `kernel` merges the slices; by default Spark's workers do."""

    limits: Limits = field(default_factory=Limits)
    kernel: Kernel | None = None
    name: str = JOB

    def due(self, site: Site) -> Iterator[Task]:
        """Yield the groups that are worth rewriting in each table, from the log alone."""
        for name in site:
            for group in groups(site.table(name).state(), self.limits):
                yield _task(name, group)

    def run(self, site: Site, task: Task, spark: Sparks, tell: Tell) -> Done:
        """Rewrite the segments of a task in one commit; do nothing if they are gone."""
        table = site.table(task.table)
        kernel = self.kernel or on_spark(spark)
        return compact(table, list(task.detail), kernel, self.limits, tell)


def _task(name: str, group: Group) -> Task:
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
    table: Table,
    wanted: Sequence[str],
    kernel: Kernel,
    limits: Limits,
    tell: Tell,
    operation: str = JOB,
) -> Done:
    """Rewrite those of these segments that are live; return the version that was committed.

    `Conflict` if other writers changed the segments first in every try, `Unavailable` if workers
    died even with the smallest batch; the table is unchanged then.
    """
    share = swept(table, operation)
    for attempt in range(TRIES_MAX):
        state = table.state()
        live = [s for key in wanted if (s := state.segments.find(key)) is not None]
        group = Group(tuple(within_limits(live, limits, share)))
        if not group.segments or (len(group.segments) == 1 and not group.deleted):
            return Done(None)
        try:
            return _Try(table, state, group, operation, share).run(kernel, limits, tell)
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


def _smaller(limits: Limits, share: int) -> Limits:
    """Return limits with which a worker holds fewer rows at a time."""
    return Limits(
        max(limits.target_bytes // share, 1),
        max(limits.target_rows // share, 1),
        limits.inputs_min,
        limits.inputs_max,
        limits.bytes_max,
        limits.deleted_share_max,
    )


@dataclass(frozen=True, slots=True)
class _Try:
    """One attempt to rewrite a group, from one state."""

    table: Table
    state: TableState
    group: Group
    operation: str
    share: int

    def run(self, kernel: Kernel, limits: Limits, tell: Tell) -> Done:
        group, table = self.group, self.table
        with working(table, self.state.version, self.operation, self.share) as work:
            pieces = slices(table, self.state, group, _smaller(limits, self.share))
            tell("merging", 0, len(pieces))
            merged = sum(self._merged(work, kernel, pieces), Merged())
            tell("merging", len(pieces), len(pieces))
            _check(group, merged)
            work.check_lease()
            what = Rewrite(self.state, group.segments, self.operation, str(merged.after))
            after = rewrite(table, what, merged.staged)
        numbers = {
            "segments_before": len(group.segments),
            "segments": len(merged.staged),
            "rows": merged.after.rows,
            "purged": group.deleted,
            "size_bytes_before": group.size_bytes,
            "size_bytes": sum(staged.taken.size_bytes for staged in merged.staged),
        }
        return Done(after.version, numbers)

    def _merged(self, work: Work, kernel: Kernel, pieces: Sequence[Slice]) -> list[Merged]:
        target = Target(self.table.storage.root, self.state.spec, self.state.schema, work.mark)
        try:
            return kernel(target, bare(self.state), pieces)
        except ThermoclineError as error:
            live = self.table.state().segments
            gone = sum(live.find(segment.segment_id) is None for segment in self.group.segments)
            if gone:
                # Not a fault: another writer removed segments while they were read.
                raise Conflict(
                    "segments were removed while they were read", hint="try again", segments=gone
                ) from error
            raise


def _check(group: Group, merged: Merged) -> None:
    """Raise `Corruption` unless digest and number of the rows are the same before and after."""
    if merged.before != merged.after or merged.before.rows != group.rows:
        raise Corruption(
            "the rewritten rows are not the rows that were read",
            hint="nothing was committed; run fsck on the table, and report this bug",
            before=str(merged.before),
            after=str(merged.after),
            live_rows=group.rows,
        )


def merge_here(target: Target, state: TableState, pieces: Sequence[Slice]) -> list[Merged]:
    """Merge slices one after another in this process."""
    return [merge(target, state, piece) for piece in pieces]


def on_spark(spark: Sparks, work: Reporter | None = None) -> Kernel:
    """Return the kernel that merges in Spark's workers; its first use starts the session."""
    return lambda target, state, pieces: merge_on_spark(spark(), target, state, pieces, work)


def merge_on_spark(
    spark: "SparkSession",
    target: Target,
    state: TableState,
    pieces: Sequence[Slice],
    work: Reporter | None = None,
) -> list[Merged]:
    """Merge each slice in its own task; `Unavailable` when Spark or a worker fails."""
    frame = spark.range(0, len(pieces), 1, len(pieces))
    given = partial(work or reported, target, state, tuple(pieces))
    try:
        with without_warnings():
            reports = frame.mapInArrow(given, REPORT).collect()
    except Exception as error:
        raise told_of(error) from error
    found = [pickle.loads(report.merged) for report in reports]  # noqa: S301  our own workers
    failed = next((one for one in found if isinstance(one, ThermoclineError)), None)
    if failed is not None:
        raise failed
    return found


def reported(
    target: Target,
    state: TableState,
    pieces: Sequence[Slice],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Merge the slices whose numbers come in; yield the result of each. For workers."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            made: Merged | ThermoclineError
            try:
                made = merge(target, state, pieces[number])
            except ThermoclineError as error:
                made = error  # returned, because Spark would turn a raised error into text
            yield pa.RecordBatch.from_pydict({"merged": [pickle.dumps(made)]})
