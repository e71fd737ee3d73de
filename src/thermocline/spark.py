"""Spark with Thermocline's tables: a session, a fast read, and the format `thermocline`.

    import thermocline as tc

    spark = tc.spark.session("local[*]")
    prices = tc.spark.read(spark, "lake/prices", start="2024-06-01")
    prices.write.format("thermocline").mode("append").save("lake/copy")

- Spark is loaded when one of these is called: `pip install 'thermocline[spark]'`.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read", "register", "session", "stop"]


def session(
    master: str = "local[*]",
    *,
    app: str = "thermocline",
    memory: str = "1g",
    settings: Mapping[str, str] | None = None,
) -> "SparkSession":
    """Return the running session, or start one that knows `format("thermocline")`.

    `master` is `local[*]`, `spark://...`, `k8s://...`, `yarn`, or `sc://...` for Spark Connect.
    No Java needs to be installed. `settings` are Spark's own.
    """
    from thermocline.pipeline.session import session as start

    return start(master, app=app, memory=memory, settings=settings)


def stop(spark: "SparkSession") -> None:
    """End a session, and the Java process that was started for it."""
    from thermocline.pipeline.session import stop as end

    end(spark)


def register(spark: "SparkSession") -> None:
    """Teach a session that was started elsewhere, by `spark-submit` say, the format."""
    from thermocline.pipeline.source import register as teach

    teach(spark)


def read(
    spark: "SparkSession",
    table: Any,
    at: object = None,
    columns: Sequence[str] | None = None,
    start: object = None,
    end: object = None,
    hot: bool = False,
    storage_options: Mapping[str, str] | None = None,
) -> "DataFrame":
    """Return a frame of a table, read by Spark's own Parquet reader wherever that is exact.

    `table` is a folder, an address or a table; with `hot`, a table of `tc.connect`, whose hot rows
    are in the frame exactly once. The frame is one version: the newest, or the one `at` names.
    `storage_options` are those of an object store.
    """
    from thermocline.pipeline.fast import read as fast

    return fast(spark, table, at, columns, start, end, hot, storage_options)
