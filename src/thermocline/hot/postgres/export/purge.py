"""Removes the last traces of keys from PostgreSQL, once their deletes are exported.

In:   keys whose deletion the lake has
Out:  the number of rows removed, and of those that remain

- A key that still has a row, or a change that is not exported, is kept and counted: it must be
  deleted or exported first.
- A key's last version number is removed too. A new entity with the key starts at 1.
- All its changes in the history and in the feed are removed, and remembered answers that name it.
"""

from dataclasses import dataclass

from psycopg import sql

from thermocline.hot.postgres.revision.revisions import purge_revisions
from thermocline.hot.postgres.session.connect import Connection
from thermocline.hot.postgres.store.store import EntityStore


@dataclass(frozen=True, slots=True)
class PurgeResult:
    """The rows removed for some keys, and the rows that remain.

    `revisions` were in the history and in the feed.
    """

    tombstones: int
    rows_left: int
    changes_left: int
    revisions: int


def purge(store: EntityStore, keys: list[str]) -> PurgeResult:
    """Remove the tombstones of keys in one transaction."""
    layout = store.layout
    values = {"type": layout.type_id, "keys": keys}
    forget = sql.SQL(
        "delete from gone where type_id = %(type)s and id = any(%(keys)s) and not exists "
        "(select from {} as row where row.id = gone.id) and not exists "
        "(select from change where change.type_id = gone.type_id and change.id = gone.id)"
    ).format(sql.Identifier(layout.table))
    rows = sql.SQL("select count(*) from {} where id = any(%(keys)s)").format(
        sql.Identifier(layout.table)
    )
    changes = sql.SQL("select count(*) from change where type_id = %(type)s and id = any(%(keys)s)")

    def write(connection: Connection) -> PurgeResult:
        gone = connection.execute(forget, values).rowcount
        revisions = purge_revisions(connection, layout, keys)
        return PurgeResult(
            gone,
            _count(connection, rows, values),
            _count(connection, changes, values),
            revisions,
        )

    return store.pool.run(store.tenant, write)


def count_traces(store: EntityStore, keys: list[str]) -> int:
    """Return the number of rows in PostgreSQL with one of these keys."""
    layout = store.layout
    values = {"type": layout.type_id, "keys": keys}
    query = sql.SQL(
        "select (select count(*) from {} where id = any(%(keys)s)) "
        "+ (select count(*) from change where type_id = %(type)s and id = any(%(keys)s)) "
        "+ (select count(*) from gone where type_id = %(type)s and id = any(%(keys)s)) "
        "+ (select count(*) from revision where type_id = %(type)s and id = any(%(keys)s))"
    ).format(sql.Identifier(layout.table))

    def look(connection: Connection) -> int:
        return _count(connection, query, values)

    return store.pool.run(store.tenant, look, is_read_only=True)


def _count(connection: Connection, query: sql.SQL | sql.Composed, values: dict[str, object]) -> int:
    row = connection.execute(query, values).fetchone()
    assert row is not None
    return int(row[0])
