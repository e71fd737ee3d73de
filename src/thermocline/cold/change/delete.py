"""Deletes: finds rows by a predicate or by their age, and hides them by deletion vectors.

In:   a predicate on rows, or an instant before which rows are deleted
Out:  a plan for the transaction

- A segment that loses all its live rows is removed. Any other keeps its file and gets a deletion
  vector and a new coverage sidecar, so that gaps are correct at once.
- The plan records the time window it searched. If rows are appended there meanwhile, the search
  starts again, so a delete misses no row that was committed before it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from thermocline.cold.log.transaction import CommitPlan
from thermocline.cold.segment.measure import MeasurementBuilder
from thermocline.cold.segment.parquet import (
    ROWS_PER_BATCH,
    SegmentRows,
    decode_deletes,
    encode_deletes,
    filter_rows,
    match_window,
    read_rows,
)
from thermocline.cold.segment.stage import Stage
from thermocline.cold.storage.storage import Storage
from thermocline.errors import Invalid
from thermocline.format import instant
from thermocline.format.instant import NS_PER_S, TimeNs
from thermocline.format.log.action import Action, Segment, removal, with_deletes
from thermocline.format.log.conflict import TimeWindow
from thermocline.format.log.state import TableState

SEGMENTS_AT_ONCE = 256
"""How many segments are searched before the sidecars of their remaining rows are written."""

Matcher = Callable[[pa.RecordBatch], pa.Array]
"""Returns a boolean array as long as the batch: which rows match."""


@dataclass(frozen=True, slots=True)
class RowSearch:
    """Selects the rows in the window that the matcher matches."""

    matcher: Matcher
    columns: Sequence[str]
    window: TimeWindow = TimeWindow()


class DeletePlanner:
    """Plans the deletion of rows from any state of the table."""

    def __init__(self, storage: Storage, stage: Stage, search: RowSearch, operation: str) -> None:
        self._storage = storage
        self._stage = stage
        self._search = search
        self._operation = operation
        self.rows_deleted = 0

    def plan(self, state: TableState) -> CommitPlan | None:
        """Return the commit that deletes the rows found in this state; None when none match."""
        self.rows_deleted = 0
        window = self._search.window
        actions: list[Action] = []
        segments = state.segments.overlapping(window.start, window.end)
        written: Callable[[], list[Action]] = list
        with self._stage.work_beside() as beside:
            for first in range(0, len(segments), SEGMENTS_AT_ONCE):
                found = self._find_hits(state, segments[first : first + SEGMENTS_AT_ONCE])
                actions += written()
                # While these sidecars are written, the next segments are read.
                written = beside.start(partial(self._hide_hits, found))
            actions += written()
        if not actions:
            return None
        metrics = {"rows": self.rows_deleted, "segments": len(actions)}
        return CommitPlan(self._operation, tuple(actions), (window,), metrics)

    def _hide_hits(self, hit: Sequence["_SegmentHits"]) -> list[Action]:
        """Return the actions that hide these rows; the sidecars of what is left are staged."""
        deletes = [decode_deletes(one.segment.deletes) | one.positions() for one in hit]
        is_left = [
            len(gone) < one.segment.row_count for gone, one in zip(deletes, hit, strict=True)
        ]
        kept = [one for one, stays in zip(hit, is_left, strict=True) if stays]
        sidecars = iter(self._stage.put_coverages([one.left.build().coverage for one in kept]))
        return [
            _hide(one.segment, gone, *next(sidecars)) if stays else removal(one.segment)
            for one, gone, stays in zip(hit, deletes, is_left, strict=True)
        ]

    def _find_hits(
        self, state: TableState, segments: Sequence[Segment]
    ) -> Sequence["_SegmentHits"]:
        """Return the segments with matching rows; rows of small segments are matched together."""
        spec = state.spec
        wanted = [spec.time_column, *spec.entity_columns, *self._search.columns]
        names = list(dict.fromkeys(wanted))
        found = [_SegmentHits(state, segment) for segment in segments]
        waiting: list[tuple[_SegmentHits, SegmentRows]] = []
        row_count = 0
        for hits in found:
            for rows in read_rows(self._storage, state, hits.segment, names):
                if waiting and row_count + rows.batch.num_rows > ROWS_PER_BATCH:
                    self._match_together(state, waiting)
                    waiting, row_count = [], 0
                waiting.append((hits, rows))
                row_count += rows.batch.num_rows
        if waiting:
            self._match_together(state, waiting)
        hit = [one for one in found if one.count]
        self.rows_deleted += sum(one.count for one in hit)
        return hit

    def _match_together(
        self, state: TableState, waiting: Sequence[tuple["_SegmentHits", SegmentRows]]
    ) -> None:
        batches = [rows.batch for _, rows in waiting]
        batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        ends = np.cumsum([rows.batch.num_rows for _, rows in waiting])
        masks = np.split(self._match_rows(state, batch), ends[:-1])
        for (hits, rows), mask in zip(waiting, masks, strict=True):
            hits.add(rows, mask)

    def _match_rows(self, state: TableState, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        hit = match_window(batch.column(state.spec.time_column), self._search.window)
        if hit.any():
            matched = self._search.matcher(batch.select(list(self._search.columns)))
            hit &= matched.fill_null(False).to_numpy(zero_copy_only=False)
        return hit


class _SegmentHits:
    """The rows of a segment that match, and the measurement of those that do not."""

    def __init__(self, state: TableState, segment: Segment) -> None:
        self.segment = segment
        self.count = 0
        self.left = MeasurementBuilder(state.spec)
        self._found: list[npt.NDArray[np.uint32]] = []

    def add(self, rows: SegmentRows, hit: npt.NDArray[np.bool_]) -> None:
        found = rows.positions[hit].astype(np.uint32)
        if len(found):
            self._found.append(found)
            self.count += len(found)
        self.left.add(filter_rows(rows.batch, ~hit) if len(found) else rows.batch)

    def positions(self) -> BitMap:
        """Return the positions of the rows that match; some do."""
        return BitMap(np.concatenate(self._found))


def _hide(segment: Segment, deletes: BitMap, path: str, checksum: str) -> Action:
    return with_deletes(
        segment,
        deletes=encode_deletes(deletes),
        deleted_count=len(deletes),
        coverage_path=path,
        coverage_checksum=checksum,
    )


def match_every_row(batch: pa.RecordBatch) -> pa.Array:
    """Match every row."""
    return pa.array(np.ones(batch.num_rows, dtype=bool))


def search_expired(state: TableState, now: TimeNs, *, yes: bool) -> RowSearch:
    """Return the search for rows past the table's retention.

    `Invalid` when the cut-off is after the newest row, unless confirmed: every row would be
    deleted, and a clock that jumped ahead is a more likely reason than a user's wish.
    """
    if state.spec.retention_s is None:
        raise Invalid(
            "the table has no retention: it keeps all rows",
            hint="set a retention first, such as 90d",
        )
    cut_off = TimeNs(now - state.spec.retention_s * NS_PER_S)
    newest = max((segment.ts_max for segment in state.segments), default=None)
    if newest is not None and cut_off > newest and not yes:
        raise Invalid(
            "every row would be deleted: the cut-off is after the newest row",
            hint="check the clock; if it is right, confirm with yes=True (--yes)",
            cut_off=instant.format_instant(cut_off),
            newest=instant.format_instant(newest),
        )
    return RowSearch(match_every_row, (), TimeWindow(None, cut_off))
