"""Segments written anew: the same rows, whatever happens to the table meanwhile."""

from dataclasses import replace

import pyarrow as pa
import pytest

from cold.test_export_plan import COLUMNS, export, hand, held
from cold.test_export_plan import rows as entity_rows
from fixtures.lake import HOUR_US, JUNE_US, closes, lake_on, rows, spec
from thermocline.cold.care.fsck import fsck
from thermocline.cold.care.vacuum import vacuum
from thermocline.cold.change.append import AppendOptions
from thermocline.cold.change.delete import match_every_row
from thermocline.cold.change.export_plan import (
    ExportFenced,
    create_entity_spec,
    find_flush_note,
    find_keys,
    find_last_flush,
)
from thermocline.cold.change.replace_segments import SegmentRewrite, replace_segments
from thermocline.cold.segment.row_digest import digest_rows
from thermocline.cold.segment.stage import Stage
from thermocline.disk import OsDisk
from thermocline.errors import Conflict, Corruption, Invalid
from thermocline.format.log.commit_note import NoteFlush
from thermocline.format.log.conflict import TimeWindow


@pytest.fixture
def table(tmp_path):
    """Three small segments of prices, one a day."""
    made = lake_on(OsDisk(), str(tmp_path / "prices"))
    made.create(spec(overlap="allow"))
    for day in range(3):
        append(made, rows(range(day * 24, day * 24 + 5)))
    return made


@pytest.fixture
def orders(tmp_path):
    """The cold half of an entity type, in three small segments."""
    made = lake_on(OsDisk(), str(tmp_path / "orders"))
    made.create(create_entity_spec("order"))
    made.adopt_columns(COLUMNS, evolve=False)
    for part, change in (({"a": 1, "b": 2}, 1), ({"c": 3, "d": 4}, 2), ({"e": 5, "f": 6}, 3)):
        export(made, part, change=change)
    return made


def append(table, data, **options):
    return table.append(data.to_reader(), AppendOptions(**options))


def staged(table, state, inputs, sort_by):
    """Write the live rows of segments as one."""
    only = replace(state, segments=replace(state.segments, base=None))
    names = {segment.segment_id for segment in inputs}
    kept = {key: s for key, s in only.segments.changed.items() if key in names}
    only = replace(state, segments=replace(only.segments, changed=kept, gone=frozenset()))
    batches = list(table.read(only, None))
    stage = Stage(table.storage, workers=1)
    data = pa.Table.from_batches(batches, state.schema.arrow).sort_by(sort_by)
    stage.write_table(data, state.schema, state.spec)
    return stage.staged


def begin(table, inputs=None, sort_by="ts"):
    """Read and write segments anew; return what commits it."""
    state = table.state()
    inputs = list(state.segments) if inputs is None else inputs
    made = staged(table, state, inputs, sort_by)
    return lambda: replace_segments(table, SegmentRewrite(state, inputs), made)


def assert_sound(table):
    """Nothing is wrong with a table; files that no version names may lie about."""
    assert not [finding for finding in fsck(table).findings if not finding.is_harmless]


def content(table, at=None):
    return digest_rows(table.read(table.state(at), None))


def test_the_rows_are_the_same_in_fewer_segments(table):
    before, old = content(table), table.state()
    state = begin(table)()
    assert state.totals.segments == 1
    assert content(table) == before
    assert content(table, int(old.version)) == before
    assert [segment.level for segment in state.segments] == [1]
    assert_sound(table)


def test_a_segment_is_one_level_above_the_highest_it_was_made_from(table):
    begin(table, list(table.state().segments)[:2])()
    begin(table)()
    assert [segment.level for segment in table.state().segments] == [2]


def test_coverage_and_gaps_are_the_same_after_a_rewrite(table):
    table.delete(match_every_row, (), TimeWindow(None, (JUNE_US + 2 * HOUR_US) * 1000))
    _, before = table.coverage()
    begin(table)()
    _, after = lake_on(OsDisk(), table.storage.root).coverage()
    assert (after.whole, after.entities) == (before.whole, before.entities)


def test_C04_rows_that_are_appended_meanwhile_to_the_same_hours_stay(table):
    commit = begin(table)
    append(table, rows(range(5), close=77.0))
    state = commit()
    assert state.totals.segments == 2
    assert closes(table).count(77.0) == 5
    assert len(closes(table)) == 20


def test_C04_an_append_that_must_not_overlap_lands_after_a_rewrite_of_its_hours(table):
    table.alter("overlap", lambda spec, schema: (replace(spec, overlap="reject"), schema))
    commit = begin(table)
    first = table.log.try_commit
    table.log.try_commit = lambda new: (
        setattr(table.log, "try_commit", first),
        commit(),
        first(new),
    )[2]
    append(table, rows(range(10, 12)))
    assert len(closes(table)) == 17
    assert [c.operation for c in table.commits(9)][:2] == ["append", "compact"]


def test_what_is_deleted_from_an_input_meanwhile_is_not_brought_back(table):
    commit = begin(table)
    table.delete(match_every_row, (), TimeWindow(None, (JUNE_US + 2 * HOUR_US) * 1000))
    left = closes(table)
    with pytest.raises(Conflict):
        commit()
    assert closes(table) == left
    begin(table)()
    assert closes(table) == left
    assert_sound(table)


def test_a_delete_that_began_before_a_rewrite_takes_its_rows_after_it(table):
    commit = begin(table)
    first = table.log.try_commit
    table.log.try_commit = lambda new: (
        setattr(table.log, "try_commit", first),
        commit(),
        first(new),
    )[2]
    _, gone = table.delete(match_every_row, (), TimeWindow(None, (JUNE_US + 2 * HOUR_US) * 1000))
    assert gone == 2
    assert len(closes(table)) == 13


def test_a_segment_that_has_gone_meanwhile_is_not_brought_back(table):
    commit = begin(table)
    table.delete(match_every_row, ())
    with pytest.raises(Conflict):
        commit()
    assert closes(table) == []


def test_C05_of_two_rewrites_of_one_segment_one_gives_way_and_leaves_nothing(table):
    first, second = begin(table), begin(table, list(table.state().segments)[1:])
    before = closes(table)
    state = first()
    with pytest.raises(Conflict):
        second()
    assert closes(table) == before
    named = {s.path for s in state.segments} | {s.path for s in table.state(4).segments}
    assert {stored.path for stored in table.storage.list("data")} == named


def test_C05_rewrites_of_different_segments_both_land(table):
    one, two, three = table.state().segments
    append(table, rows([90]))
    first, second = begin(table, [one, two]), begin(table, [three])
    before = closes(table)
    first(), second()
    assert closes(table) == before
    assert_sound(table)


def test_a_restore_that_lands_first_wins(table):
    commit = begin(table)
    table.restore(2)
    with pytest.raises(Conflict):
        commit()
    assert len(closes(table)) == 5


def test_a_column_that_is_added_meanwhile_reads_as_null(table):
    commit = begin(table)
    table.alter("add", lambda s, c: (s, c.add_columns([pa.field("note", pa.string())])))
    commit()
    found = pa.Table.from_batches(table.read(table.state(), ["note"]))
    assert found.column("note").null_count == 15
    assert_sound(table)


def test_a_table_that_counts_other_entities_meanwhile_refuses_what_was_measured_before(table):
    commit = begin(table)
    table.alter("entities", lambda s, c: (replace(s, entity_columns=()), c))
    with pytest.raises(Conflict):
        commit()


def test_a_rewrite_with_a_row_too_few_is_refused(table):
    state = table.state()
    inputs = list(state.segments)
    made = staged(table, state, inputs[:2], "ts")
    with pytest.raises(Corruption):
        replace_segments(table, SegmentRewrite(state, inputs), made)
    assert len(closes(table)) == 15


def test_a_rewrite_whose_file_has_gone_is_not_committed(table):
    state = table.state()
    made = staged(table, state, list(state.segments), "ts")
    table.storage.delete(made[0].path)
    with pytest.raises(Corruption, match="missing"):
        replace_segments(table, SegmentRewrite(state, list(state.segments)), made)
    assert table.state().version == state.version


def test_a_rewrite_of_nothing_is_refused(table):
    with pytest.raises(Invalid):
        SegmentRewrite(table.state(), [])


def test_the_inputs_of_a_rewrite_go_with_a_vacuum_and_its_outputs_stay(table):
    before = content(table)
    old = {segment.path for segment in table.state().segments}
    begin(table)()
    done = vacuum(table, grace_s=0, dry_run=False, allow_short_grace=True)
    assert old <= set(done.files)
    assert content(table) == before
    assert_sound(table)


# Tables of entities.


def test_a_rewrite_of_entities_says_that_it_changes_no_row(orders):
    state = begin(orders, sort_by="_id")()
    note = find_flush_note(orders.log.commit(state.version))
    assert isinstance(note, NoteFlush)
    assert note.changes == ""
    assert find_last_flush(orders.log, state.version).epoch == 3


def test_an_export_made_before_a_rewrite_lands_after_it(orders):
    late = hand(orders, {"a": 10}, gone=["f"], change=4)
    begin(orders, sort_by="_id")()
    orders.commit_export(late)
    assert held(orders) == {"a": 10, "b": 2, "c": 3, "d": 4, "e": 5}
    assert_sound(orders)


def test_an_export_under_way_lands_after_a_rewrite_that_was_first(orders):
    commit = begin(orders, sort_by="_id")
    first = orders.log.try_commit
    orders.log.try_commit = lambda new: (
        setattr(orders.log, "try_commit", first),
        commit(),
        first(new),
    )[2]
    export(orders, {"a": 10}, gone=["f"], change=4)
    assert [c.operation for c in orders.commits()][:2] == ["export", "compact"]
    assert held(orders) == {"a": 10, "b": 2, "c": 3, "d": 4, "e": 5}


def test_the_fence_holds_across_a_rewrite(orders):
    late = hand(orders, {"a": 99}, change=5)
    export(orders, {"a": 10}, change=4)
    begin(orders, sort_by="_id")()
    with pytest.raises(ExportFenced):
        orders.commit_export(late)
    assert held(orders)["a"] == 10


def test_what_an_export_supersedes_while_segments_are_written_anew_stays_superseded(orders):
    commit = begin(orders, sort_by="_id")
    export(orders, {"a": 10, "c": 30}, gone=["f"], change=4)
    export(orders, {"b": 20}, change=5)
    state = commit()
    assert held(orders) == {"a": 10, "b": 20, "c": 30, "d": 4, "e": 5}
    assert state.totals.rows == 5
    assert_sound(orders)


def test_of_two_new_segments_the_one_whose_rows_were_all_superseded_is_not_added(orders):
    export(orders, {"d": 40, "a": 10}, change=4)
    export(orders, {"b": 20, "e": 50}, change=5)
    state = orders.state()
    inputs = list(state.segments)
    both = pa.Table.from_batches(orders.read(state, None)).sort_by("_id")
    stage = Stage(orders.storage, workers=1)
    stage.write_table(both.slice(0, 3), state.schema, state.spec)
    stage.write_table(both.slice(3), state.schema, state.spec)
    export(orders, {"a": 11, "b": 21, "c": 31}, change=6)
    after = replace_segments(orders, SegmentRewrite(state, inputs), stage.staged)
    assert held(orders) == {"a": 11, "b": 21, "c": 31, "d": 40, "e": 50, "f": 6}
    assert after.totals.segments == 2
    assert_sound(orders)


def test_a_segment_that_was_superseded_whole_stays_superseded(orders):
    commit = begin(orders, sort_by="_id")
    export(orders, {"a": 10, "b": 20}, change=4)
    commit()
    assert held(orders) == {"a": 10, "b": 20, "c": 3, "d": 4, "e": 5, "f": 6}
    assert_sound(orders)


def test_C05_of_two_rewrites_of_entities_one_gives_way(orders):
    first, second = begin(orders, sort_by="_id"), begin(orders, sort_by="_id")
    first()
    export(orders, {"a": 10, "b": 20}, change=4)
    with pytest.raises(Conflict):
        second()
    assert held(orders) == {"a": 10, "b": 20, "c": 3, "d": 4, "e": 5, "f": 6}


def test_keys_are_found_by_the_first_and_last_of_a_rewritten_segment(orders):
    state = begin(orders, sort_by="_id")()
    (segment,) = state.segments
    assert segment.stats[str(state.schema.column("_id").id)] == ("a", "f")
    orders.storage.delete(segment.path)
    # Whoever looks for a key past the last one needs no file.
    assert not list(find_keys(orders.storage, state, pa.array(["g"])))


def test_rows_of_entities_that_are_moved_without_a_note_are_refused(orders):
    state = orders.state()
    made = staged(orders, state, list(state.segments), "_id")
    with pytest.raises(Invalid):
        orders.append(entity_rows({"z": 1}).to_reader(), AppendOptions())
    replace_segments(orders, SegmentRewrite(state, list(state.segments)), made)
    assert held(orders) == {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5, "f": 6}
