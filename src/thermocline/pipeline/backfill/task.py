"""A worker's task in a backfill: read files, check every row, write segments, report.

In:   the files of a piece, their table, and the policies for bad rows and new columns
Out:  durable segments that no version names yet; bad rows; the failure, if the task stopped

- A large Parquet file that fits is copied byte for byte; small ones are written together.
- A worker that stops removes the segments that it wrote. It returns an error of the rows, and the
  task is not retried. It raises an error of its machine, and Spark retries the task.
- A worker needs only this package and the files.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from thermocline.cold.segment.stage import (
    SEGMENT_BYTES_MAX,
    SEGMENT_ROWS_MAX,
    Stage,
    StagedSegment,
)
from thermocline.cold.segment.write_target import WriteTarget
from thermocline.errors import Invalid, ThermoclineError, Unavailable
from thermocline.format.log.action import TableSpec
from thermocline.format.schema import Schema
from thermocline.ingest.files.bad_rows import BadRow, BadRowCollector
from thermocline.ingest.files.file_columns import FileColumns, read_file_columns
from thermocline.ingest.files.infer_columns import add_counts
from thermocline.ingest.files.input_files import InputFile
from thermocline.ingest.files.parse import (
    READ_ERRORS,
    ReadTarget,
    UnreadableFile,
    check_types,
    read_file,
)

WHOLE_FILE_BYTES_MIN = 16 << 20
"""A Parquet file of this size becomes a segment unchanged; smaller ones are written together."""


@dataclass(frozen=True, slots=True)
class BackfillContext:
    """What every task of a backfill needs."""

    target: WriteTarget
    pieces: tuple[tuple[InputFile, ...], ...]
    on_bad: str
    bad_rows_max: int
    drift: str


@dataclass(frozen=True, slots=True)
class BackfillReport:
    """A task's result: durable segments that no version names yet, bad rows, its failure."""

    staged: tuple[StagedSegment, ...] = ()
    bad: tuple[BadRow, ...] = ()
    failure: ThermoclineError | None = None


def read_piece_columns(
    spec: TableSpec,
    schema: Schema,
    declared: Mapping[str, pa.DataType],
    pieces: tuple[tuple[InputFile, ...], ...],
    number: int,
) -> list[FileColumns]:
    """Return the columns of the readable files of a piece. For workers.

    Files with the same columns give one result, with the path of the first file.
    """
    found: list[FileColumns] = []
    for file in pieces[number]:
        try:
            look = read_file_columns(file, spec, schema, declared)
        except (ThermoclineError, *READ_ERRORS):
            continue  # the task that reads the file reports the error
        if spec.time_column not in look.arrow.names:
            continue
        same = [
            one for one in found if one.is_exact == look.is_exact and one.arrow.equals(look.arrow)
        ]
        if not same:
            found.append(look)
        elif same[0].counts is not None and look.counts is not None:
            add_counts(same[0].counts, look.counts)
    return found


def write_piece(order: BackfillContext, number: int) -> BackfillReport:
    """Read the files of a piece and write the rows that fit. For workers."""
    sieve, target = BadRowCollector(order.on_bad, order.bad_rows_max), order.target
    reading = ReadTarget(target.schema, target.spec, sieve, is_strict=order.drift != "ignore")
    stage = target.stage()
    try:
        _write_segments(stage, _read_remaining(stage, order.pieces[number], reading), target)
    except BaseException as error:
        stage.discard()
        if isinstance(error, ThermoclineError) and not isinstance(error, Unavailable):
            return BackfillReport(
                failure=error
            )  # returned: a retry by another worker would fail as well
        raise
    return BackfillReport(tuple(stage.staged), tuple(sieve.bad))


def _read_remaining(
    stage: Stage, files: Iterable[InputFile], reading: ReadTarget
) -> Iterator[pa.RecordBatch]:
    """Stage the files that can be copied unchanged; yield the rows of all others."""
    for file in files:
        if not _take_whole_file(stage, file, reading):
            yield from read_file(file, reading)


def _take_whole_file(stage: Stage, file: InputFile, reading: ReadTarget) -> bool:
    """Stage a Parquet file byte for byte if it is large and fits; tell whether it did."""
    if file.format != "parquet" or file.size_bytes < WHOLE_FILE_BYTES_MIN:
        return False
    try:
        with pq.ParquetFile(file.path) as opened_file:
            arrow = opened_file.schema_arrow
            found = check_types(file, arrow, reading)
    except (UnreadableFile, *READ_ERRORS):
        return False  # reading its rows reports the error
    in_zone = reading.spec.timezone is None or arrow.field(reading.spec.time_column).type.tz
    if found.must_rewrite or found.unknown or found.wider or not in_zone:
        return False
    try:
        stage.import_parquet(file.path, reading.spec, link=False)
    except Invalid:
        return False  # a row has no time, or the file is cut off: it is read row by row
    return True


def _write_segments(stage: Stage, batches: Iterator[pa.RecordBatch], target: WriteTarget) -> None:
    """Write checked batches as segments of bounded size."""
    held: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        size_bytes += batch.nbytes
        if rows >= SEGMENT_ROWS_MAX or size_bytes >= SEGMENT_BYTES_MAX:
            stage.write_table(pa.Table.from_batches(held), target.schema, target.spec)
            held, rows, size_bytes = [], 0, 0
    if rows:
        stage.write_table(pa.Table.from_batches(held), target.schema, target.spec)
