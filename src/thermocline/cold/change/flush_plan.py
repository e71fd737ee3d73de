"""Flushes: plans the one commit that adds a hot source's rows and moves the source's mark.

In:   rows with the table's present columns, the source, and the mark that the flush reaches
Out:  a plan for the transaction; rows are sorted and split by hour

- The mark is in the commit that names the segments: every reader that sees the rows sees the mark,
  and a repeated flush finds the mark and does nothing.
- A column that is null in every row is omitted from a large file, and reads as null.
- Acknowledged rows are never rejected: overlap and limits were checked when the rows were written,
  and are not checked here.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from thermocline.cold.coverage import CoverageIndex
from thermocline.cold.log.transaction import CommitPlan
from thermocline.cold.segment.measure import encode_entities
from thermocline.cold.segment.parquet import take_rows
from thermocline.cold.segment.stage import Stage, StagedSegment
from thermocline.format.index_column import index_numbers, unit_size
from thermocline.format.instant import NS_PER_S
from thermocline.format.log.action import (
    Action,
    AddSegment,
    Mark,
    Segment,
    SetMark,
    TableSpec,
)
from thermocline.format.log.commit_note import NoteRequests
from thermocline.format.log.state import TableState
from thermocline.format.null_columns import drop_null_columns
from thermocline.format.schema import ColumnFit, Schema

FILES_PER_FLUSH_MAX = 64
NS_PER_HOUR = 3_600 * NS_PER_S


class FlushPlanner:
    """Plans the flush of staged rows onto any state of the table."""

    def __init__(
        self,
        index: CoverageIndex,
        stage: Stage,
        source: str,
        mark: Mark,
        written: TableState,
        requests: Mapping[str, int],
    ) -> None:
        self._index = index
        self._stage = stage
        self._source = source
        self._mark = mark
        self._written = written
        self._requests = requests

    def plan(self, state: TableState) -> CommitPlan | None:
        """Return the commit that adds the rows; None when the state has them already."""
        if contains_flush(state, self._source, self._mark):
            return None
        segments = [self._segment(staged) for staged in self._stage.staged]
        for segment, staged in zip(segments, self._stage.staged, strict=True):
            self._index.remember(segment, staged.measured.coverage)
        added: list[Action] = [AddSegment(segment) for segment in segments]
        rows = sum(segment.row_count for segment in segments)
        metrics = {"segments": len(segments), "rows": rows}
        if self._requests:
            added.append(NoteRequests(self._requests))
        return CommitPlan("flush", (*added, SetMark(self._source, self._mark)), (), metrics)

    def _segment(self, staged: StagedSegment) -> Segment:
        schema, names = self._written.schema, staged.arrow.names
        absent = tuple(column.id for column in schema.columns if column.name not in names)
        return staged.segment(
            self._written.schema_id, schema, ColumnFit(absent), self._written.spec
        )


def contains_flush(state: TableState, source: str, mark: Mark) -> bool:
    """Tell whether a state contains the flush of a source with this mark."""
    return state.marks.get(source, 0) >= mark


def stage_rows(stage: Stage, rows: pa.Table, schema: Schema, spec: TableSpec) -> None:
    """Write rows as segments, sorted by entity and index: one for each hour if it is a time."""
    if not rows.num_rows:
        return
    # A file needs its entity columns, even if they are all null: its coverage is measured by them.
    batch = pa.concat_batches(drop_null_columns(rows, spec.entity_columns).to_batches())
    for places in _split_by_hour(batch, spec):
        stage.write_table(pa.Table.from_batches([take_rows(batch, places)]), schema, spec)


def _split_by_hour(batch: pa.RecordBatch, spec: TableSpec) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the sorted positions of the rows of each hour; of several hours past the file limit."""
    values, unit = index_numbers(batch.column(spec.time_column))
    if spec.bucket.is_time:
        hours, place = np.unique(values // (NS_PER_HOUR // unit_size(unit)), return_inverse=True)
    else:
        hours, place = values[:1], np.zeros(len(values), dtype=np.int64)  # one file
    files = min(len(hours), FILES_PER_FLUSH_MAX)
    file_of = place * files // len(hours)
    codes, keys = encode_entities(batch, spec)
    rank = np.empty(len(keys), dtype=np.int64)
    rank[np.argsort(np.array(keys, dtype=object), kind="stable")] = np.arange(len(keys))
    order = np.lexsort((values, rank[codes], file_of))
    yield from np.split(order, np.flatnonzero(np.diff(file_of[order])) + 1)
