"""Frames of pandas and polars come in as their users expect: the index, and categories."""

import pandas as pd
import polars as pl
import pytest

import thermocline as tc

HOURS = pd.date_range("2024-06-01", periods=3, freq="h", tz="UTC")
FRAME = pd.DataFrame({"close": [1.0, 2.0, 3.0]}, index=HOURS)


@pytest.fixture
def table(tmp_path):
    return tc.TimeSeriesTable.create(tmp_path / "t", time_column="ts", bucket="1h", overlap="allow")


@pytest.mark.parametrize(
    "frame",
    [
        FRAME,  # an index of times without a name is the time column
        FRAME.rename_axis("ts"),
        FRAME.rename_axis("ts").reset_index(),
        FRAME.rename_axis("ts").reset_index().iloc[[2, 0, 1]],  # row numbers are no column
    ],
)
def test_the_index_of_a_pandas_frame_is_the_time_column_or_row_numbers(table, frame, tmp_path):
    table.append(frame)
    with tc.connect(tmp_path / "lake") as lake:
        written = lake.create_table("t", time_column="ts", bucket="1h")
        written.write(frame)
        for one in (table, written):
            assert sorted(one.schema().names) == ["close", "ts"]
            assert one.to_pandas().sort_values("ts")["close"].tolist() == [1.0, 2.0, 3.0]
            assert one.upsert(frame.assign(close=9.0)).matched == 3


def test_an_index_without_a_name_that_is_neither_is_refused(table):
    frame = FRAME.rename_axis("ts").reset_index().set_index(pd.Index(["a", "b", "c"]))
    with pytest.raises(tc.Invalid, match="no name"):
        table.append(frame)


@pytest.mark.parametrize("kind", [pl.Categorical, pl.Enum(["a", "b"])])
def test_categories_of_polars_hold_values_that_a_later_frame_adds(table, kind):
    """A list of categories in a column's metadata made polars read every other value as null."""

    def frame(values, kind):
        columns = pl.DataFrame({"ts": HOURS.to_list(), "s": values})
        return columns.with_columns(pl.col("s").cast(kind))

    table.append(frame(["a", "b", "a"], kind))
    table.append(frame(["c", "b", None], pl.String))
    assert table.to_polars()["s"].cast(pl.String).to_list() == ["a", "b", "a", "c", "b", None]
