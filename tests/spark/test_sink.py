"""`df.write.format("thermocline")`: the whole frame in one commit, once, or nothing."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException

import thermocline as tc
from fixtures.lake import rows
from spark.attempts import closes, data_files, named_files, save_by
from thermocline.errors import Invalid, OutcomeUnknown, Unsupported
from thermocline.pipeline.spark.options import WRITE_OPTIONS, parse_options
from thermocline.pipeline.spark.sink import TableWriter, parse_batch_id
from thermocline.pipeline.spark.source import ThermoclineSource
from thermocline.pipeline.spark.types import spark_schema


def frame_of(spark, data, parts=2):
    """Return rows as a frame of several partitions."""
    return spark.createDataFrame(data, spark_schema(data.schema)).repartition(parts)


def save(frame, root, **options):
    frame.write.format("thermocline").mode("append").options(**options).save(str(root))


def test_a_frame_is_one_commit(spark, table):
    save(frame_of(spark, rows(range(10))), table.root())
    assert table.version() == 2
    assert closes(table) == [float(hour) for hour in range(10)]
    assert table.is_covered("2024-06-01", "2024-06-01T10:00")
    assert data_files(table) == named_files(table)


def test_a_table_is_made_where_options_say_what_it_is(spark, tmp_path):
    made = {"timeColumn": "ts", "bucket": "1h", "entity_columns": "symbol", "overlap": "allow"}
    for _ in range(2):
        save(frame_of(spark, rows(range(2))), tmp_path / "made", **made)
    table = tc.TimeSeriesTable.open(tmp_path / "made")
    assert closes(table) == [0.0, 0.0, 1.0, 1.0]
    spec = table.spec()
    assert (spec.time_column, spec.entity_columns, spec.overlap) == ("ts", ("symbol",), "allow")


def test_a_table_of_a_lake_is_written_by_its_name(spark, tmp_path):
    with tc.connect(tmp_path / "lake") as lake:
        made = {"table": "prices", "timeColumn": "ts", "bucket": "1h"}
        for _ in range(2):
            save(frame_of(spark, rows(range(2))), lake.root(), **made)
        assert lake.sql("select count(*) as n from prices")["n"].to_pylist() == [4]


def test_the_same_batch_again_changes_nothing(spark, table):
    for batch in ("nightly:7", "nightly:7", "nightly:6"):
        save(frame_of(spark, rows(range(3))), table.root(), batchId=batch, overlap="allow")
    assert (table.version(), closes(table)) == (2, [0.0, 1.0, 2.0])
    assert data_files(table) == named_files(table)
    save(frame_of(spark, rows(range(3))), table.root(), batchId="nightly:8", overlap="allow")
    assert table.cold.state().txns == {"nightly": 8}
    assert len(closes(table)) == 6


def test_overlap_is_refused_replaced_or_allowed(spark, table):
    save(frame_of(spark, rows(range(3))), table.root())
    with pytest.raises(PySparkException, match="already holds rows in these buckets"):
        save(frame_of(spark, rows([2, 3], close=7)), table.root())
    assert data_files(table) == named_files(table)
    save(frame_of(spark, rows([2, 3], close=7)), table.root(), overlap="replace")
    assert closes(table) == [0.0, 1.0, 7.0, 7.0]


def test_new_columns_need_leave(spark, table):
    save(frame_of(spark, rows([0])), table.root())
    more = frame_of(spark, rows([1]).append_column("size", pa.array([1], pa.int32())))
    with pytest.raises(PySparkException, match="evolve"):
        save(more, table.root())
    save(more, table.root(), evolve="true")
    assert sorted(table.to_arrow()["size"].to_pylist(), key=str) == [1, None]


def test_an_empty_frame_is_no_commit(spark, table):
    save(frame_of(spark, rows([0])), table.root())
    save(frame_of(spark, rows([1])).where("close < 0"), table.root())
    assert table.version() == 2


def test_nothing_is_overwritten_as_a_whole(spark, table):
    writer = frame_of(spark, rows([0])).write.format("thermocline").mode("overwrite")
    with pytest.raises(PySparkException, match=r"option\('overlap', 'replace'\)"):
        writer.save(table.root())
    with pytest.raises(Unsupported):
        ThermoclineSource({"path": table.root()}).writer(spark_schema(rows([0]).schema), True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batchid": "a:-1x", "overlapp": "allow"}, "did you mean 'overlap'"),
        ({"overlap": "perhaps"}, "unknown overlap policy"),
        ({"evolve": "1"}, "not true or false"),
        ({"timeColumn": "ts"}, "a time column and a bucket"),
    ],
    ids=str,
)
def test_an_option_that_cannot_be_right_says_why(table, options, message):
    with pytest.raises(Invalid, match=message):
        writer_of(table, **options)


def test_a_batch_is_a_name_and_a_number_or_a_name_alone():
    named = {"a:7": ("a", 7), "a:b:7": ("a:b", 7), "2024-06-01": ("2024-06-01", 0), ":7": (":7", 0)}
    for given, wanted in named.items():
        assert parse_batch_id(parse_options({"batchId": given}, WRITE_OPTIONS)) == wanted


# Attempts


def writer_of(table, **options) -> TableWriter:
    source = ThermoclineSource({"path": table.root(), **options})
    return source.writer(spark_schema(rows([0]).schema), False)


def test_of_two_attempts_at_a_task_one_counts_and_the_other_is_removed(table):
    writer = writer_of(table)
    reports = [writer.write(iter(rows(range(3)).to_batches())) for _ in range(2)]
    assert len(data_files(table)) == 4
    writer.commit([replace(reports[1], attempt=1)])
    assert closes(table) == [0.0, 1.0, 2.0]
    assert data_files(table) == named_files(table)


def test_a_write_that_fails_leaves_nothing(table):
    writer = writer_of(table)
    report = writer.write(iter(rows(range(3)).to_batches()))
    writer.abort([report, None])
    assert data_files(table) == []
    assert table.version() == 1


def test_what_a_commit_may_have_named_is_not_removed(table, monkeypatch):
    from thermocline.cold.log.commit_log import CommitLog

    writer = writer_of(table)
    report = writer.write(iter(rows(range(3)).to_batches()))

    def lost(*_):
        raise OutcomeUnknown("the answer was lost")

    with monkeypatch.context() as patch:
        patch.setattr(CommitLog, "try_commit", lost)
        with pytest.raises(OutcomeUnknown):
            writer.commit([report])
    writer.abort([report])
    assert len(data_files(table)) == 2


class AttemptWriter(TableWriter):
    """Fails on its first attempt, once the rows are written; its clock is ten years off.

    One task's is ahead, the other's behind. It is the clock that Python tells the worker: the
    machine's own is that of every process on it, and cannot be another for one of them.
    """

    def write(self, iterator):
        task = TaskContext.get()
        years = 10 if task.partitionId() == 0 else -10
        then, clocks = time.time() + years * 365 * 86_400, (time.time, time.time_ns)
        time.time, time.time_ns = lambda: then, lambda: int(then * 1e9)
        try:
            report = super().write(iterator)
        finally:
            time.time, time.time_ns = clocks  # other tests use this process, too
        if task.partitionId() == 0 and task.attemptNumber() == 0:
            raise RuntimeError("an attempt that failed after writing")
        return report


def save_with_attempts(spark, root):
    return save_by(spark, AttemptWriter, root)


def test_S03_S09_a_task_tried_again_counts_once_whatever_its_clock_says(elsewhere, tmp_path):
    table = tc.TimeSeriesTable.create(tmp_path / "t", time_column="ts", bucket="1h")
    assert elsewhere(save_with_attempts, "local[2,3]", table.root()) == 100
    assert closes(table) == [float(number) for number in range(100)]
    assert data_files(table) == named_files(table)
    newest = table.history().to_pylist()[0]
    assert abs(newest["time"].timestamp() - time.time()) < 3_600


def test_a_job_that_fails_leaves_nothing(spark, make):
    table = make()
    with pytest.raises(PySparkException, match="an attempt that failed"):
        save_with_attempts(spark, table.root())  # local[2] tries each task once
    assert table.version() == 1


# Two at once


def test_two_writers_at_once_are_two_commits(spark, make):
    table = make(overlap="allow")
    begin = threading.Barrier(2)

    def write(symbol):
        frame = frame_of(spark, rows(range(3), symbol))
        begin.wait()
        save(frame, table.root())

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, ["AMD", "NVDA"]))
    assert table.version() == 3
    assert sorted(table.to_arrow()["symbol"].to_pylist()) == ["AMD"] * 3 + ["NVDA"] * 3


def test_of_two_writers_of_the_same_buckets_one_is_refused(spark, table):
    begin = threading.Barrier(2)

    def write(close):
        frame = frame_of(spark, rows(range(3), close=close))
        begin.wait()
        try:
            save(frame, table.root())
        except PySparkException as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(2) as pool:
        errors = sorted(pool.map(write, [1, 2]))
    assert errors[0] == ""
    assert "already holds rows in these buckets" in errors[1]
    assert closes(table) in ([1.0] * 3, [2.0] * 3)
    assert data_files(table) == named_files(table)


def test_a_table_of_an_object_store_is_written_and_read(spark, s3, tmp_path):
    store = {**s3.options, "endpoint": s3.endpoint, "cache_folder": str(tmp_path)}
    options = {f"storage.{name}": value for name, value in store.items()}
    made = {"timeColumn": "ts", "bucket": "1h"}
    save(frame_of(spark, rows(range(3))), s3.url, **made, **options)
    frame = spark.read.format("thermocline").options(**options).load(s3.url)
    fast = tc.spark.read(spark, s3.url, storage_options=store)
    for one in (frame, fast):
        assert sorted(row.close for row in one.collect()) == [0.0, 1.0, 2.0]
