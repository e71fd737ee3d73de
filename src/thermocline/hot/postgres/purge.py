"""Takes the last traces of keys out of PostgreSQL, once their entities are deleted and exported.

In:   keys whose deletion the lake has
Out:  how many rows of each kind went

- A key that has a row, or a change that was not exported yet, is left as it is and counted: there
  is something to delete or to export first.
- A key's last version number goes, too. An entity that is made under the key later begins at 1.
"""

from dataclasses import dataclass

from psycopg import sql

from thermocline.hot.postgres.connect import Connection
from thermocline.hot.postgres.rows import EntityStore


@dataclass(frozen=True, slots=True)
class Purged:
    """What went of some keys, and what is left of them."""

    tombstones: int
    rows_left: int
    changes_left: int


def purge(store: EntityStore, keys: list[str]) -> Purged:
    """Forget that keys were ever used; one transaction."""
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

    def write(connection: Connection) -> Purged:
        gone = connection.execute(forget, values).rowcount
        return Purged(gone, _count(connection, rows, values), _count(connection, changes, values))

    return store.pool.run(store.tenant, write)


def traces(store: EntityStore, keys: list[str]) -> int:
    """Return how many rows of PostgreSQL name one of these keys."""
    layout = store.layout
    values = {"type": layout.type_id, "keys": keys}
    query = sql.SQL(
        "select (select count(*) from {} where id = any(%(keys)s)) "
        "+ (select count(*) from change where type_id = %(type)s and id = any(%(keys)s)) "
        "+ (select count(*) from gone where type_id = %(type)s and id = any(%(keys)s))"
    ).format(sql.Identifier(layout.table))

    def look(connection: Connection) -> int:
        return _count(connection, query, values)

    return store.pool.run(store.tenant, look, is_read_only=True)


def _count(connection: Connection, query: sql.SQL | sql.Composed, values: dict[str, object]) -> int:
    row = connection.execute(query, values).fetchone()
    assert row is not None
    return int(row[0])
