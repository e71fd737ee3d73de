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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from thermocline.contract.document.kind import Kind, KindField
from thermocline.contract.schema.pointer import Refusal, pointer_of
from thermocline.errors import Corruption
from thermocline.format.types import decode_type, encode_type, is_alike

EXTRA = "_extra"
NULLS = "_nulls"
EXTRA_KIND = Kind("string")
NULLS_KIND = Kind("list", item=Kind("string"))


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
class Wanted:
    """A column that a document defines, without an id yet; `x_id` is 0 if it requests no id."""

    part: KindField
    is_hot: bool = False
    x_id: int = 0

    def column(self, column_id: int) -> ContractColumn:
        """Return the column with its id."""
        kind = self.part.kind
        nullable = kind.nullable or not self.part.is_required
        pointer = "" if self.part.name in (EXTRA, NULLS) else pointer_of([self.part.name])
        return ContractColumn(
            column_id, self.part.name, pointer, kind.type, kind.postgres_type, self.is_hot, nullable
        )


@dataclass(frozen=True, slots=True)
class Assigned:
    """Columns with their ids, the retired columns, and the next free id."""

    columns: tuple[ContractColumn, ...] = ()
    retired: tuple[ContractColumn, ...] = ()
    next_id: int = 1


def widens(new: pa.DataType, old: pa.DataType) -> bool:
    """Tell whether a column of the old type may widen in place to the new type."""
    if is_alike(new, old):
        return True
    if kinds.is_signed_integer(old) and kinds.is_signed_integer(new):
        return bool(new.bit_width > old.bit_width)
    if kinds.is_decimal(old) and kinds.is_decimal(new):
        return bool(new.scale == old.scale and new.precision > old.precision)
    return kinds.is_float32(old) and kinds.is_float64(new)


def assign(wanted: Sequence[Wanted], before: Assigned, refusals: list[Refusal]) -> Assigned:
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
        if old is not None and old.id not in taken and widens(kind.type, old.type):
            column_id = old.id
        elif want.x_id and old is None:
            column_id = want.x_id
        else:
            if want.x_id and old is not None and want.x_id not in taken:
                reason = f"the column of that id is {old.type}, and cannot become {kind.type}"
                refusals.append(Refusal(asked_at, reason))
            column_id, next_id = next_id, next_id + 1
        taken[column_id] = name
        columns.append(want.column(column_id))
    return Assigned(tuple(columns), _retired(columns, before), next_id)


def _retired(columns: Sequence[ContractColumn], before: Assigned) -> tuple[ContractColumn, ...]:
    kept = {column.id for column in columns}
    names = {column.name.lower() for column in columns}
    gone = [*before.retired, *(column for column in before.columns if column.id not in kept)]
    return tuple(
        replace(column, name=f"{column.name}__{column.id}", is_hot=False)
        if column.name.lower() in names
        else replace(column, is_hot=False)
        for column in gone
    )


def encode_columns(assigned: Assigned) -> dict[str, Any]:
    """Return the columns as JSON, to be stored beside their document."""
    return {
        "columns": [_encoded(column) for column in assigned.columns],
        "retired": [_encoded(column) for column in assigned.retired],
        "next_id": assigned.next_id,
    }


def decode_columns(body: Mapping[str, Any]) -> Assigned:
    """Return the columns from their JSON; `Corruption` when it cannot be decoded."""
    try:
        return Assigned(
            tuple(_decoded(column) for column in body["columns"]),
            tuple(_decoded(column) for column in body["retired"]),
            int(body["next_id"]),
        )
    except (LookupError, TypeError, ValueError) as error:
        raise Corruption(
            "the stored columns of a contract cannot be decoded",
            hint="restore the registry from a backup",
        ) from error


def _encoded(column: ContractColumn) -> dict[str, Any]:
    plain = ("id", "name", "pointer", "postgres_type", "is_hot", "nullable")
    return {**{word: getattr(column, word) for word in plain}, "type": encode_type(column.type)}


def _decoded(body: Mapping[str, Any]) -> ContractColumn:
    return ContractColumn(**{**body, "type": decode_type(body["type"])})
