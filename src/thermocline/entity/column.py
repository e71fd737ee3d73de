"""The columns of an entity type's table in the lake, as its newest contract wants them.

In:   what the table is and has, the newest contract
Out:  what it should be and have

- A column of the lake follows its column of the contract by id, kept in the table's `columns`: a
  property that is renamed keeps its values, one that is widened is widened.
- Columns are never dropped: those of retired properties hold what was written before.
- A table never goes back: one that fits a contract is left as it is by those before it. Which one
  gave it its columns is kept in the table's `contract`.
"""

from dataclasses import replace

import pyarrow as pa

from thermocline.contract.contract import Contract
from thermocline.format.action import TableSpec
from thermocline.format.schema import Column, Schema, adopt
from thermocline.format.state import TableState
from thermocline.hot.postgres.cold import FIXED, kept_columns
from thermocline.lake.table import Table

COLUMNS = "columns"
CONTRACT = "contract"


def fitted(spec: TableSpec, schema: Schema, contract: Contract) -> tuple[TableSpec, Schema]:
    """Return what the table is and has once it fits the contract; the same values if it does."""
    before = schema
    if not schema.columns:
        schema = adopt(pa.schema(FIXED), spec.time_column)
    places = {str(key): int(place) for key, place in spec.extra.get(COLUMNS, {}).items()}
    wanted = {places[str(c.id)]: c for c in kept_columns(contract) if str(c.id) in places}
    # All names at once: two properties may have changed theirs with each other.
    renamed = tuple(
        replace(column, name=wanted[column.id].name) if column.id in wanted else column
        for column in schema.columns
    )
    if renamed != schema.columns:
        schema = replace(schema, columns=renamed)
    for place, column in wanted.items():
        if not schema.by_id[place].type.equals(column.type):
            schema = schema.widened(column.name, column.type)
    for column in kept_columns(contract):
        if str(column.id) not in places:
            places[str(column.id)] = schema.next_id
            schema = schema.added([pa.field(column.name, column.type)])
    if schema != before or places != spec.extra.get(COLUMNS, {}):
        extra = {**spec.extra, COLUMNS: places, CONTRACT: contract.version}
        spec = replace(spec, extra=extra)
    return spec, schema


def fit_table(table: Table, contract: Contract) -> TableState:
    """Give the table the columns that the contract wants, in one commit if any is missing.

    A table that fits a newer one is left as it is: `is_past` tells.
    """

    def change(spec: TableSpec, schema: Schema) -> tuple[TableSpec, Schema]:
        return (spec, schema) if is_past(spec, contract) else fitted(spec, schema, contract)

    return table.change("set columns", change)


def is_past(spec: TableSpec, contract: Contract) -> bool:
    """Tell whether a table has the columns of a contract that is newer than this one."""
    return int(spec.extra.get(CONTRACT, 0)) > contract.version


def fitted_state(state: TableState, contract: Contract) -> TableState:
    """Return a state as if its table had the contract's columns; nothing is committed.

    Old segments have none of a new column, which reads as null, as it will when it is there.
    """
    spec, schema = fitted(state.spec, state.schema, contract)
    if (spec, schema) == (state.spec, state.schema):
        return state
    schema_id = max(state.schemas) + 1
    return replace(
        state, spec=spec, schema_id=schema_id, schemas={**state.schemas, schema_id: schema}
    )


def as_stored(rows: pa.Table, schema: Schema) -> pa.Table:
    """Return rows with exactly the columns of a table, in its order.

    The table may have columns of a contract that is newer than theirs: those are null.
    """
    known = set(rows.column_names)
    arrays = [
        _in_type(rows.column(column.name), column)
        if column.name in known
        else pa.nulls(rows.num_rows, column.type)
        for column in schema.columns
    ]
    return pa.table(arrays, schema=schema.arrow)


def _in_type(values: pa.ChunkedArray, column: Column) -> pa.ChunkedArray:
    return values if values.type.equals(column.type) else values.cast(column.type)
