"""Rollups: aggregates of a table by windows, recomputed only where their source changed.

In:   declarations; the cold version of each source
Out:  tables with one row for each window and group, equal to the result of a full recompute

- The target stores the version of its source that it was computed from. Commits and coverage of the
  source since then give the changed buckets. Late rows, deletes and retention change buckets too.
- Changes that others made to the target (a restore, a delete by hand) are corrected as well, except
  in windows past the target's retention.
- One commit replaces the windows and the stored version: a reader sees both or neither.
- One task reads each window, from the pinned version of the source: no row counts twice, and Spark
  transfers only the names of segments.
- Hot rows count after the flush that makes them cold. A job does not flush.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from thermocline.cold.care.pin import pin_version
from thermocline.cold.change.append import plan_columns
from thermocline.cold.change.commit_staged import new_tag, sweep_staged
from thermocline.cold.change.replace_windows import (
    WindowReplacement,
    create_fresh_columns,
    replace_windows,
)
from thermocline.cold.segment.stage import StagedSegment
from thermocline.cold.segment.write_target import WriteTarget
from thermocline.cold.table import ColdTable
from thermocline.errors import Conflict, Invalid, NotFound, OutcomeUnknown
from thermocline.format.coverage import Buckets
from thermocline.format.instant import NS_PER_S, NS_PER_US, TIME_MIN
from thermocline.format.log.action import SetTxn, TableSpec
from thermocline.format.log.state import SegmentSet, TableState
from thermocline.pipeline.rollup.changed_buckets import (
    ChangedBuckets,
    all_changed,
    convert_buckets,
    find_changes,
)
from thermocline.pipeline.rollup.kernel import RollupKernel
from thermocline.pipeline.rollup.spec import Rollup
from thermocline.pipeline.rollup.task import RollupWork, WindowPiece, compute_piece
from thermocline.pipeline.run.job import (
    SessionFactory,
    Task,
    TaskProgress,
    TaskResult,
    find_tasks,
)
from thermocline.pipeline.run.workspace import JobWorkspace
from thermocline.pipeline.spark.tasks import run_tasks

ROWS_PER_PIECE = 2_000_000
DECLARATION = "rollup"
"""The key of the declaration in the spec of a target."""


@dataclass(frozen=True, slots=True)
class DueRollup:
    """A rollup's windows to compute, as of one state of its source and one of its target.

    `target` is None if the table does not exist yet.
    """

    rollup: Rollup
    source: ColdTable
    read_at: TableState
    spec: TableSpec
    changed: ChangedBuckets
    windows: Buckets
    target: ColdTable | None = None
    target_state: TableState | None = None
    is_redeclared: bool = False

    @property
    def task(self) -> Task:
        """The task, described for a person."""
        what = "every window" if self.changed.is_everything else f"{len(self.windows):,} windows"
        why = self.changed.why or f"{self.rollup.source} changed"
        numbers = {"windows": len(self.windows), "version": self.read_at.version}
        return Task("rollup", self.rollup.name, f"{what}: {why}", numbers, self.rollup)


@dataclass(frozen=True, slots=True)
class RollupJob:
    """The job that keeps rollups up to date; a rollup of a rollup comes after its source."""

    rollups: Sequence[Rollup]
    name: str = field(default="rollup", init=False)

    def due(self, site: JobWorkspace) -> Iterator[Task]:
        """Yield the rollups whose source changed since their last run."""
        named = {rollup.name: rollup for rollup in order_by_source(self.rollups)}

        def find(name: str) -> Iterator[Task]:
            found = find_due(site, named[name])
            if found is not None:
                yield found.task

        yield from find_tasks(self.name, named, find)

    def run(
        self, site: JobWorkspace, task: Task, spark: SessionFactory, tell: TaskProgress
    ) -> TaskResult:
        """Recompute what is due now, in one commit; `task` only gives the rollup."""
        rollup = task.detail
        assert isinstance(rollup, Rollup)
        found = ensure_target(site, rollup)
        if found is None or found.target is None:
            return TaskResult(None)
        with pin_version(found.source, found.read_at.version):
            work, replacement = plan_recompute(found)
            tag, staged = work.target.tag, list[StagedSegment]()
            try:
                if work.pieces:
                    tell("computing windows", 0, len(work.pieces))
                    reports = run_tasks(spark(), partial(compute_piece, work), len(work.pieces))
                    staged = [one for report in reports for one in report]
                    tell("computing windows", len(work.pieces), len(work.pieces))
                state = replace_windows(found.target, staged, replacement)
            except OutcomeUnknown:
                raise  # the commit may have succeeded, so its staged files must stay
            except BaseException:
                sweep_staged(found.target, tag)
                raise
        sweep_staged(found.target, tag, {path for s in staged for path in s.paths})
        numbers = {
            "windows": len(found.windows),
            "segments_read": len({s.segment_id for piece in work.pieces for s in piece.segments}),
            "rows": sum(one.measured.row_count for one in staged),
        }
        return TaskResult(state.version, numbers)


def order_by_source(rollups: Iterable[Rollup]) -> list[Rollup]:
    """Return the rollups in an order in which each comes after its source."""
    named: dict[str, Rollup] = {}
    for one in rollups:
        if one.name.lower() in named:
            hint = "give each rollup a different name"
            raise Invalid("two rollups have the same name", hint=hint, rollup=one.name)
        named[one.name.lower()] = one
    found: dict[str, Rollup] = {}
    for one in named.values():
        chain: list[Rollup] = []
        at: Rollup | None = one
        while at is not None and at.name not in found:
            if at in chain:
                hint = "use a table as the source of one of them"
                names = [each.name for each in chain]
                raise Invalid("rollups are sources of each other", hint=hint, rollups=names)
            chain.append(at)
            at = named.get(at.source.lower())
        found |= {each.name: each for each in reversed(chain)}
    return list(found.values())


def find_due(site: JobWorkspace, rollup: Rollup) -> DueRollup | None:
    """Return the windows of a rollup that are due, from metadata alone; None if none are."""
    source = site.table(rollup.source)
    state = source.state()
    if not state.schema.columns:
        return None
    rollup = rollup.on_index(state.spec.bucket)
    spec = _target_spec(rollup, state)
    try:
        target = site.table(rollup.name)
    except NotFound:
        found, windows = all_changed("it was never computed"), _held_windows(source, state, rollup)
        return DueRollup(rollup, source, state, spec, found, windows) if windows else None
    seen = target.state()
    _check_target(rollup, seen.spec, spec)
    is_anew = seen.spec.extra[DECLARATION] != spec.extra[DECLARATION]
    found = (
        all_changed("its declaration changed")
        if is_anew
        else _find_changed_windows(rollup, source, state, target, seen)
    )
    windows = _held_windows(source, state, rollup) if found.is_everything else found.buckets
    windows = windows - _past_retention(target, seen)
    if not windows and not found.is_everything:
        return None
    return DueRollup(rollup, source, state, spec, found, windows, target, seen, is_anew)


def ensure_target(site: JobWorkspace, rollup: Rollup) -> DueRollup | None:
    """Return the windows that are due; create the rollup's table if it does not exist."""
    found = find_due(site, rollup)
    if found is None or found.target is not None:
        return found
    RollupKernel(rollup, found.read_at.schema, found.spec.time_column).result_schema  # noqa: B018  checks it
    site.ensure_table(rollup.name, found.spec)
    return find_due(site, rollup)


def plan_recompute(found: DueRollup) -> tuple[RollupWork, WindowReplacement]:
    """Return the work, cut into pieces, and the commit to make of its result."""
    assert found.target is not None
    assert found.target_state is not None
    rollup, state, seen = found.rollup, found.read_at, found.target_state
    kernel = RollupKernel(rollup, state.schema, state.spec.time_column)
    spec, result = seen.spec, kernel.result_schema
    if found.is_redeclared:
        spec = replace(spec, extra={**spec.extra, DECLARATION: rollup.declaration})
        schema = create_fresh_columns(seen, result, spec)
    else:
        schema = plan_columns(seen, [result], evolve=True).schema
    target = WriteTarget(found.target.storage.root, spec, schema, new_tag())
    # A task gets its segments in its piece and needs only the columns of the state.
    slim = replace(state, segments=SegmentSet(), requests={}, txns={}, marks={}, holes=())
    work = RollupWork(
        kernel, found.source.storage.root, slim, target, _cut_pieces(rollup, state, found.windows)
    )
    version_key, time_key = _txn_keys(state)
    replacement = WindowReplacement(
        None if found.changed.is_everything else found.windows,
        seen,
        {version_key: state.version, time_key: state.time // NS_PER_US},
        (spec, result) if found.is_redeclared else None,
    )
    return work, replacement


def _cut_pieces(rollup: Rollup, state: TableState, windows: Buckets) -> tuple[WindowPiece, ...]:
    """Cut the windows into pieces of about `ROWS_PER_PIECE` rows."""
    if not windows:
        return ()
    every = rollup.every
    start, end = every.start(windows.first()), every.start(windows.last() + 1)
    spans = [
        (every.number_of(segment.ts_min), every.number_of(segment.ts_max) + 1, segment)
        for segment in state.segments.overlapping(start, end)
    ]
    meeting = [span for span in spans if windows.count(span[0], span[1])]
    meeting.sort(key=lambda span: (span[0], span[1], span[2].segment_id))
    cuts, rows = [windows.first()], 0
    for first, _, segment in meeting:
        if rows >= ROWS_PER_PIECE and first > cuts[-1]:
            cuts.append(first)
            rows = 0
        rows += segment.row_count - segment.deleted_count
    ends = [*cuts[1:], windows.last() + 1]
    pieces = []
    for first, after in zip(cuts, ends, strict=True):
        part = windows.within(first, after)
        inside = tuple(
            segment
            for low, high, segment in meeting
            if low < after and first < high and part.count(max(low, first), min(high, after))
        )
        if inside:
            pieces.append(WindowPiece(part, inside))
    return tuple(pieces)


def _find_changed_windows(
    rollup: Rollup, source: ColdTable, state: TableState, target: ColdTable, seen: TableState
) -> ChangedBuckets:
    """Return the windows to compute again, as buckets of the target."""
    version_key, time_key = _txn_keys(state)
    since = seen.txns.get(version_key)
    if since is None:
        return all_changed("it was never computed")
    if since < source.log.first_version():
        return all_changed("the versions of its source since then have expired")
    try:
        is_that = source.log.commit(since).time // NS_PER_US == seen.txns.get(time_key)
    except NotFound:
        is_that = False
    if not is_that:
        return all_changed("the history of its source was replaced")
    ours = find_changes(source, since, state)
    theirs = find_changes(target, _last_refill(target, seen, version_key), seen)
    if ours.is_everything or theirs.is_everything:
        return (
            ours if ours.is_everything else all_changed(f"other writers changed it: {theirs.why}")
        )
    windows = convert_buckets(ours.buckets, state.spec.bucket, rollup.every) | theirs.buckets
    why = "" if ours else "other writers changed it"
    return ChangedBuckets(buckets=windows, why=why)


def _last_refill(target: ColdTable, seen: TableState, key: str) -> int:
    for version in range(seen.version, target.log.first_version() - 1, -1):
        for action in target.log.commit(version).actions:
            if isinstance(action, SetTxn) and action.application == key:
                return version
    return 0


def _txn_keys(source: TableState) -> tuple[str, str]:
    """Return the names under which a target stores its source's version and this version's time.

    The time differs if the source was restored from a copy and has another commit of that number.
    """
    return f"rollup:{source.spec.table_id}", f"rollup_time:{source.spec.table_id}"


def _held_windows(source: ColdTable, state: TableState, rollup: Rollup) -> Buckets:
    return convert_buckets(source.index.at(state).whole, state.spec.bucket, rollup.every)


def _past_retention(target: ColdTable, seen: TableState) -> Buckets:
    """Return the windows that the target's retention deletes completely."""
    if seen.spec.retention_s is None:
        return Buckets()
    bucket = seen.spec.bucket
    end = bucket.number_of(target.log.now() - seen.spec.retention_s * NS_PER_S)
    return Buckets.from_range(bucket.number_of(TIME_MIN), end)


def _target_spec(rollup: Rollup, source: TableState) -> TableSpec:
    return TableSpec(
        "",
        source.spec.time_column,
        rollup.every,
        # Only the entity columns of the source, whose number of entities is limited there.
        tuple(name for name in rollup.by if name in source.spec.entity_columns),
        entities_max=source.spec.entities_max,
        extra={DECLARATION: rollup.declaration},
    )


def _check_target(rollup: Rollup, seen: TableSpec, wanted: TableSpec) -> None:
    if DECLARATION not in seen.extra:
        raise Conflict(
            "a table with the rollup's name exists, and it is not a rollup",
            hint="give the rollup another name",
            rollup=rollup.name,
        )
    names = ("bucket", "time_column", "entity_columns")
    differing = [name for name in names if getattr(seen, name) != getattr(wanted, name)]
    if differing:
        raise Invalid(
            "windows and groups of an existing rollup cannot change",
            hint="declare it under another name; only aggregates and condition may change",
            rollup=rollup.name,
            differing=differing,
            was=seen.extra[DECLARATION],
        )
