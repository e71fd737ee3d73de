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
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from functools import cached_property
from itertools import repeat
from typing import Any

import msgspec
from psycopg import sql

from thermocline.contract.canonical import canonical, json_form
from thermocline.contract.contract import Contract
from thermocline.contract.kind import Kind
from thermocline.contract.row import from_stored

_WIDE = {"smallint": "bigint", "integer": "bigint", "real": "double precision"}
_AS_TEXT = {"timestamptz": "::text", "numeric": "::text"}
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

    def shown_text(self, row: str, names: Collection[str] | None = None) -> str:
        """Return the columns of a row as a page selects them, each after a comma.

        Instants and decimals come as text: a driver's value takes 2 us to become that. Of columns
        that are not among the `names` of properties, if there are any, come nulls.
        """
        return "".join(
            f", {row}.{one.sql_name}{_AS_TEXT.get(one.pg_type, '')}"
            if names is None or one.name in names
            else f", {_blank(one)}"
            for one in self.columns
        )

    @cached_property
    def blank_text(self) -> str:
        """Nulls of the types of `shown_text`, for rows of another type in the same answer."""
        return "".join(f", {_blank(column)}" for column in self.columns)

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
        return self._form(schema_version).documents([[value] for value in values], [rest])[0]

    def documents_of(
        self,
        schema_versions: Sequence[int],
        values: Sequence[Sequence[Any]],
        rests: Sequence[str | None],
    ) -> list[Json]:
        """Return the documents of rows, as `document_of` does; for many it takes 3 us each.

        `values` are those of all rows for one column, then for the next.
        """
        if len(set(schema_versions)) == 1:
            return self._form(schema_versions[0]).documents(values, rests)
        return [
            self._form(version).documents([[column[row]] for column in values], [rest])[0]
            for row, (version, rest) in enumerate(zip(schema_versions, rests, strict=True))
        ]

    def _form(self, schema_version: int) -> "_Form":
        found = self._forms.get(schema_version)
        if found is None:
            contract = self.contract_of(schema_version)
            found = self._forms[schema_version] = _form_of(contract, self.columns)
        return found

    @cached_property
    def _forms(self) -> "dict[int, _Form]":
        return {}


_ABSENT = object()


@dataclass(frozen=True, slots=True)
class _Form:
    """How documents of one contract are read: what needs a second look, and the order.

    `hot` are the properties that have columns, and what makes a column's value one of a document.
    It goes over all documents for one property, then for the next: half as long as the other way.
    """

    decode: Callable[[str], Json]
    careful: Sequence[tuple[str, Kind]]
    is_open: bool
    hot: Sequence[tuple[str, Callable[[Any], Any] | None]]
    places: dict[str, Any]
    quick: "_QuickForm | None"

    def documents(self, values: Sequence[Sequence[Any]], rests: Sequence[str | None]) -> list[Json]:
        """Return the documents of rows; the values are by column.

        Rows have all a rest or none has one: then it was not asked for, and documents are of what
        the columns have, in their order.
        """
        given = [rest for rest in rests if rest is not None]
        if not given:  # not asked for
            bare: list[Json] = [{} for _ in rests]
            self._add_columns(bare, values)
            return bare
        if self.quick is not None:
            with suppress(msgspec.MsgspecError):  # somebody else's row: shown as it is, below
                return self.quick.documents(values, given)
        decode, places = self.decode, self.places
        made = [decode(rest) for rest in given]
        self._look_again(made)
        self._add_columns(made, values)
        # In the contract's order, merged: picked one by one it takes four times as long.
        whole = [places | one for one in made]
        return [
            found if len(found) == len(one) else _without_absent(found)
            for found, one in zip(whole, made, strict=True)
        ]

    def _add_columns(self, made: Sequence[Json], values: Sequence[Sequence[Any]]) -> None:
        for (name, shown), column in zip(self.hot, values, strict=True):
            for one, value in zip(made, column, strict=True):
                if value is not None:
                    one[name] = value if shown is None else shown(value)

    def _look_again(self, made: Sequence[Json]) -> None:
        """Put what jsonb may have changed in canonical form."""
        for name, kind in self.careful:
            for one in made:
                value = one.get(name)
                if value is not None and type(value) is not float:
                    one[name] = canonical(kind, value, (name,), [])
        if self.is_open:
            for one in made:
                for name in one.keys() - self.places.keys():
                    one[name] = json_form(one[name])


@dataclass(frozen=True, slots=True)
class _QuickForm:
    """The same for contracts whose only numbers with fractions are doubles, a quarter quicker.

    A row is decoded into a record whose fields are the contract's properties: they are in its
    order, doubles are doubles however jsonb writes them, and what is absent is left out. Whatever
    goes over the rows is not a loop here but a call that does it for all of them.
    """

    decode: Callable[[str], list[Any]]
    hot: Sequence[tuple[str, Callable[[Sequence[Any]], Iterable[Any]]]]

    def documents(self, values: Sequence[Sequence[Any]], rests: Sequence[str]) -> list[Json]:
        made = self.decode(f"[{','.join(rests)}]")
        for (place, shown), column in zip(self.hot, values, strict=True):
            some, found = made, column
            if None in column:
                some = [one for one, value in zip(made, column, strict=True) if value is not None]
                found = [value for value in column if value is not None]
            deque(map(setattr, some, repeat(place), shown(found)), maxlen=0)
        documents: list[Json] = msgspec.to_builtins(made)
        return documents


def _blank(column: HotColumn) -> str:
    return "null" + _AS_TEXT.get(column.pg_type, f"::{column.pg_type}")


def _without_absent(document: Json) -> Json:
    return {name: value for name, value in document.items() if value is not _ABSENT}


def _form_of(contract: Contract, columns: Sequence[HotColumn]) -> _Form:
    kinds = {part.name: part.kind for part in contract.kind.fields}
    careful = [(name, kind) for name, kind in kinds.items() if _is_changed_by_jsonb(kind)]
    is_exact = contract.is_open or any(_needs_digits(kind) for kind in kinds.values())
    decode = (_exact if is_exact else _plain).decode
    names = [column.name for column in columns]
    hot = [(name, _shower(kinds[name]) if name in kinds else None) for name in names]
    is_quick = not is_exact and kinds.keys() >= set(names)
    is_quick = is_quick and all(kind.name == "number" and kind.bits == 64 for _, kind in careful)
    is_quick = is_quick and all(map(can_be_decoded, kinds))
    quick = _quick_form(kinds, hot) if is_quick else None
    return _Form(decode, careful, contract.is_open, hot, dict.fromkeys(kinds, _ABSENT), quick)


def _quick_form(
    kinds: Mapping[str, Kind], hot: Sequence[tuple[str, Callable[[Any], Any] | None]]
) -> _QuickForm:
    places = {name: f"property_{number}" for number, name in enumerate(kinds)}
    number = float | msgspec.UnsetType | None
    record = msgspec.defstruct(
        "Record",
        [
            (places[name], number if kind.name == "number" else Any, msgspec.UNSET)
            for name, kind in kinds.items()
        ],
        rename={place: name for name, place in places.items()},
        forbid_unknown_fields=True,
        gc=False,  # it holds what JSON has, which refers to no record
    )
    decode = msgspec.json.Decoder(list[record]).decode  # type: ignore[valid-type]
    return _QuickForm(decode, [(places[name], _all_shown(shown)) for name, shown in hot])


def can_be_decoded(name: str) -> bool:
    """Tell whether a record's field may have a property's name: JSON must write it as it is."""
    return not any(letter in '"\\' or letter < " " for letter in name)


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


def _all_shown(
    shown: Callable[[Any], Any] | None,
) -> Callable[[Sequence[Any]], Iterable[Any]]:
    """Return what makes all of a column's values ones of documents, as `shown` makes each."""
    if shown is None:
        return iter
    if shown is _instant:
        return _instants
    return _decimals if shown is _decimal else functools.partial(map, shown)


def _decimals(values: Sequence[Any]) -> Iterable[str]:
    try:
        is_shown = "E" not in "".join(values)
    except TypeError:  # not texts
        is_shown = False
    return values if is_shown else map(_decimal, values)


def _instants(values: Sequence[Any]) -> Iterable[str]:
    try:
        text = "\n".join(values)
    except TypeError:  # not texts
        return map(_instant, values)
    return text.replace(" ", "T").replace("+00", "Z").split("\n") if values else ()


def _decimal(value: Decimal | str) -> str:
    """Return a decimal as documents have it, all digits written out, as PostgreSQL writes it."""
    text = str(value)
    return format(Decimal(value), "f") if "E" in text else text


def _instant(value: datetime | str) -> str:
    """Return an instant as documents have it, from the driver's value or PostgreSQL's text of it.

    Sessions are in UTC, so what comes is too.
    """
    if isinstance(value, str):
        return f"{value[:10]}T{value[11:-3]}Z"
    text = value.replace(tzinfo=None).isoformat()
    return (text.rstrip("0") if value.microsecond else text) + "Z"


def wide_type(pg_type: str) -> str:
    """Return the type that a hot column of this type has in a table."""
    return "numeric" if pg_type.startswith("numeric") else _WIDE.get(pg_type, pg_type)
