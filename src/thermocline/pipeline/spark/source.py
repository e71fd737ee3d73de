"""The Spark data source `thermocline`: batch and stream, reading and writing.

In:   options and a path
Out:  readers and writers, which do their work in Spark's workers

- A frame is one version of a table: the newest one when it was loaded, or the requested one. With
  hot rows it is one exact view, taken when its first query is planned.
- Spark does not tell Python sources which columns a query needs, so all columns of the frame are
  read. `option("columns", "a, b")` selects columns; `tc.spark.read` lets Spark select them.
- Filters are pushed down only on request: Spark 4.3 keeps the filters that one query pushed down,
  and applies them to every other query of the same frame. `option("start", ...)` and
  `option("end", ...)` skip segments safely; use `option("pushdown", "true")` for a frame that only
  one query uses.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from thermocline.errors import Conflict, Invalid
from thermocline.format.layout import Version
from thermocline.format.schema import Schema
from thermocline.pipeline.spark.options import (
    PARTITION_BYTES,
    READ_OPTIONS,
    WRITE_OPTIONS,
    SparkOptions,
    open_table,
    parse_options,
)
from thermocline.pipeline.spark.partition import (
    ReadPartition,
    partition_hot_rows,
    partition_segments,
    read_partition,
    scan_spec,
)
from thermocline.pipeline.spark.prune import SegmentPruning, parse_filters
from thermocline.pipeline.spark.read_lease import hold_version
from thermocline.pipeline.spark.types import has_same_columns, select_columns, spark_schema
from thermocline.snapshot import TableView, hot_rows, resolve_view

FORMAT = "thermocline"


class ThermoclineSource(DataSource):
    """A table of a lake, for reading and writing."""

    version: Version | None = None
    schema_id: int | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the columns of the table; the frame stays at their version."""
        options = self._parse_options(READ_OPTIONS)
        state = open_table(options, is_read_only=True).state(options.as_of)
        self.version, self.schema_id = state.version, state.schema_id
        return spark_schema(select_columns(state.schema, options.names("columns")))

    def reader(self, schema: StructType) -> "TableReader":
        """Return a reader of one version, or of one view."""
        options = self._parse_options(READ_OPTIONS)
        as_of = options.as_of if options.as_of is not None else self.version
        kind = PushedReader if options.flag("pushdown") else TableReader
        return kind(options, schema, as_of)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return a writer that appends a frame in one commit."""
        from thermocline.pipeline.spark.sink import TableWriter, prepare_target

        options = self._parse_options(WRITE_OPTIONS)
        return TableWriter(options, schema, prepare_target(options, schema, is_overwrite=overwrite))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return a reader of a table's commits."""
        from thermocline.pipeline.spark.stream import CommitReader

        return CommitReader(self._parse_options(READ_OPTIONS), schema, self.schema_id)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        """Return a writer that appends each batch of a stream in one commit."""
        from thermocline.pipeline.spark.sink import prepare_target
        from thermocline.pipeline.spark.stream import BatchWriter

        options = self._parse_options(WRITE_OPTIONS)
        return BatchWriter(options, schema, prepare_target(options, schema, is_overwrite=overwrite))

    def _parse_options(self, known: tuple[str, ...]) -> SparkOptions:
        return parse_options(dict(self.options), known)


class TableReader(DataSourceReader):
    """Reads one version of a table, or one view of it with its hot rows."""

    def __init__(self, options: SparkOptions, frame: StructType, as_of: object) -> None:
        self._options = options
        self._frame = frame
        self._as_of = as_of
        self._pruned: SegmentPruning | None = None

    def partitions(self) -> list[InputPartition]:
        """Return the partitions that may have rows; their files are kept from now on."""
        options = self._options
        table = open_table(options, is_read_only=True)
        if options.flag("hot"):
            view, rows = _resolve_hot_view(options)
        else:
            view, rows = TableView(table.state(self._as_of)), None
        state = view.state
        hold_version(table, state.version, options.lease_s)
        names = frame_columns(self._frame, state.schema)
        pruned = self._pruned or SegmentPruning(options.window(state.spec.bucket))
        scan = scan_spec(table, state, names, pruned.window, options.storage)
        size_bytes = options.number("partitionBytes", PARTITION_BYTES)
        found = partition_segments(scan, pruned.matching_segments(state), size_bytes)
        if rows is not None:
            found += partition_hot_rows(scan, rows)
        return [*found]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition. For workers."""
        if isinstance(partition, ReadPartition):  # without partitions Spark passes a dummy
            yield from read_partition(partition, self._frame)


class PushedReader(TableReader):
    """Reads the rows that the filters of one query let through. For a frame of one query."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Use the filters of times and entities; return those that Spark must evaluate."""
        spec = open_table(self._options, is_read_only=True).state(self._as_of).spec
        found = parse_filters(filters, spec.time_column, spec.entity_columns)
        asked = self._options.window(spec.bucket)
        window = found.window.intersect(asked.start, asked.end)
        self._pruned = replace(found, window=window)
        return found.rest


def frame_columns(frame: StructType, schema: Schema) -> list[str]:
    """Return the table's columns that a frame has; `Conflict` if the frame has other columns."""
    names = [name for name in frame.names if name in schema.by_name]
    if not has_same_columns(spark_schema(select_columns(schema, names)), frame):
        raise Conflict(
            "the frame has other columns than the table",
            hint="load the table again, without a schema",
            frame=[f"{field.name}: {field.dataType.simpleString()}" for field in frame.fields],
            table=[f"{column.name}: {column.type}" for column in schema.columns],
        )
    return names


def _resolve_hot_view(options: SparkOptions) -> tuple[TableView, Any]:
    """Return an exact view and its hot rows."""
    name = options.text("table")
    if name is None:
        hint = "load the lake's folder with option('table', ...)"
        raise Invalid("only a table of a lake has hot rows", hint=hint, path=options.root)
    if options.as_of is not None:
        hint = "omit one of the options"
        raise Invalid("an old version has no hot rows", hint=hint, as_of=options.as_of)
    from thermocline.pipeline.run.workspace import (
        JobWorkspace,  # imports modules that workers do not need
    )

    with JobWorkspace(options.root, options.tenant) as site:
        found = site.lake().table(name)
        view = resolve_view(found.snapshot(), found.cold)
        return view, hot_rows(view)


def register(spark: Any) -> None:
    """Register the format with a session."""
    from thermocline.pipeline.spark.session import check_session, without_warnings

    check_session(spark)
    with without_warnings():
        spark.dataSource.register(ThermoclineSource)
