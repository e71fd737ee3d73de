"""Sessions: registered tables, SQL over them, streams."""

import gc
import os
import threading
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from test_gate import HOSTILE

from fixtures.lake import rows
from thermocline.cold.segment.row_reader import RowReader
from thermocline.errors import Corruption, Invalid, NotFound, Unavailable
from thermocline.query.session import STATEMENTS_KEPT_MAX, Session
from thermocline.table import TimeSeriesTable

# Registering


def test_a_table_is_registered_by_root_by_face_and_by_lake(session, prices, count):
    session.register_tstable("by_path", prices.root())
    session.register_tstable("by_lake", prices.cold)
    for name in ("by_path", "by_lake", "prices", "PRICES", "By_Path"):
        assert count(f"select count(*) from {name}") == 72
    assert session.tables() == ["by_lake", "by_path", "prices"]


def test_registering_a_folder_without_a_table_is_refused_at_once(session, tmp_path):
    with pytest.raises(NotFound):
        session.register_tstable("t", tmp_path)
    assert session.tables() == []


@pytest.mark.parametrize(
    "name",
    ["", "1a", "a b", "a.b", 'a"b', "a" * 64, "pg_x", "sqlite_master", "__thermocline_x", "ä"],
)
def test_a_name_that_is_no_plain_identifier_is_refused(session, prices, name):
    with pytest.raises(Invalid):
        session.register_tstable(name, prices)
    with pytest.raises(Invalid):
        session.register_parquet(name, "x.parquet")


@pytest.mark.parametrize("name", ["select", "Order", "_", "a" * 63, "values", "from"])
def test_a_keyword_may_be_a_name(session, prices, name, count):
    session.register_tstable(name, prices)
    assert count(f'select count(*) from "{name}"') == 72


def test_a_name_registered_again_is_the_new_table(session, prices, make_table, count):
    session.register_tstable("prices", make_table(rows([5]), entities=("symbol",)))
    assert count("select count(*) from prices") == 1


def test_a_table_registered_after_the_first_query_can_be_read(session, prices, make_table, count):
    assert count("select count(*) from prices") == 72
    session.register_tstable("later", make_table(rows([5]), entities=("symbol",)))
    assert count("select count(*) from prices, later") == 72


def test_a_deregistered_name_is_out_of_reach(session, prices, make_table, count):
    session.register_tstable("other", make_table(rows([5]), entities=("symbol",)))
    session.deregister("PRICES")
    with pytest.raises(NotFound):
        session.sql("select * from prices")
    with pytest.raises(NotFound):
        session.deregister("prices")
    assert count("select count(*) from other") == 1
    assert prices.root() not in session._engine.folders


def test_an_unknown_table_is_named_with_the_nearest_one(session, prices):
    with pytest.raises(NotFound) as raised:
        session.sql("select * from price")
    assert raised.value.facts["table"] == "price"
    assert raised.value.facts["tables"] == ["prices"]
    assert "prices" in raised.value.hint


@pytest.mark.parametrize(
    "name",
    ["'/etc/passwd'", '"/etc/passwd"', "'x.parquet'", "sqlite_master", "duckdb_views", "frame"],
)
def test_a_file_a_catalog_or_a_variable_of_the_program_is_no_table(session, prices, name):
    frame = pa.table({"a": [1]})
    assert frame.num_rows == 1
    with pytest.raises(NotFound):
        session.sql(f"select * from {name}")


@pytest.mark.parametrize("name", sorted(HOSTILE.keys() - {"explain", "show tables"}))
def test_no_hostile_statement_gets_past_a_session(prices, session, name):
    with pytest.raises((Invalid, NotFound)):
        session.sql(HOSTILE[name])


def test_a_plain_parquet_file_is_a_table(session, prices, parquet, count):
    path = parquet(pa.table({"symbol": ["NVDA"], "name": ["Nvidia"]}), "names [1].parquet")
    session.register_parquet("names", path)
    answer = session.sql("select distinct name from prices join names using (symbol)")
    assert answer.to_pydict() == {"name": ["Nvidia"]}
    assert count("select count(*) from names tablesample 100%") == 1
    with pytest.raises(Invalid):
        session.sql("select * from names as of version 1")
    with pytest.raises(Invalid):
        session.sql("select * from gaps('names')")


def test_D01_a_damaged_file_is_corruption_for_the_list_of_columns_too(session, parquet):
    path = parquet(pa.table({"a": [1]}), "damaged.parquet")
    session.register_parquet("damaged", path)
    path = Path(path)
    path.write_bytes(path.read_bytes()[:-6])
    for query in ("select a from damaged", "select * from information_schema.columns"):
        with pytest.raises(Corruption):
            session.sql(query)


def test_a_parquet_file_that_is_written_again_is_read_again(session, prices, parquet, count):
    for total in (1, 5, 3):
        session.register_parquet("t", parquet(pa.table({"a": [total] * total}), "t.parquet"))
        assert count("select count(*) from t where a = $1", [total]) == total
        assert count("select count(*) from t, prices") == total * 72


@pytest.mark.parametrize(("mine", "twin"), [("a*b", "azb"), ("c[z]d", "czd"), ("e?f", "exf")])
def test_letters_of_a_pattern_in_a_path_are_letters(session, tmp_path, parquet, count, mine, twin):
    for folder, value in ((mine, 1), (twin, 2)):
        (tmp_path / folder).mkdir()
        path = parquet(pa.table({"a": [value]}), f"{folder}/t.parquet")
        session.register_parquet("mine" if folder == mine else "twin", path)
    assert count("select sum(a) from mine") == 1
    assert count("select sum(a) from twin") == 2


def test_a_parquet_file_that_is_not_there_is_refused(session, tmp_path):
    with pytest.raises(NotFound):
        session.register_parquet("t", tmp_path / "none.parquet")


def test_a_parquet_file_that_is_none_is_named(session, tmp_path):
    (tmp_path / "bad.parquet").write_text("not parquet at all")
    session.register_parquet("t", tmp_path / "bad.parquet")
    with pytest.raises(Exception, match=r"bad\.parquet"):
        session.sql("select * from t")


def test_a_table_in_an_object_store_is_read_through_local_copies(session, tmp_path, count):
    options = {"cache_folder": str(tmp_path / "copies")}
    root = f"memory://{tmp_path.name}/prices"
    table = TimeSeriesTable.create(
        root, time_column="ts", bucket="1h", entity_columns=["symbol"], storage_options=options
    )
    table.append(rows(range(10)))
    session.register_tstable("prices", root, storage_options=options)
    assert count("select count(close) from prices") == 10
    assert str(tmp_path / "copies") in session._engine.folders
    engine = session._engine
    assert count("select count(*) from prices where close > 4") == 5
    assert session._engine is engine


# Answers


def test_tables_are_joined(session, prices, make_table):
    volumes = pa.table(
        {"ts": rows([0, 1]).column("ts"), "symbol": ["NVDA", "NVDA"], "volume": [100, 120]}
    )
    session.register_tstable("volumes", make_table(volumes, entities=("symbol",)))
    answer = session.sql(
        """
        select p.ts as ts, p.symbol as symbol, p.close as close, v.volume as volume
        from prices p
        join volumes v on p.ts = v.ts and p.symbol = v.symbol
        order by ts
        """
    )
    assert answer.to_pydict()["close"] == [0.0, 1.0]
    assert answer.to_pydict()["volume"] == [100, 120]


@pytest.mark.parametrize(
    ("sql", "params"),
    [
        ("select count(*) from prices where close < ? and ts >= ?", [5, datetime(2024, 6, 1, 1)]),
        ("select count(*) from prices where close < $1 and ts >= $2", (5, datetime(2024, 6, 1, 1))),
        ("select count(*) from prices where ts >= $2 and close < $1", [5, "2024-06-01 01:00:00"]),
        (
            "select count(*) from prices where close < $most and ts >= $since",
            {"most": Decimal("5.0"), "SINCE": datetime(2024, 6, 1, 1, tzinfo=UTC)},
        ),
    ],
)
def test_parameters_are_bound_by_place_and_by_name(session, prices, sql, params, count):
    assert count(sql, params) == 4


@pytest.mark.parametrize("params", [None, [], [1, 2], {"a": 1}, {"1": 1, "2": 2}, "x", b"x"])
def test_parameters_that_do_not_fit_are_refused(session, prices, params):
    with pytest.raises(Invalid):
        session.sql("select count(*) from prices where close < $1", params)


def test_a_parameter_is_a_value_and_never_sql(session, prices, count):
    evil = "x' or true --"
    assert count("select count(*) from prices where symbol = $1", [evil]) == 0


def test_an_engine_error_says_what_is_wrong_with_the_query(session, prices):
    with pytest.raises(Invalid) as raised:
        session.sql("select nope from prices")
    assert "nope" in raised.value.facts["error"]
    assert "read_parquet" not in str(raised.value)


def test_a_failed_query_leaves_the_session_well(session, prices, count):
    for sql in ("select nope from prices", "select cast(symbol as int) from prices", "selec"):
        with pytest.raises(Invalid):
            session.sql(sql)
    assert count("select count(*) from prices") == 72


def test_a_query_sees_what_was_committed_before_it(session, prices, count):
    assert count("select count(*) from prices") == 72
    prices.append(rows([100]))
    assert count("select count(*) from prices") == 73


def test_one_version_serves_the_whole_query(session, prices, monkeypatch, count):
    opened = []
    original = type(prices.cold).state

    def state(self, at=None):
        found = original(self, at)
        opened.append(found.version)
        if len(opened) == 1:  # another writer commits between two looks of the query
            TimeSeriesTable.open(prices.root()).append(rows([1000]))
        return found

    monkeypatch.setattr(type(prices.cold), "state", state)
    sql = """
        select (select count(*) from prices), (select max(close) from prices p),
               (select count(*) from coverage('prices'))
    """
    answer = session.sql(sql)
    assert [column.to_pylist() for column in answer.columns[:2]] == [[72], [71.0]]
    assert count("select count(*) from prices") == 73


@pytest.mark.parametrize("clock", ["now()", "current_timestamp", "today()"])
def test_the_clock_stands_still_from_pruning_to_the_last_row(session, prices, clock):
    with session._open_query(f"select * from prices where ts < {clock}", None) as task:
        seen = {task.prepared.cursor.execute("select now()").fetchall()[0] for _ in range(50)}
    assert len(seen) == 1


def test_describe_and_summarize_show_the_tables_own_columns(session, prices):
    assert session.sql("describe prices").column(0).to_pylist() == ["ts", "symbol", "close"]
    assert session.sql("summarize prices").num_rows == 3


def test_the_same_text_is_parsed_once_and_the_memory_of_texts_is_bounded(session, prices):
    session.sql("select 1 from prices")
    first = session._statements.get("select 1 from prices")
    session.sql("select 1 from prices")
    assert session._statements.get("select 1 from prices") is first
    for number in range(STATEMENTS_KEPT_MAX + 5):
        session._statements.put(str(number), first)
    assert session._statements.get("select 1 from prices") is None


def test_a_text_kept_before_a_schema_change_is_planned_anew(session, prices, count):
    sql = "select count(*) from prices where close < 5"
    assert count(sql) == 5
    prices.rename_column("close", "price")
    with pytest.raises(Invalid):
        session.sql(sql)
    assert count("select count(*) from prices where price < 5") == 5


def test_one_statement_serves_tables_of_other_shapes(session, make_table, count):
    sql = "select count(*) from t where v > 1"
    ts = rows([0, 1, 2]).column("ts")
    for values in ([1, 2, 3], [1.5, 0.5, 2.5]):
        session.register_tstable("t", make_table(pa.table({"ts": ts, "v": values})))
        assert count(sql) == 2


def test_queries_run_from_many_threads(session, prices, count):
    answers: list[int] = []

    def ask(hour: int) -> None:
        answers.append(count("select count(*) from prices where close < $1", [hour]))

    threads = [threading.Thread(target=ask, args=(hour,)) for hour in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == list(range(12))


# Streams


def test_a_stream_gives_every_row_in_bounded_batches(session, prices):
    reader = session.sql_reader("select close from prices", batch_rows=10)
    assert isinstance(reader, RowReader)
    batches = list(reader)
    assert sum(batch.num_rows for batch in batches) == 72
    assert reader.schema == pa.schema({"close": pa.float64()})


def test_a_stream_reads_its_version_to_the_end(session, prices):
    reader = session.sql_reader("select close from prices", batch_rows=1)
    first = reader.read_next_batch()
    prices.append(rows([100]))
    assert first.num_rows + reader.read_all().num_rows == 72


def pins(table) -> list[str]:
    folder = f"{table.root()}/_pins"
    return os.listdir(folder) if os.path.isdir(folder) else []


@pytest.mark.parametrize("ending", ["read", "dropped"])
def test_a_stream_holds_its_pin_until_it_ends(session, prices, ending):
    reader = session.sql_reader("select close from prices", batch_rows=1)
    assert len(pins(prices)) == 1
    if ending == "read":
        reader.read_all()
    else:
        del reader
        gc.collect()
    assert pins(prices) == []


def test_a_stream_that_fails_at_its_start_leaves_no_pin(session, prices):
    with pytest.raises(Invalid):
        session.sql_reader("select error('x') from prices").read_all()
    assert pins(prices) == []


def test_a_stream_that_fails_late_raises_and_never_just_ends(session, tmp_path, make_table):
    total = 400_000
    start = datetime(2024, 6, 1)
    ts = pa.array([start + timedelta(seconds=second // 100) for second in range(total)])
    value = pa.array(["1"] * (total - 1) + ["no number"])
    session.register_tstable("t", make_table(pa.table({"ts": ts, "v": value})))
    reader = session.sql_reader("select cast(v as int) as v from t", batch_rows=1000)
    assert reader.read_next_batch().num_rows > 0
    with pytest.raises(Invalid, match="no number"):
        reader.read_all()


def test_a_batch_without_rows_is_refused(session, prices):
    with pytest.raises(Invalid):
        session.sql_reader("select 1 from prices", batch_rows=0)


def test_a_session_that_is_closed_closes_its_streams(prices):
    session = Session(threads=1)
    session.register_tstable("prices", prices)
    reader = session.sql_reader("select close from prices", batch_rows=5)
    session.close()
    with pytest.raises(Invalid):
        reader.read_all()


# Closing


def test_a_closed_session_says_so_and_closes_twice(prices):
    with Session(threads=1) as session:
        session.register_tstable("prices", prices)
        session.sql("select 1 from prices")
        spill = session._engine._spill
        assert os.path.isdir(spill)
    session.close()
    assert not os.path.exists(spill)
    with pytest.raises(Unavailable, match="closed"):
        session.sql("select 1")
    with pytest.raises(Unavailable, match="closed"):
        session.register_tstable("prices", prices)


def test_a_session_without_tables_answers_what_needs_none(session, count):
    assert count("select 1 + 1") == 2


def test_limits_are_the_engines(tmp_path):
    with Session(threads=1, memory_limit_bytes=64 << 20) as session:
        session.sql("select 1")
        cursor = session._engine.cursor()
        sql = "select value from duckdb_settings() where name = 'memory_limit'"
        assert cursor.execute(sql).fetchall() == [("64.0 MiB",)]
