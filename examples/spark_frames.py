# ruff: noqa: INP001, T201  # a script for people, run by its path
"""Spark reads an old version, reads fast, writes in one commit, and computes a rollup.

.venv/bin/python examples/spark_frames.py ./lake

Without a folder it works in a temporary one. `pip install 'thermocline[spark]'` brings
Spark and the Java that it runs on.
"""

import sys
import tempfile
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import thermocline as tc
from thermocline.pipeline import JobWorkspace, Runner, pipeline_settings

DAYS = 3
FIRST = datetime(2024, 6, 1, tzinfo=UTC)
HOURLY = {
    "name": "readings_1h",
    "source": "readings",
    "every": "1h",
    "by": ["sensor"],
    "aggregates": {"n": "count(*)", "mean": "avg(celsius)", "high": "max(celsius)"},
}


def fill(folder: str) -> None:
    """Make a table and append three days of readings, each day as one version."""
    with tc.connect(folder) as lake:
        table = lake.create_table(
            "readings", time_column="ts", bucket="1h", entity_columns=["sensor"]
        )
        for day in range(DAYS):
            minutes = range(day * 1_440, (day + 1) * 1_440, 10)
            times = [FIRST + timedelta(minutes=minute) for minute in minutes]
            celsius = [20.0 + minute % 60 / 10 for minute in minutes]
            table.append(
                pa.table({"ts": times, "sensor": ["attic"] * len(times), "celsius": celsius})
            )


def read(spark: SparkSession, folder: str) -> None:
    """Read the table as it was, and as it is by Spark's own Parquet reader."""
    # The files of one version go to Spark's own reader, which opens only the columns it needs.
    print("rows after the first day:", tc.spark.read(spark, f"{folder}/readings", at=2).count())

    fast = tc.spark.read(spark, f"{folder}/readings", start="2024-06-02")
    means = fast.select("celsius").agg(f.round(f.avg("celsius"), 2).alias("mean"))
    print("mean from the second day on:", means.first()["mean"])


def write(spark: SparkSession, folder: str) -> None:
    """Write a frame as another table; a second write of the same batch changes nothing."""
    readings = tc.spark.read(spark, f"{folder}/readings")
    fahrenheit = readings.select("ts", "sensor", (f.col("celsius") * 1.8 + 32).alias("fahrenheit"))
    for _ in range(2):
        to = fahrenheit.write.format("thermocline").mode("append").option("batchId", "convert:1")
        made = {"table": "fahrenheit", "timeColumn": "ts", "bucket": "1h", "overlap": "allow"}
        to.options(**made).save(folder)


def roll_up(folder: str) -> None:
    """Let the pipeline make an hourly table of the readings, and query it."""
    with JobWorkspace(folder) as site:
        runner = Runner(site, pipeline_settings({"rollups": [HOURLY]}))
        for ran in runner.run(["rollup"]):
            print("rolled up:", ran.table, ran.state, ran.numbers)
    with tc.connect(folder) as lake:
        print("rows written:", lake.sql("select count(*) as n from fahrenheit")["n"][0])
        print("the warmest hours:")
        print(lake.sql("select * from readings_1h order by high desc, ts limit 3").to_pandas())


def main(folder: str) -> None:
    """Do all of it in one folder, with one session of Spark."""
    fill(folder)
    spark = tc.spark.session("local[2]")
    try:
        read(spark, folder)
        write(spark, folder)
        roll_up(folder)
    finally:
        tc.spark.stop(spark)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(folder)
