"""The columns of a contract, and the ids they keep from version to version.

In:   the kinds of a contract's properties, and the columns of the previous version
Out:  `ContractColumn`s, retired columns, and the next free id

- The id is the identity of a column. An id is never reused, not even that of a retired column.
- A property keeps its column while its type stays the same or widens in place: an integer of more
  bits, a float to a double, a decimal of more digits at the same scale. Any other change of type
  makes a new column; the old one is retired, and keeps the rows written before.
- A renamed property keeps its column when its `x-id` names the column.
- A retired column is renamed to `<name>__<id>` when a new column has its name.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from thermocline.contract.document.kind import ColumnKind, KindField
from thermocline.contract.schema.pointer import Refusal, pointer_of
from thermocline.errors import Corruption
from thermocline.format.types import decode_type, encode_type, is_alike

POSTGRES_TYPE = re.compile(
    r"text|uuid|date|boolean|timestamptz|jsonb|smallint|integer|bigint|real|double precision"
    r"|numeric(?:\([0-9]{1,4},-?[0-9]{1,4}\))?"
)
"""The names of PostgreSQL's types that a hot column may have; they become SQL."""

EXTRA = "_extra"
NULLS = "_nulls"
EXTRA_KIND = ColumnKind("string")
NULLS_KIND = ColumnKind("list", item=ColumnKind("string"))


@dataclass(frozen=True, slots=True)
class ContractColumn:
    """One column; `id` is its identity, `pointer` the property that it holds.

    `postgres_type` is the type of its hot column, or `jsonb` for a kind without such a type.
    """

    id: int
    name: str
    pointer: str
    type: pa.DataType
    postgres_type: str
    is_hot: bool = False
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class WantedColumn:
    """A column that a document defines, without an id yet; `x_id` is 0 if it requests no id."""

    part: KindField
    is_hot: bool = False
    x_id: int = 0

    def to_column(self, column_id: int) -> ContractColumn:
        """Return the column with its id."""
        kind = self.part.kind
        nullable = kind.nullable or not self.part.is_required
        pointer = "" if self.part.name in (EXTRA, NULLS) else pointer_of([self.part.name])
        return ContractColumn(
            column_id, self.part.name, pointer, kind.type, kind.postgres_type, self.is_hot, nullable
        )


@dataclass(frozen=True, slots=True)
class AssignedColumns:
    """Columns with their ids, the retired columns, and the next free id."""

    columns: tuple[ContractColumn, ...] = ()
    retired: tuple[ContractColumn, ...] = ()
    next_id: int = 1


def can_widen(new: pa.DataType, old: pa.DataType) -> bool:
    """Tell whether a column of the old type may widen in place to the new type."""
    if is_alike(new, old):
        return True
    if kinds.is_signed_integer(old) and kinds.is_signed_integer(new):
        return bool(new.bit_width > old.bit_width)
    if kinds.is_decimal(old) and kinds.is_decimal(new):
        return bool(new.scale == old.scale and new.precision > old.precision)
    return kinds.is_float32(old) and kinds.is_float64(new)


def assign_ids(
    wanted: Sequence[WantedColumn], before: AssignedColumns, refusals: list[Refusal]
) -> AssignedColumns:
    """Return the columns with ids: the previous version's id where a column continues, else new."""
    by_name = {column.name: column for column in before.columns}
    by_id = {column.id: column for column in before.columns}
    taken: dict[int, str] = {column.id: column.name for column in before.retired}
    next_id = max([before.next_id, *(want.x_id + 1 for want in wanted)])
    columns: list[ContractColumn] = []
    for want in wanted:
        name, kind = want.part.name, want.part.kind
        old = by_id.get(want.x_id) if want.x_id else by_name.get(name)
        asked_at = pointer_of(["properties", name, "x-id"])
        if want.x_id and want.x_id in taken:
            reason = f"the id is already that of {taken[want.x_id]}"
            refusals.append(Refusal(asked_at, reason))
        if old is not None and old.id not in taken and can_widen(kind.type, old.type):
            column_id = old.id
        elif want.x_id and old is None:
            column_id = want.x_id
        else:
            if want.x_id and old is not None and want.x_id not in taken:
                reason = f"the column of that id is {old.type}, and cannot become {kind.type}"
                refusals.append(Refusal(asked_at, reason))
            column_id, next_id = next_id, next_id + 1
        taken[column_id] = name
        columns.append(want.to_column(column_id))
    return AssignedColumns(tuple(columns), _retired_columns(columns, before), next_id)


def _retired_columns(
    columns: Sequence[ContractColumn], before: AssignedColumns
) -> tuple[ContractColumn, ...]:
    kept = {column.id for column in columns}
    names = {column.name.lower() for column in columns}
    gone = [*before.retired, *(column for column in before.columns if column.id not in kept)]
    return tuple(
        replace(column, name=f"{column.name}__{column.id}", is_hot=False)
        if column.name.lower() in names
        else replace(column, is_hot=False)
        for column in gone
    )


def encode_columns(assigned: AssignedColumns) -> dict[str, Any]:
    """Return the columns as JSON, to be stored beside their document."""
    return {
        "columns": [_encode_column(column) for column in assigned.columns],
        "retired": [_encode_column(column) for column in assigned.retired],
        "next_id": assigned.next_id,
    }


def decode_columns(body: Mapping[str, Any]) -> AssignedColumns:
    """Return the columns from their JSON; `Corruption` when it cannot be decoded."""
    try:
        return AssignedColumns(
            tuple(_decode_column(column) for column in body["columns"]),
            tuple(_decode_column(column) for column in body["retired"]),
            int(body["next_id"]),
        )
    except (LookupError, TypeError, ValueError) as error:
        raise Corruption(
            "the stored columns of a contract cannot be decoded",
            hint="restore the registry from a backup",
        ) from error


def _encode_column(column: ContractColumn) -> dict[str, Any]:
    plain = ("id", "name", "pointer", "postgres_type", "is_hot", "nullable")
    return {**{word: getattr(column, word) for word in plain}, "type": encode_type(column.type)}


def _decode_column(body: Mapping[str, Any]) -> ContractColumn:
    column = ContractColumn(**{**body, "type": decode_type(body["type"])})
    if not isinstance(column.id, int) or not POSTGRES_TYPE.fullmatch(column.postgres_type):
        raise ValueError("not a column of a contract")
    return column
