"""Ids in Parquet files: the same in every file, whatever happens to the columns around them."""

from dataclasses import replace

import pyarrow as pa

from thermocline.format.field_ids import (
    ID_END,
    INNER_ID_MIN,
    add_field_ids,
    field_ids,
    has_distinct_ids,
    inner_field_id,
)
from thermocline.format.schema import Schema

POINT = pa.struct([("x", pa.int32()), ("tags", pa.list_(pa.string()))])
NESTED = Schema().add_columns(
    [
        pa.field("at", POINT),
        pa.field("labels", pa.map_(pa.string(), pa.list_(pa.int8(), 2))),
        pa.field("name", pa.dictionary(pa.int32(), pa.string())),
    ]
)


def ids_inside(field):
    """The ids of a field and of all inside, in the order of the type."""
    own = int(field.metadata[b"PARQUET:field_id"])
    kind = field.type
    if pa.types.is_map(kind):
        return [own, *ids_inside(kind.key_field), *ids_inside(kind.item_field)]
    inside = [kind.field(place) for place in range(kind.num_fields)]
    return [own, *(one for field in inside for one in ids_inside(field))]


def written(schema, names=None):
    rows = schema.arrow.empty_table().select(names or schema.arrow.names)
    return add_field_ids(rows, schema).schema


def test_every_level_has_an_id():
    made = written(NESTED)
    assert ids_inside(made.field("at")) == [
        1,
        inner_field_id(1, ("x",)),
        inner_field_id(1, ("tags",)),
        inner_field_id(1, ("tags", "element")),
    ]
    assert ids_inside(made.field("labels")) == [
        2,
        inner_field_id(2, ("key",)),
        inner_field_id(2, ("value",)),
        inner_field_id(2, ("value", "element")),
    ]
    assert ids_inside(made.field("name")) == [3]
    for column in NESTED.columns:
        assert ids_inside(made.field(column.name)) == list(field_ids(column.id, column.type))


def test_ids_inside_a_column_are_frozen():
    assert inner_field_id(1, ("x",)) == 2007229274
    assert inner_field_id(1, ("tags", "element")) == 1095291395
    assert INNER_ID_MIN <= inner_field_id(9, ("é", "key")) < ID_END


def test_ids_stay_when_columns_are_renamed_added_dropped_and_widened():
    wide = pa.struct([("y", pa.int64()), ("x", pa.int64()), ("tags", pa.list_(pa.string()))])
    after = (
        NESTED.rename_column("at", "place")
        .add_columns([pa.field("at", POINT)])
        .drop_column("name")
        .widen_column("place", wide, are_values_checked=True)
    )
    old, now = written(NESTED).field("at"), written(after).field("place")
    for name in ("x", "tags"):
        assert ids_inside(now.type.field(name)) == ids_inside(old.type.field(name))
    assert not set(ids_inside(written(after).field("at"))) & set(ids_inside(now))


def test_rows_of_some_columns_in_another_order_have_the_ids_of_their_columns():
    made = written(NESTED, ["name", "at"])
    assert [ids_inside(field)[0] for field in made] == [3, 1]


def test_columns_without_distinct_ids_are_written_without_any():
    first = NESTED.columns[0]
    for doubled in (replace(first, id=2), replace(first, id=INNER_ID_MIN)):
        schema = replace(NESTED, columns=(doubled, *NESTED.columns[1:]))
        assert not has_distinct_ids(schema)
        assert all(field.metadata is None for field in written(schema))
