"""Columns that a write has no value in: not in the journal, null to whoever reads."""

import shutil

import pyarrow as pa
import pytest

import thermocline as tc
from fixtures.wal import opened, ticks
from thermocline.format import null_columns
from thermocline.format.null_columns import drop_null_columns, unify_columns
from thermocline.hot.wal.buffer import FAN_IN
from thermocline.hot.wal.payload import encode_rows

WRITES = 3 * FAN_IN
WORD = pa.dictionary(pa.int32(), pa.string())


@pytest.fixture(autouse=True)
def many(monkeypatch):
    """Let a few rows be many."""
    monkeypatch.setattr(null_columns, "BLANK_ROWS_MIN", 2)


def given(number):
    """Return two rows whose blank columns change from write to write."""
    rows = ticks(2 * number, 2 * number + 1, host=None if number % 3 else "a")
    words = [None, None] if number % 2 else ["w", None]
    return rows.append_column("word", pa.array(words, WORD)).append_column(
        "never", pa.nulls(2, pa.list_(pa.int64()))
    )


@pytest.fixture
def root(tmp_path):
    """A lake with a table of which every write lacks other columns."""
    with opened(tmp_path / "lake") as lake:
        table = lake.create_table("m", time_column="ts", bucket="1h", entity_columns=["host"])
        for number in range(WRITES):
            table.write(given(number))
        shapes = {tuple(part.batch.schema.names) for part in table.snapshot().parts}
        assert all("never" not in names for names in shapes)
        assert len(table.snapshot().parts) < FAN_IN
        assert asked(lake) == WANTED
        # As a crash would leave it: closing would flush.
        return shutil.copytree(tmp_path / "lake", tmp_path / "left")


WANTED = pa.concat_tables([given(number) for number in range(WRITES)]).to_pylist()


def asked(lake):
    """Return all rows by every way there is to ask for them."""
    rows = lake.sql("select * from m order by n").to_pylist()
    assert lake.table("m").scan().read_all().sort_by("n").to_pylist() == rows
    (counts,) = lake.sql(
        "select count(host) as host, count(word) as word, count(never) as never from m"
    ).to_pylist()
    assert counts == {
        name: sum(row[name] is not None for row in rows) for name in ("host", "word", "never")
    }
    return [{**row, "ts": row["ts"].replace(tzinfo=None)} for row in rows]


def test_W17_rows_that_lack_columns_are_replayed_followed_and_flushed_as_they_were(root):
    with opened(root) as lake:
        assert lake.table("m").snapshot().parts
        assert asked(lake) == WANTED
        with tc.connect(str(root), read_only=True) as beside:
            assert asked(beside) == WANTED
        lake.table("m").write(given(WRITES))
        lake.flush("m")
        assert not lake.table("m").snapshot().parts
        assert asked(lake)[:-2] == WANTED
        assert lake.table("m").fsck().findings == ()


def test_a_frame_of_many_rows_has_the_columns_with_a_value_and_one_of_few_has_all():
    rows = given(1).combine_chunks().to_batches()[0]
    assert encode_rows(rows).batch.schema.names == ["ts", "n"]
    assert encode_rows(rows.slice(0, 1)).batch.equals(rows.slice(0, 1))


def test_rows_without_any_value_keep_a_column_and_so_their_number():
    nothing = pa.RecordBatch.from_arrays([pa.nulls(3, pa.int64()), pa.nulls(3)], ["a", "b"])
    found = drop_null_columns(nothing)
    assert (found.num_rows, found.schema.names) == (3, ["a"])
    assert drop_null_columns(nothing, ["b"]).schema.names == ["b"]


def test_batches_that_lack_different_columns_have_all_of_them_once_made_alike():
    batches = [one for n in range(4) for one in given(n).to_batches()]
    alike = unify_columns([drop_null_columns(batch) for batch in batches])
    assert {tuple(sorted(batch.schema.names)) for batch in alike} == {("host", "n", "ts", "word")}
    found = pa.concat_batches(alike).select(["ts", "host", "n", "word"]).to_pylist()
    assert found == pa.concat_batches(batches).drop_columns(["never"]).to_pylist()
