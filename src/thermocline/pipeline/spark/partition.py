"""The partitions of a table that Spark's tasks read: some segments, or some hot rows.

In:   a state, its segments that may have rows, hot rows
Out:  partitions of about equal size; in a worker, the batches of one partition

- A partition contains all that its worker needs: no worker reads the log, so all workers read the
  same version.
- Rows have the frame's columns and types; deleted rows are omitted.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from thermocline.cold.segment.parquet import filter_rows, match_window, read_rows
from thermocline.cold.storage.open_storage import open_storage
from thermocline.cold.table import ColdTable
from thermocline.format.log.action import Segment
from thermocline.format.log.conflict import ALL_TIME, TimeWindow
from thermocline.format.log.state import SegmentSet, TableState
from thermocline.pipeline.spark.types import canonical_schema, to_spark

ROWS_PER_PARTITION = 1 << 20


@dataclass(frozen=True)
class ScanSpec:
    """What to read: the table's state without its segments, the columns, the window."""

    root: str
    state: TableState
    names: tuple[str, ...]
    window: TimeWindow = ALL_TIME
    options: Mapping[str, str] | None = None


class ReadPartition(InputPartition):
    """The rows that one task reads."""

    def __init__(self, scan: ScanSpec, segments: Sequence[Segment] = (), rows: bytes = b"") -> None:
        super().__init__(None)
        self.spec = scan
        self.segments = tuple(segments)
        self.rows = rows


def scan_spec(
    table: ColdTable,
    state: TableState,
    names: Sequence[str],
    window: TimeWindow = ALL_TIME,
    options: Mapping[str, str] | None = None,
) -> ScanSpec:
    """Return what to read, without the parts of the state that workers do not need."""
    small = replace(state, segments=SegmentSet(), marks={}, txns={}, requests={}, holes=())
    return ScanSpec(table.storage.root, small, tuple(names), window, dict(options or {}) or None)


def partition_segments(
    scan: ScanSpec, segments: Iterable[Segment], size_bytes: int
) -> list[ReadPartition]:
    """Return the segments as partitions of about this size, in the order of their times."""
    found: list[ReadPartition] = []
    held: list[Segment] = []
    total = 0
    for segment in sorted(segments, key=lambda one: (one.ts_min, one.segment_id)):
        if held and total + segment.file_size > size_bytes:
            found.append(ReadPartition(scan, held))
            held, total = [], 0
        held.append(segment)
        total += segment.file_size
    return [*found, ReadPartition(scan, held)] if held else found


def partition_hot_rows(scan: ScanSpec, rows: pa.Table) -> list[ReadPartition]:
    """Return hot rows as partitions."""
    found = []
    for first in range(0, rows.num_rows, ROWS_PER_PARTITION):
        part = rows.slice(first, ROWS_PER_PARTITION).combine_chunks()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, part.schema) as stream:
            stream.write_table(part)
        found.append(ReadPartition(scan, rows=sink.getvalue().to_pybytes()))
    return found


def read_partition(share: ReadPartition, frame: StructType) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition in the frame's types. For workers."""
    scan = share.spec
    shape = canonical_schema(frame)
    for batch in _read_batches(share):
        inside = match_window(batch.column(scan.state.spec.time_column), scan.window)
        kept = batch if inside.all() else filter_rows(batch, inside)
        if kept.num_rows:
            yield to_spark(kept.select(list(scan.names)), shape)


def _read_batches(share: ReadPartition) -> Iterator[pa.RecordBatch]:
    scan = share.spec
    loaded = list(dict.fromkeys([*scan.names, scan.state.spec.time_column]))
    if share.rows:
        yield from pa.ipc.open_stream(share.rows)
    storage = open_storage(scan.root, scan.options)
    for segment in share.segments:
        for rows in read_rows(storage, scan.state, segment, loaded):
            yield rows.batch
