"""Dumps all entities of a tenant in one snapshot, and loads a dump into an empty tenant.

In:   a tenant; a function that stores parts, or one that reads them
Out:  parts of text in COPY's format, and a `Dump` that describes them; the same rows when loaded

- One transaction, REPEATABLE READ and READ ONLY, gives all of it: rows, changes, versions, and the
  versions of the lake that they go with. A copy of the lake at just those versions is the other
  half of the snapshot.
- What comes back is the same PostgreSQL to the lake: its name, its counters and its changes are
  those of the copy. Numbers of transactions are not: changes get those of the loading one.
- Loading is one transaction: all of it is there, or nothing.
- A `Dump` says whose it is, and has the checksum of each part and of itself. Only an older
  release wrote one without.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from thermocline.errors import Conflict, Corruption
from thermocline.format.layout import Version
from thermocline.format.sealed_json import crc32c, seal, unseal
from thermocline.hot.postgres.schema.layout import check_postgres_type
from thermocline.hot.postgres.schema.promote_column import index_text
from thermocline.hot.postgres.schema.registry import create_table
from thermocline.hot.postgres.schema.tenant import Tenant
from thermocline.hot.postgres.session.connect import Connection
from thermocline.hot.postgres.session.pool import Pool
from thermocline.hot.postgres.session.transaction import Isolation

PART_BYTES = 8 << 20
LIMIT_S = 24 * 3_600.0
# Order matters: referenced tables come first.
_FIXED = (
    *("store", "type", "type_version", "type_column", "change", "gone", "lake_head"),
    *("write_request", "revision"),
)
_TABLE_NAME = re.compile("e_[1-9][0-9]{0,9}")
_COLUMN_NAME = re.compile("[a-z][a-z0-9_]{0,62}")
_NOT_KEPT = {("change", "xid"), ("revision", "xid"), ("store", "feed_id")}
_UNSEALED = frozenset({"store", "tables", "counters", "heads"})
HINT = "restore the backup again, into another folder"
_COUNTERS = {"type": "type_id", "change": "cid", "revision": "cid"}


@dataclass(frozen=True, slots=True)
class DumpTable:
    """One table of a dump: its columns in order, and how many parts its rows are in.

    `checksums` are those of the parts; None where an older release wrote none.
    """

    name: str
    columns: tuple[str, ...]
    parts: int
    checksums: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Dump:
    """The description of a dump's parts. `heads` are the lake versions it needs, by table id."""

    tenant: str
    store_id: str
    tables: tuple[DumpTable, ...]
    counters: Mapping[str, int]
    heads: Mapping[str, Version]

    @property
    def data(self) -> bytes:
        """It as JSON text, with its checksum."""
        tables = [
            {
                "name": one.name,
                "columns": list(one.columns),
                "parts": one.parts,
                "checksums": one.checksums,
            }
            for one in self.tables
        ]
        counters, heads = dict(self.counters), dict(self.heads)
        store = {"tenant": self.tenant, "store": self.store_id}
        return seal({**store, "tables": tables, "counters": counters, "heads": heads})

    @property
    def checksums(self) -> dict[str, str]:
        """The checksum of each part by its name, of those that have one."""
        return {
            part_name(table.name, number): checksum
            for table in self.tables
            for number, checksum in enumerate(table.checksums or ())
        }


def parse_dump(data: bytes, path: str, tenant: str) -> Dump:
    """Return the dump that `Dump.data` wrote down for a tenant; `Corruption` for any other."""
    found = unseal(data, path, hint=HINT, unsealed_fields=_UNSEALED)
    try:
        tables = tuple(_parsed_table(one) for one in found["tables"])
        counters = {str(name): int(value) for name, value in found["counters"].items()}
        heads = {str(key): Version(int(value)) for key, value in found["heads"].items()}
        dumped = Dump(found.get("tenant", tenant), str(found["store"]), tables, counters, heads)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Corruption("the copy of the entities cannot be read", hint=HINT, path=path) from error
    if dumped.tenant != tenant:
        raise Corruption(
            "this file is of the entities of another tenant",
            hint=HINT,
            path=path,
            found=dumped.tenant,
        )
    return dumped


def _parsed_table(one: Mapping[str, Any]) -> DumpTable:
    """Return a table of a dump; `ValueError` for a name that no table or column of ours has."""
    checksums = one.get("checksums")
    name, columns = str(one["name"]), tuple(map(str, one["columns"]))
    if name not in _FIXED and not _TABLE_NAME.fullmatch(name):
        raise ValueError("not a table of entities")
    if not all(map(_COLUMN_NAME.fullmatch, columns)):
        raise ValueError("not a column of a table of entities")
    return DumpTable(
        name,
        columns,
        int(one["parts"]),
        None if checksums is None else tuple(map(str, checksums)),
    )


def part_name(table: str, number: int) -> str:
    """Return the name of one part of a table's rows."""
    return f"{table}.{number:06d}.copy"


def dump(pool: Pool, tenant: Tenant, put: Callable[[str, bytes], None]) -> Dump:
    """Pass every row of a tenant to `put`, part by part; return the description of the parts."""
    with pool.transaction(
        tenant, isolation=Isolation.REPEATABLE_READ, is_read_only=True, limit_s=LIMIT_S
    ) as connection:
        connection.execute("set local statement_timeout = 0")
        store = connection.execute("select store_id::text from store").fetchone()
        assert store is not None
        types = connection.execute("select table_name from type order by type_id").fetchall()
        names = [*_FIXED, *(row[0] for row in types)]
        tables = tuple(_dump_table(connection, name, put) for name in names)
        heads = connection.execute(
            "select lake_table_id, version from lake_head join type using (type_id) "
            "where lake_table_id is not null"
        ).fetchall()
        counters = {name: _last_number(connection, name) for name in _COUNTERS}
    return Dump(
        tenant.name, store[0], tables, counters, {key: Version(found) for key, found in heads}
    )


def _dump_table(connection: Connection, name: str, put: Callable[[str, bytes], None]) -> DumpTable:
    rows = connection.execute(
        "select attname from pg_attribute where attrelid = %s::regclass and attnum > 0 "
        "and not attisdropped order by attnum",
        [name],
    ).fetchall()
    columns = tuple(row[0] for row in rows if (name, row[0]) not in _NOT_KEPT)
    checksums: list[str] = []
    with connection.cursor().copy(_copy_text(name, columns, "to stdout")) as copy:
        for data in _join_blocks(bytes(block) for block in copy):
            put(part_name(name, len(checksums)), data)
            checksums.append(crc32c(data))
    return DumpTable(name, columns, len(checksums), tuple(checksums))


def _join_blocks(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Join blocks to parts of about `PART_BYTES`."""
    held: list[bytes] = []
    size_bytes = 0
    for block in blocks:
        held.append(block)
        size_bytes += len(block)
        if size_bytes >= PART_BYTES:
            yield b"".join(held)
            held, size_bytes = [], 0
    if held:
        yield b"".join(held)


def _copy_text(name: str, columns: tuple[str, ...], way: str) -> sql.Composed:
    listed = sql.SQL(", ").join(map(sql.Identifier, columns))
    return sql.SQL("copy {} ({}) " + way).format(sql.Identifier(name), listed)


def _last_number(connection: Connection, name: str) -> int:
    """Return the last number that a table's sequence issued, or the next one."""
    query = sql.SQL("select last_value from {}").format(
        sql.Identifier(_counter_name(connection, name))
    )
    row = connection.execute(query).fetchone()
    assert row is not None
    return int(row[0])


def _counter_name(connection: Connection, name: str) -> str:
    row = connection.execute(
        "select relname from pg_class where oid = pg_get_serial_sequence(%s, %s)::regclass",
        [name, _COUNTERS[name]],
    ).fetchone()
    assert row is not None
    return str(row[0])


def load(pool: Pool, tenant: Tenant, dumped: Dump, read: Callable[[str], bytes]) -> bool:
    """Load a dump into an empty tenant; return False if the tenant already has this dump.

    `Conflict` when the tenant has other entities.
    """
    with pool.transaction(tenant, limit_s=LIMIT_S) as connection:
        connection.execute("set local statement_timeout = 0")
        connection.execute("lock table store in exclusive mode")
        if _is_loaded(connection, dumped):
            return False
        connection.execute("delete from store")
        for table in dumped.tables:
            if table.name not in _FIXED:
                _make_table(connection, table.name)
            with connection.cursor().copy(
                _copy_text(table.name, table.columns, "from stdin")
            ) as copy:
                for number in range(table.parts):
                    copy.write(read(part_name(table.name, number)))
        _check_types(connection)
        _make_indexes(connection)
        for name, last in dumped.counters.items():
            counter = _counter_name(connection, name)
            connection.execute("select setval(%s::regclass, %s)", [f'"{counter}"', last])
    return True


def _is_loaded(connection: Connection, dumped: Dump) -> bool:
    row = connection.execute(
        "select store_id::text, exists (select from type) from store"
    ).fetchone()
    assert row is not None
    if row[0] == dumped.store_id:
        return True
    if row[1]:
        raise Conflict(
            "PostgreSQL has other entities than the backup that was restored",
            hint="give the lake an empty database, or drop the tenant there",
            store=row[0],
            expected=dumped.store_id,
        )
    return False


def _check_types(connection: Connection) -> None:
    """Raise `Corruption` when a loaded type is bound to another table than its own.

    The columns of its table were checked when that was created.
    """
    rows = connection.execute("select type_id, table_name from type").fetchall()
    if any(table != f"e_{type_id}" for type_id, table in rows):
        raise Corruption("the copy of the entities binds a type to a foreign table", hint=HINT)
    read = connection.execute("select distinct pg_type from type_column").fetchall()
    for (pg_type,) in read:
        check_postgres_type(pg_type)


def _make_table(connection: Connection, name: str) -> None:
    columns = connection.execute(
        "select column_id, pg_type from type_column join type using (type_id) "
        "where table_name = %s order by column_id",
        [name],
    ).fetchall()
    create_table(connection, name, columns)


def _make_indexes(connection: Connection) -> None:
    """Create the indexes of columns that are ready; promotion indexes the others later."""
    rows = connection.execute(
        "select type_id, table_name, column_id from type_column join type using (type_id) "
        "where state = 'r' and is_indexed"
    ).fetchall()
    for type_id, table, column_id in rows:
        connection.execute(index_text(type_id, table, column_id, is_online=False), prepare=False)
