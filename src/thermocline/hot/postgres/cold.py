"""Entities as rows of the lake's table of their type, and rows as entities.

In:   rows of PostgreSQL, of any version of their contract
Out:  Arrow rows with the columns of the newest; entities from such rows, exactly

- The columns are those of the newest contract and those it has retired, by their ids: a row that
  was written under an older contract is kept whole, under the names that its columns have now.
- Before them stand when a row was written, its key, its version and that of its contract.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any
from uuid import UUID

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from thermocline.contract.column import NULLS, ContractColumn
from thermocline.contract.contract import Contract
from thermocline.contract.kind import Kind, KindField
from thermocline.contract.row import ABSENT, nulls_in, to_arrow
from thermocline.hot.postgres.layout import Json, Layout
from thermocline.hot.postgres.operation import Entity

StoredRow = tuple[Any, ...]
"""A row of a type's table: key, version, that of its contract, time, `rest` as text, columns."""

_AS_ARROW_TAKES_IT = frozenset({"string", "uuid", "enum", "integer", "number", "boolean"})

WRITTEN_AT, ID, VER, SCHEMA_VERSION = "_written_at", "_id", "_ver", "_schema_version"
FIXED = (
    pa.field(WRITTEN_AT, pa.timestamp("us", tz="UTC"), nullable=False),
    pa.field(ID, pa.string()),
    pa.field(VER, pa.int64()),
    pa.field(SCHEMA_VERSION, pa.int32()),
)


def kept_columns(contract: Contract) -> tuple[ContractColumn, ...]:
    """Return the columns that the lake has for a contract: its own, and those it has retired."""
    return (*contract.columns, *contract.retired)


@lru_cache(maxsize=64)
def _schema(columns: tuple[ContractColumn, ...]) -> pa.Schema:
    return pa.schema([*FIXED, *(pa.field(column.name, column.type) for column in columns)])


def cold_schema(contract: Contract) -> pa.Schema:
    """Return the columns of the lake's table of a type with this newest contract."""
    return _schema(kept_columns(contract))


def cold_rows(layout: Layout, stored: Iterable[StoredRow]) -> pa.Table:
    """Return rows of a type's table in PostgreSQL as rows of its table in the lake."""
    by_version: dict[int, list[StoredRow]] = {}
    for row in stored:
        by_version.setdefault(row[2], []).append(row)
    parts = [_rows(layout, version, some) for version, some in sorted(by_version.items())]
    return joined(layout, parts)


def joined(layout: Layout, parts: Sequence[pa.Table]) -> pa.Table:
    """Return rows of the lake's table as one; none are none with the same columns."""
    schema = cold_schema(layout.contract)
    return pa.concat_tables(parts).combine_chunks() if parts else schema.empty_table()


def _rows(layout: Layout, version: int, rows: Sequence[StoredRow]) -> pa.Table:
    contract = layout.contract_of(version)
    if _is_plain(contract):
        found = _plain_columns(layout, contract, rows)
    else:
        documents = (layout.document_of(version, row[5:], row[4]) for row in rows)
        found = dict(enumerate(contract.arrow_rows(documents).columns))
    by_id = {column.id: found[place] for place, column in enumerate(contract.columns)}
    arrays: list[Any] = [
        pa.array([row[3] for row in rows], FIXED[0].type),
        pa.array([row[0] for row in rows], FIXED[1].type),
        pa.array([row[1] for row in rows], FIXED[2].type),
        pa.array([version] * len(rows), FIXED[3].type),
    ]
    for column in kept_columns(layout.contract):
        known = by_id.get(column.id)
        arrays.append(
            pa.nulls(len(rows), column.type) if known is None else pc.cast(known, column.type)
        )
    return pa.table(arrays, schema=cold_schema(layout.contract))


def _is_plain(contract: Contract) -> bool:
    """Tell whether a row's values become Arrow's without the document in between.

    Numbers that must keep more digits than a double has, and properties without a column, need it.
    """
    kinds = [part.kind for part in contract.kind.fields]
    return not contract.is_open and not any(_needs_document(kind) for kind in kinds)


def _needs_document(kind: Kind) -> bool:
    is_one = kind.name == "json" or (kind.name == "decimal" and not kind.is_text)
    return is_one or any(_needs_document(part) for part in kind.parts())


def _plain_columns(
    layout: Layout, contract: Contract, rows: Sequence[StoredRow]
) -> dict[int, pa.Array]:
    """Return the columns of a contract by place: from the row's own column, else from `rest`."""
    rests: list[Json] = msgspec.json.decode(f"[{','.join(row[4] for row in rows)}]")
    parts = {part.name: part for part in contract.kind.fields}
    places = {column.name: place for place, column in enumerate(layout.columns)}
    found: dict[int, pa.Array] = {}
    for place, column in enumerate(contract.columns):
        if column.name == NULLS:
            values = [_nulls(parts.values(), row) for row in rests]
            found[place] = pa.array(values, column.type)
            continue
        part = parts[column.name]
        if column.name in places:
            at = 5 + places[column.name]
            found[place] = pa.array([_plain_value(row[at]) for row in rows], column.type)
            if not found[place].null_count:
                continue
            # While a column is being filled, an old row may have its value in `rest` still.
            found[place] = pc.coalesce(found[place], _from_rest(part, column, rests))
        else:
            found[place] = _from_rest(part, column, rests)
    return found


def _from_rest(part: KindField, column: ContractColumn, rests: Sequence[Json]) -> pa.Array:
    name, kind = part.name, part.kind
    if kind.name in _AS_ARROW_TAKES_IT:
        return pa.array([row.get(name) for row in rests], column.type)
    return pa.array([to_arrow(kind, row.get(name, ABSENT)) for row in rests], column.type)


def _nulls(parts: Iterable[KindField], row: Json) -> list[str] | None:
    found = sorted(
        pointer
        for part in parts
        if part.name in row
        for pointer in nulls_in(part, row[part.name], (part.name,))
    )
    return found or None


def _plain_value(value: Any) -> Any:
    return str(value) if isinstance(value, UUID) else value


def entity_of(layout: Layout, row: Mapping[str, Any]) -> Entity:
    """Return the entity of one row of the lake's table, which has Python values by name."""
    version = int(row[SCHEMA_VERSION])
    contract = layout.contract_of(version)
    now = {column.id: column.name for column in kept_columns(layout.contract)}
    values = {column.name: row[now[column.id]] for column in contract.columns}
    document = contract.document_of(values)
    return Entity(row[ID], int(row[VER]), version, row[WRITTEN_AT], document)
