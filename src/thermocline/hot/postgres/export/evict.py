"""Eviction: deletes rows from PostgreSQL that the lake has too and that were not written for long.

In:   a store, the minimal age of a row, the maximal number of rows
Out:  the number of evicted rows; reads return the same as before

- Only a clean row is evicted: a row without a change is identical in the lake at the head.
- Order matters: a row is locked, then checked again by a new statement. If a write committed
  between the first check and the lock, it left a change, and the row stays.
- The key and its version stay in `gone`, so a later write continues from that version: it first
  loads the row from the lake.
- It runs only when it is called.
"""

from datetime import datetime

from psycopg import sql

from thermocline.format.layout import Version
from thermocline.hot.postgres.schema.layout import Layout
from thermocline.hot.postgres.session.connect import Connection
from thermocline.hot.postgres.store.store import EntityStore

EVICT_ROWS_MAX = 10_000


def evict(store: EntityStore, written_before: datetime, rows_max: int = EVICT_ROWS_MAX) -> int:
    """Evict at most `rows_max` clean rows written before a time; return how many.

    One transaction: all of them or none. Rows that another transaction has locked are skipped.
    """
    layout = store.layout

    def write(connection: Connection) -> int:
        keys = lock_clean(connection, layout, written_before, rows_max)
        return delete_clean(connection, layout, keys) if keys else 0

    return store.pool.run(store.tenant, write)


def lock_clean(
    connection: Connection, layout: Layout, written_before: datetime, rows_max: int
) -> list[str]:
    """Lock rows that appear clean; return their keys."""
    query = sql.SQL(
        "select id from {} as row where written_at < %(before)s and not exists "
        "(select from change where type_id = %(type)s and change.id = row.id) "
        "order by id limit %(max)s for update skip locked"
    ).format(sql.Identifier(layout.table))
    values = {"type": layout.type_id, "before": written_before, "max": rows_max}
    return [row[0] for row in connection.execute(query, values).fetchall()]


def delete_clean(connection: Connection, layout: Layout, keys: list[str]) -> int:
    """Delete those of these locked rows that are clean, keep their versions; return how many.

    This is a separate statement, so it sees every commit before the rows were locked.
    """
    query = sql.SQL(
        "with taken as (delete from {} as row where id = any(%(keys)s) and not exists "
        "(select from change where type_id = %(type)s and change.id = row.id) "
        "returning id, ver) "
        "insert into gone (type_id, id, ver, why) select %(type)s, id, ver, 'e' from taken"
    ).format(sql.Identifier(layout.table))
    return connection.execute(query, {"type": layout.type_id, "keys": keys}).rowcount


def lake_version(connection: Connection, layout: Layout) -> Version:
    """Return the lake version that the running transaction goes with.

    A writer that has locked evicted keys loads their rows from the lake at this version.
    """
    row = connection.execute(
        "select version from lake_head where type_id = %s", [layout.type_id]
    ).fetchone()
    assert row is not None
    return Version(row[0])
