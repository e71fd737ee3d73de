"""Writers that meet trouble in an attempt at a task: a frame to write, and what it left on disk.

A writer is a subclass of the sink's `TableWriter` in a test module, which workers can import.
"""

from pathlib import Path

from fixtures.lake import JUNE_US
from thermocline.pipeline.spark.source import ThermoclineSource

ROWS = 100


def save_by(spark, writer, root):
    """Append a hundred rows in two tasks, by another writer than the format's own; count them."""

    class Source(ThermoclineSource):
        """The format, with another writer."""

        @classmethod
        def name(cls):
            return writer.__name__

        def writer(self, schema, overwrite):
            made = super().writer(schema, overwrite)
            made.__class__ = writer
            return made

    spark.dataSource.register(Source)
    frame = spark.range(ROWS, numPartitions=2).selectExpr(
        f"timestamp_micros({JUNE_US} + id) as ts", "'NVDA' as symbol", "double(id) as close"
    )
    frame.write.format(writer.__name__).mode("append").save(root)
    return frame.count()


def closes(table):
    """Return the closes of all rows, sorted."""
    return sorted(table.to_arrow(columns=["close"])["close"].to_pylist())


def data_files(table):
    """Return the files of rows and of their coverage that are there."""
    folders = [Path(table.root(), name) for name in ("data", "_coverage/segments")]
    return sorted(path for folder in folders for path in folder.rglob("*.*"))


def named_files(table):
    """Return those that the newest version names."""
    return sorted(
        Path(table.root(), path)
        for segment in table.cold.state().segments
        for path in (segment.path, segment.coverage_path)
    )
