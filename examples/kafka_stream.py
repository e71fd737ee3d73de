# ruff: noqa: INP001  # a script for people, run by its path
"""Messages of a Kafka topic become rows of a table by Spark's own stream, each exactly once.

spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.3.0 \\
    examples/kafka_stream.py broker:9092 readings ./readings ./checkpoint

Spark reads the same offsets again after a crash, under the same number of the batch. The table's
log has the numbers of the query's batches, so a batch that it has is not written again. Keep the
checkpoint: a new one is a new query, which begins with the topic's first message.
"""

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

import thermocline as tc

SCHEMA = "ts timestamp, sensor string, celsius double"


def decode(messages: DataFrame) -> DataFrame:
    """Return the rows of messages whose value is JSON with a time; other messages are skipped."""
    parsed = messages.select(f.from_json(f.col("value").cast("string"), SCHEMA).alias("row"))
    return parsed.select("row.*").where("ts is not null")


def write(rows: DataFrame, table: str, checkpoint: str) -> StreamingQuery:
    """Start the query that appends each batch in one commit."""
    made = {"timeColumn": "ts", "bucket": "1h", "entityColumns": "sensor", "overlap": "allow"}
    stream = rows.writeStream.format("thermocline").options(**made)
    return stream.option("checkpointLocation", checkpoint).start(table)


def main(servers: str, topic: str, table: str, checkpoint: str) -> None:
    """Read the topic from its first message on, until the program is stopped."""
    spark = SparkSession.builder.getOrCreate()
    tc.spark.register(spark)
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
    messages = source.option("subscribe", topic).option("startingOffsets", "earliest").load()
    write(decode(messages), table, checkpoint).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
