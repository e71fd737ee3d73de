"""Creates tenants, and migrates their tables to this version of the program.

In:   a pool, the name of a tenant, the numbered SQL files beside this module
Out:  a `Tenant` whose tables are up to date; `Unsupported` when a newer program migrated them

- A process that migrates a tenant holds an advisory lock on it; other processes wait for the lock,
  check again and find the migration done.
- Each file runs in one transaction with the row that records it. After a kill, the next start
  continues after the last recorded file.
- An applied file never changes: its checksum is recorded and compared.
- A tenant that is up to date costs one read and no lock.
- A statement that waits for a lock fails after `LOCK_TIMEOUT_S` and is retried: while it waits,
  all later statements on the table wait as well.
"""

import functools
import hashlib
import importlib.resources
import secrets
import time
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import errors as postgres
from psycopg import sql

from thermocline.errors import Corruption, Overloaded, TenantNotFound, Unsupported
from thermocline.hot.postgres.schema.tenant import SCHEMA_PREFIX, Tenant, schema_of
from thermocline.hot.postgres.session.connect import Connection
from thermocline.hot.postgres.session.pool import Pool

LOCK_TIMEOUT_S = 2.0
LOCK_TRIES_MAX = 15
LOCK_SPACE = 0x7463  # the first half of the advisory lock's key: "tc"
SERVER_VERSION_MIN = 14_00_00


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered SQL file."""

    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        """The SHA-256 of the file."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@functools.cache
def known_migrations() -> tuple[Migration, ...]:
    """Return the SQL files of this program, in order; their numbers are consecutive from 1."""
    folder = importlib.resources.files(__package__ or "")
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    found = tuple(
        Migration(int(name[:3]), name.removesuffix(".sql"), folder.joinpath(name).read_text())
        for name in names
    )
    assert [one.number for one in found] == list(range(1, len(found) + 1))
    return found


def open_tenant(pool: Pool, name: str, migrations: tuple[Migration, ...] | None = None) -> Tenant:
    """Return a tenant; create it if it is new, and migrate it if its tables are old."""
    schema = schema_of(name)
    wanted = known_migrations() if migrations is None else migrations
    role = pool.run(None, lambda connection: _tenant_role(connection, schema), is_read_only=True)
    if role is not None:
        tenant = Tenant(name, schema, role)
        if _is_current(pool, tenant, wanted):
            return tenant
    with pool.session() as connection:
        _check_server(connection)
        # PostgreSQL releases it when the session ends, however it ends.
        connection.execute("select pg_advisory_lock(%s, hashtext(%s))", [LOCK_SPACE, schema])
        role = _tenant_role(connection, schema) or _make_tenant(connection, schema)
        tenant = Tenant(name, schema, role)
        applied = _applied_migrations(connection, tenant)
        _check_applied(applied, wanted, tenant)
        for migration in wanted[len(applied) :]:
            _apply_migration(connection, tenant, migration)
    return tenant


def tenant_names(pool: Pool) -> list[str]:
    """Return the names of the tenants that this login may act for, in order."""
    query = (
        "select nspname from pg_namespace where starts_with(nspname, %s) "
        "and pg_has_role(nspowner, 'MEMBER') order by nspname"
    )
    rows = pool.run(None, lambda c: c.execute(query, [SCHEMA_PREFIX]).fetchall(), is_read_only=True)
    return [row[0].removeprefix(SCHEMA_PREFIX) for row in rows]


def drop_tenant(pool: Pool, name: str) -> None:
    """Delete a tenant with all its data; this cannot be undone."""
    schema = schema_of(name)

    def drop(connection: Connection) -> None:
        connection.execute("select pg_advisory_xact_lock(%s, hashtext(%s))", [LOCK_SPACE, schema])
        role = _tenant_role(connection, schema)
        if role is None:
            raise TenantNotFound("no such tenant", hint="list the tenants", tenant=name)
        words = "set local role {role}; drop schema {schema} cascade; reset role; drop role {role}"
        names = {"role": sql.Identifier(role), "schema": sql.Identifier(schema)}
        connection.execute(sql.SQL(words).format(**names), prepare=False)

    pool.run(None, drop)


def execute_patiently(connection: Connection, text: sql.Composable, role: str) -> None:
    """Run statements that need strong locks as one transaction, without blocking others for long.

    If a lock is not granted within `LOCK_TIMEOUT_S`, the transaction is retried.
    """
    for turn in range(LOCK_TRIES_MAX):
        try:
            with connection.transaction():
                limits = sql.SQL("set local lock_timeout = {}; set local role {}; ")
                opening = limits.format(int(LOCK_TIMEOUT_S * 1000), sql.Identifier(role))
                connection.execute(opening + text, prepare=False)
        except (postgres.LockNotAvailable, postgres.DeadlockDetected) as error:
            if turn + 1 == LOCK_TRIES_MAX:
                raise Overloaded(
                    "the tables are busy and could not be changed", hint="try again later"
                ) from error
            time.sleep(LOCK_TIMEOUT_S / 4)
        else:
            return


def _tenant_role(connection: Connection, schema: str) -> str | None:
    """Return the role of a tenant: the owner of its schema."""
    query = (
        "select rolname from pg_namespace join pg_roles on pg_roles.oid = nspowner "
        "where nspname = %s"
    )
    row = connection.execute(query, [schema]).fetchone()
    return None if row is None else row[0]


def _make_tenant(connection: Connection, schema: str) -> str:
    # Roles belong to the whole server, schemas to a database: the role gets a unique name, and is
    # found as the owner of the schema.
    role = f"{schema}_{secrets.token_hex(4)}"
    names = {"role": sql.Identifier(role), "schema": sql.Identifier(schema)}
    grant = "grant {role} to current_user"
    if connection.info.server_version >= 16_00_00:
        grant += " with inherit false, set true"
    with connection.transaction():
        connection.execute(sql.SQL("create role {role} nologin").format(**names))
        connection.execute(sql.SQL(grant).format(**names))
        connection.execute(sql.SQL("create schema {schema} authorization {role}").format(**names))
        connection.execute(sql.SQL("set local role {role}").format(**names))
        connection.execute(
            sql.SQL(
                "create table {schema}.migration (number int primary key, name text not null, "
                "checksum text not null, applied_at timestamptz not null default clock_timestamp())"
            ).format(**names)
        )
    return role


def _is_current(pool: Pool, tenant: Tenant, wanted: tuple[Migration, ...]) -> bool:
    def look(connection: Connection) -> list[tuple[Any, ...]]:
        query = "select number, checksum from migration order by number"
        return connection.execute(query).fetchall()

    applied = pool.run(tenant, look, is_read_only=True)
    _check_applied(applied, wanted, tenant)
    return len(applied) == len(wanted)


def _applied_migrations(connection: Connection, tenant: Tenant) -> list[tuple[Any, ...]]:
    with connection.transaction():
        for words in tenant.role_statements():
            connection.execute(words, prepare=False)
        return connection.execute(
            "select number, checksum from migration order by number"
        ).fetchall()


def _check_applied(
    applied: list[tuple[Any, ...]], wanted: tuple[Migration, ...], tenant: Tenant
) -> None:
    if len(applied) > len(wanted):
        raise Unsupported(
            "a newer version of this program has migrated the tables",
            hint="use that version, or restore a backup made before it ran",
            tenant=tenant.name,
            tables_at=len(applied),
            known_up_to=len(wanted),
        )
    for (number, checksum), migration in zip(applied, wanted, strict=False):
        if (number, checksum) != (migration.number, migration.checksum):
            raise Corruption(
                "an applied migration differs from this program's",
                hint="reinstall this version, or install the version that made these tables",
                tenant=tenant.name,
                migration=migration.name,
            )


def _apply_migration(connection: Connection, tenant: Tenant, migration: Migration) -> None:
    note = sql.SQL("insert into migration (number, name, checksum) values ({}, {}, {})").format(
        migration.number, migration.name, migration.checksum
    )
    text = sql.SQL("; ").join(
        # Crash here: between any two of these. They are one transaction.
        [
            sql.SQL("set local search_path to {}, pg_catalog").format(
                sql.Identifier(tenant.schema)
            ),
            sql.SQL(migration.text.rstrip().removesuffix(";")),
            note,
        ]
    )
    execute_patiently(connection, text, tenant.role)


def _check_server(connection: psycopg.Connection[Any]) -> None:
    found = connection.info.server_version
    if found < SERVER_VERSION_MIN:
        hint = "use PostgreSQL 14 or newer"
        raise Unsupported("this PostgreSQL is too old", hint=hint, server_version=found)
