"""Pairs the hot half of a table with the one cold version it exactly complements.

In:   a `HotSnapshot`, then the newest state of the table's log, read in that order
Out:  a `TableView`: the cold rows of `state`, plus the hot parts that it does not contain

- Every row acknowledged before the snapshot is in exactly one half of the view. If a flush commits
  in between, the version's mark is past the flushed parts, and the view omits them.
- The same holds for each journal by itself where a table has several: the snapshots of all of them
  are taken before the one version is read.
- A snapshot of entities, whose rows change, names the one version it belongs to and the rows of
  that version that it hides. It fits no other version.
- Order matters: a version read before the snapshot would lack the rows that a flush moved into a
  newer version before the snapshot was taken.
- If a version's mark is behind what the tier has retired, the log went back, and rows are missing
  from both halves. That is an error, never a shorter answer.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from thermocline.cold.entity_view import hide_rows
from thermocline.cold.segment.measure import measure
from thermocline.cold.segment.parquet import (
    filter_rows,
    match_window,
    measure_segment,
    project_columns,
)
from thermocline.cold.table import ColdTable
from thermocline.errors import Corruption
from thermocline.format.coverage import Coverage, empty_coverage
from thermocline.format.log.action import Mark
from thermocline.format.log.conflict import TimeWindow
from thermocline.format.log.state import TableState
from thermocline.format.schema import Schema
from thermocline.hot.tier import HotPart, HotSnapshot, HotVersion

CHUNKS_MAX = 128  # 5,000 batches cost the engine 300 ms of overhead, 50 cost nothing


@dataclass(frozen=True, slots=True)
class TableView:
    """One exact reading of a table; if it is not exact, `missing` says what is missing."""

    state: TableState
    parts: tuple[HotPart, ...] = ()
    pairing: HotVersion | None = None
    missing: str = ""

    @property
    def warning(self) -> str:
        """What the view may lack; empty for an exact one."""
        return self.missing or (self.pairing.warning if self.pairing else "")


def resolve_view(hot: HotSnapshot | None, table: ColdTable) -> TableView:
    """Return the view of a snapshot that was taken before this call.

    `Corruption` when the log no longer has rows that the tier flushed to it.
    """
    if hot is not None and hot.pairing is not None:
        state = table.log.state(hot.pairing.version)
        return TableView(hide_rows(state, hot.pairing.hidden), hot.parts, hot.pairing)
    state = table.state()
    if hot is None:
        return TableView(state)
    # Invariant: every source's snapshot was taken before this version was read.
    parts = tuple(part for one in hot.sources for part in parts_not_in(one, state.marks))
    return TableView(state, parts, missing=hot.warning)


def parts_not_in(hot: HotSnapshot, marks: Mapping[str, Mark]) -> tuple[HotPart, ...]:
    """Return the parts that a version with these marks does not contain."""
    arrived = marks.get(hot.source, Mark(0))
    if arrived < hot.mark:
        raise Corruption(
            "the table's log is behind what was flushed to it",
            hint="the log was replaced or rolled back outside of Thermocline; restore its `_log`",
            flushed=hot.mark,
            found=arrived,
        )
    return tuple(part for part in hot.parts if part.mark > arrived)


def hot_rows(view: TableView, names: Sequence[str] | None = None) -> pa.Table:
    """Return the hot rows of a view with the columns of its state, all or those named."""
    schema = view.state.schema
    wanted = schema.columns if names is None else [schema.column(name) for name in names]
    wanted_names = [column.name for column in wanted]
    nulls = _NullArrays(max((part.batch.num_rows for part in view.parts), default=0))
    batches = []
    for part in view.parts:
        then, held = _find_schema(view.state, part.schema_id), part.batch.schema.names
        if part.schema_id == view.state.schema_id and held == wanted_names:
            batches.append(part.batch)
            continue
        called = {c.id: then.by_id[c.id].name for c in wanted if c.id in then.by_id}
        known = {c.id: called[c.id] if called.get(c.id) in held else None for c in wanted}
        batches.append(project_columns(part.batch, wanted, known, nulls))
    fields = [column.field for column in wanted]
    rows = pa.Table.from_batches(batches, pa.schema(fields))
    return rows.combine_chunks() if len(batches) > CHUNKS_MAX else rows


def list_held_columns(view: TableView) -> list[str]:
    """Return the columns in which a hot row may have a value, and the entity columns."""
    state, kept = view.state, view.state.spec.entity_columns
    shapes = {(part.schema_id, tuple(part.batch.schema.names)) for part in view.parts}
    held = {_find_schema(state, then).column(name).id for then, names in shapes for name in names}
    return [c.name for c in state.schema.columns if c.id in held or c.name in kept]


class _NullArrays:
    """Makes null arrays: one array for each type, from which all others are slices."""

    def __init__(self, rows_max: int) -> None:
        self._rows_max = rows_max
        self._made: dict[pa.DataType, pa.Array] = {}

    def __call__(self, rows: int, kind: pa.DataType) -> pa.Array:
        if kind not in self._made:
            self._made[kind] = pa.nulls(self._rows_max, kind)
        return self._made[kind].slice(0, rows)


def _find_schema(state: TableState, schema_id: int) -> Schema:
    then = state.schemas.get(schema_id)
    if then is None:
        raise Corruption(
            "hot rows have columns that the table's log does not know",
            hint="the log was replaced or rolled back outside of Thermocline; restore its `_log`",
            schema_id=schema_id,
        )
    return then


def narrow_view(view: TableView, low_ns: int | None, high_ns: int | None) -> TableView:
    """Return a view without the hot parts that have no row between two times."""
    if low_ns is None and high_ns is None:
        return view
    time_id = view.state.schema.column(view.state.spec.time_column).id if view.parts else 0
    kept = []
    for part in view.parts:
        first, last = part.bounds(_find_schema(view.state, part.schema_id).by_id[time_id].name)
        if (low_ns is None or last >= low_ns) and (high_ns is None or first <= high_ns):
            kept.append(part)
    return TableView(view.state, tuple(kept), view.pairing, view.missing)


def hot_pieces(view: TableView) -> list[tuple[int, int, int]]:
    """Return first time, last time and number of rows of each hot part."""
    time_id = view.state.schema.column(view.state.spec.time_column).id if view.parts else 0
    return [
        (
            *part.bounds(_find_schema(view.state, part.schema_id).by_id[time_id].name),
            part.batch.num_rows,
        )
        for part in view.parts
    ]


def read_hot_window(
    view: TableView, names: Sequence[str], window: TimeWindow
) -> Iterator[pa.RecordBatch]:
    """Yield the hot rows whose times lie in a window."""
    if not view.parts:
        return
    time_column = view.state.spec.time_column
    for batch in hot_rows(view, list(dict.fromkeys([*names, time_column]))).to_batches():
        inside = match_window(batch.column(time_column), window)
        if inside.any():
            yield (batch if inside.all() else filter_rows(batch, inside)).select(list(names))


def measure_coverage(view: TableView, table: ColdTable) -> Coverage:
    """Return which buckets a view holds, including those of hot rows.

    The visible rows of segments with hidden rows are measured again.
    """
    hidden = {} if view.pairing is None else view.pairing.hidden
    cold = _measure_visible(view.state, hidden, table) if hidden else table.index.at(view.state)
    if not view.parts:
        return cold
    spec = view.state.spec
    rows = hot_rows(view, [spec.time_column, *spec.entity_columns])
    return cold.union(measure([rows], spec).coverage)


def _measure_visible(state: TableState, hidden: Mapping[str, str], table: ColdTable) -> Coverage:
    coverage = empty_coverage(state.spec.bucket.code)
    for segment in state.segments:
        if segment.segment_id in hidden:
            coverage = coverage.union(measure_segment(table.storage, state, segment).coverage)
        else:
            coverage = coverage.union(table.index.of_segment(state, segment))
    return coverage
