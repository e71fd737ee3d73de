"""Tables as streams: read commit by commit, written batch by batch.

In:   the commits of a table since an offset; the batches of a query
Out:  the rows that they added; one commit a batch

- An offset is a version. The first batch is the table at the batch's end; every later batch has the
  segments that were added between two versions.
- A commit that only rewrites rows, or deletes rows past their retention, adds nothing. A commit
  that changes or deletes rows is an error, because a stream cannot retract rows. With
  `ignoreChanges` the stream gives the added rows and ignores the removed ones.
- A written batch stores its query and its number in its commit: a restarted query that repeats its
  last batch changes nothing.
- Hot rows are in a stream after they are flushed.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from thermocline.cold.segment.stage import TAG_LENGTH
from thermocline.cold.segment.write_target import WriteTarget
from thermocline.cold.table import ColdTable
from thermocline.errors import Invalid, NotFound, Unsupported
from thermocline.format.layout import Version
from thermocline.format.log.action import (
    AddSegment,
    RemoveSegment,
    Segment,
    SetDeletes,
)
from thermocline.format.log.commit import Commit
from thermocline.format.log.state import TableState
from thermocline.pipeline.spark.options import PARTITION_BYTES, SparkOptions, open_table
from thermocline.pipeline.spark.partition import (
    ReadPartition,
    partition_segments,
    read_partition,
    scan_spec,
)
from thermocline.pipeline.spark.read_lease import hold_version
from thermocline.pipeline.spark.sink import (
    WriteReport,
    append_options,
    clean_up,
    commit_reports,
    current_attempt,
    stage_batches,
)
from thermocline.pipeline.spark.source import frame_columns
from thermocline.pipeline.spark.worker_stage import encode_staged

NEUTRAL_OPERATIONS = frozenset({"compact", "retain"})
LATEST = "latest"
_QUERY = "sql.streaming.queryId"
_BATCH = "streaming.sql.batchId"

Offset = dict[str, int]


class CommitReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a table commit by commit."""

    def __init__(self, options: SparkOptions, frame: StructType, schema_id: int | None) -> None:
        for name in ("asOf", "hot", "start", "end", "pushdown"):
            if options.text(name) is not None:
                hint = "omit it; startingVersion says where a stream begins"
                raise Invalid("a stream has no such option", hint=hint, option=name)
        self._options = options
        self._frame = frame
        self._schema_id = schema_id
        self._table_: ColdTable | None = None
        self._target: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_table_": None}

    @property
    def _table(self) -> ColdTable:
        if self._table_ is None:
            self._table_ = open_table(self._options, is_read_only=True)
        return self._table_

    def initialOffset(self) -> Offset:  # noqa: N802
        """Return where a new query begins: before the first version, or at `startingVersion`."""
        given = self._options.text("startingVersion")
        if given is None:
            return _make_offset(0)
        head = self._table.state()
        if given.lower() == LATEST:
            return _make_offset(head.version)
        version = self._options.number("startingVersion", 0)
        if version > head.version:
            self._table.log.state(version)  # raises `NotFound`, with the newest version
        # The commit that makes this version is the first that is read.
        return _make_offset(version - 1)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of a batch."""
        if self._options.text("maxFilesPerTrigger") is None:
            return ReadAllAvailable()
        return ReadMaxFiles(self._options.number("maxFilesPerTrigger", 1))

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Return the version at which the next batch ends."""
        newest = int(self._table.state().version)
        newest = newest if self._target is None else min(newest, self._target)
        first = start["version"]
        if not isinstance(limit, ReadMaxFiles) or not first:
            return _make_offset(max(newest, first))
        files, version = 0, first
        while version < newest:
            files += sum(
                isinstance(a, AddSegment) for a in self._table.log.commit(version + 1).actions
            )
            if files > limit.max_files and version > first:
                break
            version += 1
        return _make_offset(version)

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        """Return the newest version."""
        return _make_offset(int(self._table.state().version))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Stop at the version that is the newest now."""
        self._target = int(self._table.state().version)

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Return the partitions of the rows that were added after `start`, up to `end`."""
        first, last = start["version"], end["version"]
        if first >= last:
            return []
        table = self._table
        if first:
            self._check_not_vacuumed(table.state(), first)
            state = table.state()
            segments = [
                s for one in self._read_commits(first, last) for s in self._find_added_segments(one)
            ]
        else:
            state = table.state(last)
            segments = list(state.segments)
        hold_version(
            table, Version(last if not first else min(first + 1, last)), self._options.lease_s
        )
        state = self._with_loaded_schema(state)
        names = frame_columns(self._frame, state.schema)
        scan = scan_spec(table, state, names, options=self._options.storage)
        size_bytes = self._options.number("partitionBytes", PARTITION_BYTES)
        return [*partition_segments(scan, segments, size_bytes)]

    def _with_loaded_schema(self, state: TableState) -> TableState:
        """Return the state with the columns with which the stream was loaded."""
        return state if self._schema_id is None else replace(state, schema_id=self._schema_id)

    def _check_not_vacuumed(self, head: TableState, first: int) -> None:
        if first + 1 < head.oldest:
            raise NotFound(
                "the version that the stream must read next was vacuumed",
                hint="start again with another checkpointLocation, and vacuum with a longer grace",
                version=first + 1,
                oldest=head.oldest,
            )

    def _read_commits(self, first: int, last: int) -> Iterator[Commit]:
        for version in range(first + 1, last + 1):
            yield self._table.log.commit(version)

    def _find_added_segments(self, commit: Commit) -> list[Segment]:
        takes = any(isinstance(a, RemoveSegment | SetDeletes) for a in commit.actions)
        if takes and commit.operation in NEUTRAL_OPERATIONS:
            return []
        if takes and not self._options.flag("ignoreChanges"):
            raise Unsupported(
                "a commit changed or deleted rows that the stream has already given",
                hint="set option('ignoreChanges', 'true'), or start again after it with"
                " option('startingVersion', ...) and another checkpointLocation",
                version=commit.version,
                operation=commit.operation,
            )
        return [a.segment for a in commit.actions if isinstance(a, AddSegment)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition. For workers."""
        if isinstance(partition, ReadPartition):
            yield from read_partition(partition, self._frame)

    def commit(self, end: Offset) -> None:
        """Do nothing: Spark stores the offsets."""

    def stop(self) -> None:
        """Release the table."""
        self._table_ = None


def _make_offset(version: int) -> Offset:
    return {"version": int(version)}


class BatchWriter(DataSourceStreamArrowWriter):
    """Appends each batch of a query to a table once."""

    def __init__(self, options: SparkOptions, frame: StructType, target: WriteTarget) -> None:
        if options.text("batchId") is not None:
            hint = "omit it: a stream numbers its batches"
            raise Invalid("a stream takes no batch id", hint=hint)
        self._options = options
        self._frame = frame
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriteReport:
        """Write the rows of one task of a batch as segments. For workers."""
        task = TaskContext.get()
        assert task is not None
        query, batch = task.getLocalProperty(_QUERY), task.getLocalProperty(_BATCH)
        assert query is not None
        assert batch is not None
        # All attempts at a batch use one tag for their files, in every run of the query.
        tag = hashlib.blake2b(f"{query}:{batch}".encode()).hexdigest()[:TAG_LENGTH]
        target = replace(self._target, tag=tag)
        staged = stage_batches(iterator, self._frame, target)
        return WriteReport(encode_staged(staged), tag, current_attempt(), query)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit a batch as one version, unless an earlier run of the query did."""
        reports = [one for one in messages if isinstance(one, WriteReport)]
        if not reports:
            return
        commit_options = append_options(self._options, (f"spark:{reports[0].query}", batchId))
        commit_reports(self._options, messages, commit_options)

    def abort(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: ARG002, N803
    ) -> None:
        """Remove the files of a batch's tasks, unless a commit was tried."""
        marks = {one.tag for one in messages if isinstance(one, WriteReport)}
        for tag in marks:
            clean_up(self._options, tag, messages)
