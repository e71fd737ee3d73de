"""Exports into the lake: one live row a key in every version, and exactly the next version."""

from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thermocline.cold.care.fsck import fsck
from thermocline.cold.care.vacuum import vacuum
from thermocline.cold.change.append import AppendOptions
from thermocline.cold.change.export_plan import (
    ExportBatch,
    ExportFenced,
    create_entity_spec,
    find_flush_note,
    find_keys,
    find_last_flush,
)
from thermocline.cold.log.transaction import CommitPlan, transact
from thermocline.cold.storage.local import LocalStorage
from thermocline.cold.table import ColdTable
from thermocline.errors import Corruption, Invalid
from thermocline.format.instant import TimeNs
from thermocline.format.layout import Version
from thermocline.format.log.action import AddSegment, RemoveSegment, SetDeletes
from thermocline.format.log.change_ids import encode_changes
from thermocline.format.log.commit_note import NoteFlush

JUNE_US = 1_717_200_000_000_000
COLUMNS = pa.schema(
    [
        pa.field("_written_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("_id", pa.string()),
        pa.field("_ver", pa.int64()),
        pa.field("value", pa.int64()),
    ]
)


def rows(values, ver=1, day=0):
    """Return rows of these values by key, in the order of their keys."""
    keys = sorted(values)
    times = [JUNE_US + day * 86_400_000_000 + place for place in range(len(keys))]
    columns = [times, keys, [ver] * len(keys), [values[key] for key in keys]]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, COLUMNS, strict=True)]
    return pa.table(arrays, schema=COLUMNS)


def hand(table, values, *, gone=(), base=None, change=1, **options):
    """Return an export of these values, and of these keys without one."""
    state = table.state()
    keys = pa.array(sorted({*values, *gone}), pa.string())
    note = NoteFlush("store", change, TimeNs(change), encode_changes([change]))
    return ExportBatch(
        state.version if base is None else Version(base), keys, rows(values, **options), note, state
    )


def export(table, values, **options):
    """Export values in one commit."""
    return table.commit_export(hand(table, values, **options))


def held(table, at=None):
    """Return the value of each key; a key with two live rows fails the test."""
    found = {}
    for batch in table.read(table.state(at), ["_id", "value"]):
        for row in batch.to_pylist():
            assert row["_id"] not in found
            found[row["_id"]] = row["value"]
    return found


@pytest.fixture
def table(tmp_path):
    """The cold half of an entity type, with its columns."""
    made = ColdTable(LocalStorage(str(tmp_path / "orders")), workers=1)
    made.create(create_entity_spec("order"))
    made.adopt_columns(COLUMNS, evolve=False)
    return made


def test_P12_an_export_supersedes_the_rows_of_its_keys(table):
    export(table, {"a": 1, "b": 1, "c": 1})
    state = export(table, {"b": 2, "d": 2}, change=2)
    assert held(table) == {"a": 1, "b": 2, "c": 1, "d": 2}
    assert held(table, state.version - 1) == {"a": 1, "b": 1, "c": 1}
    assert state.totals.rows == 4


def test_P03_a_key_without_a_row_is_hidden_and_not_added(table):
    export(table, {"a": 1, "b": 1})
    export(table, {}, gone=["b"], change=2)
    assert held(table) == {"a": 1}


def test_P13_a_key_that_came_and_went_leaves_only_its_changes(table):
    state = export(table, {}, gone=["ghost"])
    assert held(table) == {}
    assert [type(one) for one in table.log.commit(state.version).actions] == [NoteFlush]


def test_a_segment_with_no_live_row_left_is_removed(table):
    export(table, {"a": 1, "b": 1})
    state = export(table, {"a": 2}, gone=["b"], change=2)
    kinds = [type(one) for one in table.log.commit(state.version).actions]
    assert kinds == [RemoveSegment, AddSegment, NoteFlush]
    assert len(list(state.segments)) == 1


def test_coverage_is_recounted_for_what_is_left(table):
    export(table, {"a": 1})
    export(table, {"b": 1, "c": 1}, change=2, day=3)
    export(table, {"a": 2, "b": 2}, change=3, day=3)
    assert fsck(table).is_sound
    _, coverage = table.coverage()
    assert len(coverage.whole) == 1


def test_P11_of_two_exports_made_against_one_version_the_second_is_fenced_off(table):
    first, second = hand(table, {"a": 1}), hand(table, {"a": 9}, change=2)
    table.commit_export(first)
    with pytest.raises(ExportFenced) as caught:
        table.commit_export(second)
    assert caught.value.facts == {"base": 2, "taken": 3}
    assert held(table) == {"a": 1}
    assert {finding.kind for finding in fsck(table).findings} == set()  # its files are gone


def test_P11_an_export_that_loses_the_race_for_its_version_is_fenced_off(table):
    late = hand(table, {"a": 9}, change=2)
    land = table.log.try_commit

    def raced(commit):
        table.log.try_commit = land
        export(table, {"a": 1})
        return land(commit)

    table.log.try_commit = raced
    with pytest.raises(ExportFenced):
        table.commit_export(late)
    assert held(table) == {"a": 1}


def compact(table):
    """Rewrite every live row into one segment, as a compaction does."""
    values = held(table)
    state = table.state()
    note = replace(find_last_flush(table.log, state.version), changes="")
    keys = pa.array(sorted(values), pa.string())
    return table.commit_export(ExportBatch(state.version, keys, rows(values), note, state))


def test_an_export_goes_onto_a_compaction_that_landed_meanwhile(table):
    export(table, {"a": 1, "b": 1})
    waiting = hand(table, {"a": 2}, gone=["b"], change=2)
    compact(table)
    table.commit_export(waiting)
    assert held(table) == {"a": 2}


def test_an_export_goes_onto_columns_and_expiries_that_landed_meanwhile(table):
    export(table, {"a": 1})
    waiting = hand(table, {"a": 2}, change=2)
    table.adopt_columns(COLUMNS.append(pa.field("more", pa.string())), evolve=True)
    vacuum(table, grace_s=0, dry_run=False, allow_short_grace=True)
    table.commit_export(waiting)
    assert held(table) == {"a": 2}


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.append(
            pa.RecordBatchReader.from_stream(rows({"x": 1})), AppendOptions()
        ),
        lambda table: table.restore(2),
        lambda table: table.delete(lambda batch: pa.array([True] * batch.num_rows), ["_id"]),
    ],
)
def test_rows_of_entities_change_through_exports_alone(table, change):
    export(table, {"a": 1})
    with pytest.raises(Invalid) as caught:
        change(table)
    assert caught.value.facts["entity_type"] == "order"
    assert held(table) == {"a": 1}


def test_a_commit_that_moved_rows_without_saying_so_is_found(table):
    state = export(table, {"a": 1})
    (segment,) = state.segments
    transact(
        table.log, lambda _: CommitPlan("foreign", (AddSegment(replace(segment, segment_id="x")),))
    )
    with pytest.raises(Corruption):
        find_flush_note(table.log.commit(state.version + 1))


def test_the_newest_export_is_found_behind_neutral_versions(table):
    assert find_last_flush(table.log, table.state().version) is None
    export(table, {"a": 1}, change=7)
    compact(table)
    table.adopt_columns(COLUMNS.append(pa.field("more", pa.string())), evolve=True)
    assert find_last_flush(table.log, table.state().version).epoch == 7


def test_keys_are_looked_for_only_where_they_may_be(table):
    export(table, {f"k{n:03}": n for n in range(10)})
    export(table, {f"k{n:03}": n for n in range(500, 510)}, change=2)
    opened = []
    open_segment = table.storage.open_segment

    def opening(path, *named, **options):
        opened.append(path)
        return open_segment(path, *named, **options)

    table.storage.open_segment = opening
    hits = list(find_keys(table.storage, table.state(), pa.array(["k007", "k300"])))
    assert [hit.positions.tolist() for hit in hits] == [[7]]
    assert len(opened) == 1


def test_a_key_too_long_for_the_log_is_found_all_the_same(table):
    long = "k" * 500
    export(table, {long: 1, "a": 1})
    assert dict(next(iter(table.state().segments)).stats) == {}
    export(table, {long: 2}, change=2)
    assert held(table) == {long: 2, "a": 1}


VALUES = st.dictionaries(st.text("abé\U0001f600", min_size=1, max_size=3), st.integers(0, 9))


@settings(max_examples=25)
@given(st.lists(st.tuples(VALUES, st.sets(st.text("abé", min_size=1, max_size=2))), max_size=6))
def test_any_exports_leave_what_a_dict_would_have(tmp_path_factory, exports):
    table = ColdTable(LocalStorage(str(tmp_path_factory.mktemp("t") / "orders")), workers=1)
    table.create(create_entity_spec("order"))
    table.adopt_columns(COLUMNS, evolve=False)
    model, past = {}, {}
    for change, (values, gone) in enumerate(exports, start=1):
        gone = gone - values.keys()
        state = export(table, values, gone=gone, change=change)
        model = {key: one for key, one in {**model, **values}.items() if key not in gone}
        past[state.version] = dict(model)
        assert state.totals.rows == len(model)
    for version, then in past.items():
        assert held(table, version) == then
    assert fsck(table).is_sound
    notes = [type(a) for a in table.log.commit(table.state().version).actions]
    assert set(notes) <= {AddSegment, RemoveSegment, SetDeletes, NoteFlush} or not exports
