"""Columns without an alias are called what the engine itself would call them, never by a path."""

from datetime import datetime

import duckdb
import pyarrow as pa
import pytest

from thermocline.query.session import Session
from thermocline.query.sql.syntax import NAME_LENGTH_MAX
from thermocline.table import TimeSeriesTable

ROWS = pa.table({"ts": [datetime(2024, 6, 1)], "v": [1]})

QUERIES = [
    "select (select max(v) from t)",
    "select (select max(v) from t) + 1, v from t",
    "select exists(select 1 from t where v = 1), v in (select v from t) from t",
    "select *, (select count(*) from t), t.v from t",
    "select * from (select (select max(v) from t))",
    "with c as (select (select max(v) from t)) select * from c",
    "select (select max(v) from t) union all select 2",
    "select (select max(v) from t) as named, max(v) from t",
    "select case when (select max(v) from t) > 0 then 'a' else 'b' end from t",
    "select (select (select max(v) from t))",
    "select (select v from t order by ts limit 1), count(*) from t group by all order by 1",
    'select (select max(v) from t as "T x" where "T x".v = t.v) from t',
]


@pytest.fixture
def session(tmp_path):
    table = TimeSeriesTable.create(tmp_path / "t", time_column="ts", bucket="1h")
    table.append(ROWS)
    with Session() as session:
        session.register_tstable("t", table)
        yield session


@pytest.mark.parametrize("query", QUERIES)
def test_a_column_is_called_what_the_engine_calls_it(session, query):
    with duckdb.connect() as engine:
        engine.register("t", ROWS)
        wanted = engine.sql(query).to_arrow_table()
    found = session.sql(query)
    assert found.column_names == wanted.column_names
    assert found.to_pylist() == wanted.to_pylist()
    assert session.sql_reader(query).schema.names == wanted.column_names


def test_a_subquery_with_parameters_or_of_a_past_version_is_called_by_its_text(session):
    found = session.sql("select (select max(v) + ? from t where v < ?), ? as x from t", [1, 5, 7])
    assert found.column_names == ["(SELECT (max(v) + $1) FROM t WHERE (v < $2))", "x"]
    assert found.to_pylist() == [{found.column_names[0]: 2, "x": 7}]
    found = session.sql("select (select count(*) from t as of version 1)")
    assert found.column_names == ["(SELECT count_star() FROM t AT (VERSION => 1))"]
    assert found.column(0).to_pylist() == [0]


def test_a_long_subquery_is_called_by_the_beginning_of_its_text(session):
    (name,) = session.sql(f"select (select max(v) from t where '{'x' * 90_000}' > '')").column_names
    assert len(name) == NAME_LENGTH_MAX
    assert name.startswith("(SELECT max(v) FROM t WHERE ('xxx")
