"""Reads an Iceberg table with one engine, in an environment that has the engine.

    python engines.py duckdb METADATA_FILE VERSION OUTPUT

The rows are written to OUTPUT as an Arrow file. VERSION is a snapshot, or `newest`.
"""

import sys

import pyarrow as pa


def read_duckdb(location, version):
    """Return the rows that DuckDB reads; its extensions are wheels."""
    import glob
    import importlib
    import os

    import duckdb

    connection = duckdb.connect()
    for name in ("avro", "httpfs", "iceberg"):
        module = importlib.import_module(f"duckdb_extension_{name}")
        folder = os.path.dirname(module.__file__)
        (path,) = glob.glob(f"{folder}/**/*.duckdb_extension", recursive=True)
        connection.load_extension(path)
    connection.execute("set timezone = 'UTC'")
    at = "" if version is None else f", snapshot_from_id => {version}"
    return connection.sql(f"from iceberg_scan('{location}'{at})").arrow().read_all()


def read_datafusion(location, version):
    """Return the rows that DataFusion reads, through the Rust implementation of Iceberg."""
    import datafusion
    from pyiceberg.table import StaticTable

    assert version is None, "it has no time travel"
    context = datafusion.SessionContext()
    context.register_table("t", StaticTable.from_metadata(location))
    return pa.table(context.sql("select * from t"))


def read_chdb(location, version):
    """Return the rows that ClickHouse reads."""
    import chdb

    folder = location.removeprefix("file://").rpartition("/metadata/")[0]
    at = "" if version is None else f" settings iceberg_snapshot_id = {version}"
    rows = chdb.query(f"select * from icebergLocal('{folder}'){at}", "ArrowTable")
    for place, field in enumerate(rows.schema):
        # ClickHouse has one type for texts and for bytes.
        if field.name in ("binary", "large_binary", "fixed"):
            rows = rows.set_column(place, field.name, rows.column(place).cast(pa.binary()))
    return rows


def read_spark(location, version):
    """Return the rows that Spark reads; SPARK_JARS names the jar of Iceberg."""
    import os

    from pyspark.sql import SparkSession

    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--jars {os.environ['SPARK_JARS']} pyspark-shell"
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    reader = spark.read.format("iceberg")
    if version is not None:
        reader = reader.option("versionAsOf", version)
    return reader.load(location.removeprefix("file://").rpartition("/metadata/")[0]).toArrow()


READERS = {
    "spark": read_spark,
    "duckdb": read_duckdb,
    "datafusion": read_datafusion,
    "chdb": read_chdb,
}
NEWEST_ONLY = {"datafusion"}


if __name__ == "__main__":
    engine, location, named, output = sys.argv[1:]
    found = READERS[engine](location, None if named == "newest" else int(named))
    with pa.OSFile(output, "wb") as sink, pa.ipc.new_file(sink, found.schema) as writer:
        writer.write_table(found)
