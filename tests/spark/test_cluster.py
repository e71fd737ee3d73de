"""The same jobs and the same answers on one machine, on a cluster and through Spark Connect."""

import os
import signal
import time
from pathlib import Path

import pytest
from pyspark import TaskContext

import thermocline as tc
from fixtures.lake import JUNE_US, rows
from fixtures.spark import finished
from thermocline.pipeline.sink import TableWriter
from thermocline.pipeline.source import ThermoclineSource

WAIT_S = 900.0


def listed(frame):
    return sorted(frame.toArrow().to_pylist(), key=str)


def work(spark, folder):
    """Read a table both ways, write it, stream it; return all that was seen."""
    table = tc.TimeSeriesTable.open(f"{folder}/prices")
    slow = spark.read.format("thermocline").option("asOf", "4").load(table.root())
    fast = tc.spark.read(spark, table.root(), at=4)
    made = {"timeColumn": "ts", "bucket": "1h", "overlap": "allow"}
    for _ in range(2):
        writing = slow.repartition(2).write.format("thermocline").mode("append").options(**made)
        writing.option("batchId", "nightly:7").save(f"{folder}/copy")
    stream = spark.readStream.format("thermocline").load(table.root())
    writing = (
        stream.writeStream.format("thermocline")
        .options(checkpointLocation=f"{folder}/checkpoint", **made)
        .trigger(availableNow=True)
    )
    finished(lambda: writing.start(f"{folder}/streamed"))
    copy = tc.TimeSeriesTable.open(f"{folder}/copy").to_arrow().sort_by("ts")
    streamed = tc.TimeSeriesTable.open(f"{folder}/streamed").to_arrow().sort_by("ts")
    sums = slow.groupBy("symbol").sum("close").sort("symbol").toArrow().to_pylist()
    return listed(slow), listed(fast), copy, streamed, sums


def prices(folder) -> tc.TimeSeriesTable:
    table = tc.TimeSeriesTable.create(
        folder / "prices", time_column="ts", bucket="1h", entity_columns=["symbol"]
    )
    table.append(rows(range(5)))
    table.append(rows(range(5, 9), "AMD"))
    table.delete("close = 3")
    return table


@pytest.fixture(scope="module")
def wanted(spark, tmp_path_factory):
    """What one machine says."""
    folder = tmp_path_factory.mktemp("here")
    table = prices(folder)
    found = work(spark, str(folder))
    assert found[0] == found[1] == sorted(table.to_arrow().to_pylist(), key=str)
    assert found[2].equals(table.to_arrow().sort_by("ts"))
    assert found[2].equals(found[3])
    return found


def test_a_cluster_gives_the_same_answers(wanted, cluster, elsewhere, tmp_path):
    prices(tmp_path)
    assert elsewhere(work, cluster.url, str(tmp_path)) == wanted


def test_spark_connect_gives_the_same_answers(wanted, connect, elsewhere, tmp_path):
    prices(tmp_path)
    assert elsewhere(work, connect, str(tmp_path)) == wanted


class HaltingWriter(TableWriter):
    """Halts on its first attempt, once the rows are written, and says which process it is in."""

    def write(self, iterator):
        report = super().write(iterator)
        task = TaskContext.get()
        if task.partitionId() == 0 and task.attemptNumber() == 0:
            daemon = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
            told = Path(self._target.root).parent / "halted"
            told.with_suffix(".fresh").write_text(daemon[1])
            told.with_suffix(".fresh").rename(told)
            time.sleep(WAIT_S)
        return report


class HaltingSource(ThermoclineSource):
    """The format, with a first attempt that halts."""

    @classmethod
    def name(cls):
        return "halting"

    def writer(self, schema, overwrite):
        writer = super().writer(schema, overwrite)
        writer.__class__ = HaltingWriter
        return writer


def save_halting(spark, root):
    spark.dataSource.register(HaltingSource)
    frame = spark.range(100, numPartitions=2).selectExpr(
        f"timestamp_micros({JUNE_US} + id) as ts", "double(id) as close"
    )
    frame.write.format("halting").mode("append").save(root)


def test_an_executor_killed_while_it_writes_costs_no_row_and_adds_none(
    cluster, started_elsewhere, tmp_path
):
    table = tc.TimeSeriesTable.create(tmp_path / "t", time_column="ts", bucket="1h")
    job = started_elsewhere(save_halting, cluster.url, table.root())
    deadline_s = time.monotonic() + WAIT_S
    while not (tmp_path / "halted").exists():
        assert job.process.poll() is None, job.result()
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    killed = int((tmp_path / "halted").read_text())
    assert killed in cluster.executors()
    os.kill(killed, signal.SIGKILL)
    job.result()
    assert table.version() == 2
    found = sorted(table.to_arrow()["close"].to_pylist())
    assert found == [float(number) for number in range(100)]
    on_disk = sorted(path.name for path in Path(table.root(), "data").rglob("*.parquet"))
    assert on_disk == sorted(one.path.rpartition("/")[2] for one in table.lake.state().segments)
