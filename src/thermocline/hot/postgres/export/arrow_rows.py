"""Converts PostgreSQL rows of entities to rows of the lake's table, and those rows to entities.

In:   rows of PostgreSQL, of any version of their contract
Out:  Arrow rows with the columns of the newest contract; entities from such rows, exactly

- The columns are those of the newest contract and those it has retired, matched by id: a row of an
  older contract is kept whole, under the current names of its columns.
- The first columns are the row's write time, key, version and contract version.
"""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from operator import attrgetter, itemgetter
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import astuple

from thermocline.contract.contract import Contract
from thermocline.contract.document.canonical import to_canonical
from thermocline.contract.document.column import NULLS, ContractColumn
from thermocline.contract.document.kind import ColumnKind, KindField
from thermocline.contract.document.row import (
    ABSENT,
    has_either,
    may_be_either,
    nulls_in,
    to_arrow,
)
from thermocline.hot.postgres.schema.layout import HotColumn, Layout, can_be_decoded
from thermocline.hot.postgres.store.operation import StoredEntity

StoredRow = tuple[Any, ...]
"""A row of a type's table: key, version, contract version, time, `rest` as text, columns."""

_NATIVE_KINDS = frozenset({"string", "uuid", "enum", "integer", "number", "boolean"})

WRITTEN_AT, ID, VER, SCHEMA_VERSION = "_written_at", "_id", "_ver", "_schema_version"
FIXED = (
    pa.field(WRITTEN_AT, pa.timestamp("us", tz="UTC"), nullable=False),
    pa.field(ID, pa.string()),
    pa.field(VER, pa.int64()),
    pa.field(SCHEMA_VERSION, pa.int32()),
)


def kept_columns(contract: Contract) -> tuple[ContractColumn, ...]:
    """Return the lake's columns for a contract: its current ones, and those it has retired."""
    return (*contract.columns, *contract.retired)


@lru_cache(maxsize=64)
def _schema(columns: tuple[ContractColumn, ...]) -> pa.Schema:
    return pa.schema([*FIXED, *(pa.field(column.name, column.type) for column in columns)])


def cold_schema(contract: Contract) -> pa.Schema:
    """Return the schema of the lake's table of a type with this newest contract."""
    return _schema(kept_columns(contract))


def cold_rows(layout: Layout, stored: Iterable[StoredRow]) -> pa.Table:
    """Return rows of a type's PostgreSQL table as rows of its lake table."""
    by_version: dict[int, list[StoredRow]] = {}
    for row in stored:
        by_version.setdefault(row[2], []).append(row)
    parts = [_convert_rows(layout, version, some) for version, some in sorted(by_version.items())]
    return concat_rows(layout, parts)


def concat_rows(layout: Layout, parts: Sequence[pa.Table]) -> pa.Table:
    """Return tables of lake rows as one table; without parts, an empty one with its columns."""
    schema = cold_schema(layout.contract)
    return pa.concat_tables(parts).combine_chunks() if parts else schema.empty_table()


def _convert_rows(layout: Layout, version: int, rows: Sequence[StoredRow]) -> pa.Table:
    contract = layout.contract_of(version)
    # Not by `zip`: it makes an iterator per row, which costs garbage collection.
    by_place = [list(map(itemgetter(place), rows)) for place in range(len(rows[0]))]
    keys, vers, versions, times, rests, *values = by_place
    if _is_columnar(layout, contract):
        found = _contract_columns(layout, contract, values, rests)
    else:
        documents = layout.documents_of(versions, values, rests)
        found = dict(enumerate(contract.arrow_rows(documents).columns))
    by_id = {column.id: found[place] for place, column in enumerate(contract.columns)}
    fixed = (times, keys, vers, versions)
    arrays: list[Any] = [
        pa.array(some, field.type) for some, field in zip(fixed, FIXED, strict=True)
    ]
    for column in kept_columns(layout.contract):
        known = by_id.get(column.id)
        arrays.append(
            pa.nulls(len(rows), column.type) if known is None else pc.cast(known, column.type)
        )
    return pa.table(arrays, schema=cold_schema(layout.contract))


def _is_columnar(layout: Layout, contract: Contract) -> bool:
    """Tell whether rows can be converted to columns without building documents.

    Documents are needed for properties without a column in the contract, for names that JSON
    escapes, and for exact kinds such as JSON that have a column in PostgreSQL.
    """
    return not contract.is_open and all(
        can_be_decoded(part.name)
        and (
            part.kind.name == "decimal"
            or not _is_exact(part.kind)
            or part.name not in layout.by_name
        )
        for part in contract.kind.fields
    )


def _is_exact(kind: ColumnKind) -> bool:
    """Tell whether a number of this kind may have more digits than a double."""
    is_one = kind.name == "json" or (kind.name == "decimal" and not kind.is_text)
    return is_one or any(_is_exact(part) for part in kind.parts())


def _contract_columns(
    layout: Layout,
    contract: Contract,
    values: Sequence[Sequence[Any]],
    rests: Sequence[str],
) -> dict[int, pa.Array]:
    """Return a contract's columns by index: from the PostgreSQL column, else from `rest`."""
    parts = {part.name: part for part in contract.kind.fields}
    in_rest = _RestColumns(contract.kind.fields, rests)
    hot = {column.name: (column, some) for column, some in zip(layout.columns, values, strict=True)}
    found: dict[int, pa.Array] = {}
    for place, column in enumerate(contract.columns):
        if column.name == NULLS:
            found[place] = pa.array(in_rest.nulls(), column.type)
            continue
        part = parts[column.name]
        if column.name in hot:
            found[place] = pa.array(_plain_values(*hot[column.name]), column.type)
            if not found[place].null_count:
                continue
            # While a column is being filled, an old row may still have its value in `rest`.
            found[place] = pc.coalesce(found[place], in_rest.column(part, column))
        else:
            found[place] = in_rest.column(part, column)
    return found


@lru_cache(maxsize=64)
def _decoder(parts: tuple[KindField, ...], *, is_exact: bool) -> msgspec.json.Decoder[list[Any]]:
    """Return a decoder of objects into records of these properties: a third faster than dicts.

    A missing property is `ABSENT` if numbers must be exact, else None. In the second case,
    properties with a double column decode to doubles, also if PostgreSQL writes 1e22 as 10...0.
    """
    near, absent = (Any, ABSENT) if is_exact else (float | None, None)
    record = msgspec.defstruct(
        "Record",
        [
            (f"property_{number}", near if part.kind.name == "number" else Any, absent)
            for number, part in enumerate(parts)
        ],
        rename={f"property_{number}": part.name for number, part in enumerate(parts)},
        gc=False,  # JSON values contain no reference cycles
    )
    float_hook = Decimal if is_exact else None
    return msgspec.json.Decoder(list[record], float_hook=float_hook)  # type: ignore[valid-type]


class _RestColumns:
    """The `rest` values of many rows by property; exact kinds are decoded separately."""

    def __init__(self, parts: Sequence[KindField], rests: Sequence[str]) -> None:
        self._rests = rests
        self._parts = {
            is_exact: tuple(part for part in parts if _is_exact(part.kind) is is_exact)
            for is_exact in (True, False)
        }
        self._records: dict[bool, list[Any]] = {}

    def column(self, part: KindField, column: ContractColumn) -> pa.Array:
        name, kind = part.name, part.kind
        values = self._values(part)
        if _is_exact(kind):
            # PostgreSQL may write numbers in another form than the document had.
            forms = [
                None if value is ABSENT else to_arrow(kind, to_canonical(kind, value, (name,), []))
                for value in values
            ]
            return pa.array(forms, column.type)
        if kind.name in _NATIVE_KINDS:
            return pa.array(list(values), column.type)
        return pa.array([to_arrow(kind, value) for value in values], column.type)

    def nulls(self) -> list[list[str] | None]:
        """Return per row the pointers of nulls that columns cannot tell from absent values.

        None for a row without such nulls.
        """
        either = tuple(
            part
            for part in (*self._parts[True], *self._parts[False])
            if may_be_either(part) or has_either(part.kind)
        )
        some = [place for place, rest in enumerate(self._rests) if "null" in rest]
        text = ",".join(self._rests[place] for place in some)
        found: list[list[str] | None] = [None] * len(self._rests)
        records = _decoder(either, is_exact=True).decode(f"[{text}]")
        for place, record in zip(some, records, strict=True):
            pointers = [
                pointer
                for part, value in zip(either, astuple(record), strict=True)
                for pointer in nulls_in(part, value, (part.name,))
            ]
            found[place] = sorted(pointers) or None
        return found

    def _values(self, part: KindField) -> Iterable[Any]:
        is_exact = _is_exact(part.kind)
        parts = self._parts[is_exact]
        if is_exact not in self._records:
            text = f"[{','.join(self._rests)}]"
            self._records[is_exact] = _decoder(parts, is_exact=is_exact).decode(text)
        return map(attrgetter(f"property_{parts.index(part)}"), self._records[is_exact])


def _plain_values(column: HotColumn, values: Sequence[Any]) -> Sequence[Any]:
    if column.pg_type != "uuid":
        return values
    return [None if value is None else str(value) for value in values]


def entity_of(layout: Layout, row: Mapping[str, Any]) -> StoredEntity:
    """Return the entity of one lake row, given as Python values by column name."""
    version = int(row[SCHEMA_VERSION])
    contract = layout.contract_of(version)
    now = {column.id: column.name for column in kept_columns(layout.contract)}
    values = {column.name: row[now[column.id]] for column in contract.columns}
    document = contract.document_of(values)
    return StoredEntity(row[ID], int(row[VER]), version, row[WRITTEN_AT], document)
