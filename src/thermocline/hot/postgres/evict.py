"""Eviction: rows that the lake has as well, and that nobody wrote for long, leave PostgreSQL.

In:   a store, how old a row must be, how many may go at once
Out:  the number of rows that went; nothing that a reader could notice

- Only a clean row goes: one without a change is, at the head, in the lake as it is here.
- Order matters: a row is locked, then looked at again by a new statement. A write that committed
  between the first look and the lock has left its change, and the row stays.
- What is left is the key with its version, so that a later write goes on from there: it brings the
  row back from the lake first.
- Off unless somebody calls it.
"""

from datetime import datetime

from psycopg import sql

from thermocline.format.layout import Version
from thermocline.hot.postgres.connect import Connection
from thermocline.hot.postgres.layout import Layout
from thermocline.hot.postgres.rows import EntityStore

EVICT_ROWS_MAX = 10_000


def evict(store: EntityStore, written_before: datetime, rows_max: int = EVICT_ROWS_MAX) -> int:
    """Let go of at most so many clean rows that were written before a time; return how many went.

    One transaction: all of them go or none. Rows that somebody holds are left for the next time.
    """
    layout = store.layout

    def write(connection: Connection) -> int:
        keys = lock_clean(connection, layout, written_before, rows_max)
        return take_clean(connection, layout, keys) if keys else 0

    return store.pool.run(store.tenant, write)


def lock_clean(
    connection: Connection, layout: Layout, written_before: datetime, rows_max: int
) -> list[str]:
    """Lock rows that look clean; return their keys."""
    query = sql.SQL(
        "select id from {} as row where written_at < %(before)s and not exists "
        "(select from change where type_id = %(type)s and change.id = row.id) "
        "order by id limit %(max)s for update skip locked"
    ).format(sql.Identifier(layout.table))
    values = {"type": layout.type_id, "before": written_before, "max": rows_max}
    return [row[0] for row in connection.execute(query, values).fetchall()]


def take_clean(connection: Connection, layout: Layout, keys: list[str]) -> int:
    """Remove those of these locked rows that are clean, and keep their versions; return how many.

    This is a statement of its own, so it sees what was committed before the rows were locked.
    """
    query = sql.SQL(
        "with taken as (delete from {} as row where id = any(%(keys)s) and not exists "
        "(select from change where type_id = %(type)s and change.id = row.id) "
        "returning id, ver) "
        "insert into gone (type_id, id, ver, why) select %(type)s, id, ver, 'e' from taken"
    ).format(sql.Identifier(layout.table))
    return connection.execute(query, {"type": layout.type_id, "keys": keys}).rowcount


def lake_version(connection: Connection, layout: Layout) -> Version:
    """Return the version of the lake that the running transaction goes with.

    Rows that come back from the lake are read at this version, by whoever holds their keys.
    """
    row = connection.execute(
        "select version from lake_head where type_id = %s", [layout.type_id]
    ).fetchone()
    assert row is not None
    return Version(row[0])
