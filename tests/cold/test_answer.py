"""Answers from metadata alone: gaps, what is held, who fell silent, what happened."""

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.lake import HOUR_US, JUNE_US, lake_on, rows, spec
from fixtures.sim_disk import SimDisk
from thermocline import TimeSeriesTable
from thermocline.errors import Invalid, NotFound

DAY = ("2024-06-01", "2024-06-02")


def hour(number):
    return datetime(2024, 6, 1, tzinfo=UTC) + timedelta(hours=number)


def stretches(answer, *, entity="symbol"):
    """Return the stretches of an answer as (entity, first hour, end hour)."""
    found = []
    for row in answer.to_pylist():
        assert row["buckets"] * timedelta(hours=1) == row["end"] - row["start"]
        first, end = ((row[edge] - hour(0)) // timedelta(hours=1) for edge in ("start", "end"))
        found.append((row[entity], first, end) if entity in row else (first, end))
    return found


@pytest.fixture
def held(table):
    """NVDA from 0 to 3 and 6 to 8, AMD from 2 to 4; five versions."""
    table.append(rows([0, 1, 2]))
    table.append(rows([2, 3], "AMD"))
    table.append(rows([6, 7]))
    table.delete("close = 99")
    table.add_column("note", pa.string())
    return table


@pytest.fixture
def plain(tmp_path):
    return TimeSeriesTable.create(tmp_path / "plain", time_column="ts", bucket="1h")


# Gaps


def test_gaps_are_told_for_each_entity(held):
    assert stretches(held.gaps(hour(0), hour(8))) == [
        ("AMD", 0, 2),
        ("AMD", 4, 8),
        ("NVDA", 3, 6),
    ]


def test_gaps_of_one_entity(held):
    for entity in ("AMD", ["AMD"], ("AMD",), {"symbol": "AMD"}):
        found = held.gaps(hour(0), hour(8), entity=entity)
        assert stretches(found) == [("AMD", 0, 2), ("AMD", 4, 8)]


def test_gaps_of_the_table_are_the_buckets_that_no_entity_has(held):
    assert stretches(held.gaps(hour(0), hour(8), per_entity=False)) == [(4, 6)]


def test_without_a_stretch_it_is_from_the_first_bucket_held_to_the_last(held):
    assert stretches(held.gaps(per_entity=False)) == [(4, 6)]
    assert stretches(held.gaps(entity="AMD")) == [("AMD", 0, 2), ("AMD", 4, 8)]
    assert stretches(held.gaps(end=hour(10), entity="NVDA")) == [("NVDA", 3, 6), ("NVDA", 8, 10)]
    assert stretches(held.gaps(start=hour(5), entity="NVDA")) == [("NVDA", 5, 6)]


def test_a_stretch_that_begins_or_ends_inside_a_bucket_has_that_bucket(held):
    start, end = hour(3) + timedelta(minutes=30), hour(5) + timedelta(microseconds=1)
    assert stretches(held.gaps(start, end, entity="NVDA")) == [("NVDA", 3, 6)]
    assert stretches(held.gaps(hour(3), hour(5), entity="NVDA")) == [("NVDA", 3, 5)]


def test_an_entity_that_was_never_seen_is_an_error_and_not_without_gaps(held):
    for ask in (
        lambda: held.gaps(*DAY, entity="INTC"),
        lambda: held.coverage_ratio(*DAY, entity="INTC"),
        lambda: held.is_covered(*DAY, entity="INTC"),
        lambda: held.last_fully_covered_window("1h", entity="INTC"),
    ):
        with pytest.raises(NotFound, match="no such entity"):
            ask()


@pytest.mark.parametrize("entity", [("AMD", "NYSE"), [], {"ticker": "AMD"}, {}])
def test_what_does_not_name_an_entity_is_refused_with_the_columns_that_do(held, entity):
    with pytest.raises(Invalid, match="symbol"):
        held.gaps(*DAY, entity=entity)


@pytest.mark.parametrize("ends", [("2024-06-02", "2024-06-01"), ("2024-06-01", "2024-06-01")])
def test_a_stretch_that_ends_before_it_begins_is_refused(held, ends):
    for ask in (held.gaps, held.coverage_ratio, held.is_covered, held.silent_entities):
        with pytest.raises(Invalid, match="end is not after"):
            ask(*ends)


def test_a_table_that_holds_nothing_lacks_everything(table, plain):
    assert stretches(plain.gaps(*DAY)) == [(0, 24)]
    assert stretches(table.gaps(*DAY)) == [(None, 0, 24)]
    for empty in (table, plain):
        assert stretches(empty.gaps(*DAY, per_entity=False)) == [(0, 24)]
        assert empty.gaps().num_rows == 0
        assert empty.coverage().num_rows == 0
        assert empty.coverage_ratio(*DAY) == 0.0
        assert not empty.is_covered(*DAY)
        assert empty.last_fully_covered_window("1h") is None
    assert table.coverage().schema.names == ["symbol", "start", "end", "buckets"]
    assert table.silent_entities(*DAY).num_rows == 0
    table.append(rows([0]))
    table.delete("true")
    assert stretches(table.gaps(*DAY)) == [(None, 0, 24)]
    assert table.gaps().schema.field("symbol").type == pa.string()


@settings(max_examples=60)
@given(st.sets(st.integers(-40, 40)), st.integers(-45, 45), st.integers(1, 60))
def test_gaps_and_coverage_are_what_counting_gives(numbers, first, length):
    table = lake_on(SimDisk(["/lake"]))
    table.create(spec(entities=()))
    face = TimeSeriesTable(table)
    if numbers:
        face.append(rows(sorted(numbers)))
    asked = range(first, first + length)
    found = stretches(face.gaps(hour(first), hour(first + length)))
    missing = [n for start, end in found for n in range(start, end)]
    assert missing == [n for n in asked if n not in numbers]
    assert all(one[1] < two[0] for one, two in pairwise(found))
    runs = [n for start, end in stretches(face.coverage()) for n in range(start, end)]
    assert runs == sorted(numbers)
    share = sum(n in numbers for n in asked) / length
    assert face.coverage_ratio(hour(first), hour(first + length)) == pytest.approx(share)
    assert face.is_covered(hour(first), hour(first + length)) == (share == 1)
    window = face.last_fully_covered_window(f"{length}h", before=hour(first))
    ends = [n for n in range(-40, first + 1) if all(n - 1 - i in numbers for i in range(length))]
    wanted = (hour(max(ends) - length), hour(max(ends))) if ends else None
    assert window == wanted


# Other questions


def test_coverage_is_told_for_each_entity_in_order_however_it_was_met(held):
    wanted = [("AMD", 2, 4), ("NVDA", 0, 3), ("NVDA", 6, 8)]
    assert stretches(held.coverage()) == wanted
    assert stretches(TimeSeriesTable.open(held.root()).coverage()) == wanted
    assert stretches(held.coverage(per_entity=False)) == [(0, 4), (6, 8)]


def test_the_ratio_is_of_all_entities_or_of_one(held):
    assert held.coverage_ratio(hour(0), hour(8)) == (5 + 2) / 16
    assert held.coverage_ratio(hour(0), hour(8), entity="NVDA") == 5 / 8
    assert held.coverage_ratio(hour(0), hour(3), entity="NVDA") == 1.0


def test_a_window_is_covered_when_every_entity_has_it(held):
    assert held.is_covered(hour(2), hour(3))
    assert not held.is_covered(hour(0), hour(3))
    assert held.is_covered(hour(0), hour(3), entity="NVDA")
    assert not held.is_covered(hour(0), hour(3) + timedelta(microseconds=1), entity="NVDA")


def test_the_last_window_that_is_held_in_full(held):
    ask = held.last_fully_covered_window
    assert ask("1h") == (hour(2), hour(3))
    assert ask("2h") is None
    assert ask("2h", entity="NVDA") == (hour(6), hour(8))
    assert ask("90m", entity="NVDA") == (hour(6), hour(8))
    assert ask("3h", entity="NVDA") == (hour(0), hour(3))
    assert ask("2h", entity="NVDA", before=hour(7)) == (hour(1), hour(3))
    assert ask("1h", entity="NVDA", before=hour(7)) == (hour(6), hour(7))
    with pytest.raises(Invalid, match="out of range"):
        ask("0h")


def test_entities_without_a_row_in_the_stretch_are_silent(held):
    assert held.silent_entities(hour(4)).to_pylist() == [
        {"symbol": "AMD", "last_seen_before": hour(4)}
    ]
    assert held.silent_entities(hour(0), hour(2)).column("symbol").to_pylist() == ["AMD"]
    assert held.silent_entities(hour(2), hour(3)).num_rows == 0
    assert held.silent_entities(hour(50)).column("symbol").to_pylist() == ["AMD", "NVDA"]


def test_a_table_without_entities_cannot_say_which_are_silent(plain):
    with pytest.raises(Invalid, match="entity columns"):
        plain.silent_entities(*DAY)


ENTITIES = [
    pa.array([True, False]),
    pa.array([2**64 - 1, 0], pa.uint64()),
    pa.array([-(2**63), 7]),
    pa.array([Decimal("1.50"), Decimal("-0.25")]),
    pa.array([Decimal("1.50"), Decimal("-0.25")], pa.decimal256(60, 2)),
    pa.array([date(1, 1, 1), date(2024, 2, 29)]),
    pa.array([date(1969, 12, 31), date(2024, 2, 29)], pa.date64()),
    pa.array([time(0), time(23, 59, 59)], pa.time32("s")),
    pa.array([time(0, 0, 0, 5), time(23, 59, 59, 999_999)], pa.time64("us")),
    pa.array([datetime(2024, 1, 1, 0, 0, 0, 500_000), datetime(1969, 1, 1)], pa.timestamp("ms")),
    pa.array([datetime(2024, 1, 1, tzinfo=UTC)] * 2, pa.timestamp("us", tz="Europe/Berlin")),
    pa.array(["ü 'quoted' \\", ""], pa.large_string()),
    pa.array(["a", "b"], pa.string_view()),
    pa.array(["a", "b"]).dictionary_encode(),
    pa.array(["a", None]),
    pa.array([None, 5], pa.int8()),
]


@pytest.mark.parametrize("values", ENTITIES, ids=lambda values: str(values.type))
def test_an_entity_of_any_ordinary_type_comes_back_as_it_went_in(table, values):
    table.append(rows([0, 1]).set_column(1, "symbol", values))
    for face in (table, TimeSeriesTable.open(table.root())):
        wanted = values.to_pylist()
        assert set(face.coverage().column("symbol").to_pylist()) == set(wanted)
        for value in wanted:
            assert face.coverage_ratio(hour(0), hour(2), entity=[value]) >= 0.5
        silent = face.silent_entities(hour(9)).column("symbol").to_pylist()
        assert set(silent) == set(wanted)
    assert table.fsck().is_sound


def test_two_entity_columns_name_an_entity_together(tmp_path):
    table = TimeSeriesTable.create(
        tmp_path / "t", time_column="ts", bucket="1h", entity_columns=["symbol", "venue"]
    )
    for venue in ("X", "Y"):
        table.append(rows([0]).append_column("venue", pa.array([venue])))
    table.append(rows([1]).append_column("venue", pa.array(["Y"])))
    assert table.coverage_ratio(hour(0), hour(2), entity=("NVDA", "X")) == 0.5
    assert table.is_covered(hour(0), hour(2), entity={"venue": "Y", "symbol": "NVDA"})
    assert table.coverage().select(["symbol", "venue"]).to_pylist() == [
        {"symbol": "NVDA", "venue": "X"},
        {"symbol": "NVDA", "venue": "Y"},
    ]


# Time travel and history


def test_every_question_can_be_asked_of_an_older_version(held):
    assert stretches(held.gaps(hour(0), hour(8), entity="NVDA", at=2)) == [("NVDA", 3, 8)]
    assert stretches(held.coverage(at=3)) == [("AMD", 2, 4), ("NVDA", 0, 3)]
    assert held.coverage_ratio(hour(0), hour(3), at=2) == 1.0
    assert held.is_covered(hour(0), hour(3), at=2)
    assert held.last_fully_covered_window("3h", at=2) == (hour(0), hour(3))
    assert held.silent_entities(hour(0), hour(1), at=2).num_rows == 0
    with pytest.raises(NotFound, match="no such entity"):
        held.gaps(*DAY, entity="AMD", at=2)


def test_history_tells_every_commit_newest_first(held):
    held.delete("close = 7")
    held.delete("symbol = 'AMD'")
    found = held.history().to_pylist()
    assert [row["version"] for row in found] == [7, 6, 5, 4, 3, 2, 1]
    told = [(r["operation"], r["rows_added"], r["rows_removed"]) for r in found]
    assert told == [
        ("delete", 0, 2),
        ("delete", 0, 1),
        ("add column", 0, 0),
        ("append", 2, 0),
        ("append", 2, 0),
        ("append", 3, 0),
        ("create", 0, 0),
    ]
    assert [row["segments_removed"] for row in found] == [1, 0, 0, 0, 0, 0, 0]
    times = [row["time"] for row in found]
    assert times == sorted(times, reverse=True)
    assert held.history(limit=2).num_rows == 2


def test_a_diff_tells_what_changed_between_two_versions(held):
    held.delete("close = 7")
    found = held.diff(2)
    assert (found.old, found.new) == (2, 6)
    assert (len(found.added), len(found.removed), len(found.changed)) == (2, 0, 0)
    assert found.rows == 3
    assert (found.buckets_gained, found.buckets_lost) == (2, 0)
    assert found.columns == ("note: string",)
    back = held.diff(6, 4)
    assert (len(back.changed), back.rows) == (1, 1)
    assert (back.buckets_gained, back.buckets_lost) == (1, 0)
    nothing = held.diff(6)
    assert (nothing.added, nothing.rows, nothing.size_bytes, nothing.columns) == ((), 0, 0, ())


def test_an_instant_names_the_newest_version_of_then(held):
    times = {row["version"]: row["time"] for row in held.history().to_pylist()}
    for version, moment in times.items():
        assert held.diff(moment).old == version
        assert held.diff(moment.isoformat()).old == version
        later = moment + timedelta(microseconds=1)
        assert held.diff(later).old == max(v for v in times if times[v] <= later)
        assert held.to_arrow(at=moment).equals(held.to_arrow(at=version))
    with pytest.raises(NotFound, match="did not exist"):
        held.diff(times[1] - timedelta(microseconds=1))


def test_a_clock_microsecond_is_enough_between_buckets():
    table = lake_on(SimDisk(["/lake"]))
    table.create(spec(entities=()))
    face = TimeSeriesTable(table)
    face.append(pa.table({"ts": pa.array([JUNE_US + HOUR_US - 1], pa.timestamp("us"))}))
    assert stretches(face.gaps(hour(0), hour(2))) == [(1, 2)]


def test_an_entity_column_called_like_a_column_of_the_answer_keeps_its_values(tmp_path):
    table = TimeSeriesTable.create(
        tmp_path / "t", time_column="ts", bucket="1h", entity_columns=["start"]
    )
    table.append(rows([0, 2]).rename_columns(["ts", "start", "close"]))
    (gap,) = table.gaps().to_pylist()
    assert (gap["start"], gap["start_"].hour, gap["buckets"]) == ("NVDA", 1, 1)
