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
    READING,
    WRITING,
    Options,
    opened,
    parsed,
)
from thermocline.pipeline.spark.partition import (
    Share,
    hot_shares,
    plotted,
    read_share,
    shares,
)
from thermocline.pipeline.spark.prune import Pruned, pruned
from thermocline.pipeline.spark.read_lease import hold
from thermocline.pipeline.spark.types import chosen, is_same, spark_schema
from thermocline.snapshot import View, hot_rows, resolve

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
        options = self._options(READING)
        state = opened(options, is_read_only=True).state(options.as_of)
        self.version, self.schema_id = state.version, state.schema_id
        return spark_schema(chosen(state.schema, options.names("columns")))

    def reader(self, schema: StructType) -> "TableReader":
        """Return a reader of one version, or of one view."""
        options = self._options(READING)
        as_of = options.as_of if options.as_of is not None else self.version
        kind = PushedReader if options.flag("pushdown") else TableReader
        return kind(options, schema, as_of)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return a writer that appends a frame in one commit."""
        from thermocline.pipeline.spark.sink import TableWriter, target_for

        options = self._options(WRITING)
        return TableWriter(options, schema, target_for(options, schema, is_overwrite=overwrite))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return a reader of a table's commits."""
        from thermocline.pipeline.spark.stream import CommitReader

        return CommitReader(self._options(READING), schema, self.schema_id)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        """Return a writer that appends each batch of a stream in one commit."""
        from thermocline.pipeline.spark.sink import target_for
        from thermocline.pipeline.spark.stream import BatchWriter

        options = self._options(WRITING)
        return BatchWriter(options, schema, target_for(options, schema, is_overwrite=overwrite))

    def _options(self, known: tuple[str, ...]) -> Options:
        return parsed(dict(self.options), known)


class TableReader(DataSourceReader):
    """Reads one version of a table, or one view of it with its hot rows."""

    def __init__(self, options: Options, frame: StructType, as_of: object) -> None:
        self._options = options
        self._frame = frame
        self._as_of = as_of
        self._pruned = Pruned(options.window)

    def partitions(self) -> list[InputPartition]:
        """Return the partitions that may have rows; their files are kept from now on."""
        options = self._options
        table = opened(options, is_read_only=True)
        if options.flag("hot"):
            view, rows = _hot(options)
        else:
            view, rows = View(table.state(self._as_of)), None
        state = view.state
        hold(table, state.version, options.lease_s)
        names = table_names(self._frame, state.schema)
        plot = plotted(table, state, names, self._pruned.window, options.storage)
        size_bytes = options.number("partitionBytes", PARTITION_BYTES)
        found = shares(plot, self._pruned.segments(state), size_bytes)
        if rows is not None:
            found += hot_shares(plot, rows)
        return [*found]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition. For workers."""
        if isinstance(partition, Share):  # without partitions Spark passes one of its own
            yield from read_share(partition, self._frame)


class PushedReader(TableReader):
    """Reads the rows that the filters of one query let through. For a frame of one query."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Use the filters of times and entities; return those that Spark must evaluate."""
        spec = opened(self._options, is_read_only=True).state(self._as_of).spec
        found = pruned(filters, spec.time_column, spec.entity_columns)
        asked = self._options.window
        window = found.window.narrowed(asked.start, asked.end)
        self._pruned = replace(found, window=window)
        return found.rest


def table_names(frame: StructType, schema: Schema) -> list[str]:
    """Return the table's columns that a frame has; `Conflict` if the frame has other columns."""
    names = [name for name in frame.names if name in schema.by_name]
    if not is_same(spark_schema(chosen(schema, names)), frame):
        raise Conflict(
            "the frame has other columns than the table",
            hint="load the table again, without a schema",
            frame=[f"{field.name}: {field.dataType.simpleString()}" for field in frame.fields],
            table=[f"{column.name}: {column.type}" for column in schema.columns],
        )
    return names


def _hot(options: Options) -> tuple[View, Any]:
    """Return an exact view and its hot rows."""
    name = options.text("table")
    if name is None:
        hint = "load the lake's folder with option('table', ...)"
        raise Invalid("only a table of a lake has hot rows", hint=hint, path=options.root)
    if options.as_of is not None:
        hint = "omit one of the options"
        raise Invalid("an old version has no hot rows", hint=hint, as_of=options.as_of)
    from thermocline.pipeline.run.workspace import Site  # imports modules that workers do not need

    with Site(options.root, options.tenant) as site:
        found = site.lake().table(name)
        view = resolve(found.snapshot(), found.lake)
        return view, hot_rows(view)


def register(spark: Any) -> None:
    """Register the format with a session."""
    from thermocline.pipeline.spark.session import check_session, without_warnings

    check_session(spark)
    with without_warnings():
        spark.dataSource.register(ThermoclineSource)
