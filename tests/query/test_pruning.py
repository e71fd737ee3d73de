"""A pruned answer equals the unpruned answer, for random queries and segments."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from string import Formatter

import duckdb
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fixtures.lake import JUNE_US
from thermocline.errors import Corruption
from thermocline.format.log.action import Mark
from thermocline.hot.wal.buffer import TableBuffer
from thermocline.hot.wal.frame import Lsn
from thermocline.query.session import Session
from thermocline.table import TimeSeriesTable

START = datetime(2024, 6, 1)
MINUTE_US = 60_000_000
SYMBOLS = ["", "A", "AA", "B", "a", "ä", "\U0001f600", "Z'\"", None]
TIME_TYPES = {
    "naive": pa.timestamp("us"),
    "zoned": pa.timestamp("us", tz="UTC"),
    "exact": pa.timestamp("ns"),
}


def some_rows(random, kind: pa.DataType, first: int, count: int) -> pa.Table:
    """Return rows from minute `first` on; some of the columns have narrow ranges, some nulls."""
    minutes = [first + random.randrange(0, 240) for _ in range(count)]
    scale = 1000 if kind.unit == "ns" else 1
    low = random.randrange(-5, 5)
    symbols = random.sample(SYMBOLS, k=2) if random.random() < 0.7 else SYMBOLS
    extra = random.randrange(0, 1000) if kind.unit == "ns" else 0
    return pa.table(
        {
            "ts": pa.array(
                [(JUNE_US + m * MINUTE_US) * scale + extra for m in minutes], pa.int64()
            ).cast(kind),
            "symbol": pa.array([random.choice(symbols) for _ in minutes], pa.string()),
            "n": pa.array([low + random.randrange(0, 3) for _ in minutes], pa.int32()),
            "x": pa.array([random.choice([0.5, -1.0, None]) for _ in minutes]),
        }
    )


@pytest.fixture(scope="module", params=[*TIME_TYPES, "naive hot", "exact hot"])
def world(request, tmp_path_factory):
    """Two tables of many small segments, and an engine that holds the same rows in memory.

    Where the world is hot, some of the rows are.
    """
    import random

    chance, kind = random.Random(request.param), TIME_TYPES[request.param.split()[0]]
    session, oracle = Session(threads=2), duckdb.connect(":memory:")
    oracle.execute("SET GLOBAL TimeZone = 'UTC'")
    for name in ("p", "q"):
        table = TimeSeriesTable.create(
            tmp_path_factory.mktemp(request.param.replace(" ", "_")) / name,
            time_column="ts",
            bucket="1h",
            entity_columns=["symbol", "n"],
            overlap="allow",
        )
        for place in range(10):
            table.append(some_rows(chance, kind, place * 180, chance.randrange(1, 9)))
        table.delete("n = 1 and symbol = 'A' or ts < '2024-06-01 00:30:00'")
        hot = TableBuffer("journal", Mark(0))
        for lsn in range(1, 5) if request.param.endswith("hot") else ():
            rows = some_rows(chance, kind, lsn * 300, chance.randrange(1, 9))
            rows = rows.cast(table.schema())
            hot.add(Lsn(lsn), table.cold.state().schema_id, rows.to_batches()[0], rows.nbytes)
        session.register_view(name, table.cold, hot.snapshot)
        warm = [pa.Table.from_batches([part.batch]) for part in hot.snapshot().parts]
        oracle.register(name, pa.concat_tables([table.to_arrow(), *warm]))
    yield session, oracle
    session.close()
    oracle.close()


moments = st.integers(-60, 2100).map(lambda minutes: START + timedelta(minutes=minutes))
times = st.one_of(
    moments.map(lambda m: f"'{m}'"),
    moments.map(lambda m: f"timestamp '{m}'"),
    moments.map(lambda m: f"timestamptz '{m}+00'"),
    moments.map(lambda m: f"timestamptz '{m}+02'"),
    moments.map(lambda m: f"timestamp_ns '{m}.123456789'"),
    moments.map(lambda m: f"timestamp '{m}' + interval 90 minutes"),
    st.integers(1, 3).map(lambda day: f"date '2024-06-0{day}'"),
)
numbers = st.one_of(
    st.integers(-8, 8).map(str),
    st.decimals(-8, 8, places=2).map(str),
    st.floats(-8, 8, width=32).map(lambda f: f"{f!r}::double"),
    st.just("9007199254740993"),
    st.just("cast(2.5 as float)"),
)
texts = st.sampled_from([s for s in SYMBOLS if s is not None] + ["m", "\uffff"]).map(
    lambda s: "'" + s.replace("'", "''") + "'"
)
operators = st.sampled_from(["=", "<", "<=", ">", ">=", "<>"])


def comparisons(prefix: str) -> st.SearchStrategy[str]:
    """Return strategies for conditions on the columns of one reference."""
    sides = [("ts", times), ("n", numbers), ("symbol", texts)]
    others = ["{0}x > 0", "{0}symbol is null", "{0}n = {0}n"]
    found = [st.sampled_from([other.format(prefix) for other in others])]
    for column, values in sides:
        name = st.just(prefix + column)
        found += [
            st.tuples(name, operators, values).map(" ".join),
            st.tuples(values, operators, name).map(" ".join),
            st.tuples(name, values, values).map(lambda t: f"{t[0]} between {t[1]} and {t[2]}"),
        ]
    listed_kinds = [
        ("ts", moments.map(lambda m: f"timestamp '{m}'")),
        ("n", st.integers(-8, 8).map(str)),
        ("symbol", texts),
    ]
    for column, values in listed_kinds:
        listed = st.lists(values, min_size=1, max_size=3).map(", ".join)
        found.append(listed.map(lambda some, c=column: f"{prefix}{c} in ({some})"))
    return st.one_of(found)


def conditions(prefix: str = "") -> st.SearchStrategy[str]:
    """Return conditions nested with AND, OR and NOT."""
    return st.recursive(
        comparisons(prefix),
        lambda inner: st.one_of(
            st.tuples(inner, inner).map(lambda t: f"({t[0]} and {t[1]})"),
            st.tuples(inner, inner).map(lambda t: f"({t[0]} or {t[1]})"),
            inner.map(lambda one: f"not ({one})"),
        ),
        max_leaves=4,
    )


def rows_of(answer: pa.Table) -> list[str]:
    """Return the rows sorted, so that they can be compared."""
    return sorted(repr(row) for row in answer.to_pylist())


def compare(world, sql: str, parameters=None) -> None:
    """Run both; either both fail or both return the same rows."""
    session, oracle = world
    expected = oracle.sql(sql, params=parameters).to_arrow_table()
    assert rows_of(session.sql(sql, parameters)) == rows_of(expected)


def bindable(oracle, sql: str, parameters=None) -> bool:
    """Tell whether the engine accepts the query: not all types can be compared."""
    try:
        oracle.sql(sql, params=parameters)
    except duckdb.Error:
        return False
    return True


@settings(max_examples=80)
@given(conditions())
@example("ts >= '2024-06-01 05:00:00' and ts < '2024-06-01 06:00:00'")
@example("n > 1.5 and n < 2.5")
@example("symbol > 'a'")
def test_Q08_one_table_under_any_condition(world, where):
    sql = f"select ts, symbol, n, x from p where {where}"
    if bindable(world[1], sql):
        compare(world, sql)


BOTH = "select a.ts, b.ts, a.n, b.n from p a {join} q b on {{on}} where {{a}} and {{b}}"
TEMPLATES = [
    *(
        BOTH.format(join=join).replace("{on}", on)
        for join in ("join", "left join", "right join", "full join")
        for on in ("a.symbol = b.symbol and {a} and {b}", "a.n = b.n and a.ts = b.ts")
        if join != "full join" or "{a}" not in on
    ),
    *(
        BOTH.format(join=join).replace("{on}", "a.n = b.n and a.ts >= b.ts")
        for join in ("asof join", "asof left join")
    ),
    "select a.ts, a.n from p a semi join q b on a.symbol = b.symbol and {a} and {b} where {a}",
    "select a.ts, a.n from p a anti join q b on a.symbol = b.symbol and {a} and {b} where {a}",
    "select n from p where {p} union all select n from p where {q} union all from q where false",
    "select n from p where {p} except all select n from p where {bare}",
    "select ts, n from p where exists (select 1 from q where q.n = p.n and {q})",
    "select ts, n from p where n not in (select n from q where {q})",
    "with s as (select * from p where {p}) select s.ts, q.n from s, q where s.n = q.n and {q}",
    "with p as (select * from p where n > 0) select ts, n from p where {p}",
    "from p a, lateral (select max(n) as m from q b where b.ts < a.ts and {b}) s where {a}",
    "select n, count(*), count(x) from p where {bare} group by all having n > 0",
    "select n from p where {bare} qualify row_number() over (partition by n order by ts) = 1",
    "select ts + interval 1 day as ts, n from p where {bare}",
    "select ts, n from p join (select ts, symbol, n from q) s using (ts, symbol, n) where {s}",
    "select ts, p.n, q.n from p full join q using (ts, symbol) where {p} or {q}",
    "select a.ts from p a join p b using (symbol) join q c using (symbol) where {a} and {b}",
]


TRAPS = [
    # Each of these has rows that a careless pushdown would change.
    "select a.ts, b.symbol, b.ts from p a asof join q b on a.ts >= b.ts where b.symbol = 'A'",
    "select a.ts, b.n from p a asof left join q b on a.ts >= b.ts where b.n = 2",
    "select a.ts, b.ts from p a left join q b on a.n = b.n and b.n = 2 and a.n < 2",
    "select a.ts, b.ts from p a full join q b on a.n = b.n and a.n = 2",
    "select a.ts from p a anti join q b on a.n = b.n and b.ts > '2024-06-01 12:00:00'",
    "select ts - interval 9 hours as ts from p where ts > '2024-06-01 12:00:00'",
    "with p as (select -n as n from p) select n from p where n = 2",
]


@pytest.mark.parametrize("sql", TRAPS)
def test_traps_are_not_stepped_into(world, sql):
    compare(world, sql)


SLOTS = {name: conditions(f"{name}.") for name in "abcpq"} | {
    "s": st.sampled_from(["ts > '2024-06-01 06:00:00'", "symbol < 'B'", "n = 2"]),
    "bare": conditions(),
}


@st.composite
def queries(draw) -> str:
    """Return a template with a condition in each of its slots."""
    template = draw(st.sampled_from(TEMPLATES))
    names = [name for _, name, _, _ in Formatter().parse(template) if name]
    return template.format(**{name: draw(SLOTS[name]) for name in names})


@settings(max_examples=80)
@given(queries())
def test_Q08_joins_subqueries_and_sets_under_any_conditions(world, sql):
    if bindable(world[1], sql):
        compare(world, sql)


@settings(max_examples=40)
@given(
    st.one_of(moments, moments.map(lambda m: m.replace(tzinfo=UTC)), moments.map(str)),
    st.one_of(st.integers(-8, 8), st.floats(-8, 8), st.decimals(-8, 8, places=1).map(Decimal)),
    operators,
)
def test_Q08_parameters_prune_as_literals_do(world, moment, number, operator):
    sql = f"select * from p where ts {operator} $1 and n {operator} $2"
    if bindable(world[1], sql, [moment, number]):
        compare(world, sql, [moment, number])


def test_a_narrow_condition_reads_few_files(world):
    session, _ = world
    asked = {
        "select * from p": (10, 10),
        "select * from p where ts < '2024-06-01 03:00:00'": (1, 3),
        "select * from p where ts = '1999-01-01'": (0, 0),
        "select * from p where ts = '1999-01-01' or true": (10, 10),
        "select * from p a, p b where a.ts = '1999-01-01' and b.ts < '2024-06-01 03:00:00'": (1, 3),
        "select * from p where n = 100": (0, 0),
        "select * from p tablesample 10 rows where ts = '1999-01-01'": (10, 10),
    }
    for sql, (least, most) in asked.items():
        with session._open_query(sql, None) as task:
            assert least <= len(task.prepared.files) <= most, sql


COUNTS = (
    "select count(*) from {p}",
    "select count(*) + 1, 'x' from {p} as a, {q} as b",
    "select (select count(*) from {p}), count(*) from {q} union all select count(*), 0 from {p}",
    "with c as (select count(*) as k from {p}) select k from c",
    "select sum(1), count(1) filter (true), bool_and(true) from {p}",
    "select count(*) from {p} having count(*) > 3",
    "select count(*) from {p} where random() < 2",
    "select 1 from {p} limit 5 offset 2",
)


@pytest.mark.parametrize("text", COUNTS)
def test_Q08_a_query_without_a_column_counts_what_an_engine_with_the_rows_counts(world, text):
    session, oracle = world
    sql = text.format(p="p", q="q")
    expected = oracle.sql(sql).to_arrow_table()
    assert sorted(map(str, session.sql(sql).to_pylist())) == sorted(map(str, expected.to_pylist()))


@pytest.mark.parametrize("count", [0, 1, 7, 30, 10_000])
@pytest.mark.parametrize(
    "text",
    [
        "select n, symbol from p limit {count}",
        "select * from p limit {count} offset 3",
        "select -n, case when n > 0 then symbol end from p limit {count}",
        "select max(n), min(symbol) from p limit {count}",
        "select distinct n from p limit {count}",
        "select n from p where symbol = 'A' limit {count}",
        "select n, symbol from p order by n desc limit {count}",
        "select count(*), n from p group by n limit {count}",
        "select n, row_number() over () from p limit {count}",
        "select n from p limit {count} + 2",
        "select a.n from p as a, q as b where a.n = b.n limit {count}",
        "select n from (select n from p where n > 1) limit {count}",
        "select n from p union all select n from q limit {count}",
        "select unnest([n, n, n]) from p limit {count}",
    ],
)
def test_Q08_a_limit_gives_as_many_rows_as_there_are_and_none_that_is_not_there(world, text, count):
    session, oracle = world
    sql = text.format(count=count)
    answer = session.sql(sql)
    expected = oracle.sql(sql).to_arrow_table()
    assert answer.num_rows == expected.num_rows
    if "limit {count}" not in text or "row_number" in text:
        return
    unlimited = oracle.sql(sql.split(" limit ")[0]).to_arrow_table().to_pylist()
    rows = [tuple(row.values()) for row in unlimited]
    for row in answer.to_pylist():
        rows.remove(tuple(row.values()))


def test_Q08_counts_and_limits_of_earlier_versions_and_after_deletes(tmp_path):
    table = TimeSeriesTable.create(tmp_path / "t", time_column="ts", bucket="1h", overlap="allow")
    kinds = [pa.array([JUNE_US + n * MINUTE_US], pa.timestamp("us")) for n in range(12)]
    expected = {1: 0}
    for number, ts in enumerate(kinds):
        version = table.append(pa.table({"ts": ts, "v": [number]}))
        expected[version] = number + 1
    expected[table.delete("v in (3, 4)")] = 10
    table.checkpoint()
    expected[table.append(pa.table({"ts": pa.concat_arrays(kinds), "v": range(12)}))] = 22
    expected[table.delete("v % 2 = 0")] = 11
    with Session() as session:
        session.register_tstable("t", table)
        for version, rows in expected.items():
            asked = f"t as of version {version}"
            assert session.sql(f"select count(*) as n from {asked}")["n"].to_pylist() == [rows]
            assert session.sql(f"select ts from {asked} limit 11").num_rows == min(rows, 11)


def test_a_count_opens_no_file_and_a_limit_opens_few(tmp_path):
    table = TimeSeriesTable.create(tmp_path / "t", time_column="ts", bucket="1h")
    for n in range(8):
        ts = pa.array([JUNE_US + (60 * n + k) * MINUTE_US for k in range(4)], pa.timestamp("us"))
        table.append(pa.table({"ts": ts, "v": [n] * 4}))
    with Session() as session:
        session.register_tstable("t", table)
        rows, report = session.read("select v from t limit 6")
        assert rows.read_all().num_rows == 6
        assert (report.tables["t"].files, report.tables["t"].files_pruned) == (2, 6)
        for segment in table.cold.state().segments:
            (tmp_path / "t" / segment.path).unlink()
        rows, report = session.read("select count(*) as n from t")
        assert rows.read_all()["n"].to_pylist() == [32]
        counted = report.tables["t"]  # by the log: no file was read, and none pruned
        assert (counted.files, counted.files_pruned) == (0, 0)
        with pytest.raises(Corruption):
            session.sql("select count(v) from t")
