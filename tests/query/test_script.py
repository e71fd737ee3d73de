"""Views, macros, EXPLAIN, SHOW TABLES, PIVOT and the information schema, as users write them."""

import pyarrow as pa
import pytest

from fixtures.lake import rows
from fixtures.pools import PoolOfTables
from thermocline.errors import Invalid, NotFound
from thermocline.query.session import Session
from thermocline.query.sql.script import BODY_BYTES_MAX, DEFINITIONS_MAX, read_script
from thermocline.query.sql.syntax import DEPTH_MAX, TEXT_BYTES_MAX
from thermocline.query.worker.pool import TableRef


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    """A worker over one table of 48 rows, which keeps nothing between queries."""
    from thermocline.table import TimeSeriesTable

    table = TimeSeriesTable.create(
        tmp_path_factory.mktemp("pool") / "prices", time_column="ts", bucket="1h"
    )
    table.append(rows(range(48)))
    with PoolOfTables({"prices": TableRef("prices", table.root())}) as opened:
        yield opened


def test_show_and_describe_name_the_tables_and_columns(session, prices):
    assert session.sql("SHOW TABLES").to_pylist() == [{"name": "prices"}]
    assert session.sql(" show all tables ; ").column("column_names").to_pylist() == [
        ["ts", "symbol", "close"]
    ]
    for sql in ("describe prices", "show prices", "desc prices"):
        answer = session.sql(sql)
        assert answer.column("column_name").to_pylist() == ["ts", "symbol", "close"]


def test_the_information_schema_has_the_sessions_tables_only(session, prices, tmp_path):
    pa.parquet.write_table(pa.table({"a": pa.array([1], pa.int8())}), tmp_path / "plain.parquet")
    session.register_parquet("plain", tmp_path / "plain.parquet")
    session.sql("create temp view expensive as select * from prices where close > 10")
    found = session.sql(
        "select table_schema, table_name, table_type from information_schema.tables"
    )
    assert [list(row.values()) for row in found.to_pylist()] == [
        ["main", "plain", "BASE TABLE"],
        ["main", "prices", "BASE TABLE"],
        ["main", "expensive", "VIEW"],
    ]
    sql = "select column_name, data_type, is_nullable from information_schema.columns where "
    assert session.sql(sql + "table_name = 'plain'").to_pylist() == [
        {"column_name": "a", "data_type": "TINYINT", "is_nullable": "YES"}
    ]
    assert session.sql(sql + "table_name = 'prices'").to_pylist()[0] == {
        "column_name": "ts",
        "data_type": "TIMESTAMP",
        "is_nullable": "NO",
    }


def test_the_information_schema_of_a_broken_table_is_an_error(session, prices):
    session.register_broken("lost", NotFound("no such table", table="lost"))
    assert session.sql("select count(*) from prices").num_rows == 1
    for sql in ("show tables", "select * from lost", "select * from gaps('lost')"):
        with pytest.raises(NotFound):
            session.sql(sql)


def test_a_view_is_read_like_a_table_and_follows_it(session, prices, count):
    session.sql("create temp view dear(t, price) as select ts, close from prices where close > 9; ")
    assert count("select count(*) from dear where price < 20") == 10
    prices.append(rows(range(72, 80)))
    assert count("select count(*) from dear") == 70
    assert count("select count(*) from dear a join dear b using (t)") == 70
    assert count("with dear as (select 1 as one) select one from dear") == 1
    session.sql("create or replace temp view dear as select ts as t from prices limit 3")
    assert count("select count(*) from dear") == 3
    session.sql("drop view dear")
    with pytest.raises(NotFound):
        session.sql("select * from dear")


def test_a_view_and_the_query_read_one_version(session, prices, count):
    session.sql("create temp view old as select * from prices as of version 2")
    session.sql("create temp view days as select date_trunc('day', ts) as day, close from old")
    assert count("select count(*) from old") == 24
    assert count("select (select count(*) from prices) - (select count(*) from days)") == 48


def test_a_macro_of_a_value_and_a_macro_of_rows(session, prices, count):
    session.sql("create temp macro scaled(a, factor := 10) as a * factor")
    session.sql("create temp macro dearest(n) as table from prices order by close desc limit n")
    assert count("select scaled(close) from prices where close = 5") == 50
    assert count("select scaled(close, factor := 2) from prices where close = 5") == 10
    assert count("select close.scaled() from prices where close = 5") == 50
    assert session.sql("select close from dearest(2)").column(0).to_pylist() == [71, 70]
    session.sql("create temp macro spread(a) as max(a) - min(a)")
    assert count("select spread(close) from prices") == 71


def test_a_parameter_named_like_a_column_does_not_prune_by_it(session, make_table, count):
    days = [rows(range(24 * day, 24 * (day + 1))) for day in range(3)]
    session.register_tstable("p", make_table(*days))
    session.sql("create temp macro nothing(ts) as table from p where ts < '2000-01-01'")
    assert count("select count(*) from nothing('1999-01-01')") == 72


def test_definitions_come_before_the_query_in_one_text(pool):
    sql = """
        -- a script; with a comment
        create temp view v as select close from prices where close < 10;
        create temp macro twice(a) as a * 2;
        select sum(twice(close)) as s from v;
    """
    assert pool.sql(sql).to_pylist() == [{"s": 90.0}]
    for sql in ("from v", "select twice(1)"):
        with pytest.raises((Invalid, NotFound)):
            pool.sql(sql)
    with pytest.raises(Invalid) as raised:
        pool.sql("create temp view v as select 1")
    assert "write the query behind it" in raised.value.hint


def test_everything_works_in_a_worker(pool):
    assert pool.sql("show tables").to_pylist() == [{"name": "prices"}]
    assert pool.sql("select count(*) as n from information_schema.columns").to_pylist() == [
        {"n": 3}
    ]
    assert "pivot" not in str(pool.sql("pivot prices on symbol using count(*)").column_names)
    assert pool.sql("explain analyze from prices").num_rows > 3
    assert pool.sql("select version() as v").column(0)[0].as_py().startswith("Thermocline ")


def test_a_definition_that_may_not_run_changes_nothing(session, prices):
    session.sql("create temp view v as select 1 as a")
    for sql in (
        "create temp view v as select 2",
        "create or replace temp view v as select nosuch from prices",
        "create or replace temp view v as select * from read_text('/etc/passwd')",
        "create or replace temp view v as select $1",
        "create or replace temp view v as select * from v",
        "create temp macro count(a) as a",
        "create temp macro f(a) as a, a",
        "create temp macro f(a) as a as b",
        "create temp macro f(a, A) as a",
        "create temp macro f() as nosuch()",
        "create temp view f as select '" + "x" * BODY_BYTES_MAX + "'",
        "drop macro v",
    ):
        with pytest.raises(Invalid):
            session.sql(sql)
    assert session.sql("select * from v").to_pylist() == [{"a": 1}]
    assert session.sql("show tables").num_rows == 2


def test_a_session_has_a_bounded_number_of_definitions(session):
    for number in range(DEFINITIONS_MAX):
        session.sql(f"create temp macro f{number}() as {number}")
    with pytest.raises(Invalid, match="too many"):
        session.sql("create temp macro g() as 1")


def test_a_view_with_the_name_of_a_table_is_refused(session, prices):
    with pytest.raises(Invalid, match="name of a table"):
        session.sql("create temp view prices as select 1 as close; select * from prices")
    session.sql("create temp view later as select 1 as a")
    session.register_tstable("later", prices)
    with pytest.raises(Invalid, match="name of a table"):
        session.sql("select * from later")


def test_the_place_of_an_error_is_one_in_the_whole_text(session, prices):
    sql = "create temp view v as select 1; select * from v whre a > 1 >"
    with pytest.raises(Invalid) as raised:
        session.sql(sql)
    assert raised.value.facts["position"] == sql.index("a > 1")


def test_a_text_is_split_by_the_tokens_of_the_engine():
    script = read_script("create temp view v as select ';' -- ;\n; select 1 /* ; */ ;")
    assert [one.definition.body for one in script.changes if one.definition] == ["select ';'"]
    assert script.query is not None
    assert script.query.strip() == "select 1"


def test_explain_shows_tiers_and_files_by_their_place_in_the_table(session, prices):
    found = session.sql("explain select ts from prices where ts < '2024-06-01 09:00'").to_pylist()
    parts = [row["part"] for row in found]
    assert parts[:4] == ["table", "hot", "cold", "file"]
    assert found[2]["detail"] == "1 of 3 files"
    assert found[3]["detail"].startswith("data/2024/06/01/00/")
    plan = [row for row in found if row["part"] == "plan"]
    assert any("READ_PARQUET" in row["name"] and "filters" in row["detail"] for row in plan)
    assert all(row["ms"] is None for row in found)
    assert prices.root() not in str(found)


def test_explain_analyze_runs_the_query_and_counts_its_rows(session, prices):
    sql = "explain analyze select symbol, max(close) from prices where close > $1 group by all"
    found = session.sql(sql, [10]).to_pylist()
    plan = [row for row in found if row["part"] == "plan"]
    assert plan[0]["rows"] == 1
    assert all(row["ms"] is not None for row in plan)
    assert prices.root() not in str(found)
    reader, report = session.read(sql, [10])
    assert reader.read_all().num_rows == len(found)
    assert report.tables["prices"].files == 3


def test_explain_of_deleted_rows_hides_how_they_are_skipped(session, prices):
    prices.delete("close < 3")
    found = session.sql("explain analyze select * from prices").to_pylist()
    assert "__thermocline" not in str(found)
    assert session.sql("select count(*) from prices").column(0).to_pylist() == [69]


@pytest.mark.parametrize(
    "sql",
    [
        "pivot t on s using sum(v) group by d",
        "from (pivot t on s using sum(v) group by d) order by d",
        "with x as (select * from t) pivot x on s using sum(v) group by d",
        "pivot (select * from t where v > 0) on s using sum(v) group by d order by d limit 9",
        "pivot t as of version 2 on s using sum(v) group by d",
        "pivot t on s in ('a', 'b') using sum(v) group by d",
    ],
)
def test_pivot_finds_its_values_in_the_rows(session, make_table, sql):
    data = pa.table(
        {
            "ts": pa.array([1, 2, 3, 4], pa.timestamp("us")),
            "d": [1, 1, 2, 2],
            "s": ["a", "b", "a", "a"],
            "v": [1, 2, 3, 4],
        }
    )
    session.register_tstable("t", make_table(data))
    answer = session.sql(sql).sort_by("d").to_pylist()
    assert answer == [{"d": 1, "a": 1, "b": 2}, {"d": 2, "a": 7, "b": None}]


def test_pivot_by_two_columns_and_by_an_expression(session, prices):
    answer = session.sql("pivot prices on symbol, close > 10 using count(*) group by symbol")
    assert set(answer.column_names) == {"symbol", "NVDA_false", "NVDA_true"}
    answer = session.sql("pivot prices on symbol in ('NVDA'), close > 10 using count(*)")
    assert {"NVDA_false", "NVDA_true"} <= set(answer.column_names)
    with pytest.raises(Invalid, match="PIVOT"):
        session.sql("pivot (from prices where close > $1) on symbol using count(*)", [1])


@pytest.mark.parametrize(
    ("sql", "hint"),
    [
        ("select date_bin(interval 1 hour, ts) from prices", "write time_bucket"),
        ("select medain(close) from prices", "did you mean median?"),
        ("select * from gasp('prices')", "did you mean gaps?"),
        ("select to_char(ts) from prices", "write strftime"),
    ],
)
def test_a_function_that_does_not_exist_gets_a_hint(session, prices, sql, hint):
    with pytest.raises(Invalid, match="no such function") as raised:
        session.sql(sql)
    assert hint in raised.value.hint


def test_a_column_called_like_a_method_is_read(session, prices, count):
    assert count("select close.round() from prices where close.abs() = 7") == 7
    assert count("select p.close.round() from prices p order by p.ts desc limit 1") == 71
    assert count("select symbol.lower().length() from prices limit 1") == 4
    assert count("select count(*) from prices where ts < symbol.length().to_timestamp()") == 0


def test_the_main_schema_holds_the_tables(session, prices, count):
    assert count("select count(*) from main.prices") == 72
    assert count("select count(*) from main.prices as of version 2 p where p.close >= 0") == 24


def test_one_megabyte_of_values_runs_and_deep_texts_do_not(session, prices, count):
    values = ",".join(["1234.5"] * 30_000) + ",3"
    assert count(f"select count(*) from prices where close in ({values})") == 1
    assert count(f"select length('{'x' * (TEXT_BYTES_MAX - 100)}')") == TEXT_BYTES_MAX - 100
    deep = "(" * (DEPTH_MAX + 1) + f"'{'x' * 100_000}'" + ")" * (DEPTH_MAX + 1)
    for sql in (f"select {deep}", "select 1" + " union all select 1" * 40_000):
        with pytest.raises(Invalid, match="too many parts"):
            session.sql(sql)


def test_sessions_do_not_share_definitions():
    with Session(threads=1) as one, Session(threads=1) as other:
        one.sql("create temp view v as select 1 as a")
        assert one.sql_reader("select a from v").read_all().num_rows == 1
        with pytest.raises(NotFound):
            other.sql("select a from v")
