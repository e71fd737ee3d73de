"""Replaces segments by rewritten ones, in one commit that changes no row.

In:   live segments as they were read, and the segments written from their live rows
Out:  one version in which the new segments replace the old ones

- Rows that are appended or flushed meanwhile do not matter, at any time.
- A deletion from an input meanwhile is never lost. In a table of entities the key of the deleted
  row is deleted from the output too. In other tables the rewrite fails with `Conflict`, is
  definitely not committed, and must be repeated from the present segments.
- The outputs must have exactly as many rows as the inputs had live rows.
- In a table of entities the commit says that it changes no row, so an export planned before it can
  still commit after it, and PostgreSQL ignores it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap

from thermocline.cold.change.commit_staged import adopt_staged
from thermocline.cold.change.export_plan import KEY_COLUMN, find_flush_note, find_keys
from thermocline.cold.log.transaction import CommitPlan
from thermocline.cold.segment.measure import STAT_LENGTH_MAX
from thermocline.cold.segment.parquet import (
    decode_deletes,
    encode_deletes,
    find_stored_name,
    measure_segment,
    open_segment,
    unreadable_error,
)
from thermocline.cold.segment.stage import Stage, StagedSegment
from thermocline.cold.storage.storage import Storage
from thermocline.cold.table import ColdTable
from thermocline.errors import Conflict, Corruption, Invalid
from thermocline.format.log.action import (
    ENTITIES_FEATURE,
    Action,
    AddSegment,
    RemoveSegment,
    Segment,
    TableSpec,
    removal,
)
from thermocline.format.log.commit_note import NoteFlush
from thermocline.format.log.state import TableState
from thermocline.format.schema import ColumnFit

NEUTRAL_EPOCH = 0
"""The epoch of a commit that no entity store made."""


@dataclass(frozen=True, slots=True)
class SegmentRewrite:
    """The segments that were read, their state, and the operation name of the new commit.

    `content` is the digest of the rows, before and after; it is shown in the history.
    """

    read_at: TableState
    inputs: Sequence[Segment]
    operation: str = "compact"
    content: str = ""

    def __post_init__(self) -> None:
        if not self.inputs:
            raise Invalid("there are no segments to rewrite", hint="name at least one segment")

    @property
    def row_count(self) -> int:
        """The number of the inputs' rows that were live when they were read."""
        return sum(segment.row_count - segment.deleted_count for segment in self.inputs)


def replace_segments(
    table: ColdTable, what: SegmentRewrite, staged: Sequence[StagedSegment]
) -> TableState:
    """Replace the inputs by the staged segments; return the state after.

    `Conflict` when an input has changed meanwhile in a way that cannot be applied to the outputs.
    The staged files are removed unless the commit was made.
    """
    stage = adopt_staged(table, staged)
    rewriting = _RewritePlanner(table, stage, what)
    return table.run_transaction(stage, rewriting.plan, before=rewriting.check)


class _RewritePlanner:
    """Plans the replacement onto any state of the table."""

    def __init__(self, table: ColdTable, stage: Stage, what: SegmentRewrite) -> None:
        self._storage = table.storage
        self._log = table.log
        self._index = table.index
        self._stage = stage
        self._what = what
        self._is_keyed = ENTITIES_FEATURE in what.read_at.spec.features
        self._bounds: dict[str, tuple[str, str]] = {}

    def check(self) -> None:
        """Raise unless the outputs have as many rows as the inputs and can be read back."""
        written = sum(staged.measured.row_count for staged in self._stage.staged)
        if written != self._what.row_count:
            raise Corruption(
                "a rewrite and its inputs differ in their number of rows",
                hint="nothing was committed; run fsck on the table, and report this",
                read=self._what.row_count,
                written=written,
            )
        for staged in self._stage.staged:
            # Order matters: the outputs are read back before the inputs may be removed.
            taken = staged.checksum
            self._storage.check(staged.path, taken.size_bytes, taken.checksum, fresh=True)
            if self._is_keyed:
                self._bounds[staged.segment_id] = _read_key_bounds(self._storage, staged)

    def plan(self, state: TableState) -> CommitPlan | None:
        """Return the commit that replaces the segments; `Conflict` when they have changed."""
        _check_spec(self._what.read_at.spec, state.spec)
        now = {s.segment_id: self._find_live(state, s) for s in self._what.inputs}
        outputs = list(self._fit_outputs())
        lost = [
            (before, gone)
            for before in self._what.inputs
            if (gone := _find_deleted_since(before, now[before.segment_id]))
        ]
        if lost:
            outputs = list(
                self._hide_lost_keys(state, outputs, _read_lost_keys(self._storage, state, lost))
            )
        live = [segment for segment in now.values() if segment is not None]
        actions: list[Action] = [removal(segment) for segment in live]
        actions += [AddSegment(segment) for segment in outputs]
        if self._is_keyed:
            actions.append(NoteFlush(self._what.operation, NEUTRAL_EPOCH, state.time))
        metrics: dict[str, Any] = {
            "segments": len(outputs),
            "rows": sum(segment.row_count - segment.deleted_count for segment in outputs),
            "replaced": len(live),
            "purged": sum(segment.deleted_count for segment in self._what.inputs),
        }
        if self._what.content:
            metrics["content"] = self._what.content
        return CommitPlan(self._what.operation, tuple(actions), (), metrics)

    def _find_live(self, state: TableState, read: Segment) -> Segment | None:
        """Return an input as it is now; None when exports have removed all its rows."""
        now = state.segments.find(read.segment_id)
        if now is None:
            if self._is_keyed and self._is_superseded(state, read.segment_id):
                return None
            raise _rewrite_conflict("a segment was removed since it was read", read)
        if now.deletes != read.deletes and not self._is_keyed:
            raise _rewrite_conflict("rows of a segment were deleted since it was read", read)
        if not decode_deletes(read.deletes) <= decode_deletes(now.deletes):
            raise _rewrite_conflict("deleted rows of a segment came back since it was read", read)
        return now

    def _is_superseded(self, state: TableState, segment_id: str) -> bool:
        """Tell whether an export, and not another rewrite, removed a segment."""
        for version in range(self._what.read_at.version + 1, state.version + 1):
            commit = self._log.commit(version)
            for action in commit.actions:
                if isinstance(action, RemoveSegment) and action.segment_id == segment_id:
                    note = find_flush_note(commit)
                    return note is not None and bool(note.changes)
        return False

    def _fit_outputs(self) -> Iterator[Segment]:
        written = self._what.read_at
        level = 1 + max(segment.level for segment in self._what.inputs)
        for staged in self._stage.staged:
            made = staged.segment(written.schema_id, written.schema, ColumnFit(), written.spec)
            segment = replace(made, level=level)
            bounds = self._bounds.get(staged.segment_id)
            if bounds is not None and max(map(len, bounds)) <= STAT_LENGTH_MAX:
                key_id = str(written.schema.column(KEY_COLUMN).id)
                segment = replace(segment, stats={**segment.stats, key_id: bounds})
            self._index.remember(segment, staged.measured.coverage)
            yield segment

    def _hide_lost_keys(
        self, state: TableState, outputs: Sequence[Segment], keys: pa.Array
    ) -> Iterator[Segment]:
        """Yield the outputs without the rows of these keys, which were deleted meanwhile."""
        found = {
            hits.segment.segment_id: hits.positions
            for hits in find_keys(self._storage, state, keys, outputs)
        }
        if sum(map(len, found.values())) != len(keys):
            raise _rewrite_conflict("deleted rows were not found again", self._what.inputs[0])
        for segment in outputs:
            positions = found.get(segment.segment_id, ())
            if not len(positions):
                yield segment
                continue
            gone = BitMap(np.asarray(positions, dtype=np.uint32))
            if len(gone) == segment.row_count:
                continue  # no version names its file: vacuum removes it
            hidden = replace(segment, deletes=encode_deletes(gone), deleted_count=len(gone))
            coverage = measure_segment(self._storage, state, hidden).coverage
            path, checksum = self._stage.put_coverage(coverage)
            made = replace(hidden, coverage_path=path, coverage_checksum=checksum)
            self._index.remember(made, coverage)
            yield made


def _rewrite_conflict(message: str, segment: Segment) -> Conflict:
    hint = "repeat the rewrite from the present segments"
    return Conflict(message, hint=hint, segment=segment.segment_id)


def _check_spec(read: TableSpec, now: TableSpec) -> None:
    """Raise `Conflict` when the settings by which segments are measured have changed."""
    names = ("table_id", "time_column", "bucket", "entity_columns", "features")
    changed = [name for name in names if getattr(read, name) != getattr(now, name)]
    if changed:
        raise Conflict(
            "the table was changed while its segments were rewritten",
            hint="repeat the rewrite from the present segments",
            changed=changed,
        )


def _find_deleted_since(read: Segment, now: Segment | None) -> BitMap:
    """Return which rows of a segment were live when it was read and are deleted now."""
    before = decode_deletes(read.deletes)
    return (BitMap(range(read.row_count)) if now is None else decode_deletes(now.deletes)) - before


def _read_lost_keys(
    storage: Storage, state: TableState, lost: Sequence[tuple[Segment, BitMap]]
) -> pa.Array:
    """Return the keys, sorted, of these rows of segments."""
    found: list[str] = []
    column = state.schema.column(KEY_COLUMN)
    for segment, gone in lost:
        name = find_stored_name(state, segment, column)
        assert name is not None
        try:
            with open_segment(storage, segment, fresh=True) as source:
                keys = pq.ParquetFile(source).read(columns=[name]).column(0)
        except (pa.ArrowException, OSError) as error:
            raise unreadable_error(segment.path, error) from error
        found += keys.take(pa.array(gone.to_array(), pa.int64())).to_pylist()
    return pa.array(sorted(found), pa.string())


def _read_key_bounds(storage: Storage, staged: StagedSegment) -> tuple[str, str]:
    """Return the first and the last key of a file that is sorted by them."""
    path, taken = staged.path, staged.checksum
    try:
        with storage.open_segment(path, taken.size_bytes, taken.checksum) as source:
            file = pq.ParquetFile(source)
            first = file.read_row_group(0, columns=[KEY_COLUMN]).column(0)
            last = file.read_row_group(file.num_row_groups - 1, columns=[KEY_COLUMN]).column(0)
    except (pa.ArrowException, OSError) as error:
        raise unreadable_error(path, error) from error
    return first[0].as_py(), last[-1].as_py()
