"""Values go into the engine and come out of it exactly, or are refused by name."""

from datetime import UTC, datetime, time, timedelta
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from thermocline import TimeSeriesTable
from thermocline.cold.care.pin import list_pinned_versions
from thermocline.errors import Invalid, Unsupported
from thermocline.query.session import Session

NS = 1_717_200_000_123_456_789
WIDE = Decimal("12345678901234567890123456789012345678901")


@pytest.fixture
def table(tmp_path):
    made = TimeSeriesTable.create(tmp_path / "t", time_column="ts", bucket="1h")
    made.append(
        pa.table(
            {
                "ts": pa.array([NS, NS + 1], pa.timestamp("ns")),
                "x": pa.array([1, 2]),
                "wide": pa.array([WIDE, WIDE + 1], pa.decimal256(50, 0)),
                "narrow": pa.array([Decimal("1.1"), Decimal("1.2")], pa.decimal256(38, 10)),
            }
        )
    )
    return made


@pytest.fixture
def session(table):
    with Session() as made:
        made.register_tstable("t", table)
        yield made


@pytest.mark.parametrize(
    "value",
    [
        *(0, 2**63, 2**64, 10**38 - 1, -(10**38) + 1, True, None, "a\0b", b"a\0b", -0.0),
        *(Decimal("1" * 38), Decimal("0." + "1" * 38), Decimal("1E+37")),
        *(datetime(2024, 6, 1, 1, 2, 3, 456789), time(1, 2, 3, 456789)),
        *([1, 2], [1, None], {"a": [2**63]}, datetime(2024, 6, 1, tzinfo=UTC)),
        *([Decimal("0.1"), 2**60, Decimal("2.25")], [Decimal("1" * 30), Decimal("0." + "1" * 8)]),
        *([[1], [2.5]], [{"a": 1}, {"a": None}], Decimal("1E-37"), Decimal("0.12")),
        [617017979975966324066, Decimal("99153467962763215967566.56"), Decimal("6.869931353543")],
    ],
)
def test_a_parameter_comes_back_as_it_went_in(session, value):
    assert session.sql("select $1 as x", [value]).column("x").to_pylist() == [value]


@pytest.mark.parametrize(
    "value",
    [
        *(2**127, 2**128, -(2**127), 10**38, Decimal("1" * 39), Decimal("1E-40")),
        *(time(1, tzinfo=UTC), np.timedelta64(1, "ns"), [1, "a"], [2**60, 0.5], {1}, 1j),
        *(object(), [10**40], {"a": Decimal("1" * 39)}, Decimal("1E-38")),
        *([Decimal("1" * 37), Decimal("0.11")], [[1], ["a"]], [{"a": 1}, {"a": "x"}]),
        *([[2**60], [0.5]], [[Decimal("1" * 37)], [Decimal("0.11")]], np.timedelta64(1, "M")),
        *([1, [1]], pd.Series([1, "a"]), np.longdouble(0.5)),
    ],
)
def test_a_parameter_that_would_change_is_refused_by_name(session, value):
    with pytest.raises(Invalid) as caught:
        session.sql("select $1 as x", [value])
    assert caught.value.facts["parameter"] == "1"


def test_nanoseconds_of_a_parameter_are_compared(session):
    for made in (np.datetime64(NS, "ns"), pytest.importorskip("pandas").Timestamp(NS)):
        assert session.sql("select x from t where ts = $1", [made]).num_rows == 1
        assert session.sql("select x from t where ts > $1", [made])["x"].to_pylist() == [2]
        assert session.sql("select x from t where ts < $1", [made]).num_rows == 0


def test_a_decimal_past_the_engine_is_refused_and_other_columns_are_not(table, session):
    for text in ("select wide from t", "select * from t", "select max(wide) from t"):
        with pytest.raises(Unsupported) as caught:
            session.sql(text)
        assert caught.value.facts["column"] == "wide"
    assert session.sql("select x from t where narrow = 1.1")["x"].to_pylist() == [1]
    assert session.sql("select count(*) as n from t")["n"].to_pylist() == [2]
    with pytest.raises(Unsupported):
        table.delete(f"wide = {WIDE}")
    assert table.to_arrow()["wide"].to_pylist() == [WIDE, WIDE + 1]
    table.delete("narrow = 1.1")
    assert table.to_arrow()["x"].to_pylist() == [2]


@pytest.mark.parametrize(
    "number", ["2." + "0" * 38 + "1", "-2." + "0" * 38 + "1", "1" * 39, "2.0" + "0" * 40]
)
def test_a_number_that_would_be_compared_as_a_double_deletes_nothing(table, number):
    with pytest.raises(Invalid) as caught:
        table.delete(f"x = {number}")
    assert caught.value.facts["digits_max"] == 38
    assert table.to_arrow().num_rows == 2
    table.delete("x = 2." + "0" * 18)
    assert table.to_arrow()["x"].to_pylist() == [1]


@pytest.mark.parametrize(
    "text",
    [
        *("select x from t where narrow = {}", "select x from t where x < {}", "select {}"),
        "select x, (select max(narrow) from t where narrow > {}) from t",
        "with a as (select x from t where narrow in (1, {})) select x from a",
        "select a.x from t a join t b on a.narrow = b.narrow + {}",
    ],
)
def test_a_number_of_sql_that_would_be_a_double_is_refused(session, text):
    with pytest.raises(Invalid) as caught:
        session.sql(text.format("1.1" + "0" * 37 + "1"))
    assert caught.value.facts["digits_max"] == 38
    session.sql(text.format("1.1" + "0" * 8 + "1"))


def test_a_number_of_sql_that_is_exact_or_says_that_it_is_a_double_is_taken(session):
    assert session.sql(f"select {2**127 - 1} as x")["x"].to_pylist() == [2**127 - 1]
    assert session.sql("select 1e40 as x, '" + "1" * 50 + "' as y")["x"].to_pylist() == [1e40]


@pytest.mark.parametrize(
    "where",
    [
        *("x = '1.4'", "'0.6' <= x", "x in ('1.4')", "x not in ('2', '1.4')", "not x = '1.4'"),
        *("x between '0.6' and 2", "x is distinct from '1.4'", "abs(x) = ' 1.4 '", "x = '14e-1'"),
        *("narrow = '1.10000000001'", "narrow > '1.09999999999' or x = 7"),
        "case x when '1.4' then true else false end",
        "ts = '2024-06-01T00:00:00.1234567891'",
        "cast(ts as timestamp) = '2024-06-01 00:00:00.1234561'",
        "cast(ts as date) = '2024-06-01 00:00:01'",
        "cast(ts as time) = '00:00:00.1234561'",
        *("ts = '2024-06-01 02:00:00.123456789+02:00'", "ts < '2024-06-01T00:00:01-0500'"),
        *("ts > '2024-06-01 00:00 Europe/Berlin'", "cast(ts as date) = '2024-06-01 00:00+01'"),
    ],
)
def test_a_text_that_would_be_rounded_to_a_value_that_rows_have_deletes_nothing(table, where):
    with pytest.raises(Invalid) as caught:
        table.delete(where)
    assert caught.value.facts["text"] in where
    with pytest.raises(Invalid):
        table.scan(["x"], where)
    assert table.to_arrow().num_rows == 2


@pytest.mark.parametrize(
    "where",
    [
        *("x = '1'", "x = '1.0'", "x = '1e0'", "narrow = '1.1'", "narrow = '1.100000000000'"),
        "ts = '2024-06-01T00:00:00.123456789'",
        "ts = '2024-06-01T00:00:00.12345678900'",
        *("ts = '2024-06-01T00:00:00.123456789Z'", "ts = '2024-06-01 00:00:00.123456789+00:00'"),
        "cast(ts as date) = '2024-06-01 00:00:00' and x = 1",
        "cast(x as double) < '1.4'",
        "cast(x as varchar) < '1.4'",
    ],
)
def test_a_text_that_is_a_value_of_the_column_finds_it(table, where):
    assert table.scan(["x"], where).read_all()["x"].to_pylist() == [1]


NOON = "2024-06-01 12:00:00"
CHANGED_BY_THE_ENGINE = [
    *(("x", "1.4"), ("x", "9007199254740992.9"), ("narrow", "1.10000000001")),
    *(("ts", f"{NOON}.1234567891"), ("zoned", f"{NOON}.1234561Z"), ("naive", f"{NOON}.1234561")),
    *(("naive", f"{NOON}+02:00"), ("naive", f"{NOON}-0500"), ("naive", f"{NOON} Europe/Berlin")),
    *(("ts", f"{NOON}.1+02"), ("day", NOON), ("day", "2024-06-01 00:00+01")),
]


@pytest.fixture
def times(session, tmp_path):
    """A second table of the session, with times of several kinds."""
    made = TimeSeriesTable.create(tmp_path / "times", time_column="zoned", bucket="1h")
    noon = [datetime(2024, 6, 1, 12)]
    made.append(
        pa.table(
            {
                "zoned": pa.array(noon, pa.timestamp("us", "UTC")),
                "naive": pa.array(noon, pa.timestamp("us")),
                "day": pa.array(noon, pa.date32()),
                "note": pa.array(["2024-06-01 12:00:00+02:00"]),
            }
        )
    )
    session.register_tstable("times", made)
    return session


@pytest.mark.parametrize(("column", "text"), CHANGED_BY_THE_ENGINE)
@pytest.mark.parametrize(
    "condition",
    [
        *("{c} = {t}", "{t} < q.{c}", "{c} in ({t}, {t})", "{c} between {t} and {t}"),
        *("not {c} <> {t}", "exists (select 1 from {source} as i where i.{c} = {t})"),
    ],
)
def test_a_query_with_a_text_that_the_engine_would_change_is_refused(
    times, column, text, condition
):
    source = "t" if column in ("x", "narrow", "ts") else "times"
    for written, params in ((f"'{text}'", None), ("$p", {"p": text})):
        where = condition.format(c=column, t=written, source=source)
        with pytest.raises(Invalid) as caught:
            times.sql(f"select count(*) from {source} as q where {where}", params)
        assert caught.value.facts["text"] == text
        assert caught.value.hint


@pytest.mark.parametrize(
    ("query", "params", "count"),
    [
        ("times where naive = $1", ["2024-06-01T12:00:00Z"], 1),
        ("times where naive = $1", ["2024-06-01 12:00:00.000000+00:00"], 1),
        ("times where zoned = $1", ["2024-06-01T14:00:00.000000000+02:00"], 1),
        ("times where note = $1", ["2024-06-01 12:00:00+02:00"], 1),
        ("times where note = '2024-06-01 12:00:00+02:00'", None, 1),
        ("(select note as naive from times) where naive = '2024-06-01 12:00:00+02:00'", None, 1),
        ("t where x < $1", ["2"], 1),
        ("t where narrow = '1.10'", None, 1),
    ],
)
def test_a_query_with_a_text_that_the_engine_keeps_is_answered(times, query, params, count):
    (found,) = times.sql(f"select count(*) as n from {query}", params).to_pylist()
    assert found["n"] == count


def test_a_text_is_checked_again_when_a_query_is_repeated_with_another(times):
    query = "select count(*) as n from times where naive = $1"
    for _ in range(2):
        assert times.sql(query, ["2024-06-01 12:00:00"]).to_pylist() == [{"n": 1}]
        with pytest.raises(Invalid, match="zone"):
            times.sql(query, ["2024-06-01 14:00:00+02:00"])


@pytest.mark.parametrize("way", ["close", "with", "drop"])
@pytest.mark.parametrize("door", ["scan", "sql"])
def test_a_reader_that_is_closed_or_let_go_has_released_its_pin(table, session, way, door):
    reader = table.scan() if door == "scan" else session.sql_reader("select x from t")
    assert list_pinned_versions(table.cold)
    if way == "drop":
        del reader
    else:
        if way == "close":
            reader.close()
        else:
            with reader:
                pass
        with pytest.raises(Invalid):
            reader.read_next_batch()
    assert not list_pinned_versions(table.cold)


def test_a_session_that_is_closed_has_closed_its_readers(table):
    with Session() as session:
        session.register_tstable("t", table)
        reader = session.sql_reader("select x from t")
    assert not list_pinned_versions(table.cold)
    with pytest.raises(Invalid):
        reader.read_all()


def test_a_duration_and_its_time_stay_what_they_are(session):
    (found,) = session.sql("select $1 as x", [timedelta(microseconds=1)]).to_pylist()
    assert found["x"].nanoseconds == 1_000


BIG = 2**53


@pytest.fixture
def numbers(tmp_path):
    """A table of numbers that doubles cannot tell apart."""
    made = TimeSeriesTable.create(tmp_path / "numbers", time_column="ts", bucket="1h")
    made.append(
        pa.table(
            {
                "ts": pa.array([NS, NS + 1, NS + 2], pa.timestamp("ns")),
                "i": pa.array([BIG, BIG + 1, 7]),
                "u": pa.array([2**64 - 1, 2**64 - 2, 7], pa.uint64()),
                "d": pa.array([Decimal(BIG), Decimal(BIG) + 1, Decimal(7)], pa.decimal128(38, 0)),
                "f": pa.array([float(BIG), 0.5, 7.0]),
                "n": pa.array([1, 2, 3], pa.int32()),
            }
        )
    )
    return made


@pytest.mark.parametrize(
    "where",
    [
        *("i = 9007199254740992e0", "i >= 1e16", "9.1e15 < i", "i in (1, 1e16)", "u < 1.8e19"),
        *("f = 9007199254740993", "f < 9007199254740993.0", "f between 0 and 9007199254740993"),
    ],
)
def test_a_number_that_the_engine_would_compare_as_another_is_refused(numbers, where):
    with pytest.raises(Invalid, match="compared as a double"):
        numbers.delete(where)
    with Session() as session:
        session.register_tstable("t", numbers)
        with pytest.raises(Invalid, match="compared as a double"):
            session.sql(f"select n from t where {where}")
    assert numbers.to_arrow().num_rows == 3


@pytest.mark.parametrize(
    ("where", "value"),
    [("i = $1", float(BIG)), ("u > $1", 1.8e19), ("f = $1", BIG + 1), ("f < $p", Decimal(BIG + 1))],
)
def test_a_parameter_that_the_engine_would_compare_as_another_is_refused(numbers, where, value):
    with Session() as session:
        session.register_tstable("t", numbers)
        params = {"p": value} if "$p" in where else [value]
        for _ in range(2):
            with pytest.raises(Invalid, match="compared as a double"):
                session.sql(f"select n from t where {where}", params)


@pytest.mark.parametrize(
    "where",
    [
        *("i = f", "f < i", "u = f", "d = f", "d = f * 2", "i = cast(9007199254740992 as double)"),
        *("d = 9007199254740992e0", "d in (7, 1e300)", "i between f and 1", "not (i <> f)"),
    ],
)
def test_a_delete_that_compares_rows_as_doubles_takes_no_row_that_does_not_match(numbers, where):
    with pytest.raises(Invalid, match="compared as a double"):
        numbers.delete(where)
    assert numbers.to_arrow().num_rows == 3


@pytest.mark.parametrize(
    ("where", "left"),
    [
        *(("i = 9007199254740992", [2, 3]), ("u = 18446744073709551615", [2, 3])),
        *(
            ("i > 1e3", [3]),
            ("d > 1e3", [3]),
            ("cast(i as double) < 1e300 and n = 1", [2, 3]),
            ("f = 0.5", [1, 3]),
        ),
        *(("i = f and n = 3", None), ("n > f", [1, 3]), ("f = 9007199254740992", [2, 3])),
        *(("i < 7.5", [1, 2]), ("d = 9007199254740993", [1, 3]), ("n in (1, 2.5e0)", [2, 3])),
    ],
)
def test_a_delete_whose_numbers_are_compared_exactly_is_made(numbers, where, left):
    if left is None:  # of the rows that are compared, one is not exact
        with pytest.raises(Invalid):
            numbers.delete(where)
        return
    numbers.delete(where)
    assert numbers.to_arrow()["n"].to_pylist() == left
