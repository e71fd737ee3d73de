"""`spark.read.format("thermocline")`: one version, exactly, and no more of it than is wanted."""

import datetime as dt
import threading
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import datasource as pushed

import thermocline as tc
from fixtures.lake import HOUR_US, JUNE_US, rows
from thermocline.cold.care.pin import list_pinned_versions
from thermocline.cold.storage.open_storage import open_storage
from thermocline.cold.table import ColdTable
from thermocline.errors import Conflict, Corruption, Invalid, NotFound
from thermocline.format.instant import NS_PER_S
from thermocline.pipeline.spark.read_lease import hold_version
from thermocline.pipeline.spark.source import ThermoclineSource
from thermocline.pipeline.spark.spark_errors import translate_error


def load(spark, root, **options):
    return spark.read.format("thermocline").options(**options).load(str(root))


def listed(frame):
    """Return the rows of a frame or a table, sorted."""
    found = frame.toArrow() if hasattr(frame, "toArrow") else frame
    return sorted(found.to_pylist(), key=str)


def at(hour):
    return dt.datetime(2024, 6, 1, tzinfo=dt.UTC) + dt.timedelta(hours=hour)


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """A table with a history: appends, new and renamed columns, wider types, deletes."""
    table = tc.TimeSeriesTable.create(
        tmp_path_factory.mktemp("told") / "prices",
        time_column="ts",
        bucket="1h",
        entity_columns=["symbol"],
    )
    table.append(rows(range(4)))
    table.append(rows(range(4), "AMD"))
    table.delete("close = 2")
    more = rows(range(4, 6)).append_column("size", pa.array([1, 2], pa.int32()))
    table.append(more, evolve=True)
    table.rename_column("close", "price")
    table.widen_column("size", pa.int64())
    table.append(rows(range(8, 9), "AMD").rename_columns(["ts", "symbol", "price"]))
    return table


def test_every_version_is_what_the_table_says_it_was(spark, told):
    for version in range(2, told.version() + 1):
        wanted = listed(told.to_arrow(at=version))
        assert listed(load(spark, told.root(), asOf=str(version))) == wanted
        assert listed(tc.spark.read(spark, told, at=version)) == wanted


def test_a_version_is_found_by_an_instant(spark, told):
    moment = told.history().to_pylist()[-3]["time"].isoformat()
    assert listed(load(spark, told.root(), asOf=moment)) == listed(told.to_arrow(at=moment))


def test_a_frame_stays_at_the_version_it_was_loaded_at(spark, table):
    table.append(rows([0]))
    slow, fast = load(spark, table.root()), tc.spark.read(spark, table)
    table.append(rows([1]))
    table.rename_column("close", "price")
    assert slow.count() == fast.count() == 1


def test_columns_are_those_asked_for(spark, told):
    frame = load(spark, told.root(), columns="price, symbol")
    assert frame.columns == ["price", "symbol"]
    wanted = told.to_arrow(columns=["price", "symbol"])
    assert listed(frame) == listed(wanted)
    assert listed(tc.spark.read(spark, told, columns=["price", "symbol"])) == listed(wanted)


def planned(table, *filters, **options):
    """Return the segments that a read with these filters opens, and the filters left to Spark."""
    source = ThermoclineSource({"path": table.root(), "pushdown": "true", **options})
    reader = source.reader(source.schema())
    left = list(reader.pushFilters(list(filters)))
    segments = [one for share in reader.partitions() for one in share.segments]
    return len(segments), left


def test_filters_spare_segments(make):
    table = make(entity_columns=["symbol"])
    for hour, symbol in enumerate(["AMD", "AMD", "NVDA", "NVDA"]):
        table.append(rows([hour], symbol))
    ts, symbol = ("ts",), ("symbol",)
    assert planned(table) == (4, [])
    assert planned(table, pushed.GreaterThanOrEqual(ts, at(2))) == (2, [])
    assert planned(table, pushed.GreaterThan(ts, at(2))) == (1, [])
    assert planned(table, pushed.LessThan(ts, at(2))) == (2, [])
    assert planned(table, pushed.LessThanOrEqual(ts, at(2).replace(tzinfo=None))) == (3, [])
    assert planned(table, pushed.EqualTo(ts, at(3)), pushed.IsNotNull(ts)) == (1, [])
    for one, count in [
        (pushed.EqualTo(symbol, "AMD"), 2),
        (pushed.EqualNullSafe(symbol, "NVDA"), 2),
        (pushed.In(symbol, ("INTC", "KLAC")), 0),
        (pushed.GreaterThan(symbol, "B"), 2),
        (pushed.LessThan(symbol, "A"), 0),
        (pushed.StringStartsWith(symbol, "X"), 0),
        (pushed.EqualTo(symbol, 3), 4),
        (pushed.Not(pushed.EqualTo(symbol, "AMD")), 4),
        (pushed.EqualTo(("close",), 1.0), 4),
        (pushed.Not(pushed.EqualTo(ts, at(3))), 4),
    ]:
        assert planned(table, one) == (count, [one])
    late = pushed.GreaterThanOrEqual(ts, at(2))
    assert planned(table, late, end="2024-06-01T03:00") == (1, [])


def test_a_filtered_query_opens_no_other_file(spark, make):
    table = make(entity_columns=["symbol"])
    for hour, symbol in enumerate(["AMD", "NVDA", "NVDA"]):
        table.append(rows([hour], symbol))
    lost = next(iter(table.cold.state().segments.overlapping(None, JUNE_US * 1_000 + 1)))
    Path(table.root(), lost.path).unlink()
    assert load(spark, table.root(), start="2024-06-01T01:00").count() == 2
    assert tc.spark.read(spark, table, start=at(1)).count() == 2
    with pushing(spark):
        asked = {"pushdown": "true"}
        assert load(spark, table.root(), **asked).where("symbol = 'NVDA'").count() == 2
        late = "ts > timestamp_ntz'2024-06-01 00:30:00' and close < 2"
        assert load(spark, table.root(), **asked).where(late).count() == 1
        with pytest.raises(PySparkException, match=lost.path.rpartition("/")[2]):
            load(spark, table.root(), **asked).count()


@contextmanager
def pushing(spark):
    """Let Spark push filters down to sources in Python."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        yield
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_frame_may_be_asked_many_things(spark, table):
    for hour, symbol in enumerate(["AMD", "NVDA", "NVDA"]):
        table.append(rows([hour], symbol))
    with pushing(spark):
        frame = load(spark, table.root())
        amd, nvda = frame.where("symbol = 'AMD'"), frame.where("symbol = 'NVDA'")
        assert (amd.count(), frame.count(), nvda.count()) == (1, 3, 2)
        assert amd.union(nvda).count() == 3


def test_spark_still_mixes_up_what_queries_of_one_frame_push_down(spark, table):
    """Once this fails, Spark is mended, and filters can be pushed down without being asked."""
    table.append(rows([0], "AMD"))
    table.append(rows([0], "NVDA"))
    with pushing(spark):
        frame = load(spark, table.root(), pushdown="true")
        assert frame.where("symbol = 'AMD'").count() == 1
        assert frame.count() == 1  # of two


def test_times_are_compared_exactly_down_to_the_microsecond(spark, tmp_path):
    table = tc.TimeSeriesTable.create(tmp_path / "t", time_column="ts", bucket="1h")
    first = JUNE_US * 1_000
    times = [first + nanosecond for nanosecond in (0, 1, 999, 1_000, 1_001, 2_000)]
    table.append(pa.table({"ts": pa.array(times, pa.timestamp("ns", tz="UTC"))}))
    moment = dt.datetime(2024, 6, 1, 0, 0, 0, 1, tzinfo=dt.UTC)
    for kind, count in [
        (pushed.LessThan, 3),
        (pushed.LessThanOrEqual, 5),
        (pushed.GreaterThan, 1),
        (pushed.GreaterThanOrEqual, 3),
        (pushed.EqualTo, 2),
        (pushed.EqualNullSafe, 2),
    ]:
        source = ThermoclineSource({"path": table.root(), "pushdown": "true"})
        reader = source.reader(source.schema())
        assert list(reader.pushFilters([kind(("ts",), moment)])) == []
        shares = reader.partitions()
        assert sum(batch.num_rows for one in shares for batch in reader.read(one)) == count
    start, end = "2024-06-01T00:00:00.000000001Z", "2024-06-01T00:00:00.000001001Z"
    assert tc.spark.read(spark, table, start=start, end=end).count() == 3


def test_reads_hold_their_version_until_the_lease_ends(spark, table):
    table.append(rows([0]))
    load(spark, table.root()).count()
    tc.spark.read(spark, table)
    assert list_pinned_versions(table.cold) == {2}
    assert len(list(table.cold.storage.list("_pins"))) <= 2  # one an hour, however many reads
    table.append(rows([1]), overlap="replace")
    hold_version(table.cold, 3, lease_s=60)
    later = ColdTable(
        open_storage(table.root()), now_ns=lambda: table.cold.log.now() + 25 * 3_600 * NS_PER_S
    )
    assert list_pinned_versions(later) == set()


def test_a_version_that_has_expired_is_not_held(table):
    table.append(rows([0]))
    table.append(rows([0]), overlap="replace")
    later = ColdTable(
        open_storage(table.root()), now_ns=lambda: table.cold.log.now() + 30 * 86_400 * NS_PER_S
    )
    tc.TimeSeriesTable(later).vacuum(dry_run=False)
    with pytest.raises(NotFound, match="expired"):
        hold_version(table.cold, 2, lease_s=60)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"asOff": "3"}, "did you mean 'asOf'"),
        ({"as_of": "99"}, "no such version"),
        ({"asOf": "soon"}, "the time cannot be read"),
        ({"hot": "yes"}, "not true or false"),
        ({"hot": "true"}, "load the lake's folder"),
        ({"partitionBytes": "many"}, "not a number above zero"),
        ({"columns": "close"}, "no such column"),
        ({"zzz": "1"}, "options are path, table"),
        ({"table": "prices"}, "not a lake"),
    ],
    ids=str,
)
def test_an_option_that_cannot_be_right_says_why(told, options, message):
    source = ThermoclineSource({"path": told.root(), **options})
    with pytest.raises((Invalid, NotFound), match=message):
        source.reader(source.schema()).partitions()


def test_an_error_of_ours_reaches_the_user_of_spark(spark, tmp_path):
    with pytest.raises(PySparkException, match=r"(?s)no table here.*hint:"):
        load(spark, tmp_path / "nowhere")


def test_a_frame_whose_columns_are_gone_says_so(told):
    source = ThermoclineSource({"path": told.root(), "asOf": "2"})
    other = ThermoclineSource({"path": told.root()})
    with pytest.raises(Conflict, match="other columns than the table"):
        other.reader(source.schema()).partitions()


def test_shares_are_of_about_the_size_asked_for(told):
    sizes = [segment.file_size for segment in told.cold.state().segments]
    source = ThermoclineSource({"path": told.root(), "partitionBytes": str(2 * max(sizes))})
    shares = source.reader(source.schema()).partitions()
    assert [len(share.segments) for share in shares] == [2, 2]


@pytest.fixture
def lake(tmp_path):
    """A lake with a table that rows are written to one by one."""
    with tc.connect(tmp_path / "lake") as lake:
        lake.create_table("events", time_column="ts", bucket="1h", entity_columns=["symbol"])
        yield lake


def test_hot_rows_are_in_a_frame_when_asked_for(spark, lake):
    events = lake.table("events")
    events.write(rows([0]))
    events.flush()
    events.write(rows([1]))
    events.write(rows([2]).append_column("note", pa.array(["late"])), evolve=True)
    options = {"table": "events"}
    assert load(spark, lake.root(), **options).count() == 1
    wanted = listed(events.to_arrow())
    assert len(wanted) == 3
    assert listed(load(spark, lake.root(), hot="true", **options)) == wanted
    assert listed(tc.spark.read(spark, events, hot=True)) == wanted
    assert listed(tc.spark.read(spark, f"{lake.root()}/events", hot=True)) == wanted
    assert tc.spark.read(spark, Path(lake.root(), "Events")).count() == 1
    with pytest.raises(NotFound):
        tc.spark.read(spark, f"{lake.root()}/nothing", hot=True)
    late = load(spark, lake.root(), hot="true", **options).where(
        "ts >= timestamp_ntz'2024-06-01 02:00:00'"
    )
    assert [row.note for row in late.collect()] == ["late"]


def test_hot_rows_are_read_once_while_they_are_written_and_flushed(spark, lake):
    events = lake.table("events")
    events.write(rows([0], close=0))
    acknowledged, is_over = [1], threading.Event()

    def write():
        while not is_over.is_set():
            events.write(rows([0], close=acknowledged[0]))
            acknowledged[0] += 1
            if acknowledged[0] % 7 == 0:
                events.flush()
            is_over.wait(0.01)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(4):
            before = acknowledged[0]
            if number % 2:
                frame = tc.spark.read(spark, events, hot=True)
            else:
                frame = load(spark, lake.root(), table="events", hot="true")
            found = sorted(row.close for row in frame.select("close").collect())
            assert found == [float(number) for number in range(len(found))]
            assert len(found) >= before
    finally:
        is_over.set()
        writer.join()


def test_a_lake_names_its_tables_to_who_forgot(lake):
    with pytest.raises(NotFound, match="this is a lake") as error:
        ThermoclineSource({"path": lake.root()}).schema()
    assert error.value.facts["tables"] == ["events"]
    with pytest.raises(NotFound, match="no such tenant"):
        ThermoclineSource({"path": lake.root(), "table": "events", "tenant": "acme"}).schema()


def test_the_fast_read_refuses_what_has_no_hot_rows(spark, lake, told):
    with pytest.raises(Invalid, match="only a table of a lake has hot rows"):
        tc.spark.read(spark, told, hot=True)
    with pytest.raises(Invalid, match="old version has no hot rows"):
        tc.spark.read(spark, lake.table("events"), at=1, hot=True)


def test_a_window_of_the_fast_read_is_that_of_a_scan(spark, told):
    hours = [(None, 2), (2, None), (1, 5), (8, 9), (6, 7)]
    for first, last in hours:
        which = {
            "start": None if first is None else at(first),
            "end": None if last is None else at(last),
        }
        assert listed(tc.spark.read(spark, told, **which)) == listed(told.to_arrow(**which))


def test_files_of_the_old_time_format_are_read_exactly(spark, tmp_path):
    import pyarrow.parquet as pq

    kind = pa.timestamp("ns")
    given = pa.table({"ts": pa.array([JUNE_US * 1_000 + hour * HOUR_US for hour in (1, 2)], kind)})
    pq.write_table(given, tmp_path / "old.parquet", use_deprecated_int96_timestamps=True)
    table = tc.TimeSeriesTable.create(tmp_path / "t [a]", time_column="ts", bucket="1h")
    table.append_parquet(tmp_path / "old.parquet")
    table.append(pa.table({"ts": pa.array([JUNE_US * 1_000 + 24 * HOUR_US * 1_000], kind)}))
    wanted = load(spark, table.root()).sort("ts").collect()
    assert tc.spark.read(spark, table).sort("ts").collect() == wanted
    assert len(wanted) == 3


def flip(path, offset):
    """Flip one bit of a file in place."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(bytes(data))


@pytest.fixture
def damaged(tmp_path):
    """A table of one plain segment and the path of its file."""
    table = tc.TimeSeriesTable.create(
        tmp_path / "damaged", time_column="ts", bucket="1h", entity_columns=["symbol"]
    )
    table.append(rows(range(400)))
    (segment,) = table.cold.state().segments
    return table, Path(table.root()) / segment.path


def test_D01_a_damaged_segment_is_refused_by_both_reads_of_spark(spark, damaged):
    table, path = damaged
    flip(path, 40)
    with pytest.raises(Corruption, match="not those that were committed") as raised:
        tc.spark.read(spark, table.root()).toArrow()
    assert raised.value.facts["path"] in str(path)
    with pytest.raises(PySparkException, match="not those that were committed"):
        load(spark, table.root()).toArrow()


def test_D01_executors_of_the_fast_read_find_a_page_that_is_damaged_later(spark, damaged):
    table, path = damaged
    frame = tc.spark.read(spark, table.root(), columns=["close"])
    assert frame.count() == 400
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(2)
    first = min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset)
    flip(path, first + chunk.total_compressed_size - 20)
    with pytest.raises((PySparkException, Py4JJavaError)) as raised:
        frame.agg({"close": "sum"}).collect()
    told = translate_error(raised.value)
    assert isinstance(told, Corruption)
    assert path.name in told.facts["path"]
