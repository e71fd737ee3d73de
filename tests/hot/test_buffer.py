"""Parts are merged as they become many, frozen apart, and never changed under a reader."""

import pyarrow as pa

from thermocline.format.log.action import Mark
from thermocline.hot.wal.buffer import FAN_IN, TableBuffer
from thermocline.hot.wal.frame import Lsn


def filled(count, *, schema_id=0, buffer=None, first=1):
    buffer = buffer or TableBuffer("journal", Mark(0))
    for lsn in range(first, first + count):
        batch = pa.RecordBatch.from_arrays([pa.array([lsn])], ["n"])
        buffer.add(Lsn(lsn), schema_id, batch, batch.nbytes)
    return buffer


def read(snapshot):
    return [n for part in snapshot.parts for n in part.batch.column("n").to_pylist()]


def test_a_thousand_small_writes_are_a_few_dozen_parts_in_order():
    buffer = filled(1_000)
    assert len(buffer.snapshot().parts) <= 3 * FAN_IN
    assert read(buffer.snapshot()) == list(range(1, 1_001))


def test_a_snapshot_stays_what_it_was_while_rows_are_added_merged_and_retired():
    buffer = filled(15)
    before = buffer.snapshot()
    filled(100, buffer=buffer, first=16)
    buffer.freeze()
    buffer.retire(Mark(115))
    assert read(before) == list(range(1, 16))
    assert read(buffer.snapshot()) == []
    assert buffer.snapshot().mark == 115


def test_F06_rows_that_come_after_a_freeze_are_not_in_it_and_not_merged_with_it():
    buffer = filled(10)
    frozen = buffer.freeze()
    filled(200, buffer=buffer, first=11)
    assert frozen.mark == 10
    assert buffer.freeze() == frozen
    assert all(part.mark <= 10 or min(read_part(part)) > 10 for part in buffer.snapshot().parts)
    buffer.retire(frozen.mark)
    assert read(buffer.snapshot()) == list(range(11, 211))
    assert buffer.freeze().mark == 210


def read_part(part):
    return part.batch.column("n").to_pylist()


def test_rows_of_different_schemas_are_not_merged():
    buffer = filled(8)
    filled(8, buffer=buffer, first=9, schema_id=1)
    assert {part.schema_id for part in buffer.snapshot().parts} == {0, 1}
    assert read(buffer.snapshot()) == list(range(1, 17))


def test_nothing_hot_is_nothing_to_freeze():
    assert TableBuffer("journal", Mark(7)).freeze() is None


def test_the_bytes_that_retiring_frees_are_those_that_were_counted():
    buffer = filled(100)
    counted = buffer.size_bytes
    assert counted >= 100 * 8
    buffer.freeze()
    assert buffer.retire(Mark(100)) == counted
    assert buffer.size_bytes == 0


def test_dictionaries_of_many_writes_are_merged_by_value():
    buffer = TableBuffer("journal", Mark(0))
    words = [f"word {n}" for n in range(FAN_IN)]
    for lsn, word in enumerate(words, start=1):
        column = pa.array([word]).dictionary_encode()
        batch = pa.RecordBatch.from_arrays([column], ["w"])
        buffer.add(Lsn(lsn), 0, batch, batch.nbytes)
    (part,) = buffer.snapshot().parts
    assert part.batch.column("w").to_pylist() == words
