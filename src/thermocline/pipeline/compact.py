"""Compaction: many small segments become few large ones, sorted, without their deleted rows.

In:   the live segments of a table, chosen by size and count from the log alone
Out:  one version a task, with the same rows in fewer files

- The workers read, sort, write and read back; the driver commits what they report, once, and only
  when the rows say the same before and after.
- Readers, flushes, appends, deletes and exports are never kept waiting: where one of them changes
  an input first, the compaction gives way and begins again, a bounded number of times.
- What a compactor that died left is removed by the next one, which also takes smaller batches.
- The old files stay until a vacuum takes them: versions that are kept can still be read.
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

from thermocline.errors import Conflict, Corruption, ThermoclineError, Unavailable
from thermocline.format.state import TableState
from thermocline.lake.rewrite import Rewrite, rewrite
from thermocline.lake.table import Table
from thermocline.lake.work import SHARE_MAX, Work, swept, working
from thermocline.pipeline.choose import INPUTS_LEAST, Group, Limits, groups, slices, within_limits
from thermocline.pipeline.failure import SparkNotStarted, told_of
from thermocline.pipeline.job import Done, Sparks, Task, Tell
from thermocline.pipeline.merge import Merged, Slice, bare, merge
from thermocline.pipeline.session import without_warnings
from thermocline.pipeline.ship import Target
from thermocline.pipeline.site import Site

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB = "compact"
TRIES_MAX = 8
WAIT_S_MAX = 1.0
REPORT = "merged binary"

Kernel: TypeAlias = Callable[[Target, TableState, Sequence[Slice]], list[Merged]]
"""Merges slices wherever it likes; what it returns is durable in the table's folder."""

Reporter: TypeAlias = Callable[
    [Target, TableState, Sequence[Slice], Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]
]
"""Runs in a worker: the numbers of slices in, what became of them out."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Compact:
    """The job. `kernel` is where slices are merged, in Spark's workers unless said otherwise."""

    limits: Limits = field(default_factory=Limits)
    kernel: Kernel | None = None
    name: str = JOB

    def due(self, site: Site) -> Iterator[Task]:
        """Yield what is worth writing anew in each table, from the log alone."""
        for name in site:
            for group in groups(site.table(name).state(), self.limits):
                yield _task(name, group)

    def run(self, site: Site, task: Task, spark: Sparks, tell: Tell) -> Done:
        """Write the segments of a task anew, in one commit; nothing when they are gone by now."""
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
    why = f"{count} segments can be fewer" if count > 1 else "rows of a segment are deleted"
    return Task(JOB, name, why, numbers, tuple(s.segment_id for s in group.segments))


def compact(
    table: Table,
    wanted: Sequence[str],
    kernel: Kernel,
    limits: Limits,
    tell: Tell,
    operation: str = JOB,
) -> Done:
    """Write these segments anew, as far as they are live; return the version that has it.

    `Conflict` when others were first every time, `Unavailable` when workers died with the
    smallest batch, too; nothing was changed then.
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
            raise  # a smaller batch starts no Spark either
        except Unavailable as error:
            if share >= SHARE_MAX or len(group.segments) <= INPUTS_LEAST:
                raise
            share *= 2
            logger.warning("%s of %s takes less: %s", operation, table.storage.root, error.message)
    raise Conflict(
        "others changed the segments first every time",
        hint="run it again later, or while less is deleted",
        tries=TRIES_MAX,
    )


def _smaller(limits: Limits, share: int) -> Limits:
    """Return limits under which a worker holds less at a time."""
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
    """One attempt at writing a group anew, from one state."""

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
                # Not a fault: somebody else removed what was being read, and was first.
                raise Conflict(
                    "segments have gone while they were read", hint="do it again", segments=gone
                ) from error
            raise


def _check(group: Group, merged: Merged) -> None:
    """Raise `Corruption` unless the rows say the same before and after, and are all there."""
    if merged.before != merged.after or merged.before.rows != group.rows:
        raise Corruption(
            "rows that were written anew are not the rows that were read",
            hint="nothing was committed; run fsck on the table, and tell us of it",
            before=str(merged.before),
            after=str(merged.after),
            live_rows=group.rows,
        )


def merge_here(target: Target, state: TableState, pieces: Sequence[Slice]) -> list[Merged]:
    """Merge slices one after another in this process."""
    return [merge(target, state, piece) for piece in pieces]


def on_spark(spark: Sparks, work: Reporter | None = None) -> Kernel:
    """Return the kernel that merges in Spark's workers; the session is started when it is used."""
    return lambda target, state, pieces: merge_on_spark(spark(), target, state, pieces, work)


def merge_on_spark(
    spark: "SparkSession",
    target: Target,
    state: TableState,
    pieces: Sequence[Slice],
    work: Reporter | None = None,
) -> list[Merged]:
    """Merge each slice in a task of its own; `Unavailable` when Spark or a worker fails."""
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
    """Merge the slices whose numbers come in; yield what became of each. For workers."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            made: Merged | ThermoclineError
            try:
                made = merge(target, state, pieces[number])
            except ThermoclineError as error:
                made = error  # as it is: Spark would make a text of it
            yield pa.RecordBatch.from_pydict({"merged": [pickle.dumps(made)]})
