"""The kernel of every rewrite: reads rows of many segments, sorts them, writes and reads back.

In:   a `Slice`: segments, and the window or key range of the rows to rewrite
Out:  staged segments, and the digests of the rows before and after

- Runs in any process that has the table's folder; this module does not import Spark.
- Rows are sorted by entity and time; those of entity tables by key.
- Memory is bounded: a slice that is larger than the limit is cut in two by its rows.
- Texts that repeat stay dictionaries from the file to the last step: that halves the time.
- The written segments are read back and compared before they can be committed.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as kinds
from pyroaring import BitMap

from thermocline.cold.change.export_plan import KEY_COLUMN
from thermocline.cold.segment.measure import encode_entities
from thermocline.cold.segment.parquet import (
    ROWS_PER_BATCH,
    cast_column,
    decode_deletes,
    filter_rows,
    find_stored_name,
    match_window,
    project_columns,
    take_rows,
    unreadable_error,
)
from thermocline.cold.segment.row_digest import RowDigest, digest_rows
from thermocline.cold.segment.stage import Stage, StagedSegment
from thermocline.cold.segment.write_target import WriteTarget
from thermocline.cold.storage.open_storage import open_storage
from thermocline.cold.storage.storage import Storage
from thermocline.errors import Corruption
from thermocline.format.index_column import index_numbers, unit_size
from thermocline.format.log.action import ENTITIES_FEATURE, Segment, TableSpec
from thermocline.format.log.conflict import ALL_TIME, TimeWindow
from thermocline.format.log.state import SegmentSet, TableState
from thermocline.format.schema import TableColumn
from thermocline.format.types import plain_type

LOADED_BYTES_MAX = 384 << 20
"""The memory limit of a slice before it is sorted; sorting takes twice as much in addition."""
DICTIONARY_BYTES_PER_VALUE_MAX = 4
WRITTEN_ROWS_MAX = 4_000_000


@dataclass(frozen=True, slots=True)
class Slice:
    """The rows of some segments that are in the window and whose keys are in the range.

    `low` is inclusive, `high` is exclusive; None is no bound.
    """

    segments: tuple[Segment, ...]
    window: TimeWindow = ALL_TIME
    low: str | None = None
    high: str | None = None


@dataclass(frozen=True, slots=True)
class MergeResult:
    """A slice's staged segments, and the digests of its rows before and after."""

    staged: tuple[StagedSegment, ...] = ()
    before: RowDigest = RowDigest()
    after: RowDigest = RowDigest()

    def __add__(self, other: "MergeResult") -> "MergeResult":
        staged = (*self.staged, *other.staged)
        return MergeResult(staged, self.before + other.before, self.after + other.after)


def without_segments(state: TableState) -> TableState:
    """Return a state as workers need it: table and columns, without segments."""
    return replace(state, segments=SegmentSet(), txns={}, requests={}, holes=())


def merge(
    target: WriteTarget,
    state: TableState,
    piece: Slice,
    *,
    storage: Storage | None = None,
    loaded_bytes_max: int = LOADED_BYTES_MAX,
) -> MergeResult:
    """Write the rows of a slice as sorted segments, durable when this returns.

    Without the `storage` of an open table, it is opened by the target's root.
    """
    storage = storage or open_storage(target.root, target.options or None)
    stage = Stage(storage, workers=1, tag=target.tag)
    merging = _SliceMerge(storage, stage, state, loaded_bytes_max)
    try:
        before, after = merging.run(piece)
    except BaseException:
        stage.discard()
        raise
    return MergeResult(tuple(stage.staged), before, after)


class _SliceTooLarge(Exception):
    """A slice is larger than the limit; never leaves this module."""


class _SliceMerge:
    """Rewrites one slice."""

    def __init__(self, storage: Storage, stage: Stage, state: TableState, bytes_max: int) -> None:
        self._storage = storage
        self._stage = stage
        self._state = state
        self._bytes_max = bytes_max
        self._is_keyed = ENTITIES_FEATURE in state.spec.features

    def run(self, piece: Slice) -> tuple[RowDigest, RowDigest]:
        """Write a slice; return the digests of its rows before and after."""
        try:
            rows = self._load(piece)
        except _SliceTooLarge:
            before = after = RowDigest()
            for half in self._split(piece):
                more_before, more_after = self.run(half)
                before, after = before + more_before, after + more_after
            return before, after
        if rows is None:
            return RowDigest(), RowDigest()
        before = digest_rows(_split_batches(rows))
        ordered = take_rows(rows, sort_indices(rows, self._state.spec))
        del rows
        first = len(self._stage.staged)
        for start in range(0, ordered.num_rows, WRITTEN_ROWS_MAX):
            rows_now = self._as_stored(ordered.slice(start, WRITTEN_ROWS_MAX))
            self._stage.write_table(rows_now, self._state.schema, self._state.spec)
        del ordered
        after = self._read_back(self._stage.staged[first:])
        if before != after:
            raise Corruption(
                "the rewritten rows differ from the rows that were read",
                hint="nothing was committed; run fsck on the table, and report this bug",
                before=str(before),
                after=str(after),
                segments=[segment.segment_id for segment in piece.segments][:5],
            )
        return before, after

    def _as_stored(self, rows: pa.RecordBatch) -> pa.Table:
        columns = self._state.schema.columns
        arrays = [
            cast_column(rows.column(place), column.type) for place, column in enumerate(columns)
        ]
        return pa.Table.from_arrays(arrays, schema=self._state.schema.arrow)

    def _read_back(self, staged: Sequence[StagedSegment]) -> RowDigest:
        total = RowDigest()
        columns = self._state.schema.columns
        for one in staged:
            with _open_file(self._storage, one, fresh=True) as file:
                self._check_types(file.schema_arrow)
                texts, footer = (
                    _repeating_columns(file, {c.name: c.type for c in columns}),
                    file.metadata,
                )
            with _open_file(self._storage, one, texts, footer) as file:
                total += digest_rows(_read_batches(file, one.path, None))
        return total

    def _check_types(self, found: pa.Schema) -> None:
        """Raise `Corruption` unless a file's types are the table's, in any encoding of Arrow."""
        wrong = [
            f"{column.name}: {column.type}, not {field.type}"
            for column, field in zip(self._state.schema.columns, found, strict=True)
            if column.name != field.name
            or not plain_type(column.type).equals(plain_type(field.type))
        ]
        if wrong:
            raise Corruption(
                "a rewritten segment has other types than the table",
                hint="nothing was committed; report this bug",
                columns=wrong,
            )

    def _load(self, piece: Slice) -> pa.RecordBatch | None:
        """Return the rows of a slice, repeating texts as dictionaries; None if there are none.

        `_SliceTooLarge` if they take more memory than the limit.
        """
        wanted: list[TableColumn] | None = None
        parts: list[pa.RecordBatch] = []
        size_bytes = 0
        for segment in piece.segments:
            if wanted is None:
                wanted = self._working_columns(segment)
            for batch in self._read_rows(segment, piece, wanted):
                parts.append(batch)
                size_bytes += batch.nbytes
                if size_bytes > self._bytes_max:
                    raise _SliceTooLarge
        return pa.concat_batches(parts) if parts else None

    def _working_columns(self, segment: Segment) -> list[TableColumn]:
        """Return the columns with repeating texts as dictionaries, judged by one file."""
        state = self._state
        names = {c.id: find_stored_name(state, segment, c) for c in state.schema.columns}
        types = {n: c.type for c in state.schema.columns if (n := names[c.id]) is not None}
        with _open_file(self._storage, segment) as file:
            texts = set(_repeating_columns(file, types))
        return [
            replace(c, type=pa.dictionary(pa.int32(), c.type)) if names[c.id] in texts else c
            for c in state.schema.columns
        ]

    def _read_rows(
        self, segment: Segment, piece: Slice, wanted: Sequence[TableColumn]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the live rows of a segment that are in the slice, with the wanted columns."""
        stored = {c.id: find_stored_name(self._state, segment, c) for c in wanted}
        deleted = decode_deletes(segment.deletes)
        with _open_file(self._storage, segment, fresh=True) as file:
            kinds_there = {field.name: field.type for field in file.schema_arrow}
            footer = file.metadata
        texts = [
            name
            for column in wanted
            if kinds.is_dictionary(column.type)
            and (name := stored[column.id]) is not None
            and kinds_there[name] == column.type.value_type
        ]
        physical = [name for name in stored.values() if name is not None]
        first = 0
        with _open_file(self._storage, segment, texts, footer) as file:
            for batch in _read_batches(file, segment.path, physical):
                keep = np.ones(batch.num_rows, dtype=bool)
                gone = deleted & BitMap(range(first, first + batch.num_rows))
                keep[np.asarray(gone.to_array(), dtype=np.int64) - first] = False
                first += batch.num_rows
                rows = project_columns(batch, wanted, stored)
                keep &= self._is_in_slice(rows, piece)
                if keep.any():
                    yield rows if keep.all() else filter_rows(rows, keep)
        if first != segment.row_count:
            raise Corruption(
                "a segment's number of rows differs from the log",
                hint="restore the file from a copy",
                path=segment.path,
                expected=segment.row_count,
                found=first,
            )

    def _is_in_slice(self, rows: pa.RecordBatch, piece: Slice) -> npt.NDArray[np.bool_]:
        keep = match_window(rows.column(self._state.spec.time_column), piece.window)
        if piece.low is not None or piece.high is not None:
            keys = cast_column(rows.column(KEY_COLUMN), pa.string())
            if piece.low is not None:
                keep &= pc.greater_equal(keys, piece.low).to_numpy(zero_copy_only=False)
            if piece.high is not None:
                keep &= pc.less(keys, piece.high).to_numpy(zero_copy_only=False)
        return keep

    def _split(self, piece: Slice) -> list[Slice]:
        """Return two slices with the rows of one, cut at the middle row or between segments."""
        column = self._state.schema.column(self._state.spec.time_column)
        wanted = [column, self._state.schema.column(KEY_COLUMN)] if self._is_keyed else [column]
        parts = [
            rows.columns[-1]
            for segment in piece.segments
            for rows in self._read_rows(segment, piece, wanted)
        ]
        if self._is_keyed:
            keys = pa.chunked_array(parts)
            low = pc.min(keys).as_py()
            key = keys[pc.array_sort_indices(keys)[len(keys) // 2].as_py()].as_py()
            if key != low:
                return [replace(piece, high=key), replace(piece, low=key)]
        else:
            times = np.concatenate([index_numbers(part)[0] for part in parts])
            middle = max(int(np.median(times)), int(times.min()) + 1)
            if middle <= int(times.max()):
                at = middle * unit_size(index_numbers(parts[0])[1])
                ends = piece.window.intersect(None, at), piece.window.intersect(at, None)
                return [replace(piece, window=window) for window in ends]
        if len(piece.segments) > 1:
            half = len(piece.segments) // 2
            groups = piece.segments[:half], piece.segments[half:]
            return [replace(piece, segments=group) for group in groups]
        # One file with equal times: it was written in one piece and can be read in one piece.
        self._bytes_max *= 2
        return [piece]


def sort_indices(rows: pa.RecordBatch, spec: TableSpec) -> npt.NDArray[np.int64]:
    """Return the indices that sort the rows: by key, or by entity and time."""
    if ENTITIES_FEATURE in spec.features:
        keys = rows.column(KEY_COLUMN)
        return pc.array_sort_indices(cast_column(keys, pa.string())).to_numpy().astype(np.int64)
    times, _ = index_numbers(rows.column(spec.time_column))
    if not spec.entity_columns:
        return np.argsort(times, kind="stable")
    codes, keys = encode_entities(rows, spec)
    rank = np.empty(len(keys), dtype=np.int64)
    rank[np.argsort(np.array(keys, dtype=object), kind="stable")] = np.arange(len(keys))
    ranks = rank[codes]
    first = int(times.min())
    span = int(times.max()) - first + 1
    if span * len(keys) < 1 << 62:
        # One number instead of two keys, in runs that are sorted: 7 times as fast as `lexsort`.
        return np.argsort(
            ranks * span + (times - times.dtype.type(first)).astype(np.int64), kind="stable"
        )
    return np.lexsort((times, ranks))


def _repeating_columns(file: pq.ParquetFile, types: Mapping[str, pa.DataType]) -> list[str]:
    """Return the text columns whose values a file stores as a dictionary."""
    if not file.metadata.num_row_groups:
        return []
    group = file.metadata.row_group(0)
    found = []
    for place in range(group.num_columns):
        chunk = group.column(place)
        kind = types.get(chunk.path_in_schema)
        if kind is None or not (kinds.is_string(kind) or kinds.is_large_string(kind)):
            continue
        size_max = DICTIONARY_BYTES_PER_VALUE_MAX * chunk.num_values
        if chunk.has_dictionary_page and chunk.total_uncompressed_size <= size_max:
            found.append(chunk.path_in_schema)
    return found


def _split_batches(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for first in range(0, rows.num_rows, ROWS_PER_BATCH):
        yield rows.slice(first, ROWS_PER_BATCH)


@contextmanager
def _open_file(
    storage: Storage,
    one: Segment | StagedSegment,
    texts: Sequence[str] = (),
    footer: pq.FileMetaData | None = None,
    *,
    fresh: bool = False,
) -> Iterator[pq.ParquetFile]:
    """Open a segment, live or staged; the columns `texts` are read as dictionaries.

    The footer is read unless it is given. With `fresh` the file's checksum is verified, even if it
    was verified before.
    """
    if isinstance(one, StagedSegment):
        named = one.path, one.checksum.size_bytes, one.checksum.checksum
    else:
        named = one.path, one.file_size, one.checksum
    try:
        with storage.open_segment(*named, fresh=fresh) as source:
            yield pq.ParquetFile(source, metadata=footer, read_dictionary=list(texts))
    except MemoryError:
        raise  # also Arrow's: it says nothing about the file
    except (pa.ArrowException, OSError) as error:
        raise unreadable_error(one.path, error) from error


def _read_batches(
    file: pq.ParquetFile, path: str, names: Sequence[str] | None
) -> Iterator[pa.RecordBatch]:
    try:
        yield from file.iter_batches(ROWS_PER_BATCH, columns=names)
    except MemoryError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise unreadable_error(path, error) from error
