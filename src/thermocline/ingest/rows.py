"""Converts rows from a caller to one batch with a table's columns.

In:   anything with `__arrow_c_stream__`, or a list of mappings
Out:  one Arrow batch of the table's columns and types; every value from outside is checked

- Rows are validated before they reach the journal, so every journaled row can be applied, flushed
  and queried. A value that does not fit refuses the whole write; the error names column and reason.
- Texts that are not UTF-8, missing times, times out of range, and types that Parquet does not have
  are refused.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa

from thermocline.cold.segment.parquet import coerce_batch, items_of_maps, validate_batch
from thermocline.cold.segment.stage import has_unnamed_index, open_row_stream, read_row_stream
from thermocline.errors import Invalid
from thermocline.format.log.action import TableSpec
from thermocline.format.schema import (
    COLUMNS_MAX,
    Schema,
    TableColumn,
    check_names,
    may_become_double,
)
from thermocline.format.types import holds
from thermocline.ingest.exact_values import column_from_values, infer_column

ROWS_MAX = 4_000_000
CELLS_MIN = 4_000_000
CELLS_PER_VALUE = 4
"""Rows times columns that mappings may have: `CELLS_MIN`, or so many for each of their values."""


@dataclass(frozen=True, slots=True)
class TrustedRows:
    """Rows that this process built value by value.

    Every text is UTF-8 and every index is within its dictionary, so these are not checked again.
    """

    table: pa.Table


def rows_table(data: Any, schema: Schema, spec: TableSpec, *, may_widen: bool = False) -> pa.Table:
    """Return the rows of a caller as an Arrow table; `Invalid` when the data are not rows.

    A value that does not fit its column is refused. With `may_widen`, the returned column gets a
    wider type instead, and the caller widens the table.
    """
    if isinstance(data, Mapping):
        data = [data]
    if isinstance(data, Sequence) and not isinstance(data, str | bytes):
        return _table_from_mappings(data, schema, spec, may_widen=may_widen)
    if isinstance(data, pa.Table) and not has_unnamed_index(data.schema):
        return data
    stream = open_row_stream(data, spec.time_column)
    return pa.Table.from_batches(read_row_stream(stream), stream.schema)


def fit_rows(
    rows: pa.Table, schema: Schema, spec: TableSpec, *, is_valid: bool = False
) -> pa.RecordBatch:
    """Return rows as one batch with the table's columns and types.

    All values are checked unless the caller knows that they are (`is_valid`).
    """
    if rows.num_rows > ROWS_MAX:
        raise Invalid(
            "more rows than one write takes",
            hint="write them in several steps, or append them as a file",
            rows=rows.num_rows,
            rows_max=ROWS_MAX,
        )
    batches = [coerce_batch(batch, schema, spec) for batch in rows.to_batches()]
    batch = pa.concat_batches(batches) if batches else _empty_batch(schema)
    if not is_valid:
        validate_batch(batch)
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            _check_map_keys(name, column)
    return batch


def _check_map_keys(name: str, column: pa.Array) -> None:
    """Raise `Invalid` for a map with a key twice: the engine cannot read such hot rows."""
    kind = column.type
    if not kind.num_fields or pa.types.is_dictionary(kind):
        return
    if pa.types.is_struct(kind):
        for part in column.flatten():
            _check_map_keys(name, part)
    elif not pa.types.is_map(kind):
        _check_map_keys(name, column.flatten())
    elif len(column):
        for row, keys in enumerate(_keys_of_maps(column)):
            if len(keys) != len(set(map(repr, keys))):
                hint = "use each key once, or a list of structs"
                raise Invalid("a map has a key twice", hint=hint, column=name, row=row)
        _check_map_keys(name, items_of_maps(column))


def _keys_of_maps(column: pa.MapArray) -> Iterator[list[Any]]:
    """Yield the keys of each map; none for a null."""
    keys = column.keys.to_pylist()  # of the whole array, even if `column` is a slice
    for start, end in pairwise(column.offsets.to_pylist()):
        yield keys[start:end]


def _empty_batch(schema: Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.nulls(0, column.type) for column in schema.columns], schema=schema.arrow
    )


def _table_from_mappings(
    data: Sequence[Any], schema: Schema, spec: TableSpec, *, may_widen: bool
) -> pa.Table:
    names: dict[str, None] = {}
    value_count = 0
    for place, row in enumerate(data):
        if not isinstance(row, Mapping):
            raise Invalid(
                "a row is not a mapping from columns to values",
                hint="pass a list of dicts, or an Arrow, pandas or polars table",
                row=place,
                type=type(row).__name__,
            )
        names.update(dict.fromkeys(row))
        value_count += len(row)
        if len(names) > COLUMNS_MAX:
            break  # `check_names` refuses them
    if names:
        check_names([str(name) for name in names])
    _check_cells(len(data), len(names), value_count)
    columns = {}
    for key in names:
        name, values = str(key), [row.get(key) for row in data]
        known = schema.by_name.get(name)
        if known is None:
            columns[name] = infer_column(name, values, spec)
        else:
            columns[name] = _fit_column(known, values, spec, may_widen=may_widen)
    return pa.table(columns)


def _check_cells(rows: int, columns: int, values: int) -> None:
    """Refuse rows that would take far more memory as columns than as values, before they do."""
    cells, cells_max = rows * columns, max(CELLS_MIN, CELLS_PER_VALUE * values)
    if cells > cells_max:
        raise Invalid(
            "the rows name so many different columns that nearly all values would be null",
            hint="put names that vary into a column, and their values into another",
            rows=rows,
            columns=columns,
            values=values,
            cells_max=cells_max,
        )


def _fit_column(
    column: TableColumn, values: list[Any], spec: TableSpec, *, may_widen: bool
) -> pa.Array:
    try:
        return column_from_values(column.name, values, column.type, spec)
    except Invalid:
        if not may_widen or column.name == spec.time_column:
            raise
        try:
            wider = infer_column(column.name, values, spec)
        except Invalid:
            wider = None  # the error of the present type says more
        if wider is None:
            raise
        if holds(wider.type, column.type) or may_become_double(column.type, wider.type):
            return wider
        raise
