"""What a newer version wrote beside the known survives every way a table is written back."""

from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from format.made import JUNE_NS, spec
from thermocline.cold.change.append import AppendOptions
from thermocline.cold.log.transaction import CommitPlan, transact
from thermocline.cold.storage.local import LocalStorage
from thermocline.cold.table import ColdTable
from thermocline.format.layout import commit_path
from thermocline.format.log.action import AddSegment, SetTable, removal

NEWER_TABLE = {"comment": "prices", "layout": {"by": ["hour"], "depth": 2}}
NEWER_SEGMENT = {"bloom": {"path": "_index/b", "bits": 10}, "sorted_by": ["ts"]}


def rows(*hours):
    times = [JUNE_NS // 1_000 + hour * 3_600_000_000 for hour in hours]
    symbols, closes = ["NVDA"] * len(hours), [float(hour) for hour in hours]
    table = pa.table(
        {"ts": pa.array(times, pa.timestamp("us")), "symbol": symbols, "close": closes}
    )
    return pa.RecordBatchReader.from_stream(table)


@pytest.fixture
def table(tmp_path):
    """A table whose third version was written by a newer Thermocline."""
    made = ColdTable(LocalStorage(str(tmp_path / "prices")), workers=1)
    made.create(spec())
    made.append(rows(0, 1, 2), AppendOptions())

    def newer(state):
        (old,) = state.segments
        new = replace(old, extra=NEWER_SEGMENT)
        table = SetTable(replace(state.spec, extra=NEWER_TABLE), state.schema_id, state.schema)
        return CommitPlan("newer", (table, removal(old), AddSegment(new)))

    transact(made.log, newer)
    return made


def reopened(table):
    return ColdTable(LocalStorage(table.storage.root), workers=1)


def extras(state):
    return state.spec.extra, [segment.extra for segment in state.segments]


def test_they_survive_being_read(table):
    assert extras(reopened(table).state()) == (NEWER_TABLE, [NEWER_SEGMENT])


def test_they_survive_a_checkpoint(table):
    table.log.write_checkpoint(3)
    table.storage.delete(commit_path(2))  # so that nothing but the checkpoint can say it
    assert extras(reopened(table).state()) == (NEWER_TABLE, [NEWER_SEGMENT])


def test_they_survive_deleted_rows(table):
    table.delete(lambda batch: pc.equal(batch.column("close"), 1.0), ["close"])
    found = reopened(table).state()
    assert extras(found) == (NEWER_TABLE, [NEWER_SEGMENT])
    assert next(iter(found.segments)).deleted_count == 1


def test_they_survive_a_renamed_column_and_another_policy(table):
    table.alter(
        "change", lambda s, c: (replace(s, overlap="allow"), c.rename_column("close", "last"))
    )
    assert extras(reopened(table).state()) == (NEWER_TABLE, [NEWER_SEGMENT])


def test_they_survive_new_columns_and_replaced_rows(table):
    wider = rows(1).read_all().append_column("volume", pa.array([1]))
    table.append(
        pa.RecordBatchReader.from_stream(wider), AppendOptions(overlap="replace", evolve=True)
    )
    found, (old, new) = extras(reopened(table).state())
    assert found == NEWER_TABLE
    assert sorted([old, new], key=len) == [{}, NEWER_SEGMENT]


def test_they_survive_a_restore(table):
    table.delete(lambda batch: pc.equal(batch.column("symbol"), "NVDA"), ["symbol"])
    table.alter("change", lambda s, c: (replace(s, extra={}), c))
    assert extras(table.state()) == ({}, [])
    table.restore(3)
    assert extras(reopened(table).state()) == (NEWER_TABLE, [NEWER_SEGMENT])
    table.restore(2)
    assert extras(reopened(table).state()) == ({}, [{}])
