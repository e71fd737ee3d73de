"""Whole windows are replaced in one commit: exactly, also by nothing, and never by two at once."""

from dataclasses import replace

import pytest

from fixtures.lake import HOUR_US, JUNE_US, closes, lake_on, rows, spec
from thermocline.cold.care.fsck import fsck
from thermocline.cold.change.append import AppendOptions
from thermocline.cold.change.replace_windows import (
    RefillOvertaken,
    WindowReplacement,
    create_fresh_columns,
    replace_windows,
)
from thermocline.cold.segment.stage import Stage
from thermocline.disk import OsDisk
from thermocline.errors import Invalid
from thermocline.format.coverage import Buckets, entity_key

FIRST = JUNE_US // HOUR_US


@pytest.fixture
def lake(tmp_path):
    """A table that holds hours 0 to 5 of two symbols, in two segments each."""
    made = lake_on(OsDisk(), str(tmp_path / "prices"))
    made.create(spec(overlap="allow"))
    for symbol, base in (("NVDA", 0), ("AMD", 100)):
        for hours in (range(3), range(3, 6)):
            data = rows(hours, symbol)
            close = data.column("close").to_numpy() + base
            made.append(data.set_column(2, "close", [close]).to_reader(), AppendOptions())
    return made


def staged(table, data):
    """Stage rows as a worker does."""
    stage = Stage(table.storage)
    state = table.state()
    stage.write_batches(data.to_batches(), state.schema, state.spec)
    return stage.staged


def hours(first, end):
    return Buckets.from_range(FIRST + first, FIRST + end)


def is_clean(table):
    return fsck(table).findings == ()


def test_the_rows_of_the_windows_go_and_the_staged_ones_come_in_one_commit(lake):
    before = lake.state()
    wish = WindowReplacement(hours(1, 3), before, {"job": 7})
    after = replace_windows(lake, staged(lake, rows([1, 2], close=50.0)), wish)
    assert after.version == before.version + 1
    assert after.txns["job"] == 7
    assert closes(lake) == [0, 3, 4, 5, 50, 50, 100, 103, 104, 105]
    assert is_clean(lake)


def test_windows_of_which_nothing_is_left_are_empty_and_not_covered(lake):
    replace_windows(lake, [], WindowReplacement(hours(0, 4), lake.state(), {"job": 1}))
    assert closes(lake) == [4, 5, 104, 105]
    assert lake.coverage()[1].whole == hours(4, 6)
    assert is_clean(lake)


def test_windows_of_one_entity_leave_the_others_alone(lake):
    windows = {entity_key(["AMD"]): hours(0, 2)}
    replace_windows(
        lake, staged(lake, rows([1], "AMD", close=7.0)), WindowReplacement(windows, lake.state())
    )
    assert closes(lake) == [0, 1, 2, 3, 4, 5, 7, 102, 103, 104, 105]
    assert is_clean(lake)


def test_every_row_there_is_can_be_replaced(lake):
    replace_windows(
        lake, staged(lake, rows([20], close=1.0)), WindowReplacement(None, lake.state())
    )
    assert closes(lake) == [1]
    assert is_clean(lake)


@pytest.mark.parametrize("windows", [hours(0, 1), {entity_key(["AMD"]): hours(0, 6)}])
def test_rows_outside_of_the_windows_are_refused_and_removed(lake, windows):
    made = staged(lake, rows([1], close=1.0))
    with pytest.raises(Invalid):
        replace_windows(lake, made, WindowReplacement(windows, lake.state()))
    assert lake.storage.size(made[0].path) is None
    assert len(closes(lake)) == 12


def test_a_refill_that_began_before_another_of_its_writer_is_not_made(lake):
    seen = lake.state()
    replace_windows(lake, [], WindowReplacement(hours(0, 1), seen, {"job": 1}))
    made = staged(lake, rows([1], close=9.0))
    with pytest.raises(RefillOvertaken):
        replace_windows(lake, made, WindowReplacement(hours(1, 2), seen, {"job": 2}))
    assert lake.storage.size(made[0].path) is None
    assert lake.state().txns["job"] == 1


def test_the_same_refill_made_by_two_is_made_once(lake):
    seen = lake.state()
    wish = WindowReplacement(hours(0, 1), seen, {"job": 1})
    first = replace_windows(lake, staged(lake, rows([0], close=9.0)), wish)
    again = replace_windows(lake, staged(lake, rows([0], close=9.0)), wish)
    assert again.version == first.version
    assert closes(lake).count(9.0) == 1


def test_rows_that_come_into_the_windows_meanwhile_go_with_the_others(lake):
    seen = lake.state()
    made = staged(lake, rows([1], close=9.0))
    other = lake_on(OsDisk(), lake.storage.root)
    raced = []

    def land(commit, land=lake.log.try_commit):
        if not raced:
            raced.append(other.append(rows([1], close=77.0).to_reader(), AppendOptions()))
        return land(commit)

    lake.log.try_commit = land
    replace_windows(lake, made, WindowReplacement(hours(1, 2), seen, {"job": 1}))
    assert raced
    assert closes(lake) == [0, 2, 3, 4, 5, 9, 100, 102, 103, 104, 105]


def test_a_table_may_begin_anew_and_its_past_stays_readable(lake):
    before = lake.state()
    data = rows([0, 1]).rename_columns(["ts", "symbol", "price"])
    spec_now = replace(before.spec, extra={"said": "anew"})
    stage = Stage(lake.storage)
    stage.write_table(data, create_fresh_columns(before, data.schema, spec_now), spec_now)
    wish = WindowReplacement(None, before, {"job": 1}, (spec_now, data.schema))
    replace_windows(lake, stage.staged, wish)
    now = lake.state()
    assert list(now.schema.by_name) == ["ts", "symbol", "price"]
    assert now.spec.extra == {"said": "anew"}
    assert {c.id for c in now.schema.columns}.isdisjoint(c.id for c in before.schema.columns)
    assert [b.column("price").to_pylist() for b in lake.read(now, ["price"])] == [[0.0, 1.0]]
    assert len(closes(lake, before.version)) == 12
    assert is_clean(lake)
    lake.restore(before.version)
    assert len(closes(lake)) == 12
