"""Versions and functions in SQL: `AS OF`, `gaps`, `coverage`, `history`."""

from datetime import UTC, datetime, timedelta

import pytest

from fixtures.lake import rows
from thermocline.errors import Invalid, NotFound


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select count(*) from prices as of version 2", 24),
        ("select count(*) from prices p as of version 3 where p.close >= 0", 48),
        ("select count(*) from prices as of version 3 p where p.close >= 24", 24),
        ("select count(*) from prices at (version => 1 + 1)", 24),
        ("select count(*) from prices as of version 1", 0),
        ("select count(*) from prices a, prices as of version 2 b where a.ts = b.ts", 24),
        ("select count(*) from (select * from prices as of version 2 union all from prices)", 96),
        ("with x as (from prices as of version 2) select count(*) from x where close >= 0", 24),
        ("select count(prices.close) from prices as of version 2", 24),
        ("select count(a) from prices as p(a, b) at (version => 2) where b = 'NVDA'", 24),
        ("select (select count(*) from prices as of version 2) from range(1)", 24),
    ],
)
def test_a_table_is_read_as_of_a_version(session, prices, sql, expected, count):
    assert count(sql) == expected


def test_a_table_is_read_as_of_an_instant(session, prices, count):
    second = session.sql("select time from history('prices') where version = 2").column(0)
    moment = second.to_pylist()[0]
    for written in (f"'{moment.isoformat()}'", f"'{moment.astimezone().isoformat()}'"):
        assert count(f"select count(*) from prices as of timestamp {written}") == 24
    text = "select count(*) from prices as of timestamp $1"
    assert count(text, [moment]) == 24
    assert count(text, [moment.replace(tzinfo=None)]) == 24
    assert count("select count(*) from prices at (timestamp => now())") == 72
    with pytest.raises(NotFound):
        session.sql(text, [moment - timedelta(days=400)])


def test_parameters_keep_their_places_around_a_version(session, prices):
    sql = "select ?, count(*), ? from prices as of version ? where close < ?"
    answer = session.sql(sql, ["a", "b", 3, 30])
    assert [column.to_pylist()[0] for column in answer.columns] == ["a", 30, "b"]


@pytest.mark.parametrize(
    "clause",
    ["version 99", "version 0", "version 1.5", "timestamp 'yesterday'", "timestamp '1999-01-01'"],
)
def test_a_version_that_is_none_is_refused(session, prices, clause):
    with pytest.raises((Invalid, NotFound)):
        session.sql(f"select * from prices as of {clause}")


@pytest.mark.parametrize(
    "sql",
    [
        "select * from prices at (version => (select 2))",
        "select * from prices at (version => close)",
        "select * from prices at (version => random())",
        "select * from prices at (version => 'two')",
        "select * from prices as of version 2 tablesample 10%",
    ],
)
def test_a_version_is_a_constant_and_not_sampled(session, prices, sql):
    with pytest.raises(Invalid):
        session.sql(sql)


def test_gaps_coverage_and_history_are_tables(session, make_table):
    table = make_table(rows([0, 1, 5]), entities=("symbol",))
    session.register_tstable("t", table)
    gaps = session.sql("""select symbol, start, "end", buckets from gaps('t')""").to_pylist()
    assert gaps == table.gaps().to_pylist()
    assert session.sql("from coverage('t')").to_pylist() == table.coverage().to_pylist()
    assert session.sql("select version from history('t') order by 1").to_pydict() == {
        "version": [1, 2]
    }


@pytest.mark.parametrize(
    ("arguments", "params", "expected"),
    [
        ("'t', '2024-06-01', '2024-06-02'", None, 21),
        ("'T', timestamp '2024-06-01', timestamp '2024-06-01' + interval 1 day", None, 21),
        ("$name, $since, $until", {"name": "t", "since": "2024-06-01", "until": "2024-06-02"}, 21),
        ("?, ?, ?", ["t", datetime(2024, 6, 1), datetime(2024, 6, 2, tzinfo=UTC)], 21),
        ("'t', null, '2024-06-01 08:00:00'", None, 5),
        ("'t', '2024-06-01 02:00:00+02'", None, 3),
        ("'t'", None, 3),
    ],
)
def test_gaps_takes_any_constants(session, make_table, arguments, params, expected, count):
    session.register_tstable("t", make_table(rows([0, 1, 5]), entities=("symbol",)))
    assert count(f"select sum(buckets) from gaps({arguments})", params) == expected


def test_functions_join_with_tables_and_are_named_like_them(session, prices, count):
    sql = """
        select count(*) from prices p
        join coverage('prices') c on p.symbol = c.symbol and p.ts >= c.start and p.ts < c."end"
        where coverage is not null or c.buckets > 0
    """
    with pytest.raises(Invalid):  # the alias hides the function's name
        session.sql(sql)
    assert count(sql.replace("coverage is not null or", "")) == 72
    assert count("select coverage.buckets from coverage('prices')") == 72
    assert count("select c.b from history('prices') as c(a, b) limit 1") is not None


@pytest.mark.parametrize(
    "sql",
    [
        "select * from gaps()",
        "select * from gaps(3)",
        "select * from gaps(prices)",
        "select * from gaps('prices', 1)",
        "select * from gaps('prices', 'x')",
        "select * from gaps('prices', '2024-06-02', '2024-06-01')",
        "select * from gaps('prices', now(), now(), now())",
        "select * from coverage('prices', now())",
        "select * from prices, gaps(prices.symbol)",
        "select * from history('prices') with ordinality",
        "select gaps('prices')",
    ],
)
def test_a_function_that_is_called_wrongly_says_so(session, prices, sql):
    with pytest.raises(Invalid):
        session.sql(sql)


def test_a_function_of_an_unknown_table_names_it(session, prices):
    with pytest.raises(NotFound) as raised:
        session.sql("select * from gaps('price')")
    assert raised.value.facts["table"] == "price"
