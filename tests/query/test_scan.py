"""A table at a version is exactly its live rows with its columns, for all forms of files."""

import os
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.lake import HOUR_US, JUNE_US, rows
from thermocline.errors import Corruption, Invalid, Unavailable
from thermocline.query.session import Session
from thermocline.query.sql.engine_types import quote_identifier, quote_text
from thermocline.query.sql.scan import file_pattern
from thermocline.table import TimeSeriesTable


def files_of(table) -> list[str]:
    """Return the absolute paths of a table's live files."""
    state = table.cold.state()
    return [f"{table.root()}/{segment.path}" for segment in state.segments]


def times(*hours, kind=None) -> pa.Array:
    """Return hours after June began as a time column."""
    return pa.array([JUNE_US + hour * HOUR_US for hour in hours]).cast(kind or pa.timestamp("us"))


def test_a_renamed_column_is_read_under_its_old_name(session, make_table):
    table = make_table(pa.table({"ts": times(0), "old": [1]}))
    table.rename_column("old", "new")
    table.append(pa.table({"ts": times(1), "new": [2]}))
    session.register_tstable("t", table)
    assert session.sql("select new from t order by ts").to_pydict() == {"new": [1, 2]}


def test_a_name_taken_over_by_another_column_is_not_mixed_up(session, make_table):
    table = make_table(pa.table({"ts": times(0), "a": [1], "b": [2]}))
    table.rename_column("a", "c")
    table.rename_column("b", "a")
    session.register_tstable("t", table)
    assert session.sql("select a, c from t").to_pylist() == [{"a": 2, "c": 1}]


def test_a_column_added_later_is_null_before(session, make_table):
    table = make_table(pa.table({"ts": times(0), "a": [1]}))
    table.add_column("b", pa.timestamp("ns"))
    session.register_tstable("t", table)
    answer = session.sql("select * from t")
    assert answer.to_pylist() == [{"ts": datetime(2024, 6, 1), "a": 1, "b": None}]
    assert answer.schema.field("b").type == pa.timestamp("ns")


def test_a_widened_column_is_wide_even_where_only_narrow_files_are_read(session, make_table):
    table = make_table(pa.table({"ts": times(0), "a": pa.array([1], pa.int32())}))
    table.widen_column("a", pa.int64())
    table.append(pa.table({"ts": times(30), "a": pa.array([2**40])}))
    session.register_tstable("t", table)
    assert session.sql("select sum(a) as s from t").to_pylist() == [{"s": 2**40 + 1}]
    narrow = session.sql("select a from t where ts < '2024-06-01 12:00:00'")
    assert narrow.schema.field("a").type == pa.int64()
    assert narrow.to_pydict() == {"a": [1]}


def test_files_that_store_a_column_in_other_types_read_as_one(session, tmp_path):
    unsigned = pa.array([2**32 - 1], pa.uint32())
    table = TimeSeriesTable.create(tmp_path / "t", time_column="ts", bucket="1h", overlap="allow")
    for version in ("1.0", "2.6"):
        path = tmp_path / f"{version}.parquet"
        pq.write_table(pa.table({"ts": times(0), "u": unsigned}), path, version=version)
        table.append_parquet(path)
    session.register_tstable("t", table)
    # The first writer had no unsigned numbers, so the table's column is wider.
    answer = session.sql("select u from t")
    assert answer.schema.field("u").type == pa.int64()
    assert answer.to_pydict() == {"u": [2**32 - 1] * 2}


def test_deleted_rows_are_gone(session, prices):
    prices.delete("close in (0, 7, 23, 24, 71)")
    left = [float(hour) for hour in range(72) if hour not in (0, 7, 23, 24, 71)]
    assert session.sql("select close from prices order by 1").to_pydict() == {"close": left}
    prices.delete("close < 30")
    assert session.sql("select count(*) as n from prices").to_pylist() == [{"n": 41}]
    assert session.sql("select count(*) as n from prices as of version 4").to_pylist() == [
        {"n": 72}
    ]


def test_deletes_spare_what_lies_past_the_last_whole_byte(session, make_table):
    table = make_table(rows(range(13)), entities=("symbol",))
    table.delete("close = 12")
    session.register_tstable("t", table)
    assert session.sql("select max(close) as m from t").to_pylist() == [{"m": 11.0}]


def test_a_column_that_has_the_row_numbers_name_is_no_obstacle_to_deletes(session, make_table):
    table = make_table(pa.table({"ts": times(0, 1, 2), "File_Row_Number": [7, 8, 9]}))
    table.delete("file_row_number = 8")
    session.register_tstable("t", table)
    answer = session.sql("select file_row_number as f from t order by 1")
    assert answer.to_pydict() == {"f": [7, 9]}


def test_an_empty_table_has_no_rows_and_its_columns(session, tmp_path):
    table = TimeSeriesTable.create(
        tmp_path / "t", time_column="when", bucket="1h", entity_columns=["symbol"]
    )
    session.register_tstable("t", table)
    answer = session.sql("select * from t")
    assert answer.num_rows == 0
    assert answer.schema.names == ["when", "symbol"]
    assert session.sql("select count(*) as n from t where symbol = 'A'").to_pylist() == [{"n": 0}]


def test_a_table_whose_rows_are_all_pruned_keeps_its_types(session, prices):
    answer = session.sql("select * from prices where ts < '1999-01-01'")
    assert answer.num_rows == 0
    assert answer.schema.types == [pa.timestamp("us"), pa.string(), pa.float64()]


def test_a_table_whose_rows_are_all_deleted_is_empty(session, prices):
    prices.delete("true")
    assert session.sql("select * from prices").num_rows == 0


TYPES = {
    "naive": pa.timestamp("us"),
    "zoned": pa.timestamp("us", tz="UTC"),
    "berlin": pa.timestamp("us", tz="Europe/Berlin"),
    "exact": pa.timestamp("ns"),
    "exact zoned": pa.timestamp("ns", tz="UTC"),
}


@pytest.mark.parametrize("kind", list(TYPES))
def test_nanoseconds_and_zones_survive(session, make_table, kind):
    column = pa.array([1_717_200_000_123_456_789], pa.int64()).cast(pa.timestamp("ns"))
    if TYPES[kind].unit == "us":
        column = pa.array([1_717_200_000_123_456], pa.int64()).cast(pa.timestamp("us"))
    column = column.cast(pa.int64()).cast(TYPES[kind])
    table = make_table(pa.table({"ts": times(0), "at": column}))
    session.register_tstable("t", table)
    answer = session.sql('select "at" from t').column(0)
    zone = "UTC" if TYPES[kind].tz else None
    assert answer.type == pa.timestamp(TYPES[kind].unit, tz=zone)
    assert answer.cast(pa.int64()).to_pylist() == column.cast(pa.int64()).to_pylist()


@pytest.mark.parametrize(
    "column",
    [
        pa.array([True]),
        pa.array([1], pa.uint8()),
        pa.array(["x"], pa.large_string()),
        pa.array(["x"], pa.string_view()),
        pa.array(["x"]).dictionary_encode(),
        pa.array([b"\x00x"], pa.binary(2)),
        pa.array([[1, None]], pa.list_(pa.int16())),
        pa.array([[1, 2]], pa.list_(pa.int32(), 2)),
        pa.array([{"a b": 1, "select": [1]}]),
        pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
        pa.array([3], pa.duration("us")),
        pa.array([1.5], pa.float16()),
        pa.array([12345], pa.time64("ns")),
        pa.array([86_400_000], pa.date64()),
    ],
    ids=lambda column: str(column.type),
)
def test_every_type_is_the_same_with_rows_and_without(session, make_table, column):
    table = make_table(pa.table({"ts": times(0), "v": column}))
    table.add_column("late", column.type)
    session.register_tstable("t", table)
    full = session.sql("select * from t")
    none = session.sql("select * from t where ts < '1999-01-01'")
    assert full.num_rows == 1
    assert none.num_rows == 0
    assert none.schema == full.schema
    assert full.schema.field("late").type == full.schema.field("v").type


@settings(max_examples=40)
@given(
    st.lists(
        st.one_of(
            st.sampled_from(
                ["select", "from", "Ts2", "a b", 'q"q', "q'q", "x;--", "NULL", "%s", "$1"]
            ),
            st.text(
                st.characters(exclude_characters="\x00", codec="utf-8"), min_size=1, max_size=9
            ),
        ),
        min_size=1,
        max_size=4,
        unique_by=str.lower,
    )
)
def test_Q14_any_column_name_is_quoted_right(tmp_path_factory, names):
    names = [name for name in names if name.lower() != "ts"]
    columns = {"ts": times(0), **{name: [place] for place, name in enumerate(names)}}
    folder = tmp_path_factory.mktemp("names")
    table = TimeSeriesTable.create(folder / "t", time_column="ts", bucket="1h")
    table.append(pa.table(columns))
    with Session(threads=1) as session:
        session.register_tstable("t", table)
        chosen = ", ".join(quote_identifier(name) for name in ["ts", *names])
        answer = session.sql(f"select {chosen} from t")
    assert answer.column_names[1:] == names
    assert [answer.column(1 + place).to_pylist() for place in range(len(names))] == [
        [place] for place in range(len(names))
    ]


@pytest.mark.parametrize(
    "folder", ["plain", "a b", "it's", 'q"q', "a*b", "c[z]d", "e?f", "year=2024", "ü€😀", "x;--y"]
)
def test_any_folder_name_is_that_folder_and_no_other(session, tmp_path, folder):
    for name, close in ((folder, 1.0), ("azb", 2.0), ("czd", 2.0), ("exf", 2.0)):
        root = tmp_path / name / "t"
        made = TimeSeriesTable.create(
            root, time_column="ts", bucket="1h", entity_columns=["symbol"]
        )
        made.append(rows([0], close=close))
    session.register_tstable("t", tmp_path / folder / "t")
    assert session.sql("select close from t").to_pydict() == {"close": [1.0]}


def test_a_partition_in_the_path_does_not_become_a_column(session, tmp_path):
    root = tmp_path / "symbol=FAKE" / "t"
    table = TimeSeriesTable.create(root, time_column="ts", bucket="1h", entity_columns=["symbol"])
    table.append(rows([0], symbol="REAL"))
    session.register_tstable("t", root)
    assert session.sql("select symbol from t").to_pydict() == {"symbol": ["REAL"]}


def test_a_root_below_a_symbolic_link_is_read(session, tmp_path):
    real = TimeSeriesTable.create(
        tmp_path / "real" / "t", time_column="ts", bucket="1h", entity_columns=["symbol"]
    )
    real.append(rows([0]))
    os.symlink(tmp_path / "real", tmp_path / "link")
    session.register_tstable("t", tmp_path / "link" / "t")
    assert session.sql("select count(*) as n from t").to_pylist() == [{"n": 1}]


def test_a_missing_file_is_named_and_never_a_shorter_answer(session, prices):
    lost = files_of(prices)[1]
    os.unlink(lost)
    for ask in (session.sql, session.sql_reader):
        with pytest.raises(Corruption) as raised:
            ask("select close from prices")
        assert lost.endswith(raised.value.facts["path"])


def test_a_missing_file_that_is_not_needed_is_not_missed(session, prices):
    state = prices.cold.state()
    last = max(state.segments, key=lambda segment: segment.ts_min)
    os.unlink(f"{prices.root()}/{last.path}")
    answer = session.sql("select count(*) as n from prices where ts < '2024-06-02'")
    assert answer.to_pylist() == [{"n": 24}]


def test_a_file_of_another_size_is_named(session, prices):
    with open(files_of(prices)[0], "ab") as file:
        file.write(b"x")
    with pytest.raises(Corruption) as raised:
        session.sql("select close from prices")
    assert raised.value.facts["path"] in files_of(prices)[0]


def test_a_file_of_the_right_size_that_is_no_parquet_is_named(session, prices):
    spoiled = files_of(prices)[0]
    size_bytes = os.path.getsize(spoiled)
    with open(spoiled, "wb") as file:
        file.write(b"\x00" * size_bytes)
    with pytest.raises((Corruption, Unavailable)) as raised:
        session.sql("select * from prices")
    assert spoiled.endswith(raised.value.facts["path"])


def test_names_texts_and_patterns_are_quoted():
    assert quote_identifier('a"b') == '"a""b"'
    assert quote_text("it's") == "'it''s'"
    assert file_pattern("a[1]*?") == "a[[]1][*][?]"


def test_times_in_a_zone_are_compared_as_instants(session, make_table):
    zoned = pa.timestamp("us", tz="UTC")
    table = make_table(pa.table({"ts": times(0, 1, 2, kind=zoned), "a": [0, 1, 2]}))
    session.register_tstable("t", table)
    moment = datetime(2024, 6, 1, 1, tzinfo=UTC)
    assert session.sql("select a from t where ts = $1", [moment]).to_pydict() == {"a": [1]}
    text = "select a from t where ts = '2024-06-01 03:00:00+02'"
    assert session.sql(text).to_pydict() == {"a": [1]}


@pytest.mark.parametrize("name", ["filename", "file_row_number", "file_index", "rowid"])
def test_what_the_engine_knows_of_files_is_no_column(session, prices, name):
    session.register_tstable("p", prices)
    for sql in (f"select {name} from p", f"select close from p where {name} is not null"):
        with pytest.raises(Invalid):
            session.sql(sql)


def test_a_query_finds_nothing_that_an_earlier_one_left_on_the_cursor(session, prices):
    session.register_tstable("p", prices)
    count = "select count(*) as n from p"
    assert session.sql(count).to_pylist() == [{"n": 72}]
    prices.delete("ts < timestamp '2024-06-02'")
    leaving = ["select * from gaps('p')", "select now() from p", "select * from p tablesample 100%"]
    for sql in (*leaving, count, *leaving, "select ts from p"):
        session.sql(sql)
        assert session.sql(count).to_pylist() == [{"n": 48}]
    with pytest.raises(Invalid):
        session.sql("select close / 0 || nothing from p")
    prices.delete("ts < timestamp '2024-06-03'")
    assert session.sql(count).to_pylist() == [{"n": 24}]


@pytest.mark.parametrize("text", ["limit 2 offset 1", "order by a desc limit 2", "limit 3"])
def test_a_file_with_deleted_rows_takes_a_limit(session, make_table, text):
    table = make_table(pa.table({"ts": times(0, 1, 2, 3, 4), "a": [0, 1, 2, 3, 4]}))
    table.delete("a = 3")
    session.register_tstable("t", table)
    found = session.sql(f"select *, a + 1 as b from t {text}").to_pylist()
    assert len(found) == int(text.partition("limit ")[2][0])
    assert all(row["a"] != 3 and row["b"] == row["a"] + 1 for row in found)
    assert "order" not in text or [row["a"] for row in found] == [4, 2]
