"""The same jobs and the same answers on one machine, on a cluster and through Spark Connect."""

import os
import signal
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark import TaskContext

import thermocline as tc
from fixtures.lake import rows
from fixtures.rollups import site_at
from fixtures.spark import finished
from spark.attempts import ROWS, closes, data_files, named_files, save_by
from thermocline.pipeline.backfill import job as backfilling
from thermocline.pipeline.backfill.task import write_piece
from thermocline.pipeline.spark.sink import TableWriter
from thermocline.pipeline.spark.worker_stage import decode_staged

WAIT_S = 900.0
LOOK_EVERY_S = 0.05


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


# Attempts


def wait_for(condition):
    """Wait until something is so."""
    end_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end_s, "it never was"
        time.sleep(LOOK_EVERY_S)


def tell(path, text):
    """Write a file that is whole once it is seen."""
    path.with_suffix(".fresh").write_text(text)
    path.with_suffix(".fresh").rename(path)


class HaltingWriter(TableWriter):
    """Halts on its first attempt, once the rows are written, and says which process it is in."""

    def write(self, iterator):
        report = super().write(iterator)
        task = TaskContext.get()
        if task.partitionId() == 0 and task.attemptNumber() == 0:
            daemon = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
            tell(Path(self._target.root).parent / "halted", daemon[1])
            time.sleep(WAIT_S)
        return report


def save_halting(spark, root):
    save_by(spark, HaltingWriter, root)


def test_an_executor_killed_while_it_writes_costs_no_row_and_adds_none(
    cluster, started_elsewhere, tmp_path
):
    table = tc.TimeSeriesTable.create(tmp_path / "t", time_column="ts", bucket="1h")
    job = started_elsewhere(save_halting, cluster.url, table.root())
    halted = tmp_path / "halted"
    wait_for(lambda: halted.exists() or job.process.poll() is not None)
    assert halted.exists(), job.result()
    killed = int(halted.read_text())
    assert killed in cluster.executors()
    os.kill(killed, signal.SIGKILL)
    job.result()
    assert table.version() == 2
    assert closes(table) == [float(number) for number in range(ROWS)]
    assert data_files(table) == named_files(table)


def race(root, loser, staged):
    """Let one of two attempts at the first task lose. For workers.

    Both have written before either goes on; the loser stands still until Spark kills it.
    """
    task = TaskContext.get()
    if task.partitionId() != 0:
        return
    paths = [f"{root}/{path}" for one in staged for path in (one.path, one.coverage_path)]
    tell(Path(root, f"wrote-{task.attemptNumber()}"), "\n".join(paths))
    if task.attemptNumber() == loser:
        time.sleep(WAIT_S)
    wait_for(Path(root, f"wrote-{loser}").exists)


class FirstLoses(TableWriter):
    """Runs in two attempts at once, of which the first loses."""

    loser = 0

    def write(self, iterator):
        report = super().write(iterator)
        race(self._target.root, self.loser, decode_staged(report.staged))
        return report


class SecondLoses(FirstLoses):
    """Runs in two attempts at once, of which the second loses."""

    loser = 1


def piece_whose_second_attempt_loses(order, number):
    report = write_piece(order, number)
    race(order.target.root, 1, report.staged)
    return report


def save_racing(spark, first, second, lake, files):
    """Write two tables by the sink, and one by a job; return where that one is."""
    save_by(spark, FirstLoses, first)
    save_by(spark, SecondLoses, second)
    backfilling.write_piece = piece_whose_second_attempt_loses
    with site_at(lake) as site:
        table = site.ensure_table("job", tc.TimeSeriesTable.open(first).cold.state().spec)
        backfilling.backfill(site, "job", files, spark=lambda: spark)
        return table.storage.root


SPECULATIVE = {
    "spark__speculation": "true",
    "spark__speculation__interval": "50ms",
    "spark__speculation__multiplier": "1.0",
    "spark__speculation__quantile": "0.5",
    "spark__speculation__minTaskRuntime": "0ms",
}


def test_S03_of_two_attempts_that_race_one_counts_whichever_wins(cluster, elsewhere, tmp_path):
    """Spark itself starts the second attempt, on the other executor, and kills the loser."""
    made = {"time_column": "ts", "bucket": "1h", "overlap": "allow"}
    first, second = (
        tc.TimeSeriesTable.create(tmp_path / name, **made).root() for name in ("first", "second")
    )
    for start in range(0, ROWS, ROWS // 2):
        pq.write_table(rows(range(start, start + ROWS // 2)), tmp_path / f"{start}.parquet")
    files = sorted(map(str, tmp_path.glob("*.parquet")))
    lake = str(tmp_path / "lake")
    job = elsewhere(save_racing, cluster.url, first, second, lake, files, **SPECULATIVE)
    # Nobody tells the sink of a second attempt that lost: a vacuum finds it. Jobs look for it.
    for root, loser, is_left in ((first, 0, False), (second, 1, True), (job, 1, False)):
        table = tc.TimeSeriesTable.open(root)
        lost, won = (
            {Path(line) for line in Path(root, f"wrote-{attempt}").read_text().splitlines()}
            for attempt in (loser, 1 - loser)
        )
        named = set(named_files(table))
        assert closes(table) == [float(number) for number in range(ROWS)]
        assert won <= named
        assert not lost & named
        assert set(data_files(table)) - named == (lost if is_left else set())
        found = table.vacuum(grace="0s", allow_short_grace=True, dry_run=False).files
        assert {Path(root, path) for path in found} >= (lost if is_left else set())
        assert set(data_files(table)) == named
        assert closes(table) == [float(number) for number in range(ROWS)]
