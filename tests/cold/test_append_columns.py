"""Appends: columns that fit or are refused, entities, times, and writers that write once."""

import os
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import thermocline as tc
from fixtures.lake import JUNE_US, closes, files, rows
from thermocline.errors import CoverageOverlapError, Invalid, Overloaded
from thermocline.format.types import plain_type

TS = pa.timestamp("us")


def refused(table, data, **options):
    """Append what must be refused; return the error, after a look that nothing is left."""
    before, version = files(table), table.version()
    with pytest.raises(Invalid) as error:
        table.append(data, **options)
    assert (files(table), table.version()) == (before, version)
    return error.value


# Columns


def test_the_first_append_gives_the_table_its_columns(table):
    table.append(rows([0]))
    assert table.schema().names == ["ts", "symbol", "close"]
    assert table.schema().types == [TS, pa.string(), pa.float64()]
    assert not table.schema().field("ts").nullable


@pytest.mark.parametrize("how", ["append", "append_parquet"])
def test_columns_that_are_missing_read_as_null_and_new_ones_need_leave(table, parquet, how):
    def append(data, **options):
        source = data if how == "append" else parquet(data)
        return getattr(table, how)(source, **options)

    append(rows([0]))
    append(rows([1]).drop(["close"]))
    wider = rows([2]).append_column("note", pa.array(["new"]))
    with pytest.raises(Invalid, match="note: string") as error:
        append(wider)
    assert "evolve=True" in error.value.hint
    assert append(wider, evolve=True) == 4
    found = table.to_arrow().sort_by("ts")
    assert found.column("close").to_pylist() == [0.0, None, 2.0]
    assert found.column("note").to_pylist() == [None, None, "new"]


def test_a_wider_type_widens_the_column_when_it_may(table):
    small = rows([0]).set_column(2, "close", pa.array([7], pa.int16()))
    large = rows([1]).set_column(2, "close", pa.array([2**40], pa.int64()))
    table.append(small)
    assert refused(table, large).facts["columns"] == ["close: int64"]
    table.append(large, evolve=True)
    assert table.schema().field("close").type == pa.int64()
    assert closes(table.cold) == [7, 2**40]


def test_a_renamed_column_keeps_its_values_and_its_old_name_is_free(table, parquet):
    table.append_parquet(parquet(rows([0])))
    table.rename_column("close", "price")
    table.append(rows([1]).rename_columns(["ts", "symbol", "price"]))
    table.add_column("close", pa.string())
    found = table.to_arrow().sort_by("ts")
    assert found.column("price").to_pylist() == [0.0, 1.0]
    assert found.column("close").to_pylist() == [None, None]
    assert table.to_arrow(at=2).column("close").to_pylist() == [0.0]


def test_time_and_entity_columns_can_be_renamed_and_appended_to(table):
    table.append(rows([0]))
    table.rename_column("ts", "time")
    table.rename_column("symbol", "ticker")
    renamed = rows([1], "AMD").rename_columns(["time", "ticker", "close"])
    table.append(renamed)
    assert table.spec().entity_columns == ("ticker",)
    assert table.coverage().column("ticker").to_pylist() == ["AMD", "NVDA"]
    with pytest.raises(CoverageOverlapError):
        table.append(renamed)
    assert table.fsck().is_sound


def test_a_column_of_another_type_is_refused_with_both_types(table):
    table.append(rows([0]))
    error = refused(table, rows([1]).set_column(2, "close", pa.array(["dear"])))
    facts = {"column": "close", "expected": "double", "got": "string"}
    assert {key: error.facts[key] for key in facts} == facts


@pytest.mark.parametrize("column", ["ts", "symbol"])
@pytest.mark.parametrize("is_first", [True, False])
def test_data_without_the_time_or_an_entity_column_is_refused(table, parquet, column, is_first):
    if not is_first:
        table.append(rows([0]))
    data = rows([1]).drop([column])
    assert column in str(refused(table, data))
    with pytest.raises(Invalid, match=column):
        table.append_parquet(parquet(data))


def test_null_times_are_refused_with_their_number(table, parquet):
    data = rows([0, 1, 2]).set_column(0, "ts", pa.array([JUNE_US, None, None], TS))
    assert refused(table, data).facts["rows"] == 2
    before = files(table)
    with pytest.raises(Invalid, match="nulls") as error:
        table.append_parquet(parquet(data))
    assert error.value.facts["rows"] == 2
    assert files(table) == before


@pytest.mark.parametrize("name", ["Close", "CLOSE", "close"])
def test_names_that_differ_only_in_case_or_not_at_all_are_refused(table, parquet, name):
    double = pa.table([*rows([0]).columns, pa.array([1])], names=["ts", "symbol", "close", name])
    assert "same name" in refused(table, double).message
    with pytest.raises(Invalid, match="same name"):
        table.append_parquet(parquet(double))
    table.append(rows([0]))
    assert "same name" in refused(table, double, evolve=True).message


@pytest.mark.parametrize("how", ["append", "append_parquet"])
def test_no_rows_are_no_version(table, parquet, how):
    empty = rows([]) if how == "append" else parquet(rows([]))
    assert getattr(table, how)(empty) == 1
    assert table.to_arrow().num_rows == 0
    table.append(rows([0]))
    assert getattr(table, how)(empty) == 2
    assert files(table) == {path for path in files(table) if "_log/" in path} | {
        *(s.path for s in table.cold.state().segments),
        *(s.coverage_path for s in table.cold.state().segments),
    }


# Entities, times and writers


def test_Q12_an_entity_that_is_not_utf8_is_refused_by_name(table, parquet):
    broken = pa.array([b"NV\xff"], pa.binary()).view(pa.string())
    data = rows([0]).set_column(1, "symbol", broken)
    assert "not UTF-8" in refused(table, data).message
    with pytest.raises(Invalid, match="not UTF-8"):
        table.append_parquet(parquet(data))
    coded = data.set_column(1, "symbol", broken.dictionary_encode())
    assert "not UTF-8" in refused(table, coded).message


@pytest.mark.parametrize("kind", [pa.float64(), pa.binary(), pa.list_(pa.int8())], ids=str)
def test_a_type_that_cannot_name_an_entity_is_refused(table, kind):
    data = rows([0]).set_column(1, "symbol", pa.nulls(1, kind))
    assert "cannot name an entity" in refused(table, data).message


def test_an_entity_column_is_not_widened_to_what_cannot_name_one(table):
    table.append(rows([0]).set_column(1, "symbol", pa.array([5], pa.int16())))
    with pytest.raises(Invalid, match="cannot name an entity"):
        table.widen_column("symbol", pa.float64())
    refused(table, rows([1]).set_column(1, "symbol", pa.array([5.0])), evolve=True)
    table.append(rows([1]).set_column(1, "symbol", pa.array([5], pa.int64())), evolve=True)
    assert table.coverage().column("symbol").to_pylist() == [5]


@pytest.mark.parametrize("count", [253_402_300_800, -62_135_596_801])
@pytest.mark.parametrize("unit", ["s", "us"])
def test_a_time_outside_the_years_1_to_9999_is_refused(table, parquet, count, unit):
    times = pa.array([count * (1 if unit == "s" else 10**6)], pa.timestamp(unit))
    data = rows([0]).set_column(0, "ts", times)
    assert "years 1 to 9999" in refused(table, data).message
    with pytest.raises(Invalid, match="years 1 to 9999"):
        table.append_parquet(parquet(data))


def test_the_first_and_the_last_year_are_kept(table, parquet):
    ends = [-62_135_596_800 * 10**6, 253_402_300_799 * 10**6]
    table.append_parquet(parquet(rows([0, 1]).set_column(0, "ts", pa.array(ends, TS))))
    assert table.to_arrow().column("ts").cast(pa.int64()).to_pylist() == ends
    assert table.fsck().is_sound


@pytest.mark.parametrize("how", ["append", "append_parquet"])
def test_more_entities_than_the_named_limit_are_refused(make, parquet, how):
    table = make(entity_columns="symbol", entities_max=2)
    give = parquet if how == "append_parquet" else (lambda data: data)
    getattr(table, how)(give(rows([0], "A")))
    many = pa.concat_tables([rows([1], "A"), rows([1], "B"), rows([1], "C")])
    for data in (many, many.slice(1)):
        with pytest.raises(Overloaded, match="limit") as error:
            getattr(table, how)(give(data))
        assert error.value.facts == {"entities": 3, "entities_max": 2}
    assert getattr(table, how)(give(many.slice(0, 2))) == 3


def test_a_writers_number_is_written_once_whatever_data_comes_with_it(table):
    assert table.append(rows([0]), txn=("nightly", 7)) == 2
    assert table.append(rows([1]), txn=("nightly", 7)) == 2
    assert table.append(rows([1]), txn=("nightly", 3)) == 2
    assert table.append(rows([1]), txn=("hourly", 3)) == 3
    assert table.append(rows([2]), txn=("nightly", 8)) == 4
    assert closes(table.cold) == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("txn", [("nightly", -1), ("", 1), ("nightly", "1"), "nightly", (1,)])
def test_a_writers_number_that_could_be_lost_is_refused(table, txn):
    # -1 is what a writer never heard of has: taken for written, the rows would be dropped.
    refused(table, rows([0]), txn=txn)


def test_the_source_may_be_a_folder_or_empty_or_missing_and_is_named(table, tmp_path):
    (tmp_path / "empty.parquet").write_bytes(b"")
    os.mkdir(tmp_path / "folder")
    for name in ("empty.parquet", "missing.parquet", "folder"):
        with pytest.raises(Exception, match=name) as error:
            table.append_parquet(tmp_path / name)
        assert error.type.__module__ == "thermocline.errors"
    with pytest.raises(Invalid, match="at least one file"):
        table.append_parquet([])


def _not_null(kind):
    return pa.field("a", kind, nullable=False)


def _as_dictionary(values):
    return pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), values)


@pytest.mark.parametrize(
    "values",
    [
        pa.array([{"a": 1}], pa.struct([_not_null(pa.int64())])),
        pa.array([[{"a": 1}]], pa.list_(pa.struct([_not_null(pa.int64())]))),
        pa.array([[1]], pa.list_(_not_null(pa.int64()))),
        pa.array([[1]], pa.large_list(_not_null(pa.int64()))),
        pa.array([[1, 2]], pa.list_(_not_null(pa.int64()), 2)),
        pa.array([[("k", 1)]], pa.map_(pa.string(), _not_null(pa.int64()))),
        pa.array([{"a": "x"}], pa.struct([("a", pa.dictionary(pa.int8(), pa.string()))])),
        _as_dictionary(pa.array(["x"], pa.string_view())),
        _as_dictionary(pa.array([b"x"], pa.binary_view())),
        _as_dictionary(pa.array([True])),
    ],
    ids=lambda values: str(values.type)[:40],
)
@pytest.mark.parametrize("door", ["append", "append_parquet", "write"])
def test_a_column_of_any_type_takes_rows_without_it_and_can_be_flushed(tmp_path, values, door):
    moment = pa.array([datetime(2024, 6, 1)], pa.timestamp("us"))
    rows = pa.table({"ts": moment, "v": values})
    with tc.connect(tmp_path / "lake") as lake:
        table = lake.create_table("t", time_column="ts", bucket="1h")
        if door == "append_parquet":
            # Parquet has no dictionaries of views; what they view is the same there.
            is_dictionary = pa.types.is_dictionary(values.type)
            cast = pc.cast(values.dictionary, plain_type(values.type)) if is_dictionary else values
            pq.write_table(rows.set_column(1, "v", cast), tmp_path / "rows.parquet")
            table.append_parquet(tmp_path / "rows.parquet")
        else:
            getattr(table, door)(rows)
        table.write([{"ts": datetime(2024, 6, 1)}])
        table.write([{"ts": datetime(2024, 6, 1), "v": None}])
        table.flush()
        table.append(rows.select(["ts"]))
        table.append(rows)
        found = table.to_arrow()["v"].to_pylist()
        assert len(found) == 5
        assert [one for one in found if one is not None] == values.to_pylist() * 2
        assert lake.sql("select v from t").num_rows == 5


@pytest.mark.parametrize(
    "values",
    [
        pa.array([0.5], pa.float16()),
        pa.array([{"a": 1}]),
        pa.array([[1]]),
        pa.array(["x"]).dictionary_encode(),
        pa.nulls(1),
    ],
    ids=lambda values: str(values.type)[:40],
)
@pytest.mark.parametrize("door", ["append", "write", "add_column"])
def test_a_dictionary_whose_values_would_be_lost_is_refused_at_every_door(tmp_path, values, door):
    column = _as_dictionary(values)
    with tc.connect(tmp_path / "lake") as lake:
        table = lake.create_table("t", time_column="ts", bucket="1h")
        moment = pa.array([datetime(2024, 6, 1)], pa.timestamp("us"))
        rows = pa.table({"ts": moment, "v": column})
        given = ("v", column.type) if door == "add_column" else (rows,)
        if door == "add_column":
            table.append(rows.select(["ts"]))
        with pytest.raises(Invalid) as raised:
            getattr(table, door)(*given)
        assert raised.value.facts["column"] == "v"
        table.write([{"ts": datetime(2024, 6, 1)}])
        table.flush()
