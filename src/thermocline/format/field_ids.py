"""Field ids: the numbers that Parquet files carry, so that engines find a column by its identity.

In:   a table's columns
Out:  the same columns as Arrow fields with an id at every level, for the Parquet writer

- The id of a column is its id in the log. The id of a field inside a column is derived from the
  column's id and the names on the way to it, so it is the same in every file of every writer,
  whatever is added beside it. Nothing about it is stored in the log.
- Derived ids are at least `INNER_ID_MIN`; ids of columns are below. Ids from `ID_END` on are
  reserved by Iceberg.
- A file has an id at every level or none: if two ids of a table were equal, or a column's id were
  out of range, its files carry no id at all.
"""

import hashlib
from collections.abc import Iterator
from functools import lru_cache

import pyarrow as pa
import pyarrow.types as kinds

from thermocline.format.schema import Schema

FIELD_ID_KEY = b"PARQUET:field_id"
"""The metadata of an Arrow field that the Parquet writer stores as the field's id."""
INNER_ID_MIN = 1 << 30
ID_END = (1 << 31) - 1 - 200
SCHEMAS_KEPT_MAX = 64
LIST_STEP = "element"
KEY_STEP, VALUE_STEP = "key", "value"


def inner_field_id(column_id: int, path: tuple[str, ...]) -> int:
    """Return the id of the field that these steps lead to from a column."""
    text = b"\0".join([str(column_id).encode(), *(step.encode() for step in path)])
    number = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
    return INNER_ID_MIN + number % (ID_END - INNER_ID_MIN)


def inner_fields(kind: pa.DataType) -> list[tuple[str, pa.Field]]:
    """Return the fields directly inside a type, each with the step that leads to it."""
    if kinds.is_map(kind):
        return [(KEY_STEP, kind.key_field), (VALUE_STEP, kind.item_field)]
    if kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind):
        return [(LIST_STEP, kind.value_field)]
    if kinds.is_struct(kind):
        return [(field.name, field) for field in kind]
    return []


def field_ids(column_id: int, kind: pa.DataType) -> Iterator[int]:
    """Yield the id of a column and of every field inside it."""
    yield column_id
    yield from _inner_ids(column_id, (), kind)


def _inner_ids(column_id: int, path: tuple[str, ...], kind: pa.DataType) -> Iterator[int]:
    for step, field in inner_fields(kind):
        here = (*path, step)
        yield inner_field_id(column_id, here)
        yield from _inner_ids(column_id, here, field.type)


def has_distinct_ids(schema: Schema) -> bool:
    """Tell whether files of these columns can carry ids: each is in range, and no two are equal."""
    if any(not 0 < column.id < INNER_ID_MIN for column in schema.columns):
        return False
    every = [one for column in schema.columns for one in field_ids(column.id, column.type)]
    return len(every) == len(set(every))


def add_field_ids(table: pa.Table, schema: Schema) -> pa.Table:
    """Return rows of some of the columns, with the id of every field for the Parquet writer."""
    known = _fields_with_ids(schema)
    if known is None:
        return table
    if table.schema.equals(schema.arrow):
        return pa.Table.from_arrays(table.columns, schema=known)
    fields = []
    for field in table.schema:
        ids = known.field(field.name)
        same = ids.type.equals(field.type)
        fields.append(ids.with_nullable(field.nullable) if same else _identify(field, ids))
    return pa.Table.from_arrays(table.columns, schema=pa.schema(fields, table.schema.metadata))


def _identify(field: pa.Field, known: pa.Field) -> pa.Field:
    """Return a field whose type differs from the table's, such as one without views, with ids."""
    column_id = int(known.metadata[FIELD_ID_KEY])
    return _with_id(field, column_id, _identify_inside(field.type, column_id, ()))


@lru_cache(maxsize=SCHEMAS_KEPT_MAX)
def _fields_with_ids(schema: Schema) -> pa.Schema | None:
    """Return the columns as fields with ids; None when files carry no ids."""
    if not has_distinct_ids(schema):
        return None
    fields = [
        _with_id(column.field, column.id, _identify_inside(column.type, column.id, ()))
        for column in schema.columns
    ]
    return pa.schema(fields, schema.arrow.metadata)


def _with_id(field: pa.Field, field_id: int, kind: pa.DataType) -> pa.Field:
    kept = {**(field.metadata or {}), FIELD_ID_KEY: str(field_id).encode()}
    return pa.field(field.name, kind, field.nullable, metadata=kept)


def _identify_inside(kind: pa.DataType, column_id: int, path: tuple[str, ...]) -> pa.DataType:
    """Return a type whose inner fields have their ids in their metadata."""
    inner = []
    for step, field in inner_fields(kind):
        here = (*path, step)
        inside = _identify_inside(field.type, column_id, here)
        inner.append(_with_id(field, inner_field_id(column_id, here), inside))
    if not inner:
        return kind
    if kinds.is_map(kind):
        return pa.map_(*inner, keys_sorted=kind.keys_sorted)
    if kinds.is_struct(kind):
        return pa.struct(inner)
    if kinds.is_fixed_size_list(kind):
        return pa.list_(inner[0], kind.list_size)
    return pa.large_list(inner[0]) if kinds.is_large_list(kind) else pa.list_(inner[0])
