"""Rows of every Arrow type are the same hot, replayed from the journal, and cold."""

import pytest
from hypothesis import given, settings

from cold.test_arrow_types import check_same, tables
from fixtures.wal import opened
from thermocline.errors import Invalid, ThermoclineError


def answered(lake):
    """Return what SQL says of all rows, or the kind of error: some types it cannot show."""
    try:
        return lake.sql("select * from t order by ts")
    except ThermoclineError as error:
        return type(error)


def same(found, wanted, data):
    if isinstance(found, type) or isinstance(wanted, type):
        assert found is wanted
    elif "decimal256" in str(data.schema):
        # The engine makes doubles of them, and rounds the last bit as it likes.
        assert found.schema == wanted.schema
        assert found.num_rows == wanted.num_rows
    else:
        check_same(found, wanted)


@settings(max_examples=30)
@given(tables())
def test_W17_a_row_is_the_same_hot_replayed_and_cold(tmp_path_factory, data):
    root = tmp_path_factory.mktemp("lake") / "lake"
    lake = opened(root)
    table = lake.create_table("t", time_column="ts", bucket="1h")
    table.write(data.slice(0, 2))
    table.write(data.slice(2))
    check_same(table.to_arrow(), data)
    hot = answered(lake)
    lake.close(flush=False)
    with opened(root) as lake:
        table = lake.table("t")
        check_same(table.to_arrow(), data)
        same(answered(lake), hot, data)
        table.flush()
        check_same(table.to_arrow(), data)  # a file an hour, and the hours are in order
        same(answered(lake), hot, data)


def test_a_type_that_parquet_cannot_hold_is_refused_before_the_journal(lake):
    import pyarrow as pa

    table = lake.create_table("odd", time_column="ts", bucket="1h")
    union = pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])
    times = pa.array([0]).cast(pa.timestamp("us"))
    with pytest.raises(Invalid):
        table.write(pa.table({"ts": times, "u": union}))
    table.write(pa.table({"ts": times}))
    table.flush()
    assert table.to_arrow().num_rows == 1
