"""Overlap: what an append into buckets that are held already does, by policy."""

import orjson
import pyarrow as pa
import pytest

from fixtures.lake import HOUR_US, JUNE_US, closes, lake_on, rows, spec
from fixtures.sim_disk import SimDisk
from thermocline.cold.care.fsck import fsck
from thermocline.cold.change.append import AppendOptions
from thermocline.errors import CoverageOverlapError, Invalid


def made(*, entities=("symbol",), **options):
    disk = SimDisk(["/lake"])
    table = lake_on(disk)
    table.create(spec(entities=entities, **options))
    return disk, table


def append(table, data, **wish):
    return table.append(data.to_reader(), AppendOptions(**wish))


def hours(table):
    """Return the hours of June that each symbol is said to have."""
    first = JUNE_US // HOUR_US
    found = table.coverage()[1].entities.items()
    return {orjson.loads(key)[0]: (held.numbers() - first).tolist() for key, held in found}


def test_T20_reject_names_the_buckets_and_the_entity_and_changes_nothing():
    _, table = made()
    append(table, rows([0, 1, 2]))
    append(table, rows([0, 1, 2], "AMD"))
    both = pa.concat_tables([rows([2, 3]), rows([3], "AMD")])
    with pytest.raises(CoverageOverlapError) as error:
        append(table, both)
    facts = error.value.facts
    assert facts["buckets"] == ["2024-06-01T02:00:00Z"]
    assert facts["entity"] == {"symbol": "NVDA"}
    assert facts["overlapping"] == 1
    assert table.state().version == 3
    assert closes(table) == [0, 0, 1, 1, 2, 2]


def test_T20_reject_is_about_one_entity_at_a_time_where_entities_are_declared():
    _, table = made()
    append(table, rows([0]))
    append(table, rows([0], "AMD"))
    _, plain = made(entities=())
    append(plain, rows([0]))
    with pytest.raises(CoverageOverlapError):
        append(plain, rows([0], "AMD"))


def test_T20_allow_adds_rows_to_buckets_that_are_held():
    _, table = made(overlap="allow")
    append(table, rows([0, 0, 1]))
    append(table, rows([0], close=7))
    assert closes(table) == [0, 0, 1, 7]
    assert hours(table) == {"NVDA": [0, 1]}


@pytest.mark.parametrize("entities", [("symbol",), ()])
def test_T20_replace_swaps_whole_buckets_and_a_second_run_changes_nothing(entities):
    disk, table = made(entities=entities)
    append(table, rows([0, 1, 1, 2, 3]))
    for run in range(2):
        append(table, rows([1, 2, 2], close=70 + run), overlap="replace")
        assert closes(table) == [0, 3, 70 + run, 70 + run, 70 + run]
        assert table.coverage()[1].whole.numbers().tolist() == [
            JUNE_US // HOUR_US + hour for hour in range(4)
        ]
        assert fsck(lake_on(disk)).is_sound
    state = table.state()
    append(table, rows([1, 2, 2], close=71), overlap="replace")
    assert table.state().totals.rows == state.totals.rows
    assert table.state().totals.segments == state.totals.segments


def test_T20_replace_leaves_the_other_entities_of_a_bucket_alone():
    _, table = made()
    append(table, pa.concat_tables([rows([0, 1]), rows([0, 1], "AMD", close=5)]))
    append(table, rows([1], close=9), overlap="replace")
    assert closes(table) == [0, 5, 5, 9]
    assert hours(table) == {"NVDA": [0, 1], "AMD": [0, 1]}
    assert table.state().totals.segments == 2


def test_T20_a_segment_of_which_all_buckets_are_replaced_is_removed():
    _, table = made()
    append(table, rows([0, 1]))
    append(table, rows([5]))
    append(table, rows([0, 1, 2], close=9), overlap="replace")
    assert table.state().totals.segments == 2
    assert closes(table) == [5, 9, 9, 9]


def test_a_policy_that_is_asked_for_goes_before_the_tables():
    _, table = made(overlap="allow")
    append(table, rows([0]))
    with pytest.raises(CoverageOverlapError):
        append(table, rows([0]), overlap="reject")
    append(table, rows([0], close=4), overlap="replace")
    assert closes(table) == [4]


def test_a_word_that_is_no_policy_is_refused_with_those_that_are():
    with pytest.raises(Invalid, match="reject, allow, replace"):
        AppendOptions(overlap="merge")
    with pytest.raises(Invalid, match="reject, allow, replace"):
        made(overlap="merge")


def test_a_replace_that_loses_a_race_replaces_what_the_winner_wrote():
    disk, table = made()
    append(table, rows([0, 1, 2]))

    def rival(operation, path):
        if operation == "link" and path.endswith("3.json"):
            disk.hooks = None
            append(lake_on(disk), rows([1], close=50), overlap="replace")

    disk.hooks = rival
    append(table, rows([1], close=60), overlap="replace")
    assert closes(lake_on(disk)) == [0, 2, 60]
    assert fsck(lake_on(disk)).is_sound
