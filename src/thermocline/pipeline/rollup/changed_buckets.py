"""Finds the buckets of a table that changed between two versions, from commits and sidecars only.

In:   a table, an earlier version and a later state
Out:  `ChangedBuckets`: buckets of the table, or everything

- No Parquet file is opened. If a sidecar is missing or damaged, the segment's first and last time
  in the log are used instead; they include all of its rows.
- The result never lacks a bucket in which rows were added, removed or hidden. It may contain more:
  if some rows of a segment were deleted, every bucket of this segment counts.
- Compaction moves rows and changes none. A commit counts as a compaction if its operation says so,
  its output has a higher level, and the number of rows stayed the same.
- If the changes cannot be determined, the result is everything, never nothing: the log lacks a
  version, the buckets differ, or a column's name now means another column.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from thermocline.cold.storage.storage import Storage
from thermocline.cold.table import ColdTable
from thermocline.errors import Corruption, NotFound
from thermocline.format.bucket import Bucket
from thermocline.format.coverage import (
    Buckets,
    decode_coverage,
    sidecar_checksum,
    unite_buckets,
)
from thermocline.format.log.action import (
    Action,
    AddSegment,
    RemoveSegment,
    Segment,
    SetDeletes,
    SetTable,
    TableSpec,
)
from thermocline.format.log.commit import Commit
from thermocline.format.log.state import TableState
from thermocline.format.schema import Schema

NEUTRAL = frozenset({"compact"})
COMMITS_WALKED_MAX = 100_000


@dataclass(frozen=True, slots=True)
class ChangedBuckets:
    """The changes: everything, for the reason `why`, or these buckets of the table."""

    is_everything: bool = False
    buckets: Buckets = field(default_factory=Buckets)
    why: str = ""

    def __bool__(self) -> bool:
        return self.is_everything or bool(self.buckets)


def convert_buckets(buckets: Buckets, held: Bucket, every: Bucket) -> Buckets:
    """Return the windows of width `every` that overlap buckets of width `held`."""
    if held == every:
        return buckets
    stretches = (every.span(held.start(run.first), held.start(run.end)) for run in buckets.runs())
    return unite_buckets(Buckets.from_range(first, end) for first, end in stretches)


def all_changed(why: str) -> ChangedBuckets:
    """Return that everything may have changed, for the reason `why`."""
    return ChangedBuckets(is_everything=True, why=why)


def find_changes(table: ColdTable, since: int, state: TableState) -> ChangedBuckets:
    """Return what changed after the version `since`, up to the state."""
    if since > state.version:
        return all_changed("the log is shorter than it was")
    if state.version - since > COMMITS_WALKED_MAX:
        return all_changed("there are too many commits in between")
    try:
        walk = _CommitWalk(table.storage, _find_state(table, since), state)
        found = [walk.follow(commit) for commit in _read_commits(table, since, state.version)]
    except _ChangesUnknown as unknown:
        return all_changed(str(unknown))
    return ChangedBuckets(buckets=unite_buckets(buckets for part in found for buckets in part))


class _ChangesUnknown(Exception):
    """The changes cannot be determined."""


def _find_state(table: ColdTable, version: int) -> TableState | None:
    try:
        return table.log.state(version)
    except NotFound:
        return None  # expired; its commits still exist, and usually suffice


def _read_commits(table: ColdTable, since: int, newest: int) -> Iterator[Commit]:
    for version in range(since + 1, newest + 1):
        try:
            yield table.log.commit(version)
        except NotFound as error:
            raise _ChangesUnknown("a commit in between is missing") from error


class _CommitWalk:
    """Follows commits in order and tracks the segments that were live before each."""

    def __init__(self, storage: Storage, before: TableState | None, after: TableState) -> None:
        self._storage = storage
        self._before = before
        self._bucket = after.spec.bucket
        self._description = None if before is None else (before.spec, before.schema)
        self._live: dict[str, Segment | None] = {}

    def follow(self, commit: Commit) -> list[Buckets]:
        """Return the buckets that a commit changed."""
        is_neutral = _is_neutral(commit)
        found: list[Buckets] = []
        for action in commit.actions:
            if isinstance(action, SetTable):
                self._apply_table_change(action)
            else:
                found += [] if is_neutral else self._changed_buckets(action)
                self._apply(action)
        return found

    def _changed_buckets(self, action: Action) -> list[Buckets]:
        match action:
            case AddSegment(segment):
                return [self._segment_buckets(segment)]
            case RemoveSegment():
                before = self._find_segment(action.segment_id)
                if before and before.coverage_checksum == action.coverage_checksum:
                    return [self._segment_buckets(before)]
                return [self._bucket_range(action.ts_min, action.ts_max)]
            case SetDeletes(segment, _, checksum):
                before = self._find_segment(segment.segment_id)
                if before and before.coverage_checksum == checksum:
                    return [self._segment_buckets(before), self._segment_buckets(segment)]
                return [self._bucket_range(segment.ts_min, segment.ts_max)]
        return []

    def _apply(self, action: Action) -> None:
        match action:
            case AddSegment(segment) | SetDeletes(segment):
                self._live[segment.segment_id] = segment
            case RemoveSegment():
                self._live[action.segment_id] = None

    def _find_segment(self, segment_id: str) -> Segment | None:
        if segment_id in self._live or self._before is None:
            return self._live.get(segment_id)
        return self._before.segments.find(segment_id)

    def _apply_table_change(self, action: SetTable) -> None:
        if self._description is None:
            raise _ChangesUnknown("the table was changed, and its earlier description has expired")
        why = _describe_difference(self._description, (action.spec, action.schema))
        if why:
            raise _ChangesUnknown(why)
        self._description = (action.spec, action.schema)

    def _segment_buckets(self, segment: Segment) -> Buckets:
        """Return a segment's buckets from its sidecar, or all from its first to its last."""
        try:
            data = self._storage.read(segment.coverage_path)
            if sidecar_checksum(data) == segment.coverage_checksum:
                coverage = decode_coverage(data)
                if coverage.bucket_code == self._bucket.code:
                    return coverage.whole
        except (NotFound, Corruption):
            pass
        return self._bucket_range(segment.ts_min, segment.ts_max)

    def _bucket_range(self, first: int, last: int) -> Buckets:
        return Buckets.from_range(self._bucket.number_of(first), self._bucket.number_of(last) + 1)


def _is_neutral(commit: Commit) -> bool:
    if commit.operation not in NEUTRAL:
        return False
    rows = 0
    for action in commit.actions:
        match action:
            case AddSegment(segment) if segment.level:
                rows += segment.row_count - segment.deleted_count
            case AddSegment():
                return False
            case RemoveSegment():
                rows -= action.row_count - action.deleted_count
            case SetDeletes():
                return False
    return rows == 0


def _describe_difference(before: tuple[TableSpec, Schema], after: tuple[TableSpec, Schema]) -> str:
    """Return why two descriptions of a table cannot be compared; empty when they can."""
    (old, columns), (new, fresh) = before, after
    if (old.bucket, old.time_column) != (new.bucket, new.time_column):
        return "the table has other buckets or another time column now"
    names = {name: fresh.by_name.get(name) for name in columns.by_name}
    if any(now is None or now.id != columns.by_name[name].id for name, now in names.items()):
        return "a column has another name now"
    return ""
