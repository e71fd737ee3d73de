"""A table's columns: stable ids, names and types, and how they may change.

In:   Arrow schemas of what is appended
Out:  a `Schema`, its JSON, and a `ColumnFit`: how a file's columns map to the table's

- A column's id is its identity. Ids are never reused, so a renamed column keeps its old values and
  a column added later reads as null in older segments.
- The time column is never null; every other column may be.
- A dictionary's index has at least 32 bits: 8 would hold the first append and break the next. Its
  values are of a type that Parquet and Arrow keep in dictionaries; views become what they view.
- Whatever is inside of a column may be null: a row without the column has nulls there, too. No
  dictionary is inside of a column.
- Column names differ by more than their case, because SQL engines do not tell `a` from `A`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.types as kinds

from thermocline.errors import Corruption, Invalid, NotFound
from thermocline.format.argument import check_text, wrong_kind
from thermocline.format.bucket import TIME
from thermocline.format.index_column import INTEGER_TYPES, fits_index
from thermocline.format.types import (
    NAME_LENGTH_MAX,
    TypeJson,
    check_inner_names,
    decode_type,
    encode_type,
    holds,
    is_alike,
    is_column_name,
    is_finer_timestamp,
    plain_type,
    unite_types,
)

COLUMNS_MAX = 10_000
METADATA_BYTES_MAX = 1 << 20
Metadata: TypeAlias = tuple[tuple[str, str], ...]
"""Keys and values that a user attached to a column or to the table."""
_METADATA_OF_FILES = frozenset({b"pandas", b"writer.model.name", b"parquet.avro.schema"})
_METADATA_OF_FORMATS = (b"ARROW:", b"PARQUET:", b"org.apache.spark.", b"_PL_")
INDEX_BITS_MIN = 32


@dataclass(frozen=True, slots=True)
class TableColumn:
    """One column; `id` is its identity, `name` its present name."""

    id: int
    name: str
    type: pa.DataType
    nullable: bool = True
    metadata: Metadata = ()

    @property
    def field(self) -> pa.Field:
        """The column as an Arrow field."""
        return pa.field(self.name, self.type, self.nullable, metadata=dict(self.metadata) or None)


@dataclass(frozen=True)
class Schema:
    """The columns of a table in order, and the id the next new one will have."""

    columns: tuple[TableColumn, ...] = ()
    next_id: int = 1
    metadata: Metadata = ()

    @cached_property
    def by_name(self) -> Mapping[str, TableColumn]:
        """The columns by their present names."""
        return {column.name: column for column in self.columns}

    @cached_property
    def by_id(self) -> Mapping[int, TableColumn]:
        """The columns by their ids."""
        return {column.id: column for column in self.columns}

    @cached_property
    def arrow(self) -> pa.Schema:
        """The same columns as an Arrow schema."""
        return pa.schema([column.field for column in self.columns], dict(self.metadata) or None)

    @cached_property
    def _nullable(self) -> pa.Schema:
        return pa.schema([pa.field(c.name, c.type) for c in self.columns])

    def matches_arrow(self, arrow: pa.Schema) -> bool:
        """Tell whether data has exactly these columns, in this order and with these types."""
        return bool(arrow.equals(self.arrow) or arrow.equals(self._nullable))

    def column(self, name: str) -> TableColumn:
        """Return the column of this name; `NotFound` names those that exist."""
        if check_text(name, "column") not in self.by_name:
            raise NotFound(
                "no such column",
                hint="name one of the table's columns",
                column=name,
                columns=list(self.by_name),
            )
        return self.by_name[name]

    def add_columns(self, fields: Iterable[pa.Field]) -> "Schema":
        """Return the schema with new nullable columns at its end."""
        columns, next_id = list(self.columns), self.next_id
        for new in fields:
            encode_type(new.type)
            check_inner_names(new.type, new.name)
            kind = _storable_type(new.type, new.name)
            kept = _storable_metadata(new.metadata)
            columns.append(TableColumn(next_id, new.name, kind, metadata=kept))
            next_id += 1
        return _check_schema(replace(self, columns=tuple(columns), next_id=next_id))

    def drop_column(self, name: str) -> "Schema":
        """Return the schema without a column; its id is never used again."""
        dropped = self.column(name)
        return replace(self, columns=tuple(c for c in self.columns if c.id != dropped.id))

    def rename_column(self, old: str, new: str) -> "Schema":
        """Return the schema with one column renamed."""
        return self._replace_column(replace(self.column(old), name=new))

    def widen_column(
        self, name: str, kind: pa.DataType, *, are_values_checked: bool = False
    ) -> "Schema":
        """Return the schema with one column of a wider type.

        If the new type does not hold every value of the old type, the caller must have checked the
        values and pass `are_values_checked=True`.
        """
        column = self.column(name)
        encode_type(kind)
        check_inner_names(kind, name)
        if not (are_values_checked or holds(kind, column.type)):
            raise Invalid(
                "the new type does not hold every value of the old one",
                hint="widen only: int32 to int64, whole numbers to float64 where none is rounded, "
                "float32 to float64, a decimal to more digits",
                column=name,
                old=str(column.type),
                new=str(kind),
            )
        return self._replace_column(replace(column, type=_storable_type(kind, name)))

    def _replace_column(self, changed: TableColumn) -> "Schema":
        columns = tuple(changed if c.id == changed.id else c for c in self.columns)
        return _check_schema(replace(self, columns=columns))


NO_COLUMNS = Schema()
"""The schema of a table before its first append, if it declares none."""


@dataclass(frozen=True, slots=True)
class ColumnFit:
    """How the columns of one file map to the columns of a table.

    `absent` are the ids that the file lacks. `stored` are the file's types where they are narrower
    than the table's. `unknown` are fields that the table lacks. `wider` are fields of a type that
    is wider than the table's. `must_rewrite` means that the file cannot be copied byte for byte.
    """

    absent: tuple[int, ...] = ()
    stored: Mapping[int, pa.DataType] = field(default_factory=dict)
    unknown: tuple[pa.Field, ...] = ()
    wider: tuple[pa.Field, ...] = ()
    must_rewrite: bool = False


def create_schema(arrow: pa.Schema, time_column: str, index_type: str = TIME) -> Schema:
    """Return the schema that the first append, with these columns, gives a table."""
    schema = replace(Schema(), metadata=_storable_metadata(arrow.metadata)).add_columns(arrow)
    if time_column not in schema.by_name:
        raise Invalid(
            "the data has no time column",
            hint="append data with the table's time column",
            time_column=time_column,
            columns=arrow.names,
        )
    column = schema.column(time_column)
    kind = column.type
    wide = INTEGER_TYPES.get(index_type)
    if wide is not None and kinds.is_integer(kind) and holds(wide, kind):
        kind = wide
    if not fits_index(kind, index_type):
        raise Invalid(
            "the time column is not a timestamp"
            if wide is None
            else "the index column has another type than the table's index",
            hint=f"cast it to an Arrow {index_type} first",
            time_column=time_column,
            type=str(column.type),
        )
    return schema._replace_column(replace(column, type=kind, nullable=False))  # noqa: SLF001


def fit_columns(arrow: pa.Schema, schema: Schema, time_column: str) -> ColumnFit:
    """Return how a file with these columns fits the table; `Invalid` where a type cannot."""
    names = arrow.names  # made of every field each time it is asked for
    check_names(names)
    if time_column not in names:
        raise Invalid(
            "the data has no time column",
            hint="append data with the table's time column",
            time_column=time_column,
            columns=names,
        )
    stored: dict[int, pa.DataType] = {}
    unknown, wider, must_rewrite = [], [], False
    for new in arrow:
        column = schema.by_name.get(new.name)
        if column is None:
            unknown.append(new)
        elif column.type.equals(new.type) or is_alike(column.type, new.type):
            continue
        elif new.name == time_column and kinds.is_timestamp(new.type):
            must_rewrite = True
        elif is_finer_timestamp(column.type, new.type):
            must_rewrite = True  # the cast fails for times outside the range of nanoseconds
        elif holds(column.type, new.type):
            stored[column.id] = new.type
            must_rewrite = must_rewrite or kinds.is_temporal(new.type)
        elif (both := unite_types(column.type, new.type)) is not None:
            wider.append(new.with_type(both))
        else:
            raise _type_mismatch_error(column, new)
    present = set(names)
    absent = tuple(c.id for c in schema.columns if c.name not in present)
    return ColumnFit(absent, stored, tuple(unknown), tuple(wider), must_rewrite)


def may_become_double(column: pa.DataType, kind: pa.DataType) -> bool:
    """Tell whether a change turns integers into doubles, which hold them exactly up to 2**53."""
    is_double = kinds.is_float64(kind) and kinds.is_integer(column)
    return is_double and not holds(kind, column)


def _storable_metadata(metadata: Mapping[bytes, bytes] | None) -> Metadata:
    """Return the key-value metadata of a field or a schema that a table keeps.

    What describes one file or one data frame is not kept, nor what is not UTF-8.
    """
    kept = []
    for key, value in (metadata or {}).items():
        if key in _METADATA_OF_FILES or key.startswith(_METADATA_OF_FORMATS):
            continue
        try:
            kept.append((key.decode(), value.decode()))
        except UnicodeDecodeError:
            continue
    return tuple(kept)


def _storable_type(kind: pa.DataType, column: str) -> pa.DataType:
    """Return the type as a table keeps it, with room for the rows of many appends."""
    if kinds.is_dictionary(kind):
        return _storable_dictionary(kind, column)
    if kinds.is_map(kind):
        item = _storable_field(kind.item_field, column)
        return pa.map_(kind.key_field, item, keys_sorted=kind.keys_sorted)
    if kinds.is_fixed_size_list(kind):
        return pa.list_(_storable_field(kind.value_field, column), kind.list_size)
    if kinds.is_large_list(kind):
        return pa.large_list(_storable_field(kind.value_field, column))
    if kinds.is_list(kind):
        return pa.list_(_storable_field(kind.value_field, column))
    if kinds.is_struct(kind):
        return pa.struct([_storable_field(field, column) for field in kind])
    return kind


def _storable_field(field: pa.Field, column: str) -> pa.Field:
    kind = _storable_type(field.type, column)
    # A null around a dictionary has an index into it, which Arrow makes invalid where it is empty.
    return pa.field(field.name, kind.value_type if kinds.is_dictionary(kind) else kind)


def _storable_dictionary(kind: pa.DataType, column: str) -> pa.DataType:
    value = plain_type(kind.value_type)
    is_odd = kinds.is_nested(value) or kinds.is_null(value) or kinds.is_float16(value)
    if is_odd or kinds.is_dictionary(kind.value_type):
        raise Invalid(
            "a table cannot hold a dictionary of such values",
            hint="cast the column to the type of its values first",
            column=column,
            type=str(kind),
        )
    is_view = kinds.is_string_view(kind.value_type) or kinds.is_binary_view(kind.value_type)
    is_narrow = kind.index_type.bit_width < INDEX_BITS_MIN
    index = pa.int32() if is_narrow else kind.index_type
    return pa.dictionary(index, value if is_view else kind.value_type, kind.ordered)


def _type_mismatch_error(column: TableColumn, new: pa.Field) -> Invalid:
    return Invalid(
        "a column has another type than the table's",
        hint="cast the column to the table's type, or append it under another name",
        column=column.name,
        expected=str(column.type),
        got=str(new.type),
    )


def _check_schema(schema: Schema) -> Schema:
    check_names([column.name for column in schema.columns])
    kept = [*schema.metadata, *(pair for column in schema.columns for pair in column.metadata)]
    size_bytes = sum(len(key) + len(value) for key, value in kept)
    if size_bytes > METADATA_BYTES_MAX:
        raise Invalid(
            "the metadata of the columns is too large",
            hint="drop it with replace_schema_metadata, or shorten it",
            size_bytes=size_bytes,
            size_bytes_max=METADATA_BYTES_MAX,
        )
    return schema


def check_names(names: Sequence[str]) -> None:
    """Raise `Invalid` for names that the columns of one table cannot have."""
    if not names or len(names) > COLUMNS_MAX:
        raise Invalid(
            "a table has at least one column and at most the limit",
            columns=len(names),
            columns_max=COLUMNS_MAX,
        )
    seen: dict[str, str] = {}
    for name in names:
        if not isinstance(name, str):
            raise wrong_kind("a column's name is a text", "pass a text", "name", name)
        if not is_column_name(name):
            raise Invalid(
                "a column's name is empty, too long, not text or has a NUL",
                hint=f"use at most {NAME_LENGTH_MAX} characters",
                column=name[:80].encode("utf-8", "replace").decode(),
            )
        folded = name.lower()
        if folded in seen:
            raise Invalid(
                "two columns have the same name, or names that differ only in case",
                hint="rename one of them",
                columns=[seen[folded], name],
            )
        seen[folded] = name


def encode_schema(schema: Schema) -> dict[str, Any]:
    """Return the schema as JSON."""
    columns = [
        {
            "id": c.id,
            "name": c.name,
            "type": encode_type(c.type),
            "nullable": c.nullable,
            **_encode_metadata(c.metadata),
        }
        for c in schema.columns
    ]
    rest = _encode_metadata(schema.metadata)
    return {"columns": columns, "next_id": schema.next_id, **rest}


def _encode_metadata(metadata: Metadata) -> dict[str, Any]:
    return {"metadata": dict(metadata)} if metadata else {}


def _decode_metadata(json: Mapping[str, Any]) -> Metadata:
    return tuple((str(key), str(value)) for key, value in json.get("metadata", {}).items())


def decode_schema(json: Mapping[str, Any]) -> Schema:
    """Return the schema of its JSON; `Corruption` when the JSON is not a schema."""
    try:
        columns = tuple(
            TableColumn(
                int(c["id"]),
                str(c["name"]),
                decode_type(c["type"]),
                bool(c["nullable"]),
                _decode_metadata(c),
            )
            for c in json["columns"]
        )
        return Schema(columns, int(json["next_id"]), _decode_metadata(json))
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise Corruption("not a schema", hint="restore this commit from a copy") from error


def encode_stored(stored: Mapping[int, pa.DataType]) -> dict[str, TypeJson]:
    """Return the narrower types of a segment's columns as JSON."""
    return {str(column_id): encode_type(kind) for column_id, kind in stored.items()}
