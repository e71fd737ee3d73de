"""A table's columns as an Iceberg schema, and the files that fit it.

In:   a schema of the log, and the columns of one file
Out:  an Iceberg schema, a name mapping; `Unsupported` for what Iceberg would show wrongly

- Only types that every engine reads with equal values are shown. A table with another type is
  refused whole: some engines refuse, or misread, every column beside such a one.
- Every column is optional, because a file that was copied may declare it so.
- A file has the ids of its table at every level, or none. Files without ids are read by name, so
  a name must have meant one column in all of them, and they have no nested columns.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from thermocline.errors import Unsupported
from thermocline.format.field_ids import (
    FIELD_ID_KEY,
    LIST_STEP,
    field_ids,
    inner_field_id,
    inner_fields,
)
from thermocline.format.log.action import Segment
from thermocline.format.schema import Schema, TableColumn
from thermocline.format.types import TypeJson, decode_type, plain_type

DECIMAL_DIGITS_MAX = 38
REWRITE_HINT = "run `thermocline table publish --rewrite` once: it rewrites such files"
_LIST_NAMES = [LIST_STEP, "item", "array", "array_element"]
_PLAIN = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.date32(): "date",
    pa.time64("us"): "time",
    pa.timestamp("us"): "timestamp",
}
_WIDER = {("int", "long"), ("float", "double")}


def encode_columns(schema_id: int, schema: Schema) -> dict[str, Any]:
    """Return the columns as an Iceberg schema; `Unsupported` names one that cannot be shown."""
    if not schema.columns:
        raise Unsupported(
            "a table without columns cannot be an Iceberg table", hint="append rows first"
        )
    fields = [
        {"id": c.id, "name": c.name, "required": False, "type": _encode_type(c, c.type, ())}
        for c in schema.columns
    ]
    ids = [one for c in schema.columns for one in field_ids(c.id, c.type)]
    if len(ids) != len(set(ids)):
        raise Unsupported(
            "two fields of the table have the same id",
            hint="add the column under another name, copy its values, and drop the old one",
        )
    return {"type": "struct", "schema-id": schema_id, "fields": fields}


def last_field_id(schemas: Iterable[Schema]) -> int:
    """Return the greatest id that a column, or a field inside one, has had."""
    every = (one for s in schemas for c in s.columns for one in field_ids(c.id, c.type))
    return max(every, default=0)


def simple_type(kind: pa.DataType) -> str | None:
    """Return the Iceberg type of a type without inner fields, or None when it has none."""
    if kinds.is_dictionary(kind):
        kind = kind.value_type
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind == pa.timestamp("us", "UTC"):  # pyiceberg refuses every other zone
        return "timestamptz"
    if kinds.is_decimal128(kind) and kind.scale >= 0 and kind.precision <= DECIMAL_DIGITS_MAX:
        return f"decimal({kind.precision}, {kind.scale})"
    if kinds.is_fixed_size_binary(kind) and not isinstance(kind, pa.BaseExtensionType):
        return f"fixed[{kind.byte_width}]"
    return None


def _encode_type(column: TableColumn, kind: pa.DataType, path: tuple[str, ...]) -> Any:
    def inner(step: str, field: pa.Field) -> tuple[int, Any]:
        here = (*path, step)
        return inner_field_id(column.id, here), _encode_type(column, field.type, here)

    fields = inner_fields(kind)
    if kinds.is_struct(kind):
        every = [(step, *inner(step, field)) for step, field in fields]
        return {
            "type": "struct",
            "fields": [
                {"id": number, "name": name, "required": False, "type": made}
                for name, number, made in every
            ],
        }
    if kinds.is_map(kind):
        (key_id, key), (value_id, value) = (inner(*one) for one in fields)
        made = {"key-id": key_id, "key": key, "value-id": value_id, "value": value}
        return {"type": "map", **made, "value-required": False}
    if fields and not kinds.is_fixed_size_list(kind):
        ((number, element),) = (inner(*one) for one in fields)
        return {
            "type": "list",
            "element-id": number,
            "element": element,
            "element-required": False,
        }
    if (simple := simple_type(kind)) is not None:
        return simple
    raise Unsupported(
        "Iceberg has no type that every engine reads with the values of this column",
        hint="add a column of another type, such as timestamp[us, tz=UTC], int64 or string, copy "
        "the values, drop this one, and publish with --rewrite",
        column=".".join((column.name, *path)),
        type=str(kind),
    )


@dataclass(frozen=True, slots=True)
class FoundColumns:
    """How the columns of one file are found: by their ids, or by the ids that names stand for."""

    has_ids: bool
    names: Mapping[str, int]


def check_file(segment: Segment, schema: Schema, found: pa.Schema) -> FoundColumns:
    """Return how a file's columns are found; `Unsupported` if its ids are not those of the table.

    `schema` is the segment's, `found` the columns in the file.
    """
    for field in found:
        _check_leaves(field, field.name, segment)
    names = {c.name: c for c in schema.columns if c.id not in segment.absent}
    ids = [(field.name, list(_ids_inside(field))) for field in found]
    if not any(one for _, inside in ids for one in inside):
        _check_flat(segment, found)
        return FoundColumns(False, {name: c.id for name, c in names.items()})
    for name, inside in ids:
        column = names.get(name)
        if column is None or inside != list(field_ids(column.id, _file_type(segment, column))):
            raise Unsupported(
                "a file has field ids that are not those of the table",
                hint=REWRITE_HINT,
                path=segment.path,
                column=name,
            )
    return FoundColumns(True, {})


def _check_flat(segment: Segment, found: pa.Schema) -> None:
    """Raise `Unsupported` for a nested column: without ids, DataFusion reads it as null."""
    for field in found:
        if inner_fields(field.type):
            raise Unsupported(
                "a file without field ids has a nested column, which not every engine reads",
                hint=REWRITE_HINT,
                path=segment.path,
                column=field.name,
            )


def _check_leaves(field: pa.Field, column: str, segment: Segment) -> None:
    """Raise `Unsupported` if a file has a type that some engine misreads or refuses."""
    inner = inner_fields(field.type)
    for _, one in inner:
        _check_leaves(one, column, segment)
    if kinds.is_fixed_size_list(field.type) or (not inner and simple_type(field.type) is None):
        raise Unsupported(
            "a file has a column of a type that not every engine reads",
            hint=REWRITE_HINT,
            path=segment.path,
            column=column,
            type=str(field.type),
        )


def _ids_inside(field: pa.Field) -> Iterator[int]:
    """Yield the ids of a field of a file and of all fields inside; 0 for one without an id."""
    own = (field.metadata or {}).get(FIELD_ID_KEY, b"0")
    yield max(0, int(own))
    for _, inner in inner_fields(field.type):
        yield from _ids_inside(inner)


def _file_type(segment: Segment, column: TableColumn) -> pa.DataType:
    stored: TypeJson | None = segment.stored.get(str(column.id))
    return column.type if stored is None else decode_type(stored)


def check_types(segment: Segment, schemas: Mapping[int, Schema], schema: Schema) -> None:
    """Raise `Unsupported` if a segment's file has a type that Iceberg does not read as the table's.

    `schema` is the one that the file is to be read with.
    """
    then = schemas[segment.schema_id]
    for column in schema.columns:
        old = then.by_id.get(column.id)
        if old is None or column.id in segment.absent:
            continue
        kind = _file_type(segment, old)
        if not _reads_as(kind, column.type):
            raise Unsupported(
                "a file has a narrower type than the table, which Iceberg does not widen",
                hint=REWRITE_HINT,
                path=segment.path,
                column=column.name,
                stored=str(kind),
                type=str(column.type),
            )


def _reads_as(stored: pa.DataType, kind: pa.DataType) -> bool:
    """Tell whether a file's type is the table's in Iceberg, or one that Iceberg widens to it."""
    inner, wanted = dict(inner_fields(stored)), dict(inner_fields(kind))
    if inner or wanted:
        same = plain_type(stored).id == plain_type(kind).id and inner.keys() <= wanted.keys()
        return same and all(_reads_as(inner[step].type, wanted[step].type) for step in inner)
    old, new = simple_type(stored), simple_type(kind)
    if old is None or new is None:
        return False
    if old == new or (old, new) in _WIDER:
        return True
    is_decimal = kinds.is_decimal(stored) and kinds.is_decimal(kind)
    return is_decimal and stored.scale == kind.scale and stored.precision <= kind.precision


def unite_names(known: Mapping[str, int], more: Mapping[str, int], path: str) -> dict[str, int]:
    """Return which column each name stands for in files without ids.

    `Unsupported` if a name stood for one column in one file and for another in the next.
    """
    for name, column_id in more.items():
        if known.get(name, column_id) != column_id:
            raise ambiguous_name_error(name, path)
    return {**known, **more}


def check_names(names: Mapping[str, int], schema: Schema) -> None:
    """Raise `Unsupported` if a name in files without ids is now that of another column."""
    for name, column_id in names.items():
        now = schema.by_name.get(name)
        if now is not None and now.id != column_id:
            raise ambiguous_name_error(name, "")


def ambiguous_name_error(name: str, path: str) -> Unsupported:
    """Return the error for a name that has stood for two columns in files without field ids."""
    return Unsupported(
        "a name has stood for two columns, and files without field ids are read by name",
        hint=REWRITE_HINT,
        column=name,
        **({"path": path} if path else {}),
    )


def encode_names(names: Mapping[str, int], schemas: Mapping[int, Schema]) -> list[dict[str, Any]]:
    """Return the name mapping: for each column the names that it has had.

    `names` are those of files without ids. The present names are there for such files to come.
    """
    newest: dict[int, TableColumn] = {}
    for schema_id in sorted(schemas):
        newest |= schemas[schema_id].by_id
    now = schemas[max(schemas)]
    united = {**{c.name: c.id for c in now.columns}, **names}
    by_id: dict[int, list[str]] = {}
    for name, column_id in united.items():
        by_id.setdefault(column_id, []).append(name)
    return [
        _map_field(number, found, newest[number], newest[number].type, ())
        for number, found in sorted(by_id.items())
        if number in newest
    ]


def _map_field(
    number: int, names: list[str], column: TableColumn, kind: pa.DataType, path: tuple[str, ...]
) -> dict[str, Any]:
    inside = []
    for step, field in inner_fields(kind):
        here = (*path, step)
        is_list = step == LIST_STEP and not kinds.is_struct(kind)
        named = _LIST_NAMES if is_list else [step]
        found = inner_field_id(column.id, here)
        inside.append(_map_field(found, named, column, field.type, here))
    return {"field-id": number, "names": names, **({"fields": inside} if inside else {})}
