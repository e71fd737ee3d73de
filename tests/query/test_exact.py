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
