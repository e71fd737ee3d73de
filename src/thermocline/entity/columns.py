"""Fits the columns of an entity type's lake table to the type's newest contract.

In:   the table's spec and schema, the newest contract
Out:  the spec and schema that fit the contract

- The table's `columns` maps contract columns to lake columns by id: so a renamed property keeps its
  values, and a widened property widens its column.
- Columns are never dropped: those of retired properties hold old values.
- Columns never regress: applying an older contract version changes nothing. The table's `contract`
  is the version that its columns fit.
"""

from dataclasses import replace

import pyarrow as pa

from thermocline.cold.table import ColdTable
from thermocline.contract.contract import Contract
from thermocline.format.log.action import TableSpec
from thermocline.format.log.state import TableState
from thermocline.format.schema import Schema, TableColumn, create_schema
from thermocline.hot.postgres.export.arrow_rows import FIXED, kept_columns

COLUMNS = "columns"
CONTRACT = "contract"


def fit_to_contract(
    spec: TableSpec, schema: Schema, contract: Contract
) -> tuple[TableSpec, Schema]:
    """Return the spec and schema that fit the contract; the given ones if they already do."""
    before = schema
    if not schema.columns:
        schema = create_schema(pa.schema(FIXED), spec.time_column)
    places = {str(key): int(place) for key, place in spec.extra.get(COLUMNS, {}).items()}
    wanted = {places[str(c.id)]: c for c in kept_columns(contract) if str(c.id) in places}
    # All renames at once: two properties may have swapped their names.
    renamed = tuple(
        replace(column, name=wanted[column.id].name) if column.id in wanted else column
        for column in schema.columns
    )
    if renamed != schema.columns:
        schema = replace(schema, columns=renamed)
    for place, column in wanted.items():
        if not schema.by_id[place].type.equals(column.type):
            schema = schema.widen_column(column.name, column.type)
    for column in kept_columns(contract):
        if str(column.id) not in places:
            places[str(column.id)] = schema.next_id
            schema = schema.add_columns([pa.field(column.name, column.type)])
    if schema != before or places != spec.extra.get(COLUMNS, {}):
        extra = {**spec.extra, COLUMNS: places, CONTRACT: contract.version}
        spec = replace(spec, extra=extra)
    return spec, schema


def fit_table(table: ColdTable, contract: Contract) -> TableState:
    """Commit the columns that the contract needs, if any is missing.

    A table that fits a newer contract does not change; see `is_past`.
    """

    def change(spec: TableSpec, schema: Schema) -> tuple[TableSpec, Schema]:
        return (
            (spec, schema)
            if has_newer_contract(spec, contract)
            else fit_to_contract(spec, schema, contract)
        )

    return table.alter("set columns", change)


def has_newer_contract(spec: TableSpec, contract: Contract) -> bool:
    """Tell whether a table has the columns of a newer contract than this one."""
    return int(spec.extra.get(CONTRACT, 0)) > contract.version


def fit_state(state: TableState, contract: Contract) -> TableState:
    """Return a state as if its table had the contract's columns, without a commit.

    A new column reads as null from old segments, exactly as after the commit.
    """
    spec, schema = fit_to_contract(state.spec, state.schema, contract)
    if (spec, schema) == (state.spec, state.schema):
        return state
    schema_id = max(state.schemas) + 1
    return replace(
        state, spec=spec, schema_id=schema_id, schemas={**state.schemas, schema_id: schema}
    )


def conform_rows(rows: pa.Table, schema: Schema) -> pa.Table:
    """Return rows with exactly the columns of a table, in its order.

    The table may have columns of a newer contract than the rows: those are null.
    """
    known = set(rows.column_names)
    arrays = [
        _cast(rows.column(column.name), column)
        if column.name in known
        else pa.nulls(rows.num_rows, column.type)
        for column in schema.columns
    ]
    return pa.table(arrays, schema=schema.arrow)


def _cast(values: pa.ChunkedArray, column: TableColumn) -> pa.ChunkedArray:
    return values if values.type.equals(column.type) else values.cast(column.type)
