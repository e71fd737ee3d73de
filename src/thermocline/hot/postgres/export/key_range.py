"""Lets many sessions read one PostgreSQL snapshot, each a range of keys.

In:   a store; a part: the server's address, a snapshot id, a range of keys
Out:  what an export has to carry, and a snapshot id; the rows of a part, sorted by key

- Sessions that begin one after the other have different snapshots, and could see half of a
  transaction between them. So every part imports the one exported snapshot before it reads.
- A snapshot can be imported while the transaction that exported it runs. After that, and after a
  restart of PostgreSQL, reading a part fails without a row.
- The type is read in that snapshot as well: rows and contract fit together.
- A part holds one batch at a time: its memory does not grow with its keys.
- The address contains a password. It is omitted from representations, errors and logs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql

from thermocline.errors import Unavailable
from thermocline.hot.postgres.export.arrow_rows import ID, cold_rows
from thermocline.hot.postgres.export.dirty import FETCH_ROWS, FrozenChanges, freeze_in
from thermocline.hot.postgres.schema.layout import Layout
from thermocline.hot.postgres.schema.registry import read_layout
from thermocline.hot.postgres.schema.tenant import Tenant
from thermocline.hot.postgres.session.connect import Connection
from thermocline.hot.postgres.session.pool import Pool
from thermocline.hot.postgres.session.pool_settings import PoolSettings
from thermocline.hot.postgres.session.transaction import Isolation
from thermocline.hot.postgres.store.store import EntityStore

SHARE_LIMIT_S = 6 * 3_600.0


@dataclass(frozen=True, slots=True)
class KeyRange:
    """A range of the dirty keys of one snapshot, from `low` to `high`, both included.

    It is self-contained: any process can read it.
    """

    dsn: str = field(repr=False)
    tenant: Tenant
    type_name: str
    snapshot_id: str
    low: str
    high: str


@contextmanager
def share_snapshot(
    store: EntityStore, *, limit_s: float = SHARE_LIMIT_S
) -> Iterator[FrozenChanges | None]:
    """Yield what is dirty in one snapshot, which other sessions can read until the block ends.

    None when nothing is dirty. The block keeps dead rows from being vacuumed: end it early.
    """
    with store.pool.transaction(
        store.tenant, isolation=Isolation.REPEATABLE_READ, is_read_only=True, limit_s=limit_s
    ) as connection:
        _raise_timeouts(connection, limit_s)
        row = connection.execute("select pg_export_snapshot()").fetchone()
        assert row is not None
        frozen = freeze_in(connection, read_layout(connection, store.type_name), has_rows=False)
        yield None if frozen is None else replace(frozen, shared_id=str(row[0]))


def read_key_range(
    part: KeyRange, *, limit_s: float = SHARE_LIMIT_S
) -> Iterator[tuple[Layout, pa.Table]]:
    """Yield the rows of a part, sorted by key, in bounded batches, with their type.

    `Unavailable` when the snapshot has ended: the export must start again with a new one.
    """
    pool = Pool(part.dsn, PoolSettings(connections_max=1))
    try:
        with pool.transaction(
            part.tenant, isolation=Isolation.REPEATABLE_READ, is_read_only=True, limit_s=limit_s
        ) as connection:
            _import_snapshot(connection, part.snapshot_id)
            _raise_timeouts(connection, limit_s)
            layout = read_layout(connection, part.type_name)
            for rows in _fetch_rows(connection, layout, part):
                yield layout, cold_rows(layout, rows).sort_by(ID)
    finally:
        pool.close()


def _import_snapshot(connection: Connection, snapshot_id: str) -> None:
    """Import a snapshot; it must come before the transaction's first read."""
    text = sql.SQL("set transaction snapshot {}").format(sql.Literal(snapshot_id))
    try:
        connection.execute(text, prepare=False)
    except psycopg.Error as error:
        if error.sqlstate is None or error.sqlstate.startswith(("08", "57")):
            raise  # the connection was lost: the pool translates this error
        raise Unavailable(
            "the snapshot of this export is gone",
            hint="run the export again: it begins with a new one",
            why=str(error).strip(),
        ) from error


def _raise_timeouts(connection: Connection, limit_s: float) -> None:
    """Raise the transaction's timeouts to its limit: it waits for others, and reads much."""
    limit_ms = int(limit_s * 1000)
    connection.execute(
        f"set local statement_timeout = {limit_ms}; "
        f"set local idle_in_transaction_session_timeout = {limit_ms}",
        prepare=False,
    )


def _fetch_rows(
    connection: Connection, layout: Layout, part: KeyRange
) -> Iterator[list[tuple[Any, ...]]]:
    text = (
        "select id, ver, schema_version, written_at, rest::text{} from {} where id in "
        "(select id from change where type_id = %(type)s and id between %(low)s and %(high)s) "
        "order by id"
    )
    query = sql.SQL(text).format(layout.names, sql.Identifier(layout.table))
    with connection.cursor("part_rows", binary=True) as cursor:
        cursor.execute(query, {"type": layout.type_id, "low": part.low, "high": part.high})
        while rows := cursor.fetchmany(FETCH_ROWS):
            yield rows
