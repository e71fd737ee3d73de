"""The columns of a table in the engine: their types, and which of them can prune segments.

In:   Arrow schemas
Out:  engine types as SQL text; a `Shape` that finds columns as SQL does, ignoring case

- `engine_type` is the type that the engine's Parquet reader gives to a column of an Arrow type, so
  a table has the same types whether a query reads none, some or all of its segments.
- Only `quote_identifier` quotes names, and only `quote_text` quotes texts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
import pyarrow.types as kinds

from thermocline.errors import Unsupported
from thermocline.format.types import plain_type

TIME, INTEGER, TEXT = "time", "integer", "text"
DECIMAL_DIGITS_MAX = 38

_PLAIN: dict[pa.DataType, str] = {
    pa.null(): '"NULL"',
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.uint8(): "UTINYINT",
    pa.uint16(): "USMALLINT",
    pa.uint32(): "UINTEGER",
    pa.uint64(): "UBIGINT",
    pa.float16(): "FLOAT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.date32(): "DATE",
    pa.date64(): "DATE",
    pa.uuid(): "UUID",
    pa.json_(): "JSON",
}

# Every writer stores these types in the same way. Others depend on the writer: an unsigned 32-bit
# column may be a 64-bit one in the file, and nanoseconds may be microseconds.
_ALWAYS_AS_IS = frozenset(
    {
        pa.bool_(),
        pa.int8(),
        pa.int16(),
        pa.int32(),
        pa.int64(),
        pa.float32(),
        pa.float64(),
        pa.string(),
        pa.binary(),
        pa.date32(),
        pa.uuid(),
        pa.json_(),
        pa.timestamp("us"),
        pa.timestamp("us", tz="UTC"),
    }
)


@dataclass(frozen=True, slots=True)
class ShapeColumn:
    """A column that can prune segments: its name, the sort of its bounds, its engine type."""

    name: str
    sort: str
    type: str


@dataclass(frozen=True, eq=False)
class Shape:
    """Every column name of a table in lower case; None for columns that cannot prune segments.

    `types` are the engine's types of all columns.
    """

    columns: Mapping[str, ShapeColumn | None]
    types: Mapping[str, str]


def quote_identifier(name: str) -> str:
    """Return an identifier that means exactly this name."""
    return '"' + name.replace('"', '""') + '"'


def quote_text(text: str) -> str:
    """Return a string literal of exactly this text."""
    return "'" + text.replace("'", "''") + "'"


@lru_cache(maxsize=512)
def shape_of(schema: pa.Schema) -> Shape:
    """Return the shape of an Arrow schema; the same object for an equal schema while cached."""
    return Shape(
        {field.name.lower(): _shape_column(field) for field in schema},
        {field.name.lower(): engine_type(field.type) for field in schema},
    )


def _shape_column(field: pa.Field) -> ShapeColumn | None:
    kind = plain_type(field.type)
    if kinds.is_timestamp(kind):
        sort = TIME
    elif kinds.is_integer(kind):
        sort = INTEGER
    elif kinds.is_string(kind):
        sort = TEXT
    else:
        return None
    return ShapeColumn(field.name, sort, engine_type(kind))


def is_read_as_is(kind: pa.DataType) -> bool:
    """Tell whether the engine reads such a column as its `engine_type` without a cast."""
    return plain_type(kind) in _ALWAYS_AS_IS


def engine_type(kind: pa.DataType) -> str:
    """Return the engine's type for a column of a table, as SQL text."""
    kind = plain_type(kind)
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kinds.is_timestamp(kind):
        if kind.unit == "ns":
            return "TIMESTAMPTZ_NS" if kind.tz else "TIMESTAMP_NS"
        return "TIMESTAMP WITH TIME ZONE" if kind.tz else "TIMESTAMP"
    if kinds.is_time(kind):
        return "TIME_NS" if kind.unit == "ns" else "TIME"
    if kinds.is_duration(kind):
        return "BIGINT"
    if kinds.is_decimal(kind):
        is_wide = kind.precision > DECIMAL_DIGITS_MAX
        return "DOUBLE" if is_wide else f"DECIMAL({kind.precision},{kind.scale})"
    if kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind):
        return f"{engine_type(kind.value_type)}[]"
    if kinds.is_struct(kind):
        fields = (kind.field(place) for place in range(kind.num_fields))
        inside = ", ".join(
            f"{quote_identifier(field.name)} {engine_type(field.type)}" for field in fields
        )
        return f"STRUCT({inside})"
    if kinds.is_map(kind):
        return f"MAP({engine_type(kind.key_type)}, {engine_type(kind.item_type)})"
    return "BLOB"  # only binaries of a fixed width remain


def check_engine_holds(name: str, kind: pa.DataType) -> None:
    """Raise `Unsupported` for a column whose values the engine would round."""
    if _is_wide(kind):
        raise Unsupported(
            "the engine cannot hold the digits of this column",
            hint="omit the column from the SQL; scan() returns its exact values",
            column=name,
            type=str(kind),
            digits_max=DECIMAL_DIGITS_MAX,
        )


@lru_cache(maxsize=1024)
def _is_wide(kind: pa.DataType) -> bool:
    kind = plain_type(kind)
    if kinds.is_decimal(kind):
        return bool(kind.precision > DECIMAL_DIGITS_MAX)
    return any(_is_wide(kind.field(place).type) for place in range(kind.num_fields))


@lru_cache(maxsize=1024)
def engine_arrow_type(kind: pa.DataType) -> pa.DataType:
    """Return the Arrow type that the engine reads like the same column of a Parquet file.

    For most types this is the type itself; the engine cannot read the others, or changes them.
    """
    if kinds.is_dictionary(kind) and kinds.is_string(kind.value_type):
        return kind  # read as texts, each distinct one once
    kind = plain_type(kind)
    if kinds.is_decimal(kind) and kind.precision > DECIMAL_DIGITS_MAX:
        return pa.float64()
    if kinds.is_duration(kind):
        return pa.int64()
    if kinds.is_float16(kind):
        return pa.float32()
    if kinds.is_date64(kind):
        return pa.date32()
    if kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind):
        return pa.list_(_engine_field(kind.value_field))
    if kinds.is_struct(kind):
        return pa.struct([_engine_field(kind.field(place)) for place in range(kind.num_fields)])
    if kinds.is_map(kind):
        return pa.map_(engine_arrow_type(kind.key_type), _engine_field(kind.item_field))
    return kind


def _engine_field(field: pa.Field) -> pa.Field:
    inner = field.type.value_type if kinds.is_dictionary(field.type) else field.type
    return field.with_type(engine_arrow_type(inner))
