"""A contract: a registered JSON Schema with the columns of its table.

In:   a JSON Schema document, and the contract of the previous version
Out:  a `Contract`: validated documents, their rows, and the documents of rows

- `validate` returns the canonical form, which the columns return exactly.
- A contract is a value: it holds no connection and no file, and two contracts of the same document
  and columns are equal.
- The module `compatible` decides whether a contract may follow another.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa

from thermocline.contract.document.canonical import json_form, to_canonical
from thermocline.contract.document.checker import DocumentChecker
from thermocline.contract.document.column import (
    EXTRA,
    NULLS,
    AssignedColumns,
    ContractColumn,
    encode_columns,
)
from thermocline.contract.document.kind import ColumnKind, KindField
from thermocline.contract.document.row import (
    ABSENT,
    from_arrow,
    from_stored,
    is_taken_as_is,
    nulls_in,
    to_arrow,
    to_postgres,
)
from thermocline.contract.document.text import decode, encode_text
from thermocline.contract.schema.subschema import Json

_FIELDS = ("document", "version", "mode", "schema", "kind", "assigned", "is_open")


@dataclass(frozen=True)
class Contract:
    """One version of an entity type's contract.

    `schema` is the form of the document that validates: in draft 2020-12, references written out,
    objects closed. With `is_open`, documents may have properties without a column.
    """

    document: Json
    version: int
    mode: str
    schema: Json = field(repr=False)
    kind: ColumnKind = field(repr=False)
    assigned: AssignedColumns = field(repr=False)
    is_open: bool = False

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _FIELDS}

    @property
    def columns(self) -> tuple[ContractColumn, ...]:
        """The columns; `_extra` and `_nulls` are last if they exist."""
        return self.assigned.columns

    @property
    def retired(self) -> tuple[ContractColumn, ...]:
        """The columns of earlier versions that this one does not write."""
        return self.assigned.retired

    @cached_property
    def hot_columns(self) -> tuple[ContractColumn, ...]:
        """The columns that have a separate column in PostgreSQL."""
        return tuple(column for column in self.columns if column.is_hot)

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """The columns as an Arrow schema; each may be null, as in files older than the column."""
        return pa.schema([pa.field(column.name, column.type) for column in self.columns])

    @cached_property
    def columns_json(self) -> dict[str, Any]:
        """The columns as JSON, to be stored beside the document."""
        return encode_columns(self.assigned)

    @cached_property
    def _parts(self) -> dict[str, KindField]:
        return {part.name: part for part in self.kind.fields}

    @cached_property
    def checker(self) -> DocumentChecker:
        """The compiled form, built at its first use."""
        return DocumentChecker(self.schema, self.kind, is_open=self.is_open)

    def validate(self, document: Any) -> Json:
        """Return the document in canonical form; `Invalid` names every problem at once.

        The problems are the fact `problems`: pointer, expected, got. The given document does not
        change.
        """
        return self.checker.validate(document)

    @cached_property
    def validate_bytes(self) -> Callable[[bytes], Json]:
        """A function that validates JSON text and returns its document, as `validate` does."""
        return self.checker.validate_bytes

    def validate_lines(self, data: bytes) -> list[Json]:
        """Return the documents of JSON text, one a line, in canonical form: all of them or none.

        A pointer of a problem begins with the number of its document, from 0.
        """
        return self.checker.validate_lines(data)

    def is_fitting(self, document: Any) -> bool:
        """Tell whether a document fits, without a check that columns hold it exactly."""
        return self.checker.is_fitting(document)

    def fill_defaults(self, document: Mapping[str, Any]) -> Json:
        """Return a document of an earlier version with defaults for properties now required."""
        made = dict(document)
        properties = self.schema.get("properties", {})
        for name in self.schema.get("required", []):
            default = properties.get(name)
            if name not in made and isinstance(default, dict) and "default" in default:
                made[name] = default["default"]
        return made

    def split(self, document: Json) -> tuple[dict[int, Any], Json]:
        """Return the values of the hot columns by their ids, and the rest of the document.

        A null also stays in the rest, so that `join` can tell it from an absent property.
        """
        rest = dict(document)
        values: dict[int, Any] = {}
        for column in self.hot_columns:
            value = document.get(column.name)
            values[column.id] = to_postgres(self._parts[column.name].kind, value)
            if value is not None:
                del rest[column.name]
        return values, rest

    def join(self, values: Mapping[int, Any], rest: Json) -> Json:
        """Return the document from the values and the rest that `split` returned."""
        made = {
            column.name: from_stored(self._parts[column.name].kind, values[column.id])
            for column in self.hot_columns
            if values[column.id] is not None
        }
        # PostgreSQL returns JSON with another order of keys, and maybe with other digits.
        for name, value in rest.items():
            part = self._parts.get(name)
            kept = to_canonical(part.kind, value, (name,), []) if part else json_form(value)
            made[name] = kept
        names = [name for name in self._parts if name in made]
        return {name: made[name] for name in (*names, *(made.keys() - set(names)))}

    def arrow_rows(self, documents: Iterable[Json]) -> pa.Table:
        """Return documents in canonical form as rows of the contract's columns, in order."""
        rows = list(documents)
        arrays = [pa.array(self._values(column.name, rows), column.type) for column in self.columns]
        return pa.table(arrays, schema=self.arrow_schema)

    def _values(self, name: str, rows: list[Json]) -> list[Any]:
        if name == EXTRA:
            return [self._extra(row) for row in rows]
        if name == NULLS:
            return [self._nulls(row) or None for row in rows]
        kind = self._parts[name].kind
        if is_taken_as_is(kind):
            return [row.get(name) for row in rows]
        return [to_arrow(kind, row.get(name, ABSENT)) for row in rows]

    def _extra(self, row: Json) -> str | None:
        unknown = {name: value for name, value in row.items() if name not in self._parts}
        return encode_text(unknown) if unknown else None

    def _nulls(self, row: Json) -> list[str]:
        # Sorted, so that equal documents give equal rows whatever the order of properties.
        return sorted(
            pointer
            for name, part in self._parts.items()
            for pointer in nulls_in(part, row.get(name, ABSENT), (name,))
        )

    def document_of(self, row: Mapping[str, Any]) -> Json:
        """Return the document of one row of these columns, equal to the validated document.

        The row has Python values by column name, as Arrow returns them.
        """
        nulls = frozenset(row.get(NULLS) or ())
        made: Json = {}
        for name, part in self._parts.items():
            value = from_arrow(part, row.get(name), (name,), nulls)
            if value is not ABSENT:
                made[name] = value
        if extra := row.get(EXTRA):
            made |= json_form(decode(extra.encode()))
        return made
