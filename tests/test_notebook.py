"""What a notebook shows, and rows handed to pandas, polars and DuckDB."""

import decimal
import os
import sys
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from types import SimpleNamespace

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import thermocline as tc
from thermocline.errors import Invalid, NotFound, Unsupported
from thermocline.show import notebook
from thermocline.show.rows import PreviewOptions, rows_html

START = datetime(2024, 6, 1, tzinfo=UTC)
SCRIPT = "<script>alert(1)</script>"


@pytest.fixture
def lake(tmp_path):
    """A lake with a table of two cold rows and a hot one."""
    with tc.connect(tmp_path / "lake") as lake:
        table = lake.create_table("prices", time_column="ts", bucket="1h", entity_columns="symbol")
        rows = [
            {"ts": START + timedelta(hours=n), "symbol": "A", "close": 1.0 * n, "note": SCRIPT}
            for n in range(3)
        ]
        table.write(rows[:2])
        table.flush()
        table.write(rows[2:])
        yield lake


class Cells(HTMLParser):
    """The texts of the cells, and the tags of a page."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.texts = set(), []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        assert not any(name.startswith("on") for name, _ in attrs)

    def handle_data(self, data):
        self.texts.append(data)


def test_rows_go_to_pandas_polars_and_duckdb_with_the_hot_ones(lake):
    table = lake.table("prices")
    assert table.to_pandas()["close"].tolist() == [0.0, 1.0, 2.0]
    assert table.to_polars(columns=["close"], where="close > 0")["close"].to_list() == [1.0, 2.0]
    assert table.to_duckdb(columns="close").aggregate("sum(close)").fetchall() == [(3.0,)]
    with duckdb.connect() as connection:
        relation = table.to_duckdb(connection, columns="close")
        assert connection.sql("select max(close) from relation").fetchall() == [(2.0,)]
        assert relation.columns == ["close"]
    with pytest.raises(Invalid, match="not a connection"):
        table.to_duckdb("db")
    assert table.head(2).num_rows == 2
    assert table.head(0).schema == table.schema()
    assert table.head().num_rows == 3
    answer = lake.sql_reader("select close from prices order by close")
    assert answer.head(1)["close"].to_pylist() == [0.0]
    assert answer.to_polars()["close"].to_list() == [1.0, 2.0]


def test_whole_numbers_with_nulls_go_to_pandas_as_they_are(make):
    table = make()
    times = [datetime(2024, 6, 1, hour) for hour in range(2)]
    large, wide = 2**60 + 1, decimal.Decimal("1.5")
    table.append(
        pa.table(
            {
                "ts": times,
                "whole": [large, None],
                "unsigned": pa.array([2**64 - 1, None], pa.uint64()),
                "inside": [[large, None], None],
                "wide": pa.array([wide, None], pa.decimal256(60, 1)),
            }
        )
    )
    frame = table.to_pandas()
    assert list(frame) == ["ts", "whole", "unsigned", "inside", "wide"]
    assert (frame["whole"][0], frame["unsigned"][0]) == (large, 2**64 - 1)
    assert frame["whole"].isna().tolist() == [False, True]
    assert list(frame["inside"][0]) == [large, None]
    assert list(table.to_pandas(columns=["whole", "ts", "whole"])) == ["whole", "ts", "whole"]
    with pytest.raises(Unsupported, match="polars cannot hold") as refused:
        table.to_polars()
    assert refused.value.facts["columns"] == ["wide"]
    assert table.to_polars(columns=["inside"])["inside"][0].to_list() == [large, None]
    with pytest.raises(Invalid, match="DuckDB does not take"):
        table.to_duckdb(columns="wide")


def test_everything_says_what_it_is(lake):
    table = lake.table("prices")
    assert repr(table) == "LakeTable('prices', version=3, rows=2, hot_rows=1, bucket=1h)"
    assert repr(lake) == f"Lake({lake.root()!r}, tables=['prices'])"
    with tc.Session() as session:
        session.register_tstable("p", table)
        assert repr(session) == "Session(tables=['p'])"
        shown = session._repr_html_()
    assert repr(session) == "Session(closed)"
    assert repr(lake.sql_reader("select 1 as n")) == "RowReader(columns=[n: int32])"
    for html, wanted in (
        (table._repr_html_(), {"prices", "hot rows", "1"}),
        (lake._repr_html_(), {"lake", "prices", "3 rows, version 3"}),
        (shown, {"SQL session", "p", table.root()}),
    ):
        found = Cells(html)
        assert wanted <= set(found.texts)
        assert "script" not in found.tags


def test_a_preview_is_bounded_and_only_text():
    rows = pa.table({f"c{n}": [SCRIPT, None, "x" * 50, *["y"] * 97] for n in range(30)})
    options = PreviewOptions(max_rows=7, max_cols=6, max_cell_chars=30)
    found = Cells(rows_html(rows, options))
    assert "script" not in found.tags
    assert SCRIPT in found.texts
    assert "null" in found.texts
    assert "x" * 29 + "…" in found.texts
    assert {"c0", "c2", "c27", "c29"} <= set(found.texts)
    assert "c3" not in found.texts
    assert "7 of 100 rows, 6 of 30 columns" in found.texts
    assert Cells(rows_html(rows.select([]))).texts[-1].endswith("0 columns")
    assert "2 rows, 2 columns" in Cells(rows_html(pa.table([[1, 2], [3, 4]], ["a", "a"]))).texts


@pytest.fixture
def printers(monkeypatch):
    """The HTML printers of a running IPython, of which only these are used."""
    held = {}
    formatters = {"text/html": SimpleNamespace(type_printers=held)}
    shell = SimpleNamespace(display_formatter=SimpleNamespace(formatters=formatters))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setattr(notebook._Display, "options", PreviewOptions())
    monkeypatch.setattr(notebook._Display, "is_on", False)
    monkeypatch.setattr(notebook._Display, "replaced", None)
    return held


def test_outside_of_a_notebook_nothing_is_switched(monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert (tc.notebook.enable_notebook_display(), tc.notebook.disable_notebook_display()) == (
        False,
        False,
    )


def test_the_display_is_switched_on_and_off_and_restores_what_was_there(printers):
    assert tc.notebook.enable_notebook_display(max_rows=2)
    html = printers[pa.Table](pa.table({"n": list(range(9))}))
    assert "2 of 9 rows, 1 columns" in Cells(html).texts
    assert tc.notebook.enable_notebook_display(max_rows=5)  # it changes what is shown from now on
    assert "5 of 9 rows, 1 columns" in Cells(printers[pa.Table](pa.table({"n": [0] * 9}))).texts
    assert tc.notebook.disable_notebook_display()
    assert printers == {}
    assert not tc.notebook.disable_notebook_display()
    printers[pa.Table] = str
    assert not notebook.start_in_notebook()  # it leaves another formatter alone
    assert tc.notebook.enable_notebook_display()
    assert tc.notebook.disable_notebook_display()
    assert printers == {pa.Table: str}


def test_the_environment_and_a_file_say_what_is_shown(printers, monkeypatch, tmp_path):
    file = tmp_path / "display.toml"
    file.write_text('[notebook_display]\nmax_rows = 3\nalign = "auto"\n')
    monkeypatch.setenv(notebook.CONFIG, str(file))
    assert notebook.start_in_notebook()
    assert "3 of 9 rows, 1 columns" in Cells(printers[pa.Table](pa.table({"n": [0] * 9}))).texts
    assert tc.notebook.disable_notebook_display()
    monkeypatch.setenv(notebook.SWITCH, "0")
    assert not notebook.start_in_notebook()
    file.write_text("[other]\n")
    assert tc.notebook.load_notebook_display_config(file) is False
    for text, kind in (("[x", Invalid), ("[notebook_display]\nrows = 1\n", Invalid)):
        file.write_text(text)
        with pytest.raises(kind):
            tc.notebook.load_notebook_display_config(str(file))
    with pytest.raises(NotFound):
        tc.notebook.load_notebook_display_config(str(tmp_path / "nothing.toml"))
    for wrong in ({"max_rows": 0}, {"max_cols": "x"}, {"align": "middle"}):
        with pytest.raises(Invalid):
            tc.notebook.enable_notebook_display(**wrong)


def test_scalars_of_numpy_are_taken_like_those_of_python(lake):
    table = lake.table("prices")
    assert table.head(np.int64(2)).num_rows == 2
    assert table.history(np.int8(1)).num_rows == 1
    assert table.to_arrow(at=np.int64(1)).num_rows == 0
    hour = np.datetime64("2024-06-01T00")
    assert table.is_covered(hour, hour + np.timedelta64(3, "h"), entity=np.str_("A"))
    values = [np.int32(1), np.float32(1.5), np.bool_(True), np.str_("x")]
    answer = lake.sql("select ? as a, ? as b, ? as c, ? as d", values)
    assert [column.to_pylist() for column in answer.columns] == [[1], [1.5], [True], ["x"]]
    wide = {"time_column": "ts", "bucket": np.timedelta64(90, "m"), "entities_max": np.int16(5)}
    assert lake.create_table("wide", **wide).info()["bucket"] == "90m"
    assert table.set_entities_max(np.int64(7)) == 4
    with pytest.raises(Invalid):
        table.head(np.float64(2))
    with pytest.raises(Invalid):
        table.head(np.bool_(True))


@pytest.mark.parametrize("kind", [pl.Categorical, pl.Enum(["A", "B"])])
def test_categories_of_polars_are_texts_of_a_dictionary(lake, kind):
    frame = pl.DataFrame(
        {
            "ts": [START.replace(tzinfo=None) + timedelta(days=1)],
            "symbol": pl.Series(["B"], dtype=kind),
            "close": [9.0],
            "note": [None],
        },
        schema_overrides={"note": pl.String},
    )
    lake.table("prices").write(frame)
    lake.table("prices").append(frame.with_columns(pl.col("ts") + timedelta(days=1)))
    found = lake.sql("select symbol, close from prices where close = 9").to_pylist()
    assert found == [{"symbol": "B", "close": 9.0}] * 2


def test_the_index_of_pandas_is_a_column_if_it_has_a_name(tmp_path):
    times = pd.to_datetime(["2024-06-01", "2024-06-02"])
    for place, frame in enumerate(
        (
            pd.DataFrame({"ts": times, "close": [1.0, 2.0]}),
            pd.DataFrame({"close": [1.0, 2.0]}, index=pd.DatetimeIndex(times, name="ts")),
            pd.DataFrame({"ts": [*times[:1], *times], "close": [0.0, 1.0, 2.0]}).query("close > 0"),
        )
    ):
        table = tc.TimeSeriesTable.create(tmp_path / str(place), time_column="ts", bucket="1h")
        table.append(frame)
        assert sorted(table.schema().names) == ["close", "ts"]
        assert table.to_pandas()["close"].tolist() == [1.0, 2.0]


def test_a_folder_of_parquet_files_is_one_name(tmp_path):
    (tmp_path / "days" / "more").mkdir(parents=True)
    pq.write_table(pa.table({"a": [1]}), tmp_path / "days" / "one.parquet")
    pq.write_table(pa.table({"b": ["x"], "a": [2]}), tmp_path / "days" / "more" / "two.parquet")
    (tmp_path / "days" / "notes.txt").write_text("not rows")
    with tc.Session() as session:
        session.register_parquet("days", tmp_path / "days")
        found = session.sql("select a, b from days order by a", {}).to_pylist()
        assert found == [{"a": 1, "b": None}, {"a": 2, "b": "x"}]
        assert session.sql("select b from days where a = $a", {"$a": 2})["b"].to_pylist() == ["x"]
        os.mkdir(tmp_path / "empty")
        with pytest.raises(NotFound, match="no folder with one"):
            session.register_parquet("empty", tmp_path / "empty")


def test_a_report_cannot_be_changed_and_errors_say_which_table(tmp_path):
    table = tc.TimeSeriesTable.create(tmp_path / "t", time_column="ts", bucket="1h")
    rows = pa.table({"ts": pa.array([START], pa.timestamp("us", "UTC"))})
    report = table.append(rows)
    with pytest.raises(AttributeError):
        report.row_count = 5
    with pytest.raises(tc.CoverageOverlapError) as refused:
        table.append(rows)
    assert refused.value.table_root == table.root()
