"""Tables as streams: each commit's rows once, each batch in one commit."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles

import thermocline as tc
from fixtures.lake import rows
from fixtures.spark import finished
from thermocline.cold.log.transaction import CommitPlan
from thermocline.cold.segment.stage import Stage
from thermocline.cold.storage.open_storage import open_storage
from thermocline.cold.table import ColdTable
from thermocline.errors import Conflict, Invalid, NotFound, Unsupported
from thermocline.format.instant import NS_PER_S
from thermocline.format.log.action import AddSegment, removal
from thermocline.pipeline.spark.source import ThermoclineSource
from thermocline.pipeline.spark.stream import CommitReader


def reader_of(table, **options) -> CommitReader:
    source = ThermoclineSource({"path": table.root(), **options})
    return source.streamReader(source.schema())


def closes(reader, first, last):
    """Return what a batch from one version to another has, sorted."""
    shares = reader.partitions({"version": first}, {"version": last})
    batches = [batch for share in shares for batch in reader.read(share)]
    return sorted(value for batch in batches for value in batch.column("close").to_pylist())


def lay_out_anew(table, operation):
    """Rewrite all rows of a table as one segment, as one commit of this name."""
    lake, stage = table.cold, Stage(table.cold.storage)
    stage.write_table(table.to_arrow(), lake.state().schema, table.spec())

    def plan(state):
        columns = (state.schema_id, state.schema)
        from thermocline.format.schema import ColumnFit

        added = [AddSegment(one.segment(*columns, ColumnFit(), state.spec)) for one in stage.staged]
        return CommitPlan(operation, (*(removal(s) for s in state.segments), *added))

    lake.run_transaction(stage, plan)


def test_the_first_batch_is_the_table_and_later_ones_are_what_was_added(table):
    table.append(rows([0, 1]))
    table.delete("close = 1")
    reader = reader_of(table)
    assert reader.initialOffset() == {"version": 0}
    newest = reader.latestOffset({"version": 0}, ReadAllAvailable())
    assert newest == reader.reportLatestOffset() == {"version": 3}
    assert closes(reader, 0, 3) == [0.0]
    table.append(rows([2]))
    table.append(rows([3]))
    assert reader.latestOffset(newest, ReadAllAvailable()) == {"version": 5}
    assert closes(reader, 3, 5) == [2.0, 3.0]
    assert closes(reader, 3, 4) == [2.0]
    assert closes(reader, 5, 5) == []


def test_rows_that_are_only_laid_out_anew_are_not_given_again(table):
    table.append(rows([0]))
    reader = reader_of(table)
    table.append(rows([1]))
    lay_out_anew(table, "compact")
    table.append(rows([2]))
    assert closes(reader, 2, table.version()) == [1.0, 2.0]


def test_rows_that_were_changed_end_a_stream_unless_that_is_ignored(table):
    table.append(rows([0, 1]))
    reader = reader_of(table)
    table.append(rows([1], close=7), overlap="replace")
    table.delete("close = 0")
    for first, last in [(2, 3), (3, 4)]:
        with pytest.raises(Unsupported, match="changed or deleted rows") as error:
            closes(reader, first, last)
        assert error.value.facts["version"] == last
    assert closes(reader_of(table, ignoreChanges="true"), 2, 4) == [7.0]


def test_a_stream_begins_where_it_is_asked_to(table):
    for hour in range(3):
        table.append(rows([hour]))
    assert reader_of(table, startingVersion="latest").initialOffset() == {"version": 4}
    reader = reader_of(table, startingVersion="3")
    assert closes(reader, reader.initialOffset()["version"], 4) == [1.0, 2.0]
    with pytest.raises(NotFound, match="no such version"):
        reader_of(table, startingVersion="9").initialOffset()


def test_a_batch_has_no_more_files_than_it_may(table):
    for hour in range(4):
        table.append(rows([hour]))
    reader = reader_of(table, maxFilesPerTrigger="2")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxFiles(2)
    assert reader.latestOffset({"version": 1}, limit) == {"version": 3}
    assert reader.latestOffset({"version": 3}, limit) == {"version": 5}
    assert reader.latestOffset({"version": 5}, limit) == {"version": 5}
    assert reader.latestOffset({"version": 1}, ReadMaxFiles(0)) == {"version": 2}


def test_a_stream_that_reads_what_is_there_now_goes_no_further(table):
    table.append(rows([0]))
    reader = reader_of(table)
    reader.prepareForTriggerAvailableNow()
    table.append(rows([1]))
    assert reader.latestOffset({"version": 0}, ReadAllAvailable()) == {"version": 2}
    assert reader.latestOffset({"version": 2}, ReadAllAvailable()) == {"version": 2}


def test_a_stream_keeps_its_columns_when_the_table_gets_others(table):
    table.append(rows([0]))
    reader = reader_of(table)
    table.rename_column("close", "price")
    more = rows([1]).rename_columns(["ts", "symbol", "price"])
    table.append(more.append_column("size", pa.array([1])), evolve=True)
    assert closes(reader, 2, table.version()) == [1.0]


def test_a_stream_whose_next_versions_were_vacuumed_says_so(table):
    for close in range(3):
        table.append(rows([0], close=close), overlap="replace")
    later = ColdTable(
        open_storage(table.root()), now_ns=lambda: table.cold.log.now() + 30 * 86_400 * NS_PER_S
    )
    tc.TimeSeriesTable(later).vacuum(dry_run=False)
    with pytest.raises(NotFound, match="was vacuumed"):
        closes(reader_of(table, ignoreChanges="true"), 2, 4)
    assert closes(reader_of(table), 0, 4) == [2.0]


@pytest.mark.parametrize("name", ["asOf", "hot", "start"])
def test_an_option_of_one_version_is_none_of_a_stream(table, name):
    table.append(rows([0]))
    with pytest.raises(Invalid, match="a stream has no such option"):
        reader_of(table, **{name: "2" if name == "asOf" else "2024-06-01"})


def test_a_stream_names_its_batches_itself(table):
    table.append(rows([0]))
    source = ThermoclineSource({"path": table.root(), "batchId": "a:1"})
    with pytest.raises(Invalid, match="takes no batch id"):
        source.streamWriter(ThermoclineSource({"path": table.root()}).schema(), False)


def test_a_frame_of_other_columns_is_refused(table):
    table.append(rows([0]))
    frame = ThermoclineSource({"path": table.root()}).schema().add("more", "string")
    with pytest.raises(Conflict, match="other columns"):
        ThermoclineSource({"path": table.root()}).streamReader(frame).partitions(
            {"version": 0}, {"version": 2}
        )


# With Spark


def copied(spark, table, copy, checkpoint, **options):
    """Let a query copy what is there into another table, and end."""
    stream = spark.readStream.format("thermocline").options(**options).load(table.root())
    writing = stream.writeStream.format("thermocline").option("checkpointLocation", str(checkpoint))
    finished(lambda: writing.trigger(availableNow=True).start(copy.root()))


def test_a_query_copies_every_row_once_however_often_it_is_started(spark, make, tmp_path):
    table, copy = make(), make(overlap="allow")
    checkpoint = tmp_path / "checkpoint"
    table.append(rows([0, 1]))
    copied(spark, table, copy, checkpoint)
    table.append(rows([2]))
    table.append(rows([3]))
    copied(spark, table, copy, checkpoint)
    assert copy.to_arrow().sort_by("ts").equals(table.to_arrow().sort_by("ts"))
    committed = copy.version()
    assert committed == 3
    # Crash here: the batch is in the table, and Spark does not know yet.
    last = max(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))
    (checkpoint / "commits" / str(last)).unlink()
    (checkpoint / "commits" / f".{last}.crc").unlink(missing_ok=True)
    copied(spark, table, copy, checkpoint)
    assert copy.version() == committed
    found = sorted(path.name for path in Path(copy.root(), "data").rglob("*.parquet"))
    named = sorted(one.path.rpartition("/")[2] for one in copy.cold.state().segments)
    assert found == named
    table.delete("close = 0")
    with pytest.raises(StreamingQueryException, match="changed or deleted rows"):
        copied(spark, table, copy, checkpoint)


def test_messages_of_kafka_are_in_the_table_once_also_after_a_crash(spark, tmp_path):
    from runpy import run_path

    example = run_path(str(Path(__file__).parents[2] / "examples" / "kafka_stream.py"))
    topic, root, checkpoint = (str(tmp_path / name) for name in ("topic", "table", "checkpoint"))
    shape = "key binary, value binary, topic string, partition int, offset bigint"

    def put(first, *values):
        found = [(None, value, "readings", 0, first + n) for n, value in enumerate(values)]
        spark.createDataFrame(found, shape).coalesce(1).write.mode("append").parquet(topic)

    def run():
        messages = spark.readStream.schema(shape).parquet(topic)
        query = example["write"](example["decode"](messages), root, checkpoint)
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    def reading(minute):
        text = f'{{"ts": "2024-06-01T00:{minute:02d}:00Z", "sensor": "attic", "celsius": {minute}}}'
        return text.encode()

    put(0, reading(0), b"no JSON", reading(1))
    run()
    put(3, reading(2))
    run()
    table = tc.TimeSeriesTable.open(root)
    committed = table.version()
    # Crash here: the batch is in the table, and Spark does not know yet.
    commits = Path(checkpoint, "commits")
    last = max(int(path.name) for path in commits.glob("[0-9]*"))
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)
    run()
    assert table.version() == committed
    assert sorted(table.to_arrow()["celsius"].to_pylist()) == [0.0, 1.0, 2.0]
