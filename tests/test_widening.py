"""Whole numbers that become doubles: only where no value that is kept would change."""

import threading
from datetime import datetime

import pyarrow as pa
import pytest

import thermocline as tc
from fixtures.timing import wait_until
from thermocline.cold.care.fsck import fsck
from thermocline.errors import Invalid

TABLE = {"time_column": "ts", "bucket": "1h", "overlap": "allow"}


@pytest.fixture
def lake(tmp_path):
    with tc.connect(str(tmp_path / "lake")) as lake:
        yield lake


@pytest.fixture
def table(lake):
    table = lake.create_table("t", **TABLE)
    table.write(row(1))
    return table


def row(value, hour=0):
    return {"ts": datetime(2024, 6, 1, hour), "v": value}


def values(lake):
    return lake.sql("select v from t order by v").column("v").to_pylist()


@pytest.mark.parametrize("is_flushed", [True, False])
def test_a_fraction_is_refused_by_a_column_of_whole_numbers(lake, table, is_flushed):
    if is_flushed:
        table.flush()
    with pytest.raises(Invalid) as raised:
        table.write([row(2), row(2.7)])
    assert {**raised.value.facts, "why": ""} == {
        "column": "v",
        "expected": "int64",
        "row": 1,
        "value": "2.7",
        "why": "",
    }
    assert values(lake) == [1]


@pytest.mark.parametrize("is_flushed", [True, False])
@pytest.mark.parametrize("form", ["rows", "arrow"])
def test_F12_a_column_becomes_double_with_evolve_and_every_reader_agrees(
    lake, table, is_flushed, form
):
    if is_flushed:
        table.flush()
    new = [row(2.7, hour=1)]
    table.write(new if form == "rows" else pa.Table.from_pylist(new), evolve=True)
    table.write(row(3, hour=2))
    assert table.schema().field("v").type == pa.float64()
    assert values(lake) == [1.0, 2.7, 3.0]
    assert lake.sql("select count(*) as n from t where v = 1").column("n")[0].as_py() == 1
    assert sorted(table.to_arrow().column("v").to_pylist()) == [1.0, 2.7, 3.0]
    table.flush()
    assert values(lake) == [1.0, 2.7, 3.0]
    table.delete("v > 2.5 and v < 2.8")
    assert sorted(table.to_arrow().column("v").to_pylist()) == [1.0, 3.0]
    assert fsck(table.cold).is_sound
    assert table.to_arrow(at=2).schema.field("v").type == pa.int64()


@pytest.mark.parametrize("how", ["hot", "cold", "deleted"])
def test_F12_a_column_with_a_number_that_would_be_rounded_stays_as_it_is(lake, table, how):
    table.write(row(2**53 + 1))
    if how != "hot":
        table.flush()
    if how == "deleted":
        table.delete("v > 1")
    with pytest.raises(Invalid, match="would be rounded") as raised:
        table.write(row(2.7, hour=2), evolve=True)
    assert (raised.value.facts["column"], raised.value.facts["value"]) == ("v", 2**53 + 1)
    assert table.schema().field("v").type == pa.int64()
    assert values(lake) == ([1] if how == "deleted" else [1, 2**53 + 1])
    table.write(row(5, hour=3))


def test_F12_writes_beside_a_widening_are_kept_exactly_or_refused(lake, table):
    start, kept = threading.Barrier(5), []

    def write(first):
        start.wait(30)
        for step in range(20):
            value = 2**53 + 1 + first * 100 + step if step % 4 == 3 else first * 100 + step
            try:
                table.write(row(value))
                kept.append(value)
            except Invalid:
                assert value > 2**53

    threads = [threading.Thread(target=write, args=(place,)) for place in range(1, 5)]
    for thread in threads:
        thread.start()
    start.wait(30)
    is_widened = True
    try:
        table.write(row(0.5), evolve=True)
        kept.append(0.5)
    except Invalid:
        is_widened = False
    for thread in threads:
        thread.join(60)
    table.flush()
    assert values(lake) == sorted([1, *kept])
    kind = pa.float64() if is_widened else pa.int64()
    assert table.schema().field("v").type == kind


def test_a_change_of_columns_waits_for_writes_and_holds_new_ones_back():
    from thermocline.lake_table import WriteGate

    gate, seen = WriteGate(), []
    gate.enter()

    def change():
        with gate.exclusive():
            seen.append("changed")

    def write():
        gate.enter()
        seen.append("written")
        gate.leave()

    changing = threading.Thread(target=change)
    changing.start()
    wait_until(lambda: gate._is_closed)
    writing = threading.Thread(target=write)
    writing.start()
    assert seen == []
    gate.leave()
    changing.join(30)
    writing.join(30)
    assert seen == ["changed", "written"]


def test_a_narrower_whole_number_is_widened_by_evolve_and_refused_without(lake):
    table = lake.create_table("t", **TABLE)
    table.write(pa.table({"ts": [datetime(2024, 6, 1)], "v": pa.array([1], pa.int8())}))
    with pytest.raises(Invalid, match="does not fit"):
        table.write(row(300))
    table.write(row(300), evolve=True)
    assert values(lake) == [1, 300]


def test_a_column_of_a_table_in_a_folder_is_widened_by_its_values(tmp_path):
    table = tc.TimeSeriesTable.create(tmp_path / "t", time_column="ts", bucket="1h")
    table.append(pa.table({"ts": [datetime(2024, 6, 1)], "v": [1], "w": [2**60]}))
    table.widen_column("v", pa.float64())
    assert table.to_arrow().column("v").to_pylist() == [1.0]
    with pytest.raises(Invalid, match="would be rounded"):
        table.widen_column("w", pa.float64())
    with pytest.raises(Invalid, match="does not hold"):
        table.widen_column("w", pa.float32())
