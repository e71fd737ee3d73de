"""Forgets keys that were deleted long ago, without ever giving one of their versions again.

In:   a store, how many deleted keys may be remembered
Out:  the number of keys that were forgotten; a floor below which no version is given

- A key that is deleted and created again goes on from its last version: whoever saw the old one
  cannot take the new one for it. `gone` has that version, a row a key.
- What is forgotten raises the type's floor to its version: a key that is not remembered begins
  above the floor, and with that above whatever it had. So the promise holds in bounded space. The
  price is that new keys begin above 1 from then on; the lowest versions are forgotten first.
- Only a clean key is forgotten, one whose delete an export has carried. Keys that were moved to
  the lake stay.
- Order matters: `gone` is locked against everyone. A writer that looked at it has ended before, and
  one that looks later sees the floor.
"""

from psycopg import sql

from thermocline.hot.postgres.connect import Connection
from thermocline.hot.postgres.rows import EntityStore

FORGET_ROWS_MAX = 10_000
LOCK_TIMEOUT_MS = 200


def forget(store: EntityStore, kept_max: int, rows_max: int = FORGET_ROWS_MAX) -> int:
    """Forget deleted keys past the number that is kept, at most so many; return how many.

    All of them or none. `Overloaded` when writers are in the way for long: then none.
    """
    type_id = store.layout.type_id
    # A transaction of its own: one that has looked and then locks may wait for its like.
    held = store.pool.run(
        store.tenant, lambda connection: _held(connection, type_id), is_read_only=True
    )
    wanted = min(held - kept_max, rows_max)
    if wanted <= 0:
        return 0
    return store.pool.run(store.tenant, lambda connection: _forget(connection, type_id, wanted))


def _held(connection: Connection, type_id: int) -> int:
    row = connection.execute(
        "select count(*) from gone where type_id = %s and why = 'd'", [type_id]
    ).fetchone()
    assert row is not None
    return int(row[0])


def _forget(connection: Connection, type_id: int, wanted: int) -> int:
    connection.execute(
        sql.SQL("set local lock_timeout = {}").format(LOCK_TIMEOUT_MS), prepare=False
    )
    connection.execute("lock table gone in access exclusive mode")
    row = connection.execute(
        "with old as (select id from gone where type_id = %(type)s and why = 'd' "
        "and not exists (select from change where type_id = %(type)s and change.id = gone.id) "
        "order by ver limit %(wanted)s), "
        "dropped as (delete from gone using old where type_id = %(type)s and gone.id = old.id "
        "returning ver) select count(*), max(ver) from dropped",
        {"type": type_id, "wanted": wanted},
    ).fetchone()
    assert row is not None
    if row[0]:
        connection.execute(
            "update type set ver_floor = greatest(ver_floor, %s) where type_id = %s",
            [row[1], type_id],
        )
    return int(row[0])
