"""The table as its users meet it: making, opening, reading, showing, and clear refusals."""

import gc
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import thermocline as tc
from fixtures.lake import HOUR_US, JUNE_US, rows
from thermocline.cold.segment.parquet import ROWS_PER_BATCH


def made(tmp_path, **options):
    options = {"time_column": "ts", "bucket": "1h", **options}
    return tc.TimeSeriesTable.create(tmp_path / "made", **options)


@pytest.fixture
def prices(table):
    """Four hours of NVDA and two of AMD, in three versions."""
    table.append(rows([0, 1, 2, 3]))
    table.append(rows([2, 3], "AMD", close=100))
    return table


def found(table, **which):
    return sorted(table.to_arrow(columns=["close"], **which).column("close").to_pylist())


# The package


def test_the_package_has_at_most_a_dozen_names_and_all_of_them_load():
    assert sorted(tc.__all__) == [
        *("Conflict", "Corruption", "CoverageOverlapError", "Invalid", "NotFound", "Overloaded"),
        *("Session", "ThermoclineError", "TimeSeriesTable", "Unavailable", "Unsupported"),
        "connect",
    ]
    for name in tc.__all__:
        assert getattr(tc, name).__name__ == name
        assert name in dir(tc)
    with pytest.raises(AttributeError, match="Telescope"):
        tc.Telescope()


def test_importing_the_package_loads_no_library():
    heavy = "'pyarrow', 'duckdb', 'numpy', 'typer', 'rich', 'pandas', 'polars', 'obstore'"
    code = f"import sys, thermocline; print([m for m in ({heavy}) if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", tc.__all__)
def test_every_error_survives_pickling(name):
    import pickle

    kind = getattr(tc, name)
    if isinstance(kind, type) and issubclass(kind, tc.ThermoclineError):
        error = pickle.loads(pickle.dumps(kind("it broke", hint="mend it", path="x")))
        assert (str(error), error.facts) == ("it broke (path=x)\nhint: mend it", {"path": "x"})


# Making and opening


def test_a_table_that_was_made_can_be_opened_from_elsewhere(tmp_path):
    table = made(
        tmp_path, entity_columns=["symbol"], overlap="allow", retention="90d", entities_max=5
    )
    assert table.version() == 1
    again = tc.TimeSeriesTable.open(str(tmp_path / "made"))
    spec = again.spec()
    assert (spec.time_column, str(spec.bucket), spec.entity_columns) == ("ts", "1h", ("symbol",))
    assert (spec.overlap, spec.retention, spec.entities_max) == ("allow", "90d", 5)
    assert spec.table_id == table.spec().table_id != ""


def test_one_entity_column_may_be_named_without_a_list(tmp_path):
    assert made(tmp_path, entity_columns="symbol").spec().entity_columns == ("symbol",)


def test_a_table_is_not_made_twice(table):
    table.append(rows([0]))
    with pytest.raises(tc.Conflict, match="already"):
        tc.TimeSeriesTable.create(table.root(), time_column="ts", bucket="1h")
    assert found(table) == [0]


def test_where_there_is_no_table_none_is_opened_and_nothing_is_left(tmp_path):
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(tc.NotFound, match="no table here"):
            tc.TimeSeriesTable.open(place)
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(tc.NotFound):
        tc.TimeSeriesTable.open(tmp_path / "file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    "options",
    [
        {"bucket": "0s"},
        {"bucket": "2 fortnights"},
        {"bucket": "1 fortnight"},
        {"bucket": ""},
        {"overlap": "merge"},
        {"timezone": "Mars/Phobos"},
        {"timezone": "America"},
        {"timezone": ""},
        {"retention": "soon"},
        {"retention": "-5d"},
        {"entity_columns": ["ts"]},
        {"entity_columns": ["a", "a"]},
        {"entity_columns": [""]},
        {"time_column": ""},
        {"entities_max": 0},
        {"storage_options": {"key": "x"}},
    ],
    ids=str,
)
def test_what_no_table_can_be_is_refused_and_nothing_is_left(tmp_path, options):
    with pytest.raises(tc.Invalid) as error:
        made(tmp_path, **options)
    assert error.value.hint
    assert list(tmp_path.iterdir()) == []


def test_settings_change_as_versions_and_bad_ones_do_not(prices):
    assert prices.set_overlap("allow") == 4
    assert prices.set_overlap("allow") == 4
    assert prices.set_retention("30d") == 5
    with pytest.raises(tc.Invalid):
        prices.set_overlap("merge")
    with pytest.raises(tc.Invalid):
        prices.set_retention("soon")
    assert (prices.spec().overlap, prices.spec().retention, prices.version()) == ("allow", "30d", 5)


# Reading


def test_a_scan_gives_the_tables_exact_types_in_the_order_asked_for(prices):
    reader = prices.scan()
    assert reader.schema == prices.schema()
    assert prices.scan(["close", "ts"]).schema.names == ["close", "ts"]
    assert prices.to_arrow(columns=[]).num_rows == 6
    assert prices.to_arrow(columns=[], where="close = 100").num_rows == 2
    with pytest.raises(tc.NotFound, match="volume"):
        prices.scan(["volume"])


@pytest.mark.parametrize(
    ("which", "wanted"),
    [
        ({"where": "close > 1"}, [2, 3, 100, 100]),
        ({"where": "symbol = 'AMD'"}, [100, 100]),
        ({"where": "ts >= '2024-06-01 03:00:00'"}, [3, 100]),
        ({"where": "symbol like 'N%' and close in (0, 2)"}, [0, 2]),
        ({"where": "close is null"}, []),
        ({"where": "true"}, [0, 1, 2, 3, 100, 100]),
        ({"start": "2024-06-01T03:00Z"}, [3, 100]),
        ({"end": "2024-06-01T01:00Z"}, [0]),
        ({"start": "2024-06-01T01:00Z", "end": "2024-06-01T03:00Z"}, [1, 2, 100]),
        ({"start": datetime(2024, 6, 1, 2), "where": "close < 50"}, [2, 3]),
        ({"start": "2024-06-01T03:00:00.000001Z"}, []),
        ({"at": 2}, [0, 1, 2, 3]),
        ({"at": 1}, []),
    ],
    ids=str,
)
def test_a_scan_gives_the_rows_that_are_meant(prices, which, wanted):
    columns = None if which.get("at") == 1 else ["close"]
    table = prices.to_arrow(columns=columns, **which)
    assert sorted(table.column("close").to_pylist() if table.num_columns else []) == wanted


@pytest.mark.parametrize("where", ["close >", "volume = 1", "close", "select 1", "1; 2"])
def test_a_condition_that_is_none_is_refused_before_a_row_is_read(prices, where):
    with pytest.raises((tc.Invalid, tc.NotFound)):
        prices.scan(where=where)


@pytest.mark.parametrize("at", [0, 4, -1, "1999-01-01", datetime(1999, 1, 1)])
def test_a_version_that_never_was_is_not_found(prices, at):
    with pytest.raises(tc.NotFound):
        prices.to_arrow(at=at)


@pytest.mark.parametrize("at", ["yesterday", 1.5, True, b"2"])
def test_what_names_no_version_is_refused(prices, at):
    with pytest.raises(tc.Invalid, match="the time cannot be read"):
        prices.to_arrow(at=at)


def test_a_version_is_named_by_number_moment_or_text(prices):
    second = prices.history().to_pylist()[1]["time"]
    assert second.tzinfo is not None
    for at in (2, second, second.isoformat(), second.replace(tzinfo=None), str(second)):
        assert found(prices, at=at) == [0, 1, 2, 3]
    assert found(prices, at=datetime.now(UTC) + timedelta(days=1)) == found(prices)


def test_a_scan_is_of_one_version_whatever_is_committed_meanwhile(prices):
    reader = prices.scan(["close"])
    prices.append(rows([9]))
    prices.delete("symbol = 'AMD'")
    prices.rename_column("close", "price")
    assert sorted(reader.read_all().column("close").to_pylist()) == [0, 1, 2, 3, 100, 100]


def test_a_scan_streams_in_batches_of_bounded_size_and_holds_one_at_a_time(tmp_path):
    table = made(tmp_path, overlap="allow")
    count, batches = 2 * ROWS_PER_BATCH, 0
    times = pa.array(range(JUNE_US, JUNE_US + count), pa.timestamp("us"))
    data = pa.table({"ts": times, "text": pa.array(["x" * 100]).take(pa.array([0] * count))})
    for _ in range(3):
        table.append(data)
    size_bytes = data.nbytes
    del data, times
    gc.collect()
    before, peak = pa.total_allocated_bytes(), 0
    for batch in table.scan():
        assert batch.num_rows <= ROWS_PER_BATCH
        batches += 1
        peak = max(peak, pa.total_allocated_bytes() - before)
    assert batches >= 6
    assert peak < 1.5 * size_bytes, (peak, size_bytes)


def test_a_table_is_read_by_whoever_takes_an_arrow_stream(prices):
    wanted = sorted(prices.to_arrow().column("close").to_pylist())
    assert sorted(pl.DataFrame(prices)["close"].to_list()) == wanted
    assert sorted(pd.DataFrame.from_arrow(prices)["close"]) == wanted
    assert sorted(pa.table(prices).column("close").to_pylist()) == wanted
    assert (
        sorted(pa.RecordBatchReader.from_stream(prices).read_all()["close"].to_pylist()) == wanted
    )


def test_a_table_goes_into_another_table(prices, tmp_path):
    other = made(tmp_path, entity_columns="symbol")
    assert other.append(prices) == 2
    assert found(other) == found(prices)


def test_an_error_in_the_middle_of_a_stream_is_raised_and_never_an_early_end(prices):
    second = list(prices.cold.state().segments)[1]
    reader = prices.scan()
    (Path(prices.root()) / second.path).unlink()
    with pytest.raises(tc.Corruption) as error:
        reader.read_all()
    assert error.value.facts["path"] == second.path


def test_a_table_without_rows_is_read_as_such(table):
    assert table.to_arrow().num_rows == 0
    table.append(rows([0]))
    table.delete("true")
    assert table.to_arrow().schema == table.schema()
    assert table.to_arrow().num_rows == 0


# Going back


def test_a_restore_is_a_new_version_with_the_old_content(prices):
    prices.delete("close = 100")
    prices.add_column("note", pa.string())
    assert prices.restore(3) == 6
    assert found(prices) == [0, 1, 2, 3, 100, 100]
    assert prices.schema().names == ["ts", "symbol", "close"]
    assert prices.restore(3) == 6
    assert prices.restore(1) == 7
    assert prices.to_arrow().num_rows == 0
    assert prices.restore(5) == 8
    assert prices.schema().names == ["ts", "symbol", "close", "note"]
    assert found(prices) == [0, 1, 2, 3]
    assert prices.fsck().is_sound


def test_a_column_added_after_a_restore_is_another_column(prices):
    prices.append(rows([9]).append_column("note", pa.array(["old"])), evolve=True)
    prices.restore(3)
    prices.add_column("note", pa.string())
    assert prices.to_arrow().column("note").to_pylist() == [None] * 6
    assert prices.to_arrow(at=4, where="close = 9").column("note").to_pylist() == ["old"]


def test_a_column_added_after_the_columns_began_anew_is_another_column(prices):
    prices.append(rows([9]).append_column("note", pa.array(["old"])), evolve=True)
    prices.restore(1)
    prices.append(rows([0]))
    prices.restore(4)
    prices.add_column("more", pa.string())
    assert prices.to_arrow(where="close = 9").select(["note", "more"]).to_pylist() == [
        {"note": "old", "more": None}
    ]


def test_columns_change_by_their_rules(prices):
    assert prices.add_column("volume", pa.int32()) == 4
    assert prices.widen_column("volume", pa.int64()) == 5
    assert prices.rename_column("volume", "shares") == 6
    assert prices.schema().field("shares").type == pa.int64()
    for change, kind in (
        (lambda: prices.add_column("Close", pa.int8()), tc.Invalid),
        (lambda: prices.widen_column("shares", pa.int8()), tc.Invalid),
        (lambda: prices.widen_column("nothing", pa.int8()), tc.NotFound),
        (lambda: prices.rename_column("nothing", "x"), tc.NotFound),
        (lambda: prices.rename_column("shares", "close"), tc.Invalid),
        (lambda: prices.rename_column("shares", ""), tc.Invalid),
    ):
        with pytest.raises(kind):
            change()
    assert prices.version() == 6


def test_a_checkpoint_changes_nothing_that_is_read(prices):
    assert prices.checkpoint() == 3
    again = tc.TimeSeriesTable.open(prices.root())
    assert found(again) == found(prices)
    assert again.fsck().is_sound


# Showing


def test_a_table_says_what_it_is_in_one_line(prices):
    assert repr(prices) == (
        f"TimeSeriesTable({prices.root()!r}, version=3, rows=6, segments=2, bucket=1h)"
    )


def test_a_notebook_shows_rows_types_version_time_range_and_a_bar(table, prices):
    html = prices._repr_html_()
    for fact in ("3, committed", "symbol", "AMD", "2024-06-01 04:00", "double", "held"):
        assert fact in html
    assert "<script" not in html


def test_names_cannot_break_out_of_what_a_notebook_shows(tmp_path):
    name = "<img src=x onerror=alert(1)>"
    table = made(tmp_path, entity_columns=[name])
    times = pa.array([JUNE_US, JUNE_US + HOUR_US], pa.timestamp("us"))
    table.append(pa.table({"ts": times, name: ["<b>bold</b>", "&amp;"]}))
    html = table._repr_html_()
    assert "<img" not in html
    assert "<b>bold" not in html


@pytest.mark.parametrize("odd", ["noon", 1_717_243_200, True])
@pytest.mark.parametrize("ask", ["gaps", "coverage_ratio", "before"])
def test_a_time_is_checked_even_if_the_table_is_empty(tmp_path, ask, odd):
    table = made(tmp_path)
    asked = {
        "gaps": lambda: table.gaps(start=odd),
        "coverage_ratio": lambda: table.coverage_ratio(end=odd),
        "before": lambda: table.last_fully_covered_window("1h", before=odd),
    }
    with pytest.raises(tc.Invalid):
        asked[ask]()
