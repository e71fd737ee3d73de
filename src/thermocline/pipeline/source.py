"""The format `thermocline` as Spark knows it: batch and stream, to read and to write.

In:   options and a path
Out:  readers and writers, which do their work in Spark's workers

- A frame is one version of a table, that which was newest when it was loaded, or the one asked
  for. With hot rows it is one exact view, taken when its first query is planned.
- Spark's interface for sources in Python tells them no columns: all that the frame has are read.
  `option("columns", "a, b")` makes a frame of some, and `fast.read` lets Spark choose.
- Filters are not pushed down unless asked for: Spark 4.3 keeps what one query pushed down, and
  reads no more than that for every other query of the same frame. `option("start", ...)` and
  `option("end", ...)` spare segments safely; `option("pushdown", "true")` is for a frame that one
  query alone will use.
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
from thermocline.pipeline.hold import hold
from thermocline.pipeline.options import (
    PARTITION_BYTES,
    READING,
    WRITING,
    Options,
    opened,
    parsed,
)
from thermocline.pipeline.prune import Pruned, pruned
from thermocline.pipeline.share import Share, hot_shares, plotted, read_share, shares
from thermocline.pipeline.types import chosen, is_same, spark_schema
from thermocline.snapshot import View, hot_rows, resolve

FORMAT = "thermocline"


class ThermoclineSource(DataSource):
    """A table of a lake, to read and to write."""

    version: Version | None = None
    schema_id: int | None = None

    @classmethod
    def name(cls) -> str:
        """Return what the format is called."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the columns of the table; the frame stays at the version they are of."""
        options = self._options(READING)
        state = opened(options, is_read_only=True).state(options.as_of)
        self.version, self.schema_id = state.version, state.schema_id
        return spark_schema(chosen(state.schema, options.names("columns")))

    def reader(self, schema: StructType) -> "TableReader":
        """Return what reads one version, or one view."""
        options = self._options(READING)
        as_of = options.as_of if options.as_of is not None else self.version
        kind = PushedReader if options.flag("pushdown") else TableReader
        return kind(options, schema, as_of)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return what appends a frame in one commit."""
        from thermocline.pipeline.sink import TableWriter, target_for

        options = self._options(WRITING)
        return TableWriter(options, schema, target_for(options, schema, is_overwrite=overwrite))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return what reads a table commit by commit."""
        from thermocline.pipeline.stream import CommitReader

        return CommitReader(self._options(READING), schema, self.schema_id)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        """Return what appends each batch of a stream in one commit."""
        from thermocline.pipeline.sink import target_for
        from thermocline.pipeline.stream import BatchWriter

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
        """Return the shares of the rows that may be wanted; their files are held from here on."""
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
        """Yield the rows of a share. For workers."""
        if isinstance(partition, Share):  # Spark makes up a partition where there is none
            yield from read_share(partition, self._frame)


class PushedReader(TableReader):
    """Reads what the filters of one query let through. For a frame of one query."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take what the filters say of times and entities; return those Spark has to look at."""
        spec = opened(self._options, is_read_only=True).state(self._as_of).spec
        found = pruned(filters, spec.time_column, spec.entity_columns)
        asked = self._options.window
        window = found.window.narrowed(asked.start, asked.end)
        self._pruned = replace(found, window=window)
        return found.rest


def table_names(frame: StructType, schema: Schema) -> list[str]:
    """Return which columns of the table a frame has; `Conflict` where it has others by now."""
    names = [name for name in frame.names if name in schema.by_name]
    if not is_same(spark_schema(chosen(schema, names)), frame):
        raise Conflict(
            "the frame has other columns than the table",
            hint="load the table again, and leave its columns to it",
            frame=[f"{field.name}: {field.dataType.simpleString()}" for field in frame.fields],
            table=[f"{column.name}: {column.type}" for column in schema.columns],
        )
    return names


def _hot(options: Options) -> tuple[View, Any]:
    """Return an exact view, and the hot rows of it."""
    name = options.text("table")
    if name is None:
        hint = "load the lake's folder with option('table', ...)"
        raise Invalid("hot rows are those of a table of a lake", hint=hint, path=options.root)
    if options.as_of is not None:
        hint = "leave out one of the options"
        raise Invalid("a version of the past has no hot rows", hint=hint, as_of=options.as_of)
    from thermocline.pipeline.site import Site  # loads what no worker needs

    with Site(options.root, options.tenant) as site:
        found = site.lake().table(name)
        view = resolve(found.snapshot(), found.lake)
        return view, hot_rows(view)


def register(spark: Any) -> None:
    """Teach a session the format."""
    from thermocline.pipeline.session import check_session, without_warnings

    check_session(spark)
    with without_warnings():
        spark.dataSource.register(ThermoclineSource)
