"""Exports of entities: plans the one commit that adds new rows and hides the rows they replace.

In:   every changed key; the rows of keys that exist, or staged segments of these rows; the version
      that the export is based on
Out:  a plan for the transaction; keys found in the segments of a version

- Every version has at most one live row for each key: the commit that adds a key's row hides the
  row it replaces. A deleted key is hidden and no row is added: that is its tombstone.
- The fence: an export may commit on the version it is based on, or after neutral commits (schema,
  expiry, compaction) on top of it. After another export it fails with `ExportFenced`: it was
  definitely not committed, and its staged files are removed.
- Segments are sorted by key, and the log has the first and last key of each. A search for keys
  opens only the files and row groups that may have them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap

from thermocline.cold.coverage import CoverageIndex
from thermocline.cold.log.commit_log import CommitLog
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
from thermocline.cold.segment.stage import (
    SEGMENT_BYTES_MAX,
    SEGMENT_ROWS_MAX,
    Stage,
    StagedSegment,
)
from thermocline.cold.storage.storage import Storage
from thermocline.errors import Conflict, Corruption, Invalid
from thermocline.format.bucket import Bucket
from thermocline.format.layout import Version
from thermocline.format.log.action import (
    ENTITIES_FEATURE,
    Action,
    AddSegment,
    RemoveSegment,
    Segment,
    SetDeletes,
    TableSpec,
    removal,
    with_deletes,
)
from thermocline.format.log.commit import Commit
from thermocline.format.log.commit_note import NoteFlush
from thermocline.format.log.conflict import ALL_TIME
from thermocline.format.log.state import TableState
from thermocline.format.schema import ColumnFit

KEY_COLUMN = "_id"
TIME_COLUMN = "_written_at"
BUCKET_S = 86_400


class ExportFenced(Conflict):
    """Another export committed first; this one is based on an older version and was not made."""


@dataclass(frozen=True, slots=True)
class KeyedSegment:
    """A staged segment whose rows are sorted by key, with the first key and the last."""

    staged: StagedSegment
    low: str
    high: str


@dataclass(frozen=True, slots=True)
class ExportBatch:
    """The content of an export: all changed keys, and the rows of the keys that exist.

    `keys` are sorted and distinct. `rows` have the columns of `read_at` and are sorted by key, or
    they are segments of such rows that others staged in this table's folder.
    """

    base: Version
    keys: pa.Array
    rows: pa.Table | Sequence[KeyedSegment]
    note: NoteFlush
    read_at: TableState

    @property
    def row_count(self) -> int:
        """The number of rows."""
        if isinstance(self.rows, pa.Table):
            return int(self.rows.num_rows)
        return sum(one.staged.measured.row_count for one in self.rows)


@dataclass(frozen=True, slots=True)
class KeyHits:
    """Live rows of a segment, by their positions in its file."""

    segment: Segment
    positions: npt.NDArray[np.int64]


def create_entity_spec(entity_type: str) -> TableSpec:
    """Return the spec of the cold table of an entity type."""
    return TableSpec(
        "",
        TIME_COLUMN,
        Bucket(BUCKET_S),
        overlap="allow",
        features=(ENTITIES_FEATURE,),
        extra={"key": [KEY_COLUMN], "entity_type": entity_type},
    )


def check_not_entities(spec: TableSpec, operation: str) -> None:
    """Raise `Invalid` for a table that only its entity store may change."""
    if ENTITIES_FEATURE in spec.features:
        raise Invalid(
            "the rows of this table are entities and change through their store alone",
            hint="create, replace or delete entities, or register a contract, to change the table",
            operation=operation,
            entity_type=spec.extra.get("entity_type"),
        )


def moves_rows(actions: Sequence[Action]) -> bool:
    """Tell whether actions add rows or remove rows."""
    return any(isinstance(one, AddSegment | RemoveSegment | SetDeletes) for one in actions)


def find_flush_note(commit: Commit) -> NoteFlush | None:
    """Return the note of the changes that a commit of an entity table contains, or None.

    `Corruption` when the commit moves rows without a note: the table's content is then unknown.
    """
    for action in commit.actions:
        if isinstance(action, NoteFlush):
            return action
    if moves_rows(commit.actions):
        raise Corruption(
            "a commit other than an export changed rows of an entity table",
            hint="restore the table's `_log` to the version before, or export into a new table",
            version=commit.version,
            operation=commit.operation,
        )
    return None


def find_last_flush(log: CommitLog, newest: int) -> NoteFlush | None:
    """Return the note of the newest export that a version contains; None when it has none."""
    for version in range(newest, 0, -1):
        note = find_flush_note(log.commit(version))
        if note is not None and note.changes:
            return note
    return None


class ExportPlanner:
    """Plans an export onto any state of the table, or finds that another export was first."""

    def __init__(
        self,
        storage: Storage,
        log: CommitLog,
        index: CoverageIndex,
        stage: Stage,
        batch: ExportBatch,
    ) -> None:
        self._storage = storage
        self._log = log
        self._index = index
        self._stage = stage
        self._batch = batch
        self._bounds: list[tuple[str, str]] = []

    def stage_rows(self) -> None:
        """Stage the rows as segments of a bounded size, in the order given.

        Segments that others staged are adopted unchanged.
        """
        rows, read_at = self._batch.rows, self._batch.read_at
        if not isinstance(rows, pa.Table):
            self._stage.adopt(one.staged for one in rows)
            self._bounds = [(one.low, one.high) for one in rows]
            return
        if not rows.num_rows:
            return
        ids = rows.column(KEY_COLUMN)
        pieces = max(-(-rows.num_rows // SEGMENT_ROWS_MAX), -(-rows.nbytes // SEGMENT_BYTES_MAX))
        step = -(-rows.num_rows // pieces)
        for first in range(0, rows.num_rows, step):
            piece = rows.slice(first, step)
            self._stage.write_table(piece, read_at.schema, read_at.spec)
            last = first + piece.num_rows - 1
            self._bounds.append((ids[first].as_py(), ids[last].as_py()))

    def plan(self, state: TableState) -> CommitPlan | None:
        """Return the commit that adds the rows; `ExportFenced` when another export was first."""
        self._check_fence(state)
        taken = [
            self._hide_hits(state, hits)
            for hits in find_keys(self._storage, state, self._batch.keys)
            if len(hits.positions)
        ]
        added = [AddSegment(segment) for segment in self._fit_segments()]
        metrics = {
            "keys": len(self._batch.keys),
            "rows": sum(staged.measured.row_count for staged in self._stage.staged),
            "segments": len(added),
        }
        return CommitPlan("export", (*taken, *added, self._batch.note), (ALL_TIME,), metrics)

    def _check_fence(self, state: TableState) -> None:
        for version in range(self._batch.base + 1, state.version + 1):
            note = find_flush_note(self._log.commit(version))
            if note is not None and note.changes:
                raise ExportFenced(
                    "another export was first",
                    hint="start again from a new snapshot",
                    base=self._batch.base,
                    taken=version,
                )

    def _fit_segments(self) -> Iterator[Segment]:
        written = self._batch.read_at
        key_id = str(written.schema.column(KEY_COLUMN).id)
        for staged, (low, high) in zip(self._stage.staged, self._bounds, strict=True):
            segment = staged.segment(written.schema_id, written.schema, ColumnFit(), written.spec)
            if max(len(low), len(high)) <= STAT_LENGTH_MAX:
                segment = replace(segment, stats={**segment.stats, key_id: (low, high)})
            self._index.remember(segment, staged.measured.coverage)
            yield segment

    def _hide_hits(self, state: TableState, hits: KeyHits) -> Action:
        segment = hits.segment
        deletes = decode_deletes(segment.deletes) | BitMap(hits.positions.astype(np.uint32))
        if len(deletes) == segment.row_count:
            return removal(segment)
        hidden = replace(segment, deletes=encode_deletes(deletes), deleted_count=len(deletes))
        measured = measure_segment(self._storage, state, hidden)
        path, checksum = self._stage.put_coverage(measured.coverage)
        return with_deletes(
            segment,
            deletes=hidden.deletes,
            deleted_count=hidden.deleted_count,
            coverage_path=path,
            coverage_checksum=checksum,
        )


def find_keys(
    storage: Storage,
    state: TableState,
    keys: pa.Array,
    segments: Iterable[Segment] | None = None,
) -> Iterator[KeyHits]:
    """Yield, segment by segment, the live rows that have one of these keys.

    The segments are those of the state, or others that its schemas describe. `keys` are sorted and
    distinct. Only the key column is read, and only the row groups that may have one of the keys.
    """
    if not len(keys) or not state.schema.columns:
        return
    column = state.schema.column(KEY_COLUMN)
    for segment in state.segments if segments is None else segments:
        low, high = segment.stats.get(str(column.id), (None, None))
        name = find_stored_name(state, segment, column)
        if name is not None and len(slice_keys(keys, low, high)):
            yield KeyHits(segment, _find_in_segment(storage, segment, name, keys))


def _find_in_segment(
    storage: Storage, segment: Segment, name: str, keys: pa.Array
) -> npt.NDArray[np.int64]:
    parts = [np.empty(0, dtype=np.int64)]
    try:
        with open_segment(storage, segment) as source:
            file = pq.ParquetFile(source)
            first = 0
            for group in range(file.num_row_groups):
                wanted = slice_keys(keys, *_read_group_bounds(file, group, name))
                if len(wanted):
                    ids = file.read_row_group(group, columns=[name]).column(0)
                    hit = pc.is_in(ids, value_set=wanted).to_numpy()
                    parts.append(np.flatnonzero(hit) + first)
                first += file.metadata.row_group(group).num_rows
    except (pa.ArrowException, OSError) as error:
        raise unreadable_error(segment.path, error) from error
    found = np.concatenate(parts)
    if segment.deletes and len(found):
        gone = np.asarray(decode_deletes(segment.deletes).to_array(), dtype=np.int64)
        found = found[~np.isin(found, gone)]
    return found


def _read_group_bounds(
    file: pq.ParquetFile, group: int, name: str
) -> tuple[str | None, str | None]:
    place = file.schema_arrow.get_field_index(name)
    statistics = file.metadata.row_group(group).column(place).statistics
    if statistics is None or not statistics.has_min_max:
        return None, None
    return statistics.min, statistics.max


def slice_keys(keys: pa.Array, low: str | None, high: str | None) -> pa.Array:
    """Return the keys from `low` to `high`, both inclusive; None is no bound."""
    first = 0 if low is None else _find_index(keys, low, after=False)
    last = len(keys) if high is None else _find_index(keys, high, after=True)
    return keys.slice(first, max(last - first, 0))


def _find_index(keys: pa.Array, key: str, *, after: bool) -> int:
    """Return the index where a key would be inserted: before an equal key, or after it."""
    low, high = 0, len(keys)
    while low < high:
        middle = (low + high) // 2
        one = keys[middle].as_py()
        if one < key or (after and one == key):
            low = middle + 1
        else:
            high = middle
    return low
