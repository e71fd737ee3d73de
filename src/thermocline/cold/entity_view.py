"""Entities at one version: cold rows, without those that newer rows replace, plus the newer rows.

In:   a state, the dirty keys, the newer rows of these keys
Out:  batches in which every key has at most one row

- A key is hidden exactly if it is in the set of dirty keys. A null in the set hides nothing, while
  SQL's `NOT IN` would then hide everything.
- Callers must filter by value after this step: a filter on the cold rows alone could return the old
  version of a row whose new version does not match.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap

from thermocline.cold.change.export_plan import (
    KEY_COLUMN,
    KeyHits,
    find_keys,
    slice_keys,
)
from thermocline.cold.segment.parquet import (
    decode_deletes,
    encode_deletes,
    filter_rows,
    find_stored_name,
    open_segment,
    project_columns,
    read_rows,
    unreadable_error,
)
from thermocline.cold.storage.storage import Storage
from thermocline.format.instant import TimeNs
from thermocline.format.log.state import SegmentSet, TableState


@dataclass(frozen=True, slots=True)
class EntityView:
    """One consistent reading of an entity table; `as_of` and `warning` say how old it is.

    `hides` are sorted, distinct keys whose rows in `state` are replaced by `rows`, which have the
    columns of `state`. The view contains everything committed before `as_of`. `warning` is empty if
    nothing committed before the reading is missing.
    """

    state: TableState
    hides: pa.Array
    rows: pa.Table
    as_of: TimeNs
    warning: str = ""
    facts: dict[str, object] = field(default_factory=dict)


def read_entity_rows(
    storage: Storage, view: EntityView, names: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a view, cold ones first, with all columns or those named."""
    state = view.state
    wanted = [c.name for c in state.schema.columns] if names is None else list(names)
    loaded = list(dict.fromkeys([*wanted, KEY_COLUMN]))
    hides = pc.drop_null(view.hides)
    for segment in state.segments:
        for rows in read_rows(storage, state, segment, loaded):
            batch = drop_keys(rows.batch, hides)
            if batch.num_rows:
                yield batch.select(wanted)
    yield from view.rows.select(wanted).to_batches()


def read_hits(storage: Storage, state: TableState, hits: KeyHits) -> pa.Table:
    """Return the rows at some hits, with the present columns of the state."""
    segment, schema = hits.segment, state.schema
    stored = {column.id: find_stored_name(state, segment, column) for column in schema.columns}
    physical = [name for name in stored.values() if name is not None]
    parts = []
    try:
        with open_segment(storage, segment) as source:
            file = pq.ParquetFile(source)
            first = 0
            for group in range(file.num_row_groups):
                end = first + file.metadata.row_group(group).num_rows
                inside = hits.positions[(hits.positions >= first) & (hits.positions < end)]
                if len(inside):
                    found = file.read_row_group(group, columns=physical).take(inside - first)
                    batch = pa.concat_batches(found.to_batches())
                    parts.append(project_columns(batch, schema.columns, stored))
                first = end
    except (pa.ArrowException, OSError) as error:
        raise unreadable_error(segment.path, error) from error
    return pa.Table.from_batches(parts, schema.arrow)


def drop_keys(batch: pa.RecordBatch, hides: pa.Array) -> pa.RecordBatch:
    """Return the rows whose keys are not hidden; `hides` must be sorted."""
    if not len(hides) or not batch.num_rows:
        return batch
    ids = batch.column(KEY_COLUMN)
    bounds = pc.min_max(ids).as_py()
    near = slice_keys(hides, bounds["min"], bounds["max"])
    if not len(near):
        return batch
    return filter_rows(batch, ~pc.is_in(ids, value_set=near).to_numpy(zero_copy_only=False))


class HiddenPositions:
    """Caches, from view to view, where the hidden keys are in the files of one version.

    A key's position in a version never changes, so each view searches only for keys that became
    dirty since the last one. Safe to use from many threads.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        self._of: TableState | None = None
        self._known = pa.array([], pa.string())
        self._positions: dict[str, BitMap] = {}
        self._state: TableState | None = None

    def state(self, view: EntityView) -> TableState:
        """Return the view's state with its hidden rows deleted, so that a scan needs no join.

        The state exists in this process only; no log has it.
        """
        hides = pc.drop_null(view.hides) if view.hides.null_count else view.hides
        with self._lock:
            if self._of is view.state and self._known is hides and self._state is not None:
                return self._state
            if self._of is not view.state or not _contains_all(hides, self._known):
                # Another version, or an export after which a key is no longer hidden.
                self._of, self._known, self._positions = view.state, hides.slice(0, 0), {}
                self._state = view.state
            new = hides.filter(pc.invert(pc.is_in(hides, value_set=self._known)))
            if len(new):
                self._add_positions(view.state, new)
            self._known = hides
            assert self._state is not None
            return self._state

    def _add_positions(self, state: TableState, keys: pa.Array) -> None:
        is_new = False
        for hits in find_keys(self._storage, state, keys):
            if len(hits.positions):
                held = self._positions.setdefault(hits.segment.segment_id, BitMap())
                held |= BitMap(hits.positions.astype(np.uint32))
                is_new = True
        if not is_new:
            return
        hidden = {
            segment.segment_id: encode_deletes(
                decode_deletes(segment.deletes) | self._positions[segment.segment_id]
            )
            for segment in state.segments
            if segment.segment_id in self._positions
        }
        self._state = hide_rows(state, hidden)


def _contains_all(keys: pa.Array, others: pa.Array) -> bool:
    """Tell whether `keys` contains all the others."""
    return len(others) == 0 or bool(pc.all(pc.is_in(others, value_set=keys)).as_py())


def hide_rows(state: TableState, hidden: Mapping[str, str]) -> TableState:
    """Return a state whose segments have these deletion vectors, by segment id.

    The state exists in this process only; no log has it.
    """
    if not hidden:
        return state
    changed = dict(state.segments.changed)
    rows = state.totals.rows
    for segment in state.segments:
        deletes = hidden.get(segment.segment_id)
        if deletes is not None:
            count = len(decode_deletes(deletes))
            changed[segment.segment_id] = replace(segment, deletes=deletes, deleted_count=count)
            rows -= count - segment.deleted_count
    segments = SegmentSet(state.segments.base, changed, state.segments.gone)
    return replace(state, segments=segments, totals=replace(state.totals, rows=rows))
