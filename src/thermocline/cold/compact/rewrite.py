"""Rewrites segments: merged, sorted and without deleted rows, with the same rows in each version.

In:   the live segments of a table, chosen by size and count from the log alone
Out:  one version for each group, with the same rows in fewer files

- A kernel merges: in this process, or on workers. The process that calls `compact` commits what
  the kernel reports, once, and only if the digests of the rows before and after are equal.
- Readers, flushes, appends, deletes and exports never wait for a compaction. If one of them changes
  an input first, the compaction starts again, a bounded number of times.
- The next compaction removes the files of one that died, and takes smaller batches.
- The old files stay until a vacuum removes them: kept versions can still be read.
"""

import logging
import random
import time as clock
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

from thermocline.cold.change.replace_segments import SegmentRewrite, replace_segments
from thermocline.cold.change.work_lease import SHARE_MAX, WorkLease, lease_work, sweep_dead_work
from thermocline.cold.compact.merge import (
    LOADED_BYTES_MAX,
    MergeResult,
    Slice,
    merge,
    without_segments,
)
from thermocline.cold.compact.plan import (
    INPUTS_LEAST,
    WINDOWS_NS,
    CompactionGroup,
    CompactionLimits,
    plan_groups,
    plan_slices,
    take_within_limits,
)
from thermocline.cold.segment.write_target import WriteTarget
from thermocline.cold.storage.storage import Storage
from thermocline.cold.table import ColdTable
from thermocline.errors import Conflict, Corruption, ThermoclineError, Unavailable
from thermocline.format.layout import Version
from thermocline.format.log.state import TableState

OPERATION = "compact"
TRIES_MAX = 8
WAIT_S_MAX = 1.0
HERE_BYTES_MAX = 64 << 20
"""How many bytes of rows a compaction in the caller's process holds; it uses about four times."""
HERE_LIMITS = CompactionLimits(
    target_bytes=16 << 20, target_rows=500_000, inputs_min=INPUTS_LEAST, level_max=10
)
"""Segments that one process merges within its memory: those of the Spark job are larger."""
PASSES_MAX = len(WINDOWS_NS) + 1

RewriteProgress: TypeAlias = Callable[[str, int, int], None]
"""Receives what is being done, how many parts of it are done, and how many there are."""

MergeKernel: TypeAlias = Callable[[WriteTarget, TableState, Sequence[Slice]], list[MergeResult]]
"""Merges slices in any process; the segments that it returns are durable in the table's folder."""

logger = logging.getLogger(__name__)


class KernelNotStarted(Unavailable):
    """The workers of a kernel could not be started: a smaller batch would fail as well."""


@dataclass(frozen=True, slots=True)
class RewriteResult:
    """One rewrite: the version that it committed, None if there was nothing to do."""

    version: Version | None
    numbers: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """What a compaction of a table did: the newest version, and sums over its commits."""

    version: Version
    commits: int = 0
    segments_before: int = 0
    segments: int = 0
    rows: int = 0
    purged: int = 0
    size_bytes_before: int = 0
    size_bytes: int = 0

    def add(self, done: RewriteResult) -> "CompactionReport":
        """Return the report with one more rewrite."""
        if done.version is None:
            return self
        sums = {name: getattr(self, name) + number for name, number in done.numbers.items()}
        return replace(self, version=done.version, commits=self.commits + 1, **sums)


def compact(
    table: ColdTable,
    wanted: Sequence[str],
    kernel: MergeKernel,
    limits: CompactionLimits,
    tell: RewriteProgress,
    operation: str = OPERATION,
    *,
    even_one: bool = False,
) -> RewriteResult:
    """Rewrite those of these segments that are live; return the version that was committed.

    One segment alone is rewritten if rows of it are deleted, or with `even_one`.
    `Conflict` if other writers changed the segments first in every try, `Unavailable` if workers
    died even with the smallest batch; the table is unchanged then.
    """
    share = sweep_dead_work(table, operation)
    for attempt in range(TRIES_MAX):
        state = table.state()
        live = [s for key in wanted if (s := state.segments.find(key)) is not None]
        group = CompactionGroup(tuple(take_within_limits(live, limits, share)))
        is_done = len(group.segments) == 1 and not group.deleted and not even_one
        if not group.segments or is_done:
            return RewriteResult(None)
        try:
            return _Attempt(table, state, group, operation, share).run(kernel, limits, tell)
        except Conflict as error:
            logger.info("%s of %s begins again: %s", operation, table.storage.root, error.message)
            clock.sleep(random.uniform(0, min(WAIT_S_MAX, 0.01 * 2**attempt)))  # noqa: S311
        except KernelNotStarted:
            raise  # a smaller batch would not start it either
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
        limits.level_max,
    )


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One attempt to rewrite a group, from one state."""

    table: ColdTable
    state: TableState
    group: CompactionGroup
    operation: str
    share: int

    def run(
        self, kernel: MergeKernel, limits: CompactionLimits, tell: RewriteProgress
    ) -> RewriteResult:
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
        return RewriteResult(after.version, numbers)

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
    target: WriteTarget,
    state: TableState,
    pieces: Sequence[Slice],
    *,
    storage: Storage | None = None,
    loaded_bytes_max: int = LOADED_BYTES_MAX,
) -> list[MergeResult]:
    """Merge slices one after another in this process; `storage` is the open table's.

    `Unavailable` when this process has too little memory: `compact` then tries a smaller batch.
    """
    how = {"storage": storage, "loaded_bytes_max": loaded_bytes_max}
    try:
        return [merge(target, state, piece, **how) for piece in pieces]  # type: ignore[arg-type]
    except MemoryError as error:
        hint = "give the process more memory; nothing was committed"
        raise Unavailable("there is too little memory to merge segments", hint=hint) from error


def compact_here(
    table: ColdTable,
    limits: CompactionLimits = HERE_LIMITS,
    *,
    loaded_bytes_max: int = HERE_BYTES_MAX,
    tell: RewriteProgress = lambda what, done, total: None,
) -> CompactionReport:
    """Compact all small segments of a table in this process, within a limit of memory.

    Each group of segments is one commit. `Conflict` if other writers always changed the segments
    first; the groups that were committed before stay.
    """
    kernel = partial(merge_here, storage=table.storage, loaded_bytes_max=loaded_bytes_max)
    report = CompactionReport(table.state().version)
    for _ in range(PASSES_MAX):
        groups = list(plan_groups(table.state(), limits))
        for group in groups:
            wanted = [segment.segment_id for segment in group.segments]
            report = report.add(compact(table, wanted, kernel, limits, tell))
        if not groups:
            break
    return report
