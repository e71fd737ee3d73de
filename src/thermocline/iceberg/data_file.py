"""What a manifest says about one segment: its file, its counts and bounds, its deleted rows.

In:   a live segment, its file's footer, the table's columns
Out:  the record of its data file, and the bytes of its position-delete file

- Bounds come from the statistics of the footer, those of texts from the log. They are bounds of
  all rows of the file, deleted ones included.
- The footer is read from a file whose bytes have the checksum in the log: a damaged bound would
  let other engines skip rows without an error.
- Floating-point columns have bounds only in files that we wrote: we write no statistics where a
  value is NaN, other writers ignore it.
"""

import struct
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from thermocline.cold.segment.parquet import decode_deletes, unreadable_error
from thermocline.cold.storage.storage import Storage
from thermocline.errors import Corruption
from thermocline.format.field_ids import FIELD_ID_KEY
from thermocline.format.log.action import Segment
from thermocline.format.schema import Schema
from thermocline.iceberg.avro import DATA, DELETES, Record
from thermocline.iceberg.columns import FoundColumns, check_file, simple_type

FILE_PATH_ID, POSITION_ID = 2_147_483_546, 2_147_483_545
TEXT_BOUND_BYTES_MAX = 64
_PACKED = {
    "int": "<i",
    "date": "<i",
    "long": "<q",
    "time": "<q",
    "timestamp": "<q",
    "timestamptz": "<q",
    "float": "<f",
    "double": "<d",
}


def describe_segment(
    storage: Storage, segment: Segment, schema: Schema, path: str
) -> tuple[Record, FoundColumns]:
    """Return the record of a segment's file under its address, and how its columns are found.

    `schema` is the one that the segment was written under.
    """
    try:
        with storage.open_segment(segment.path, segment.file_size, segment.checksum) as source:
            file = pq.ParquetFile(source)
            footer, found = file.metadata, file.schema_arrow
    except (pa.ArrowException, OSError) as error:
        raise unreadable_error(segment.path, error) from error
    if footer.num_rows != segment.row_count:
        raise Corruption(
            "a segment has another number of rows than the log says",
            hint="restore the file from a copy",
            path=segment.path,
        )
    columns = check_file(segment, schema, found)
    counts, nulls, low, high = _measure(footer, segment, schema, has_ids=columns.has_ids)
    return {
        "content": DATA,
        "file_path": path,
        "file_format": "PARQUET",
        "partition": {},
        "record_count": segment.row_count,
        "file_size_in_bytes": segment.file_size,
        "value_counts": _pairs(counts),
        "null_value_counts": _pairs(nulls),
        "lower_bounds": _pairs(low),
        "upper_bounds": _pairs(high),
        "sort_order_id": None,
        "referenced_data_file": None,
    }, columns


def _pairs(found: Mapping[int, Any]) -> list[Record] | None:
    return [{"key": key, "value": value} for key, value in found.items()] or None


def _measure(
    footer: pq.FileMetaData, segment: Segment, schema: Schema, *, has_ids: bool
) -> tuple[dict[int, int], dict[int, int], dict[int, bytes], dict[int, bytes]]:
    counts: dict[int, int] = {}
    nulls: dict[int, int] = {}
    low: dict[int, bytes] = {}
    high: dict[int, bytes] = {}
    places = {footer.schema.column(n).path: n for n in range(footer.num_columns)}
    for column in schema.columns:
        kind = simple_type(column.type)
        if column.id in segment.absent or kind is None or column.name not in places:
            continue
        counts[column.id] = footer.num_rows
        parts = [part for part in _statistics(footer, places[column.name]) if part is not None]
        if len(parts) != footer.num_row_groups:
            continue
        if all(part.has_null_count for part in parts):
            nulls[column.id] = sum(part.null_count for part in parts)
        is_inexact = kind in ("float", "double") and not has_ids
        if str(column.id) in segment.stored or is_inexact:
            continue
        bounds = _bounds(parts, kind) or _text_bounds(segment, column.id, kind)
        if bounds is not None:
            low[column.id], high[column.id] = bounds
    return counts, nulls, low, high


def _statistics(footer: pq.FileMetaData, place: int) -> Iterator[pq.Statistics | None]:
    for group in range(footer.num_row_groups):
        chunk = footer.row_group(group).column(place)
        yield chunk.statistics if chunk.is_stats_set else None


def _bounds(parts: list[pq.Statistics], kind: str) -> tuple[bytes, bytes] | None:
    """Return the bounds as Iceberg encodes them; None when a part with values has none."""
    form = _PACKED.get(kind)
    full = [part for part in parts if part.has_min_max]
    if form is None or not full or any(p.num_values and not p.has_min_max for p in parts):
        return None
    low, high = min(part.min_raw for part in full), max(part.max_raw for part in full)
    return struct.pack(form, low), struct.pack(form, high)


def _text_bounds(segment: Segment, column_id: int, kind: str) -> tuple[bytes, bytes] | None:
    found = segment.stats.get(str(column_id))
    if kind != "string" or found is None or not all(isinstance(one, str) for one in found):
        return None
    low, high = (one.encode() for one in found)
    is_short = max(len(low), len(high)) <= TEXT_BOUND_BYTES_MAX
    return (low, high) if is_short else None


def encode_position_deletes(path: str, deletes: str) -> bytes:
    """Return the Parquet file that deletes rows of the file at an address, by a deletion vector."""
    positions = np.asarray(decode_deletes(deletes).to_array(), dtype=np.int64)
    fields = [
        pa.field("file_path", pa.string(), False, {FIELD_ID_KEY: str(FILE_PATH_ID)}),
        pa.field("pos", pa.int64(), False, {FIELD_ID_KEY: str(POSITION_ID)}),
    ]
    paths = pa.DictionaryArray.from_arrays(np.zeros(len(positions), np.int32), [path])
    rows = [paths.cast(pa.string()), pa.array(positions)]
    sink = pa.BufferOutputStream()
    table = pa.Table.from_arrays(rows, schema=pa.schema(fields))
    pq.write_table(table, sink, compression="zstd", store_schema=False)
    return sink.getvalue().to_pybytes()


def describe_deletes(path: str, size_bytes: int, data_path: str, rows: int) -> Record:
    """Return the record of a position-delete file at an address, for one data file."""
    bound = [{"key": FILE_PATH_ID, "value": data_path.encode()}]
    return {
        "content": DELETES,
        "file_path": path,
        "file_format": "PARQUET",
        "partition": {},
        "record_count": rows,
        "file_size_in_bytes": size_bytes,
        "value_counts": None,
        "null_value_counts": None,
        "lower_bounds": bound,
        "upper_bounds": bound,
        "sort_order_id": None,
        "referenced_data_file": data_path,
    }
