"""Maps documents of one type to its table: some properties in columns, the rest as jsonb.

In:   a document in canonical form; or a row's values
Out:  the record to write; or the document, exactly

- A property with a column is stored there and not in `rest`; but its null is stored in `rest`, so
  that null and absent differ.
- The columns belong to the table, not to a contract: a row of an old contract has them too.
- Columns have the widest type of their kind (`bigint`, `double precision`, `numeric`), so a
  contract that widens a property needs no change of the table.
- While a column is being filled, an old row may still have the property in `rest`: both are read.
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

from thermocline.contract.contract import Contract
from thermocline.contract.document.canonical import json_form, to_canonical
from thermocline.contract.document.column import POSTGRES_TYPE
from thermocline.contract.document.kind import ColumnKind
from thermocline.contract.document.row import from_stored
from thermocline.errors import Corruption

_WIDE = {"smallint": "bigint", "integer": "bigint", "real": "double precision"}
_AS_TEXT = {"timestamptz": "::text", "numeric": "::text"}
_plain = msgspec.json.Decoder()
_exact = msgspec.json.Decoder(float_hook=Decimal)

Json = dict[str, Any]


def check_postgres_type(name: str) -> None:
    """Raise `Corruption` unless this is the name of a type of a hot column.

    Names of types come from rows, which a restored backup may have brought, and become SQL.
    """
    if not POSTGRES_TYPE.fullmatch(name):
        raise Corruption(
            "the registry names a type that no column has",
            hint="restore the registry from a backup that you trust",
            type=ascii(name)[:80],
        )


class StaleLayout(Exception):
    """The cached layout of a type is out of date. It is caught inside `hot/postgres`."""


@dataclass(frozen=True, slots=True)
class HotColumn:
    """A table column that holds one property; `is_ready` once it has every row's value."""

    column_id: int
    name: str
    pg_type: str
    is_ready: bool = True

    def __post_init__(self) -> None:
        check_postgres_type(self.pg_type)

    @property
    def sql_name(self) -> str:
        """The column's name in the table."""
        return f"h_{self.column_id}"


@dataclass(frozen=True)
class Layout:
    """The table of one type, with every version of its contract."""

    type_id: int
    name: str
    table: str
    columns: tuple[HotColumn, ...]
    contracts: Mapping[int, Contract] = field(repr=False)

    @property
    def contract(self) -> Contract:
        """The newest contract, which validates new documents."""
        return self.contracts[max(self.contracts)]

    @cached_property
    def by_name(self) -> dict[str, HotColumn]:
        """The columns by the name of their property."""
        return {column.name: column for column in self.columns}

    @cached_property
    def names(self) -> sql.SQL:
        """`names_text` for a composed statement."""
        return sql.SQL(self.names_text)

    @cached_property
    def names_text(self) -> str:
        """The names of the property columns for a statement, each after a comma."""
        return "".join(f", {column.sql_name}" for column in self.columns)

    def shown_text(self, row: str, names: Collection[str] | None = None) -> str:
        """Return the property columns as a page selects them, each after a comma.

        Instants and decimals are selected as text: converting the driver's value takes 2 us. With
        `names`, the columns of other properties are selected as nulls.
        """
        return "".join(
            f", {row}.{one.sql_name}{_AS_TEXT.get(one.pg_type, '')}"
            if names is None or one.name in names
            else f", {_null_text(one)}"
            for one in self.columns
        )

    @cached_property
    def blank_text(self) -> str:
        """Nulls of the types of `shown_text`, for rows of another type in the same result."""
        return "".join(f", {_null_text(column)}" for column in self.columns)

    @cached_property
    def record_type(self) -> str:
        """The SQL column definitions of a record in `store.py`."""
        parts = "".join(f", {column.sql_name} {column.pg_type}" for column in self.columns)
        return f"id text, ver bigint, schema_version int, rest jsonb{parts}"

    @cached_property
    def assignments(self) -> str:
        """The SQL assignments of the property columns from a record called `given`."""
        return "".join(f", {name} = given.{name}" for name in (c.sql_name for c in self.columns))

    def contract_of(self, schema_version: int) -> Contract:
        """Return a version of the contract; `StaleLayout` if this layout does not have it."""
        try:
            return self.contracts[schema_version]
        except KeyError:
            raise StaleLayout(schema_version) from None

    def document_of(self, schema_version: int, values: Sequence[Any], rest: str | None) -> Json:
        """Return the document of a row, given the values of `columns` and `rest` as text."""
        return self._reader(schema_version).documents([[value] for value in values], [rest])[0]

    def documents_of(
        self,
        schema_versions: Sequence[int],
        values: Sequence[Sequence[Any]],
        rests: Sequence[str | None],
    ) -> list[Json]:
        """Return the documents of many rows, in 3 us each; see `document_of`.

        `values` has one sequence per column, with the values of all rows.
        """
        if len(set(schema_versions)) == 1:
            return self._reader(schema_versions[0]).documents(values, rests)
        return [
            self._reader(version).documents([[column[row]] for column in values], [rest])[0]
            for row, (version, rest) in enumerate(zip(schema_versions, rests, strict=True))
        ]

    def _reader(self, schema_version: int) -> "_DocumentReader":
        found = self._readers.get(schema_version)
        if found is None:
            contract = self.contract_of(schema_version)
            found = self._readers[schema_version] = _document_reader(contract, self.columns)
        return found

    @cached_property
    def _readers(self) -> "dict[int, _DocumentReader]":
        return {}


_ABSENT = object()


@dataclass(frozen=True, slots=True)
class _DocumentReader:
    """Builds the documents of one contract from rows.

    `careful` are the properties whose jsonb values must be made canonical again. `hot` are the
    properties with columns, and the conversion of each column's values. It handles all documents
    for one property, then for the next: twice as fast as document by document.
    """

    decode: Callable[[str], Json]
    careful: Sequence[tuple[str, ColumnKind]]
    is_open: bool
    hot: Sequence[tuple[str, Callable[[Any], Any] | None]]
    template: dict[str, Any]
    quick: "_FastDocumentReader | None"

    def documents(self, values: Sequence[Sequence[Any]], rests: Sequence[str | None]) -> list[Json]:
        """Return the documents of rows; the values are by column.

        All rows have a rest, or none has: then the query did not select it, and the documents have
        only the properties with columns, in the order of the columns.
        """
        given = [rest for rest in rests if rest is not None]
        if not given:  # the query did not select it
            bare: list[Json] = [{} for _ in rests]
            self._add_columns(bare, values)
            return bare
        if self.quick is not None:
            with suppress(msgspec.MsgspecError):  # another program's row: decoded as it is, below
                return self.quick.documents(values, given)
        decode, places = self.decode, self.template
        made = [decode(rest) for rest in given]
        self._restore_canonical(made)
        self._add_columns(made, values)
        # Merging gives the contract's order; picking the properties one by one takes four times as
        # long.
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

    def _restore_canonical(self, made: Sequence[Json]) -> None:
        """Restore the canonical form of values that jsonb may have changed."""
        for name, kind in self.careful:
            for one in made:
                value = one.get(name)
                if value is not None and type(value) is not float:
                    one[name] = to_canonical(kind, value, (name,), [])
        if self.is_open:
            for one in made:
                for name in one.keys() - self.template.keys():
                    one[name] = json_form(one[name])


@dataclass(frozen=True, slots=True)
class _FastDocumentReader:
    """The same for contracts whose only fractional numbers are doubles, a quarter faster.

    A row is decoded into a record whose fields are the contract's properties: in its order, with
    doubles in whichever form jsonb writes them, and without absent properties. It has no Python
    loop over rows: each step is one call for all rows.
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


def _null_text(column: HotColumn) -> str:
    return "null" + _AS_TEXT.get(column.pg_type, f"::{column.pg_type}")


def _without_absent(document: Json) -> Json:
    return {name: value for name, value in document.items() if value is not _ABSENT}


def _document_reader(contract: Contract, columns: Sequence[HotColumn]) -> _DocumentReader:
    kinds = {part.name: part.kind for part in contract.kind.fields}
    careful = [(name, kind) for name, kind in kinds.items() if _is_changed_by_jsonb(kind)]
    is_exact = contract.is_open or any(_needs_digits(kind) for kind in kinds.values())
    decode = (_exact if is_exact else _plain).decode
    names = [column.name for column in columns]
    hot = [(name, _value_converter(kinds[name]) if name in kinds else None) for name in names]
    is_quick = not is_exact and kinds.keys() >= set(names)
    is_quick = is_quick and all(kind.name == "number" and kind.bits == 64 for _, kind in careful)
    is_quick = is_quick and all(map(can_be_decoded, kinds))
    quick = _fast_document_reader(kinds, hot) if is_quick else None
    return _DocumentReader(
        decode, careful, contract.is_open, hot, dict.fromkeys(kinds, _ABSENT), quick
    )


def _fast_document_reader(
    kinds: Mapping[str, ColumnKind], hot: Sequence[tuple[str, Callable[[Any], Any] | None]]
) -> _FastDocumentReader:
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
        gc=False,  # JSON values contain no reference cycles
    )
    decode = msgspec.json.Decoder(list[record]).decode  # type: ignore[valid-type]
    return _FastDocumentReader(
        decode, [(places[name], _column_converter(shown)) for name, shown in hot]
    )


def can_be_decoded(name: str) -> bool:
    """Tell whether JSON writes a property's name without escapes, as record fields need."""
    return not any(letter in '"\\' or letter < " " for letter in name)


def _is_changed_by_jsonb(kind: ColumnKind) -> bool:
    """Tell whether jsonb may return a number of this kind in another form: 1e22 as 10...0."""
    return any(kind.has_kind(name) for name in ("number", "json")) or _needs_digits(kind)


def _needs_digits(kind: ColumnKind) -> bool:
    is_one = kind.name == "json" or (kind.name == "decimal" and not kind.is_text)
    return is_one or any(_needs_digits(part) for part in kind.parts())


def _value_converter(kind: ColumnKind) -> Callable[[Any], Any] | None:
    """Return the conversion of a column's value to a document's; None if both are equal."""
    match kind.name:
        case "string" | "enum" | "integer" | "boolean" | "number":
            return None
        case "timestamp":
            return _instant
        case "decimal" if kind.is_text:
            return _decimal
    return functools.partial(from_stored, kind)


def _column_converter(
    shown: Callable[[Any], Any] | None,
) -> Callable[[Sequence[Any]], Iterable[Any]]:
    """Return the conversion `shown` for all values of a column at once."""
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
    """Return a decimal with all digits written out, as documents and PostgreSQL have it."""
    text = str(value)
    return format(Decimal(value), "f") if "E" in text else text


def _instant(value: datetime | str) -> str:
    """Return an instant in a document's form, from the driver's value or PostgreSQL's text.

    Sessions are in UTC, so the given value is too.
    """
    if isinstance(value, str):
        return f"{value[:10]}T{value[11:-3]}Z"
    text = value.replace(tzinfo=None).isoformat()
    return (text.rstrip("0") if value.microsecond else text) + "Z"


def wide_type(pg_type: str) -> str:
    """Return the table's type of a hot column with this type in the contract."""
    return "numeric" if pg_type.startswith("numeric") else _WIDE.get(pg_type, pg_type)
