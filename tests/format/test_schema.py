"""Columns: an id is for ever, names are not, and only what loses nothing may change."""

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from format.made import arrow_types, names
from thermocline.errors import Corruption, Invalid, NotFound
from thermocline.format.schema import (
    COLUMNS_MAX,
    NAME_LENGTH_MAX,
    Schema,
    TableColumn,
    create_schema,
    decode_schema,
    encode_schema,
    encode_stored,
    fit_columns,
)
from thermocline.format.types import holds

TIME = pa.timestamp("us")


def schema(**columns):
    return create_schema(pa.schema([("ts", TIME), *columns.items()]), "ts")


def fitted(table, **columns):
    return fit_columns(pa.schema([("ts", TIME), *columns.items()]), table, "ts")


def test_the_first_append_gives_the_table_its_columns_in_order():
    found = schema(a=pa.int8(), b=pa.string())
    assert [(c.id, c.name, c.nullable) for c in found.columns] == [
        (1, "ts", False),
        (2, "a", True),
        (3, "b", True),
    ]
    assert found.next_id == 4
    assert found.arrow.field("ts").nullable is False
    assert found.column("b") == found.by_id[3] == found.by_name["b"]


@pytest.mark.parametrize("kind", [pa.int64(), pa.date32(), pa.string(), pa.time64("us")], ids=str)
def test_a_time_column_that_is_no_timestamp_is_refused(kind):
    with pytest.raises(Invalid, match="not a timestamp") as caught:
        create_schema(pa.schema([("ts", kind)]), "ts")
    assert caught.value.facts["type"] == str(kind)


def test_data_without_the_time_column_is_refused():
    with pytest.raises(Invalid, match="no time column"):
        create_schema(pa.schema([("a", pa.int8())]), "ts")
    with pytest.raises(Invalid, match="no time column"):
        fit_columns(pa.schema([("a", pa.int8())]), schema(a=pa.int8()), "ts")


@pytest.mark.parametrize(
    "bad",
    [
        ["a", "a"],
        ["a", "A"],
        ["stra\u00dfe", "STRA\u00dfE"],
        [""],
        ["x" * (NAME_LENGTH_MAX + 1)],
        ["a\x00b"],
    ],
    ids=lambda value: repr(value)[:20],
)
def test_names_that_an_engine_could_confuse_are_refused(bad):
    with pytest.raises(Invalid):
        create_schema(pa.schema([("ts", TIME), *((name, pa.int8()) for name in bad)]), "ts")
    with pytest.raises(Invalid):
        fit_columns(pa.schema([("ts", TIME), *((name, pa.int8()) for name in bad)]), schema(), "ts")


def test_the_number_of_columns_has_a_limit():
    many = [(f"c{place}", pa.int8()) for place in range(COLUMNS_MAX - 1)]
    assert len(create_schema(pa.schema([("ts", TIME), *many]), "ts").columns) == COLUMNS_MAX
    with pytest.raises(Invalid) as caught:
        create_schema(pa.schema([("ts", TIME), *many, ("more", pa.int8())]), "ts")
    assert caught.value.facts["columns_max"] == COLUMNS_MAX
    with pytest.raises(Invalid):
        Schema().add_columns([])


def test_a_column_that_was_renamed_keeps_its_id_and_its_type():
    before = schema(a=pa.int8())
    after = before.rename_column("a", "b")
    assert after.column("b") == TableColumn(2, "b", pa.int8())
    assert "a" not in after.by_name
    assert after.rename_column("b", "B").column("B").id == 2


def test_a_name_is_free_again_but_its_id_is_not():
    after = schema(a=pa.int8()).rename_column("a", "old").add_columns([pa.field("a", pa.string())])
    assert (after.column("old").id, after.column("a").id, after.next_id) == (2, 3, 4)


def test_a_rename_onto_a_name_in_use_is_refused():
    with pytest.raises(Invalid):
        schema(a=pa.int8(), b=pa.int8()).rename_column("a", "B")


def test_a_column_that_does_not_exist_is_named_with_those_that_do():
    with pytest.raises(NotFound) as caught:
        schema(a=pa.int8()).rename_column("z", "y")
    assert caught.value.facts == {"column": "z", "columns": ["ts", "a"]}


def test_an_added_column_is_nullable_whatever_its_field_says():
    after = schema().add_columns([pa.field("a", pa.int8(), nullable=False)])
    assert after.column("a").nullable


def test_a_type_that_no_table_holds_is_refused_by_every_way_in():
    union = pa.sparse_union([pa.field("a", pa.int8())])
    with pytest.raises(Invalid, match="cannot hold this type"):
        schema(a=union)
    with pytest.raises(Invalid, match="cannot hold this type"):
        schema().add_columns([pa.field("a", union)])
    with pytest.raises(Invalid, match="cannot hold this type"):
        schema(a=pa.int8()).widen_column("a", union)


def test_widening_keeps_the_id_and_refuses_what_would_lose_values():
    before = schema(a=pa.int32())
    assert before.widen_column("a", pa.int64()).column("a") == TableColumn(2, "a", pa.int64())
    for kind in (pa.int16(), pa.float32(), pa.string()):
        with pytest.raises(Invalid, match="does not hold every value") as caught:
            before.widen_column("a", kind)
        assert caught.value.facts == {"column": "a", "old": "int32", "new": str(kind)}


@pytest.mark.parametrize("index", [pa.int8(), pa.uint8(), pa.int16(), pa.uint16()], ids=str)
def test_a_dictionary_has_room_for_the_values_of_later_appends(index):
    small = pa.dictionary(index, pa.string(), ordered=True)
    roomy = pa.dictionary(pa.int32(), pa.string(), ordered=True)
    assert schema(a=small).column("a").type == roomy
    assert schema(a=pa.string()).widen_column("a", small).column("a").type == roomy
    large = pa.dictionary(pa.int64(), pa.string())
    assert schema(a=large).column("a").type == large


def test_a_file_with_the_same_columns_fits_as_it_is():
    table = schema(a=pa.int32(), b=pa.string())
    found = fitted(table, b=pa.large_string(), a=pa.int32())
    assert (found.absent, found.stored, found.unknown, found.wider) == ((), {}, (), ())
    assert not found.must_rewrite


def test_a_fit_names_what_is_absent_narrower_unknown_and_wider():
    table = schema(a=pa.int32(), b=pa.int32(), c=pa.int32())
    found = fitted(table, a=pa.int16(), b=pa.int64(), d=pa.string())
    assert found.absent == (4,)
    assert found.stored == {2: pa.int16()}
    assert [field.name for field in found.wider] == ["b"]
    assert [field.name for field in found.unknown] == ["d"]
    assert not found.must_rewrite
    assert encode_stored(found.stored) == {"2": "int16"}


@pytest.mark.parametrize(
    ("table", "file"),
    [
        (pa.timestamp("us"), pa.timestamp("ms")),
        (pa.timestamp("ns"), pa.timestamp("us")),
        (pa.timestamp("ns", tz="UTC"), pa.timestamp("s", tz="Asia/Tokyo")),
        (pa.date64(), pa.date32()),
        (pa.time64("us"), pa.time32("s")),
    ],
    ids=str,
)
def test_a_file_that_counts_time_in_another_unit_is_written_anew(table, file):
    found = fitted(schema(a=table), a=file)
    assert found.must_rewrite
    assert (found.unknown, found.wider) == ((), ())


@pytest.mark.parametrize(
    "kind", [pa.timestamp("ns"), pa.timestamp("s"), pa.timestamp("us", tz="UTC")]
)
def test_a_time_column_of_another_unit_or_zone_is_written_anew(kind):
    assert fit_columns(pa.schema([("ts", kind)]), schema(), "ts").must_rewrite


def test_a_time_column_that_is_no_time_does_not_fit():
    with pytest.raises(Invalid, match="another type"):
        fit_columns(pa.schema([("ts", pa.string())]), schema(), "ts")


@pytest.mark.parametrize(
    ("table", "file"),
    [
        (pa.int64(), pa.string()),
        (pa.int64(), pa.float64()),
        (pa.uint64(), pa.int8()),
        (pa.timestamp("us"), pa.timestamp("us", tz="UTC")),
        (pa.timestamp("us"), pa.timestamp("ns")),
        (pa.list_(pa.int8(), 2), pa.list_(pa.int8(), 3)),
    ],
    ids=str,
)
def test_a_type_that_cannot_be_the_tables_is_refused_and_both_are_named(table, file):
    with pytest.raises(Invalid, match="another type") as caught:
        fitted(schema(a=table), a=file)
    assert caught.value.facts == {"column": "a", "expected": str(table), "got": str(file)}


def test_lists_of_any_size_and_possible_nulls_are_wider_not_the_same():
    strict = pa.list_(pa.field("item", pa.int8(), nullable=False), 2)
    assert fitted(schema(a=strict), a=pa.list_(pa.int8())).wider
    assert fitted(schema(a=pa.list_(pa.int8())), a=strict).stored == {2: strict}


columns = st.lists(
    st.tuples(names, arrow_types), max_size=6, unique_by=lambda pair: pair[0].lower()
).filter(lambda pairs: all(name.lower() != "ts" for name, _ in pairs))


def _schema_of(pairs):
    """Return a schema with these columns; None if one is a dictionary that no table holds."""
    try:
        return schema(**dict(pairs))
    except Invalid:
        return None


@given(columns)
def test_every_schema_reads_back_as_itself_and_fits_itself(pairs):
    table = _schema_of(pairs)
    assume(table is not None)
    assert decode_schema(encode_schema(table)) == table
    found = fit_columns(table.arrow, table, "ts")
    assert (found.absent, found.stored, found.must_rewrite) == ((), {}, False)
    for name, kind in pairs:
        assert holds(table.column(name).type, kind)


@pytest.mark.parametrize(
    "json",
    [
        {},
        {"columns": []},
        {"columns": 7, "next_id": 1},
        {"columns": [7], "next_id": 1},
        {"columns": [{"id": 1, "name": "a", "type": "int8"}], "next_id": 2},
        {"columns": [{"id": 1, "name": "a", "type": {"x": 1}, "nullable": True}], "next_id": 2},
        {"columns": [{"id": "x", "name": "a", "type": "int8", "nullable": True}], "next_id": 2},
        {"columns": [], "next_id": 1e400},
    ],
    ids=str,
)
def test_json_that_is_no_schema_is_corruption(json):
    with pytest.raises(Corruption):
        decode_schema(json)
