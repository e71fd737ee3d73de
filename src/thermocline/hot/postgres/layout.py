"""How documents of one type lie in its table: some properties in columns, the rest as jsonb.

In:   a document in canonical form; or a row's values
Out:  the record that is written; or the document, exactly

- A property with a column stands there and not in `rest`; a null of it stays in `rest`, so that
  null and absent are told apart.
- The columns are the table's, not a contract's: a row written under an old contract has them too.
- Columns are as wide as their kind can become (`bigint`, `double precision`, `numeric`), so a
  contract that widens a property needs no change of the table.
- While a column is being filled, a property may still be in `rest` of an old row: both are read.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from functools import cached_property
from typing import Any

import msgspec
from psycopg import sql

from thermocline.contract.canonical import canonical, json_form
from thermocline.contract.contract import Contract
from thermocline.contract.kind import Kind
from thermocline.contract.row import from_stored

_WIDE = {"smallint": "bigint", "integer": "bigint", "real": "double precision"}
_plain = msgspec.json.Decoder()
_exact = msgspec.json.Decoder(float_hook=Decimal)

Json = dict[str, Any]


class Stale(Exception):
    """What is known of a type is out of date; never leaves this room."""


@dataclass(frozen=True, slots=True)
class HotColumn:
    """A column of a type's table that holds one property; `is_ready` once it holds all of it."""

    column_id: int
    name: str
    pg_type: str
    is_ready: bool = True

    @property
    def sql_name(self) -> str:
        """Its name in the table."""
        return f"h_{self.column_id}"


@dataclass(frozen=True)
class Layout:
    """One type as its table has it, with every version of its contract."""

    type_id: int
    name: str
    table: str
    columns: tuple[HotColumn, ...]
    contracts: Mapping[int, Contract] = field(repr=False)

    @property
    def contract(self) -> Contract:
        """The newest contract: what new documents are checked with."""
        return self.contracts[max(self.contracts)]

    @cached_property
    def by_name(self) -> dict[str, HotColumn]:
        """The columns by the property they hold."""
        return {column.name: column for column in self.columns}

    @cached_property
    def names(self) -> sql.SQL:
        """`names_text` as a part of a composed statement."""
        return sql.SQL(self.names_text)

    @cached_property
    def names_text(self) -> str:
        """The table's own columns, each after a comma, as a list in a statement has them."""
        return "".join(f", {column.sql_name}" for column in self.columns)

    @cached_property
    def record(self) -> str:
        """The names and types of a record as `record_of` makes it."""
        parts = "".join(f", {column.sql_name} {column.pg_type}" for column in self.columns)
        return f"id text, ver bigint, schema_version int, rest jsonb{parts}"

    @cached_property
    def changes(self) -> str:
        """What sets the table's own columns to those of a record called `given`."""
        return "".join(f", {name} = given.{name}" for name in (c.sql_name for c in self.columns))

    def contract_of(self, schema_version: int) -> Contract:
        """Return a version of the contract; `Stale` for one that is not known here."""
        try:
            return self.contracts[schema_version]
        except KeyError:
            raise Stale(schema_version) from None

    def record_of(self, key: str, ver: int, schema_version: int, document: Json) -> Json:
        """Return what is written for a document: a JSON object of the table's columns."""
        rest = dict(document)
        record: Json = {"id": key, "ver": ver, "schema_version": schema_version, "rest": rest}
        for column in self.columns:
            value = rest.get(column.name)
            if value is not None:
                record[column.sql_name] = value
                del rest[column.name]
        return record

    def document_of(self, schema_version: int, values: Sequence[Any], rest: str | None) -> Json:
        """Return the document of a row: the values of `columns` in order, and `rest` as text."""
        form = self._form(schema_version)
        made: Json = {}
        if rest is not None:
            made = (_exact if form.is_exact else _plain).decode(rest)
            for name, kind in form.careful:
                value = made.get(name)
                if value is not None and type(value) is not float:
                    made[name] = canonical(kind, value, (name,), [])
            if form.is_open:
                for name in made.keys() - form.kinds.keys():
                    made[name] = json_form(made[name])
        for name, shown, value in zip(form.hot_names, form.hot_forms, values, strict=True):
            if value is not None:
                made[name] = value if shown is None else shown(value)
        return form.ordered(made)

    def document_in_json(self, schema_version: int, values: Sequence[Any], rest: Json) -> Json:
        """Return the document of a row that came as JSON, with `Decimal` for every fraction."""
        form = self._form(schema_version)
        made = dict(rest)
        for name, kind in form.careful:
            if made.get(name) is not None:
                made[name] = canonical(kind, made[name], (name,), [])
        for name in made.keys() - form.kinds.keys():
            made[name] = json_form(made[name])
        for name, shown, value in zip(form.hot_names, form.hot_forms, values, strict=True):
            if value is not None:
                is_plain = shown is None and type(value) is not Decimal
                kind = form.kinds[name]
                made[name] = value if is_plain else canonical(kind, value, (name,), [])
        return form.ordered(made)

    def _form(self, schema_version: int) -> "_Form":
        found = self._forms.get(schema_version)
        if found is None:
            contract = self.contract_of(schema_version)
            found = self._forms[schema_version] = _form_of(contract, self.columns)
        return found

    @cached_property
    def _forms(self) -> "dict[int, _Form]":
        return {}


@dataclass(frozen=True, slots=True)
class _Form:
    """What reading documents of one contract needs: the kinds, and which need a second look."""

    kinds: Mapping[str, Kind]
    careful: Sequence[tuple[str, Kind]]
    is_exact: bool
    is_open: bool
    hot_names: Sequence[str]
    hot_forms: Sequence[Callable[[Any], Any] | None]

    def ordered(self, made: Json) -> Json:
        """Return a document with its properties in the order of the contract."""
        known = {name: made[name] for name in self.kinds if name in made}
        return known if len(known) == len(made) else known | made


def _form_of(contract: Contract, columns: Sequence[HotColumn]) -> _Form:
    kinds = {part.name: part.kind for part in contract.kind.fields}
    careful = [(name, kind) for name, kind in kinds.items() if _is_changed_by_jsonb(kind)]
    is_exact = contract.is_open or any(_needs_digits(kind) for kind in kinds.values())
    names = [column.name for column in columns]
    forms = [_shower(kinds[name]) if name in kinds else None for name in names]
    return _Form(kinds, careful, is_exact, contract.is_open, names, forms)


def _is_changed_by_jsonb(kind: Kind) -> bool:
    """Tell whether jsonb may give a number of this kind back in another form: 1e22 as 10...0."""
    return any(kind.has(name) for name in ("number", "json")) or _needs_digits(kind)


def _needs_digits(kind: Kind) -> bool:
    is_one = kind.name == "json" or (kind.name == "decimal" and not kind.is_text)
    return is_one or any(_needs_digits(part) for part in kind.parts())


def _shower(kind: Kind) -> Callable[[Any], Any] | None:
    """Return what makes a column's value one of a document; None when it is one already."""
    match kind.name:
        case "string" | "enum" | "integer" | "boolean" | "number":
            return None
        case "timestamp":
            return _instant
        case "decimal" if kind.is_text:
            return _decimal
    return functools.partial(from_stored, kind)


def _decimal(value: Decimal) -> str:
    """Return a decimal as documents have it, all digits written out."""
    text = str(value)
    return format(value, "f") if "E" in text else text


def _instant(value: datetime) -> str:
    """Return an instant as documents have it. Sessions are in UTC, so what comes is too."""
    text = value.replace(tzinfo=None).isoformat()
    return (text.rstrip("0") if value.microsecond else text) + "Z"


def wide_type(pg_type: str) -> str:
    """Return the type that a hot column of this type has in a table."""
    return "numeric" if pg_type.startswith("numeric") else _WIDE.get(pg_type, pg_type)
