"""Segments as Parquet: writes rows as bytes, and reads them with the table's present columns.

In:   Arrow batches to write; a live segment and the state it is read under
Out:  Parquet bytes; batches with the table's present names and types

- A row's position in its file never changes; deletion vectors refer to rows by it.
- If a file is missing, short or has other bytes than were committed, an error names it before any
  row of it is read.
- Columns are found by id: under the name they had when the segment was written, null where the
  segment lacks them, cast where the segment has a narrower type.
"""

import base64
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap

from thermocline.cold.segment.measure import SegmentMeasurement, measure
from thermocline.cold.storage.storage import Storage
from thermocline.errors import Corruption, Invalid, Overloaded
from thermocline.format.index_column import index_numbers, unit_size
from thermocline.format.log.action import Segment, TableSpec
from thermocline.format.log.conflict import TimeWindow
from thermocline.format.log.state import TableState
from thermocline.format.schema import Schema, TableColumn
from thermocline.format.types import plain_type
from thermocline.format.writer_settings import DEFAULT_WRITER, WriterSettings

ROWS_PER_BATCH = 131_072
_CODEC_NAMES = {"uncompressed": "none"}
DELETES_BYTES_MAX = 16 << 20
DICTIONARY_BYTES_MAX = 8 << 20
"""Past this a column is written without a dictionary, which takes more time and space."""


@dataclass(frozen=True, slots=True)
class SegmentRows:
    """Some rows of a segment; `positions` are their positions in the file."""

    positions: npt.NDArray[np.int64]
    batch: pa.RecordBatch


def encode_parquet(table: pa.Table, writer: WriterSettings = DEFAULT_WRITER) -> bytes:
    """Return the table as the bytes of a Parquet file that any engine reads.

    Columns that may hold NaN get no statistics: writers ignore NaN in them, and an engine that
    treats NaN as the greatest number would skip matching rows.
    """
    sink = pa.BufferOutputStream()
    pq.write_table(
        _to_writable(table),
        sink,
        row_group_size=writer.group_rows(table.num_rows, table.nbytes),
        compression=_CODEC_NAMES.get(writer.compression, writer.compression),
        compression_level=writer.codec_level,
        use_dictionary=writer.dictionary,
        dictionary_pagesize_limit=DICTIONARY_BYTES_MAX,
        write_page_checksum=True,
        write_statistics=[
            field.name
            for field, column in zip(table.schema, table.columns, strict=True)
            if not _may_hold_nan(field.type, column)
        ],
    )
    return sink.getvalue().to_pybytes()


def _may_hold_nan(kind: pa.DataType, column: pa.ChunkedArray) -> bool:
    if pa.types.is_floating(kind):
        return bool(pc.any(pc.is_nan(column)).as_py())
    return pa.types.is_nested(kind) or pa.types.is_dictionary(kind)


def _to_writable(table: pa.Table) -> pa.Table:
    # Arrow cannot write view types inside of lists, so cast them to their plain types.
    for place, field in enumerate(table.schema):
        if field.type.num_fields and _has_view(field.type):
            kind = plain_type(field.type)
            table = table.set_column(place, field.with_type(kind), table.column(place).cast(kind))
    return table


def filter_rows(batch: pa.RecordBatch, keep: npt.NDArray[np.bool_] | pa.Array) -> pa.RecordBatch:
    """Return the rows of a batch whose mask is set, in the same types."""
    mask = pa.array(keep)
    return _select_rows(batch, lambda rows: rows.filter(mask))


def take_rows(batch: pa.RecordBatch, places: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """Return the rows at these positions, in this order and in the same types."""
    indices = pa.array(places)
    return _select_rows(batch, lambda rows: rows.take(indices))


def _select_rows(batch: pa.RecordBatch, choose: Callable[[Any], Any]) -> pa.RecordBatch:
    if not any(_has_view(field.type) for field in batch.schema):
        return choose(batch)
    # Arrow cannot filter or take view types, which polars uses for texts. Cast to texts and back.
    arrays = [
        choose(column.cast(plain_type(column.type))).cast(column.type)
        if _has_view(column.type)
        else choose(column)
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


def _has_view(kind: pa.DataType) -> bool:
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return True
    return any(_has_view(kind.field(place).type) for place in range(kind.num_fields))


def read_rows(
    storage: Storage,
    state: TableState,
    segment: Segment,
    names: Sequence[str] | None = None,
) -> Iterator[SegmentRows]:
    """Yield the live rows of a segment, with the table's present columns."""
    schema = state.schema
    wanted = schema.columns if names is None else [schema.column(name) for name in names]
    stored = {c.id: find_stored_name(state, segment, c) for c in wanted}
    deleted = decode_deletes(segment.deletes)
    first = 0
    try:
        with open_segment(storage, segment) as source:
            file = pq.ParquetFile(source)
            physical = [name for name in stored.values() if name is not None]
            for batch in file.iter_batches(ROWS_PER_BATCH, columns=physical):
                positions = np.arange(first, first + batch.num_rows, dtype=np.int64)
                first += batch.num_rows
                rows = SegmentRows(positions, project_columns(batch, wanted, stored))
                yield _drop_deleted(rows, deleted) if deleted else rows
    except (pa.ArrowException, OSError) as error:
        raise unreadable_error(segment.path, error) from error
    if first != segment.row_count:
        raise Corruption(
            "a segment has another number of rows than the log says",
            hint="restore the file from a copy",
            path=segment.path,
            expected=segment.row_count,
            found=first,
        )


def open_segment(storage: Storage, segment: Segment, *, fresh: bool = False) -> pa.NativeFile:
    """Return a random-access input on a segment, after verifying its bytes."""
    return storage.open_segment(segment.path, segment.file_size, segment.checksum, fresh=fresh)


def find_stored_name(state: TableState, segment: Segment, column: TableColumn) -> str | None:
    """Return the name of a column in a segment's file, or None when the file lacks it."""
    then = state.schemas[segment.schema_id].by_id.get(column.id)
    return None if then is None or column.id in segment.absent else then.name


def project_columns(
    batch: pa.RecordBatch,
    wanted: Sequence[TableColumn],
    stored: dict[int, str | None],
    nulls: Callable[[int, pa.DataType], pa.Array] = pa.nulls,
) -> pa.RecordBatch:
    """Return a batch with the wanted columns, under their present names and types.

    `stored` maps a column's id to its name in the batch, None where the batch lacks it; such a
    column is null. `nulls` returns the given number of nulls of a type.
    """
    arrays, fields = [], []
    for column in wanted:
        name = stored[column.id]
        if name is None:
            arrays.append(nulls(batch.num_rows, column.type))
        else:
            arrays.append(cast_column(batch.column(name), column.type))
        fields.append(column.field)
    if not fields:  # keep the number of rows, even without columns
        return batch.select([])
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _drop_deleted(rows: SegmentRows, deleted: BitMap) -> SegmentRows:
    first, last = int(rows.positions[0]), int(rows.positions[-1])
    if not deleted.range_cardinality(first, last + 1):
        return rows
    inside = deleted & BitMap(range(first, last + 1))
    gone = np.asarray(inside.to_array(), dtype=np.int64) - first
    keep = np.ones(len(rows.positions), dtype=bool)
    keep[gone] = False
    return SegmentRows(rows.positions[keep], filter_rows(rows.batch, keep))


def cast_column(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the column in another type that holds its values; `Invalid` when one does not fit."""
    if column.type.equals(kind):
        return column
    try:
        if pa.types.is_dictionary(column.type) and _has_view(column.type.value_type):
            # Arrow can neither cast nor decode a dictionary of views.
            values = column.dictionary.cast(plain_type(column.type.value_type))
            column = pa.DictionaryArray.from_arrays(column.indices, values)
        if pa.types.is_dictionary(kind) and not pa.types.is_dictionary(column.type):
            column = pc.dictionary_encode(pc.cast(column, kind.value_type))
        elif pa.types.is_dictionary(column.type) and not pa.types.is_dictionary(kind):
            column = column.dictionary_decode()
        return pc.cast(column, kind)
    except pa.ArrowException as error:
        raise Invalid(
            "a value does not fit the table's type",
            hint="widen the column first",
            expected=str(kind),
            got=str(column.type),
            why=str(error),
        ) from error


def coerce_batch(batch: pa.RecordBatch, schema: Schema, spec: TableSpec) -> pa.RecordBatch:
    """Return the batch with the table's columns and types, and with its times in UTC."""
    if schema.matches_arrow(batch.schema):
        return pa.RecordBatch.from_arrays(batch.columns, schema=schema.arrow)
    arrays = []
    present = set(batch.schema.names)
    for column in schema.columns:
        if column.name not in present:
            arrays.append(pa.nulls(batch.num_rows, column.type))
            continue
        array = batch.column(column.name)
        if column.name == spec.time_column and spec.bucket.is_time:
            array = to_utc(array, column.type, spec)
        arrays.append(cast_column(array, column.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema.arrow)


def validate_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch if every value is valid for its type; `Invalid` otherwise.

    A text that is not UTF-8, or not JSON in a column of JSON, would make every query of the table
    fail in the engine.
    """
    for field, column in zip(batch.schema, batch.columns, strict=True):
        try:
            column.validate(full=True)
            _check_json(column)
        except (pa.ArrowException, orjson.JSONDecodeError) as error:
            why = str(error).splitlines()[0]
            raise Invalid(
                "a text is not UTF-8" if "UTF8" in why else "a value is not valid for its type",
                hint="fix the rows, or use a column of another type",
                column=field.name,
                why=why,
            ) from error
    return batch


def _check_json(column: pa.Array) -> None:
    """Raise `JSONDecodeError` for a text that is not JSON, in a column of JSON or inside of one."""
    if not _has_json(column.type):
        return
    if column.type == pa.json_():
        for text in pc.drop_null(column.storage).to_pylist():
            orjson.loads(text)
    elif pa.types.is_dictionary(column.type):
        _check_json(column.dictionary)
    elif pa.types.is_struct(column.type):
        for part in column.flatten():
            _check_json(part)
    elif pa.types.is_map(column.type):
        _check_json(items_of_maps(column))
    else:
        _check_json(column.flatten())


def items_of_maps(column: pa.MapArray) -> pa.Array:
    """Return the items of an array of maps, which may be a slice."""
    first = column.offsets[0].as_py()
    return column.items.slice(first, column.offsets[-1].as_py() - first)


def _has_json(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _has_json(kind.value_type)
    return kind == pa.json_() or any(_has_json(kind.field(i).type) for i in range(kind.num_fields))


def to_utc(times: pa.Array, kind: pa.DataType, spec: TableSpec) -> pa.Array:
    """Return times as instants; those without a zone are clock times of the table's zone.

    `Invalid` for a clock time that daylight saving skips or repeats: it is not exactly one instant.
    """
    if times.type.tz is None and spec.timezone is not None:
        try:
            times = pc.assume_timezone(times, spec.timezone)
        except pa.ArrowException as error:
            raise Invalid(
                "a clock time does not exist, or exists twice, in the table's time zone",
                hint="append times in UTC",
                timezone=spec.timezone,
                why=str(error),
            ) from error
    if times.type == kind:
        return times
    # A time without a zone is UTC, so the integer is the same with and without a zone.
    return times.cast(pa.int64()).cast(pa.timestamp(times.type.unit, tz=kind.tz))


def match_window(times: pa.Array, window: TimeWindow) -> npt.NDArray[np.bool_]:
    """Tell for each value of the index whether it lies in the window."""
    values, unit = index_numbers(times)
    unit_ns = unit_size(unit)
    inside = np.ones(len(values), dtype=bool)
    if window.start is not None:
        inside &= values >= -(-window.start // unit_ns)
    if window.end is not None:
        inside &= values < -(-window.end // unit_ns)
    return inside


def measure_segment(storage: Storage, state: TableState, segment: Segment) -> SegmentMeasurement:
    """Return what the live rows of a segment hold, from its Parquet file."""
    names = [state.spec.time_column, *state.spec.entity_columns]
    rows = read_rows(storage, state, segment, names)
    return measure((part.batch for part in rows), state.spec)


def decode_deletes(text: str) -> BitMap:
    """Return the deleted positions of a segment; `Corruption` when the text is damaged."""
    if not text:
        return BitMap()
    try:
        return BitMap.deserialize(base64.b64decode(text, validate=True))
    except (ValueError, RuntimeError) as error:
        raise Corruption("not a deletion vector", hint="restore the commit from a copy") from error


def encode_deletes(positions: BitMap) -> str:
    """Return deleted positions as a commit stores them; `Overloaded` past the limit."""
    positions.run_optimize()
    data = positions.serialize()
    if len(data) > DELETES_BYTES_MAX:
        raise Overloaded(
            "the deletion vector of one segment is too large",
            hint="delete fewer rows at once, and compact in between",
            size_bytes=len(data),
            size_bytes_max=DELETES_BYTES_MAX,
        )
    return base64.b64encode(data).decode()


def unreadable_error(path: str, error: Exception) -> Corruption:
    """Return the error for a segment that Parquet cannot read."""
    return Corruption(
        "a segment cannot be read as Parquet",
        hint="restore the file from a copy",
        path=path,
        why=str(error).splitlines()[0] if str(error) else type(error).__name__,
    )
