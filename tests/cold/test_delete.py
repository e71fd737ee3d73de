"""Deletes and retention: rows go, gaps appear at once, older versions keep what they had."""

from datetime import datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.lake import HOUR_US, JUNE_US, closes, lake_on, rows, spec
from fixtures.sim_disk import SimDisk
from thermocline import TimeSeriesTable
from thermocline.errors import Invalid, NotFound
from thermocline.format.instant import NS_PER_S, parse_instant


class Clock:
    """A clock that goes on by a second at each look, and jumps when told."""

    def __init__(self, text):
        self.now_ns = parse_instant(text)

    def __call__(self):
        self.now_ns += NS_PER_S
        return self.now_ns


def timed(clock=None, *, retention=None, entities=("symbol",)):
    disk = SimDisk(["/lake"])
    lake = lake_on(disk, now_ns=clock or Clock("2024-06-02"))
    lake.create(spec(entities=entities))
    table = TimeSeriesTable(lake)
    if retention:
        table.set_retention(retention)
    return table


def hours(table, **which):
    found = table.coverage(per_entity=False, **which).to_pylist()
    first = JUNE_US // HOUR_US
    edges = [(row["start"].timestamp(), row["end"].timestamp()) for row in found]
    return [int(h) for s, e in edges for h in range(int(s // 3600 - first), int(e // 3600 - first))]


def test_rows_that_match_go_and_their_buckets_are_gaps_at_once(table):
    table.append(rows([0, 1, 1, 2, 3]))
    assert table.delete("close >= 1 and close < 3") == 3
    assert closes(table.cold) == [0, 3]
    assert hours(table) == [0, 3]
    assert repr(table).count("rows=2,") == 1
    assert table.fsck().is_sound


def test_a_bucket_that_keeps_a_row_is_no_gap(table):
    table.append(pa.concat_tables([rows([0, 1]), rows([1], close=50)]))
    table.delete("close = 50")
    assert hours(table) == [0, 1]


def test_older_versions_keep_what_was_deleted(table):
    table.append(rows([0, 1, 2]))
    table.delete("close = 1")
    table.delete("close = 2")
    assert closes(table.cold, at=2) == [0, 1, 2]
    assert closes(table.cold, at=3) == [0, 2]
    assert hours(table, at=2) == [0, 1, 2]
    assert table.restore(2) == 5
    assert closes(table.cold) == [0, 1, 2]
    assert hours(table) == [0, 1, 2]


@pytest.mark.parametrize(
    ("window", "left"),
    [
        ({"start": "2024-06-01T02:00Z"}, [0, 1]),
        ({"end": "2024-06-01T02:00Z"}, [2, 3]),
        ({"start": "2024-06-01T01:00Z", "end": "2024-06-01T03:00Z"}, [0, 3]),
        ({"start": "2024-06-01T01:00:00.000000001Z", "end": "2024-06-01T03:00Z"}, [0, 1, 3]),
        ({"start": "2024-06-01T01:00Z", "where": "close > 1"}, [0, 1]),
        ({"start": "2025-01-01"}, [0, 1, 2, 3]),
    ],
)
def test_a_stretch_of_time_is_deleted_without_its_end(table, window, left):
    table.append(rows([0, 1, 2]))
    table.append(rows([3]))
    table.delete(**window)
    assert closes(table.cold) == left
    assert hours(table) == left


def test_a_segment_without_a_live_row_is_removed(table):
    table.append(rows([0, 1]))
    table.append(rows([2, 3]))
    table.delete("close = 0")
    assert table.cold.state().totals.segments == 2
    table.delete("close = 1")
    assert table.cold.state().totals.segments == 1
    assert table.delete("true") == 6
    assert table.cold.state().totals.segments == 0
    assert (closes(table.cold), hours(table)) == ([], [])
    table.append(rows([0]))
    assert closes(table.cold) == [0]


def test_a_delete_that_finds_nothing_is_no_version(table):
    table.append(rows([0, 1]))
    table.delete("close = 1")
    for where in ("close = 1", "close = 77", "close = null", "false"):
        assert table.delete(where) == 3
    assert table.fsck().findings == ()


def test_a_row_for_which_the_condition_is_null_stays(table):
    table.append(rows([0, 1]).set_column(2, "close", pa.array([None, 1.0])))
    table.delete("close <> 7")
    assert table.to_arrow().column("close").to_pylist() == [None]
    table.cold.delete(lambda batch: pc.not_equal(batch.column("close"), 7.0), ["close"])
    assert table.to_arrow().num_rows == 1


@pytest.mark.parametrize(
    ("where", "kind"),
    [
        ("volume = 1", NotFound),
        ("close =", Invalid),
        ("close", Invalid),
        ("close = 1; drop table prices", Invalid),
        ("sum(close) > 1", Invalid),
        ("close in (select 1)", Invalid),
    ],
)
def test_a_condition_that_is_none_deletes_nothing(table, where, kind):
    table.append(rows([0, 1]))
    with pytest.raises(kind):
        table.delete(where)
    assert (table.version(), closes(table.cold)) == (2, [0, 1])


def test_a_delete_of_everything_has_to_be_said(table):
    table.append(rows([0]))
    with pytest.raises(Invalid, match="where='true'"):
        table.delete()
    with pytest.raises(Invalid, match="end is not after"):
        table.delete(start="2024-06-02", end="2024-06-01")


def test_a_delete_reads_columns_by_their_present_names(table):
    table.append(rows([0, 1]))
    table.rename_column("close", "price")
    table.delete("price = 1")
    assert table.to_arrow().column("price").to_pylist() == [0]
    with pytest.raises(NotFound):
        table.delete("close = 0")


@settings(max_examples=40)
@given(
    st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=12), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=4),
)
def test_deletes_leave_what_a_list_would(appends, deletes):
    table = timed(entities=())
    left = []
    for numbers in appends:
        table.append(rows(numbers), overlap="allow")
        left += numbers
    for low, high in deletes:
        table.delete(f"close between {low} and {high}")
        left = [number for number in left if not low <= number <= high]
        assert closes(table.cold) == sorted(left)
        assert hours(table) == sorted(set(left))
        assert table.cold.state().totals.rows == len(left)
    assert table.fsck().is_sound


# Retention


def test_rows_past_the_retention_go_and_no_others():
    clock = Clock("2024-06-02T12:00:00")
    table = timed(clock, retention="24h")
    table.append(rows(range(30)))
    clock.now_ns = parse_instant("2024-06-02T12:00:00") - NS_PER_S
    assert table.retain() == 4
    assert closes(table.cold) == [float(hour) for hour in range(12, 30)]
    assert hours(table) == list(range(12, 30))
    assert table.fsck().is_sound


def test_what_is_young_enough_stays_to_the_instant():
    clock = Clock("2024-06-02")
    table = timed(clock, retention="1h")
    table.append(rows([0, 1, 2]))
    clock.now_ns = (JUNE_US + 2 * HOUR_US) * 1_000 - NS_PER_S
    table.retain()
    assert closes(table.cold) == [1, 2]


def test_C09_a_clock_that_jumped_ahead_takes_nothing_without_a_yes():
    clock = Clock("2024-06-02")
    table = timed(clock, retention="90d")
    table.append(rows(range(24)))
    clock.now_ns = parse_instant("2034-06-02")
    with pytest.raises(Invalid, match="cut-off is after the newest row") as error:
        table.retain()
    assert error.value.facts["newest"] == "2024-06-01T23:00:00Z"
    assert "--yes" in error.value.hint
    assert len(closes(table.cold)) == 24
    clock.now_ns = parse_instant("2034-06-02")
    table.retain(yes=True)
    assert (closes(table.cold), hours(table)) == ([], [])


def test_C09_a_clock_that_went_back_takes_nothing():
    clock = Clock("2024-06-02")
    table = timed(clock, retention="1h")
    table.append(rows(range(24)))
    clock.now_ns = parse_instant("1999-01-01")
    assert table.retain() == 3
    assert len(closes(table.cold)) == 24


def test_a_table_that_keeps_its_rows_for_ever_has_nothing_past_its_retention():
    table = timed()
    table.append(rows([0]))
    with pytest.raises(Invalid, match="no retention"):
        table.retain()
    table.set_retention("1h")
    table.set_retention(None)
    with pytest.raises(Invalid, match="no retention"):
        table.retain()


def test_an_empty_table_retains_nothing():
    assert timed(retention="1h").retain() == 2


def test_retention_and_replaced_buckets_agree():
    clock = Clock("2024-06-01T04:00:00")
    table = timed(clock, retention="2h")
    table.append(rows([0, 1, 2, 3]))
    table.append(rows([1, 3], close=9), overlap="replace")
    clock.now_ns = parse_instant("2024-06-01T04:00:00") - NS_PER_S
    table.retain()
    assert closes(table.cold) == [2, 9]
    assert hours(table) == [2, 3]
    assert table.fsck().is_sound


def test_a_delete_over_many_small_segments_leaves_what_a_delete_from_each_alone_would(tmp_path):
    names, hosts = pa.array(["x", "y", None] * 9), pa.array(["a", "b", "c"] * 9)
    tables = {}
    for way in ("together", "alone"):
        table = TimeSeriesTable.create(
            tmp_path / way, time_column="ts", bucket="1m", entity_columns="host", overlap="allow"
        )
        for hour in range(40):
            times = [(hour * 60 + k) * 60_000_000 for k in range(27)]
            columns = {"ts": pa.array(times, pa.timestamp("us")), "host": hosts}
            # The values of a dictionary are in another order in every second segment.
            named = names.take(pa.array(range(27)[:: 1 if hour % 2 else -1]))
            table.append(pa.table({**columns, "v": range(27), "name": named.dictionary_encode()}))
        tables[way] = table
    where = "name = 'x' and v % 2 = 1 or host = 'c' and ts < '1970-01-01T05:00'"
    tables["together"].delete(where)
    for hour in range(40):
        start, end = (datetime(1970, 1, 1) + timedelta(hours=hour + k) for k in (0, 1))
        tables["alone"].delete(where, start=start, end=end)
    one, other = (tables[way].to_arrow().sort_by("ts") for way in tables)
    assert one.to_pylist() == other.to_pylist()
    assert tables["together"].coverage().equals(tables["alone"].coverage())
    for table in tables.values():
        assert table.fsck().is_sound
