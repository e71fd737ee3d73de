"""Reads a table with Spark's own Parquet reader where that is exact, and with Python elsewhere.

In:   a table, columns, a stretch of time
Out:  a frame of one version, or one exact view, with the columns that `format("thermocline")` has

- Spark reads a file natively if no row of it is deleted and Spark reads its types exactly. Files
  that lack a column, or have it under another name or in a narrower type, are read natively as
  well: each kind separately, then converted.
- Python reads all other files and the hot rows, as partitions. The frame is the union of both.
- The driver compares every file's bytes with its checksum when it makes the frame. Executors read
  later: they compare every page with its checksum, and so detect damage that happened meanwhile.
- Spark reads only files of a file system natively; Python reads those of an object store.
"""

import os
import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from functools import lru_cache, partial, reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as kinds
from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as spark_types

from thermocline.cold.care.pin import LEASE_S
from thermocline.cold.catalog import LAKE_PATH
from thermocline.cold.segment.parquet import find_stored_name
from thermocline.cold.storage.local import LocalStorage
from thermocline.cold.storage.open_storage import is_store_address, open_storage
from thermocline.cold.table import ColdTable
from thermocline.errors import Invalid
from thermocline.format.argument import check_flag
from thermocline.format.instant import NS_PER_UNIT, NS_PER_US
from thermocline.format.log.action import Segment
from thermocline.format.log.conflict import TimeWindow, parse_window
from thermocline.format.log.state import TableState
from thermocline.format.schema import TableColumn
from thermocline.format.types import decode_type, is_alike
from thermocline.names import is_table_name
from thermocline.pipeline.run.workspace import JobWorkspace
from thermocline.pipeline.spark.options import PARTITION_BYTES
from thermocline.pipeline.spark.partition import (
    ReadPartition,
    partition_hot_rows,
    partition_segments,
    read_partition,
    scan_spec,
)
from thermocline.pipeline.spark.read_lease import hold_version
from thermocline.pipeline.spark.session import check_session, without_warnings
from thermocline.pipeline.spark.types import (
    NANOSECONDS_SUFFIX,
    is_nanoseconds,
    is_native,
    select_columns,
    spark_schema,
    spark_type,
)
from thermocline.snapshot import TableView, hot_rows, resolve_view

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KINDS_MAX = 16
FOOTERS_AT_ONCE = 8
FOOTERS_KNOWN_MAX = 65_536

_VERIFY_PAGES = "parquet.page.verify-checksum.enabled"
"""Spark's setting that lets its reader compare every page with the checksum beside it."""
_GLOB = re.compile(r"([\[\]{}*?\\])")

StoredColumn = tuple[str, pa.DataType] | None
"""A column's name and type in a file; None if the file lacks the column."""


def read(
    spark: "SparkSession",
    table: Any,
    at: object = None,
    columns: str | Sequence[str] | None = None,
    start: object = None,
    end: object = None,
    hot: bool = False,
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return a frame of a table, read by Spark's own Parquet reader wherever that is exact.

    `table` is a folder, an address, `LAKE/NAME`, or an opened table. With `hot` it is a table of a
    lake, which another process may write, and the frame contains each of its hot rows once. The
    frame is one version, the newest or the one that `at` names; its files are kept for a day, even
    if the table changes. `storage_options` are those of an object store, for the driver and the
    workers.
    """
    cold, view, rows = _resolve_table(table, at, storage_options, hot=check_flag(hot, "hot"))
    state = view.state
    window = parse_window(start, end, state.spec.bucket)
    arrow = select_columns(state.schema, columns)
    check_session(spark)
    hold_version(cold, state.version, LEASE_S)
    frame = spark_schema(arrow)
    groups, odd = _group_segments(cold, state, arrow.names, window)
    scan = scan_spec(cold, state, arrow.names, window, storage_options)
    parts = partition_segments(scan, odd, PARTITION_BYTES)
    if rows is not None:
        parts += partition_hot_rows(scan, rows)
    frames = [_read_native(spark, cold, arrow, kind, window) for kind in groups.items()]
    if parts or not frames:
        frames.append(_read_with_python(spark, parts, frame))
    return reduce(lambda one, other: one.union(other), frames)


def _resolve_table(
    table: Any, at: object, options: Mapping[str, str] | None, *, hot: bool
) -> tuple[ColdTable, TableView, pa.Table | None]:
    """Return the table, the view to read, and the hot rows if they are requested."""
    cold = getattr(table, "cold", None)
    named = _split_lake_path(table) if cold is None else None
    if named is not None:
        with JobWorkspace(named[0]) as site:
            opened = site.lake().table(named[1]) if hot else site.table(named[1])
            return _resolve_table(opened, at, options, hot=hot)
    if not hot:
        if isinstance(table, ColdTable):
            return table, TableView(table.state(at)), None
        found = cold or ColdTable(open_storage(table, options, "table"))
        return found, TableView(found.state(at)), None
    if at is not None:
        hint = "omit `at` or `hot`"
        raise Invalid("an old version has no hot rows", hint=hint, at=at)
    if cold is None or not hasattr(table, "snapshot"):
        hint = "name it LAKE/NAME, or pass a table of tc.connect(folder)"
        raise Invalid("only a table of a lake has hot rows", hint=hint)
    view = resolve_view(table.snapshot(), cold)
    return cold, view, hot_rows(view)


def _split_lake_path(table: Any) -> tuple[str, str] | None:
    """Return the lake's folder and the table's name of `LAKE/NAME`; None for any other table."""
    if not isinstance(table, str | os.PathLike) or is_store_address(os.fspath(table)):
        return None
    path = os.fspath(table).rstrip("/")
    folder, name = os.path.split(path)
    if os.path.isdir(path) or not is_table_name(name):
        return None
    return (folder or ".", name) if os.path.isfile(os.path.join(folder, LAKE_PATH)) else None


def _group_segments(
    cold: ColdTable, state: TableState, names: Sequence[str], window: TimeWindow
) -> tuple[dict[tuple[StoredColumn, ...], list[Segment]], list[Segment]]:
    """Return the segments that Spark can read, grouped by stored columns, and the others."""
    loaded = [state.schema.column(name) for name in [*names, state.spec.time_column]]
    groups: dict[tuple[StoredColumn, ...], list[Segment]] = {}
    odd = []
    found = state.segments.overlapping(window.start, window.end)
    is_local = isinstance(cold.storage, LocalStorage)
    for segment in sorted(found, key=lambda one: (one.ts_min, one.segment_id)):
        kind = tuple(_stored_column(state, segment, column) for column in loaded)
        is_plain = is_local and not segment.deletes and all(map(_is_native, kind, loaded))
        if is_plain and (kind in groups or len(groups) < KINDS_MAX):
            groups.setdefault(kind, []).append(segment)
        else:
            odd.append(segment)
    for kind, held in groups.items():
        if any(one is not None and is_nanoseconds(one[1]) for one in kind):
            paths = [cold.storage.locate(one.path, one.file_size, one.checksum) for one in held]
            with ThreadPoolExecutor(FOOTERS_AT_ONCE) as pool:
                counted = list(pool.map(_has_no_int96, paths))
            odd += [one for one, is_so in zip(held, counted, strict=True) if not is_so]
            groups[kind] = [one for one, is_so in zip(held, counted, strict=True) if is_so]
    return {kind: held for kind, held in groups.items() if held}, odd


def _stored_column(state: TableState, segment: Segment, column: TableColumn) -> StoredColumn:
    name = find_stored_name(state, segment, column)
    if name is None:
        return None
    narrow = segment.stored.get(str(column.id))
    if narrow is not None:
        return name, decode_type(narrow)
    return name, state.schemas[segment.schema_id].by_id[column.id].type


def _is_native(stored: StoredColumn, column: TableColumn) -> bool:
    """Tell whether Spark reads a file's column and casts it to the table's by itself."""
    if stored is None:
        return True
    # Spark casts no struct to one with more fields.
    is_same = not kinds.is_nested(column.type) or is_alike(stored[1], column.type)
    return is_native(stored[1]) and is_same


@lru_cache(FOOTERS_KNOWN_MAX)
def _has_no_int96(path: str) -> bool:
    """Tell whether a file has no times in Parquet's old form INT96, which Spark converts."""
    schema = pq.ParquetFile(path).schema
    return all(schema.column(place).physical_type != "INT96" for place in range(len(schema)))


def _read_native(
    spark: "SparkSession",
    cold: ColdTable,
    arrow: pa.Schema,
    kind: tuple[tuple[StoredColumn, ...], list[Segment]],
    window: TimeWindow,
) -> DataFrame:
    """Return the rows of files with the same stored columns, read by Spark."""
    stored, segments = kind
    physical = {one[0]: _physical_type(one) for one in stored if one is not None}
    fields = [spark_types.StructField(name, held) for name, held in physical.items()]
    paths = [cold.storage.locate(one.path, one.file_size, one.checksum) for one in segments]
    reader = spark.read.schema(spark_types.StructType(fields)).option(_VERIFY_PAGES, "true")
    rows = reader.parquet(*(_GLOB.sub(r"\\\1", path) for path in paths))
    time = stored[-1]
    assert time is not None
    if not all(_is_inside(one, window) for one in segments):
        rows = rows.where(_window_condition(time, window))
    pairs = list(zip(arrow, stored[:-1], strict=True))
    if all(_is_as_stored(field, one) for field, one in pairs):
        # Each expression is a call to Java: for many columns they cost more than a small read.
        return rows.select(*(_quote_name(name) for name in arrow.names))
    return rows.select(*(part for field, one in pairs for part in _column_expressions(field, one)))


def _is_as_stored(field: pa.Field, stored: StoredColumn) -> bool:
    if stored is None or is_nanoseconds(field.type):
        return False
    name, kind = stored
    return name == field.name and spark_type(kind, name) == spark_type(field.type, name)


def _physical_type(stored: tuple[str, pa.DataType]) -> spark_types.DataType:
    name, kind = stored
    return spark_types.LongType() if is_nanoseconds(kind) else spark_type(kind, name)


def _column_expressions(field: pa.Field, stored: StoredColumn) -> list[Expression]:
    """Return the expressions that make a column of the table from a file's column."""
    shown = spark_schema(pa.schema([field]))
    if stored is None:
        return [f.lit(None).cast(one.dataType).alias(one.name) for one in shown.fields]
    column = _column(stored[0])
    if not is_nanoseconds(stored[1]):
        return [column.cast(shown[0].dataType).alias(field.name)]
    rest = f.pmod(column, f.lit(NS_PER_US))
    # `div` divides integers; `/` would divide floating-point numbers and lose digits.
    named = _quote_name(stored[0])
    micros = f.expr(f"({named} - pmod({named}, {NS_PER_US})) div {NS_PER_US}")
    if field.type.tz is None:
        micros_time = f.timestamp_add("MICROSECOND", micros, f.lit(_EPOCH).cast("timestamp_ntz"))
    else:
        micros_time = f.timestamp_micros(micros)
    name = field.name + NANOSECONDS_SUFFIX
    return [micros_time.alias(field.name), rest.cast("short").alias(name)]


_EPOCH = "1970-01-01 00:00:00"


def _column(name: str) -> Expression:
    return f.col(_quote_name(name))


def _quote_name(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _is_inside(segment: Segment, window: TimeWindow) -> bool:
    starts = window.start is None or segment.ts_min >= window.start
    return starts and (window.end is None or segment.ts_max < window.end)


def _window_condition(time: tuple[str, pa.DataType], window: TimeWindow) -> Expression:
    """Return the condition that a time is in the window."""
    name, kind = time
    column = _column(name)
    conditions = []
    for bound, compare in ((window.start, "__ge__"), (window.end, "__lt__")):
        if bound is None:
            continue
        if is_nanoseconds(kind) or kinds.is_integer(kind):
            limit = bound if abs(bound) < 1 << 63 else Decimal(bound)
            conditions.append(getattr(column, compare)(f.lit(limit)))
            continue
        # Rounded up to the first whole unit that is not before the bound.
        unit_ns = max(NS_PER_UNIT[kind.unit], NS_PER_US)
        micros = -(-bound // unit_ns) * (unit_ns // NS_PER_US)
        conditions.append(
            getattr(column, compare)(_timestamp_literal(micros, has_zone=bool(kind.tz)))
        )
    return reduce(lambda one, other: one & other, conditions)


def _timestamp_literal(micros: int, *, has_zone: bool) -> Expression:
    if has_zone:
        return f.timestamp_micros(f.lit(micros))
    return f.timestamp_add("MICROSECOND", f.lit(micros), f.lit(_EPOCH).cast("timestamp_ntz"))


def _read_with_python(
    spark: "SparkSession", parts: list[ReadPartition], frame: spark_types.StructType
) -> DataFrame:
    """Return the rows of partitions, read by Python workers."""
    sealed = pa.table({"share": pa.array([pickle.dumps(one) for one in parts], pa.binary())})
    with without_warnings():
        return spark.createDataFrame(sealed, "share binary").mapInArrow(
            partial(_read_encoded, frame), frame
        )


def _read_encoded(
    frame: spark_types.StructType, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for sealed in batch.column(0).to_pylist():
            share = pickle.loads(sealed)  # noqa: S301  pickled by our driver
            yield from read_partition(share, frame)
