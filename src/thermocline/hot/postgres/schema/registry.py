"""The types of a tenant: their contracts, version by version, and their tables.

In:   the name of a type, a JSON Schema document
Out:  a `Layout`; `Invalid` with pointers and reasons when the new version is incompatible

- A registration is one transaction: it commits a version with its table, or nothing. Concurrent
  registrations run one after the other; registering the same document twice makes one version.
- A new property needs no change of a table. A property that becomes hot gets its column online
  (`promote_column.py`) after its version is registered; until then it is stored in `rest`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from psycopg import sql

from thermocline.contract.contract import Contract
from thermocline.contract.document.text import decode, encode_text
from thermocline.contract.evolve.compatible import evolve_contract
from thermocline.contract.schema.register import parse_contract, restore_contract
from thermocline.errors import Conflict, Invalid, NotFound
from thermocline.hot.postgres.schema.layout import (
    HotColumn,
    Layout,
    check_postgres_type,
    wide_type,
)
from thermocline.hot.postgres.schema.promote_column import index_text, promote
from thermocline.hot.postgres.schema.tenant import Tenant
from thermocline.hot.postgres.session.connect import Connection
from thermocline.hot.postgres.session.pool import Pool
from thermocline.names import ENTITY_ID_LENGTH_MAX, TYPE_NAME

KEY_BYTES_MAX = 4 * ENTITY_ID_LENGTH_MAX
VERSIONS_MAX = 10_000
COLUMNS_MAX = 200
REGISTER_TRIES_MAX = 5


Evolve: TypeAlias = Callable[[Any, Contract | None], Contract]


class _RegisteredMeanwhile(Exception):
    """Another version was committed after this one was judged. It never leaves this module."""


def evolve_here(document: Any, previous: Contract | None) -> Contract:
    """Return the contract of a document; this process proves that it may follow the other one."""
    return evolve_contract(document, previous) if previous else parse_contract(document)


class TypeRegistry:
    """The types of one tenant. Any thread may use it."""

    def __init__(self, pool: Pool, tenant: Tenant, evolve: Evolve | None = None) -> None:
        """`evolve` returns the contract of a document that may follow another one."""
        self.pool = pool
        self.tenant = tenant
        self.evolve = evolve or evolve_here

    def register(
        self, name: str, document: Any, claim: Callable[[], object] | None = None
    ) -> Layout:
        """Register the first or next version of a type; an equal document changes nothing.

        When this returns, every client can write documents of the new version, and its hot
        properties have columns. `Invalid` has the fact `problems` (pointer, reason). `claim` is
        called before a new version is committed, possibly more than once; if it raises, nothing is
        committed.
        """
        _check_name(name)
        for _ in range(REGISTER_TRIES_MAX):
            with suppress(_RegisteredMeanwhile):
                self._register(name, document, claim)
                return self.finish_promotions(name)
        raise Conflict("other versions are being registered", hint="try again", type=name)

    def _register(
        self, name: str, document: Any, claim: Callable[[], object] | None = None
    ) -> None:
        """Register a version; raise `_RegisteredMeanwhile` if it was judged against another one.

        Order matters: a proof may take long, and must not hold a connection or a lock meanwhile.
        """
        before = self._newest(name)
        made = None
        if before is None or not _is_same(before, document):
            made = self.evolve(document, before)

        def judge(_: Any, previous: Contract | None) -> Contract:
            judged = None if before is None else before.version
            if made is None or judged != (None if previous is None else previous.version):
                raise _RegisteredMeanwhile
            return made

        def write(connection: Connection) -> None:
            if _register_version(connection, name, document, judge) and claim is not None:
                claim()

        self.pool.run(self.tenant, write)

    def _newest(self, name: str) -> Contract | None:
        try:
            return self.layout(name).contract
        except NotFound:
            return None

    def finish_promotions(self, name: str) -> Layout:
        """Finish the column promotions that a killed process left; return the layout."""
        layout = self.layout(name)
        wanted = {
            column.id: HotColumn(
                column.id, column.name, wide_type(column.postgres_type), is_ready=False
            )
            for column in layout.contract.hot_columns
        }
        for column in layout.columns:
            wanted[column.column_id] = column
        missing = [column for column in wanted.values() if not column.is_ready]
        for column in missing:
            promote(self.pool, self.tenant, layout.type_id, column)
        return self.layout(name) if missing else layout

    def layout(self, name: str) -> Layout:
        """Return the current layout of a type; `NotFound` when no type has this name."""
        return self.pool.run(self.tenant, lambda c: read_layout(c, name), is_read_only=True)

    def names(self) -> list[str]:
        """Return the names of all types, in order."""
        rows = self.pool.run(
            self.tenant,
            lambda c: c.execute("select name from type order by name").fetchall(),
            is_read_only=True,
        )
        return [row[0] for row in rows]

    def versions(self, name: str) -> list[Contract]:
        """Return every version of a type's contract, oldest first."""
        contracts = self.layout(name).contracts
        return [contracts[version] for version in sorted(contracts)]


def read_layout(connection: Connection, name: str) -> Layout:
    """Return a type's layout as the running transaction sees it; `NotFound` without the type."""
    row = connection.execute(
        "select type_id, table_name from type where name = %s", [name]
    ).fetchone()
    if row is None:
        raise NotFound("no such type", hint="register it first", type=name)
    columns = _read_columns(connection, row[0])
    return Layout(row[0], name, row[1], columns, _read_versions(connection, row[0]))


def is_outdated(connection: Connection, layout: Layout) -> bool:
    """Tell whether a type has changed since this layout was read."""
    row = connection.execute(
        "select max(schema_version) from type_version where type_id = %s", [layout.type_id]
    ).fetchone()
    newest = row[0] if row else None
    return (
        newest != max(layout.contracts)
        or _read_columns(connection, layout.type_id) != layout.columns
    )


def _check_name(name: str) -> None:
    if not isinstance(name, str) or not re.fullmatch(TYPE_NAME, name):
        hint = "use lower-case letters, digits and underscores, 63 at most, no digit first"
        raise Invalid("invalid name of a type", hint=hint, argument="name", type=ascii(name)[:80])


def _register_version(connection: Connection, name: str, document: Any, evolve: Evolve) -> bool:
    """Insert the next version of a type unless it equals the newest; return whether it did."""
    made = connection.execute(
        "insert into type (name, table_name) values (%s, '') on conflict (name) do nothing "
        "returning type_id",
        [name],
    ).fetchone()
    # A concurrent registration of the same type waits for this row.
    query = "select type_id from type where name = %s for update"
    row = connection.execute(query, [name]).fetchone()
    if row is None:
        raise Conflict("the type was removed meanwhile", hint="register it again", type=name)
    type_id = row[0]
    versions = _read_versions(connection, type_id)
    previous = versions[max(versions)] if versions else None
    if previous is not None and _is_same(previous, document):
        return False
    contract = evolve(document, previous)
    _check_limits(contract, _read_columns(connection, type_id))
    connection.execute(
        "insert into type_version (type_id, schema_version, document, columns) "
        "values (%s, %s, %s, %s)",
        [type_id, contract.version, encode_text(document), encode_text(contract.columns_json)],
    )
    if made is not None:
        _make_table(connection, type_id, contract)
    return True


def _is_same(previous: Contract, document: Any) -> bool:
    # An array of numpy answers `==` with an array.
    return isinstance(document, dict) and bool(previous.document == document)


def _check_limits(contract: Contract, columns: tuple[HotColumn, ...]) -> None:
    if len(contract.hot_columns) > COLUMNS_MAX:
        hint = "mark fewer properties x-hot"
        raise Invalid("too many hot properties", hint=hint, columns_max=COLUMNS_MAX)
    if contract.version > VERSIONS_MAX:
        hint = "register a new type"
        raise Invalid("too many versions", hint=hint, versions_max=VERSIONS_MAX)
    held = {column.name: column.column_id for column in columns}
    for column in contract.columns:
        if held.get(column.name, column.id) != column.id:
            hint = "give the property of the new type another name"
            raise Invalid("a hot property cannot change its type", hint=hint, property=column.name)


def _make_table(connection: Connection, type_id: int, contract: Contract) -> None:
    table = f"e_{type_id}"
    columns = [(column.id, wide_type(column.postgres_type)) for column in contract.hot_columns]
    create_table(connection, table, columns)
    for column in contract.hot_columns:
        connection.execute(
            "insert into type_column values (%s, %s, %s, %s, true, 'r')",
            [type_id, column.id, column.name, wide_type(column.postgres_type)],
        )
        connection.execute(index_text(type_id, table, column.id, is_online=False), prepare=False)
    connection.execute("update type set table_name = %s where type_id = %s", [table, type_id])
    connection.execute(
        "insert into lake_head (type_id, version, cluster_id) select %s, 0, store_id from store",
        [type_id],
    )


def create_table(connection: Connection, table: str, columns: Sequence[tuple[int, str]]) -> None:
    """Create the table of a type with these hot columns: the id and wide type of each."""
    parts = [_column_text(column_id, pg_type) for column_id, pg_type in columns]
    text = sql.SQL(
        'create table {} (id text collate "C" primary key '
        "check (octet_length(id) between 1 and {}), ver bigint not null, "
        "schema_version int not null, written_at timestamptz not null default clock_timestamp(), "
        "rest jsonb not null{})"
    )
    connection.execute(
        text.format(sql.Identifier(table), KEY_BYTES_MAX, sql.Composed(parts)), prepare=False
    )


def _column_text(column_id: int, pg_type: str) -> sql.Composed:
    check_postgres_type(pg_type)
    collation = ' collate "C"' if pg_type == "text" else ""
    return sql.SQL(", {} " + pg_type + collation).format(sql.Identifier(f"h_{column_id}"))


def _read_columns(connection: Connection, type_id: int) -> tuple[HotColumn, ...]:
    rows = connection.execute(
        "select column_id, name, pg_type, state = 'r' from type_column where type_id = %s "
        "order by column_id",
        [type_id],
    ).fetchall()
    return tuple(HotColumn(*row) for row in rows)


def _read_versions(connection: Connection, type_id: int) -> Mapping[int, Contract]:
    rows = connection.execute(
        "select schema_version, document::text, columns::text from type_version "
        "where type_id = %s order by schema_version",
        [type_id],
    ).fetchall()
    return {
        row[0]: restore_contract(decode(row[1].encode()), row[0], decode(row[2].encode()))
        for row in rows
    }
