"""Reports from metadata alone: gaps, coverage, history, differences. No Parquet file is opened.

In:   a table, a time range, optionally one entity
Out:  Arrow tables (`gaps`, `coverage`, `history`, `diff`) and single values

- A range is half-open and in UTC; the default is from the first bucket held to the last.
- Where entity columns are declared, gaps are listed for each entity; with `per_entity=False` a
  bucket counts as held when any entity has it.
- An unknown entity is an error, never "no gaps". In a table without any entity, the whole range is
  the gap, of an entity whose values are null.
- Tables of ranges and entities carry `verified` in their schema's metadata: `false` when a sidecar
  they are computed from contradicts the log.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds
from pyroaring import BitMap64

from thermocline.cold.log.commit_log import CLOCK_STEP
from thermocline.cold.table import ColdTable
from thermocline.errors import Invalid, NotFound
from thermocline.format.argument import check_count, check_flag
from thermocline.format.bitmap_runs import BitmapRuns, invert_runs
from thermocline.format.bucket import parse_bucket
from thermocline.format.coverage import (
    BIAS,
    Buckets,
    Coverage,
    collect_runs,
    entity_key,
    entity_values,
)
from thermocline.format.index_column import REPORTED_TIME, bucket_starts
from thermocline.format.instant import NS_PER_US, TimeNs, format_instant
from thermocline.format.log.action import AddSegment, RemoveSegment, SetDeletes
from thermocline.format.log.commit import Commit
from thermocline.format.log.state import TableState
from thermocline.format.types import plain_type

HISTORY_ROWS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class CoverageReport:
    """What a version holds, with methods for every question about coverage."""

    state: TableState
    coverage: Coverage
    is_verified: bool = True

    @property
    def has_entities(self) -> bool:
        """Whether the table keeps coverage for each entity."""
        return bool(self.state.spec.entity_columns)

    def span(self, start: object, end: object) -> tuple[int, int]:
        """Return the bucket numbers of a time range; a missing end is that of what is held."""
        bucket, whole = self.state.spec.bucket, self.coverage.whole
        low = None if start is None else bucket.parse_position(start)
        high = None if end is None else bucket.parse_position(end)
        if low is not None and high is not None:
            bucket.span(low, high)
        elif not whole:
            return (0, 0)
        first = whole.first() if low is None else bucket.number_of(low)
        after = whole.last() + 1 if high is None else bucket.number_of(high - 1) + 1
        first, after = bucket.clamp(first), bucket.clamp(after)
        return first, max(first, after)

    def buckets(self, entity: object = None) -> Buckets:
        """Return the buckets of one entity, or of the whole table."""
        return self.coverage.whole if entity is None else self._find_buckets(entity)

    def _find_buckets(self, entity: object) -> Buckets:
        key = self.key(entity)
        if key not in self.coverage.entities:
            raise NotFound(
                "the table holds no such entity",
                hint="`coverage` lists the entities it holds",
                entity=entity,
            )
        return self.coverage.entities[key]

    def key(self, entity: object) -> str:
        """Return the key of an entity named by a mapping, a sequence or one plain value."""
        names = self.state.spec.entity_columns
        if isinstance(entity, Mapping):
            if set(entity) != set(names):
                raise _entity_error(names, entity)
            values = [entity[name] for name in names]
        else:
            values = list(entity) if isinstance(entity, tuple | list) else [entity]
        if len(values) != len(names):
            raise _entity_error(names, entity)
        try:
            return entity_key(values)
        except (TypeError, ValueError, RecursionError) as error:  # no column has such a value
            raise _entity_error(names, entity) from error

    def gaps(
        self, start: object, end: object, entity: object = None, *, per_entity: bool = True
    ) -> pa.Table:
        """Return the missing ranges: entity columns, start, end, buckets."""
        check_flag(per_entity, "per_entity")
        first, after = self.span(start, end)
        if entity is not None:
            keys, runs = collect_runs({self.key(entity): self._find_buckets(entity)})
        elif self.has_entities and per_entity:
            keys, runs = collect_runs(self.coverage.entities)
            if not keys:
                no_entity = entity_key([None] * len(self.state.spec.entity_columns))
                keys, runs = collect_runs({no_entity: self.coverage.whole})
        else:
            keys, runs = collect_runs({"": self.coverage.whole})
        holes = invert_runs(runs, len(keys), first + BIAS, after + BIAS)
        has_keys = entity is not None or (self.has_entities and per_entity)
        return self._build_table(holes, keys if has_keys else None)

    def runs(
        self, start: object = None, end: object = None, *, per_entity: bool = True
    ) -> pa.Table:
        """Return the held ranges: entity columns, start, end, buckets; clipped to a range."""
        check_flag(per_entity, "per_entity")
        keys: Sequence[str] | None = None
        if self.has_entities and per_entity:
            keys, runs = collect_runs(self.coverage.entities)
        else:
            runs = collect_runs({"": self.coverage.whole})[1]
        return self._build_table(_clip_runs(runs, *self.span(start, end)), keys)

    def _sort_by_entity(self) -> tuple[list[str], list[Buckets]]:
        """Return the entities' keys and buckets, sorted by key."""
        entities = self.coverage.entities
        keys = sorted(entities)
        return keys, [entities[key] for key in keys]

    def _build_table(self, runs: BitmapRuns, keys: Sequence[str] | None) -> pa.Table:
        bucket = self.state.spec.bucket
        columns: dict[str, Any] = {}
        if keys is not None:
            distinct = self._entity_columns(keys)
            columns = {name: c.take(pa.array(runs.owner)) for name, c in distinct.items()}
        columns[_choose_name("start", columns)] = bucket_starts(runs.first - BIAS, bucket)
        columns[_choose_name("end", columns)] = bucket_starts(runs.end - BIAS, bucket)
        columns[_choose_name("buckets", columns)] = pa.array(runs.end - runs.first)
        return self._add_metadata(pa.table(columns))

    def ratio(self, start: object, end: object, entity: object = None) -> float:
        """Return the share of buckets held, of one entity or of all known entities."""
        first, after = self.span(start, end)
        parts = [self._find_buckets(entity)] if entity is not None else self._list_buckets()
        cells = (after - first) * len(parts)
        held = sum(part.count(first, after) for part in parts)
        return held / cells if cells else 0.0

    def is_covered(self, start: object, end: object, entity: object = None) -> bool:
        """Tell whether every bucket of the range is held, by every entity if none is named."""
        first, after = self.span(start, end)
        parts = [self._find_buckets(entity)] if entity is not None else self._list_buckets()
        return bool(parts) and all(part.holds_all(first, after) for part in parts)

    def last_full(
        self, length: object, before: object = None, entity: object = None
    ) -> tuple[int, int] | None:
        """Return the newest range of at least this length that is held in full, or None.

        The range is one of buckets; `length` is a duration, or steps of an integer index.
        """
        bucket = self.state.spec.bucket
        window = parse_bucket(length, "length", bucket.index_type)
        limit = None if before is None else bucket.number_of(bucket.parse_position(before))
        parts = [self._find_buckets(entity)] if entity is not None else self._list_buckets()
        if not parts:
            return None
        shared = Buckets(BitMap64.intersection(*(part.bitmap for part in parts)))
        starts, ends = shared.run_bounds()
        ends = ends if limit is None else np.minimum(ends, limit)
        if not len(ends):
            return None
        # Months differ in length, so a window may need one bucket fewer elsewhere than at the end.
        newest = int(ends[-1])
        buckets_min = max(1, newest - bucket.first_of_window(newest, window) - 1)
        fitting = np.flatnonzero(ends - starts >= buckets_min)[::-1]
        for first, end in zip(starts[fitting].tolist(), ends[fitting].tolist(), strict=True):
            if (begin := bucket.first_of_window(end, window)) >= first:
                return begin, end
        return None

    def silent_entities(self, start: object, end: object) -> pa.Table:
        """Return the entities without a row in the range: entity columns and last_seen_before."""
        if not self.has_entities:
            raise Invalid(
                "the table has no entity columns", hint="declare entity_columns at creation"
            )
        first, after = self.span(start, end)
        found = {
            key: buckets.last() + 1
            for key, buckets in zip(*self._sort_by_entity(), strict=True)
            if not buckets.count(first, after)
        }
        columns = self._entity_columns(list(found))
        ends = np.array(list(found.values()), dtype=np.int64)
        columns["last_seen_before"] = bucket_starts(ends, self.state.spec.bucket)
        return self._add_metadata(pa.table(columns))

    def _entity_columns(self, keys: Sequence[str]) -> dict[str, Any]:
        rows = [entity_values(key) for key in keys]
        columns = self.state.schema.by_name  # empty before the first append
        return {
            name: _entity_column(
                [row[place] for row in rows],
                plain_type(columns[name].type) if name in columns else pa.null(),
            )
            for place, name in enumerate(self.state.spec.entity_columns)
        }

    def _add_metadata(self, answer: pa.Table) -> pa.Table:
        is_verified = self.is_verified and not self.state.holes
        metadata = {"verified": str(is_verified).lower(), "holes": str(len(self.state.holes))}
        return answer.replace_schema_metadata(metadata)

    def _list_buckets(self) -> list[Buckets]:
        if self.has_entities:
            return list(self.coverage.entities.values())
        return [self.coverage.whole] if self.coverage.whole else []


def report_coverage(table: ColdTable, at: object = None) -> CoverageReport:
    """Return what a table holds, now or at a version or instant."""
    state, coverage = table.coverage(at)
    return CoverageReport(state, coverage, table.index.is_verified(state))


HOLES = pa.schema(
    [
        ("source", pa.string()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("after", REPORTED_TIME),
        ("before", REPORTED_TIME),
    ]
)


def holes(state: TableState) -> pa.Table:
    """Return the known writes that were lost before they were flushed."""
    times = [
        pa.array([None if time is None else time // NS_PER_US for time in column], pa.int64()).cast(
            REPORTED_TIME
        )
        for column in (
            [hole.after for hole in state.holes],
            [hole.before for hole in state.holes],
        )
    ]
    plain_columns = [
        pa.array([hole.source for hole in state.holes], pa.string()),
        pa.array([hole.first for hole in state.holes], pa.int64()),
        pa.array([hole.last for hole in state.holes], pa.int64()),
    ]
    return pa.Table.from_arrays([*plain_columns, *times], schema=HOLES)


HISTORY = pa.schema(
    [
        ("version", pa.int64()),
        ("time", REPORTED_TIME),
        ("operation", pa.string()),
        ("segments_added", pa.int64()),
        ("segments_removed", pa.int64()),
        ("rows_added", pa.int64()),
        ("rows_removed", pa.int64()),
        ("txn_id", pa.string()),
        ("note", pa.string()),
    ]
)


def history(table: ColdTable, limit: int = HISTORY_ROWS_MAX) -> pa.Table:
    """Return the commits, newest first."""
    check_count(limit, "limit")
    rows: list[dict[str, Any]] = []
    earliest_ns: int | None = None
    for commit in table.commits():
        if len(rows) >= limit:
            break
        added = [a.segment for a in commit.actions if isinstance(a, AddSegment)]
        removed = [a for a in commit.actions if isinstance(a, RemoveSegment)]
        hidden = [a for a in commit.actions if isinstance(a, SetDeletes)]
        rows.append(
            {
                "version": commit.version,
                "time": commit.time // NS_PER_US,
                "operation": commit.operation,
                "segments_added": len(added),
                "segments_removed": len(removed),
                "rows_added": sum(s.row_count - s.deleted_count for s in added),
                "rows_removed": sum(a.row_count - a.deleted_count for a in removed)
                + sum(a.segment.deleted_count - a.before_count for a in hidden),
                "txn_id": commit.txn_id,
                "note": _describe_commit(commit, earliest_ns),
            }
        )
        earliest_ns = commit.time if earliest_ns is None else min(earliest_ns, commit.time)
    return pa.Table.from_pylist(rows, schema=HISTORY)


def _describe_commit(commit: Commit, earliest_ns: int | None) -> str | None:
    """Return a remark on a commit for the reader of the history; None for most commits.

    `earliest_ns` is the earliest time of the later versions.
    """
    notes = []
    if earliest_ns is not None and commit.time >= earliest_ns:
        until = format_instant(TimeNs(earliest_ns))
        notes.append(f"the clock ran ahead: this version was made by {until}")
    ahead_s = commit.metrics.get(CLOCK_STEP)
    if ahead_s is not None:
        notes.append(f"the version before is stamped {ahead_s:,} s ahead of the clock")
    if commit.operation == "repair" and commit.metrics.get("lost_first"):
        first, last = commit.metrics["lost_first"], commit.metrics["lost_last"]
        notes.append(f"versions {first} to {last} as they were are lost, and the loss was accepted")
    return "; ".join(notes) or None


@dataclass(frozen=True, slots=True)
class VersionDiff:
    """What changed between two versions, as segments and counts."""

    old: int
    new: int
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    rows: int
    size_bytes: int
    columns: tuple[str, ...]
    buckets_gained: int
    buckets_lost: int


def diff(table: ColdTable, old: object, new: object) -> VersionDiff:
    """Return what changed from one version or instant to another."""
    before, after = report_coverage(table, old), report_coverage(table, new)
    one = {segment.segment_id: segment for segment in before.state.segments}
    two = {segment.segment_id: segment for segment in after.state.segments}
    shared = one.keys() & two.keys()
    columns = {c.name: str(c.type) for c in before.state.schema.columns}
    changes = [
        f"{column.name}: {column.type}"
        for column in after.state.schema.columns
        if columns.get(column.name) != str(column.type)
    ]
    return VersionDiff(
        before.state.version,
        after.state.version,
        tuple(sorted(two[key].path for key in two.keys() - one.keys())),
        tuple(sorted(one[key].path for key in one.keys() - two.keys())),
        tuple(sorted(two[key].path for key in shared if one[key] != two[key])),
        after.state.totals.rows - before.state.totals.rows,
        after.state.totals.size_bytes - before.state.totals.size_bytes,
        tuple(changes),
        len(after.coverage.whole - before.coverage.whole),
        len(before.coverage.whole - after.coverage.whole),
    )


def _entity_column(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return the values of entities' keys in their column's type; the inverse of `entity_key`."""
    if kinds.is_time(kind):  # Arrow cannot parse a time of day, so parse a timestamp instead
        moments = [None if value is None else f"1970-01-01T{value}" for value in values]
        return pa.array(moments, pa.string()).cast(pa.timestamp(kind.unit)).cast(kind)
    if kinds.is_duration(kind):
        return pa.array(values, pa.string()).cast(pa.int64()).cast(kind)
    if kinds.is_temporal(kind) or kinds.is_decimal(kind):
        return pa.array(values, pa.string()).cast(kind)
    return pa.array(values, kind)


def _clip_runs(runs: BitmapRuns, first: int, end: int) -> BitmapRuns:
    low, high = np.maximum(runs.first, first + BIAS), np.minimum(runs.end, end + BIAS)
    kept = low < high
    return BitmapRuns(runs.owner[kept], low[kept], high[kept])


def _choose_name(name: str, taken: Mapping[str, Any]) -> str:
    """Return the name, with an underscore appended where an entity column has this name."""
    return f"{name}_" if name in taken else name


def _entity_error(names: Sequence[str], entity: object) -> Invalid:
    return Invalid(
        "this does not name an entity of the table",
        hint="name the entity by its columns' values, such as {'symbol': 'NVDA'}",
        entity_columns=list(names),
        got=entity,
    )
