"""Converts Arrow's types to Spark's and back, without changing a value.

In:   a table's columns and batches; a frame's schema and batches
Out:  the frame's schema, and batches that Spark takes unchanged; rows that fit the table

- Every value survives the way to Spark and back. A column whose type Spark cannot hold is refused
  by its name; no value is ever truncated.
- Spark counts time in microseconds. A column of nanoseconds becomes two columns of a frame: the
  microseconds under its name, and the remaining nanoseconds, 0 to 999, under `<name>_ns`.
- Unsigned integers become the next wider signed type, 64-bit ones decimals of 20 digits.
  Dictionaries, views and fixed-size types become the types that they hold.
- A time with a zone becomes an instant (`timestamp`), one without a zone `timestamp_ntz`.
"""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema

from thermocline.cold.segment.parquet import cast_column
from thermocline.errors import Invalid, NotFound, Unsupported
from thermocline.format.argument import list_names
from thermocline.format.instant import NS_PER_US
from thermocline.format.schema import Schema

NANOSECONDS_SUFFIX = "_ns"
NANOSECONDS_OF = "thermocline.nanoseconds_of"
DECIMAL_DIGITS_MAX = 38

_PLAIN: dict[pa.DataType, spark.DataType] = {
    pa.null(): spark.NullType(),
    pa.bool_(): spark.BooleanType(),
    pa.int8(): spark.ByteType(),
    pa.int16(): spark.ShortType(),
    pa.int32(): spark.IntegerType(),
    pa.int64(): spark.LongType(),
    pa.uint8(): spark.ShortType(),
    pa.uint16(): spark.IntegerType(),
    pa.uint32(): spark.LongType(),
    pa.uint64(): spark.DecimalType(20, 0),
    pa.float16(): spark.FloatType(),
    pa.float32(): spark.FloatType(),
    pa.float64(): spark.DoubleType(),
    pa.string(): spark.StringType(),
    pa.large_string(): spark.StringType(),
    pa.string_view(): spark.StringType(),
    pa.binary(): spark.BinaryType(),
    pa.large_binary(): spark.BinaryType(),
    pa.binary_view(): spark.BinaryType(),
    pa.date32(): spark.DateType(),
    pa.date64(): spark.DateType(),
}
# Types whose values Spark's Parquet reader does not read as Arrow does.
_NOT_NATIVE = (pa.float16(), pa.null())


def spark_type(kind: pa.DataType, column: str) -> spark.DataType:
    """Return the Spark type that holds these values; `Unsupported` if none does."""
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kinds.is_dictionary(kind):
        return spark_type(kind.value_type, column)
    if kinds.is_fixed_size_binary(kind):
        return spark.BinaryType()
    if kinds.is_decimal(kind):
        if kind.precision > DECIMAL_DIGITS_MAX or not 0 <= kind.scale <= kind.precision:
            raise _unsupported_type(kind, column, "Spark's decimals have up to 38 digits")
        return spark.DecimalType(kind.precision, kind.scale)
    if kinds.is_temporal(kind):
        return _temporal_type(kind, column)
    return _nested_type(kind, column)


def _temporal_type(kind: pa.DataType, column: str) -> spark.DataType:
    if kind.unit == "ns":
        raise _unsupported_type(kind, column, "Spark's times have microseconds")
    if kinds.is_timestamp(kind):
        return spark.TimestampType() if kind.tz else spark.TimestampNTZType()
    return spark.TimeType(6) if kinds.is_time(kind) else spark.DayTimeIntervalType()


def _nested_type(kind: pa.DataType, column: str) -> spark.DataType:
    if kinds.is_struct(kind):
        fields = [kind.field(place) for place in range(kind.num_fields)]
        return spark.StructType(
            [
                spark.StructField(f.name, spark_type(f.type, f"{column}.{f.name}"), f.nullable)
                for f in fields
            ]
        )
    if kinds.is_map(kind):
        key, value = spark_type(kind.key_type, column), spark_type(kind.item_type, column)
        return spark.MapType(key, value, kind.item_field.nullable)
    if kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind):
        element = spark_type(kind.value_type, column)
        return spark.ArrayType(element, kind.value_field.nullable)
    raise _unsupported_type(kind, column, "Spark has no such type")


def _unsupported_type(kind: pa.DataType, column: str, why: str) -> Unsupported:
    return Unsupported(
        "Spark cannot hold this column without loss",
        hint="omit it with option('columns', ...), or read the table without Spark",
        column=column,
        type=str(kind),
        why=why,
    )


def is_nanoseconds(kind: pa.DataType) -> bool:
    """Tell whether a column of this type becomes two columns of a frame."""
    return bool(kinds.is_timestamp(kind) and kind.unit == "ns")


def spark_schema(table: pa.Schema) -> spark.StructType:
    """Return the columns of a frame for rows of a table with these columns."""
    fields = []
    for field in table:
        if not is_nanoseconds(field.type):
            kind = spark_type(field.type, field.name)
            fields.append(spark.StructField(field.name, kind, field.nullable))
            continue
        rest = field.name + NANOSECONDS_SUFFIX
        if rest.lower() in (name.lower() for name in table.names):
            raise Unsupported(
                "the name for a column's nanoseconds is taken",
                hint="rename the other column, or omit one with option('columns', ...)",
                column=field.name,
                taken=rest,
            )
        micros = spark_type(pa.timestamp("us", tz=field.type.tz), field.name)
        marked = {NANOSECONDS_OF: field.name}
        fields.append(spark.StructField(field.name, micros, field.nullable))
        fields.append(spark.StructField(rest, spark.ShortType(), field.nullable, marked))
    return spark.StructType(fields)


def canonical_schema(frame: spark.StructType) -> pa.Schema:
    """Return the Arrow schema in which Spark exchanges the rows of a frame, in UTC."""
    return to_arrow_schema(frame, timezone="UTC")


def to_spark(batch: pa.RecordBatch, shape: pa.Schema) -> pa.RecordBatch:
    """Return a table's rows as rows of a frame; `shape` is the frame's canonical schema."""
    arrays: dict[str, pa.Array] = {}
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if is_nanoseconds(field.type):
            arrays |= _split_nanoseconds(field.name, column)
        else:
            arrays[field.name] = column
    made = [_cast_column(arrays[field.name], field.type) for field in shape]
    return pa.RecordBatch.from_arrays(made, schema=shape)


def _split_nanoseconds(name: str, column: pa.Array) -> dict[str, pa.Array]:
    """Return the microseconds, rounded down, and the remaining nanoseconds."""
    values = column.cast(pa.int64())
    # Integer division rounds towards zero, and times before 1970 are negative.
    rest = pc.subtract(values, pc.multiply(pc.divide(values, NS_PER_US), NS_PER_US))
    rest = pc.if_else(pc.less(rest, 0), pc.add(rest, NS_PER_US), rest)
    micros = pc.divide(pc.subtract(values, rest), NS_PER_US)
    kind = pa.timestamp("us", tz=column.type.tz)
    return {name: micros.cast(kind), name + NANOSECONDS_SUFFIX: rest.cast(pa.int16())}


def _cast_column(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type.equals(kind):
        return column
    if kinds.is_list(kind) and kinds.is_fixed_size_list(column.type):
        column = column.cast(pa.list_(column.type.value_field))
    return cast_column(column, kind)


def table_schema(frame: spark.StructType, table: Schema) -> pa.Schema:
    """Return the table's columns that the rows of a frame have."""
    nothing = pa.RecordBatch.from_arrays(
        [pa.nulls(0, field.type) for field in canonical_schema(frame)],
        schema=_make_nullable(canonical_schema(frame)),
    )
    return from_spark(nothing, frame, table).schema


def from_spark(batch: pa.RecordBatch, frame: spark.StructType, table: Schema) -> pa.RecordBatch:
    """Return rows of a frame in the types of the table's columns, if these hold the same values.

    Microseconds and their remaining nanoseconds become one column again. A column that the table
    lacks is unchanged. `Invalid` for a value that does not fit.
    """
    shape = canonical_schema(frame)
    columns = {
        field.name: _cast_column(column, field.type)
        for field, column in zip(shape, batch.columns, strict=True)
    }
    pairs = _find_nanosecond_pairs(frame, table)
    arrays, fields = [], []
    for name, column in columns.items():
        if name in pairs.values():
            continue
        known = table.by_name.get(name)
        if name in pairs:
            column = _join_nanoseconds(name, column, columns[pairs[name]])
        elif known is not None and _is_same_type(known.type, frame[name].dataType):
            column = cast_column(column, known.type)
        arrays.append(column)
        fields.append(pa.field(name, column.type))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _find_nanosecond_pairs(frame: spark.StructType, table: Schema) -> dict[str, str]:
    """Return the columns of microseconds by name, each with its column of nanoseconds."""
    found = {}
    for field in frame.fields:
        rest = field.name + NANOSECONDS_SUFFIX
        is_time = isinstance(field.dataType, spark.TimestampType | spark.TimestampNTZType)
        if not is_time or rest not in frame.names or rest in table.by_name:
            continue
        known = table.by_name.get(field.name)
        is_told = frame[rest].metadata.get(NANOSECONDS_OF) == field.name
        if is_nanoseconds(known.type) if known else is_told:
            found[field.name] = rest
    return found


def _join_nanoseconds(name: str, micros: pa.Array, rest: pa.Array) -> pa.Array:
    try:
        whole = pc.multiply_checked(micros.cast(pa.int64()), NS_PER_US)
        left = rest.cast(pa.int64())
        is_fit = pc.and_(pc.greater_equal(left, 0), pc.less(left, NS_PER_US))
        if not pc.all(is_fit, min_count=0).as_py() or rest.null_count != micros.null_count:
            raise Invalid(
                "the remaining nanoseconds are not from 0 to 999",
                hint="write both columns as they were read, or omit the second one",
                column=name + NANOSECONDS_SUFFIX,
            )
        return pc.add_checked(whole, left).cast(pa.timestamp("ns", tz=micros.type.tz))
    except pa.ArrowException as error:
        hint = "use times from 1677 to 2262"
        raise Invalid("a time does not fit into nanoseconds", hint=hint, column=name) from error


def _is_same_type(kind: pa.DataType, held: spark.DataType) -> bool:
    """Tell whether a frame's type is the type in which the table's column is read."""
    if kinds.is_temporal(kind) and getattr(kind, "unit", "") == "ns":
        return False
    try:
        return _without_nullability(spark_type(kind, "")) == _without_nullability(held)
    except Unsupported:
        return False


def has_same_columns(one: spark.StructType, other: spark.StructType) -> bool:
    """Tell whether two frames have the same columns, apart from nullability."""
    return _without_nullability(one) == _without_nullability(other)


def _without_nullability(kind: spark.DataType) -> spark.DataType:
    """Return a type without nullability, which frames do not keep."""
    match kind:
        case spark.ArrayType():
            return spark.ArrayType(_without_nullability(kind.elementType))
        case spark.MapType():
            return spark.MapType(
                _without_nullability(kind.keyType), _without_nullability(kind.valueType)
            )
        case spark.StructType():
            return spark.StructType(
                [spark.StructField(f.name, _without_nullability(f.dataType)) for f in kind.fields]
            )
    return kind


def _make_nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in schema])


def is_native(kind: pa.DataType) -> bool:
    """Tell whether Spark's own Parquet reader reads this type's values as they are."""
    if kinds.is_dictionary(kind):
        return is_native(kind.value_type)
    if kinds.is_time(kind) or kinds.is_duration(kind) or kind in _NOT_NATIVE:
        return False
    return all(is_native(kind.field(place).type) for place in range(kind.num_fields))


def select_columns(schema: Schema, names: str | Sequence[str] | None) -> pa.Schema:
    """Return the table's columns with these names, or all; `NotFound` for an unknown name."""
    if not schema.columns:
        raise NotFound("the table has no columns yet", hint="append rows to it first")
    if names is None:
        wanted = schema.columns
    else:
        wanted = tuple(schema.column(name) for name in list_names(names, "columns"))
    return pa.schema([pa.field(c.name, c.type, c.nullable) for c in wanted])
