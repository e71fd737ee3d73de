"""Rows as a caller has them, as one batch with a table's columns.

In:   anything with `__arrow_c_stream__`, or a list of mappings
Out:  one Arrow batch, of the table's columns and types, checked to the last value that others made

- Validation happens here, before the journal: what is written there can be applied, flushed and
  queried. A value that does not fit refuses the whole write, and says which column and why.
- Texts that are not UTF-8, times that are missing or out of range, types that Parquet does not
  have: refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from thermocline.errors import Invalid
from thermocline.format.action import TableSpec
from thermocline.format.schema import Schema
from thermocline.lake.append import in_table_zone
from thermocline.lake.segment import coerce, validated
from thermocline.lake.stage import row_stream, stream_batches

ROWS_MAX = 4_000_000


@dataclass(frozen=True, slots=True)
class Made:
    """Rows that this process made value by value.

    Every text is UTF-8 and every index lies in its dictionary: that is not looked at again.
    """

    table: pa.Table


def rows_table(data: Any, schema: Schema, spec: TableSpec) -> pa.Table:
    """Return the rows that a caller gave as an Arrow table; `Invalid` when they are none."""
    if isinstance(data, Mapping):
        data = [data]
    if isinstance(data, Sequence) and not isinstance(data, str | bytes):
        return _from_mappings(data, schema, spec)
    if isinstance(data, pa.Table):
        return data
    stream = row_stream(data)
    return pa.Table.from_batches(stream_batches(stream), stream.schema)


def fitted(
    rows: pa.Table, schema: Schema, spec: TableSpec, *, is_valid: bool = False
) -> pa.RecordBatch:
    """Return rows as one batch with the table's columns and types.

    Unless it is known that each value `is_valid`, all are looked at.
    """
    if rows.num_rows > ROWS_MAX:
        raise Invalid(
            "more rows than one write takes",
            hint="write them in several steps, or append them as a file",
            rows=rows.num_rows,
            rows_max=ROWS_MAX,
        )
    batches = [coerce(batch, schema, spec) for batch in rows.to_batches()]
    batch = pa.concat_batches(batches) if batches else _nothing(schema)
    return batch if is_valid else validated(batch)


def _nothing(schema: Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.nulls(0, column.type) for column in schema.columns], schema=schema.arrow
    )


def _from_mappings(data: Sequence[Any], schema: Schema, spec: TableSpec) -> pa.Table:
    names: dict[str, None] = {}
    for place, row in enumerate(data):
        if not isinstance(row, Mapping):
            raise Invalid(
                "a row is not a mapping from columns to values",
                hint="pass a list of dicts, or an Arrow, pandas or polars table",
                row=place,
                type=type(row).__name__,
            )
        names.update(dict.fromkeys(row))
    columns = {
        str(name): _column(str(name), [row.get(name) for row in data], schema, spec)
        for name in names
    }
    return pa.table(columns) if columns else pa.table({})


def _column(name: str, values: list[Any], schema: Schema, spec: TableSpec) -> pa.Array:
    known = schema.by_name.get(name)
    try:
        if known is None:
            array = pa.array(values)
            is_time = name == spec.time_column
            return array.cast(_time_type(spec)) if is_time and _is_text(array) else array
        if pa.types.is_timestamp(known.type) and any(isinstance(v, str) for v in values):
            return pa.array(values).cast(known.type)
        return pa.array(values, known.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise Invalid(
            "a value does not fit its column",
            hint="mend the value, or write the column under another name",
            column=name,
            expected=str(known.type) if known else "one type for all rows",
            why=str(error).splitlines()[0],
        ) from error


def _time_type(spec: TableSpec) -> pa.DataType:
    return in_table_zone(pa.schema([(spec.time_column, pa.timestamp("us"))]), spec).field(0).type


def _is_text(array: pa.Array) -> bool:
    return bool(pa.types.is_string(array.type) or pa.types.is_large_string(array.type))
