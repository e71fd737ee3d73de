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

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from thermocline.cold.log.transaction import CommitPlan
from thermocline.cold.segment.measure import MeasurementBuilder
from thermocline.cold.segment.parquet import (
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
        for segment in state.segments.overlapping(window.start, window.end):
            action = self._delete_from_segment(state, segment)
            if action is not None:
                actions.append(action)
        if not actions:
            return None
        metrics = {"rows": self.rows_deleted, "segments": len(actions)}
        return CommitPlan(self._operation, tuple(actions), (window,), metrics)

    def _delete_from_segment(self, state: TableState, segment: Segment) -> Action | None:
        names = list(
            dict.fromkeys(
                [state.spec.time_column, *state.spec.entity_columns, *self._search.columns]
            )
        )
        found = [np.empty(0, dtype=np.uint32)]
        left = MeasurementBuilder(state.spec)
        for rows in read_rows(self._storage, state, segment, names):
            hit = self._match_rows(state, rows.batch)
            found.append(rows.positions[hit].astype(np.uint32))
            left.add(filter_rows(rows.batch, ~hit))
        positions = np.concatenate(found)
        if not len(positions):
            return None
        self.rows_deleted += len(positions)
        deletes = decode_deletes(segment.deletes) | BitMap(positions)
        if len(deletes) == segment.row_count:
            return removal(segment)
        path, checksum = self._stage.put_coverage(left.build().coverage)
        return with_deletes(
            segment,
            deletes=encode_deletes(deletes),
            deleted_count=len(deletes),
            coverage_path=path,
            coverage_checksum=checksum,
        )

    def _match_rows(self, state: TableState, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        hit = match_window(batch.column(state.spec.time_column), self._search.window)
        if hit.any():
            matched = self._search.matcher(batch.select(list(self._search.columns)))
            hit &= matched.fill_null(False).to_numpy(zero_copy_only=False)
        return hit


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
