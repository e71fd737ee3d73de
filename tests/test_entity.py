"""The parts of entities that need no PostgreSQL: columns, limits, remembered answers, hiding."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thermocline.cold.change.export_plan import ExportBatch, create_entity_spec
from thermocline.cold.entity_view import (
    EntityView,
    HiddenPositions,
    drop_keys,
    read_entity_rows,
)
from thermocline.cold.storage.local import LocalStorage
from thermocline.cold.table import ColdTable
from thermocline.contract.schema.register import parse_contract
from thermocline.entity import degraded_read as answers_module
from thermocline.entity.columns import conform_rows, fit_state, fit_table, fit_to_contract
from thermocline.entity.degraded_read import ScanAnswer, ScanAnswerCache
from thermocline.entity.table import ChangeLimit, EntitySettings
from thermocline.errors import Overloaded
from thermocline.format.instant import TimeNs
from thermocline.format.log.change_ids import encode_changes
from thermocline.format.log.commit_note import NoteFlush
from thermocline.hot.postgres.export.arrow_rows import cold_schema
from thermocline.hot.postgres.export.dirty import Pressure


def contract(properties, previous=None):
    return parse_contract({"type": "object", "properties": properties}, previous)


@pytest.fixture
def table(tmp_path):
    """The cold half of an entity type, without columns yet."""
    made = ColdTable(LocalStorage(str(tmp_path / "things")), workers=1)
    made.create(create_entity_spec("thing"))
    return made


# Columns.


def test_a_table_gets_the_columns_of_its_contract_after_its_own(table):
    first = contract({"name": {"type": "string"}, "size": {"type": "number"}})
    state = fit_table(table, first)
    names = ["_written_at", "_id", "_ver", "_schema_version", "name", "size"]
    assert [column.name for column in state.schema.columns] == names
    assert state.schema.arrow.equals(cold_schema(first))
    assert fit_table(table, first).version == state.version


def test_a_new_property_is_a_new_column_and_a_renamed_one_keeps_its_own(table):
    first = contract({"a": {"type": "string"}, "b": {"type": "string"}})
    before = fit_table(table, first)
    swapped = {"a": {"type": "string", "x-id": 2}, "b": {"type": "string", "x-id": 1}}
    second = contract({**swapped, "c": {"type": "boolean"}}, first)
    after = fit_table(table, second)
    by_id = {column.id: column.name for column in after.schema.columns}
    then = {column.id: column.name for column in before.schema.columns}
    assert {then[key]: by_id[key] for key in then if key > 4} == {"a": "b", "b": "a"}
    assert [column.name for column in after.schema.columns][-1] == "c"


def test_a_property_that_left_keeps_its_column(table):
    first = contract({"a": {"type": "string"}, "b": {"type": "string"}})
    fit_table(table, first)
    second = contract({"a": {"type": "integer"}}, first)
    state = fit_table(table, second)
    names = [column.name for column in state.schema.columns][4:]
    assert sorted(names) == sorted(column.name for column in (*second.columns, *second.retired))
    assert state.schema.by_name["a"].type == pa.int64()


def test_a_state_can_be_read_with_columns_that_were_not_committed_yet(table):
    first = contract({"a": {"type": "string"}})
    state = fit_table(table, first)
    second = contract({"a": {"type": "string"}, "b": {"type": "boolean"}}, first)
    imagined = fit_state(state, second)
    assert imagined.schema.columns == fit_to_contract(state.spec, state.schema, second)[1].columns
    assert imagined.version == state.version == table.state().version
    assert fit_table(table, second).schema.columns == imagined.schema.columns
    assert fit_state(state, first) is state


# Limits.


def test_room_is_looked_for_once_in_a_while_and_before_a_limit_is_passed():
    looks, now = [], [0.0]

    def pressure():
        looks.append(1)
        return Pressure(5, 0.0)

    room = ChangeLimit(EntitySettings(changes_warn=50, changes_max=100), pressure, lambda: now[0])
    for _ in range(20):
        room.admit()
    assert len(looks) == 1
    now[0] = 2.0
    room.admit()
    assert len(looks) == 2
    room.admit(60)
    assert len(looks) == 3  # what was known and what is written could be past the limit
    with pytest.raises(Overloaded) as caught:
        room.admit(96)
    assert caught.value.facts == {"changes": 5, "changes_max": 100}


# Remembered answers.


def answer_of(rows):
    return ScanAnswer(pa.table({"x": list(range(rows))}), datetime.now(UTC), None)


def test_few_answers_are_remembered_and_no_large_ones(monkeypatch):
    monkeypatch.setattr(answers_module, "ANSWERS_KEPT_MAX", 2)
    monkeypatch.setattr(answers_module, "ANSWERS_BYTES_MAX", 1_000)
    answers = ScanAnswerCache()
    for question in "abc":
        answers.remember(question, answer_of(10))
    assert answers.last("a") is None
    assert answers.last("c").warning
    answers.remember("large", answer_of(1_000))
    assert answers.last("large") is None
    answers.remember("half", answer_of(120))
    assert answers.last("half") is not None
    assert answers.last("b") is None


def test_an_answer_gives_its_rows_as_an_arrow_stream():
    assert pa.table(answer_of(3)).num_rows == 3


# Hiding.

KEYS = st.text("ab\u00e9\U0001f600", min_size=1, max_size=3)


@given(st.lists(KEYS, max_size=20), st.sets(KEYS, max_size=10))
def test_exactly_the_hidden_keys_are_hidden(keys, hidden):
    batch = pa.record_batch({"_id": pa.array(keys, pa.string())})
    hides = pa.array(sorted(hidden), pa.string())
    kept = drop_keys(batch, hides).column("_id").to_pylist()
    assert kept == [key for key in keys if key not in hidden]


def view_of(table, hidden, rows=None):
    state = table.state()
    hot = state.schema.arrow.empty_table() if rows is None else rows
    return EntityView(state, pa.array(sorted(hidden), pa.string()), hot, TimeNs(0))


def rows(table, keys, ver=1):
    """Return rows of the table's columns for these keys."""
    keys = sorted(keys)
    columns = {
        "_written_at": pa.array([0] * len(keys), pa.timestamp("us", tz="UTC")),
        "_id": pa.array(keys, pa.string()),
        "_ver": pa.array([ver] * len(keys), pa.int64()),
        "_schema_version": pa.array([1] * len(keys), pa.int32()),
        "name": pa.array(keys, pa.string()),
    }
    return conform_rows(pa.table(columns), table.state().schema)


def export(table, keys, change):
    state = table.state()
    note = NoteFlush("store", change, TimeNs(change), encode_changes([change]))
    ids = pa.array(sorted(keys), pa.string())
    table.commit_export(ExportBatch(state.version, ids, rows(table, keys, change), note, state))


@settings(max_examples=25)
@given(st.lists(st.tuples(st.booleans(), st.sets(KEYS, min_size=1, max_size=6)), max_size=8))
def test_hidden_places_give_what_hidden_keys_give(tmp_path_factory, steps):
    table = ColdTable(LocalStorage(str(tmp_path_factory.mktemp("t") / "things")), workers=1)
    table.create(create_entity_spec("thing"))
    fit_table(table, contract({"name": {"type": "string"}}))
    places, hidden = HiddenPositions(table.storage), set()
    for change, (is_export, keys) in enumerate(steps, start=1):
        if is_export:
            export(table, keys, change)
            hidden = set()
        else:
            hidden = hidden | keys
        view = view_of(table, hidden)
        by_keys = [row for b in read_entity_rows(table.storage, view) for row in b.to_pylist()]
        state = places.state(view)
        by_places = [row for b in table.read(state, None) for row in b.to_pylist()]
        assert sorted(map(str, by_keys)) == sorted(map(str, by_places))
