"""Staging: makes data durable in the table's folder before a commit names it.

In:   Parquet files of the caller, or Arrow batches
Out:  `StagedSegment`s: file and sidecars written, synced and measured

- A Parquet file whose columns fit is copied byte for byte, or linked on request; only its time and
  entity columns are decoded. It is rewritten only when a type or a zone must change.
- A copied file gets no token sidecar, because its texts are not decoded: a compaction writes one.
- Readers never see a staged file before a commit names it. `discard` removes it, and is called only
  when the commit was definitely not made.
"""

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as kinds

from thermocline.cold.segment.measure import (
    MeasurementBuilder,
    SegmentMeasurement,
    entity_stats,
    measure,
)
from thermocline.cold.segment.parquet import coerce_batch, encode_parquet, validate_batch
from thermocline.cold.segment.token_filter import hash_columns
from thermocline.cold.storage.storage import FileChecksum, Storage
from thermocline.errors import Conflict, Invalid, ThermoclineError
from thermocline.format import layout
from thermocline.format.coverage import Coverage, encode_coverage, sidecar_checksum
from thermocline.format.field_ids import add_field_ids
from thermocline.format.instant import TimeNs, from_datetime
from thermocline.format.log.action import Segment, TableSpec
from thermocline.format.schema import ColumnFit, Schema, encode_stored
from thermocline.format.sealed_json import crc32c
from thermocline.format.tokens import encode_filters
from thermocline.format.writer_settings import DEFAULT_WRITER, WriterSettings

SEGMENT_ROWS_MAX = 4_000_000
SEGMENT_BYTES_MAX = 256 << 20
MEASURE_ROWS_AT_ONCE = 4 << 20
PUTS_AT_ONCE = 16
TAG_LENGTH = 12


@dataclass(frozen=True, slots=True)
class StagedSegment:
    """A durable file that no commit names yet, and its measurement."""

    segment_id: str
    path: str
    checksum: FileChecksum
    measured: SegmentMeasurement
    arrow: pa.Schema
    coverage_path: str
    coverage_checksum: str
    groups: int = 0
    tokens_path: str = ""
    tokens: FileChecksum | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of all its files."""
        tokens = (self.tokens_path,) if self.tokens_path else ()
        return (self.path, self.coverage_path, *tokens)

    def segment(self, schema_id: int, schema: Schema, fit: ColumnFit, spec: TableSpec) -> Segment:
        """Return the segment to commit; `fit` says how its columns map to the table's."""
        assert self.measured.ts_min is not None
        assert self.measured.ts_max is not None
        ids = [schema.column(name).id for name in spec.entity_columns]
        return Segment(
            self.segment_id,
            self.path,
            self.measured.ts_min,
            self.measured.ts_max,
            self.measured.row_count,
            self.checksum.size_bytes,
            self.checksum.checksum,
            self.coverage_path,
            self.coverage_checksum,
            schema_id,
            stats=entity_stats(spec, self.measured.coverage, ids),
            absent=fit.absent,
            stored=encode_stored(fit.stored),
            is_time=spec.bucket.is_time,
            tokens_path=self.tokens_path,
            tokens_size=self.tokens.size_bytes if self.tokens else 0,
            tokens_checksum=self.tokens.checksum if self.tokens else "",
        )


class Stage:
    """Writes segments into a table's folder and remembers them until they are committed."""

    def __init__(self, storage: Storage, *, workers: int = 2, tag: str = "") -> None:
        self._storage = storage
        self._tag = tag
        self._workers = workers
        self._paths: list[str] = []
        self.schemas: list[pa.Schema] = []
        self.staged: list[StagedSegment] = []
        self.files: list[tuple[str, Sequence[StagedSegment]]] = []
        """The caller's files, each with its staged segments; empty for a stream of rows."""
        self.is_committed = False
        """Whether a commit names what is staged."""

    def import_parquet(self, source: str, spec: TableSpec, *, link: bool) -> None:
        """Copy or link a caller's Parquet file unchanged, and measure it."""
        with open_parquet(self._storage, source) as file:
            if not file.metadata.num_rows:
                return
            arrow, segment_id, groups = file.schema_arrow, new_id(self._tag), file.num_row_groups
            columns = _read_measured_columns(self._storage, source, file, spec)
            first = _read_first_time(file, spec.time_column)
            is_measured_first = first is None and spec.bucket.is_time  # its path names the hour
            measured = measure(columns, spec) if is_measured_first else None
            first = measured.ts_min if measured else first
            path = _segment_path(first, segment_id, spec)
            self._paths.append(path)
            with BackgroundRunner(self._workers) as alongside:
                copying = alongside.start(lambda: self._storage.take(source, path, link=link))
                measured = measured or measure(columns, spec)
                coverage_path, checksum = self.put_coverage(measured.coverage)
                taken = copying()
        self.staged.append(
            StagedSegment(segment_id, path, taken, measured, arrow, coverage_path, checksum, groups)
        )

    def write_batches(
        self, batches: Iterable[pa.RecordBatch], schema: Schema, spec: TableSpec
    ) -> None:
        """Write batches as segments of the table's columns, cut at a bounded size."""
        held: list[pa.RecordBatch] = []
        rows = size_bytes = 0
        for batch in batches:
            held.append(validate_batch(coerce_batch(batch, schema, spec)))
            rows += batch.num_rows
            size_bytes += held[-1].nbytes
            if rows >= SEGMENT_ROWS_MAX or size_bytes >= SEGMENT_BYTES_MAX:
                self.write_table(pa.Table.from_batches(held), schema, spec)
                held, rows, size_bytes = [], 0, 0
        if rows:
            self.write_table(pa.Table.from_batches(held), schema, spec)

    def write_table(self, table: pa.Table, schema: Schema, spec: TableSpec) -> None:
        """Write rows as one segment; their columns are among the table's and have its types."""
        measuring = MeasurementBuilder(spec)
        measuring.add(table)
        measured = measuring.build()
        assert measured.ts_min is not None
        data = _encode_table(add_field_ids(table, schema), spec.writer)
        segment_id = new_id(self._tag)
        path = _segment_path(measured.ts_min, segment_id, spec)
        with BackgroundRunner(self._workers) as alongside:
            putting = alongside.start(lambda: self._put(path, data))
            coverage_path, checksum = self.put_coverage(measured.coverage)
            tokens_path, tokens = self._put_tokens(hash_columns(table, schema, spec), len(data))
            putting()
        taken = FileChecksum(len(data), crc32c(data))
        self.staged.append(
            StagedSegment(
                segment_id,
                path,
                taken,
                measured,
                table.schema,
                coverage_path,
                checksum,
                -(-table.num_rows // spec.writer.group_rows(table.num_rows, table.nbytes)),
                tokens_path,
                tokens,
            )
        )

    def put_coverages(self, coverages: Sequence[Coverage]) -> list[tuple[str, str]]:
        """Write many sidecars, several at once: a disk makes them durable together."""
        if self._workers == 1 or len(coverages) <= 1:
            return [self.put_coverage(coverage) for coverage in coverages]
        share = -(-len(coverages) // PUTS_AT_ONCE)
        shares = [coverages[at : at + share] for at in range(0, len(coverages), share)]
        with ThreadPoolExecutor(len(shares)) as pool:
            written = pool.map(lambda some: [self.put_coverage(one) for one in some], shares)
            return [one for some in written for one in some]

    def work_beside(self) -> "BackgroundRunner":
        """Return a runner for one piece of work at a time in a second thread."""
        return BackgroundRunner(self._workers)

    def put_coverage(self, coverage: Coverage) -> tuple[str, str]:
        """Write a coverage sidecar under a new name; return its path and checksum."""
        path = layout.segment_coverage_path(new_id(self._tag))
        data = encode_coverage(coverage)
        self._put(path, data)
        return path, sidecar_checksum(data)

    def _put_tokens(
        self, hashes: Mapping[int, pa.UInt64Array], segment_bytes: int
    ) -> tuple[str, FileChecksum | None]:
        """Write a token sidecar; return its path and checksum, or none when it is too large."""
        data = encode_filters(hashes, segment_bytes)
        if data is None:
            return "", None
        path = layout.tokens_path(new_id(self._tag))
        self._put(path, data)
        return path, FileChecksum(len(data), crc32c(data))

    def _put(self, path: str, data: bytes) -> None:
        self._paths.append(path)
        try:
            self._storage.put(path, data)
        except Conflict:
            self._paths.remove(path)  # another writer's file has this name: keep it
            raise

    def adopt(self, staged: Iterable[StagedSegment]) -> None:
        """Take ownership of what others staged in this table's folder, to commit or discard it."""
        for one in staged:
            self.staged.append(one)
            self.schemas.append(one.arrow)
            self._paths += one.paths

    def discard(self) -> None:
        """Remove all staged files. Call it only when no commit can ever name them."""
        for path in self._paths:
            with suppress(ThermoclineError):
                self._storage.delete(path)
        self._paths.clear()


class BackgroundRunner:
    """Runs one function in a second thread, or at once if only one worker is allowed."""

    def __init__(self, workers: int) -> None:
        self._pool = ThreadPoolExecutor(1) if workers > 1 else None

    def __enter__(self) -> "BackgroundRunner":
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool:
            self._pool.shutdown(wait=True)

    def start(self, work: Callable[[], Any]) -> Callable[[], Any]:
        """Start the work; the returned function waits for it and returns its result."""
        if self._pool is None:
            done: Any = work()
            return lambda: done
        future: Future[Any] = self._pool.submit(work)
        return future.result


def check_writable(schema: Schema) -> None:
    """Raise `Invalid` for columns of a type that Parquet cannot hold."""
    names = [column.name for column in schema.columns]
    for rows in (0, 1):  # a row without a column is null there
        nulls = [pa.nulls(rows, column.type) for column in schema.columns]
        _encode_table(pa.Table.from_arrays(nulls, names))


def _encode_table(table: pa.Table, writer: WriterSettings = DEFAULT_WRITER) -> bytes:
    try:
        return encode_parquet(table, writer)
    except (pa.ArrowException, OSError) as error:
        raise Invalid(
            "the data cannot be written as Parquet",
            hint="cast the column to an ordinary Arrow type first",
            why=str(error),
        ) from error


def new_id(tag: str = "") -> str:
    """Return a unique name: 128 random bits, the first of them replaced by a tag.

    The tag identifies the files that many processes stage for one piece of work.
    """
    assert len(tag) <= TAG_LENGTH
    return tag + uuid.uuid4().hex[len(tag) :]


def open_parquet(storage: Storage, source: str, **options: Any) -> pq.ParquetFile:
    """Open a caller's Parquet file; errors name it."""
    try:
        return pq.ParquetFile(storage.open_source(source), **options)
    except (pa.ArrowException, OSError, ValueError) as error:  # a name that is not UTF-8
        raise _unreadable_error(source, error) from error


def read_parquet(file: pq.ParquetFile, source: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a caller's Parquet file; errors name it."""
    try:
        yield from file.iter_batches()
    except (pa.ArrowException, OSError) as error:
        raise _unreadable_error(source, error) from error


def open_row_stream(data: Any, time_column: str | None = None) -> pa.RecordBatchReader:
    """Return a caller's rows as a stream; `Invalid` for an object without an Arrow stream.

    The unnamed index of a pandas frame is the time column if the frame lacks that column and the
    index has times. Row numbers are dropped, and any other unnamed index is refused.
    """
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if isinstance(data, type) or not hasattr(data, "__arrow_c_stream__"):
        raise Invalid(
            "the data has no Arrow stream",
            hint="pass a pyarrow, polars or pandas table, or anything with __arrow_c_stream__",
            type=type(data).__name__,
        )
    try:
        return _settle_pandas_index(pa.RecordBatchReader.from_stream(data), time_column)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise Invalid(
            "this is not a stream of rows",
            hint="pass a table, not a single column",
            type=type(data).__name__,
            why=str(error),
        ) from error


def _list_unnamed(names: Sequence[str]) -> list[str]:
    """Return the columns that Arrow makes of the levels of a pandas index without a name."""
    return [name for name in names if name.startswith("__index_level_")]


def has_unnamed_index(schema: pa.Schema) -> bool:
    """Tell whether a column comes from a pandas index without a name."""
    return bool(_list_unnamed(schema.names))


def _settle_pandas_index(
    stream: pa.RecordBatchReader, time_column: str | None
) -> pa.RecordBatchReader:
    """Return a stream without the columns that pandas makes of an index without a name."""
    names = stream.schema.names
    unnamed = _list_unnamed(names)
    if not unnamed or time_column is None:
        return stream
    kept: dict[str, str] = {name: name for name in names if name not in unnamed}
    for name in unnamed:
        kind = stream.schema.field(name).type
        if pa.types.is_timestamp(kind) and time_column not in kept.values():
            kept[name] = time_column
        elif not pa.types.is_integer(kind):
            raise Invalid(
                "the index of the frame has no name",
                hint="name it with rename_axis, or drop it with reset_index(drop=True)",
                type=str(kind),
            )
    fields = [stream.schema.field(name).with_name(kept[name]) for name in kept]
    schema = pa.schema(fields, stream.schema.metadata)

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in stream:
            columns = [batch.column(name) for name in kept]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def read_row_stream(data: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a caller's stream."""
    try:
        yield from data
    except (pa.ArrowException, OSError) as error:
        raise Invalid(
            "the stream of rows ended with an error",
            hint="no row was appended; append the data again",
            why=str(error).splitlines()[0],
        ) from error


def _read_measured_columns(
    storage: Storage, source: str, file: pq.ParquetFile, spec: TableSpec
) -> Iterator[pa.Table]:
    names = [spec.time_column, *spec.entity_columns]
    # Entities repeat: read as dictionaries, each is decoded once, not once per row.
    texts = [name for name in spec.entity_columns if _is_text(file, name)]
    opened = open_parquet(storage, source, metadata=file.metadata, read_dictionary=texts)
    groups: list[int] = []
    rows = 0
    try:
        with opened as entities:
            for group in range(file.num_row_groups):
                groups.append(group)
                rows += file.metadata.row_group(group).num_rows
                if rows >= MEASURE_ROWS_AT_ONCE or group == file.num_row_groups - 1:
                    yield entities.read_row_groups(groups, columns=names)
                    groups, rows = [], 0
    except (pa.ArrowException, OSError) as error:
        raise _unreadable_error(source, error) from error


def _unreadable_error(source: str, error: Exception) -> Invalid:
    return Invalid(
        "the file cannot be read as Parquet",
        hint="check the file; a torn download or upload looks like this",
        path=source,
        why=str(error).splitlines()[0],
    )


def _is_text(file: pq.ParquetFile, name: str) -> bool:
    kind = file.schema_arrow.field(name).type
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind))


def _read_first_time(file: pq.ParquetFile, time_column: str) -> TimeNs | None:
    """Return the first time of a file's first rows, or None when its footer has no statistics."""
    group = file.metadata.row_group(0)
    for place in range(group.num_columns):
        chunk = group.column(place)
        if chunk.path_in_schema == time_column and chunk.is_stats_set:
            try:
                low = chunk.statistics.min
            except (OverflowError, ValueError):  # a year outside the range of datetime
                return None
            return from_datetime(low) if isinstance(low, datetime) else None
    return None


def _segment_path(first: TimeNs | None, segment_id: str, spec: TableSpec) -> str:
    if not spec.bucket.is_time:
        return layout.segment_path(None, segment_id)
    assert first is not None
    return layout.segment_path(first, segment_id)
