"""Which constraints follow from a query's conditions, and which do not."""

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import pyarrow as pa
import pytest

from thermocline.format.instant import format_instant
from thermocline.query.sql.engine_types import shape_of
from thermocline.query.sql.gate import admit
from thermocline.query.sql.plan import CONSTANTS_MAX, ConditionCache, find_constraints

SHAPES = {
    "p": shape_of(
        pa.schema(
            {
                "ts": pa.timestamp("us"),
                "Symbol": pa.string(),
                "n": pa.int64(),
                "x": pa.float64(),
                "tags": pa.list_(pa.string()),
                "day": pa.date32(),
            }
        )
    ),
    "q": shape_of(
        pa.schema({"ts": pa.timestamp("us"), "Symbol": pa.large_string(), "v": pa.int32()})
    ),
    "z": shape_of(pa.schema({"tz": pa.timestamp("us", tz="UTC"), "tn": pa.timestamp("ns")})),
    "w": shape_of(pa.schema({"ts": pa.timestamp("ns"), "k": pa.int64()})),
}


def shown(constraint) -> str:
    """Return a constraint as people write it, times in ISO."""

    def value(one):
        is_time = constraint.column in ("ts", "tz", "tn")
        return format_instant(one).removesuffix("T00:00:00Z") if is_time else str(one)

    if constraint.values is not None:
        return f"{constraint.column} in {','.join(value(one) for one in constraint.values)}"
    parts = []
    if constraint.low is not None:
        parts.append(f"{'>=' if constraint.low_inclusive else '>'} {value(constraint.low)}")
    if constraint.high is not None:
        parts.append(f"{'<=' if constraint.high_inclusive else '<'} {value(constraint.high)}")
    return f"{constraint.column} {' '.join(parts)}"


def found(parser, sql, parameters=None) -> dict[str, set[str]]:
    """Return the constraints on each reference, by the alias it has or its name."""
    statement = admit(parser, sql)
    shapes = [SHAPES.get(reference.table) for reference in statement.references]
    every = find_constraints(parser, statement, shapes, parameters or {}, ConditionCache())
    named = [reference.node["alias"] or reference.table for reference in statement.references]
    return {
        name: {shown(one) for one in some} for name, some in zip(named, every, strict=True) if some
    }


UNDERSTOOD = [
    ("ts >= '2024-06-01'", "ts >= 2024-06-01"),
    ("ts > '2024-06-01'", "ts > 2024-06-01"),
    ("ts < date '2024-06-01'", "ts < 2024-06-01"),
    ("ts <= timestamp '2024-06-01 00:00:00'", "ts <= 2024-06-01"),
    ("'2024-06-01' < ts", "ts > 2024-06-01"),
    ("ts = '2024-06-01'", "ts >= 2024-06-01 <= 2024-06-01"),
    ("TS >= '2024-06-01'", "ts >= 2024-06-01"),
    ("p.ts >= '2024-06-01'", "ts >= 2024-06-01"),
    ('"p"."ts" >= \'2024-06-01\'', "ts >= 2024-06-01"),
    ("(ts) >= ('2024-06-01')", "ts >= 2024-06-01"),
    ("ts between '2024-06-01' and '2024-06-03'", "ts >= 2024-06-01 <= 2024-06-03"),
    ("ts in ('2024-06-03', '2024-06-01')", "ts in 2024-06-01,2024-06-03"),
    ("ts >= timestamp '2024-05-31' + interval 1 day", "ts >= 2024-06-01"),
    ("ts >= timestamp '2024-05-31' + interval '1 day'", "ts >= 2024-06-01"),
    ("ts >= date_trunc('month', timestamp '2024-06-17')", "ts >= 2024-06-01"),
    ("ts >= timestamptz '2024-06-01 02:00:00+02'", "ts >= 2024-06-01"),
    # The engine drops the zone when a text is compared with a time that has none.
    ("ts >= '2024-06-01 00:00:00+02'", "ts >= 2024-06-01"),
    (
        "ts > timestamp_ns '2024-06-01 00:00:00.000000001'",
        "ts > 2024-06-01T00:00:00.000000001Z",
    ),
    ("ts >= make_timestamp(2024, 6, 1, 0, 0, 0)", "ts >= 2024-06-01"),
    ("ts < timestamp '9999-12-31'", "ts < 9999-12-31"),
    ("symbol = 'A'", "Symbol >= A <= A"),
    ("symbol in ('B', 'A')", "Symbol in A,B"),
    ("n = 3", "n >= 3 <= 3"),
    ("n > -3", "n > -3"),
    ("n between 2 + 1 and 5", "n >= 3 <= 5"),
    ("n in (1, 3, 2)", "n in 1,2,3"),
    ("n < 99999999999999999999", "n < 99999999999999999999"),
    ("n in (1_000, +5)", "n in 5,1000"),
    # Compared as decimals or floats, so widened.
    ("n > 1.5", "n >= 0"),
    ("n < 1.5", "n <= 3"),
    ("n = 2e0", "n >= 1 <= 3"),
    ("n in (1, 2.5)", "n >= 1 <= 4"),
]


@pytest.mark.parametrize(("where", "expected"), UNDERSTOOD)
def test_a_condition_on_a_column_is_understood(parser, where, expected):
    assert found(parser, f"select * from p where {where}") == {"p": {expected}}


def test_a_list_is_pruned_by_up_to_a_limit(parser):
    def listed(count: int) -> str:
        return f"select * from p where n in ({', '.join(str(one) for one in range(count))})"

    (constraint,) = found(parser, listed(CONSTANTS_MAX))["p"]
    assert constraint.startswith("n in 0,1,2,")
    assert found(parser, listed(CONSTANTS_MAX + 1)) == {}


@pytest.mark.parametrize(
    "where",
    [
        "ts >= '2024-06-01' or n = 1",
        "not (ts >= '2024-06-01')",
        "not ts between '2024-06-01' and '2024-06-02'",
        "ts <> '2024-06-01'",
        "ts not in ('2024-06-01')",
        "ts is distinct from '2024-06-01'",
        "ts is null",
        "coalesce(ts, now()) > '2024-06-01'",
        "ts + interval 1 day > '2024-06-01'",
        "date_trunc('day', ts) >= '2024-06-01'",
        "cast(ts as date) = '2024-06-01'",
        "case when true then ts >= '2024-06-01' end",
        "ts > (select timestamp '2024-06-01')",
        "ts > all (select timestamp '2024-06-01')",
        "n > x",
        "n > n",
        "n > random()",
        "n > cast(hash('x') as bigint)",
        "n > null",
        "n = any ([1, 2])",
        "n in (1, null)",
        "n in (select 1)",
        "n > '3'",
        "n = true",
        "n > 1e300",
        "n > 1e17",
        "n > 100000000::float",
        "n > 'nan'::double",
        "symbol > 'a' collate nocase",
        "symbol collate nocase = 'a'",
        "symbol = lower('A')",
        "symbol = 'A' || 'B'",
        "symbol like 'A%'",
        "lower(symbol) = 'a'",
        "x > 1",
        "day > date '2024-06-01'",
        "ts >= 'infinity'",
        "tags[1] = 'a'",
        "(ts, n) > (timestamp '2024-06-01', 1)",
        # The text takes the type of its neighbour, not of the column: its zone counts.
        "ts between '2024-06-01 00:00:00+02' and timestamptz '2024-06-03'",
        "ts in ('2024-06-01 00:00:00+02', now())",
        "current_timestamp > ts or true",
        "list_contains([1, 2], n)",
        "columns(*) > 1",
    ],
)
def test_a_condition_that_bounds_nothing_surely_is_left_alone(parser, where):
    assert found(parser, f"select * from p where {where}") == {}


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select * from p where ts > '2024-06-01' and (n = 1 and symbol = 'A')", 3),
        ("select * from p where ts > '2024-06-01' and (n = 1 or symbol = 'A')", 1),
        ("select * from p where ts > '2024-06-01' and random() > 0.5", 1),
    ],
)
def test_conjuncts_are_taken_apart_and_nothing_else(parser, sql, expected):
    assert len(found(parser, sql)["p"]) == expected


JOINS = [
    # Inner joins: WHERE and ON go to both sides.
    (
        "select * from p join q on p.ts = q.ts where p.n = 1 and q.v = 2",
        {"p": {"n >= 1 <= 1"}, "q": {"v >= 2 <= 2"}},
    ),
    (
        "select * from p join q on p.ts = q.ts and p.n = 1 and v = 2",
        {"p": {"n >= 1 <= 1"}, "q": {"v >= 2 <= 2"}},
    ),
    ("select * from p a, p b where a.n = 1", {"a": {"n >= 1 <= 1"}}),
    (  # `n` alone is ambiguous; the other conditions count
        "select * from p a join p b on a.n = 1 and b.n = 2 where n = 3",
        {"a": {"n >= 1 <= 1"}, "b": {"n >= 2 <= 2"}},
    ),
    ("select * from p, q where ts > '2024-06-01'", {}),
    ("select * from p, q where v = 1 and n = 2", {"p": {"n >= 2 <= 2"}, "q": {"v >= 1 <= 1"}}),
    # Outer joins: WHERE is never true of null, so it may go below; ON does not limit the kept rows.
    (
        "select * from p left join q on p.ts = q.ts where q.v = 2 and p.n = 1",
        {"p": {"n >= 1 <= 1"}, "q": {"v >= 2 <= 2"}},
    ),
    ("select * from p right join q on p.ts = q.ts where p.n = 1", {"p": {"n >= 1 <= 1"}}),
    ("select * from p full join q on p.ts = q.ts where p.n = 1", {"p": {"n >= 1 <= 1"}}),
    ("select * from p left join q on p.ts = q.ts and p.n = 1 and q.v = 2", {}),
    ("select * from p right join q on p.ts = q.ts and p.n = 1 and q.v = 2", {}),
    ("select * from p full join q on p.ts = q.ts and p.n = 1", {}),
    (
        "select * from p left join q on p.ts = q.ts join w on w.k = 1 and q.v = 2",
        {"q": {"v >= 2 <= 2"}, "w": {"k >= 1 <= 1"}},
    ),
    # A table hidden by a semi or anti join has no constraints, and owns no name.
    ("select * from p semi join q on p.ts = q.ts and q.v = 2 where n = 1", {"p": {"n >= 1 <= 1"}}),
    ("select * from p anti join q on p.ts = q.ts and q.v = 2 where n = 1", {"p": {"n >= 1 <= 1"}}),
    ("select * from p anti join q on p.ts = q.ts where q.v = 2", {}),
    (
        "select * from p anti join q using (ts) where ts > '2024-06-01'",
        {"p": {"ts > 2024-06-01"}},
    ),
    # Another row would be nearest, or another row would have the same position.
    ("select * from p asof join q on p.ts >= q.ts where q.v = 2", {}),
    ("select * from p asof join q on p.ts >= q.ts where q.ts > '2024-06-01'", {}),
    ("select * from p asof join q on p.ts >= q.ts where p.n = 1", {"p": {"n >= 1 <= 1"}}),
    ("select * from p asof join q on p.ts >= q.ts and p.n = 1", {}),
    ("select * from p asof left join q using (ts) where p.n = 1", {"p": {"n >= 1 <= 1"}}),
    ("select * from p positional join q where p.n = 1 and q.v = 2", {}),
    ("select * from (p positional join q) join w on true where p.n = 1", {}),
    ("select * from p tablesample 10 rows where n = 1", {}),
    ("select * from p where n = 1 using sample 10 rows", {}),
    ("select * from p join q tablesample 5% on true where n = 1 and v = 1", {"p": {"n >= 1 <= 1"}}),
    # USING makes one column of two.
    (
        "select * from p join q using (ts) where ts > '2024-06-01'",
        {"p": {"ts > 2024-06-01"}, "q": {"ts > 2024-06-01"}},
    ),
    (
        "select * from p full join q using (ts, symbol) where symbol = 'A'",
        {"p": {"Symbol >= A <= A"}, "q": {"Symbol >= A <= A"}},
    ),
    (
        "select * from p a join p b using (ts) join p c using (ts) where ts > '2024-06-01'",
        {name: {"ts > 2024-06-01"} for name in "abc"},
    ),
    ("select * from p a join p b using (n) join p c using (ts) where ts > '2024-06-01'", {}),
    ("select * from p join w using (ts) where ts > '2024-06-01'", {}),
    ("select * from p natural join q where ts > '2024-06-01'", {}),
    ("select * from p natural join q where p.ts > '2024-06-01'", {"p": {"ts > 2024-06-01"}}),
    ("select * from p natural join q where n = 1", {"p": {"n >= 1 <= 1"}}),
    ("select * from p join (select ts from q) s using (ts) where ts > '2024-06-01'", {}),
    # A name that only one can own, or else the engine calls it ambiguous.
    ("select * from p, (select 1 as a) s where n = 1", {"p": {"n >= 1 <= 1"}}),
    ("select * from p, unnest([1]) as u(a) where n = 1", {"p": {"n >= 1 <= 1"}}),
    ("select * from p, lateral (select p.n + 1 as m) s where n = 1", {"p": {"n >= 1 <= 1"}}),
    ("select * from p as r(ts, symbol) where ts > '2024-06-01'", {}),
    ("select * from p as r(n, ts) where r.n = 1", {}),
    ("select * from p where q.n = 1", {}),
    ("select * from p where p.n.m = 1", {}),
]


@pytest.mark.parametrize(("sql", "expected"), JOINS)
def test_joins_let_through_what_they_may(parser, sql, expected):
    assert found(parser, sql) == expected


SCOPES = [
    # A common table expression takes the name of a table.
    ("with p as (select 1 as n) select * from p where n = 1", {}),
    ("with p as (select * from p) select * from p where n = 1", {}),
    ("with p as (select * from p where n = 1) select * from p", {}),
    ("with s as (select * from p where n = 1) select * from s", {"p": {"n >= 1 <= 1"}}),
    ("with s as (select * from p) select * from s where n = 1", {}),
    (
        "with recursive s as (select n from p where n = 1 union all select n from s) from s",
        {"p": {"n >= 1 <= 1"}},
    ),
    # Subqueries have names of their own; an outer name is not theirs.
    ("select * from (select * from p where n = 1) where n = 2", {"p": {"n >= 1 <= 1"}}),
    (
        "select * from p where exists (select 1 from q where n = 1 and v = 2)",
        {"q": {"v >= 2 <= 2"}},
    ),
    ("select * from p where exists (select 1 from q where p.n = 1)", {}),
    ("select * from p where n in (select v from q where v = 2)", {"q": {"v >= 2 <= 2"}}),
    ("select * from p p where exists (select 1 from q p where p.v = 1)", {"p": {"v >= 1 <= 1"}}),
    # Set operations: each half separately.
    (
        "select n from p a where n = 1 union all select n from p b where n = 2 union select 3",
        {"a": {"n >= 1 <= 1"}, "b": {"n >= 2 <= 2"}},
    ),
    ("(select n from p) union all (select n from p a where a.n = 2)", {"a": {"n >= 2 <= 2"}}),
    # Names that are aliases in the SELECT list.
    ("select ts + interval 1 day as ts from p where ts > '2024-06-01'", {}),
    ("select x as n from p where n = 1", {}),
    ("select n as n, ts as t from p where n = 1", {"p": {"n >= 1 <= 1"}}),
    ("select x as n from p where p.n = 1", {"p": {"n >= 1 <= 1"}}),
    # Other clauses than WHERE.
    ("select n, count(*) from p group by all having n = 1", {}),
    ("select n from p qualify n = 1", {}),
    ("select n, row_number() over () from p where n = 1", {"p": {"n >= 1 <= 1"}}),
    ("select count(*) filter (where n = 1) from p", {}),
    ("select n = 1 from p order by n = 1", {}),
    ("select * from p pivot (sum(x) for n in (1, 2)) where symbol = 'A'", {}),
    ("describe select * from p where n = 1", {"p": {"n >= 1 <= 1"}}),
    # Names of the clock, only where no column can have them.
    ("select * from p, (select 1 as current_timestamp) where ts > current_timestamp", {}),
    ("select * from (select * from p where ts > current_timestamp)", {}),
    # A table without a shape is not pruned, and may own any name.
    ("select * from file where n = 1", {}),
]


@pytest.mark.parametrize(("sql", "expected"), SCOPES)
def test_a_name_is_looked_up_in_its_own_scope(parser, sql, expected):
    assert found(parser, sql) == expected


def test_the_clock_in_words_is_understood_where_no_column_can_be_meant(parser):
    answer = found(parser, "select * from p where ts < current_timestamp")
    assert len(answer["p"]) == 1


@pytest.mark.parametrize(
    ("where", "value", "expected"),
    [
        ("ts >= $1", datetime(2024, 6, 1), "ts >= 2024-06-01"),
        ("ts >= $1", datetime(2024, 6, 1, tzinfo=UTC), "ts >= 2024-06-01"),
        (
            "ts >= $1",
            datetime(2024, 6, 1, 2, tzinfo=timezone(timedelta(hours=2))),
            "ts >= 2024-06-01",
        ),
        ("ts >= $1", date(2024, 6, 1), "ts >= 2024-06-01"),
        ("ts >= $1", "2024-06-01", "ts >= 2024-06-01"),
        ("ts >= $1::timestamp + interval 1 day", "2024-05-31", "ts >= 2024-06-01"),
        ("n >= $1", 3, "n >= 3"),
        ("n >= $1", 2.5, "n >= 1"),
        ("n >= $1", Decimal("2.5"), "n >= 1"),
        ("symbol = $1", "A", "Symbol >= A <= A"),
        ("n in ($1, 7)", 3, "n in 3,7"),
    ],
)
def test_a_parameter_is_as_good_as_a_literal(parser, where, value, expected):
    assert found(parser, f"select * from p where {where}", {"1": value}) == {"p": {expected}}


@pytest.mark.parametrize("value", [None, True, "x", b"x", [1], {"a": 1}, float("nan")])
def test_a_parameter_of_a_strange_type_bounds_nothing(parser, value):
    assert found(parser, "select * from p where n > $1", {"1": value}) == {}


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("tz >= '2024-06-01 02:00:00+02'", "tz >= 2024-06-01"),
        ("tz >= '2024-06-01'", "tz >= 2024-06-01"),
        ("tz >= timestamp '2024-06-01'", "tz >= 2024-06-01"),
        ("tn > '2024-06-01 00:00:00.000000001'", "tn > 2024-06-01T00:00:00.000000001Z"),
        ("tn > timestamp '2024-06-01'", "tn > 2024-06-01"),
    ],
)
def test_zones_and_nanoseconds_count(parser, where, expected):
    assert found(parser, f"select * from z where {where}") == {"z": {expected}}


def test_the_clock_is_read_in_the_transaction_of_the_query(parser):
    cursor = parser.cursor()
    cursor.execute("BEGIN")
    ((now,),) = cursor.execute("select now()").fetchall()
    answer = found(cursor, "select * from p where ts < now() and ts > now() - interval 1 day")
    day_before = written_at(now - timedelta(days=1))
    assert answer == {"p": {f"ts < {written_at(now)}", f"ts > {day_before}"}}
    cursor.close()


def written_at(moment: datetime) -> str:
    return format_instant(int(moment.timestamp()) * 10**9 + moment.microsecond * 1000)


def test_values_are_kept_with_the_text_only_when_nothing_can_change_them(parser):
    statement = admit(parser, "select * from p where n > $1 and ts > '2024-06-01'")
    shapes, cache = [SHAPES["p"]], ConditionCache()
    first = find_constraints(parser, statement, shapes, {"1": 1}, cache)
    second = find_constraints(parser, statement, shapes, {"1": 2}, cache)
    assert {one.low for one in first[0]} != {one.low for one in second[0]}


def test_an_error_in_a_constant_leaves_the_transaction_whole(cursor):
    cursor.execute("BEGIN")
    assert found(cursor, "select * from p where ts > now() - date_trunc(1, 2, 3)") == {}
    assert cursor.execute("select 1").fetchall() == [(1,)]
