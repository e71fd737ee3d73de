"""Frames written into a table: workers write segments, the driver makes one commit of them.

In:   a frame's batches in workers; what they report, in the driver
Out:  one version that has the whole frame, or none

- Spark returns the report of one attempt of each task. No version names the files of the other
  attempts; they carry the tag of this write and are removed when it ends, or by a vacuum.
- A write with a batch id is done once: a repeated one changes nothing.
- The clocks of workers are never used: names are random, times come from the rows.
- A write never replaces a whole table. `option("overlap", "replace")` replaces the buckets that
  the new rows cover.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from thermocline.cold.change.append import AppendOptions, plan_columns
from thermocline.cold.change.commit_staged import append_staged, new_tag, sweep_staged
from thermocline.cold.segment.stage import StagedSegment, check_writable
from thermocline.cold.segment.write_target import WriteTarget
from thermocline.cold.storage.open_storage import open_storage
from thermocline.cold.table import ColdTable
from thermocline.errors import Conflict, Invalid, NotFound, ThermoclineError, Unsupported
from thermocline.format.log.action import TableSpec
from thermocline.format.log.state import TableState
from thermocline.pipeline.spark.options import SparkOptions, open_catalog, open_table
from thermocline.pipeline.spark.types import from_spark, table_schema
from thermocline.pipeline.spark.worker_stage import decode_staged as unsealed
from thermocline.pipeline.spark.worker_stage import encode_staged, write_segments


@dataclass(frozen=True)
class WriteReport(WriterCommitMessage):
    """The encoded segments of a task and its attempt; `query` is the id of the stream, if any."""

    staged: bytes
    tag: str
    attempt: int
    query: str = ""


class TableWriter(DataSourceArrowWriter):
    """Appends one frame to a table."""

    def __init__(self, options: SparkOptions, frame: StructType, target: WriteTarget) -> None:
        self._options = options
        self._frame = frame
        self._target = target
        self._commit_options = append_options(options, parse_batch_id(options))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriteReport:
        """Write the rows of one task as segments, durable when this returns. For workers."""
        staged = stage_batches(iterator, self._frame, self._target)
        return WriteReport(encode_staged(staged), self._target.tag, current_attempt())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the segments that the tasks report, as one version."""
        commit_reports(self._options, messages, self._commit_options)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove the files of the tasks, unless a commit was tried."""
        clean_up(self._options, self._target.tag, messages)


def prepare_target(options: SparkOptions, frame: StructType, *, is_overwrite: bool) -> WriteTarget:
    """Return the table to write; create it if it does not exist and the options declare it.

    `Invalid` for a frame that does not fit, before any task runs.
    """
    if is_overwrite:
        raise Unsupported(
            "a whole table cannot be overwritten",
            hint="use mode('append') with option('overlap', 'replace'), which replaces the"
            " buckets that the new rows cover",
        )
    table = _open_or_create_table(options)
    state = table.state()
    arrow = table_schema(frame, state.schema)
    schema = plan_columns(state, [arrow], evolve=options.flag("evolve")).schema
    check_writable(schema)
    return WriteTarget(table.storage.root, state.spec, schema, new_tag(), options.storage)


def _open_or_create_table(options: SparkOptions) -> ColdTable:
    if options.text("timeColumn") is None and options.text("indexColumn") is None:
        return open_table(options, is_read_only=False)
    name, spec = options.text("table"), _read_spec(options)
    if name is not None:
        tables = open_catalog(options, is_read_only=False)
        with suppress(NotFound):
            return tables.table(name)
        with suppress(Conflict):
            return tables.create(name, spec)
        return tables.table(name)
    table = ColdTable(open_storage(options.root, options.storage or None))
    try:
        table.state()
    except NotFound:
        with suppress(Conflict):  # another writer created it meanwhile
            table.create(spec)
    return table


def _read_spec(options: SparkOptions) -> TableSpec:
    index, bucket = options.text("indexColumn"), options.text("bucket")
    time_column = options.text("timeColumn")
    if not (time_column or index) or not bucket:
        hint = "give option('timeColumn', ...) and option('bucket', '1h')"
        raise Invalid("a new table needs a time column and a bucket", hint=hint)
    more: dict[str, Any] = {name: options.text(name) for name in ("timezone", "retention")}
    from thermocline.table import new_spec  # imports modules that workers do not need

    # As elsewhere: rows of a lake come one by one, rows of a single table in whole buckets.
    usual = "reject" if options.text("table") is None else "allow"
    more["overlap"] = options.text("overlap") or usual
    if index:
        number = "int64" if bucket.strip().isdigit() else None
        more |= {"index_column": index, "index_type": options.text("indexType") or number}
    return new_spec(time_column, bucket, options.names("entityColumns") or (), **more)


def parse_batch_id(options: SparkOptions) -> tuple[str, int] | None:
    """Return name and number of the batch id `nightly:7`; a batch without a number gets 0."""
    given = options.text("batchId")
    if given is None:
        return None
    name, _, number = given.rpartition(":")
    if name and number.isascii() and number.isdigit():
        return name, int(number)
    return given, 0


def append_options(options: SparkOptions, txn: tuple[str, int] | None) -> AppendOptions:
    """Return the options of the append."""
    return AppendOptions(options.text("overlap"), options.flag("evolve"), txn)


def stage_batches(
    batches: Iterable[pa.RecordBatch], frame: StructType, target: WriteTarget
) -> list[StagedSegment]:
    """Write a frame's batches as segments of the table. For workers."""
    schema = target.schema
    return write_segments(target, (from_spark(batch, frame, schema) for batch in batches))


def current_attempt() -> int:
    """Return the number of this attempt at its task, from 0. For workers."""
    task = TaskContext.get()
    return 0 if task is None else task.attemptNumber()


def commit_reports(
    options: SparkOptions,
    messages: Sequence[WriterCommitMessage | None],
    commit_options: AppendOptions,
) -> TableState:
    """Commit the segments that tasks report, as one version; remove files of failed attempts.

    Files of an attempt that lost a race without failing stay until a vacuum: Spark does not report
    such attempts, and finding them would mean listing all files of the table for each commit.
    """
    reports = [one for one in messages if isinstance(one, WriteReport)]
    staged = [one for report in reports for one in unsealed(report.staged)]
    table = open_table(options, is_read_only=False)
    before = table.state()
    if commit_options.txn and before.txns.get(commit_options.txn[0], -1) >= commit_options.txn[1]:
        # The version of the first run may name files with this tag: remove only ours.
        return append_staged(table, staged, commit_options)
    state = append_staged(table, staged, commit_options) if staged else before
    if any(report.attempt for report in reports):
        kept = {path for one in staged for path in one.paths}
        with suppress(ThermoclineError):  # the rows are committed; a vacuum removes what is left
            sweep_staged(table, reports[0].tag, kept)
    return state


def clean_up(
    options: SparkOptions, tag: str, messages: Sequence[WriterCommitMessage | None]
) -> None:
    """Remove the files of tasks, unless all tasks reported.

    If all tasks reported, a commit was tried. It removed its files if it definitely failed;
    otherwise the log may name them.
    """
    if messages and all(message is not None for message in messages):
        return
    with suppress(ThermoclineError):
        sweep_staged(open_table(options, is_read_only=False), tag)
